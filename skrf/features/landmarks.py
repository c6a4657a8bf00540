"""Nystroem features: the kernel projected on the span of a few cluster centres."""

from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Real
from types import SimpleNamespace
from typing import Literal

import numpy as np
from scipy.linalg.lapack import dpocon, dpotrf
from sklearn.utils.validation import _get_feature_names, _num_samples

from .. import _kernels
from .._arrays import (
    Kept,
    is_array_api,
    largest_entry,
    library,
    like,
    namespace,
    squared_distances,
    to_host,
)
from .._sums import Rows
from .._threads import rows_of_call
from .._typing import Array, RandomState, Sigma
from .._validation import Interval, StrOptions, draft_of, naming, read_only, validate_rows
from ..projections import DenseProjection
from ._affine import Affine, about_a_row
from ._clusters import by_first, centers_of_classes, class_labels, unique_rows
from ._docs import document
from ._flaws import warn_of_far_rows
from ._map import FeatureMap, signed_rows
from ._sigma import check_largest
from .base import BaseRandomFeatures
from .spectra import SPECTRA
from .streams import CENTERS

_CENTER_ROWS, _CENTER_ENTRIES = 20_000, 2**26  # clusters are found in dense rows
# Relative to the largest eigenvalue. Rounding is about 1e-15 of it, so it hardly ever decides which
# eigenvalues are kept.
_RANK = 1e-11
_KINDS = {"auto", "classes", "kmeans", "random"}
_RESIDUAL = 1e-14  # squares of waves that are rounding


class Centers:
    """Centres about their mean, in units of their largest coordinate: the same for every sigma.

    Parameters
    ----------
    points : ndarray of shape (M, d)
        The centres.
    """

    def __init__(self, points):
        self.mean = points.mean(axis=0)
        self.about_mean = points - self.mean
        self.unit = largest_entry(self.about_mean) or 1.0
        self.projection = DenseProjection(self.about_mean / self.unit)
        self._kept = Kept(), Kept()

    def distances(self):
        """Return the city-block distances of all pairs."""
        points = self.projection.matrix
        with rows_of_call(0):
            return self._kept[0].like(points, lambda: _kernels.city_block(points, points))

    def squares(self):
        """Return the squared distances of all pairs."""
        points = self.projection.matrix
        return self._kept[1].like(points, lambda: squared_distances(points, points))


@dataclass(frozen=True, eq=False)
class CenterLogs:
    """Logarithms of a kernel of rows and centres.

    Parameters
    ----------
    sigma : float
        Multiplier of rows and centres.
    centers : Centers
        The centres.
    """

    sigma: float
    centers: Centers
    projection = property(lambda self: self.centers.projection)

    @cached_property
    def affine(self):
        """Coordinates about the mean of the centres, in which distances are measured."""
        return Affine(self.sigma, self.centers.mean)

    @cached_property
    def _scale(self):
        return self.sigma * self.centers.unit

    def _products(self, rows):
        """Return the products of rows with the centres, in the coordinates of the rows."""
        products = rows.dot(self.projection)
        return library(products).multiply(products, self._scale)

    @cached_property
    def points(self):
        """The centres in the coordinates of `affine`."""
        return self.projection.matrix * self._scale


class GaussianLogs(CenterLogs):
    """Logarithms of the Gaussian kernel of rows and centres."""

    def __call__(self, X):
        """Return logarithms, (n, M), and terms, (n,), that are added to those of a row."""
        rows = self.affine(X)
        logs = self._products(rows)
        half = like(self.projection.squared_norms * (self._scale * self._scale / 2), logs)
        return library(logs).subtract(logs, half), rows.squared_norms() / -2

    def of_centers(self):
        """Return the logarithms of all pairs of centres, (M, M)."""
        return self.centers.squares() * (self._scale**2 / -2)

    def of_pairs(self, X, Y):
        """Return the logarithms of all pairs of rows in the coordinates of `affine`, (n, m)."""
        return squared_distances(X, Y) / -2

    def frequencies(self, n, rng):
        """Return n frequencies of the kernel in these coordinates, (n, d)."""
        return rng.standard_normal((n, self.points.shape[1]))


def log_laplacian(distances, exponent):
    """Return the logarithms -distance^exponent of the Laplacian kernel at scaled L1 distances."""
    if exponent == 1:
        return -distances
    if not is_array_api(distances):
        return -(distances**exponent)
    # The slope is infinite at 0, where a gradient would be NaN.
    xp, is_apart = namespace(distances), distances > 0
    powers = xp.where(is_apart, distances, xp.ones_like(distances)) ** exponent
    return xp.where(is_apart, -powers, xp.zeros_like(distances))


