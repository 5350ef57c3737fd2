"""A T5 that learned span corruption here fills sentinels like its export in transformers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers as hf

import fourfold
from fourfold.data import SpanCorruptionData
from fourfold.models import T5, T5Config
from fourfold.optim import OptimizerConfig
from fourfold.tasks import TextToText
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig
from tests.fixtures.tiny_tasks import FLAT

SHAPE = {"d_model": 32, "d_head": 8, "n_layers": 1, "n_heads": 4, "d_ff": 48, "dropout": 0.0}


def test_export_fills_sentinels_with_the_same_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = TokenizerConfig("byte_bpe", vocab_size=320, extra_ids=20)
    data = SpanCorruptionData(max_len=32, tokenizer=tokenizer)
    config = T5Config(
        **SHAPE, ff_dropout=0.0, attn_dropout=0.0, vocab_size=320, tie_embeddings="embeddings"
    )
    model = T5(replace(config, scale_output=False))
    task = TextToText(model.config, OptimizerConfig(), FLAT)
    task.model = model
    task.artifacts = data.artifacts()
    optimizer, split = torch.optim.Adam(model.parameters(), 1e-2), data.split("train")
    losses = []
    for step in range(30):
        total, count = task.step(split.batch(np.arange(16 * step, 16 * step + 16), 0, 1))
        losses.append(float(total.detach() / count))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    assert losses[-1] < 0.75 * losses[0]
    model.eval()
    model.tokenizer = data.tokenizer
    fourfold.save(model, tmp_path)
    theirs = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    their_tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path)
    loaded = fourfold.load(tmp_path)
    assert isinstance(loaded.tokenizer, Tokenizer)
    batch = data.split("val").batch(np.arange(8), 0, 1)
    texts = ["The <extra_id_0> of a list is <extra_id_1> object.", "return <extra_id_0>"]
    for text in texts:
        ids = [*loaded.tokenizer.encode_special(text), loaded.tokenizer.eos_id]
        their_ids = their_tokenizer(text, add_special_tokens=False).input_ids
        assert their_ids == ids[:-1]
        assert their_tokenizer("<extra_id_0>", add_special_tokens=False).input_ids == [319]
    found = fourfold.beam_search(loaded, batch.src, num_beams=1, max_new_tokens=20)[0]
    expected = theirs.generate(
        batch.src, num_beams=1, do_sample=False, max_new_tokens=20, min_length=0
    )
    n_sentinels = 0
    for ours, hers in zip(found.tolist(), expected.tolist(), strict=True):
        ours, hers = ours[1:], hers[1:]  # without the start token
        end = hers.index(2) + 1 if 2 in hers else len(hers)
        assert ours[:end] == hers[:end]
        n_sentinels += sum(i >= 300 for i in hers[:end])
    assert n_sentinels >= 8  # every text begins with <extra_id_0>
