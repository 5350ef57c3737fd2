"""Chat templates: the text of a conversation in the form that a model was trained on."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.core.validation import check_type
from fourfold.errors import InputError, errors_in
from fourfold.json_files import read_json
from fourfold.text_files import read_text
from fourfold.tokenization.pretrained import TOKENIZER_CONFIG_FILE
from fourfold.tokenization.tokenizer import Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
# Largest number of characters of a template and of a rendered conversation, CPU time for one
# conversation, and memory of the process that renders.
MAX_CHARS = 1 << 22
MAX_SECONDS = 5
MAX_BYTES = 1 << 29
# Variables of a template that hold special tokens.
TOKENS = tuple(f"{role}_token" for role in ("bos", "eos", "pad", "unk", "sep", "cls", "mask"))
Message = Mapping[str, Any]  # with the keys role and content


def read_chat_template(path: Path) -> dict[str, str] | None:
    """Read the chat template in a directory of transformers.

    The template is in chat_template.jinja, otherwise in the entry `chat_template` of
    tokenizer_config.json. Of several named templates, the one with the name "default" is read.

    Returns:
        A dictionary with the template and the special tokens that tokenizer_config.json names, such
        as {"template": ..., "bos_token": "<s>"}; None if the directory has no chat template.

    Raises:
        InputError: A file is invalid.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "chat_template.jinja").write_text("{{ messages[0].content }}")
        ...     description = read_chat_template(Path(folder))
        ...     ChatTemplate(description).render([{"role": "user", "content": "Hello"}])
        'Hello'
    """
    config_file = path / TOKENIZER_CONFIG_FILE
    config = read_json(config_file, optional=True)
    template = config.get("chat_template")
    with errors_in(config_file):
        if isinstance(template, list):
            named = [x for x in template if x.get("name") == "default"]
            template = named[0].get("template") if named else template
        if os.path.lexists(path / TEMPLATE_FILE):
            template = read_text(str(path / TEMPLATE_FILE))
        if template is None:
            return None
        check_type("chat_template", template, str)
        if len(template) > MAX_CHARS:
            message = f"must have at most {MAX_CHARS} characters, got {len(template)}"
            raise InputError(message, option="chat_template")
    tokens = {name: config.get(name) for name in TOKENS}
    # Older files describe a token by a dictionary.
    contents = {k: x.get("content") if isinstance(x, dict) else x for k, x in tokens.items()}
    texts = {"template": template, **contents}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


class ChatTemplate:
    """Chat template of a model, which converts conversations to texts and to token ids.

    A template can contain loops. A process of its own renders it, in Jinja's sandbox, with at most
    `MAX_SECONDS` of CPU time and `MAX_BYTES` of memory.

    Args:
        description: Template and special tokens, as `read_chat_template` returns them, which
            `fourfold.load` stores in `model.artifacts["chat_template"]`.

    Example:
        >>> text = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        >>> template = ChatTemplate({"template": text, "eos_token": "</s>"})
        >>> template.render([{"role": "user", "content": "Hello"}])
        'user: Hello</s>'

    Raises:
        InputError: The description has no template.
    """

    def __init__(self, description: Mapping[str, str]) -> None:
        self._process: subprocess.Popen[str] | None = None
        check_type("chat_template.template", description.get("template"), str)
        self._template = description["template"]
        self._tokens = {name: description[name] for name in TOKENS if name in description}

    @property
    def eos_token(self) -> str | None:
        """Token that ends an answer."""
        return self._tokens.get("eos_token")

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation.

        Args:
            messages: Messages in order, dictionaries with the keys role (such as user, assistant or
                system) and content.
            add_generation_prompt: End the text with the beginning of an answer.

        Raises:
            InputError: The template is invalid, rejects the conversation, or exceeds a bound.
        """
        variables = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        variables |= {"tools": None, "documents": None, **self._tokens}
        answer = self._ask(json.dumps(variables))
        if "error" in answer:
            raise InputError(f"cannot be rendered: {answer['error']}", option="chat_template")
        return answer["text"]

    def _ask(self, line: str) -> dict[str, str]:
        """Send a line of JSON to the process, and return its answer."""
        if self._process is None:
            limits = [str(limit) for limit in (MAX_SECONDS, MAX_BYTES, MAX_CHARS)]
            program = [sys.executable, "-P", str(Path(__file__).with_name("chat_process.py"))]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                [*program, *limits],
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
            line = f"{json.dumps(self._template)}\n{line}"
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            found: dict[str, str] = json.loads(answer)
            return found
        self.close()
        return {"error": f"it needs more than {MAX_SECONDS} seconds"}

    def encode(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """Return the token ids of a conversation, up to the beginning of an answer.

        Special tokens in the template become their ids. In the content of a message, text that
        looks like a special token is encoded as text, so that a message cannot end itself.

        Args:
            messages: Messages in order, dictionaries with the keys role and content.
            tokenizer: Tokenizer of the model.

        Raises:
            InputError: The template is invalid, rejects the conversation, or exceeds a bound.
        """
        names = tokenizer.special_tokens
        mark = secrets.token_hex(8)
        looks_special = re.compile("|".join(map(re.escape, names)))
        texts: list[str] = []

        def hide(match: re.Match[str]) -> str:
            texts.append(match[0])
            return f"{mark}{len(texts) - 1}."

        hidden = [
            {k: looks_special.sub(hide, x) if isinstance(x, str) else x for k, x in m.items()}
            for m in messages
        ]
        parts = re.split(rf"{mark}(\d+)\.", self.render(hidden))
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += tokenizer.encode(texts[int(part)]) if i % 2 else tokenizer.encode_special(part)
        return ids

    def close(self) -> None:
        """End the process. A later call of `render` starts a new one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __del__(self) -> None:
        self.close()
