"""Hybrid features: estimators combined pair by pair, by coefficients that are features themselves.

K_hat = lam_hat P + (1 - lam_hat) T joins a positive estimate P, accurate for distant pairs, and a
trigonometric one T, accurate for close pairs. The coefficients are products of features, so the
combination is one linear map whose columns are products; it is built in O(nd + md + mn) a row.
"""

import math
from numbers import Integral, Real

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .. import variances
from .._arrays import columns, like, namespace, squared_distances
from ..projections import DenseProjection
from ._clusters import cluster_centers
from ._docs import document
from .base import COEFFICIENTS, SUBSAMPLE, BaseRandomFeatures
from .nonlinearities import Exponential, Hyperbolic, SineCosine
from .positive import CenteredRandomFeatures

_POSITIVE = {
    "positive": (Exponential(), variances.Exponential()),
    "hyperbolic": (Hyperbolic(), variances.Hyperbolic()),
}
_MAX_DEFAULT_COEFFICIENTS = 8
_CLUSTER_ROWS = 20_000
_FLOOR = 1e-12


class Angular:
    """lam_hat = (1 - a) / 2, a = mean of sgn(tau.x) sgn(tau.y): E lam_hat = angle / pi."""

    def n_columns(self, n_coefficients, n_positive, n_trigonometric):
        """Return the columns of one projection."""
        return (n_coefficients + 1) * (n_positive + n_trigonometric)

    def features(self, products):
        """Return coefficient features for products with the tau rows."""
        xp = namespace(products)
        signs = xp.where(products < 0, like(-1.0, products), like(1.0, products))
        return signs / math.sqrt(max(products.shape[1], 1))

    def compose(self, coefficient, positive, trigonometric, *, keys):
        """Return the columns of one side."""
        sign = -1.0 if keys else 1.0
        parts = [
            positive,
            trigonometric,
            sign * _products(coefficient, positive),
            _products(coefficient, trigonometric),
        ]
        return columns(parts, positive) / math.sqrt(2)

    def moments(self, X, Y, n_coefficients, tau):
        """Return E lam_hat and E lam_hat^2 for all pairs."""
        if n_coefficients == 0:
            half = np.full((len(X), len(Y)), 0.5)
            return half, half**2
        unit = [Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1e-300) for Z in (X, Y)]
        # The angle from chords: right for nearly equal and nearly opposite directions.
        chords = variances.PairGeometry.of(*unit)
        share = 2 * np.arctan2(np.sqrt(chords.difference2), np.sqrt(chords.sum2)) / np.pi
        n = n_coefficients
        return share, share * (share - share / n + 1 / n)


class Gaussian:
    """lam_hat = 1 - g, g = mean of cos(tau.(x - y) / w): E g = exp(-|x - y|^2 / (2 w^2))."""

    def n_columns(self, n_coefficients, n_positive, n_trigonometric):
        """Return the columns of one projection."""
        return n_positive + 2 * n_coefficients * (n_positive + n_trigonometric)

    def features(self, products):
        """Return coefficient features for products with the tau rows."""
        xp = namespace(products)
        return columns([xp.cos(products), xp.sin(products)], products) / math.sqrt(
            max(products.shape[1], 1)
        )

    def compose(self, coefficient, positive, trigonometric, *, keys):
        """Return the columns of one side."""
        sign = -1.0 if keys else 1.0
        parts = [
            positive,
            sign * _products(coefficient, positive),
            _products(coefficient, trigonometric),
        ]
        return columns(parts, positive)

    def moments(self, X, Y, n_coefficients, tau):
        """Return E lam_hat and E lam_hat^2 for all pairs."""
        difference2 = variances.PairGeometry.of(X, Y).difference2
        if n_coefficients == 0:
            one = np.ones_like(difference2)
            return one, one
        far = -np.expm1(-difference2 / (2 * tau**2))
        spread = np.expm1(-difference2 / tau**2) ** 2 / (2 * n_coefficients)
        return far, far**2 + spread


