"""Chat templates: the text of a conversation in the form that a model was trained on."""

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fourfold.core.validation import check_type
from fourfold.errors import InputError, errors_in
from fourfold.json_files import read_json
from fourfold.text_files import read_text
from fourfold.tokenization.pretrained import TOKENIZER_CONFIG_FILE
from fourfold.tokenization.tokenizer import Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
# Variables of a template that hold special tokens.
TOKENS = tuple(f"{role}_token" for role in ("bos", "eos", "pad", "unk", "sep", "cls", "mask"))
Message = Mapping[str, Any]  # with the keys role and content


def read_chat_template(path: Path) -> dict[str, str] | None:
    """Read the chat template in a directory of transformers.

    The template is in chat_template.jinja, otherwise in the entry `chat_template` of
    tokenizer_config.json. Of several named templates, the one with the name "default" is read.

    Returns:
        Template and the special tokens that tokenizer_config.json names, such as
        {"template": ..., "bos_token": "<s>"}; None if the directory has no chat template.

    Raises:
        InputError: A file is invalid.

    Example:
        >>> read_chat_template(Path("an/empty/directory")) is None
        True
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
    tokens = {name: config.get(name) for name in TOKENS}
    # Older files describe a token by a dictionary.
    contents = {k: x.get("content") if isinstance(x, dict) else x for k, x in tokens.items()}
    texts = {"template": template, **contents}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


class _Generation(Extension):
    """The block `generation` of transformers, which marks answers and renders its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **({"ensure_ascii": False} | options))


@contextmanager
def _template_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a template can raise any error
        message = f"cannot be rendered: {str(error)[:300]}"
        raise InputError(message, option="chat_template") from error


class ChatTemplate:
    """Chat template of a model, which converts conversations to texts and to token ids.

    Jinja's sandbox hides Python, files and the network from the template, as in transformers. It
    does not limit time and memory.

    Args:
        description: Template and special tokens, as `read_chat_template` returns them, which
            `fourfold.load` stores in `model.artifacts["chat_template"]`.

    Attributes:
        eos_token: Token that ends an answer, or None.

    Raises:
        InputError: The description has no template, or the template is invalid.

    Example:
        >>> text = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        >>> template = ChatTemplate({"template": text, "eos_token": "</s>"})
        >>> template.render([{"role": "user", "content": "Hello"}])
        'user: Hello</s>'
    """

    def __init__(self, description: Mapping[str, str]) -> None:
        check_type("chat_template.template", description.get("template"), str)
        self._tokens = {name: description[name] for name in TOKENS if name in description}
        self.eos_token = self._tokens.get("eos_token")
        # These names and options are those of transformers.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        with _template_errors():
            self._template = environment.from_string(description["template"])

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation, a sequence of dictionaries with keys role and content.

        With `add_generation_prompt`, the text ends with the beginning of an answer.

        Raises:
            InputError: The template rejects the conversation.
        """
        variables = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        with _template_errors():
            text = self._template.render(**variables, tools=None, documents=None, **self._tokens)
            text.encode()  # fails for half of a surrogate pair
        return text

    def encode(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """Return the token ids of a conversation, up to the beginning of an answer.

        Special tokens in the template become their ids. In the content of a message, text that
        looks like a special token is encoded as text, so that a message cannot end itself.

        Raises:
            InputError: The template rejects the conversation.
        """
        mark = secrets.token_hex(8)
        looks_special = re.compile("|".join(map(re.escape, tokenizer.special_tokens)))
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
