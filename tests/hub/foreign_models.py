"""Small random models of transformers with odd shapes, and what they are given."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

BERT = {"hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 50, "vocab_size": 61}
GPT = {"n_embd": 36, "n_head": 3, "vocab_size": 61, "n_positions": 23}
SEQ2SEQ = {
    "d_model": 36, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 50, "decoder_ffn_dim": 50, "encoder_layers": 1, "decoder_layers": 2,
    "vocab_size": 61, "max_position_embeddings": 23, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
IMAGE = {
    "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 50, "num_hidden_layers": 2,
    "image_size": 12, "patch_size": 4, "num_labels": 5,
}  # fmt: skip
# Heads wider than the stream, stacks of unequal depth, and rows beyond the last bucket.
T5 = {
    "d_model": 36, "d_kv": 10, "d_ff": 50, "num_heads": 3, "num_layers": 2,
    "num_decoder_layers": 1, "vocab_size": 61, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 13, "pad_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip


def clip(text: dict[str, Any], image: dict[str, Any]) -> Any:
    """Towers of different widths and depths, heads of different widths."""
    words = {
        "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 50, "vocab_size": 61,
        "max_position_embeddings": 23, "num_hidden_layers": 1, "bos_token_id": 0, "pad_token_id": 1,
    }  # fmt: skip
    pixels = {
        "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 70,
        "num_hidden_layers": 2, "image_size": 12, "patch_size": 4,
    }  # fmt: skip
    return hf.CLIPConfig(
        text_config={**words, **text}, vision_config={**pixels, **image}, projection_dim=20
    )


def bert(**more: Any) -> Any:
    return hf.BertConfig(**{**BERT, "num_hidden_layers": 2, "max_position_embeddings": 23, **more})


def roberta(**more: Any) -> Any:
    return hf.RobertaConfig(
        **{**BERT, "num_hidden_layers": 1, "max_position_embeddings": 25, **more}
    )


def distilbert() -> Any:
    return hf.DistilBertConfig(
        dim=36, n_heads=3, hidden_dim=50, n_layers=1, vocab_size=61, max_position_embeddings=23
    )


def t5(own_head: bool = False, **more: Any) -> Any:
    model = hf.T5ForConditionalGeneration(hf.T5Config(**T5, **more))
    if own_head:  # as from_pretrained does where a checkpoint has both matrices
        model.lm_head.weight = nn.Parameter(torch.randn(61, 36))
        model.all_tied_weights_keys.pop("lm_head.weight")
    return model


class ExactNorm(nn.RMSNorm):
    """T5's norm; theirs takes the mean of squares in fp32 even where all else is fp64."""

    def __init__(self, theirs: Any) -> None:
        super().__init__(len(theirs.weight), eps=theirs.variance_epsilon)
        self.weight = theirs.weight


def exact(model: Any) -> Any:
    """A model of theirs in fp64, with all of its arithmetic in fp64."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "T5LayerNorm":
                setattr(module, name, ExactNorm(child))
    return model.double()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertForMaskedLM(bert()),
    "bert-one-segment-relu": lambda: hf.BertForMaskedLM(
        bert(type_vocab_size=1, hidden_act="relu", num_hidden_layers=1)
    ),
    "bert-pretraining": lambda: hf.BertForPreTraining(bert(hidden_act="gelu_new")),
    "bert-encoder": lambda: hf.BertModel(bert()),
    "roberta": lambda: hf.RobertaForMaskedLM(roberta(type_vocab_size=1)),
    "roberta-encoder": lambda: hf.RobertaModel(roberta(type_vocab_size=2)),
    "distilbert": lambda: hf.DistilBertForMaskedLM(distilbert()),
    "distilbert-encoder": lambda: hf.DistilBertModel(distilbert()),
    "gpt1": lambda: hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**GPT, n_layer=1)),
    "gpt1-silu": lambda: hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**GPT, n_layer=2, afn="silu")),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, n_layer=2)),
    "gpt2-odd-ff": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, n_layer=1, n_inner=50)),
    "gpt2-untied": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(**GPT, n_layer=1, tie_word_embeddings=False)
    ),
    "gpt2-encoder": lambda: hf.GPT2Model(hf.GPT2Config(**GPT, n_layer=1)),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGE)),
    "deit": lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**IMAGE)),
    "marian": lambda: hf.MarianMTModel(hf.MarianConfig(**SEQ2SEQ, scale_embedding=True)),
    "marian-silu": lambda: hf.MarianMTModel(
        hf.MarianConfig(**SEQ2SEQ, activation_function="swish")
    ),
    "pegasus": lambda: hf.PegasusForConditionalGeneration(
        hf.PegasusConfig(**SEQ2SEQ, scale_embedding=True)
    ),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**SEQ2SEQ)),
    "bart-scaled": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(**SEQ2SEQ, scale_embedding=True, activation_function="relu")
    ),
    "bert-classes": lambda: hf.BertForSequenceClassification(bert(num_labels=5)),
    "bert-number": lambda: hf.BertForSequenceClassification(bert(num_labels=1)),
    "bert-tags": lambda: hf.BertForTokenClassification(bert(num_labels=4)),
    "bert-spans": lambda: hf.BertForQuestionAnswering(bert()),
    "roberta-classes": lambda: hf.RobertaForSequenceClassification(roberta(num_labels=5)),
    "roberta-tags": lambda: hf.RobertaForTokenClassification(roberta(num_labels=4)),
    "roberta-spans": lambda: hf.RobertaForQuestionAnswering(roberta()),
    "clip": lambda: hf.CLIPModel(clip({"eos_token_id": 7}, {})),
    "clip-gelu-highest": lambda: hf.CLIPModel(
        clip({"eos_token_id": 2, "hidden_act": "gelu"}, {"hidden_act": "gelu"})
    ),
    "t5": lambda: t5(),
    "t5-gated-own-head": lambda: t5(
        own_head=True, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "t5-gated-tied-unscaled": lambda: t5(feed_forward_proj="gated-silu", tie_word_embeddings=False),
}  # fmt: skip


def make(name: str) -> Any:
    """The model, every weight random: biases and norms, too, which begin as 0 and 1."""
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.eval()


def ids(rows: int, length: int, seed: int = 1) -> Tensor:
    """Random tokens, none of them padding."""
    return torch.randint(3, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


def padding(lengths: list[int], left: bool = False) -> Tensor:
    """(B, T) bool, True = real token."""
    places = torch.arange(max(lengths))
    mask = places < torch.tensor(lengths)[:, None]
    return mask.flip(1) if left else mask
