"""Features made of the Taylor series of exp(x.y): products of powers with random counts.

A feature is exp of a sum over columns of w_l (log|x_l| - scale_l) with the sign (-1)^(odd counts
at negative coordinates), so two matrix products make all of them, and counts of hundreds neither
overflow nor lose their sign.
"""

from abc import abstractmethod

import numpy as np
import scipy.sparse as sp
from scipy.optimize import brentq
from scipy.special import gammaln
from sklearn.utils import gen_batches

from .. import variances
from .._arrays import like, namespace, squared_distances
from ..projections import DenseProjection
from ._docs import document
from .base import OMEGA, BaseRandomFeatures

_SPARSE_BLOCK_ROWS = 1024
# log 0 is replaced by a number that beats every finite exponent yet stays 0 times a count of 0.
_LOG_ZERO = -1e30
# Positive maps keep new inputs this far above the fitted minimum, in standard deviations.
_MARGIN = 1e-6
# Beyond the largest rate NumPy draws no counts; any rate is unbiased.
_MIN_RATE, _MAX_RATE = 1e-12, 1e15
_MIN_P = 1e-6


class DiscreteRandomFeatures(BaseRandomFeatures):
    """Base of the maps with counts: shift, signed log inputs, products, outer factors."""

    _parameter_constraints = {
        **BaseRandomFeatures._parameter_constraints,
        "positive": ["boolean"],
        "per_feature": ["boolean"],
        "center": ["boolean"],
    }

    def __init__(
        self,
        n_components=100,
        *,
        positive=False,
        per_feature=True,
        sigma=1.0,
        kernel="gaussian",
        center=True,
        random_state=None,
    ):
        self.n_components = n_components
        self.positive = positive
        self.per_feature = per_feature
        self.sigma = sigma
        self.kernel = kernel
        self.center = center
        self.random_state = random_state

    @abstractmethod
    def _draw_counts(self, shape, rng):
        """Return counts of shape (m, d)."""

    @abstractmethod
    def _log_terms(self, counts):
        """Return (log divisor of every column's power, bias of every feature)."""

    @property
    @abstractmethod
    def _law(self):
        """The closed form of `skrf.variances` at the fitted parameters."""

    @property
    def is_positive(self):
        """Whether every feature is positive."""
        return self.positive

    @property
    def is_unbiased(self):
        """Whether the mean of the estimate is the kernel: but for rows that are clamped."""
        return True

    @property
    def is_symmetric(self):
        """Whether `transform` and `transform_keys` are the same function."""
        return True

    # ---------------------------------------------------------------- shift

    def _fit_offset(self, statistics):
        queries, keys = statistics.queries, statistics.keys
        self._margin = np.zeros_like(queries.mean)
        if self.positive:
            spread = np.sqrt((queries.variances + keys.variances) / 2)
            self._margin = _MARGIN * np.where(spread > 0, spread, 1.0)
            self.offset_ = np.minimum(queries.minimum, keys.minimum) - self._margin
        elif self._is_centered and np.array_equal(queries.mean, keys.mean):
            self.offset_ = queries.mean
        else:
            # One parameter a column: nothing depends on the origin; keys with another mean: the
            # midpoint would be the worst place.
            self.offset_ = np.zeros_like(queries.mean)

    @property
    def _is_centered(self):
        return self.center and not self.positive and not self.per_feature

    def _mean_squares(self, moments):
        """Return the mean square of every scaled, shifted column."""
        return self.sigma_**2 * (moments.variances + (moments.mean - self.offset_) ** 2)

    # ---------------------------------------------------------------- maps

    @property
    def _needs_data(self):
        return self.positive

    def _draw(self, seed):
        """Leave the draw to `_assemble`: the law of the counts has the fitted parameters."""

    def _assemble(self):
        # A later batch changes the parameters. Counts of the old ones would be biased under the
        # new ones, so the kept seed draws again.
        shape = (self._n_projections, self.n_features_in_)
        self.omega_ = self._draw_counts(shape, self._rng(OMEGA)).astype(np.float64)
        self._log_divisor, self._bias = self._log_terms(self.omega_)
        self._bias = self._bias - np.log(self._n_projections) / 2
        self._counts = DenseProjection(self.omega_)
        self._odd = DenseProjection(self.omega_ % 2)

    def _log_parts(self, X):
        """Return logs of the absolute features and, unless positive, how many signs turn."""
        X, norms2, outer = self._inside(X)
        xp = namespace(X)
        size = xp.abs(X)
        zero = size == 0
        logs = xp.log(xp.where(zero, like(1.0, X), size)) - like(self._log_divisor, X)
        logs = xp.where(zero, like(_LOG_ZERO, X), logs)
        row = outer - norms2 / 2
        total = self._counts.multiply(logs) + (row[:, None] + like(self._bias, X)[None, :])
        turns = None if self.positive else self._odd.multiply(xp.astype(X < 0, X.dtype))
        return total, turns

    def _inside(self, X):
        """Return clamped rows in float64, their squared norms, and the outer softmax exponents.

        Clamping acts on the products only, never on the norms.
        """
        xp = namespace(X)
        X = xp.astype(X, xp.float64)
        rows = self._rows(X, self.offset_).values
        norms2 = xp.sum(rows * rows, axis=1)
        outer = 0.0 * norms2
        if self.kernel == "softmax":
            plain = self._rows(X).values
            outer = xp.sum(plain * plain, axis=1) / 2
        if self.positive:
            rows = xp.maximum(rows, like(self.sigma_ * self._margin, rows)[None, :])
        return rows, norms2, outer

    def _in_blocks(self, X, make):
        """Return make(X) in the dtype of X; a sparse input is made dense a block at a time."""
        if not sp.issparse(X):
            features = make(X)
            return namespace(features).astype(features, X.dtype)
        blocks = gen_batches(X.shape[0], _SPARSE_BLOCK_ROWS)
        return np.concatenate([make(X[block].toarray()) for block in blocks]).astype(X.dtype)

    def _log_features(self, X, *, keys=False):
        return self._in_blocks(X, lambda rows: self._log_parts(rows)[0])

    def _features(self, X, *, keys=False):
        if self.positive:
            return super()._features(X, keys=keys)
        return self._in_blocks(X, self._signed)

    def _signed(self, X):
        logs, turns = self._log_parts(X)
        xp = namespace(logs)
        # 1 - 2 (turns mod 2), by halves: exact below 2^53.
        half = turns / 2
        return (1 - 4 * (half - xp.floor(half))) * xp.exp(logs)

    # ---------------------------------------------------------------- error

    def _log_variance(self, X, Y):
        clamped, gains = [], []
        for Z in (X, Y):
            dense = self._rows(Z).on_host() / self.sigma_
            inside, norms2, _ = self._inside(dense)
            clamped.append(inside)
            gains.append(np.sum(inside**2, axis=1) - norms2)
        delta = variances.log_relative_second_moment(self._law, *clamped)
        # Squared mean of the estimate: K^2 where nothing is clamped.
        log_mean2 = np.add.outer(*gains) - squared_distances(*clamped)
        logs = log_mean2 + variances.log_expm1(delta) - np.log(self._n_projections)
        return logs + self._log_outer_factor(X, Y)