def _products(coefficient, values):
    """Return all products of a column of one with a column of the other, row by row."""
    xp = namespace(values)
    joined = coefficient[:, :, None] * values[:, None, :]
    return xp.reshape(joined, (values.shape[0], coefficient.shape[1] * values.shape[1]))


_COEFFICIENTS = {"angular": Angular(), "gaussian": Gaussian()}


@document
class HybridRF(CenteredRandomFeatures):
    r"""Hybrid random features: positive and trigonometric estimates joined pair by pair.

    %(sigma)s

    Choose it where both close and distant pairs must be right and features may be negative. With
    ``coefficients="clustered"`` every pair of clusters of queries and keys has an estimator of
    its own. The two sides are mapped differently; for linear models on ``transform`` alone prefer
    a symmetric mechanism.

    Parameters
    ----------
    n_components : int, default=100
        Upper limit of the number of output columns, which are products; ``n_components_`` tells
        what was made. Below the smallest product the positive base alone is used.
    base : tuple of two str, default=("positive", "trigonometric")
        The first of "positive", "hyperbolic", the second "trigonometric".
    coefficients : {"angular", "gaussian", "clustered"}, default="angular"
        Weight of the positive estimate: the angle between the inputs over pi; one minus a
        Gaussian of their distance; or the membership in clusters.
    n_coefficients : int, default=None
        Number of coefficient features. None is sqrt(n_components / c) - 1 rounded down, from 0
        to 8, with c columns of the two bases a projection.
    tau : float or "median", default="median"
        Width of the Gaussian coefficient, in scaled inputs; "median" is the median distance.
    n_clusters : int, default=2
        Clusters of queries and clusters of keys; fewer where n_components does not hold them.
    recenter : bool, default=True
        Clustered: shift every pair of clusters to its own origin, with real positive features.
        False takes the complex diagonal scaling of the paper.
    %(sigma_parameter)s
    %(kernel)s
    %(coupling)s
    %(projection)s
    %(center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s
    n_coefficients_ : int
        Number of coefficient features.
    tau_ : float
        Width of the Gaussian coefficient.
    query_centers_, key_centers_ : ndarray of shape (n_clusters, n_features)
        Centres of the clusters, in scaled, shifted inputs.

    Raises
    ------
    ValueError
        By `fit`, where a parameter is not allowed.

    References
    ----------
    Choromanski et al., Hybrid random features (2022). Recentring is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import HybridRF
    >>> X = np.random.default_rng(0).normal(size=(20, 3)) / 2
    >>> features = HybridRF(1000, random_state=0).fit(X)
    >>> features.n_components_ <= 1000
    True
    >>> error = features.approximate_kernel(X) - features.exact_kernel(X)
    >>> bool(abs(error).mean() < 0.1)
    True
    """

    _parameter_constraints = {
        **CenteredRandomFeatures._parameter_constraints,
        "base": [tuple, list],
        "coefficients": [StrOptions({*_COEFFICIENTS, "clustered"})],
        "n_coefficients": [Interval(Integral, 1, None, closed="left"), None],
        "tau": [StrOptions({"median"}), Interval(Real, 0, None, closed="neither")],
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "recenter": ["boolean"],
    }

    def __init__(
        self,
        n_components=100,
        *,
        base=("positive", "trigonometric"),
        coefficients="angular",
        n_coefficients=None,
        tau="median",
        n_clusters=2,
        recenter=True,
        sigma=1.0,
        kernel="gaussian",
        coupling="orthogonal",
        projection="dense",
        center=True,
        random_state=None,
    ):
        self.n_components = n_components
        self.base = base
        self.coefficients = coefficients
        self.n_coefficients = n_coefficients
        self.tau = tau
        self.n_clusters = n_clusters
        self.recenter = recenter
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.center = center
        self.random_state = random_state

    # ---------------------------------------------------------------- sizes

    @property
    def _is_clustered(self):
        return self.coefficients == "clustered"

    @property
    def is_positive(self):
        """Whether every feature is positive: no."""
        return False

    @property
    def is_symmetric(self):
        """Whether `transform` and `transform_keys` are the same function: no."""
        return False

    @property
    def _nonlinearity(self):
        return _POSITIVE.get(self.base[0], _POSITIVE["positive"])[0]

    @property
    def _law(self):
        return _POSITIVE[self.base[0]][1]

    def _count_projections(self):
        base = tuple(self.base)
        if len(base) != 2 or base[0] not in _POSITIVE or base[1] != "trigonometric":
            raise ValueError(
                "The 'base' parameter of HybridRF must be ('positive', 'trigonometric') or "
                f"('hyperbolic', 'trigonometric'). Got {self.base!r} instead."
            )
        if self._is_clustered:
            width = self._columns_per_block
            self._clusters = min(self.n_clusters, math.isqrt(self.n_components // width))
            return self.n_components // (width * self._clusters**2)
        widths = self._nonlinearity.columns_per_projection, SineCosine.columns_per_projection
        n = self.n_coefficients
        if n is None:
            n = min(_MAX_DEFAULT_COEFFICIENTS, math.isqrt(self.n_components // sum(widths)) - 1)
        smallest = _COEFFICIENTS[self.coefficients].n_columns(max(n, 0), *widths)
        if self.n_coefficients is not None and smallest > self.n_components:
            raise ValueError(
                f"n_components={self.n_components} cannot hold n_coefficients={n}: the nearest "
                f"allowed n_components is {smallest}."
            )
        # Where not even one product fits, the positive base stands alone (n = -1).
        self._n_taus = n if n >= 0 and smallest <= self.n_components else -1
        if self._n_taus < 0:
            return max(1, self.n_components // self._nonlinearity.columns_per_projection)
        return self.n_components // smallest

    @property
    def _columns_per_block(self):
        # The complex diagonal needs two columns; a single one cannot hold them and is recentred.
        return 1 if self._is_recentered else 2

    @property
    def _is_recentered(self):
        return self.recenter or self.n_components == 1

    def _fit(self, X, sample_weight, keys, *, first):
        if self.coefficients == "clustered" and sample_weight is not None:
            raise ValueError(
                "sample_weight is not allowed with coefficients='clustered', whose clusters are "
                "not weighted: pass None."
            )
        return super()._fit(X, sample_weight, keys, first=first)

    @property
    def _needs_data(self):
        return self._is_clustered

    def _is_mergeable(self):
        by_rows = self._is_clustered or (self.coefficients == "gaussian" and self.tau == "median")
        return super()._is_mergeable() and not by_rows

    # ---------------------------------------------------------------- fitting

    def _learn_from_rows(self, X, keys, sample_weight):
        if self._is_clustered:
            rng = self._rng(SUBSAMPLE)
            queries = self._sample(X, rng, keys=False)
            self.query_centers_ = cluster_centers(queries, self._clusters, rng)
            others, self.key_centers_ = queries, self.query_centers_
            if keys is not X:
                others = self._sample(keys, rng, keys=True)
                self.key_centers_ = cluster_centers(others, self._clusters, rng)
            self._stretch = None
            if not self._is_recentered:
                self._stretch = _stretches(queries, others, self.query_centers_, self.key_centers_)
        elif self.coefficients == "gaussian" and self.tau == "median":
            self.tau_ = self.sigma_ * self._median_distance(X, sample_weight) or 1.0

    def _sample(self, X, rng, *, keys):
        if X.shape[0] > _CLUSTER_ROWS:
            X = X[rng.choice(X.shape[0], _CLUSTER_ROWS, replace=False)]
        # In float64 before they are shifted: the same choices for float32 rows.
        X = X.astype(np.float64, copy=False)
        return self._rows(X, self.offset_, keys=keys).on_host()

    def _draw(self, seed):
        super()._draw(seed)
        if self._is_clustered or self._n_taus < 0:
            return
        if self.coefficients == "gaussian" and self.tau != "median":
            self.tau_ = float(self.tau)
        shape = (self._n_taus, self.n_features_in_)
        rows = self._rng(COEFFICIENTS).standard_normal(shape)
        width = self.tau_ if self.coefficients == "gaussian" else 1.0
        self._taus = DenseProjection(rows / width)

    @property
    def n_coefficients_(self):
        """Number of coefficient features."""
        return max(self._n_taus, 0)

    @property
    def n_components_(self):
        """Number of output columns, at most ``n_components``."""
        check_is_fitted(self)
        m = self._n_projections
        if self._is_clustered:
            blocks = len(self.query_centers_) * len(self.key_centers_)
            return m * self._columns_per_block * blocks
        widths = self._nonlinearity.columns_per_projection, SineCosine.columns_per_projection
        if self._n_taus < 0:
            return m * widths[0]
        return m * _COEFFICIENTS[self.coefficients].n_columns(self._n_taus, *widths)

    # ---------------------------------------------------------------- maps

    # Not those of one nonlinearity.
    _pull_back = BaseRandomFeatures._pull_back
    _features_into = BaseRandomFeatures._features_into

    def _features(self, X, *, keys=False):
        if self._is_clustered:
            with np.errstate(over="ignore"):
                return self._clustered(X, keys=keys)
        products, row, bias = self._prepare(X, keys=keys)
        rows = self._rows(X, self.offset_)
        if self._n_taus >= 0:
            # T wants the row term of its own: no -|x|^2.
            own_row = self._nonlinearity.row_term(rows.squared_norms(), self.n_features_in_)
            trigonometric = SineCosine().apply(products, row - own_row, None)
        logs = self._nonlinearity.log_apply(products, row, bias)
        positive = namespace(logs).exp(logs)
        if self._n_taus < 0:
            return positive
        combination = _COEFFICIENTS[self.coefficients]
        coefficient = combination.features(rows.dot(self._taus))
        return combination.compose(coefficient, positive, trigonometric, keys=keys)

    def _clustered(self, X, *, keys):
        """Return block features: row x of cluster a is zero but in its blocks (a, b) or (b, a)."""
        rows = self._rows(X, self.offset_)
        xp = namespace(rows.values) if not rows.is_sparse else np
        norms2 = rows.squared_norms()
        outer = -norms2 / 2 - math.log(self._n_projections) / 2
        if self.kernel == "softmax":
            outer = outer + self._rows(X).squared_norms() / 2
        cluster = _nearest(rows, self.key_centers_ if keys else self.query_centers_, xp)
        make = self._recentered if self._stretch is None else self._stretched
        parts = []
        for a in range(len(self.query_centers_)):
            for b in range(len(self.key_centers_)):
                block = make(rows, norms2, outer, (a, b), keys=keys)
                member = (cluster == (b if keys else a))[:, None]
                parts.append(xp.where(member, block, xp.zeros_like(block)))
        return columns(parts, parts[0])

    def _recentered(self, rows, norms2, outer, pair, *, keys):
        own, other = self.query_centers_[pair[0]], self.key_centers_[pair[1]]
        if keys:
            own, other = other, own
        # K = exp(-|x - y0|^2 / 2) exp(-|y - x0|^2 / 2) exp(|x0 - y0|^2 / 2) exp(u.v), u = x - x0,
        # v = y - y0; the constant is shared by the sides.
        along_own, along_other = (
            rows.dot(DenseProjection(center[None, :]))[:, 0] for center in (own, other)
        )
        shifted2 = norms2 - 2 * along_own + float(own @ own)
        apart = own - other
        row = outer - shifted2 / 2 + along_other - float(other @ other) / 2
        row = row + float(apart @ apart) / 4
        logs = rows.dot(self._drawn) - like(self._drawn.multiply(own[None, :])[0], row)[None, :]
        return namespace(logs).exp(logs + row[:, None])

    def _stretched(self, rows, norms2, outer, pair, *, keys):
        real, imaginary = self._stretch[pair]
        if keys:
            # 1 / (i r) = -i / r.
            real, imaginary = _invert(real), -_invert(imaginary)
        omega = self._drawn.dense()
        level = rows.dot(DenseProjection(omega * real))
        angle = rows.dot(DenseProjection(omega * imaginary))
        dense = rows.values.toarray() * rows.scale if rows.is_sparse else rows.values
        if rows.is_sparse and rows.offset is not None:
            dense = dense - like(rows.offset * rows.scale, dense)
        square = dense**2 @ like(real**2 - imaginary**2, dense)
        xp = namespace(level)
        size = xp.exp(level + (outer - square / 2)[:, None])
        sign = -1.0 if keys else 1.0
        return columns([size * xp.cos(angle), sign * size * xp.sin(angle)], size)

    # ---------------------------------------------------------------- error

    def _log_variance(self, X, Y):
        if self.coupling != "iid":
            raise NotImplementedError(
                f"No closed form is known for HybridRF with coupling={self.coupling!r}. "
                "Known: 'iid'."
            )
        rows = [self._rows(Z, self.offset_).on_host() for Z in (X, Y)]
        geometry = variances.PairGeometry.of(*rows)
        m = self._n_projections
        if self._is_clustered:
            logs = self._log_clustered_variance(rows, geometry)
        else:
            log_positive = self._law.log_scale(geometry) + self._law.log_own(geometry)
            if self._n_taus < 0:
                logs = log_positive
            else:
                mean, square = _COEFFICIENTS[self.coefficients].moments(
                    *rows, self._n_taus, getattr(self, "tau_", None)
                )
                x2, y2 = (np.sum(Z**2, axis=1) for Z in rows)
                covariance = -2 * np.sin(np.subtract.outer(x2, y2) / 2) ** 2
                logs = variances.hybrid_log_variance(
                    mean,
                    square,
                    log_positive,
                    variances.Trigonometric().log_own(geometry),
                    covariance,
                    -geometry.difference2,
                )
        return logs - np.log(m) + self._log_outer_factor(X, Y)

    def _log_clustered_variance(self, rows, geometry):
        labels = [
            cdist(points, centers).argmin(axis=1)
            for points, centers in zip(rows, (self.query_centers_, self.key_centers_), strict=True)
        ]
        log_own = np.empty_like(geometry.sum2)
        for a in range(len(self.query_centers_)):
            for b in range(len(self.key_centers_)):
                block = np.ix_(labels[0] == a, labels[1] == b)
                x, y = rows[0][labels[0] == a], rows[1][labels[1] == b]
                if self._stretch is None:
                    u, v = x - self.query_centers_[a], y - self.key_centers_[b]
                    log_own[block] = variances.log_expm1(squared_distances(u, v, sign=1))
                else:
                    real, imaginary = self._stretch[a, b]
                    sizes = [
                        squared_distances(x * part, y * inverse, sign=1)
                        for part, inverse in (
                            (real, _invert(real)),
                            (imaginary, -_invert(imaginary)),
                        )
                    ]
                    # exp(|a|^2) cosh(|b|^2) - 1
                    log_cosh = np.logaddexp(sizes[1], -sizes[1]) - np.log(2)
                    log_own[block] = variances.log_expm1(sizes[0] + log_cosh)
        return -geometry.difference2 + log_own


def _nearest(rows, centers, xp):
    """Return the index of the nearest centre of every row."""
    products = rows.dot(DenseProjection(centers))
    halves = like(np.sum(centers**2, axis=1) / 2, products)
    return xp.argmax(products - halves[None, :], axis=1)


def _invert(values):
    """Return 1 / values where they are not 0, and 0 there."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)


def _stretches(queries, others, query_centers, key_centers):
    """Return {(a, b): (real, imaginary) diagonal of M} for every pair of clusters."""
    members = [
        [points[cdist(points, centers).argmin(axis=1) == k] for k in range(len(centers))]
        for points, centers in ((queries, query_centers), (others, key_centers))
    ]
    table = {}
    for a, x in enumerate(members[0]):
        for b, y in enumerate(members[1]):
            squares = [np.maximum(np.mean(points**2, axis=0), _FLOOR) for points in (x, y)]
            size = (squares[1] / squares[0]) ** 0.25
            is_imaginary = x.mean(axis=0) * y.mean(axis=0) > 0
            table[a, b] = np.where(is_imaginary, 0.0, size), np.where(is_imaginary, size, 0.0)
    return table
