"""Nystroem features: the kernel projected on what a few centres of clusters span."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal, Self

import numpy as np
from sklearn.utils.validation import check_consistent_length

from .._arrays import cast, like, namespace, squared_distances
from .._typing import Array, RandomState, Sigma
from .._validation import StrOptions
from ..projections import DenseProjection
from ._clusters import (
    centers_of_classes,
    class_labels,
    on_grid,
    representatives,
    unique_rows,
)
from ._coordinates import Coordinates
from ._docs import document
from ._map import FeatureMap, signed_rows
from .base import BaseRandomFeatures

_CENTER_ROWS, _CENTER_ENTRIES = 20_000, 2**26  # clusters are found in dense rows
_RANK = 1e-13  # of the largest eigenvalue; what is below is rounding


@dataclass(frozen=True, eq=False)
class LandmarkMap(FeatureMap):
    """Features K(C, C)^(-1/2) k(C, x) of landmarks C, the largest k of a row on its scale.

    Computed in float64 for any rows: the root magnifies rounding.

    Parameters
    ----------
    coordinates : Coordinates
        What makes distances of rows.
    projection : DenseProjection
        The landmarks in these coordinates.
    root : ndarray of shape (m, m)
        K(C, C)^(-1/2).
    """

    coordinates: Coordinates
    projection: DenseProjection
    root: np.ndarray
    is_positive = False

    def __call__(self, X):
        """Return the `Rows` of X."""
        xp = namespace(X)
        rows = self.coordinates(cast(X, xp.float64))
        logs = rows.dot(self.projection)
        logs = logs - like(self.projection.squared_norms / 2, logs)
        top = xp.max(logs, axis=1)
        values = xp.exp(logs - top[:, None]) @ like(self.root, logs)
        scale = top - rows.squared_norms() / 2
        return signed_rows(cast(values, X.dtype), cast(scale, X.dtype))

    def exponent_bound(self, X):
        """Return an upper bound of the squared norms of rows."""
        return self.coordinates.exponent_bound(X)


@document
class ClusterNystroem(BaseRandomFeatures):
    """Nystroem features on centres of clusters, found within each class where labels are given.

    %(sigma)s

    Choose it for kernel regression with few columns where no sum has to be positive: in the mean
    it is more accurate than any random map of this library, on rows like those of `fit`. It is
    neither positive nor unbiased: its estimate is the kernel of what the landmarks see of two
    rows, and falls to 0 where they see nothing. Denominators may then come out as 0 or below;
    kernel regression answers such rows with the mean or the class shares of the training set.

    Parameters
    ----------
    n_components : int, default=100
        Number of landmarks and of columns, never more than there are different rows (then these
        are the landmarks), and a few less where a class has fewer different rows than its share.
    centers : {"auto", "classes", "kmeans", "random"}, default="auto"
        What the landmarks are: centres of clusters found within each class of y, centres of
        clusters, or random rows. "auto" takes the first where `fit` gets class labels, else the
        second. Classes get clusters by their size, and at least one each.
    sigma : float, "scale" or "median", default="scale"
        Multiplier of the inputs. "scale" is sqrt(2/(d Var X)), as SVC's gamma="scale"; "median" is
        one over the median distance between at most 1,000 rows. Both look at queries only.
    %(random_state)s

    Attributes
    ----------
    centers_ : ndarray of shape (n_components_, n_features)
        The landmarks, in units of X.
    n_components_ : int
        Number of output columns.
    sigma_, gamma_, length_scale_ : float
        The kernel's scale in three notations.
    statistics_ : PairStatistics
        Statistics of the different rows seen by `fit`.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, where X had any.

    Raises
    ------
    ValueError
        By `fit`, where a parameter is not allowed, and for ``centers="classes"`` without class
        labels.

    See Also
    --------
    AdaptiveRF : Positive and unbiased features that know of clusters.
    ApproxKernelRidge : Ridge regression on these features.
    sklearn.kernel_approximation.Nystroem : Landmarks that are rows drawn at random.

    Notes
    -----
    The landmarks do not depend on sigma. `fit` costs a k-means and O(n_components^3), `transform`
    O(n_components (n_features + n_components)) a row, in float64 for float32 rows too: they come
    out as float32. Labels count as in `AdaptiveRF`: discrete, at most ``n_components`` different
    ones, and no floats unless ``centers="classes"``. `redraw` changes nothing.

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
    """

    _parameter_constraints = {
        "centers": [StrOptions({"auto", "classes", "kmeans", "random"})],
    }
    _is_unbiased = False
    _looks_at_rows = needs_data = True
    kernel = "gaussian"

    def __init__(
        self,
        n_components: int = 100,
        *,
        centers: Literal["auto", "classes", "kmeans", "random"] = "auto",
        sigma: Sigma = "scale",
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.centers = centers
        self.sigma = sigma
        self.random_state = random_state

    def fit(
        self,
        X: Array,
        y: Array | None = None,
        sample_weight: Array | None = None,
        *,
        keys: Array | None = None,
    ) -> Self:
        """Find the landmarks. Weights count as repetitions.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Queries.
        y : array-like of shape (n_samples,), default=None
            Class labels of X; ignored where they are not discrete or where keys are given.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the queries, at least 0; a row of weight 0 counts as removed.
        keys : {array-like, sparse matrix} of shape (n_keys, n_features), default=None
            Keys, on the same scale as X, that are clustered together with the queries.

        Returns
        -------
        self : object
            The fitted map.
        """
        if y is not None and keys is None:
            check_consistent_length(X, y)
        return self._fit(X, sample_weight, keys, before=None, y=y)

    def _labels(self, y, kept, keys):
        return class_labels(self.centers, y, kept, keys, self.n_components, "n_components")

    def _learn(self, learned, statistics):
        """No parameters."""

    def _learn_from_rows(self, learned, sample):
        rng = sample.rng_of_rows()
        sides = [(sample.queries, sample.weights)]
        if sample.keys is not sample.queries:
            sides.append((sample.keys, sample.key_weights))
        # Dense, and in float64 before clusters are found: the same ones for all kinds of rows.
        rows, weights = [], []
        most = min(_CENTER_ROWS, _CENTER_ENTRIES // learned.n_features)
        most = max(most, self.n_components)
        for X, own_weights in sides:
            chosen, own_weights = representatives(own_weights, most, rng)
            rows.append(Coordinates(1.0).on_host(X[chosen]))
            weights.append(own_weights)
        labels = None if sample.labels is None else sample.labels[chosen]
        own = np.vstack(rows), np.concatenate(weights), labels, rng
        learned.centers_ = sample.once("centers", rng, lambda: self._place_centers(*own))
        learned.n_projections = len(learned.centers_)

    def _place_centers(self, rows, weights, labels, rng):
        different, totals, _ = unique_rows(rows, weights)
        wanted = self.n_components
        if len(different) <= wanted:
            return different
        if self.centers == "random":
            chosen = rng.choice(len(totals), wanted, replace=False, p=totals / totals.sum())
            return different[chosen]
        grid, origin, step = on_grid(rows)
        return origin + step * np.vstack(centers_of_classes(grid, weights, labels, wanted, rng))

    def _draw(self, learned, seed):
        return SimpleNamespace()  # nothing is random but where k-means starts

    def _assemble(self, learned, draw):
        coordinates = Coordinates(learned.sigma, learned.centers_.mean(axis=0))
        distances = squared_distances(learned.centers_, learned.centers_)
        with np.errstate(over="ignore"):  # of exponents that are -inf then, as they should
            kernel = np.exp(-(learned.sigma**2) / 2 * distances)
        values, axes = np.linalg.eigh(kernel)
        kept = values > _RANK * values[-1]
        root = (axes[:, kept] / np.sqrt(values[kept])) @ axes[:, kept].T
        projection = DenseProjection(coordinates.on_host(learned.centers_))
        feature_map = LandmarkMap(coordinates, projection, root)
        return feature_map, feature_map

    def _log_variance(self, fitted, X, Y):
        raise NotImplementedError(
            "ClusterNystroem has no variance: given its landmarks nothing is random, and what its "
            "estimate lacks is bias. Compare approximate_kernel with exact_kernel on some rows."
        )
