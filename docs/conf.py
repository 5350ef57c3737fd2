"""Configuration of the documentation site; `make docs` builds it from the root of the repository.

The source directory is the root, so that a relative link means the same here and on GitHub.
"""

import os
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import fourfold

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("docs", "results", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

# The kernels that execute the pages inherit the environment of the build.
os.environ.update(
    OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false"
)
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm misses widgets in a kernel
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), sys.path[0]])
# A profile of their own: no settings of the user, and no warning about a socket of this machine.
profile = ROOT / "build" / "docs" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text(
    'c.IPKernelApp.log_level = 40  # errors\nc.IPKernelApp.extensions = ["dark_figures"]\n'
)
os.environ["IPYTHONDIR"] = str(profile.parent)


def package_digest() -> str:
    """Return a digest of the modules of fourfold and of the versions of the packages."""
    files = [*sorted((ROOT / "src").rglob("*.py")), ROOT / "constraints.txt"]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


project = "fourfold"
author = "The fourfold authors"
project_copyright = "The fourfold authors, Apache License 2.0"
version = release = fourfold.__version__
root_doc = "docs/index"
exclude_patterns = [path.name for path in ROOT.iterdir() if path.name not in SOURCES]
exclude_patterns += ["docs/_extensions", "docs/_static", "docs/course/notebooks"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "drawing",
    "pages",
    "mathml",
    "figures",
    "reference",
    "search_pages",
]

# Markdown
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
# A block of an existing page has a tag such as `sh recipe`, which MyST ignores.

# Executed pages
nb_execution_mode = "cache"
# A cached result is used only with the modules that computed it.
cache = ROOT / "build" / "docs" / "cache" / package_digest()
for other in set(cache.parent.glob("*")) - {cache}:
    shutil.rmtree(other)
nb_execution_cache_path = str(cache)
dark_figures = os.environ["FOURFOLD_DARK_FIGURES"] = str(cache / "dark")  # of the kernels
nb_execution_timeout = 300  # seconds for each cell, also on a busy machine
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "warn"  # a warning in the output of a cell is a warning of the build
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # the default loads scripts from the network

# API reference
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False  # the hooks of torch and Lightning are described there
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # such as the name of a function, whose value has no expression
python_use_unqualified_type_names = True
maximum_signature_line_length = 88  # a longer one has a line for each argument
default_role = "name"  # docstrings mark code as Markdown does; see _extensions/reference.py
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # an attribute of a docstring is not a second entry

# HTML that works from a folder, without a network
html_theme = "furo"
html_title = f"fourfold {release}"
pygments_dark_style = "github-dark"  # the default of the theme underlines names
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy_button.js"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