@document
class PoissonRF(DiscreteRandomFeatures):
    r"""Poisson random features: powers of the inputs with Poisson counts (CRT-PoisRF).

    %(sigma)s

    Choose it when inputs are few and on a common scale; on wide inputs Gaussian projections are
    better. One rate per column, the default, is as exact as the papers' single one and far
    better where columns differ.

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
        By `fit`, where a parameter is not allowed.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), section 4.1; a rate per column is ours.

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

    def _fit_parameters(self, statistics):
        self._fit_offset(statistics)
        products = self._mean_squares(statistics.queries) * self._mean_squares(statistics.keys)
        if not self.per_feature:
            products = np.mean(products)
        rates = np.clip(np.sqrt(products), _MIN_RATE, _MAX_RATE)
        self.lambda_ = rates if self.per_feature else float(rates)

    def _fit_without_data(self, n_features):
        super()._fit_without_data(n_features)
        self.lambda_ = np.ones(n_features) if self.per_feature else 1.0
        self._assemble()
        return self

    @property
    def _rates(self):
        return np.broadcast_to(self.lambda_, self.n_features_in_)

    @property
    def _law(self):
        return variances.Poisson(self._rates)

    def _draw_counts(self, shape, rng):
        return rng.poisson(self._rates, size=shape)

    def _log_terms(self, counts):
        return np.log(self._rates) / 2, np.full(len(counts), self._rates.sum() / 2)


@document
class GeometricRF(DiscreteRandomFeatures):
    r"""Geometric random features: powers of the inputs with geometric counts (CRT-GeomRF).

    %(sigma)s

    Choose it over `PoissonRF` where inputs have heavy tails: its counts have, too.

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
        By `fit`, where a parameter is not allowed.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), section 4.2; one p per column is ours.

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

    def _is_mergeable(self):
        # The mean of |x - c| cannot be had from merged statistics when c moves.
        return super()._is_mergeable() and not self._is_centered

    def _fit_parameters(self, statistics):
        self._fit_offset(statistics)
        if np.any(self.offset_) and not self.positive:
            return  # needs the rows: see `_learn_from_rows`
        self._fit_p(
            *(self._mean_size(moments) for moments in (statistics.queries, statistics.keys))
        )

    def _learn_from_rows(self, X, keys, sample_weight):
        if np.any(self.offset_) and not self.positive:
            own = self._mean_shifted_size(X, sample_weight)
            self._fit_p(own, own if keys is X else self._mean_shifted_size(keys, None))

    def _mean_size(self, moments):
        """Return the mean absolute value of every scaled, shifted column."""
        sizes = moments.mean - self.offset_ if self.positive else moments.mean_absolute
        return self.sigma_ * sizes

    def _mean_shifted_size(self, X, sample_weight):
        weights = np.ones(X.shape[0]) if sample_weight is None else sample_weight
        total = sum(
            weights[block] @ np.abs(self._rows(X[block], self.offset_).on_host())
            for block in gen_batches(X.shape[0], _SPARSE_BLOCK_ROWS)
        )
        return total / weights.sum()

    def _fit_p(self, query_sizes, key_sizes):
        products = query_sizes * key_sizes
        if self.per_feature:
            self.p_ = np.array([_optimal_p(np.array([product])) for product in products])
        else:
            self.p_ = _optimal_p(products)

    def _fit_without_data(self, n_features):
        super()._fit_without_data(n_features)
        self.p_ = np.full(n_features, 0.5) if self.per_feature else 0.5
        self._assemble()
        return self

    @property
    def _probabilities(self):
        return np.broadcast_to(self.p_, self.n_features_in_)

    @property
    def _law(self):
        return variances.Geometric(self._probabilities)

    def _draw_counts(self, shape, rng):
        return rng.geometric(self._probabilities, size=shape) - 1

    def _log_terms(self, counts):
        bias = -gammaln(counts + 1).sum(axis=1) / 2 - np.log(self._probabilities).sum() / 2
        return np.log1p(-self._probabilities) / 2, bias


def _optimal_p(products):
    """Return the p of least log second moment for columns with these mean products.

    The objective is convex: Brent's root of its derivative has all digits, where a search for the
    minimum itself stops at half of them.
    """

    def slope(p):
        return variances.Geometric(p).slope(products).sum()

    low, high = _MIN_P, 1 - _MIN_P
    if slope(low) >= 0 or slope(high) <= 0:
        return low if slope(low) >= 0 else high
    return float(brentq(slope, low, high, xtol=1e-16, rtol=1e-15))
