"""Multipliers or directions of columns, so that distances reflect what separates the targets."""

import math
from numbers import Integral
from typing import Literal, Self

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import Bounds, minimize
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from .._arrays import largest_entry, like, squared_norms, to_host
from .._batches import TakesBatches
from .._estimator import EstimatorBase
from .._sums import exp_max_one
from .._threads import serial_blas
from .._typing import Array, RandomState, Result
from .._validation import (
    Interval,
    StrOptions,
    as_numpy,
    check_labels,
    check_range,
    check_targets,
    commit,
    draft_of,
    draw_seed,
    drop_zero_weights,
    naming,
    read_only,
    validate_rows,
)
from ..features import RFFSampler, by_first, row_codes
from ..features._batch_summary import passes_of_fit
from ..statistics import Moments, standardised
from .data import spread_copies
from .feature_machine import Directions, Multipliers, learned_scales

_ROUNDING = 1e-10  # of a score, with a margin
_SCALES = np.log(2.0) * np.arange(-1, 8)  # common to all columns, at a total variance of 1
_PENALTY, _STEPS = 0.01, 20
_FOLDS, _SAME_STEPS = 3, 1e-4  # scores of steps on left-out rows that differ by less are the same
# For the evidence: projections, scales and ridges to start from, and steps.
_N_PROJECTIONS, _LIKELY_STEPS = 256, 30
_LIKELY_SCALES, _LOG_ALPHAS = np.log([2.0, 0.5]), np.log([1e-3, 3e-2, 1.0])
_JUDGED_SCALES, _SAME_EVIDENCE = np.log(2.0) * np.arange(-1, 3.5, 0.5), 1e-4  # per row
_FARTHEST = 10.0  # bound on the spread of log multipliers; the penalty keeps them well inside


