"""The number of components needed for an error."""

import math
from bisect import bisect_left
from functools import cache
from numbers import Real

import numpy as np
from sklearn.base import clone

from .._arrays import to_host
from .._typing import Array
from .._validation import check_positive
from .._warnings import once, warn
from ..features import BaseRandomFeatures, QuadratureFourierFeatures
from ._sample import check_feature_map, check_sides, log_errors_of, log_ratio
from .concentration import least_bound

_MAX_ROWS, _MAX_PAIRS = 768, 2**14
_BOUNDED_ROWS, _MOST_BOUNDED = 64, 2**20
_MEASURED_ROWS, _MEASURED_COLUMNS, _N_DRAWS = 128, 128, 100
_MOST_COMPONENTS = 2**17  # of a lattice
_CONSTANT = 512  # feature maps do not change with their size from here on
_LARGEST_LOG = 690.0  # e^690 is still a float
_INDEPENDENT = {"coupling": "iid", "projection": "dense"}


def n_components_for(
    feature_map: BaseRandomFeatures,
    X: Array,
    Y: Array | None = None,
    *,
    rel_error: float,
    quantile: float | None = 0.5,
    probability: float | None = None,
) -> int:
    """Return the smallest number of components whose predicted error is small enough.

    Parameters
    ----------
    feature_map : feature map
        An unfitted or fitted feature map of this library; it is cloned.
    X : array-like of shape (n_samples, n_features)
        Queries.
    Y : array-like of shape (n_keys, n_features), default=None
        Keys; None takes X.
    rel_error : float
        Desired root mean squared error of a kernel value, relative to that value.
    quantile : float or None, default=0.5
        Share of the pairs of queries and keys that should have at most this error. None uses the
        error of the whole kernel matrix (its root mean squared error divided by its root mean
        square), which a single pair can dominate.
    probability : float, default=None
        Share of the draws, in (0, 1), in which a pair should have at most this error; it replaces
        the root mean square over draws. The number of components then comes from the smallest bound
        known for 64 rows per side: Chebyshev's, Hoeffding's, Bernstein's, or Chernoff's together
        with `left_tail_bound`.

    Returns
    -------
    int
        A number of components that the feature map allows, however large (a Python integer). It is
        computed from the closed form of the variance for up to 768 rows per side. If none is known,
        it is estimated from 100 draws of 128 columns for 128 rows per side, as a multiple of the
        closed form for independent projections if there is one. A measured error is assumed to fall
        with the square root of the number of components (with Sobol' points it falls faster).

    Raises
    ------
    NotImplementedError
        For landmarks, whose error follows no known law; with a ``probability``, also for biased
        feature maps and those with neither a closed form of the variance nor a bound on it.
    ValueError
        If ``rel_error`` is not a finite number > 0, ``quantile`` is not from 0 to 1, or
        ``probability`` is not in (0, 1), comes with ``quantile=None``, or requires more than
        1,048,576 components.

    Warns
    -----
    UserWarning
        If the number is above 1,048,576; the warning says what helps.

    See Also
    --------
    compare : Errors at one number of components.
    n_components_uniform : A number that suffices for all pairs in a ball at once.
    skrf.plotting.KernelErrorDisplay : Errors against numbers of components.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.theory import n_components_for
    >>> X = np.random.default_rng(0).normal(size=(50, 4)) / 2
    >>> loose, tight = (n_components_for(OptimalPositiveRF(), X, rel_error=e) for e in (0.2, 0.1))
    >>> 3 < tight / loose < 5
    True
    """
    rel_error = check_positive("rel_error", rel_error)
    if quantile is not None and not (isinstance(quantile, Real) and 0 <= quantile <= 1):
        raise ValueError(f"quantile must be None or a number from 0 to 1, got {quantile!r}.")
    is_share = isinstance(probability, Real) and 0 < probability < 1
    if probability is not None and not (is_share and quantile is not None):
        raise ValueError(
            "probability must be None or a number in (0, 1), with a quantile from 0 to 1; got "
            f"{probability!r} with quantile={quantile!r}."
        )
    check_feature_map(feature_map)
    X, Y = check_sides(X, Y)
    if probability is not None:
        return _components_of_bound(feature_map, X, Y, rel_error, float(quantile), probability)
    if isinstance(feature_map, QuadratureFourierFeatures):
        return _columns_of_bound(feature_map, X, Y, rel_error, quantile)
    block, log_kernel, log_errors = _source(feature_map, X, Y)

    def errors_of(count):
        """Return the log mean squared errors for `count` projections; blocks are independent."""
        whole, remainder = divmod(count, block)
        logs = log_errors(block) + 2 * math.log(block) + math.log(whole) if whole else -np.inf
        if remainder:
            logs = np.logaddexp(logs, log_errors(remainder) + 2 * math.log(remainder))
        return logs - 2 * math.log(count)

    def excess(count):
        """Return the log ratio of the squared error to the desired one."""
        logs = errors_of(count)
        if quantile is None:
            total = log_ratio(logs, log_kernel)
        else:
            total = np.quantile(logs - 2 * log_kernel, float(quantile), method="higher")
        return float(total) - 2 * math.log(rel_error)

    blocks = math.exp(min(excess(block), _LARGEST_LOG))
    fewer = max(math.ceil(blocks) - 1, 0) * block
    more = range(fewer + 1, fewer + block)
    count = fewer + 1 + bisect_left(more, 0.0, key=lambda n: -excess(n))
    n_components = count * feature_map._columns_per_projection
    if n_components > _MOST_BOUNDED:
        warn(
            f"rel_error={rel_error!r} takes {n_components:.3g} components of {feature_map!r}: "
            "errors fall with the root of their number, and are large next to the small kernel "
            "values of distant rows. Use a larger rel_error or a smaller sigma; AdaptiveRF and "
            "DenseExponentialRF take far fewer than other maps where rows are distant.",
            UserWarning,
            key="many components",
        )
    return n_components


