"""Features of keys that are moved to the nearest of a few centres."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from .._arrays import like, to_host
from .._sums import Rows
from .._typing import Kernel, RandomState, Sigma
from .._validation import StrOptions
from ._affine import Affine
from ._clusters import nearest
from ._docs import document
from ._map import FeatureMap
from .adaptive import AdaptiveRF
from .landmarks import CenterLogs, Centers, CentersOfClusters, GaussianLogs, SoftmaxLogs

_LOGS = {"gaussian": GaussianLogs, "softmax": SoftmaxLogs}
_BLOCK = 2**22  # numbers that distances to centres, and dense rows, hold at once


@dataclass(frozen=True, eq=False)
class KernelMap(FeatureMap):
    """Features k(C, x) of centres C: the queries' side of `ClusterQuantizer`.

    Parameters
    ----------
    logs : GaussianLogs or SoftmaxLogs
        Returns their logarithms.
    """

    logs: CenterLogs
    is_positive = is_double = True
    projection = property(lambda self: self.logs.projection)
    affine = property(lambda self: self.logs.affine)

    def __call__(self, X):
        """Return the logarithms of the kernel."""
        logs, of_rows = self.logs(X)
        return Rows(logs + of_rows[:, None])


@dataclass(frozen=True, eq=False)
class IndicatorMap(FeatureMap):
    """Features that are 1 at the nearest centre and 0 elsewhere: the keys' side.

    Parameters
    ----------
    centers : ndarray of shape (M, d)
        The centres.
    labels : ndarray of shape (M,) or None
        Labels of the rows around the centres, if they were found within classes.
    are_means : bool
        Whether a centre is the mean of the rows around it, and moves if one of them leaves.
    """

    centers: np.ndarray
    labels: np.ndarray | None
    are_means: bool
    is_positive = is_indicator = True
    n_features = property(lambda self: self.centers.shape[1])
    n_columns = property(lambda self: self.centers.shape[0])

    def columns(self, X, labels=None):
        """Return the number of the nearest centre of every row, of its class if it has one.

        Parameters
        ----------
        X : ndarray or sparse matrix of shape (n, d)
            Rows on the host.
        labels : ndarray of shape (n,), default=None
            Their labels. Rows whose label has no centre, or of no class, take the nearest of all.
        """
        columns, is_left = np.empty(X.shape[0], int), np.ones(X.shape[0], bool)
        if labels is not None and self.labels is not None:
            for label in np.unique(self.labels):
                rows, centers = (
                    np.flatnonzero(labels == label),
                    np.flatnonzero(self.labels == label),
                )
                columns[rows] = centers[self._nearest(X, rows, centers)]
                is_left[rows] = False
        rows = np.flatnonzero(is_left)
        columns[rows] = self._nearest(X, rows, slice(None))
        return columns

    def _nearest(self, X, rows, centers):
        """Return the numbers, among some centres, of those that are nearest to some rows."""
        centers, numbers = self.centers[centers], np.empty(len(rows), int)
        size = max(_BLOCK // max(centers.shape), 1)
        for start in range(0, len(rows), size):
            block = slice(start, start + size)
            numbers[block] = nearest(Affine(1.0).on_host(X[rows[block]]), centers)
        return numbers

    def __call__(self, X):
        """Return the logarithms: 0 and -inf."""
        logs = np.full((X.shape[0], self.n_columns), -np.inf)
        logs[np.arange(X.shape[0]), self.columns(to_host(X))] = 0.0
        return Rows(like(logs, X))


@document
class ClusterQuantizer(CentersOfClusters):
    r"""Features of a kernel whose keys are moved to the nearest of `n_components` centres.

    Choose it for kernel regression, and for bidirectional attention of trained models.

    The features of a query are its kernel values with all centres; those of a key are 1 at the
    nearest centre and 0 elsewhere, so sums over keys are counts. In kernel regression, where this
    map is the default, the rows are replaced by the centres of their clusters, which gives a
    Nadaraya-Watson estimate from prototypes. Only the start of k-means is random, no feature is
    negative, and the error is bias: distances within a cluster are lost.

    With labels, centres are found within each class, and kernel classification moves each training
    row to a centre of its own class; `transform_keys`, which gets no labels, uses the nearest of
    all centres.

    %(sigma)s

    Parameters
    ----------
    n_components : int, default=100
        Number of centres, and so of components; at most the number of distinct rows (which are then
        the centres, once for each of their labels), and a few less if a class has fewer distinct
        rows than its share.
    centers : {"auto", "classes", "kmeans", "random"}, default="auto"
        What the centres are: those of clusters found within each class of y ("classes") or among
        all rows ("kmeans"), or random rows ("random"). "auto" means "classes" if `fit` gets class
        labels, otherwise "kmeans". Classes get clusters in proportion to their size, and at least
        one each.
    kernel : {"gaussian", "softmax"}, default="gaussian"
        exp(-sigma^2 \|x - y\|^2 / 2) or exp(sigma^2 x.y). Attention sets "softmax".
    sigma : float, "scale", "median" or None, default=None
        Multiplier of the inputs. "scale" is sqrt(2/(d Var X)), equivalent to gamma="scale" in SVC;
        "median" is one over the median distance between at most 1,000 rows. Both use queries only.
        None means "scale", or 1 for the softmax kernel.
    %(random_state)s

    Attributes
    ----------
    centers_ : ndarray of shape (n_components_, n_features)
        The centres, in units of X.
    center_labels_ : ndarray of shape (n_components_,) or None
        Labels of the centres, or class indices if kernel classification got float labels; None if
        there are no classes.
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

    See Also
    --------
    ClusterNystroem : The kernel projected on the span of the centres, with the same features for
        queries and keys.
    AdaptiveRF : Random features near the data, whose estimate is unbiased.

    Notes
    -----
    The estimate of K(x, y) is K(x, c(y)) with the centre c(y) of y. Centres are found as in
    `ClusterNystroem`; they do not depend on sigma.

    References
    ----------
    Nadaraya-Watson estimates from prototypes: Hastie, Tibshirani and Friedman, The elements of
    statistical learning (2009), sections 6.1 and 13.2.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skrf import ClusterQuantizer, KernelRegressionClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelRegressionClassifier(ClusterQuantizer(20, random_state=0)).fit(X, y)
    >>> model.feature_map_.centers_.shape, bool(model.score(X, y) > 0.9)
    ((20, 4), True)
    """

    _parameter_constraints = {"kernel": [StrOptions(set(_LOGS))]}
    _is_positive = True
    _is_symmetric = False
    _centers_have_labels = _centers_are_keys = True

    def __init__(
        self,
        n_components: int = 100,
        *,
        centers: Literal["auto", "classes", "kmeans", "random"] = "auto",
        kernel: Kernel = "gaussian",
        sigma: Sigma | None = None,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(n_components, centers=centers, sigma=sigma, random_state=random_state)
        self.kernel = kernel

    def _learn_from_rows(self, parameters, sample):
        centers, codes = self._centers(parameters, sample)
        parameters.centers_, parameters.n_projections = centers, len(centers)
        parameters.centers = sample.once("centers in units", partial(Centers, centers))
        parameters.center_labels_ = None if codes is None else sample.classes[codes]

    def _assemble(self, parameters, draw):
        queries = KernelMap(_LOGS[self.kernel](parameters.sigma, parameters.centers))
        return queries, IndicatorMap(
            parameters.centers_, parameters.center_labels_, self.centers != "random"
        )


def lacks_rows(feature_map, n_rows):
    """Return whether a map places components near rows and has more of them than there are rows."""
    if not isinstance(feature_map, (AdaptiveRF, CentersOfClusters)):
        return False
    are_of_user = not isinstance(getattr(feature_map, "centers", ""), str)  # then any rows will do
    return not are_of_user and n_rows < feature_map.n_components
