"""The table of facts of the guide: what every feature map is and knows, asked of itself.

`conf.py` writes it into the guide when the documentation is built. Nothing here is written by hand
but the list of variants.
"""

import inspect

import numpy as np
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

import skrf
from skrf.features import BaseRandomFeatures
from skrf.projections import COUPLINGS

# Parameters that make another feature map of a class.
VARIANTS = {
    "PositiveRF": [{"variant": "hyperbolic"}, {"variant": "regularized"}],
    "DenseExponentialRF": [{"asymmetric": True, "kernel": "softmax"}],
    "AdaptiveRF": [{"asymmetric": True, "kernel": "softmax"}],
    "PoissonRF": [{"positive": True}],
    "GeometricRF": [{"positive": True}],
    "DiscreteRF": [{"positive": True}],
    "HybridRF": [
        {"coefficients": "gaussian"},
        {"shared": False},
        {"coefficients": "clustered"},
        {"coefficients": "clustered", "recenter": False},
    ],
}
COLUMNS = (
    "feature map",
    "symmetric",
    "positive",
    "unbiased",
    "variance in closed form",
    "``partial_fit``",
    "``sample_weight``",
    "sparse rows",
)


def table():
    """Return the rows of the table, tuples of texts in the order of COLUMNS."""
    found = []
    for name in skrf.__all__:
        kind = getattr(skrf, name)
        if inspect.isclass(kind) and issubclass(kind, BaseRandomFeatures):
            found += [_row(name, kind, params) for params in [{}, *VARIANTS.get(name, [])]]
    return found


def _row(name, kind, params):
    X = np.random.default_rng(0).normal(size=(40, 3))
    # Without other keys, an asymmetric map has nothing to tell apart.
    keys = {"keys": X + 1} if params.get("asymmetric") else {}
    fitted = kind(12, sigma=0.5, random_state=0, **params).fit(X, **keys)
    shown = ", ".join(f"{key}={value!r}" for key, value in params.items() if key != "kernel")
    return (
        f"`skrf.{name}`" + (f" with ``{shown}``" if shown else ""),
        *map(_answer, (fitted.is_symmetric, fitted.is_positive, fitted.is_unbiased)),
        _known(kind, params, X),
        _answer(hasattr(fitted, "partial_fit")),
        _answer(has_fit_parameter(fitted, "sample_weight")),
        _answer(get_tags(fitted).input_tags.sparse),
    )


def _answer(is_so):
    return "yes" if is_so else "no"


def _known(kind, params, X):
    """Return for which couplings the variance, or a bound of it, has a closed form."""
    has_choice = "coupling" in inspect.signature(kind).parameters
    known = {}
    for coupling in COUPLINGS if has_choice else [None]:
        own = {} if coupling is None else {"coupling": coupling}
        fitted = kind(12, sigma=0.5, random_state=0, **own, **params).fit(X)
        try:
            fitted.kernel_variance(X[:2])
        except NotImplementedError:
            continue
        what = "" if fitted.kernel_variance_is_exact_ else "bound: "
        known.setdefault(what, []).append("yes" if coupling is None else coupling)
    return "; ".join(what + ", ".join(names) for what, names in known.items()) or "no"


def as_rst():
    """Return the table as reStructuredText, answers of yes or no as lists of what is so."""
    options = ("header-rows: 1", "widths: 31 23 23 23", "class: wide")
    lines = [".. list-table::", *(f"   :{option}" for option in options), ""]
    rows = [("feature map", "features are", COLUMNS[4], "fits to")]
    for feature_map, *answers in table():
        kind = _listed(("symmetric", "positive", "unbiased"), answers[:3])
        takes = _listed(("batches", "weights", "sparse rows"), answers[4:])
        rows.append((feature_map, kind, answers[3], takes))
    for row in rows:
        lines += [f"   * - {row[0]}", *(f"     - {cell}" for cell in row[1:])]
    return "\n".join(lines) + "\n"


def _listed(names, answers):
    pairs = zip(names, answers, strict=True)
    return ", ".join(name for name, answer in pairs if answer == "yes")
