"""Figures in two versions, of which the theme shows one: see `dark_figures`."""

import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

# MyST-NB names a picture by its digest.
IMAGE = re.compile(r'<img (?:class="[^"]*" )?([^>]*\bsrc="[^"]*_images/([0-9a-f]{64})\.png"[^>]*)>')


def add_dark_versions(
    app: Sphinx, page: str, template: str, context: dict[str, Any], document: nodes.document | None
) -> None:
    """Write the dark version of each figure of a page after the light one."""

    def both(found: re.Match[str]) -> str:
        attributes, digest = found.groups()
        dark = Path(app.config.dark_figures, f"{digest}.png")
        if not dark.exists():
            return found[0]
        target = Path(app.outdir, app.builder.imagedir, f"{digest}-dark.png")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(dark, target)
        second = attributes.replace(f"{digest}.png", f"{digest}-dark.png")
        return f'<img class="only-light" {attributes}><img class="only-dark" {second}>'

    if "body" in context:
        context["body"] = IMAGE.sub(both, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the second versions; `dark_figures` is their folder."""
    app.add_config_value("dark_figures", "", "html")
    app.connect("html-page-context", add_dark_versions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