@dataclass(frozen=True, eq=False)
class LaplacianLogs(CenterLogs):
    """Logarithms of the Laplacian kernel of rows and centres.

    Parameters
    ----------
    sigma : float
        Multiplier of rows and centres.
    centers : Centers
        The centres.
    exponent : float, default=1.0
        Power of the distance, at most 1.
    """

    exponent: float = 1.0

    @cached_property
    def points(self):
        """The centres in the coordinates of `affine`, computed like those of rows.

        Equal coordinates must cancel: a small power of their rounding would not be small.
        """
        return self.centers.about_mean * self.sigma

    def __call__(self, X):
        """Return logarithms, (n, M), and terms, (n,), that are added to those of a row."""
        rows = self.affine(X)
        rows = rows.values if is_array_api(X) else rows.on_host()
        logs = log_laplacian(_kernels.city_block(rows, self.points), self.exponent)
        return logs, namespace(logs).zeros_like(logs[:, 0])

    def of_centers(self):
        """Return the logarithms of all pairs of centres, (M, M)."""
        return log_laplacian(self._scale * self.centers.distances(), self.exponent)

    def of_pairs(self, X, Y):
        """Return the logarithms of all pairs of rows in the coordinates of `affine`, (n, m)."""
        return log_laplacian(_kernels.city_block(X, Y), self.exponent)

    def frequencies(self, n, rng):
        """Return n frequencies of the kernel in these coordinates, (n, d)."""
        if self.exponent != 1:
            raise ValueError(
                "sample_y needs random frequencies, which kernel='laplacian' of ClusterNystroem "
                f"has only with exponent=1, got exponent={self.exponent!r}. Covariances, from "
                "predict(X, return_cov=True), work with any exponent."
            )
        return SPECTRA["laplacian"].frequencies(rng.standard_normal((n, self.points.shape[1])), rng)


class SoftmaxLogs(CenterLogs):
    """Logarithms of the softmax kernel exp(sigma^2 x.c) of rows and centres."""

    @cached_property
    def affine(self):
        """Coordinates about the origin."""
        return Affine(self.sigma)

    @cached_property
    def _mean(self):
        return DenseProjection(self.sigma * self.centers.mean[None, :])

    def __call__(self, X):
        """Return logarithms, (n, M), and terms, (n,), that are added to those of a row."""
        rows = self.affine(X)
        logs = self._products(rows)
        logs = library(logs).add(logs, rows.dot(self._mean))
        return logs, namespace(logs).zeros_like(logs[:, 0])


@dataclass(frozen=True, eq=False)
class SimilarityMap(FeatureMap):
    """Features k(C, x) of landmarks C, scaled by the largest of each row.

    Parameters
    ----------
    logs : GaussianLogs or LaplacianLogs
        Returns their logarithms.
    """

    logs: CenterLogs
    is_positive = False
    is_double = True
    projection = property(lambda self: self.logs.projection)
    affine = property(lambda self: self.logs.affine)

    def __call__(self, X):
        """Return the `Rows` of X."""
        (logs, of_rows), xp = self.logs(X), namespace(X)
        top = xp.max(logs, axis=1)
        if is_array_api(X):
            return signed_rows(xp.exp(logs - top[:, None]), top + of_rows)
        logs -= top[:, None]
        _kernels.exp(logs, logs)
        return signed_rows(logs, top + of_rows)