class _ScalesFromTargets(TakesBatches, TransformerMixin, EstimatorBase):
    """Base of transformers that learn scales from a sample of the rows and their targets."""

    _is_full = False  # whether scales are a matrix

    n_samples: int
    random_state: RandomState

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Self:
        """Learn from the targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Class labels, or floats to be regressed on.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0; rows of weight 0 are dropped.

        Returns
        -------
        self : object
            The fitted transformer.
        """
        self._validate_params()
        draft = draft_of(self)
        X = to_host(validate_rows(draft, X, reset=True))
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        y, is_class = self._targets(X, y)
        weights, X, y = drop_zero_weights(sample_weight, X, y)
        check_range("X", X)
        moments = Moments.of(X, weights, full=self._is_full, sizes=False)
        total = moments.variances.sum()
        rng = np.random.default_rng(draw_seed(self.random_state))
        rows, *weights_and_targets = _sample(X, y, weights, self.n_samples, rng, is_class)
        rows, columns = _varying(rows)
        if total > 0 and len(columns):
            scales = draft._learn_scales(rows / np.sqrt(total), *weights_and_targets, is_class)
        else:
            columns, scales = columns[:0], None
        draft._set_scales(moments, columns, scales)
        return commit(self, draft)

    def _targets(self, X, y):
        """Return codes of labels or regression targets, and whether they are labels."""
        with naming("y"):
            kind = as_numpy("y", y)
            if kind.dtype.kind == "f" or (kind.ndim == 2 and kind.shape[1] > 1):
                y = check_targets(X, y)
                return y.reshape(len(y), -1), False
            y = check_labels("y", y)
            check_consistent_length(X, y)
            return np.unique(y, return_inverse=True)[1], True

    def _passes(self, classes, scope):
        self._validate_params()
        return passes_of_fit(self, scope)

    def _multiplied(self, X, scales, name):
        X = validate_rows(self, X, reset=False)
        scales = like(scales, X)
        with np.errstate(over="ignore", invalid="ignore"):
            if scales.ndim == 2:
                out = X @ scales
            elif sp.issparse(X):
                out = X @ sp.diags_array(scales, dtype=X.dtype)
            else:
                out = X * scales
        if not math.isfinite(largest_entry(out)):
            raise ValueError(
                f"X times {name} exceeds the range of {X.dtype}: its largest entry is "
                f"{largest_entry(X):.4g}."
            )
        return out

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class RelevanceScaler(OneToOneFeatureMixin, _ScalesFromTargets):
    """Multiply every column by its relevance to the target.

    The kernels of this library treat all columns alike. In well under a second, this scaler finds
    the multipliers with which kernel regression on a sample best predicts each row from the others.
    It shrinks uninformative columns and preserves the total variance, so that sigma keeps its
    meaning. Put it after a StandardScaler and before any feature map.

    Parameters
    ----------
    n_samples : int, default=500
        Number of distinct rows to use, drawn in proportion to the classes or evenly over the
        targets. The cost is quadratic in this number.
    criterion : {"leave-one-out", "evidence", "gradients"}, default="leave-one-out"
        What the multipliers maximise: the accuracy with which kernel regression predicts each row
        from the others, or, for regression targets, the marginal likelihood of ridge regression,
        that is, of a Gaussian process with one length scale per column. "evidence" is usually
        better before `ApproxKernelRidge`, and often worse before kernel regression. "gradients"
        takes the root mean square of the slopes of a ridge regression along a column instead; it
        is faster, and about as good before ridge regression.
    random_state : int, RandomState instance or None, default=None
        Source of the seed for drawing these rows; it has no effect if all rows are used.

    Attributes
    ----------
    relevance_ : ndarray of shape (n_features,)
        The multipliers; a column that is constant in the sample gets the multiplier of a column of
        average relevance.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if a parameter, X, y or the weights are invalid.

    See Also
    --------
    RelevanceProjection : Directions instead of columns.
    KernelRegressionClassifier : The estimator for which the multipliers are chosen.
    DenseExponentialRF : A map that adapts to principal axes, not to targets.
    sklearn.preprocessing.StandardScaler : One multiplier per column without a target.

    Notes
    -----
    "leave-one-out" maximises the mean log probability that exact kernel regression on all distinct
    other rows assigns to the class of a row (in a regression, to its target, under normal errors),
    minus a small penalty on differences between multipliers. For labels, the number of steps is the
    one that works best on three held-out folds, and may be zero. Weights count as repetitions.
    Floats, and several columns of numbers, are regression targets; everything else counts as
    labels.

    "evidence" maximises the marginal likelihood of a Bayesian regression on 256 random Fourier
    projections over the multipliers and the noise, with gradients through the features. If the
    "leave-one-out" multipliers have a larger marginal likelihood under another draw of the
    projections, they are used instead.

    "gradients" is a recursive feature machine: the multipliers are those of the round before times
    the root mean squared slopes of ridge regression with the kernel exp(-s |x - y|_1), at 400 rows,
    in up to four rounds, with s and the ridge by leave-one-out. Half of the rows judge how many
    rounds of scales learned from the others pay, if any. Labels become indicators of the classes.

    On eight UCI sets with 128 components, kernel regression gains on average 2.5 points of
    accuracy with `AdaptiveRF` and 2.0 with `ClusterNystroem`. With dozens of columns and tens of
    thousands of rows to learn from, the noise of the multipliers may cost more than they gain, as
    on chess: let a search compare them with the unscaled columns.

    ``SelectFromModel(RelevanceScaler(), importance_getter="relevance_")`` of scikit-learn selects
    the columns of above-average relevance; ``RFE`` takes the same argument.

    References
    ----------
    Goldberger et al., Neighbourhood components analysis (2005), with a diagonal matrix; marginal
    likelihood: Rasmussen and Williams, Gaussian processes for machine learning (2006), chapter 5;
    gradients: Radhakrishnan, Beaglehole, Pandit and Belkin, Mechanism for feature learning in
    neural networks and backpropagation-free machine learning models (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RelevanceScaler
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> scaler = RelevanceScaler(random_state=0).fit(X, X[:, 1] > 0)
    >>> int(np.argmax(scaler.relevance_)), bool(scaler.relevance_[1] > 2 * scaler.relevance_[0])
    (1, True)
    """

    _parameter_constraints = {
        "n_samples": [Interval(Integral, 2, None, closed="left")],
        "criterion": [StrOptions({"leave-one-out", "evidence", "gradients"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_samples: int = 500,
        *,
        criterion: Literal["leave-one-out", "evidence", "gradients"] = "leave-one-out",
        random_state: RandomState = None,
    ) -> None:
        self.n_samples = n_samples
        self.criterion = criterion
        self.random_state = random_state

    def _targets(self, X, y):
        targets, is_class = super()._targets(X, y)
        if is_class and self.criterion == "evidence":
            raise ValueError(
                "criterion='evidence' needs regression targets, floats or several columns of "
                f"numbers, got y with {targets.max() + 1} labels."
            )
        return targets, is_class

    def _learn_scales(self, rows, weights, shares, y, is_class):
        if self.criterion == "gradients":
            return learned_scales(Multipliers, rows, weights, y, is_class)
        if self.criterion == "evidence":
            return np.exp(_by_evidence(rows, weights, shares, y))
        return np.exp((_stopped if is_class else _maximum)(rows, weights, shares, y))

    def _set_scales(self, moments, columns, scales):
        variances = moments.variances
        self.relevance_ = np.ones(len(variances))
        if len(columns):
            self.relevance_[columns] = scales
            kept = variances @ self.relevance_**2
            self.relevance_ *= np.sqrt(variances.sum() / kept)
        read_only(self.relevance_)

    def transform(self, X: Array) -> Result:
        """Return X with every column multiplied by its relevance.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows: a NumPy, SciPy sparse, CuPy or torch array.

        Returns
        -------
        {ndarray, sparse matrix} of shape (n_samples, n_features)
            The rows, float32 for float32 input and float64 otherwise.
        """
        check_is_fitted(self)
        return self._multiplied(X, self.relevance_, "relevance_")

    def inverse_transform(self, X: Array) -> Result:
        """Return X with every column divided by its multiplier.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Transformed rows.

        Returns
        -------
        {ndarray, sparse matrix} of shape (n_samples, n_features)
            The original rows.
        """
        check_is_fitted(self)
        return self._multiplied(X, 1 / self.relevance_, "1 / relevance_")


class RelevanceProjection(ClassNamePrefixFeaturesOutMixin, _ScalesFromTargets):
    """Stretch rows along the directions that are relevant to the target.

    Where targets depend on combinations of columns, such as differences or sums, no multipliers of
    single columns can tell; this transformer learns a whole matrix. It is decisive on some tables,
    and on others the multipliers of `RelevanceScaler` or none are better: let a search compare
    them. Put it after a StandardScaler and before maps of rotation-invariant kernels, such as the
    Gaussian one.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of distinct rows to use, drawn in proportion to the classes or evenly over the
        targets. The cost is cubic in this number and in that of columns.
    random_state : int, RandomState instance or None, default=None
        Source of the seed for drawing these rows; it has no effect if all rows are used.

    Attributes
    ----------
    components_ : ndarray of shape (n_features, n_features)
        The symmetric, positive definite matrix that rows are multiplied by. It keeps the total
        variance, and is the identity for columns that are constant in the sample.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if a parameter, X, y or the weights are invalid.

    See Also
    --------
    RelevanceScaler : One multiplier per column.
    DenseExponentialRF : A map that adapts to principal axes, not to targets.

    Notes
    -----
    A recursive feature machine: the matrix becomes the root of the mean outer product of the
    gradients of a Gaussian kernel ridge regression on rows that it has transformed, in up to four
    rounds. Everything else is as in `RelevanceScaler` with ``criterion="gradients"``.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin, Mechanism for feature learning in neural networks
    and backpropagation-free machine learning models (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import RelevanceProjection
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> projection = RelevanceProjection(random_state=0).fit(X, np.sin(X[:, 1] - X[:, 2]))
    >>> strongest = np.linalg.eigh(projection.components_)[1][:, -1]
    >>> np.abs(strongest).round(1).tolist()
    [0.0, 0.7, 0.7]
    """

    _parameter_constraints = {
        "n_samples": [Interval(Integral, 2, None, closed="left")],
        "random_state": ["random_state"],
    }
    _is_full = True

    def __init__(self, n_samples: int = 1000, *, random_state: RandomState = None) -> None:
        self.n_samples = n_samples
        self.random_state = random_state

    def _learn_scales(self, rows, weights, shares, y, is_class):
        return learned_scales(Directions, rows, weights, y, is_class)

    def _set_scales(self, moments, columns, scales):
        self.components_ = np.eye(len(moments.step))
        if len(columns):
            self.components_[np.ix_(columns, columns)] = scales
            covariance = moments.covariance / moments.variances.sum()
            kept = np.sum(self.components_ @ covariance * self.components_)
            self.components_ /= np.sqrt(kept)
        read_only(self.components_)

    @property
    def _n_features_out(self):
        return len(self.components_)

    def transform(self, X: Array) -> Result:
        """Return X times the matrix.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows: a NumPy, SciPy sparse, CuPy or torch array.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            The rows, float32 for float32 input and float64 otherwise.
        """
        check_is_fitted(self)
        return self._multiplied(X, self.components_, "components_")


def _sample(X, y, weights, most, rng, is_class):
    """Return distinct dense rows in the order of their targets, with weights, shares and targets.

    The shares of their weights are those that leave with them; see `spread_copies`.
    """
    codes = np.unique(y, axis=0, return_inverse=True)[1].ravel()
    weights = np.ones(len(codes)) if weights is None else weights
    chosen, weights, shares = spread_copies(X, codes, weights, most, rng, is_class)
    return X[chosen], weights, shares, y[chosen]


def _varying(rows):
    """Return centred dense float64 rows without constant columns, and indices of the others."""
    columns = np.arange(rows.shape[1])
    if sp.issparse(rows):
        columns = np.unique(rows.indices)
        rows = rows[:, columns].toarray()
    varies = np.ptp(rows, axis=0) > 0
    rows = rows[:, varies].astype(np.float64)
    return rows - rows.mean(axis=0), columns[varies]


def _half_squares(X, Y):
    """Return -|x - y|^2 / 2 for all pairs of rows, up to a number per row of X, by one product."""
    return X @ Y.T - squared_norms(Y) / 2


class _LeaveOneOut:
    """Score of kernel regression on the other rows, as a function of log multipliers.

    The mean log probability of each row's class, or of the targets under normal errors of the
    observed size.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Centred rows.
    weights : ndarray of shape (n,)
        Their weights.
    shares : ndarray of shape (n,)
        Shares of these that leave with the rows.
    targets : ndarray of shape (n, n_outputs)
        Targets, or 1 for the class of a row and 0 for others.
    is_class : bool
        Whether they are classes.
    """

    def __init__(self, X, weights, shares, targets, is_class):
        self.X, self.shares, self.is_class = X, weights / weights.sum(), is_class
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(weights * (1 - np.diag(shares)))
        if is_class:
            self.targets = targets
            # The overall class shares count as one more row, so that no logarithm is infinite.
            self.prior = (self.targets @ (self.shares @ self.targets)) / len(X)
        else:
            self.targets = standardised(targets, self.shares)
            self.prior = 1 / len(X)

    def __call__(self, logs, with_gradient=True):
        """Return the score at log multipliers and its gradient, or None in its place."""
        scaled = self.X * np.exp(logs)
        weights = exp_max_one(self.log_weights + _half_squares(scaled, scaled))
        weights /= weights.sum(axis=1, keepdims=True)
        means = weights @ self.targets
        if self.is_class:
            p = np.sum(means * self.targets, axis=1) + self.prior
            score = self.shares @ np.log(p)
        else:
            errors = self.targets - means
            squares = self.shares @ errors**2 + self.prior
            score = -np.mean(np.log(squares)) / 2
        if not with_gradient:
            return score, None
        if self.is_class:
            slopes = self.targets * (self.shares / p)[:, None]
        else:
            slopes = self.shares[:, None] * errors / (squares * len(squares))
        # d score = sum of pull_ij d log weight_ij, and d log weight_ij = -(x_i - x_j)^2 d logs.
        pull = weights * (slopes @ self.targets.T - np.sum(slopes * means, axis=1)[:, None])
        # Its rows add up to 0.
        gradient = pull.sum(axis=0) @ scaled**2 - 2 * np.sum(scaled * (pull @ scaled), axis=0)
        return score, -gradient


def _log_probabilities(logs, train, test):
    """Return the logarithms of the probabilities of the classes of rows that were left out.

    Parameters
    ----------
    logs : ndarray of shape (d,)
        Log multipliers.
    train, test : tuple
        Rows, weights, shares and classes, as `_LeaveOneOut` takes them.
    """
    (X, weights, _, classes), (Z, _, _, truth) = train, test
    half_squares = _half_squares(Z * np.exp(logs), X * np.exp(logs))
    kernel = exp_max_one(np.log(weights) + half_squares)
    p = kernel @ classes / kernel.sum(axis=1, keepdims=True)
    # All classes count as one more row, so that those without rows have a probability.
    return np.log(np.sum(p * truth, axis=1) + 1 / (len(X) * truth.shape[1]))


@serial_blas()
def _stopped(X, weights, shares, y):
    """Return the log multipliers of as many steps as suit rows that these have not seen."""
    rows = X, weights, shares, np.equal.outer(y, np.unique(y)).astype(np.float64)
    # Folds of all classes, whatever the order of the rows and the names of the labels.
    order = np.argsort(row_codes(X), kind="stable")
    order = order[np.argsort(by_first(y[order]), kind="stable")]
    folds = np.empty(len(X), int)
    folds[order] = np.arange(len(X)) % _FOLDS
    scores = np.zeros(_STEPS + 1)
    for k in range(_FOLDS):
        is_test = folds == k
        train, test = ([values[chosen] for values in rows] for chosen in (~is_test, is_test))
        if 2 <= len(train[0]) < len(X):
            path = _path(_LeaveOneOut(*train, is_class=True))
            scores += [weights[is_test] @ _log_probabilities(p, train, test) for p in path]
    scores /= weights.sum()
    path = _path(_LeaveOneOut(*rows, is_class=True))
    return path[np.argmax(scores >= scores.max() - _SAME_STEPS)] - path[0]


@serial_blas()
def _maximum(X, weights, shares, y):
    """Return the log multipliers of the best score of a regression."""
    path = _path(_LeaveOneOut(X, weights, shares, y, is_class=False))
    return path[-1] - path[0]


def _path(score):
    """Return the steps to the best score, less a penalty, from the best common scale."""
    n_columns = score.X.shape[1]
    starts = [np.full(n_columns, scale) for scale in _SCALES]
    scores = np.array([score(logs, with_gradient=False)[0] for logs in starts])
    start = starts[np.argmax(scores >= scores.max() - _ROUNDING)]

    def cost(logs):
        value, gradient = score(logs)
        apart = logs - start
        return _PENALTY * (apart @ apart) - value, 2 * _PENALTY * apart - gradient

    bounds = Bounds(start - _FARTHEST / 2, start + _FARTHEST / 2)
    path = [start]
    minimize(
        cost,
        start,
        jac=True,
        bounds=bounds,
        options={"maxiter": _STEPS},
        callback=lambda logs: path.append(logs.copy()),
    )
    return path + [path[-1]] * (_STEPS + 1 - len(path))


class _Evidence:
    """Log marginal likelihood of ridge regression, as a function of log multipliers and log alpha.

    Of targets with a mean and a scale that are not known, in units of the weight of all rows.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Centred rows.
    weights : ndarray of shape (n,)
        Their weights.
    y : ndarray of shape (n, n_outputs)
        Targets.
    seed : int, default=0
        Of the projections.
    """

    def __init__(self, X, weights, y, seed=0):
        weights = weights * (len(weights) / weights.sum())
        self.X, self.roots = X, np.sqrt(weights)[:, None]
        self.shares = weights / weights.sum()
        self.targets = standardised(y, self.shares) * self.roots
        drawn = RFFSampler(2 * _N_PROJECTIONS, sigma=1.0, random_state=seed).fit(X)
        self.projections = drawn.omega_

    def __call__(self, logs):
        """Return the value at log multipliers, and log alpha in the end, and the gradient."""
        multipliers, alpha = np.exp(logs[:-1]), np.exp(logs[-1])
        n, n_targets = self.targets.shape
        products = (self.X * multipliers) @ self.projections.T
        sines, cosines = np.sin(products), np.cos(products)
        features = np.concatenate([sines, cosines], axis=1) / np.sqrt(_N_PROJECTIONS)
        features = (features - self.shares @ features) * self.roots
        gram = features.T @ features
        gram[np.diag_indices_from(gram)] += alpha
        factor = cho_factor(gram, lower=True)
        coef = cho_solve(factor, features.T @ self.targets)
        residuals = self.targets - features @ coef
        penalties = np.sum(coef**2, axis=0)
        squares = np.sum(residuals**2, axis=0) + alpha * penalties
        log_determinant = 2 * np.log(np.diagonal(factor[0])).sum() - len(gram) * logs[-1]
        loss = (n - 1) * np.log(squares).sum() + n_targets * log_determinant
        inverse = cho_solve(factor, np.eye(len(gram)))
        slopes = n_targets * (features @ inverse) - (n - 1) * (residuals / squares) @ coef.T
        slopes = 2 * self.roots * slopes
        slopes -= np.outer(self.shares, slopes.sum(axis=0))  # before they are centred
        by_sines, by_cosines = np.split(slopes / np.sqrt(_N_PROJECTIONS), 2, axis=1)
        by_products = by_sines * cosines - by_cosines * sines
        by_logs = np.einsum("nj,nj->j", by_products @ self.projections, self.X) * multipliers
        by_alpha = (n - 1) * np.sum(penalties / squares) + n_targets * np.trace(inverse)
        by_alpha = alpha * by_alpha - n_targets * len(gram)
        return -loss / (2 * n), -np.append(by_logs, by_alpha) / (2 * n)


@serial_blas()
def _by_evidence(X, weights, shares, y):
    """Return the log multipliers of largest evidence, or those of leave-one-out.

    The first may suit the draw of the projections rather than the targets, so that the evidence of
    another draw decides.
    """
    y = y[:, np.ptp(y, axis=0) > 0]
    if not y.shape[1]:  # nothing is to be told
        return np.zeros(X.shape[1])
    judge, best, chosen = _Evidence(X, weights, y, seed=1), -np.inf, None
    spread = np.average(X**2, axis=0, weights=weights)
    for logs in (
        _most_likely(_Evidence(X, weights, y)),
        _maximum(X, weights, shares, y),
    ):
        logs = logs - np.log(spread @ np.exp(2 * logs) / spread.sum()) / 2
        grid = [(scale, alpha) for scale in _JUDGED_SCALES for alpha in _LOG_ALPHAS]
        score = max(judge(np.append(logs + scale, alpha))[0] for scale, alpha in grid)
        if score > best + _SAME_EVIDENCE:
            best, chosen = score, logs
    return chosen


def _most_likely(score):
    """Return the log multipliers of largest evidence, relative to a common scale.

    There are several maxima: columns that say little by themselves may not seem to matter.
    """

    def cost(logs):
        value, gradient = score(logs)
        return -value, -gradient

    optima = []
    for scale in _LIKELY_SCALES:
        starts = [np.append(np.full(score.X.shape[1], scale), alpha) for alpha in _LOG_ALPHAS]
        scores = np.array([score(logs)[0] for logs in starts])
        start = starts[np.argmax(scores >= scores.max() - _ROUNDING)]
        bounds = Bounds(start - _FARTHEST / 2, start + _FARTHEST / 2)
        options = {"maxiter": _LIKELY_STEPS}
        optimum = minimize(cost, start, jac=True, bounds=bounds, options=options)
        optima.append((optimum.fun, optimum.x[:-1] - scale))
    costs = np.array([cost for cost, _ in optima])
    return optima[np.argmax(costs <= costs.min() + _SAME_EVIDENCE)][1]
