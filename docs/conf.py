"""Sphinx configuration; `make docs` builds with every warning an error."""

import importlib.util
import re
import sys
from pathlib import Path

from docutils import nodes
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sphinx_gallery.sorting import ExplicitOrder

HERE = Path(__file__).parent
for folder in (HERE.parent, HERE):
    sys.path.insert(0, str(folder))

import facts  # noqa: E402
import inventories  # noqa: E402
import requirements  # noqa: E402

import skrf  # noqa: E402 (the working tree, installed or not)

# Pages include what is asked of the library and of pyproject.toml.
(HERE / "guide" / "_facts.txt").write_text(facts.as_rst(), encoding="utf-8")
(HERE / "_requirements.txt").write_text(requirements.as_rst(), encoding="utf-8")


def names_as_rst():
    """Return all that the pages of the reference list, with one line for each name."""
    for page in re.findall(r"^   (api/\w+)$", (HERE / "api.rst").read_text("utf-8"), re.MULTILINE):
        text = (HERE / f"{page}.rst").read_text("utf-8")
        names = re.findall(r"^   ([A-Za-z_.]+)$", text, re.MULTILINE)
        title = f":doc:`{text.splitlines()[0]} </{page}>`"
        yield "\n".join([title, "-" * len(title), "", ".. autosummary::", "   :nosignatures:", ""])
        yield "".join(f"   {name}\n" for name in names)


(HERE / "_names.txt").write_text("\n".join(names_as_rst()), encoding="utf-8")

project = "scikit-random-features"
author = "The scikit-random-features developers"
project_copyright = f"2026, {author}"
version = release = skrf.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
]
# Formulas are drawn by a copy of MathJax within the pages, so that they need no network.
if importlib.util.find_spec("sphinx-mathjax-offline"):
    extensions.append("sphinx-mathjax-offline")
templates_path = ["_templates"]
exclude_patterns = ["_build", "**sg_execution_times.rst"]
intersphinx_mapping = inventories.mapping(HERE / "_build" / "inventories")

# A name in single backticks is a link where it names something documented here.
default_role = "py:obj"
smartquotes = False  # quotation marks are mostly those of string parameters
toc_object_entries_show_parents = "hide"
autodoc_member_order = "groupwise"
autodoc_typehints = "none"
autodoc_mock_imports = ["torch"]  # no requirement of the docs
numpydoc_show_class_members = False

# The methods that scikit-learn gives to every estimator. Class pages name them and leave their
# description to scikit-learn: its docstrings refer to pages that do not exist here.
_scikit_learn_mixins = (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClassifierMixin,
    RegressorMixin,
)
autosummary_context = {
    "of_scikit_learn": sorted(
        {name for mixin in _scikit_learn_mixins for name in dir(mixin) if not name.startswith("_")}
        | {
            f"set_{method}_request"
            for method in ("fit", "partial_fit", "predict", "predict_proba", "score")
        }
    ),
    # Results that are integers or lists have their methods, too.
    "of_python": sorted({*dir(int), *dir(list)}),
    # Methods that bear such a name and are not scikit-learn's.
    "own_after_all": {"skrf.graphical.KernelHMM": ["score"]},
}

_gallery = [
    "sigma",
    "rbf_sampler",
    "svc",
    "error_in_advance",
    "noisy_sine",
    "labels",
    "which_map",
    "couplings",
    "stream",
    "kernel_machine",
    "error_bars",
    "probabilities",
    "sampling",
    "masks",
    "chain_marginals",
    "tree_denoising",
    "filter",
]