@dataclass(frozen=True, eq=False)
class LandmarkMap(FeatureMap):
    """Features K(C, C)^(-1/2) k(C, x) of landmarks C, scaled by the largest k of each row.

    They need float64, because the root magnifies rounding. It is computed when it is first needed:
    whoever needs inner products alone does without.

    Parameters
    ----------
    inner : SimilarityMap
        Returns k(C, x).
    """

    inner: SimilarityMap
    is_positive = False
    is_projected = is_double = True
    n_features = property(lambda self: self.inner.n_features)
    n_columns = property(lambda self: self.inner.n_columns)
    matrix = property(lambda self: self._root[0])
    magnification = property(lambda self: self._root[1])
    affine = property(lambda self: self.inner.logs.affine)

    def __call__(self, X):
        """Return the `Rows` of X."""
        values, scale = self.inner(X)
        return Rows(values @ like(self.matrix, values), scale)

    def projected(self, X):
        """Return this map, and the rows."""
        return self, X

    @cached_property
    def gram(self):
        """K(C, C)."""
        return np.exp(self.inner.logs.of_centers())

    @cached_property
    def _root(self):
        """K(C, C)^(-1/2), and the largest eigenvalue of its square."""
        values, axes = np.linalg.eigh(self.gram)
        is_some = values > _RANK * values[-1]
        root = (axes[:, is_some] / np.sqrt(values[is_some])) @ axes[:, is_some].T
        return read_only(root), 1 / values[is_some].min()

    @cached_property
    def cholesky(self):
        """The lower Cholesky factor of K(C, C), or None if it has none, and its `magnification`.

        That is a bound which seldom exceeds the largest eigenvalue of the inverse by a factor of
        100.
        """
        lower, info = dpotrf(self.gram, lower=1)
        if info:
            return None, np.inf
        size = np.abs(self.gram).sum(axis=0).max()
        condition, _ = dpocon(lower, size, uplo="L")
        return lower, 1 / (condition * size) if condition > 0 else np.inf

    def residual(self, X, features):
        """Return the kernel of all pairs of rows on the host less products of features, (n, n)."""
        rows = self.coordinates(X)
        remainder = self.kernel(rows, rows) - features @ features.T
        np.clip(np.einsum("ii->i", remainder), 0.0, 1.0, out=np.einsum("ii->i", remainder))
        return remainder

    def residual_waves(self, n, rng):
        """Return a function that returns random features of the residual of the kernel, (n, 2n).

        They are sines and cosines less what the landmarks predict of them, with every row scaled to
        the residual's own variance: the estimate from few frequencies may be far from it.
        """
        logs = self.inner.logs
        omega = logs.frequencies(n, rng)

        def waves(rows):
            angles = rows @ omega.T
            return np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(n)

        of_landmarks = self.matrix.T @ waves(logs.points)

        def residual(X, features):
            remainder = waves(self.coordinates(X)) - features @ of_landmarks
            wanted, squares = (
                np.clip(1 - (features**2).sum(axis=1), 0.0, 1.0),
                (remainder**2).sum(axis=1),
            )
            is_some = squares > _RESIDUAL
            sizes = np.divide(wanted, squares, out=np.zeros_like(wanted), where=is_some)
            return remainder * np.sqrt(sizes)[:, None]

        return residual

    def kernel(self, X, Y):
        """Return the kernel of all pairs of rows in its coordinates, (n, m)."""
        return np.exp(self.inner.logs.of_pairs(X, Y))

    def features(self, X):
        """Return the features of rows in its coordinates, (n, M)."""
        return self.kernel(X, self.inner.logs.points) @ self.matrix

    def coordinates(self, X):
        """Return rows on the host in the coordinates of the kernel, (n, d)."""
        return self.affine.on_host(X)

    def __getstate__(self):
        return {"inner": self.inner}  # the rest follows from it