@once()
def _components_of_bound(feature_map, X, Y, rel_error, quantile, probability):
    """Return the smallest number of components whose errors are probably small enough."""
    if not feature_map.is_unbiased:
        raise NotImplementedError(
            f"Bounds are those of distances from the mean, which is not the kernel for "
            f"{feature_map!r}: probability must be None."
        )
    keys, step = X if Y is None else Y, feature_map._columns_per_projection
    ((rows, key_rows),) = _index_blocks(X.shape[0], keys.shape[0], _BOUNDED_ROWS)
    queries, keys = X[rows], keys[key_rows]

    def is_enough(n_projections):
        copied = clone(feature_map).set_params(n_components=n_projections * step, random_state=0)
        fitted = copied.fit(X, keys=Y)
        logs = math.log(rel_error) + fitted.exact_kernel(queries, keys, log=True)
        bounds = least_bound(fitted, queries, keys, to_host(logs))
        if bounds is None:
            raise NotImplementedError(f"No bound of the tails of {feature_map!r} is known.")
        return np.quantile(bounds, quantile, method="higher") <= 1 - probability

    n = _least(is_enough, _MOST_BOUNDED // step)
    if n is None:
        raise ValueError(
            f"rel_error={rel_error!r} with probability={probability!r} takes more than "
            f"{_MOST_BOUNDED} components of {feature_map!r}, by the bounds that are known."
        )
    return n * step


def _least(is_enough, most):
    """Return the least number that is enough; None if powers of 2 up to `most` are not."""
    high = 1
    while not is_enough(high):
        high *= 2
        if high > most:
            return None
    return high // 2 + 1 + bisect_left(range(high // 2 + 1, high), True, key=is_enough)


def _columns_of_bound(feature_map, X, Y, rel_error, quantile):
    """Return the smallest number of components whose bound of the error is small enough."""
    keys = X if Y is None else Y
    fitted = clone(feature_map).fit(X, keys=Y)
    index_blocks = _index_blocks(X.shape[0], keys.shape[0], _MAX_ROWS)
    values = [
        fitted.exact_kernel(X[rows], keys[key_rows]).ravel() for rows, key_rows in index_blocks
    ]
    values = np.concatenate(values)
    if quantile is None:
        least = np.sqrt(np.mean(values**2))
    else:
        least = np.quantile(values, 1 - float(quantile), method="lower")

    def is_enough(n_components):
        sized = clone(feature_map).set_params(n_components=n_components).fit(X, keys=Y)
        return sized.kernel_error_bound() <= rel_error * least

    n = _least(is_enough, _MOST_COMPONENTS)
    if n is None:
        raise ValueError(
            f"rel_error={rel_error!r} takes more than {_MOST_COMPONENTS} components of "
            f"{feature_map!r}."
        )
    return clone(feature_map).set_params(n_components=n).fit(X, keys=Y).n_components_


def _source(feature_map, X, Y):
    """Return the best available source of errors.

    A number of projections whose multiples are independent blocks, the log kernel of some pairs,
    and their log mean squared errors as a function of at most that number of projections.
    """
    keys, step = X if Y is None else Y, feature_map._columns_per_projection
    index_blocks, few = (
        _index_blocks(X.shape[0], keys.shape[0], n) for n in (_MAX_ROWS, _MEASURED_ROWS)
    )

    def fitted(feature_map, n_projections):
        copied = clone(feature_map).set_params(n_components=n_projections * step, random_state=0)
        return copied.fit(X, keys=Y)

    def of_pairs(function, index_blocks):
        values = [function(X[rows], keys[key_rows], log=True) for rows, key_rows in index_blocks]
        return np.concatenate([errors.ravel() for errors in values])

    def closed(feature_map):
        return cache(lambda n: of_pairs(fitted(feature_map, n).kernel_variance, index_blocks))

    block = X.shape[1]
    small, large = (fitted(feature_map, n) for n in (block, block * -(-_CONSTANT // block)))
    if small._n_projections * large.n_components != large._n_projections * small.n_components:
        block, small = large.n_components // step, large  # hybrid maps change with their size
    log_kernel = of_pairs(small.exact_kernel, index_blocks)
    if _has_closed_form(small):
        return block, log_kernel, closed(feature_map)
    n_measured = max(_MEASURED_COLUMNS // step, 1)
    sampled = fitted(feature_map, n_measured)

    def measured(queries, keys, log):
        return log_errors_of(sampled, queries, keys, range(_N_DRAWS))

    logs = of_pairs(measured, few)
    names = feature_map.get_params(deep=False)
    plain = clone(feature_map).set_params(**{k: v for k, v in _INDEPENDENT.items() if k in names})
    independent = fitted(plain, n_measured)
    if _has_closed_form(independent):
        expected = of_pairs(independent.kernel_variance, few)
        apart = np.isfinite(expected) & np.isfinite(logs)
        gain = np.median(logs[apart] - expected[apart]) if apart.any() else 0.0
        errors = closed(plain)
        return block, log_kernel, lambda n: errors(n) + gain
    if not feature_map.is_unbiased:
        raise NotImplementedError(
            f"The number of components cannot be predicted for {feature_map!r}, whose error is "
            "bias: measure it with compare at several n_components."
        )
    logs += math.log(n_measured)
    return block, of_pairs(sampled.exact_kernel, few), lambda n: logs - math.log(n)


def _has_closed_form(feature_map):
    return getattr(feature_map, "kernel_variance_is_exact_", False)


def _index_blocks(n_queries, n_keys, most):
    """Return lists of queries and keys: all, or blocks that cover more rows in as many pairs."""
    rng = np.random.default_rng(0)
    sides = [rng.permutation(n)[:most] for n in (n_queries, n_keys)]
    n_blocks = -(-len(sides[0]) * len(sides[1]) // _MAX_PAIRS)
    return list(zip(*(np.array_split(rows, n_blocks) for rows in sides), strict=True))
