"""JSON as a file of text may hold it, with all that Python's reader does not call broken."""

from __future__ import annotations

import json
import re
from typing import Any

from fourfold.core.errors import InputError


def parse_json(text: str, where: str) -> Any:
    r"""What a text of JSON says.

    Args:
        text: a whole file, or a line.
        where: like "train.jsonl, line 7", for messages; a file's line is added to its name.

    Raises:
        InputError: it is broken, nested too deeply, or holds what is no character or number.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        line = "" if ", line " in where else f", line {error.lineno}"
        raise InputError(f"{where}{line}: broken JSON ({error.msg}).") from error
    except RecursionError as error:
        raise InputError(f"{where}: JSON that is nested too deeply.") from error
    except ValueError as error:  # Python refuses to read thousands of digits
        raise InputError(f"{where}: a number with too many digits.") from error
    if re.search(r"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{where}: half of a surrogate pair, which is no character."
            ) from error
    return value