class CentersOfClusters(BaseRandomFeatures):
    """Base of the feature maps that look at rows from a few centres."""

    _parameter_constraints = {
        "centers": [StrOptions(_KINDS)],
    }
    _is_unbiased = False
    _looks_at_rows = _reads_labels = _needs_data = True
    _centers_have_labels = _centers_are_keys = False
    kernel = "gaussian"

    def __init__(
        self,
        n_components: int = 100,
        *,
        centers: Literal["auto", "classes", "kmeans", "random"] = "auto",
        sigma: Sigma | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.centers = centers
        self.sigma = sigma
        self.random_state = random_state

    def _labels(self, y, kept_rows, keys):
        return class_labels(self.centers, y, kept_rows, keys, self.n_components, "n_components")

    def _n_columns(self, n_rows):
        return min(int(self.n_components), n_rows)

    def _n_bytes(self, parameters, sample):
        n_rows = sample.queries.shape[0]
        if sample.has_keys:
            n_rows += sample.keys.shape[0]
        n = self._n_columns(n_rows)
        return 8 * n * (n + parameters.n_features)

    def _learn(self, parameters, statistics):
        """Learn nothing: there are no parameters."""

    def _centers(self, parameters, sample):
        """Return the centres, the same for every sigma, and the codes of their labels or None."""
        return sample.once("centers", partial(self._find_centers, parameters.n_features, sample))

    def _find_centers(self, n_features, sample):
        most = max(min(_CENTER_ROWS, _CENTER_ENTRIES // n_features), self.n_components)
        of_keys = [True] if self._centers_are_keys else [False, True]
        sides = [
            sample.representatives(most, keys=keys)
            for keys in (of_keys if sample.has_keys else [False])
        ]
        # Dense and float64 before clustering, so that all kinds of rows give the same clusters.
        rows = [Affine(1.0).on_host(X) for X, *_ in sides]
        rows = rows[0] if len(rows) == 1 else np.vstack(rows)  # no copy of wide rows
        weights, labels = np.concatenate([side[1] for side in sides]), sides[-1][2]
        return self._place_centers(rows, weights, labels, sample.rng(CENTERS))

    def _place_centers(self, rows, weights, labels, rng):
        names = labels if self._centers_have_labels else None
        different, totals, names = unique_rows(rows, weights, names)
        wanted = self.n_components
        if len(different) <= wanted:
            return different, names
        if self.centers == "random":
            indices = rng.choice(len(totals), wanted, replace=False, p=totals / totals.sum())
            return different[indices], None
        of_classes = centers_of_classes(rows, weights, labels, wanted, rng)
        if names is not None:
            _, first = np.unique(by_first(labels), return_index=True)
            names = np.repeat(labels[first], [len(centers) for centers in of_classes])
        return np.vstack(of_classes), names

    def _draw(self, parameters, seed):
        return SimpleNamespace()  # only the start of k-means is random

    def _check_variance(self, parameters):
        raise NotImplementedError(
            f"{type(self).__name__} has no variance: given its centres, nothing is random. Its "
            "error is bias, which theory.compare measures."
        )

    def _log_variance(self, fitted, X, Y):
        self._check_variance(fitted.parameters)


@document
class ClusterNystroem(CentersOfClusters):
    r"""Nystroem features on cluster centres, found within each class if labels are given.

    Choose it for kernel regression with few components if sums need not be positive: on rows like
    those of `fit`, it is on average more accurate than any random map of this library. It is
    neither positive nor unbiased: the estimate is the kernel projected on the span of the
    landmarks, which falls to 0 far from all of them. Denominators can then be 0 or negative; for
    such rows, kernel regression returns the mean or the class shares of the training set.

    %(sigma)s

    Parameters
    ----------
    n_components : int, default=100
        Number of landmarks, and so of components; at most the number of distinct rows (which are
        then the landmarks), and a few less if a class has fewer distinct rows than its share. If
        the landmarks are given, it is their number, and must be left alone.
    centers : {"auto", "classes", "kmeans", "random"} or array-like, default="auto"
        What the landmarks are: centres of clusters found within each class of y ("classes") or
        among all rows ("kmeans"), random rows ("random"), or the rows of an array or sparse matrix
        of shape (n_landmarks, n_features), as they are, with columns in the order of X. "auto"
        means "classes" if `fit` gets class labels, otherwise "kmeans". Classes get clusters in
        proportion to their size, and at least one each.
    kernel : {"gaussian", "laplacian"}, default="gaussian"
        exp(-sigma^2 \|x - y\|^2 / 2), or exp(-(sigma \|x - y\|_1)^exponent), which suits tables:
        rows that differ much in only a few columns. Its features cost more if there are many
        columns.
    exponent : float, default=1.0
        Power of the distance in the Laplacian kernel, above 0 and at most 1, where it is
        `laplacian_kernel` with gamma=sigma. With a lower one, the kernel falls faster near a row
        and more slowly far from it. The Gaussian kernel has none.
    sigma : float, "scale", "median" or None, default=None
        Multiplier of the inputs. "scale" is sqrt(2/(d Var X)), equivalent to gamma="scale" in SVC;
        "median" is one over the median distance between at most 1,000 rows. Both use queries only.
        With ``kernel="laplacian"``, both follow L1 distances, and "scale" is 2 over an estimate of
        their mean. None means "scale".
    %(random_state)s

    Attributes
    ----------
    centers_ : ndarray of shape (n_components_, n_features)
        The landmarks, in units of X.
    n_components_ : int
        Number of components.
    sigma_, gamma_ : float
        The kernel's scale: the multiplier of the inputs, and the gamma of `rbf_kernel`, which only
        the Gaussian kernel has.
    statistics_ : PairStatistics
        Statistics of the distinct rows seen by `fit`.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid, or for ``centers="classes"`` without class labels.

    See Also
    --------
    AdaptiveRF : Positive and unbiased features that use clusters.
    ApproxKernelRidge : Ridge regression on these features.
    sklearn.kernel_approximation.Nystroem : Landmarks that are rows drawn at random.

    Notes
    -----
    The landmarks do not depend on sigma. `fit` costs a k-means clustering plus O(n_components^3),
    `transform` O(n_components (n_features + n_components)) per row. Both work in float64 even for
    float32 rows, whose features are returned as float32. Labels are used as in `AdaptiveRF`: they
    must be discrete, with at most ``n_components`` classes, and floats only if
    ``centers="classes"``.
    `redraw` has no effect.

    References
    ----------
    Williams and Seeger (2001); centres of clusters: Zhang, Tsang and Kwok (2008).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skrf import ClusterNystroem, KernelRegressionClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelRegressionClassifier(ClusterNystroem(20, random_state=0)).fit(X, y)
    >>> model.feature_map_.centers_.shape, bool(model.score(X, y) > 0.9)
    ((20, 4), True)

    Landmarks of your own, here every tenth row:

    >>> ClusterNystroem(centers=X[::10]).fit(X).transform(X).shape
    (150, 15)
    """

    _parameter_constraints = {
        "centers": [StrOptions(_KINDS), "array-like", "sparse matrix"],
        "kernel": [StrOptions({"gaussian", "laplacian"})],
        "exponent": [Interval(Real, 0, 1, closed="right")],
    }
    exponent = 1.0  # of maps that were saved without it

    def __init__(
        self,
        n_components: int = 100,
        *,
        centers: Literal["auto", "classes", "kmeans", "random"] | Array = "auto",
        kernel: Literal["gaussian", "laplacian"] = "gaussian",
        exponent: float = 1.0,
        sigma: Sigma | None = None,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(n_components, centers=centers, sigma=sigma, random_state=random_state)
        self.kernel = kernel
        self.exponent = exponent

    @property
    def _n_landmarks(self):
        """Number of landmarks that are given, or None."""
        if isinstance(self.centers, str):
            return None
        with naming("centers"):
            return _num_samples(self.centers)

    def _n_columns(self, n_rows):
        return self._n_landmarks or super()._n_columns(n_rows)

    def _labels(self, y, kept_rows, keys):
        return super()._labels(y, kept_rows, keys) if self._n_landmarks is None else None

    def _gather(self, X, sample_weight, keys, *, before=None, y=None):
        gathered = super()._gather(X, sample_weight, keys, before=before, y=y)
        if self._n_landmarks is not None:
            draft, *_, sample = gathered
            rows = self._read_landmarks(draft)
            sample.once("centers", lambda: (np.array(Affine(1.0).on_host(rows)), None))
        return gathered

    def _read_landmarks(self, draft):
        """Return the given landmarks as rows; names of columns must agree if X has some as well."""
        names = _get_feature_names(self.centers)
        if names is None or not hasattr(draft, "feature_names_in_"):
            # scikit-learn would warn, although landmarks often are arrays where X is a table.
            n_features, draft = draft.n_features_in_, draft_of(draft)
            draft.n_features_in_ = n_features
            if names is not None:
                draft.feature_names_in_ = names
        return to_host(validate_rows(draft, self.centers, reset=False, name="centers"))

    def _sizes(self):
        if self._n_landmarks is not None and self.n_components not in (100, self._n_landmarks):
            raise ValueError(
                f"n_components={self.n_components!r} has no effect with centers of "
                f"{self._n_landmarks} rows, which are the landmarks: leave it out."
            )
        if self.kernel == "gaussian" and self.exponent != 1:
            raise ValueError(
                f"exponent={self.exponent!r} needs kernel='laplacian', got kernel='gaussian'. "
                "The Gaussian kernel has none."
            )
        return super()._sizes()

    def _learn_from_rows(self, parameters, sample):
        parameters.centers_, _ = self._centers(parameters, sample)
        if self._n_landmarks is not None:
            check_largest("centers", parameters.sigma, largest_entry(parameters.centers_))
        parameters.centers = sample.once("centers in units", partial(Centers, parameters.centers_))
        parameters.n_projections = len(parameters.centers_)

    def _assemble(self, parameters, draw):
        power = (float(self.exponent),) if self.kernel == "laplacian" else ()
        logs = LaplacianLogs if self.kernel == "laplacian" else GaussianLogs
        feature_map = LandmarkMap(SimilarityMap(logs(parameters.sigma, parameters.centers, *power)))
        return feature_map, feature_map

    def _warn_of_vanished(self, features, name, has_overflowed):
        warn_of_far_rows(features, name)

    def _log_exact_kernel(self, X, Y, sigma):
        if self.kernel == "gaussian":
            return super()._log_exact_kernel(X, Y, sigma)
        distances = _kernels.city_block(*about_a_row(sigma, X, Y))
        return log_laplacian(distances, self.exponent)
