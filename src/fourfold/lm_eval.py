"""Models of fourfold in EleutherAI's lm-evaluation-harness (extra `eval`).

    python -m fourfold.lm_eval --model fourfold --model_args path=RUN --tasks lambada_openai

is the command `lm_eval`, which by itself only knows the models of its own package. In Python, the
import of this module registers the name "fourfold" for `lm_eval.simple_evaluate`.
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import lm_eval.models  # noqa: F401  the harness adds its own models only to an empty list
import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from fourfold.commands.infer.devices import load_model
from fourfold.commands.infer.generate import generate_text
from fourfold.commands.infer.translate import translate
from fourfold.generation.score import Scorer, fitting_methods, score


@register_model("fourfold")
class FourfoldLM(LM):
    """Causal LM, masked LM or encoder-decoder, scored as by `fourfold.score`, without EOS.

    A masked LM gives pseudo-log-likelihoods. It is never greedy, and neither generates texts nor
    scores documents (`loglikelihood_rolling`).

    Args:
        path: Run directory, checkpoint or directory of transformers.
        method: As in `fourfold.score`.
        batch_size: Number of inputs in a batch.
        device: auto, cpu, cuda or cuda:N.
        precision: As in `fourfold score`.
        max_gen_toks: Number of new tokens if a task does not say it. At most half of the tokens
            that the model can read are new, so that half of a long context is read.
        **ignored: Other arguments of the harness, such as max_batch_size.
    """

    def __init__(
        self,
        path: str,
        *,
        method: str | None = None,
        batch_size: int | str | None = None,
        device: str | None = None,
        precision: str = "32-true",
        max_gen_toks: int = 256,
        **ignored: Any,
    ) -> None:
        super().__init__()
        options = Namespace(
            device=device or "auto", precision=precision, allow_class=(), quantize=None
        )
        _, self.model, self._context = load_model(path, options)
        self.method, self.max_gen_toks = method, max_gen_toks
        given = str(batch_size)  # also "auto", or "auto:4"
        self.batch_size = int(given) if given.isdigit() else 64
        self._device = self.model.device
        fit = fitting_methods(self.model)
        self.is_masked = fit.get(method or next(iter(fit)), Scorer).default_eos is None

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Score continuations (context, continuation); equal requests are computed once."""
        found = self._score([request.args for request in requests])
        return [(x.total, x.is_greedy and not self.is_masked) for x in found]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Score documents (text,); NotImplementedError if the model is a masked LM."""
        if self.is_masked:
            raise NotImplementedError("a masked LM does not score documents")
        return [x.total for x in self._score([request.args[0] for request in requests])]

    def _score(self, texts: Sequence[Any]) -> list[Any]:
        with torch.inference_mode(), self._context:
            options: Any = {"method": self.method, "batch_size": self.batch_size}
            return score(self.model, texts, eos=None if self.is_masked else False, **options)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue contexts (context, options) up to the first text in `until`.

        Raises:
            NotImplementedError: The model is a masked LM.
        """
        if self.is_masked:
            raise NotImplementedError("a masked LM does not generate texts")
        answers = dict[int, str]()
        for options in {repr(request.args[1]): request.args[1] for request in requests}.values():
            chosen = [i for i, request in enumerate(requests) if request.args[1] == options]
            prompts = [requests[i].args[0] for i in chosen]
            with torch.inference_mode(), self._context:
                texts = self._generate(prompts, options)
            answers.update(zip(chosen, texts, strict=True))
        return [answers[i] for i in range(len(requests))]

    def _generate(self, prompts: list[str], given: dict[str, Any]) -> list[str]:
        stops = given.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        options: Any = {"batch_size": self.batch_size, "truncate": True, "num_return_sequences": 1}
        wanted = int(given.get("max_gen_toks", self.max_gen_toks))
        limit = getattr(self.model.config, "max_len", None)
        options["max_new_tokens"] = wanted if limit is None else min(wanted, limit // 2)
        if hasattr(self.model, "decode"):
            texts = translate(self.model, prompts, num_beams=1, **options)
            for stop in stops:
                texts = [text.partition(stop)[0] for text in texts]
            return texts
        options["temperature"] = 0.0
        if given.get("do_sample"):
            options["temperature"] = float(given.get("temperature", 1.0))
            options |= {key: given[key] for key in ("top_k", "top_p") if key in given}
        return generate_text(self.model, prompts, stop=stops, only_new=True, **options)


if __name__ == "__main__":
    cli_evaluate()
