"""Configuration of Sphinx for `make docs`. Neither the build nor the pages load files from a network."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from docutils import nodes
from latex2mathml.converter import convert

from badpo import __version__
from badpo.cli.main import app as badpo

DOCS = Path(__file__).parent
OPTIONS = DOCS / "reference" / "options.md"

project, author, copyright = "badpo", "the authors of badpo", "the authors of badpo"
version = release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]

html_theme = "furo"
html_title = f"badpo {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_dark_style = "github-dark"
html_copy_source = html_show_sphinx = False

myst_enable_extensions = ["dollarmath"]
smartquotes_action = "qe"  # --model stays as it is typed
myst_heading_anchors = 4
html_math_renderer = "mathml"
# types in docstrings are descriptions such as "array of shape (n,)" and not names of classes
nitpick_ignore_regex = [("py:.*", ".*")]
suppress_warnings = ["ref.python"]

# the docstring states the types of the parameters, so the signature shows only their names
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_numpy_docstring, napoleon_google_docstring = True, False
napoleon_use_param = napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"

# Sphinx runs a tutorial again if its code has changed; a failing tutorial is a warning, and a warning ends the build
nb_execution_mode = "cache"
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_render_markdown_format = "gfm"
# each tutorial runs in its own temporary folder with the examples; programs keep their caches in the folder build/home
HOME = DOCS.parent / "build" / "home"
STARTUP = HOME / "profile_default" / "startup" / "bash.py"
STARTUP.parent.mkdir(parents=True, exist_ok=True)
STARTUP.write_text(
    f'''
import os, shutil, subprocess, tempfile

from IPython.core.magic import register_cell_magic

folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
shutil.copytree({str(DOCS.parent / "examples")!r}, "examples")


@register_cell_magic
def bash(_line, cell):
    """Run the commands of a cell and print their output; a command that fails ends the page."""
    done = subprocess.run(["bash", "-ec", cell], stdout=-1, stderr=-2, text=True)
    print(done.stdout)
    done.check_returncode()
'''
)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ |= dict.fromkeys(
    ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "XDG_CACHE_HOME", "HF_HOME"), str(HOME)
)
os.environ |= {"BADPO_PSEUDONYM_KEY": "key of the tutorials", "HF_HUB_OFFLINE": "1"}
os.environ |= {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}


def commands(group, words: str = "badpo") -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Yield the words and the command object of every command in a group."""
    for word in group.list_commands(None):
        command = group.get_command(None, word)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{words} {word}")
        else:
            yield f"{words} {word}", command


def options_page() -> str:
    """Return a Markdown page with a heading, the help text and a table of the options for each command."""
    lines = [
        "# Every option",
        "",
        "This page has the output of `badpo COMMAND --help` for each command; see also [the command line](../cli.md).",
    ]
    for words, command in sorted(commands(typer.main.get_command(badpo))):
        lines += [
            "",
            f"## {words}",
            "",
            *paragraphs(command.help),
            "",
            "| option | what it does |",
            "|--|--|",
        ]
        for one in command.params:
            names = (
                ", ".join(f"`{name}`" for name in one.opts)
                if one.opts[0][0] == "-"
                else f"`{one.metavar or one.name.upper()}`"
            )
            lines.append(f"| {names} | {cell(getattr(one, 'help', None))} |")
    return "\n".join(lines) + "\n"


def paragraphs(text: str) -> list[str]:
    """Return the lines of a docstring without indentation."""
    return re.sub(r"(?m)^[ \t]+", "", text).splitlines()


def cell(text: str | None) -> str:
    """Format a help text as a cell of a Markdown table."""
    return re.sub(r"([|<*_])", r"\\\1", " ".join((text or "").split()))


def write_options(_app) -> None:
    """Write the page of options if its content has changed."""
    if not OPTIONS.exists() or OPTIONS.read_text() != options_page():
        OPTIONS.write_text(options_page())


def for_the_site(_app, *told) -> None:
    """Use page titles in links instead of file names; link to the site's copies of pages outside of `docs`."""
    text = told[-1]
    text[0] = re.sub(r"\[[\w/]+\.md\]\(", "[](", text[0])
    for page in ("SECURITY", "CONTRIBUTING", "CHANGELOG"):
        text[0] = re.sub(rf"\]\((\.\./)+{page}\.md", f"](/project/{page.lower()}.md", text[0])


def math_visitor(display: str):
    """Return a visitor that writes formulas as MathML; browsers draw MathML without JavaScript."""

    def visit(translator, node):
        translator.body.append(convert(node.astext(), display=display))
        raise nodes.SkipNode

    return visit


# these corrections of the theme's pages help users of keyboards and screen readers
MENDS = {
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<div class="output text_html">': '<div tabindex="0" class="output text_html">',
    'role="heading">': 'role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
}


def mend_pages(app, failed) -> None:
    """Make scrollable areas reachable by keyboard, and add missing levels and labels to headings and landmarks."""
    for path in () if failed else Path(app.outdir).rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        for was, mended in MENDS.items():
            page = page.replace(was, mended)
        path.write_text(page, encoding="utf-8")


def setup(app) -> None:
    """Connect this file's functions to Sphinx events."""
    visit_inline, visit_block = math_visitor("inline"), math_visitor("block")
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", write_options)
    app.connect("source-read", for_the_site)
    app.connect("include-read", for_the_site)
    app.connect("build-finished", mend_pages)
