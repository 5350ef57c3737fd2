"""API reference: short signatures, inherited `forward`, unsplit returns, links from docstrings."""

import inspect
import re
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.inspect import stringify_signature
from sphinx.util.nodes import make_refnode

from fourfold import models

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# Kinds of objects that a docstring of another module may name without their module.
GLOBAL = {"class", "function", "exception", "data", "module"}


def base_config(config: Any) -> Any:
    """Return the dataclass from which a config inherits fields, or None."""
    return next((base for base in config.__mro__[1:] if is_dataclass(base)), None)


def without_arguments(signature: str) -> str:
    """Replace the arguments of each default value that is a long call, such as a config, by `...`.

    >>> without_arguments("(x: C = C(first=1, second=(2, 3), third=4, fourth=5), y: int = 0)")
    '(x: C = C(...), y: int = 0)'
    """
    start = 0
    while found := re.compile(r"= [A-Z]\w*\(").search(signature, start):
        end, depth = found.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(signature[end], 0)
            end += 1
        if end - found.end() > 30:
            signature = f"{signature[: found.end()]}...){signature[end:]}"
        start = found.end()
    return signature


def shorten(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str
) -> tuple[str, str] | None:
    """Leave inherited fields of a config and arguments of default values out of a signature."""
    if signature is None:
        return None
    if what == "class" and is_dataclass(value) and base_config(value):
        full = inspect.signature(value)
        own = [
            full.parameters[field]
            for field in inspect.get_annotations(value)
            if field in full.parameters
        ]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        rest = inspect.Parameter("fields", inspect.Parameter.VAR_KEYWORD)
        short = full.replace(parameters=[*own, rest], return_annotation=full.empty)
        signature = stringify_signature(short, unqualified_typehints=True)
    return without_arguments(signature), returns


def name_base(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Say in the entry of a config which class describes its inherited fields."""
    if what == "class" and is_dataclass(value) and base_config(value):
        lines += ["", f"The other `fields` are those of `{base_config(value).__name__}`.", ""]


def show_forward(app: Sphinx) -> None:
    """Give each model class a `forward` with the arguments of its first step, for autodoc.

    Most models inherit `Model.forward`, whose signature is `(*inputs, **options)`.
    """
    for model in [getattr(models, name) for name in dir(models)]:
        if not (inspect.isclass(model) and issubclass(model, models.Model)):
            continue
        inherited = model.forward
        if "forward" in vars(model) or not isinstance(inherited, FunctionType):
            continue
        function = FunctionType(inherited.__code__, inherited.__globals__, "forward")
        function.__doc__, function.__module__ = inherited.__doc__, model.__module__
        step = inherited
        if inherited is models.Model.forward:
            step = model.encode if model.hidden is models.Model.hidden else model.hidden
        function.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
        model.forward = function


def whole_return(docstring: GoogleDocstring, preprocess_types: bool = False) -> list[Any]:
    """Read a section "Returns" as one text; napoleon takes what precedes a colon for a type."""
    lines = docstring._dedent(docstring._consume_to_next_section())
    return [("", "", type(docstring)(lines, docstring._config).lines())] if lines else []


def name_role(
    role: str, rawtext: str, text: str, line: int, inliner: Any, *_: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Mark code in a docstring as code, and a name as a possible reference."""
    code = nodes.literal(rawtext, text, classes=["docutils"])
    if not NAME.fullmatch(text):
        return [code], []
    env = inliner.document.settings.env
    scope = [env.ref_context.get(key) for key in ("py:module", "py:class")]
    reference = addnodes.pending_xref("", code, reftype="docstring", reftarget=text, scope=scope)
    reference["refdomain"], reference["refdoc"] = "", env.docname
    return [reference], []


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """Find the object that a name in a docstring means, from the inner scope to the outer."""
    if node["reftype"] != "docstring":
        return None
    target, (module, cls) = node["reftarget"], node["scope"]
    objects = env.domains.python_domain.objects
    places = [(module, cls, target), (cls, target), (module, target), (target,)]
    names = [".".join(filter(None, place)) for place in places]
    found = [name for name in names if name in objects][:1] or [
        name
        for name, entry in objects.items()
        if name.endswith(f".{target}") and (entry.objtype in GLOBAL or "." in target)
    ]
    entries = {(objects[name].docname, objects[name].node_id): name for name in found}
    if len(entries) != 1:
        return text
    (((document, anchor), name),) = entries.items()
    return make_refnode(app.builder, node["refdoc"], document, anchor, text, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the adjustments and the role `name`, the default role of docstrings."""
    GoogleDocstring._consume_returns_section = whole_return  # type: ignore[method-assign]
    app.add_role("name", name_role)
    app.connect("builder-inited", show_forward)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", name_base, priority=600)  # after napoleon
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
