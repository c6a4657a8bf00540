"""Predicted and measured errors of feature maps side by side."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from sklearn.base import clone

from .._sums import log_estimate, log_signed_sum, log_sum_exp
from .._tables import Table
from .._typing import Array, Kernel, Result, Sigma
from .._validation import check_integer
from .._warnings import once
from ..features import (
    AdaptiveRF,
    BaseRandomFeatures,
    ClusterNystroem,
    DenseExponentialRF,
    GeneralizedExponentialRF,
    OptimalPositiveRF,
    PositiveRF,
    QuadratureFourierFeatures,
    RFFSampler,
)
from ._sample import check_feature_map, check_sides, log_ratio, sample_rows, sides_of

_N_DRAWS = 50
_PROJECTIONS = 2**19  # of all draws together, from which there are fewer draws
_LOG_ROWS = 100
_HEAVY = 3.0  # a prediction this many times the median error is not that of most draws


def kernel_variance(
    feature_map: BaseRandomFeatures, X: Array, Y: Array | None = None, *, log: bool = False
) -> Result:
    """Return the closed-form variance of a fitted feature map's estimate of the kernel.

    Parameters
    ----------
    feature_map : feature map
        A fitted feature map.
    X, Y : array-like of shape (n_x, n_features) and (n_y, n_features)
        Queries and keys; None for Y means X.
    log : bool, default=False
        Return the logarithm.

    Returns
    -------
    ndarray of shape (n_x, n_y)
        The result of ``feature_map.kernel_variance(X, Y, log=log)``.

    See Also
    --------
    n_components_for : The number of components needed for a given error.
    chebyshev_bound : A bound on the probability of an error.
    skrf.RFFSampler.kernel_variance : The same as a method.

    References
    ----------
    Variances in closed form: Likhosherstov et al., Chefs' random tables (2022), theorems 3.1, 3.2
    and 4.1; Reid et al., Simplex random features (2023), section 3; Choromanski et al., Hybrid
    random features (2022), theorem 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RFFSampler
    >>> from skrf.theory import kernel_variance
    >>> X = np.zeros((2, 3))
    >>> float(kernel_variance(RFFSampler(random_state=0).fit(X), X).max())
    0.0
    """
    check_feature_map(feature_map)
    return feature_map.kernel_variance(X, Y, log=log)


def default_feature_maps(
    n_components: int = 100, *, sigma: Sigma | None = None, kernel: Kernel = "gaussian"
) -> dict[str, BaseRandomFeatures]:
    """Return the feature maps that `compare` tries.

    Parameters
    ----------
    n_components : int, default=100
        Number of components; maps whose features come in pairs use one fewer if it is odd.
    sigma : float, "scale", "median" or None, default=None
        Multiplier of the inputs; None means "scale", or 1 for the softmax kernel.
    kernel : {"gaussian", "softmax"}, default="gaussian"
        The kernel.

    Returns
    -------
    dict of str to feature map
        Unfitted feature maps by name: for the softmax kernel also asymmetric ones, for the Gaussian
        kernel also landmarks.

    See Also
    --------
    compare : Their errors on data.

    Examples
    --------
    >>> from skrf.theory import default_feature_maps
    >>> default_feature_maps(101)["trigonometric"].n_components
    100
    """
    n_components = check_integer("n_components", n_components)
    even = max(n_components - n_components % 2, 1)
    common = {"sigma": sigma, "kernel": kernel}
    feature_maps = {
        "trigonometric": RFFSampler(even, **common),
        "positive": PositiveRF(n_components, **common),
        "optimal positive": OptimalPositiveRF(n_components, **common),
        "optimal positive, simplex": OptimalPositiveRF(n_components, coupling="simplex", **common),
        "generalized": GeneralizedExponentialRF(even, **common),
        "dense": DenseExponentialRF(n_components, **common),
        "adaptive": AdaptiveRF(n_components, **common),
    }
    if kernel == "softmax":
        balanced = {"asymmetric": True, **common}
        feature_maps["dense, asymmetric"] = DenseExponentialRF(n_components, **balanced)
        feature_maps["adaptive, asymmetric"] = AdaptiveRF(n_components, **balanced)
    else:
        feature_maps["cluster Nystroem"] = ClusterNystroem(n_components, sigma=sigma)
    return feature_maps


@dataclass(frozen=True)
class Comparison:
    """One row of the table that `compare` returns.

    Parameters
    ----------
    name : str
        Name of the feature map.
    feature_map : feature map
        The unfitted feature map.
    predicted : float
        Root mean square over all draws of the relative error of the kernel matrix (Frobenius norm),
        in closed form; NaN if no closed form is known.
    source : {"exact", "bound", "none"}
        Whether `predicted` is exact, an upper bound or unknown (then `measured` estimates it).
    measured : float
        The same root mean square over the draws that were made.
    standard_error : float
        Standard error of `measured`.
    typical : float
        Median over these draws of the relative error.
    heavy_tail : bool
        Whether the root mean square is more than three times `typical`: it is then dominated
        by rare draws with very large errors, and most draws are far better.
    log_error : float
        Median over pairs, then over draws, of ``abs(log estimate - log kernel)``; an estimate
        that is not positive counts as infinitely wrong.
    sum_error : float
        The same for sums over keys, as in kernel regression: the median over queries, where a row
        is not its own key.
    is_positive : bool
        Whether the fitted features are positive.
    cost : int
        Number of multiplications to project one row.

    See Also
    --------
    compare : Returns them.
    ComparisonTable : A table of them.
    """

    name: str
    feature_map: BaseRandomFeatures = field(repr=False)
    predicted: float
    source: str
    measured: float
    standard_error: float
    typical: float
    heavy_tail: bool
    log_error: float
    sum_error: float
    is_positive: bool
    cost: int


class ComparisonTable(Table[Comparison]):
    """The rows that `compare` returns, a list that prints as a table.

    Parameters
    ----------
    iterable : iterable of Comparison, default=()
        The rows.

    See Also
    --------
    compare : Returns it.
    Comparison : A row.
    skrf.plotting.ComparisonDisplay : Draws it.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RFFSampler, theory
    >>> X = np.zeros((3, 2))
    >>> theory.compare(X, feature_maps={"Fourier": RFFSampler(8)})
    name     predicted  source  measured  standard_error  typical  heavy_tail  log_error  ...
    Fourier          0   exact         0               0        0       False          0  ...
    """

    row_type = Comparison


_CRITERIA = {"log": "log_error", "frobenius": "measured", "sums": "sum_error"}


def compare(
    X: Array,
    Y: Array | None = None,
    *,
    n_components: int = 100,
    sigma: Sigma | None = None,
    kernel: Kernel = "gaussian",
    feature_maps: Mapping[str, BaseRandomFeatures] | None = None,
    criterion: Literal["log", "frobenius", "sums"] = "log",
    random_state: int = 0,
) -> ComparisonTable:
    """Return predicted and measured errors of the kernel matrix for several feature maps.

    These are errors of the kernel, not of predictions: a model may be as accurate with features
    whose kernel is off by a tenth as with the exact kernel. To choose a map for a task, search over
    feature maps.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Queries.
    Y : array-like of shape (n_keys, n_features), default=None
        Keys; None takes X.
    n_components : int, default=100
        Number of components of the default feature maps.
    sigma : float, "scale", "median" or None, default=None
        Multiplier of the inputs of the default feature maps.
    kernel : {"gaussian", "softmax"}, default="gaussian"
        Kernel of the default feature maps.
    feature_maps : dict of str to feature map, default=None
        Feature maps to compare; None means `default_feature_maps` and, for the Gaussian kernel and
        at most three columns, `QuadratureFourierFeatures`.
    criterion : {"log", "frobenius", "sums"}, default="log"
        The error by which the table is sorted: ``log_error``, ``measured`` or ``sum_error``.
    random_state : int, default=0
        First of the 50 seeds used, and seed of the subsample of 400 rows on which errors are
        measured (log errors on at most 100 of them). From 10,500 projections on there are fewer
        draws, and above 262,144 only one, so that measuring takes little time compared to `fit`.

    Returns
    -------
    ComparisonTable
        A list of `Comparison`, smallest error first.

    Raises
    ------
    ValueError
        If `criterion` is not one of the three.

    See Also
    --------
    skrf.plotting.ComparisonDisplay : The table as a plot.
    kernel_variance : Predictions for single pairs.

    References
    ----------
    Ours. Likhosherstov et al., Chefs' random tables (2022), section 5.1, compares variances in
    closed form.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.theory import compare
    >>> table = compare(np.random.default_rng(0).normal(size=(60, 3)), n_components=32)
    >>> errors = [row.log_error for row in table]
    >>> errors == sorted(errors)
    True
    """
    if not isinstance(criterion, str) or criterion not in _CRITERIA:
        raise ValueError(f"criterion must be 'log', 'frobenius' or 'sums', got {criterion!r}.")
    random_state = check_integer("random_state", random_state, 0)
    X, Y = check_sides(X, Y)
    rows = X[sample_rows(X, random_state)]
    keys = rows if Y is None else Y[sample_rows(Y, random_state)]
    if feature_maps is None:
        feature_maps = default_feature_maps(n_components, sigma=sigma, kernel=kernel)
        if kernel == "gaussian" and X.shape[1] <= 3:
            quadrature = QuadratureFourierFeatures(n_components, sigma=sigma)
            feature_maps["quadrature Fourier"] = quadrature
    with once():
        table = [
            _row(name, feature_map, X, Y, rows, keys, random_state)
            for name, feature_map in checked_feature_maps(feature_maps).items()
        ]
    return ComparisonTable(sorted(table, key=lambda row: getattr(row, _CRITERIA[criterion])))


def checked_feature_maps(feature_maps):
    """Return a dict of feature maps, or raise and name what is not a feature map."""
    if not isinstance(feature_maps, Mapping):
        raise TypeError(f"feature_maps must be a dict of str to feature map, got {feature_maps!r}.")
    for name, feature_map in feature_maps.items():
        check_feature_map(feature_map, f"feature_maps[{name!r}]")
    return feature_maps


def _row(name, feature_map, X, Y, rows, keys, random_state):
    fitted = clone(feature_map).set_params(random_state=random_state).fit(X, keys=Y)
    log_exact = fitted.exact_kernel(rows, keys, log=True)
    top = log_exact.max()
    exact = np.exp(log_exact - top)
    own_terms = np.where(np.eye(*log_exact.shape) * (rows is keys) > 0, -np.inf, 0.0)
    log_sums = log_sum_exp(log_exact + own_terms)
    few = tuple(slice(None, None, -(-n // _LOG_ROWS)) for n in log_exact.shape)  # evenly spread
    errors, log_errors, sum_errors = [], [], []
    for draw in range(max(min(_N_DRAWS, _PROJECTIONS // fitted._n_projections), 1)):
        if draw > 0:  # the first draw is that of `fit`
            fitted.redraw(random_state + draw)
        sides = sides_of(fitted, rows, keys)
        logs, sign = log_estimate(*sides, is_exact=False)
        with np.errstate(over="ignore"):  # an estimate may be infinitely wrong
            errors.append(np.linalg.norm(sign * np.exp(logs - top) - exact))
        sum_errors.append(_log_error(*log_signed_sum(logs + own_terms, sign), log_sums))
        few_sides = (side.part(indices) for side, indices in zip(sides, few, strict=True))
        log_errors.append(_log_error(*log_estimate(*few_sides), log_exact[few]))
    predicted, source = float("nan"), "none"
    # No closed form is no prediction, and an infinite error is one.
    with suppress(NotImplementedError), np.errstate(over="ignore"):
        log_variance = fitted.kernel_variance(rows, keys, log=True)
        predicted = float(np.exp(log_ratio(log_variance, log_exact) / 2))
        source = "exact" if fitted.kernel_variance_is_exact_ else "bound"
    errors = np.array(errors) / np.linalg.norm(exact)
    measured, standard_error = _root_mean_square(errors)
    typical = float(np.median(errors))
    return Comparison(
        name,
        clone(feature_map),
        predicted,
        source,
        measured,
        standard_error,
        typical,
        (predicted if source == "exact" else measured) > _HEAVY * typical,
        float(np.median(log_errors)),
        float(np.median(sum_errors)),
        bool(fitted.is_positive),
        fitted._n_projections * fitted.n_features_in_,
    )


def _root_mean_square(errors):
    """Return the root of the mean square of draws, and its standard error."""
    top = errors.max()
    if not 0 < top < np.inf:
        return float(top), 0.0 if top == 0 else float("nan")
    squares = (errors / top) ** 2
    root = np.sqrt(squares.mean())
    spread = squares.std(ddof=1) if len(squares) > 1 else np.nan
    return float(top * root), float(top * spread / (2 * root * np.sqrt(len(squares))))


def _log_error(logs, sign, exact):
    """Return the median error of logs, infinite where an estimate is not positive."""
    return np.median(np.abs(np.where(sign > 0, logs, np.inf) - exact))
