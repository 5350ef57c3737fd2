"""transformers as a benchmark peer: its model classes with their own losses."""

from typing import Any

from torch import Tensor

from fourfold.losses import IGNORE_INDEX
from scripts.benchmarks.contenders import Contender
from scripts.benchmarks.workloads import Shape


def causal_lm(shape: Shape, dropout: float) -> Contender:
    """Build GPT2LMHeadModel, whose loss shifts the labels by one token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.n_out,
        n_positions=shape.length,
        n_embd=shape.d_model,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return Contender(GPT2LMHeadModel(config), _causal_loss)


def llama(shape: Shape, dropout: float) -> Contender:
    """Build LlamaForCausalLM, which has no dropout except that of attention weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    n_kv_heads, d_ff = shape.llama
    config = LlamaConfig(
        vocab_size=shape.n_out,
        hidden_size=shape.d_model,
        intermediate_size=d_ff,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=n_kv_heads,
        max_position_embeddings=shape.length,
        attention_dropout=dropout,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return Contender(LlamaForCausalLM(config), _causal_loss)


def _bert_sizes(shape: Shape, dropout: float) -> dict[str, Any]:
    return {
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "intermediate_size": shape.d_ff,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }


def masked_lm(shape: Shape, dropout: float) -> Contender:
    """Build BertForMaskedLM."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        **_bert_sizes(shape, dropout),
        vocab_size=shape.n_out,
        max_position_embeddings=shape.length,
    )
    return Contender(BertForMaskedLM(config), _masked_loss)


def vit(shape: Shape, dropout: float) -> Contender:
    """Build ViTForImageClassification."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        **_bert_sizes(shape, dropout),
        image_size=shape.length,
        patch_size=shape.patch_size,
        id2label={i: str(i) for i in range(shape.n_out)},
    )
    return Contender(ViTForImageClassification(config), _image_loss)


def encoder_decoder(shape: Shape, dropout: float) -> Contender:
    """Build MarianMTModel."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=shape.n_out,
        d_model=shape.d_model,
        max_position_embeddings=shape.max_len,
        encoder_layers=shape.n_layers,
        decoder_layers=shape.n_layers,
        encoder_attention_heads=shape.n_heads,
        decoder_attention_heads=shape.n_heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        activation_function="relu",
        dropout=dropout,
        scale_embedding=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        forced_eos_token_id=None,
        decoder_start_token_id=1,
        use_cache=False,
    )
    return Contender(MarianMTModel(config), _pair_loss)


def load_causal_lm(folder: str, dtype: Any) -> Any:
    """Load a causal LM from a directory; it generates without an end-of-text token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model


def load_seq2seq(folder: str, dtype: Any) -> Any:
    """Load an encoder-decoder from a directory."""
    from transformers import AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype)


def _causal_loss(model: Any, batch: Any) -> Tensor:
    return model(input_ids=batch.ids, labels=batch.ids).loss


def _masked_loss(model: Any, batch: Any) -> Tensor:
    return model(input_ids=batch.ids, attention_mask=batch.mask, labels=batch.targets).loss


def _image_loss(model: Any, batch: Any) -> Tensor:
    return model(pixel_values=batch.images, labels=batch.labels).loss


def _pair_loss(model: Any, batch: Any) -> Tensor:
    labels = batch.tgt[:, 1:].masked_fill(~batch.tgt_mask[:, 1:], IGNORE_INDEX)
    inputs = {"input_ids": batch.src, "attention_mask": batch.src_mask}
    return model(**inputs, decoder_input_ids=batch.tgt[:, :-1], labels=labels).loss


FAMILIES = {make.__name__: make for make in (causal_lm, llama, masked_lm, vit, encoder_decoder)}
