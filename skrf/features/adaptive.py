"""Positive features whose projections are drawn near the data and reweighted exactly.

Up to a constant sqrt(p(w)) exp(w.x - |x|^2), p standard normal, is the bump exp(-|w - 2x|^2 / 4):
projections near twice the data see them, and others see nothing. Any proposal density q may be
used if both sides are multiplied by sqrt(p / q). Ours mixes the optimal dense proposal, which
bounds the weights, with normal bumps around centres.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils import gen_batches

from .._sums import log_sum_exp
from .._typing import Kernel, RandomState, Sigma
from .._validation import Interval, StrOptions
from ..projections import CouplingLike, DenseProjection
from ..variances import PairGeometry, log_expm1
from ._clusters import (
    centers_of_classes,
    class_labels,
    representatives,
    spatial_order,
    systematic_counts,
)
from ._docs import document
from .dense_exponential import PrincipalAxesRandomFeatures
from .nonlinearities import PositiveNonlinearity
from .streams import CENTERS, OMEGA, SUMS, rng_of

_SUM_QUERIES = 1000  # to which keys near them are drawn
_CENTER_ROWS = 20_000
_MOST = 2**40  # cap on the requested number of centres, above any number of rows
_TAUS = 1e-100, 1e100  # so that their squares times those of rows stay finite
_RANDOM_CENTERS = 1024
_SHARE = 0.1
# A larger share serves sequences other than those of the fit. With random centres fewer of their
# rows are far from every bump.
_SHARE_BALANCED, _SHARE_BALANCED_RANDOM = 0.3, 0.2
_FARTHEST = 1e50  # a sigma whose square and its inverse, times squares of rows, stay floats
_SUM_ROWS = 32  # queries whose distances to all keys are held at once


class Mixture:
    """The proposal q = a N(0, Sigma) + (1 - a)/C sum_c N(mu_c, tau^2 I).

    Parameters
    ----------
    rho : ndarray of shape (d,)
        Roots of the dense part: its variances along the axes are (1 + 1/rho) / 2.
    axes : ndarray of shape (d, d)
        These axes, one per row.
    centers : ndarray of shape (C, d)
        mu_c; may be empty if a = 1.
    tau : float
        Standard deviation of the bumps.
    share : float
        Share a of the dense part, in (0, 1].
    """

    def __init__(self, rho, axes, centers, tau, share):
        self.scales, self.axes = np.sqrt((1 + 1 / rho) / 2), axes
        self.centers, self.tau, self.share = centers, tau, share

    def draw(self, noise, rng):
        """Turn standard normal rows into draws from q; systematic sampling sets component counts.

        Parameters
        ----------
        noise : ndarray of shape (m, d)
            Standard normal rows, coupled or not.
        rng : Generator
            Source of the single number that sets the counts.
        """
        m, n_centers = len(noise), len(self.centers)
        shares = np.full(n_centers + 1, (1 - self.share) / max(n_centers, 1))
        shares[0] = self.share
        component = np.repeat(np.arange(n_centers + 1), systematic_counts(shares, m, rng))
        dense = component == 0
        rows = np.empty_like(noise)
        # The symmetric root: with equal scales it only scales the noise and does not rotate it.
        rows[dense] = noise[dense] @ ((self.axes.T * self.scales) @ self.axes)
        rows[~dense] = self.centers[component[~dense] - 1] + self.tau * noise[~dense]
        return rows

    def log_density(self, rows):
        """Return log q + (d/2) log(2 pi) at rows of shape (m, d)."""
        along = rows @ self.axes.T / self.scales
        dense = -np.sum(along**2, axis=1) / 2 - np.sum(np.log(self.scales)) + np.log(self.share)
        if self.share == 1:
            return dense
        d = rows.shape[1]
        squares = cdist(rows, self.centers, "sqeuclidean")
        with np.errstate(over="ignore"):  # a bump may be infinitely far away
            exponents = -squares / (2 * self.tau**2)
        bumps = log_sum_exp(exponents) - d * np.log(self.tau)
        return np.logaddexp(dense, bumps + np.log1p(-self.share) - np.log(len(self.centers)))

    def log_second_moment(self, log_dense, X, Y):
        """Return an upper bound of the log second moment of one projection, over K^2.

        Let s_k be the shares of the components, and M_k the second moments with draws from one of
        them: that of a mixture is at most 1 / sum_k (s_k / M_k), by Cauchy and Schwarz. That of a
        bump is (tau^2 / sqrt(t))^d exp(|x + y - mu|^2 / t), t = 2 tau^2 - 1, infinite for t <= 0.

        Parameters
        ----------
        log_dense : ndarray of shape (n_x, n_y)
            The same of the dense part.
        X, Y : ndarray of shape (n_x, d) and (n_y, d)
            Rows in projected coordinates.
        """
        logs, t = np.log(self.share) - log_dense, 2 * self.tau**2 - 1
        if self.share < 1 and t > 0:
            bumps = [log_sum_exp(-cdist(x + Y, self.centers, "sqeuclidean") / t) for x in X]
            log_unit = X.shape[1] * (2 * np.log(self.tau) - np.log(t) / 2)
            log_share = np.log1p(-self.share) - np.log(len(self.centers))
            logs = np.logaddexp(logs, np.array(bumps) + log_share - log_unit)
        return -logs


@dataclass(frozen=True)
class WeightedExponential(PositiveNonlinearity):
    """One column sqrt(p(w) / q(w)) exp(w.x - |x|^2) for w drawn from a density q, p normal.

    Parameters
    ----------
    log_weights : ndarray of shape (m,)
        log p(w) - log q(w) of the drawn rows.
    """

    log_weights: np.ndarray

    def knows_pairs(self, cosine):
        """Return whether rows repel each other: their error was never above that of independent."""
        return cosine <= 0

    def multiplier(self, projection):
        """Return the projection as it is and half the log weights."""
        return projection, self.log_weights / 2


@document
class AdaptiveRF(PrincipalAxesRandomFeatures):
    r"""Positive features drawn near the data: the most accurate positive map of few components.

    Choose it if features must be positive and the number of components is small. `fit` places
    projections near the data and reweights them exactly, so that, given the centres, the estimate
    stays unbiased for every pair, near the data or not. `transform` costs as much as for plain
    positive features; `fit` costs O(n_components * n_centers * d) plus a k-means clustering.

    %(sigma)s

    Parameters
    ----------
    %(n_components)s
    centers : {"auto", "classes", "kmeans", "random"}, default="auto"
        Where the Gaussian bumps of the proposal are placed: at the centres of clusters found within
        each class of y ("classes") or among all rows ("kmeans"), or at random rows ("random").
        "auto" means "classes" if `fit` gets class labels, otherwise "kmeans".
    n_centers : int, default=None
        Number of bumps, at most the number of distinct rows. None means n_components clusters, or
        the larger of 1,024 and n_components random rows. Classes get clusters in proportion to
        their size, and at least one each.
    tau : float or "auto", default="auto"
        Standard deviation of the bumps, from 1e-100 to 1e100.
    share : float in (0, 1] or "auto", default="auto"
        Share of the dense proposal, which bounds the weights; 1 gives dense exponential features,
        without bumps.
        "auto" is 0.1; if queries are balanced against keys, it is 0.3 (0.2 with random rows), so
        that the map also works for other sequences.
    asymmetric : bool, default=False
        First balance queries against keys, as in `DenseExponentialRF`. Softmax kernel only.
    %(sigma_parameter)s
    %(kernel)s
    %(coupling)s
    %(center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s
    rho_, rotation_ : ndarray
        The dense proposal, as in `DenseExponentialRF`.
    centers_ : ndarray of shape (n_centers, n_features)
        Centres of the bumps, on the scale of the projections (twice the scaled, shifted rows).
    share_ : float
        The share of the dense proposal.

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid, or for ``centers="classes"`` without class labels.

    See Also
    --------
    DenseExponentialRF : The proposal without clusters; it can be fitted in batches.
    ClusterNystroem : Cluster centres as landmarks; neither positive nor unbiased.
    KernelRegressionClassifier : Kernel regression on these features.

    Notes
    -----
    `kernel_variance` is an upper bound for independent draws from the proposal, given the centres.
    It is doubled where the coupling draws opposite pairs, as "simplex" does in two columns. Actual
    draws differ: every bump is drawn as often as expected, up to rounding, and rows are coupled.
    That their variance is not above the bound is not proven, but holds wherever it can be measured,
    which is not where it is that of rare draws.

    Labels move projections to the regions of each class, which makes kernel regression more
    accurate; the estimate of the kernel stays unbiased, as it does for any centres. Labels are used
    if y is discrete and has no more classes than there are bumps. Integers count as labels: if they
    are regression targets, use ``centers="kmeans"`` or pass them as floats.

    References
    ----------
    Ours. The dense proposal: Likhosherstov et al., FAVOR# (2023).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import AdaptiveRF, OptimalPositiveRF
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> def error(features):
    ...     difference = features.approximate_kernel(X) - features.exact_kernel(X)
    ...     return np.sqrt(np.mean(difference**2))
    >>> adaptive = AdaptiveRF(64, sigma=3.0, random_state=0).fit(X)
    >>> bool(error(adaptive) < error(OptimalPositiveRF(64, sigma=3.0, random_state=0).fit(X)))
    True
    """

    _parameter_constraints = {
        "centers": [StrOptions({"auto", "classes", "kmeans", "random"})],
        "n_centers": [Interval(Integral, 1, None, closed="left"), None],
        "tau": [StrOptions({"auto"}), Interval(Real, *_TAUS, closed="both")],
        "share": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
    }
    _looks_at_rows = _reads_labels = True

    def __init__(
        self,
        n_components: int = 100,
        *,
        centers: Literal["auto", "classes", "kmeans", "random"] = "auto",
        n_centers: int | None = None,
        tau: float | Literal["auto"] = "auto",
        share: float | Literal["auto"] = "auto",
        asymmetric: bool = False,
        sigma: Sigma | None = None,
        kernel: Kernel = "gaussian",
        coupling: CouplingLike = "simplex",
        center: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.centers = centers
        self.n_centers = n_centers
        self.tau = tau
        self.share = share
        self.asymmetric = asymmetric
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.center = center
        self.random_state = random_state

    def _sizes(self):
        defaults = {"centers": "auto", "n_centers": None, "tau": "auto"}
        for name, default in defaults.items() if self.share == 1 else ():
            if getattr(self, name) != default:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no effect with share=1, which has no "
                    f"bumps: leave {name}={default!r}, or take a smaller share."
                )
        return super()._sizes()

    def _terms(self, fitted):
        """Return None: components differ in law, and their counts are drawn jointly."""

    def _labels(self, y, kept_rows, keys):
        most = self._count_centers(), "n_centers or n_components"
        return class_labels(self.centers, y, kept_rows, keys, *most)

    # ---------------------------------------------------------------- the mixture

    def _learn_from_rows(self, parameters, sample):
        queries = keys = self._points(parameters, sample, keys=False)
        if sample.has_keys:
            keys = self._points(parameters, sample, keys=True)
        is_point = not np.ptp(np.vstack([queries.rows, keys.rows]), axis=0).any()
        if self.share == 1 or is_point:
            centers, parameters.share_ = np.empty((0, parameters.n_features)), 1.0
        else:
            centers = self._find_centers(parameters, queries, keys, sample)
            parameters.share_ = self._share(sample)
        tau = 1.0 if self.tau == "auto" else float(self.tau)
        dense = parameters.rho_, parameters.rotation_
        parameters.mixture = Mixture(*dense, centers, tau, parameters.share_)
        parameters.centers_ = centers

    def _count_centers(self):
        return min(self.n_centers or self.n_components, _MOST)

    def _points(self, parameters, sample, *, keys):
        """Return at most 20,000 rows of one side, in projected coordinates."""
        X, weights, labels = sample.representatives(_CENTER_ROWS, keys=keys)
        points = self._affine(parameters, keys=keys).on_host(X)
        log_factors = np.zeros(len(points))
        if self.kernel == "softmax":
            # In shifted coordinates y = z + c: |y|^2 / 2 = |z|^2 / 2 + z.c up to a constant.
            shift = parameters.sigma * parameters.offset_
            log_factors = np.sum(points**2, axis=1) / 2 + points @ shift
        return _Points(points, weights, log_factors, labels)

    def _find_centers(self, parameters, queries, keys, sample):
        """Return the centres, found once for all sigmas where they are proportional to sigma."""
        if self.kernel == "gaussian" and keys is queries:
            sums = replace(queries, rows=2 * queries.rows)  # a row is its own nearest neighbour
        else:
            sums = _near_sums(queries, keys, sample.rng(SUMS))
        place = partial(self._place_centers, sums, sample.rng(CENTERS))
        # Under the softmax kernel, sigma may change more than the scale. Squares of rows times
        # other sigmas may leave the range of floats.
        is_scaled = self.kernel == "gaussian" and not sample.has_keys
        if not (is_scaled and 1 / _FARTHEST < parameters.sigma < _FARTHEST):
            return place()
        return parameters.sigma * sample.once("centers", lambda: place() / parameters.sigma)

    def _share(self, sample):
        """Return the share of the dense proposal."""
        if self.share != "auto":
            return float(self.share)
        if not self.asymmetric or not sample.has_keys:
            return _SHARE
        return _SHARE_BALANCED_RANDOM if self.centers == "random" else _SHARE_BALANCED

    def _place_centers(self, points, rng):
        """Return centres in spatial order, so that systematic counts spread over all of space.

        The order runs through all classes: within each of them alone, clusters of several classes
        in one place could all be drawn at once, or none of them.
        """
        weights, wanted = points.weights, self._count_centers()
        if self.centers == "random":
            wanted = wanted if self.n_centers else max(wanted, _RANDOM_CENTERS)
            wanted = min(wanted, len(weights))
            centers = np.repeat(points.rows, systematic_counts(weights, wanted, rng), axis=0)
        else:
            of_classes = centers_of_classes(points.rows, weights, points.labels, wanted, rng)
            centers = np.vstack(of_classes)
        return centers[spatial_order(centers)]

    # ---------------------------------------------------------------- drawing

    def _draw(self, parameters, seed):
        rng = rng_of(seed, OMEGA)
        noise = self._joint.draw(self.n_components, parameters.n_features, rng).dense()
        rows = parameters.mixture.draw(noise, rng)
        log_weights = -np.sum(rows**2, axis=1) / 2 - parameters.mixture.log_density(rows)
        return SimpleNamespace(
            projection=DenseProjection(rows), omega_=rows, log_weights=log_weights
        )

    def _keeps_draw(self, before, parameters):
        return False

    def _nonlinearity(self, parameters=None, draw=None):
        return WeightedExponential(np.zeros(1) if draw is None else draw.log_weights)

    def _log_variance(self, fitted, X, Y):
        parameters = fitted.parameters
        self._check_variance(parameters)
        dense, sides = super()._nonlinearity(parameters), self._dense_sides(parameters, X, Y)
        geometry = PairGeometry.of(*sides, dense.quadratic_form)
        log_dense = dense.log_second_moment(geometry)
        log_moment = parameters.mixture.log_second_moment(log_dense, *sides)
        logs = dense.log_scale(geometry) + log_expm1(np.maximum(log_moment, 0.0))
        logs = logs - np.log(parameters.n_projections) + self._log_outer_factor(parameters, X, Y)
        return logs + math.log1p(self._share_of_opposites(parameters))

    def _share_of_opposites(self, parameters):
        """Return the share of the rows that are drawn opposite to another one, as in two columns.

        Features may be even functions of the noise, of which opposite rows are copies.
        """
        blocks = self._joint.blocks(parameters.n_projections, parameters.n_features)
        n_opposite = sum(
            rows * count for rows, count in blocks.items() if self._joint.pair_cosine(rows) == -1
        )
        return n_opposite / parameters.n_projections

    def _variance_is_exact(self, parameters):
        return False


@dataclass(frozen=True, eq=False)
class _Points:
    """Rows of one side, each of which may represent many.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
        Scaled and shifted.
    weights : ndarray of shape (n,)
        How many rows each one represents, up to a common factor.
    log_factors : ndarray of shape (n,)
        Log of the kernel's factor for key j: |y|^2 / 2 for softmax, otherwise 0.
    labels : ndarray of shape (n,) or None
        Classes.
    """

    rows: np.ndarray
    weights: np.ndarray
    log_factors: np.ndarray
    labels: np.ndarray | None

    def drawn(self, most, rng):
        """Return at most `most` rows that represent all."""
        indices, weights = representatives(self.weights, most, rng)
        labels = None if self.labels is None else self.labels[indices]
        return _Points(self.rows[indices], weights, self.log_factors[indices], labels)

    @property
    def log_multipliers(self):
        """Log of the factor of each key's Gaussian kernel in a sum over keys."""
        return self.log_factors + np.log(self.weights)


def _near_sums(queries, keys, rng):
    """Return points x + y to place features near, with y drawn from x's attention."""
    queries = queries.drawn(_SUM_QUERIES, rng)

    def drawn(rows):
        logs = keys.log_multipliers - cdist(rows, keys.rows, "sqeuclidean") / 2
        return (logs + rng.gumbel(size=logs.shape)).argmax(axis=1)

    indices = [drawn(queries.rows[block]) for block in gen_batches(len(queries.rows), _SUM_ROWS)]
    return replace(queries, rows=queries.rows + keys.rows[np.concatenate(indices)])
