"""Features from the Taylor series of exp(x.y): products of powers with random counts.

A feature is exp of a sum over columns of w_l (log|x_l| - scale_l) with the sign (-1)^(odd counts
at negative coordinates), so two matrix products make all of them, and counts of hundreds neither
overflow nor lose their sign.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
from scipy.optimize import brentq
from scipy.special import gammaln, i0e, i1e
from sklearn.utils import gen_batches

from .._arrays import like, namespace, squared_distances
from .._sums import Rows, log_sum_exp
from .._typing import Kernel, RandomState, Sigma
from ..projections import DenseProjection
from ..variances import log_expm1
from ._affine import Affine
from ._docs import document
from ._map import FeatureMap, signed_rows
from .base import BaseRandomFeatures
from .streams import OMEGA, rng_of

_BLOCK_ROWS = 1024
# Stands for log 0: outweighs every finite exponent, yet gives 0 when multiplied by a count of 0.
_LOG_ZERO = -1e30
# Positive maps keep new inputs this far above the fitted minimum, in standard deviations.
_MARGIN = 1e-6
# NumPy cannot draw counts beyond the largest rate; any rate is unbiased.
_MIN_RATE, _MAX_RATE = 1e-12, 1e15
_MIN_P = 1e-6
# Rows used to find the best law, and the largest product of two coordinates that its table covers.
# The table costs rows times counts exponentials for every column.
_ROWS, _LARGEST_PRODUCT = 2048, 256.0
_TAIL_SHARE = 1e-4
_BLOCK_ENTRIES = 2**18  # a few such arrays fit in the cache
_ROUNDING = 40.0  # nats by which the omitted part of a series is below the rest
_LARGEST, _STEPS = 1e100, 8  # no sum grows by 1e200 in this many steps


class Counts:
    """How counts are drawn, the factors of their powers, and the variance of the estimate.

    A law has the methods ``draw(shape, rng)``, which returns counts of shape (m, d);
    ``log_terms(counts)``, the log divisor of every column's power and the bias of every feature;
    and ``coordinate_delta(product)``, the log ratio of second moment to squared mean for every
    coordinate x_l y_l.
    """

    def log_relative_second_moment(self, X, Y):
        """Return delta for all pairs of rows that enter the products.

        The variance of one feature product is its squared mean times expm1(delta), delta >= 0.
        """
        out = np.empty((len(X), len(Y)))
        step = max(1, _BLOCK_ENTRIES // Y.size)
        for start in range(0, len(X), step):
            products = X[start : start + step, None, :] * Y[None, :, :]
            with np.errstate(over="ignore"):  # a sum may be infinite, too
                out[start : start + step] = self.coordinate_delta(products).sum(axis=2)
        return np.maximum(out, 0.0)


@dataclass(frozen=True)
class PoissonCounts(Counts):
    """Features exp(sum lam / 2) prod x^w lam^(-w/2), w_l ~ Poisson(lam_l).

    Source of the variance: Likhosherstov et al., Chefs' random tables (2022), theorem 3.4.

    Parameters
    ----------
    lam : ndarray of shape (d,)
        Rates.
    """

    lam: np.ndarray

    def draw(self, shape, rng):
        """Return counts of shape (m, d)."""
        return rng.poisson(self.lam, size=shape)

    def log_terms(self, counts):
        """Return the log divisor of every power, and the bias of every feature."""
        return np.log(self.lam) / 2, np.full(len(counts), self.lam.sum() / 2)

    def coordinate_delta(self, product):
        """Return the log ratio of second moment to squared mean by coordinate."""
        gap = product - self.lam
        with np.errstate(over="ignore"):  # it may be infinite, its square sooner
            return gap * (gap / self.lam)


@dataclass(frozen=True)
class GeometricCounts(Counts):
    """Features p^(-d/2) prod x^w (1 - p)^(-w/2) (w!)^(-1/2), w_l geometric: p_k = p (1 - p)^k.

    Source of the variance: Likhosherstov et al., Chefs' random tables (2022), theorem 3.5.

    Parameters
    ----------
    p : ndarray of shape (d,)
        Success probabilities.
    """

    p: np.ndarray

    def draw(self, shape, rng):
        """Return counts of shape (m, d)."""
        return rng.geometric(self.p, size=shape) - 1

    def log_terms(self, counts):
        """Return the log divisor of every power, and the bias of every feature."""
        bias = -gammaln(counts + 1).sum(axis=1) / 2 - np.log(self.p).sum() / 2
        return np.log1p(-self.p) / 2, bias

    def coordinate_delta(self, product):
        """Return the log ratio of second moment to squared mean by coordinate."""
        argument = 2 * np.abs(product) / np.sqrt(1 - self.p)
        return -np.log(self.p) + np.log(i0e(argument)) + (argument - 2 * product)

    def slope(self, product):
        """Return the derivative of `coordinate_delta` in p."""
        size = np.abs(product)
        argument = 2 * size / np.sqrt(1 - self.p)
        return -1 / self.p + i1e(argument) / i0e(argument) * size / (1 - self.p) ** 1.5


@dataclass(frozen=True, eq=False)
class TabulatedCounts(Counts):
    """Features prod x^w (w! p_w)^(-1/2), w_l of any law: a table, mixed with a geometric one.

    The geometric law gives every count some probability.

    Parameters
    ----------
    log_table : ndarray of shape (d, n_counts)
        Log probabilities of the counts 0, 1, ... of every column, by the table alone.
    share : ndarray of shape (d,)
        Shares of the geometric laws, in (0, 1].
    p : ndarray of shape (d,)
        Success probabilities of the geometric laws, at most 1/2.
    """

    log_table: np.ndarray
    share: np.ndarray
    p: np.ndarray

    def draw(self, shape, rng):
        """Return counts of shape (m, d)."""
        counts = rng.geometric(self.p, size=shape) - 1
        is_of_table, places = rng.random(shape) >= self.share, rng.random(shape)
        for column, log_table in enumerate(self.log_table):
            edges, rows = np.cumsum(np.exp(log_table)), is_of_table[:, column]
            quantiles = places[rows, column] * edges[-1]
            counts[rows, column] = np.searchsorted(edges[:-1], quantiles, side="right")
        return counts

    def log_terms(self, counts):
        """Return the log divisor of every power, and the bias of every feature."""
        logs = gammaln(counts + 1) + self.log_mass(counts)
        return np.zeros(counts.shape[1]), -logs.sum(axis=1) / 2

    def log_mass(self, counts):
        """Return the log probabilities of counts of shape (n, d)."""
        d, n_counts = self.log_table.shape
        place = np.minimum(counts, n_counts - 1).astype(np.int64)
        with np.errstate(divide="ignore"):  # a share of 1 leaves nothing for the table
            table = self.log_table[np.arange(d), place] + np.log1p(-self.share)
        table = np.where(counts < n_counts, table, -np.inf)
        return np.logaddexp(table, np.log(self.share * self.p) + counts * np.log1p(-self.p))

    def coordinate_delta(self, product):
        """Return the log ratio of second moment to squared mean by coordinate."""
        size = np.abs(product)
        # The counts of such large products lie beyond the table.
        is_far = size > 2 * self.log_table.shape[1] + 50
        delta = self._log_series(np.where(is_far, 0.0, size)) - 2 * product
        if is_far.any():
            tail = GeometricCounts(self.p).coordinate_delta(product) - np.log(self.share)
            delta = np.where(is_far, tail, delta)
        return delta

    def _log_series(self, size):
        """Return log sum_k size^2k / (k!^2 p_k), nested from the last term to the first."""
        counts = np.arange(self._n_terms(float(size.max(initial=0.0))))[:, None]
        logs = self.log_mass(np.broadcast_to(counts, (len(counts), len(self.p))))
        ratios = np.exp(logs[:-1] - logs[1:]) / counts[1:] ** 2
        squares, total, unit, log_scale = size**2, np.ones_like(size), 1.0, -logs[0]
        for k in reversed(range(len(ratios))):
            total *= squares
            total *= ratios[k]
            total += unit
            if k % _STEPS == 0 and total.max(initial=0.0) > _LARGEST:
                factor = np.where(total > _LARGEST, total, 1.0)
                total, unit, log_scale = total / factor, unit / factor, log_scale + np.log(factor)
        return np.log(total) + log_scale

    def _n_terms(self, size):
        """Return a number of terms after which the geometric laws bound the rest to rounding."""
        grown = max(size / np.sqrt(1 - self.p.max()), 1e-300)
        log_least = np.log(self.share * self.p).min()
        counts = np.arange(60 + int(8 * grown - log_least))
        log_omitted = 2 * (counts * np.log(grown) - gammaln(counts + 1)) - log_least
        is_enough = (counts > grown) & (log_omitted < 2 * size - _ROUNDING)
        return 2 + int(np.argmax(is_enough))


@dataclass(frozen=True, eq=False)
class DiscreteMap(FeatureMap):
    """Products of powers of the coordinates, computed in float64.

    Parameters
    ----------
    affine : Affine
        The coordinates to raise to powers.
    projection : DenseProjection
        The counts, (m, d).
    log_divisor : ndarray of shape (d,)
        Log of each coordinate's divisor.
    bias : ndarray of shape (m,)
        Log of each feature's factor.
    floor : ndarray of shape (d,) or None
        Smallest value of every coordinate, to which lower ones are clamped; None keeps signs.
    """

    affine: Affine
    projection: DenseProjection
    log_divisor: np.ndarray
    bias: np.ndarray
    floor: np.ndarray | None

    @cached_property
    def _odd(self):
        return DenseProjection(self.projection.matrix % 2)

    @property
    def is_positive(self):
        """Whether features are given as logarithms."""
        return self.floor is not None

    def __call__(self, X):
        """Return the `Rows` of X, in its dtype; a sparse input is made dense."""
        dtype, X = X.dtype, X.toarray() if sp.issparse(X) else X
        xp = namespace(X)
        X = xp.astype(X, xp.float64)
        inside, norms2 = self.clamped(X)
        outer = self.affine.outer_term(X) - norms2 / 2
        size = xp.abs(inside)
        zero = size == 0
        logs = xp.log(xp.where(zero, like(1.0, X), size)) - like(self.log_divisor, X)
        logs = xp.where(zero, like(_LOG_ZERO, X), logs)
        logs = self.projection.multiply(logs) + like(self.bias, X)[None, :]
        # Clip before adding the row's term, which may be as large.
        logs = xp.where(logs < _LOG_ZERO / 2, like(-np.inf, X), logs) + outer[:, None]
        if self.is_positive:
            return Rows(xp.astype(logs, dtype))
        turns = self._odd.multiply(xp.astype(inside < 0, X.dtype))
        # 1 - 2 (turns mod 2), by halves: exact below 2^53.
        half = turns / 2
        rows = signed_rows(1 - 4 * (half - xp.floor(half)), logs)
        return rows.map(lambda values: xp.astype(values, dtype))

    def clamped(self, X):
        """Return rows as they enter the products, and squared norms, which ignore clamping."""
        rows = self.affine(X).values
        xp = namespace(rows)
        norms2 = xp.sum(rows * rows, axis=1)
        if self.is_positive:
            rows = xp.maximum(rows, like(self.floor, rows)[None, :])
        return rows, norms2


class DiscreteRandomFeatures(BaseRandomFeatures):
    """Base of the maps with counts: shift, signed log inputs, products, outer factors."""

    _needs_sizes = True
    _parameter_constraints = dict.fromkeys(("positive", "per_feature", "center"), ["boolean"])

    def __init__(
        self,
        n_components: int = 100,
        *,
        positive: bool = False,
        per_feature: bool = True,
        sigma: Sigma | None = None,
        kernel: Kernel = "gaussian",
        center: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.positive = positive
        self.per_feature = per_feature
        self.sigma = sigma
        self.kernel = kernel
        self.center = center
        self.random_state = random_state

    @abstractmethod
    def _counts(self, parameters):
        """Return the `Counts` at the fitted parameters."""

    @property
    def _is_positive(self):
        return self.positive

    # ---------------------------------------------------------------- shift

    def _learn(self, parameters, statistics):
        queries, keys = statistics.queries, statistics.keys
        parameters.floor = None
        if self.positive:
            spread = np.sqrt((queries.variances + keys.variances) / 2)
            margin = _MARGIN * np.where(spread > 0, spread, 1.0)
            parameters.offset_ = np.minimum(queries.minimum, keys.minimum) - margin
            parameters.floor = parameters.sigma * margin
        elif self._is_centered and np.array_equal(queries.mean, keys.mean):
            parameters.offset_ = queries.mean
        else:
            # With one parameter per column nothing depends on the origin; if keys have another
            # mean, the midpoint would be the worst origin.
            parameters.offset_ = np.zeros_like(queries.mean)

    @property
    def _is_centered(self):
        return self.center and not self.positive and not self.per_feature

    # ---------------------------------------------------------------- maps

    @property
    def _needs_data(self):
        """Whether every member of the family needs statistics of data."""
        return self.positive

    def _keeps_draw(self, before, parameters):
        # Counts drawn for the old parameters would be biased under the new ones.
        return False

    def _draw(self, parameters, seed):
        shape = parameters.n_projections, parameters.n_features
        counts = self._counts(parameters).draw(shape, rng_of(seed, OMEGA))
        return SimpleNamespace(omega_=counts.astype(np.float64))

    def _assemble(self, parameters, draw):
        log_divisor, bias = self._counts(parameters).log_terms(draw.omega_)
        feature_map = DiscreteMap(
            Affine(parameters.sigma, parameters.offset_, is_softmax=self.kernel == "softmax"),
            DenseProjection(draw.omega_),
            log_divisor,
            bias - np.log(parameters.n_projections) / 2,
            parameters.floor,
        )
        return feature_map, feature_map

    # ---------------------------------------------------------------- error

    def _log_variance(self, fitted, X, Y):
        log_mean2, delta = self._log_moments(fitted, X, Y)
        return log_mean2 + log_expm1(delta) - np.log(fitted.parameters.n_projections)

    def _log_block_moment(self, fitted, X, Y):
        if not self.positive:
            return super()._log_block_moment(fitted, X, Y)
        return sum(self._log_moments(fitted, X, Y)) - np.log(fitted.parameters.n_projections)

    def _log_moments(self, fitted, X, Y):
        """Return the log squared mean of a term, and the log of its second moment over that."""
        feature_map, clamped, gains = fitted.queries, [], []
        for Z in (X, Y):
            dense = Affine(1.0).on_host(Z)
            inside, norms2 = feature_map.clamped(dense)
            outer = feature_map.affine.outer_term(dense)
            clamped.append(inside)
            gains.append(np.sum(inside**2, axis=1) - norms2 + 2 * outer)
        delta = self._counts(fitted.parameters).log_relative_second_moment(*clamped)
        # Squared mean of the estimate: K^2 if nothing is clamped.
        return np.add.outer(*gains) - squared_distances(*clamped), delta


@document
class PoissonRF(DiscreteRandomFeatures):
    r"""Poisson random features: powers of the inputs with Poisson counts (CRT-PoisRF).

    Choose it if the inputs have few columns on a common scale; with many columns, Gaussian
    projections are better. One rate per column, the default, is as accurate as the single rate of
    the papers, and far more accurate if the columns differ.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s
    %(discrete)s
    %(sigma_parameter)s
    %(kernel)s
    %(discrete_center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s
    lambda_ : ndarray of shape (n_features,) or float
        The rates, at least 1e-12.

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    GeometricRF : Counts with a geometric distribution.
    DiscreteRF : Counts with the distribution of smallest mean second moment.

    Notes
    -----
    A feature is exp(-|x|^2 / 2) times the product over the columns l of
    x_l^c_l / sqrt(c_l! p_l(c_l)), over sqrt(m), with counts c_l that are drawn from the
    distributions p_l; sums of (x_l y_l)^c / c! are exp(x.y).

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), section 3.2.1; a rate per column is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import PoissonRF
    >>> X = np.random.default_rng(0).normal(size=(20, 3)) / 2
    >>> features = PoissonRF(2000, random_state=0).fit(X)
    >>> error = features.approximate_kernel(X) - features.exact_kernel(X)
    >>> bool(abs(error).mean() < 0.05)
    True
    """

    def _learn(self, parameters, statistics):
        super()._learn(parameters, statistics)
        sizes = [
            parameters.sigma * np.hypot(np.sqrt(side.variances), side.mean - parameters.offset_)
            for side in (statistics.queries, statistics.keys)
        ]
        rates = np.clip(sizes[0] * sizes[1], _MIN_RATE, _MAX_RATE)
        if not self.per_feature:
            rates = float(np.sqrt(np.mean(rates**2)))
        parameters.lambda_ = rates

    def _forget_data(self, parameters):
        parameters.lambda_ = np.ones(parameters.n_features) if self.per_feature else 1.0

    def _counts(self, parameters):
        return PoissonCounts(np.broadcast_to(parameters.lambda_, parameters.n_features))


@document
class GeometricRF(DiscreteRandomFeatures):
    r"""Geometric random features: powers of the inputs with geometric counts (CRT-GeomRF).

    Choose it over `PoissonRF` if the inputs have heavy tails, as its counts do.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s
    %(discrete)s
    %(sigma_parameter)s
    %(kernel)s
    %(discrete_center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s
    p_ : ndarray of shape (n_features,) or float
        The success probabilities, in [1e-6, 1 - 1e-6].

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    PoissonRF : Counts with a Poisson distribution.
    DiscreteRF : Counts with the distribution of smallest mean second moment.

    Notes
    -----
    The features are those of `PoissonRF` with p_l(c) = p (1 - p)^c.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), section 3.2.2; one p per column is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import GeometricRF
    >>> X = np.random.default_rng(0).normal(size=(20, 3)) / 2
    >>> features = GeometricRF(2000, random_state=0).fit(X)
    >>> error = features.approximate_kernel(X) - features.exact_kernel(X)
    >>> bool(abs(error).mean() < 0.05)
    True
    """

    def _obstacle_to_merging(self):
        # c changes with every batch.
        return "the mean of |x - c|" if self._is_centered else super()._obstacle_to_merging()

    def _learn(self, parameters, statistics):
        super()._learn(parameters, statistics)
        sizes = [
            side.mean - parameters.offset_ if self.positive else side.mean_absolute
            for side in (statistics.queries, statistics.keys)
        ]
        parameters.p_ = None
        if self.positive or not np.any(parameters.offset_):
            parameters.p_ = _best_p(*(parameters.sigma * size for size in sizes), self.per_feature)

    def _learn_from_rows(self, parameters, sample):
        if parameters.p_ is None:  # the mean of |x - c| requires c
            query_size = _mean_shifted_size(parameters, sample.queries, sample.weights)
            key_size = query_size
            if sample.has_keys:
                key_size = _mean_shifted_size(parameters, sample.keys, None)
            parameters.p_ = _best_p(query_size, key_size, self.per_feature)

    def _forget_data(self, parameters):
        parameters.p_ = np.full(parameters.n_features, 0.5) if self.per_feature else 0.5

    def _counts(self, parameters):
        return GeometricCounts(np.broadcast_to(parameters.p_, parameters.n_features))


def _mean_shifted_size(parameters, X, weights):
    """Return the mean absolute value of every scaled, shifted column."""
    weights = np.ones(X.shape[0]) if weights is None else weights / weights.max()
    affine = Affine(parameters.sigma, parameters.offset_)
    total = sum(
        weights[block] @ np.abs(affine.on_host(X[block]))
        for block in gen_batches(X.shape[0], _BLOCK_ROWS)
    )
    return total / weights.sum()


def _best_p(query_sizes, key_sizes, per_feature):
    """Return the best p of every column, or one for all, for columns of these mean sizes."""
    products = query_sizes * key_sizes
    if not per_feature:
        return _optimal_p(products)
    return np.array([_optimal_p(np.array([product])) for product in products])


def _optimal_p(products):
    """Return the p with the smallest log second moment for columns with these mean products.

    The objective is convex. Finding the root of its derivative by Brent's method gives full
    precision, whereas minimising it directly gives only half the digits.
    """

    def slope(p):
        return GeometricCounts(p).slope(products).sum()

    low, high = _MIN_P, 1 - _MIN_P
    if slope(low) >= 0 or slope(high) <= 0:
        return low if slope(low) >= 0 else high
    return float(brentq(slope, low, high, xtol=1e-16, rtol=1e-15))


@document
class DiscreteRF(DiscreteRandomFeatures):
    r"""Powers of the inputs with counts drawn from the best possible distribution.

    Choose it over `PoissonRF` and `GeometricRF` whenever all rows are available: of all
    distributions that the counts of a column may have, `fit` uses the one with the smallest mean
    second moment over the pairs of rows, which has a closed form. Each column gets its distribution
    from the magnitudes of its own entries, so it adapts to zeros, heavy tails or a few levels.
    `fit` costs 40 to 460 exponentials (more for larger entries) for each entry of at most 2,048
    rows, and there is no ``partial_fit``.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s
    %(discrete)s
    %(sigma_parameter)s
    %(kernel)s
    %(discrete_center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s
    log_p_ : ndarray of shape (n_features, n_counts) or (1, n_counts)
        Log probabilities of the counts 0, 1, ... under the best distribution.
    tail_p_, tail_share_ : ndarray of shape (n_features,) or (1,)
        The geometric distribution p_k = p (1 - p)^k that is mixed in so that every count can occur,
        with the p of `GeometricRF` but at most 1/2, and its share: 1e-4, or the share of rows
        beyond the range of the table if that is larger.

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid.

    See Also
    --------
    PoissonRF : Counts with a Poisson distribution.
    GeometricRF : Counts with a geometric distribution.
    OptimalPositiveRF : Gaussian projections in place of powers.

    Notes
    -----
    With A_k = E[exp(-x^2) x^(2k)] for the queries and B_k for the keys, the probability of the
    count k is proportional to sqrt(A_k B_k) / k!. If the keys are the queries, the distribution is
    a mean of Poisson distributions, one for each row, and the mean second moment of a column is 1,
    the smallest possible. With ``per_feature=False``, the single distribution minimises the sum of
    the second moments of the columns, each in units of its minimum.

    References
    ----------
    Ours; features of this form: Likhosherstov et al., Chefs' random tables (2022), section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import DiscreteRF, PoissonRF
    >>> X = np.random.default_rng(0).standard_t(4, size=(200, 3)) / 2
    >>> best, poisson = (
    ...     kind(64, sigma=1.0, random_state=0).fit(X) for kind in (DiscreteRF, PoissonRF)
    ... )
    >>> logs = (features.kernel_variance(X, log=True).max() for features in (best, poisson))
    >>> [round(float(largest)) for largest in logs]
    [2, 1063]
    """

    _looks_at_rows = True

    def _obstacle_to_merging(self):
        return "the law of every column's powers"

    def _learn_from_rows(self, parameters, sample):
        queries = keys = self._sizes_of(parameters, sample)
        if sample.has_keys:
            keys = self._sizes_of(parameters, sample, keys=True)
        self._set_law(parameters, queries, keys)

    def _sizes_of(self, parameters, sample, *, keys=False):
        """Return the sizes of the coordinates of some rows of one side, and shares of the rows."""
        X, weights, _ = sample.representatives(_ROWS, keys=keys)
        sizes = Affine(parameters.sigma, parameters.offset_).on_host(X)
        return np.abs(sizes), weights / weights.sum()

    def _set_law(self, parameters, queries, keys):
        log_table, shares = _best_table(queries, keys, self.per_feature)
        means = (weights @ sizes for sizes, weights in (queries, keys))
        parameters.log_p_, parameters.tail_share_ = log_table, np.clip(shares, _TAIL_SHARE, 1.0)
        parameters.tail_p_ = np.minimum(np.atleast_1d(_best_p(*means, self.per_feature)), 0.5)

    def _forget_data(self, parameters):
        ones = np.ones((1, parameters.n_features)), np.ones(1)
        self._set_law(parameters, ones, ones)

    def _counts(self, parameters):
        d = parameters.n_features
        return TabulatedCounts(
            np.broadcast_to(parameters.log_p_, (d, parameters.log_p_.shape[1])),
            np.broadcast_to(parameters.tail_share_, d),
            np.broadcast_to(parameters.tail_p_, d),
        )


def _best_table(queries, keys, per_feature):
    """Return log probabilities of counts by column, and shares of rows that they do not cover.

    They are proportional to sqrt(A_k B_k) / k!, where A_k and B_k are means of exp(-x^2) x^2k.

    Parameters
    ----------
    queries, keys : tuple of ndarray of shape (n, d) and (n,)
        Sizes of coordinates, and shares of rows.
    per_feature : bool
        Whether every column gets a law of its own.
    """
    sides = [queries] if keys is queries else [queries, keys]
    tops = [sides[0][0].max(axis=0), sides[-1][0].max(axis=0)]
    # Divisors so small that the quotient is above 1, but not infinite.
    roots = [np.maximum(np.sqrt(top), 1e-100) for top in tops]
    cut = np.minimum(math.sqrt(_LARGEST_PRODUCT) / roots[0] / roots[1], 1.0)
    # Beyond the largest product, neighbours' ratio is at most that of its Poisson law.
    products = (cut * tops[0]) * (cut * tops[1])
    n_counts = np.ceil(products + 10 * np.sqrt(products) + 40).astype(int)
    if not per_feature:
        n_counts[:] = n_counts.max()
    counts = np.arange(n_counts.max())
    logs, shares = np.full((len(cut), len(counts)), -np.inf), np.zeros(len(cut))
    for column, n in enumerate(n_counts):
        log_means = []
        for (sizes, weights), top in zip(sides, tops, strict=False):
            most = cut[column] * top[column]
            shares[column] = max(shares[column], weights @ (sizes[:, column] > most))
            log_means.append(_log_powers(np.minimum(sizes[:, column], most), weights, counts[:n]))
        logs[column, :n] = (log_means[0] + log_means[-1]) / 2 - gammaln(counts[:n] + 1)
    logs[logs < _LOG_ZERO / 2] = -np.inf
    logs -= log_sum_exp(logs, axis=1)[:, None]
    if not per_feature:  # smallest sum of second moments in units of their minima
        logs = log_sum_exp(2 * logs, axis=0)[None, :] / 2
        logs, shares = logs - log_sum_exp(logs), shares.mean(keepdims=True)
    return logs, shares


def _log_powers(sizes, weights, counts):
    """Return log E[exp(-x^2) x^2k] up to a constant, given the shares of the sizes |x|."""
    log_weights = np.log(weights) - (sizes**2 - sizes.min() ** 2)
    logs = np.log(np.where(sizes > 0, sizes, 1.0))
    logs = np.where(sizes > 0, logs, _LOG_ZERO)
    return log_sum_exp(np.multiply.outer(2 * counts, logs) + log_weights)
