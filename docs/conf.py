"""Sphinx configuration; `make docs` builds with every warning an error."""

import re
import sys
from pathlib import Path

from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sphinx_gallery.sorting import ExplicitOrder

sys.path.insert(0, str(Path(__file__).parents[1]))

sys.path.insert(0, str(Path(__file__).parent))

import facts  # noqa: E402

import skrf  # noqa: E402 (the working tree, installed or not)

Path(__file__).with_name("guide").joinpath("_facts.txt").write_text(facts.as_rst())

project = "scikit-random-features"
author = "The scikit-random-features developers"
project_copyright = f"2026, {author}"
version = release = skrf.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "**sg_execution_times.rst"]

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
    "rbf_sampler",
    "svc",
    "error_in_advance",
    "noisy_sine",
    "labels",
    "which_map",
    "couplings",
    "stream",
    "uncertainty",
    "drift",
    "attention_matrices",
    "near_anchors_features",
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
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "pydata_sphinx_theme"
html_title = f"scikit-random-features {version}"
html_show_sourcelink = False
# Pages without neighbours on their level need no list of them.
html_sidebars = {page: [] for page in ("getting_started", "example", "faq", "changelog")}
html_theme_options = {
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_static_path = ["_static"]
html_css_files = ["tables.css"]


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
    """Turn the little Markdown that the changelog uses into reST, where it is included."""
    if relative_path.name != "CHANGELOG.md":
        return
    text = re.sub(r"`([^`]+)`", r"``\1``", content[0])
    text = re.sub(r"\[([^]]+)\]\(([^)]+)\)", r"`\1 <\2>`__", text)
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


def setup(app):
    """Connect the two translations above."""
    app.connect("autodoc-process-docstring", escape_notation)
    app.connect("include-read", markdown_to_rest)