# What does not begin with plot_ takes longer than a page may, and is run by hand.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"^(?!plot_)",
    "within_subsection_order": ExplicitOrder([f"plot_{name}.py" for name in _gallery]),
    "abort_on_example_error": True,
    "doc_module": ("skrf",),
    "backreferences_dir": "generated/backreferences",
    "download_all_examples": False,
    "show_signature": False,
}
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "pydata_sphinx_theme"
html_title = "scikit-random-features"
html_show_sourcelink = False
# Pages without neighbours on their level need no list of them.
html_sidebars = dict.fromkeys(
    (
        "install",
        "choosing",
        "migrating",
        "faq",
        "glossary",
        "changelog",
        "references",
    ),
    [],
)
# Pages with wide pictures or two columns have no list of their sections beside them.
WIDE = ["index", "choosing", "migrating"]
WIDE += [f"benchmarks/{path.stem}" for path in sorted((HERE / "benchmarks").glob("*.rst"))]
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        **dict.fromkeys(WIDE, []),
    },
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_static_path = ["_static"]
html_css_files = ["site.css"]


def escape_notation(app, what, name, obj, options, lines):
    """Escape what is plain notation in a docstring and markup in reST.

    The bars of norms such as |x - y| are no substitutions, and the last underscore of fitted
    attributes such as n_features_in_ makes no link.
    """
    for i, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...", "..")):
            continue
        parts = re.split(r"(`+[^`]*`+)", line)  # every second part is between backticks
        parts[::2] = [re.sub(r"(?<!\\)\||(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
        lines[i] = "".join(parts)


def markdown_to_rest(app, relative_path, parent_docname, content):
    """Turn the little Markdown that the repository's own files use into reST, where included."""
    if relative_path.suffix != ".md":
        return
    text = re.sub(r"^```(\w+)\n(.*?)^```$", _code_block, content[0], flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", text)
    text = re.sub(r"\[([^]]+)\]\(([^)]+)\)", _link, text)
    text = text.replace("|", r"\|")
    for marks, underline in (("###", "~"), ("##", "-"), ("#", "=")):
        text = re.sub(
            rf"^{marks} \[?(.*?)\]?( - .*)?$",
            lambda match, line=underline: (
                (title := match[1] + (match[2] or "")) + "\n" + line * len(title)
            ),
            text,
            flags=re.MULTILINE,
        )
    content[0] = text


def _code_block(match):
    lines = match[2].splitlines()
    return "\n".join([f".. code-block:: {match[1]}", "", *(f"   {line}" for line in lines)])


def _link(match):
    """Link to pages of the documentation and to addresses; name files of the repository."""
    text, target = match.groups()
    if target.startswith("docs/"):
        return f":doc:`{text} </{target.removeprefix('docs/').removesuffix('.rst')}>`"
    return f"`{text} <{target}>`__" if "://" in target else f"{text} (``{target}``)"


def link_figures(app, doctree):
    """Show figures as wide as the text, with a link to the file in its own size."""
    for figure in doctree.findall(nodes.figure):
        for image in figure.findall(nodes.image):
            image.setdefault("width", "100%")


def find_by_last_name(app, env, node, contnode):
    """Link to a class or function that a docstring of another module calls by its own name."""
    domain, target = env.domains.python_domain, node.get("reftarget", "")
    found = [
        name
        for name, entry in domain.objects.items()
        if name.endswith(f".{target}")
        and (entry.objtype in ("class", "exception", "function") or "." in target)
        and not entry.aliased
    ]
    if node.get("refdomain") != "py" or len(found) != 1:
        return None
    document = node.get("refdoc", env.docname)
    return domain.resolve_xref(env, document, app.builder, "obj", found[0], node, contnode)


def mend_back_links(app, page, template, context, doctree):
    """Link sources back to the names of their entries: viewcode assumes one module for a file."""
    if page.startswith("_modules/"):
        entry = r'generated/((?:\w+\.)+(\w+))\.html#(?:\w+\.)+\2"'
        context["body"] = re.sub(entry, r'generated/\1.html#\1"', context["body"])


def setup(app):
    """Connect the functions above."""
    app.connect("missing-reference", find_by_last_name)
    app.connect("autodoc-process-docstring", escape_notation)
    app.connect("html-page-context", mend_back_links)
    app.connect("include-read", markdown_to_rest)
    app.connect("doctree-read", link_figures)
