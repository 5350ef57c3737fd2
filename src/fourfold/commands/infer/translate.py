"""Line processor of `fourfold translate`: sentences translated by beam search."""

from fourfold.commands.infer.base import TextProcessor
from fourfold.commands.infer.line_io import Item


class SentenceTranslator(TextProcessor):
    """Line processor that translates one sentence per line.

    Beam width and length penalty are those of the checkpoint unless they are given as options.
    """

    def prepare(self, line: str) -> Item:
        """Return an item with the token ids of a sentence, followed by EOS.

        Some tokenizers, such as that of BART, put a special token before each text. If so, this
        token is the first id.

        Raises:
            InputError: The sentence is too long for the model, and `--truncate` is not given.
        """
        tokenizer = self.tokenizer
        prefix = [] if tokenizer.prepended_id is None else [tokenizer.prepended_id]
        ids = self.truncate(tokenizer.encode(line), n_special=len(prefix) + 1)
        return Item([*prefix, *ids, tokenizer.eos_id], len(ids))

    def run(self, items: list[Item]) -> list[str]:
        """Return the `--n-best` best translations of each line, separated by tabs."""
        return self.write_targets(*self.pad([x.content for x in items]), self.options.max_new)
