"""Build the documentation site with Sphinx, and check its links, resources and spelling.

The site is a folder that a browser reads without a server and without a network.
"""

import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
# Elements whose address a browser requests when it shows the page.
WITH_SRC = ("audio", "embed", "iframe", "img", "script", "source", "video")
RESOURCES = {"link": "href", **dict.fromkeys(WITH_SRC, "src")}
NETWORK = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")  # in a style
SPELLED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "src", "results/README.md")


class Page(HTMLParser):
    """Anchors, links and requested addresses of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.unnamed_images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if RESOURCES.get(tag) in values:
            self.resources.append(values[RESOURCES[tag]])
        source = values.get("src", "")
        if tag == "img" and values.get("alt", "") in ("", source):
            self.unnamed_images.append(source)


def problems(site: Path) -> list[str]:
    """Return the broken internal links, the resources of the network and the unnamed images."""
    pages = {
        file.resolve(): Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")
    }
    found = []
    for file, page in sorted(pages.items()):
        name = file.relative_to(site.resolve())
        found += [f"{name}: the image {image} has no text" for image in page.unnamed_images]
        for address in [*page.links, *page.resources]:
            parts = urlsplit(address)
            if parts.scheme == "data" or (parts.scheme and address not in page.resources):
                continue  # a link to another site is not requested before a click
            if parts.scheme or parts.netloc:
                found.append(f"{name}: {address} is requested from the network")
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not target.exists():
                found.append(f"{name}: {address} does not exist")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{name}: {address} has no such anchor")
    for file in sorted(site.rglob("*.css")):
        requested = NETWORK.findall(file.read_text(encoding="utf-8"))
        name = file.relative_to(site)
        found += [f"{name}: {address} is requested from the network" for address in requested]
    return found


def build(work: Path) -> None:
    """Build the site in `work/html`; a warning of Sphinx is an error."""
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-c", "docs"]
    places = ["-d", str(work / "doctrees"), ".", str(work / "html")]
    subprocess.run([sys.executable, "-m", "sphinx", *options, *places], cwd=ROOT, check=True)


def store_notebooks(site: Path, folder: Path) -> None:
    """Replace the notebooks that `fourfold course` writes, also from a wheel built afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for notebook in sorted((site / "docs" / "course").glob("*.ipynb")):
        shutil.copy(notebook, folder)


def spell() -> None:
    """Check the spelling of the pages and of the docstrings."""
    subprocess.run([sys.executable, "-m", "codespell_lib", *SPELLED], cwd=ROOT, check=True)


def main() -> int:
    """Build, check and print the path, the time and the size."""
    start = time.monotonic()
    work, site = ROOT / "build" / "docs", ROOT / "site"
    for folder in (work / "doctrees", work / "html"):  # may contain pages that are gone
        shutil.rmtree(folder, ignore_errors=True)
    try:
        spell()
        build(work)
    except subprocess.CalledProcessError as error:
        return error.returncode
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(work / "html", site)
    store_notebooks(site, ROOT / "docs" / "course" / "notebooks")
    for line in (found := problems(site)):
        print(line, file=sys.stderr)
    minutes = (time.monotonic() - start) / 60
    megabytes = sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) / 1e6
    print(f"{site / 'index.html'}: {minutes:.1f} minutes, {megabytes:.1f} MB")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
