"""Program that renders a chat template, with bounded time and memory.

A chat template is a Jinja template from a file of somebody else. Jinja's sandbox hides Python from
the template, but does not bound its loops and strings. The program therefore runs in a process of
its own, imports nothing but Jinja, and limits its CPU time and its memory. It is a script, because
the import of a module of fourfold would import torch.

The first line of standard input is the template. Each later line holds the variables of the
template. Each output line is {"text": ...} or {"error": ...}. All lines are JSON. At the limit of
the CPU time, the operating system ends the process.
"""

import json
import math
import resource
import sys
import time
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """The block `generation` of transformers, which marks answers and renders its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def answer(template: str, line: str, max_chars: int) -> dict[str, str]:
    """Render the template with the variables of a line of standard input."""
    # These names and options are those of transformers.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    try:
        text = environment.from_string(template).render(**json.loads(line))
        text.encode()  # fails for half of a surrogate pair
    except Exception as error:  # also MemoryError and RecursionError
        return {"error": str(error)[:300] or "it needs too much memory"}
    if len(text) > max_chars:
        return {"error": f"the text has {len(text)} characters, more than {max_chars}"}
    return {"text": text}


def main() -> None:
    """Answer each line of standard input.

    The arguments of the program are the largest CPU time in seconds for one line, the largest
    memory in bytes, and the largest number of characters of a text.
    """
    seconds, max_bytes, max_chars = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, most))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    template = json.loads(next(sys.stdin))
    for line in sys.stdin:
        end = math.ceil(time.process_time()) + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (end, most))
        print(json.dumps(answer(template, line, max_chars)), flush=True)


if __name__ == "__main__":
    main()
