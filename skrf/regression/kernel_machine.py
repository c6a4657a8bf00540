"""Kernel machines for tables: several kernels at learned scales, blended."""

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy.special import expit, log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin, is_classifier
from sklearn.utils.validation import check_is_fitted

from .._estimator import EstimatorBase
from .._progress import Progress
from .._threads import serial_blas
from .._typing import Array, RandomState
from .._validation import (
    Interval,
    StrOptions,
    check_classes,
    check_targets,
    commit,
    draft_of,
    draw_seed,
    drop_zero_weights,
)
from .._warnings import names_of
from ..features import row_codes
from .base import score
from .blend import ClassCalibration, weights_of_classes, weights_of_numbers, weights_of_two_classes
from .data import check_class_weight, class_factors, codes_of_targets, copy_groups
from .decide import of_all_classes, of_pairs
from .importances import HeldOutRows
from .members import SCALE_ROWS, HalfScales, Kernel, Limits, MemberSearch, TrainingData, fit_member
from .table import Table, categories_of, comparable, read_columns, warn_of_text

_AUTO = ("laplacian", ("laplacian", 0.6), "gaussian")
_MOST_PAIRED = 30  # classes, beyond which one regression has a target for each of them
_MOST_HALVED = 5000  # distinct rows, beyond which a sample learns scales and all others judge
_LONG = 60.0  # seconds, beyond which a fit says how many it expects
_FEW = 8  # distinct rows, below which no scales are learned
_MOST_LOGIT = 12.0
_LEAST_WEIGHT = 1e-12  # relative to the largest
_COVERED, _NORMAL = 0.9, 1.6448536269514722  # share of the rows within so many deviations


@dataclass(frozen=True, eq=False)
class Blend:
    """Members in the order of their kernels, halves within them, and how they are put together.

    Parameters
    ----------
    table : Table
        The columns.
    members : list of list of Member
        For every kernel, those of each half.
    weights : ndarray of shape (n_predictions,)
        Weights of the kernels' predictions; of more than two classes, a kernel has two of them.
    offset : float
        Added to the logarithm of the odds of two classes.
    calibrations : list of ClassCalibration
        Calibrations of the kernels' predictions of more than two classes.
    smoothing : float
        Share of the rows of two classes that are as likely to have either.
    variance_scale : tuple of two ndarray of shape (T,)
        Factors of the variances of numbers, and of the variances of the kernels' predictions.
    held_out : HeldOutRows or None
        The rows that importances of the columns are computed from.
    """

    table: Table
    members: list
    weights: np.ndarray
    offset: float = 0.0
    calibrations: tuple = ()
    smoothing: float = 0.0
    variance_scale: tuple = (1.0, 1.0)
    held_out: HeldOutRows | None = None

    def columns(self, X):
        """Return the columns of rows for every kernel by name."""
        return self.table.columns_of_kernels(self.table(X))

    @serial_blas()
    def predictions(self, rows):
        """Return each kernel's predictions at rows of columns, averaged over halves."""
        return [
            np.mean([member.predict(rows[member.kernel_]) for member in halves], axis=0)
            for halves in self.members
        ]

    @serial_blas()
    def predictions_and_variances(self, rows):
        """Return also each kernel's variances of the targets, in units of that of the noise."""
        of_kernels = []
        for halves in self.members:
            pairs = [member.predict(rows[member.kernel_], return_std=True) for member in halves]
            values, deviations = zip(*pairs, strict=True)
            of_kernels.append((np.mean(values, axis=0), np.mean(np.square(deviations), axis=0)))
        return zip(*of_kernels, strict=True)


def deviations(weights, predictions, variances, variance_scale):
    """Return the standard deviations of targets, (n, T).

    Parameters
    ----------
    weights : ndarray of shape (m,)
        Weights of kernels.
    predictions : sequence of ndarray of shape (n, T)
        What each predicts.
    variances : sequence of ndarray of shape (n,)
        Their variances.
    variance_scale : tuple of two float or ndarray of shape (T,)
        Factors of these, and of the variances of the predictions.
    """
    differences = np.stack(predictions) - np.tensordot(weights, predictions, 1)
    variances = np.tensordot(weights, variances, 1)[:, None]
    of_noise, of_differences = variance_scale
    differences = np.tensordot(weights, differences**2, 1)
    return np.sqrt(of_noise * variances + of_differences * differences)


@dataclass(frozen=True, eq=False)
class FittedMembers:
    """Members, and their predictions of rows that were left out.

    Parameters
    ----------
    data : TrainingData
        The rows that judge, without their columns.
    table : Table
        The columns.
    members : list of list of Member
        As of a `Blend`, of all kernels.
    predictions : list of ndarray of shape (n, V)
        Each kernel's leave-one-out predictions.
    variances : list of ndarray of shape (n,)
        Variances of numbers in units of that of the noise.
    held_out : HeldOutRows or None
        The rows that importances of the columns are computed from.
    """

    data: TrainingData
    table: Table
    members: list
    predictions: list
    variances: list
    held_out: HeldOutRows | None

    def blend(self, weights, calibrations=(), **parameters):
        """Return the `Blend` of kernels of some weight, and the weights of all kernels.

        The others would take time and add nothing.
        """
        of_kernels = np.split(weights, len(self.members)) if self.members else []
        used = [k for k, weights in enumerate(of_kernels) if weights.any()]
        if of_kernels and not used:  # two classes whose kernels all mislead
            used = [0]
        if calibrations:
            n = len(self.data.modes)
            places = [n * k + mode for k in used for mode in range(n)]
            parameters["calibrations"] = [calibrations[place] for place in places]
        used_weights = np.concatenate([np.zeros(0), *(of_kernels[k] for k in used)])
        members = [self.members[k] for k in used]
        blend = Blend(self.table, members, used_weights, held_out=self.held_out, **parameters)
        return blend, np.array([weights.sum() for weights in of_kernels])


def _normalised_weights(weights, factors):
    """Return weights of mean 1, times factors of classes that keep their sum."""
    weights = np.maximum(weights / weights.max(), _LEAST_WEIGHT)
    weights = weights / weights.mean()
    return weights * factors * (weights.sum() / (weights @ factors))


class _KernelMachine(EstimatorBase):
    """What both kernel machines share: the table, the search, and the members."""

    _parameter_constraints: ClassVar[dict] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "max_leaf_size": [Interval(Integral, 2, None, closed="left")],
        "kernels": [StrOptions({"auto"}), list, tuple],
        "relevance": [StrOptions({"auto"}), None],
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _foreign_parameters: ClassVar[dict] = {
        "n_jobs": "Threads are those of BLAS: set OMP_NUM_THREADS, or use threadpoolctl.",
    }

    _fitted: Any = None

    def _kernels(self):
        """Return the kernels, those of one name next to each other."""
        kernels = []
        for choice in _AUTO if self.kernels == "auto" else self.kernels:
            is_pair = isinstance(choice, (tuple, list)) and len(choice) == 2
            name, exponent = choice if is_pair else (choice, 1.0)
            is_known = name == "laplacian" and isinstance(exponent, Real) and exponent is not True
            if choice == "gaussian":
                kernels.append(Kernel("gaussian", 2.0))
            elif is_known and 0 < exponent <= 1:
                kernels.append(Kernel("laplacian", float(exponent)))
            else:
                raise ValueError(
                    "kernels must be 'auto' or a list of 'laplacian', ('laplacian', exponent) with "
                    f"an exponent above 0 and at most 1, and 'gaussian', got {choice!r} in "
                    f"{self.kernels!r}."
                )
        if not kernels or len(set(kernels)) < len(kernels):
            raise ValueError(
                f"kernels must hold at least one kernel, and none twice, got {self.kernels!r}."
            )
        return sorted(kernels, key=lambda kernel: kernel.name == "gaussian")

    def _read(self, X, y, sample_weight):
        """Return a draft, the `TrainingData` and the `Table`."""
        draft = draft_of(self)
        columns, kinds = read_columns(draft, X, reset=True)
        names = getattr(draft, "feature_names_in_", None)
        by_dtype = [kind != "number" for kind in kinds]
        are_categories = categories_of(self.categorical_features, by_dtype, names)
        y = draft._validate_y(columns[0], y)
        places = np.arange(len(columns[0]))[:, None]
        weights, places, y = drop_zero_weights(sample_weight, places, y)
        weights = np.ones(len(y)) if weights is None else weights
        factors = draft._class_factors(y, weights)
        if not factors.all():
            places, y, weights, factors = (
                part[factors > 0] for part in (places, y, weights, factors)
            )
        if len(y) < 2:
            raise ValueError(
                "X must have at least 2 rows of positive weight, because members are chosen by "
                f"leaving one out, got n_samples={len(y)}."
            )
        columns = [column[places[:, 0]] for column in columns]
        x_codes = row_codes(comparable(columns))
        groups = copy_groups(x_codes, codes_of_targets(y), is_classifier(self))
        first = np.unique(groups, return_index=True)[1]
        if 2 <= len(first) < len(y):  # copies are one row
            weights = np.bincount(groups, weights / weights.max())
            columns = [column[first] for column in columns]
            y, factors = y[first], factors[first]
        weights = _normalised_weights(weights, factors)
        targets, codes, problems = draft._encode_y(y, weights)
        table, encoded = Table.of(columns, are_categories, weights)
        by_default = isinstance(self.categorical_features, str)
        are_undeclared = [by_default and kind == "text" for kind in kinds]
        warn_of_text(columns, are_undeclared, table, names_of(draft, len(columns)).tolist())
        seed = draw_seed(self.random_state)
        _, first, number = np.unique(row_codes(encoded), return_index=True, return_inverse=True)
        rows = table.columns_of_kernels(encoded[first])
        limits = Limits(self.n_components, self.max_leaf_size)
        groups = {"laplacian": table.groups, "gaussian": table.groups[~table.are_ranks]}
        data = TrainingData(
            rows, number, weights, targets, codes, problems, limits, seed, groups=groups
        )
        return draft, data, table

    def _fit(self, X, y, sample_weight):
        """Return a draft, and the `FittedMembers`."""
        self._validate_params()
        kernels, progress = self._kernels(), Progress(self.verbose)
        draft, data, table = self._read(X, y, sample_weight)
        n_distinct, n_columns = data.X["laplacian"].shape
        progress(f"{len(data.weights)} rows, {n_columns} columns of numbers")
        if data.problems == []:  # of a single class
            return draft, FittedMembers(data, table, [], [], [], None)
        of_names = {kernel.name for kernel in kernels} if data.has_leaves else kernels
        seconds = data.expected_seconds(len(of_names) * (1 + (n_distinct <= _MOST_HALVED)))
        if seconds > _LONG:
            progress(f"about {10 * round(seconds / 10)} s are expected")
        halves = self._halves(data, kernels, progress)
        settings = self._settings(data, halves, kernels, progress)
        judged = np.sort(np.concatenate([half.validation_rows for half in halves]))
        held_out = HeldOutRows.of(data, halves)
        fitted = FittedMembers(replace(data, X={}).subset(judged), table, [], [], [], held_out)
        for kernel, setting in settings.items():
            of_halves = [fit_member(data, kernel, setting, half) for half in halves]
            members, values, variances = zip(*of_halves, strict=True)
            # The rows of a half are judged by scales that were learned from the other.
            order = np.argsort(np.concatenate([half.validation_rows for half in halves]))
            fitted.members.append(list(members))
            fitted.predictions.append(np.concatenate(values)[order])
            fitted.variances.append(np.concatenate(variances)[order])
            progress(f"{kernel.name}, exponent {kernel.exponent:g}: fitted")
        return draft, fitted

    def _settings(self, data, halves, kernels, progress):
        """Return the best hyperparameters of every kernel that has members.

        Of rows in leaves, there is one kernel for each kind of distances: a second would add a
        third to the time, and less to the accuracy than larger leaves.
        """
        settings, searches, in_leaves = {}, {}, {}
        for kernel in kernels:
            name = kernel.name
            if name not in searches:
                searches[name] = MemberSearch(data, halves, kernel)
                in_leaves[name] = MemberSearch(data, halves, kernel, in_leaves=True)
            settings[kernel] = searches[name].search(kernel)
            if data.has_leaves:
                settings[kernel] = in_leaves[name].refine(kernel, settings[kernel])
            progress(f"{name}, exponent {kernel.exponent:g}: searched")
        if data.has_leaves:
            best = [search.best_kernel() for search in in_leaves.values()]
            settings = {kernel: settings[kernel] for kernel in best}
        return settings

    def _class_factors(self, y, weights):
        """Return by what the weights of the rows are multiplied."""
        return np.ones(len(y))

    def _halves(self, data, kernels, progress):
        """Return the halves of the rows with scales learned from the other; one without scales.

        Of many rows, a sample learns scales, and all others are the only half.
        """
        names, n = {kernel.name: kernel for kernel in kernels}, len(data.X["laplacian"])
        if self.relevance is None or n < _FEW:
            return [HalfScales(dict.fromkeys(names, [None]), np.arange(len(data.row_to_distinct)))]
        # Equal rows stay together, so that weights count as repetitions.
        is_halved = n <= _MOST_HALVED
        n_learning = n // 2 if is_halved else min(SCALE_ROWS, n // 2)
        is_first = np.isin(data.row_to_distinct, data.rng().permutation(n)[:n_learning])
        sides, halves = [np.flatnonzero(is_first), np.flatnonzero(~is_first)], []
        for learning_rows, validation_rows in (sides, sides[::-1])[: 1 + is_halved]:
            scales = {
                name: data.learn_scales(kernel, learning_rows, validation_rows)
                for name, kernel in names.items()
            }
            halves.append(HalfScales(scales, validation_rows))
            progress(f"scales of part {len(halves)} of {1 + is_halved}")
        return halves

    def _commit_blend(self, draft, fitted, weights, **parameters):
        """Set what is public of a draft whose kernels have weights, and commit it."""
        draft._fitted, kernel_weights = fitted.blend(weights, **parameters)
        kernel_weights = kernel_weights / (kernel_weights.sum() or 1.0)
        draft.estimators_ = [member for halves in fitted.members for member in halves]
        n_halves = len(draft.estimators_) // max(len(kernel_weights), 1)
        draft.estimator_weights_ = np.repeat(kernel_weights / max(n_halves, 1), n_halves)
        return commit(self, draft)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Shares of the columns in what predictions of rows that were left out lose."""
        check_is_fitted(self)
        blend = self._fitted
        if blend.held_out is None:  # a single class
            return np.zeros(self.n_features_in_)
        return blend.held_out.importances(
            blend.table, blend.members, self.n_features_in_, self._losses
        )

    def _read_columns(self, X):
        check_is_fitted(self)
        columns, _ = read_columns(self, X, reset=False)
        return self._fitted.table.conformed(columns, names_of(self, len(columns)).tolist())

    score = score

    def __sklearn_is_fitted__(self):
        return self._fitted is not None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags


class KernelMachineClassifier(ClassifierMixin, _KernelMachine):
    """Classify tables of numbers and categories by a blend of kernel machines at learned scales.

    One call for a table as it comes: text, gaps and outliers need no preparation, and nothing needs
    tuning. On tables of a few thousand rows it is about as accurate as tuned gradient boosting or
    better, and slower; see the guide for where it loses.

    Parameters
    ----------
    n_components : int, default=400
        Number of landmarks, through which far rows are seen where there are too many to be exact.
    max_leaf_size : int, default=2500
        Rows of a leaf, within which the kernel is exact. Up to as many distinct rows, the fit is
        exact; beyond, of kernels that differ in their exponent, only the best has members.
    kernels : "auto" or list, default="auto"
        Kernels of the members: "laplacian", ``("laplacian", exponent)`` with an exponent above 0
        and at most 1, and "gaussian". "auto" is ``["laplacian", ("laplacian", 0.6), "gaussian"]``.
    relevance : {"auto"} or None, default="auto"
        Whether scales of the columns are learned from the targets, and tried beside equal ones.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns that hold categories: a mask, indices or names. By default those of text, booleans
        and categorical dtypes.
    class_weight : dict, "balanced" or None, default=None
        Factors by which the weights of the rows of each class are multiplied.
    random_state : int, RandomState instance or None, default=None
        Seed of halves, samples and landmarks.
    verbose : int, default=0
        With 1, print a line for every step of a fit, and first how long one above a minute takes.

    Attributes
    ----------
    estimators_ : list
        The members, those of a kernel next to each other: one for each half of the rows that scales
        were learned from; beyond 5,000 distinct rows only one, whose scales were learned from 1,000
        rows and are judged by all others. They have ``kernel_``, ``sigma_``, ``exponent_``,
        ``alpha_`` and ``relevance_``, multipliers of the columns of numbers that the table becomes,
        or a matrix.
    estimator_weights_ : ndarray of shape (n_estimators,)
        Their weights, which add up to 1, unless there are no members of any weight.
    best_score_ : float
        Mean logarithm of the probability of the class of rows that were left out, one by one, and
        that the scales have not seen.
    feature_importances_ : ndarray of shape (n_features_in_,)
        How much the log loss of left-out rows rises when a column of X is permuted, as shares with
        sum 1; 0 where it does not rise. Computed when it is first read, by members that are fitted
        to one half of at most 2,000 of the rows and predict the other half.
    classes_ : ndarray of shape (n_classes,)
        The labels.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if X has names that are strings.

    Raises
    ------
    TypeError
        If X is sparse, belongs to CuPy, torch or Dask, or has columns of dates.
    ValueError
        If X has fewer than two rows of positive weight, an entry is infinite, or a parameter is
        invalid.

    See Also
    --------
    KernelMachineRegressor : The same for numbers.
    ApproxKernelRidgeClassifier : A single kernel, many times faster, for numbers alone.
    sklearn.ensemble.HistGradientBoostingClassifier : Faster with many rows and classes.

    Notes
    -----
    Numbers are centred, scaled and bent as by `SmoothClipScaler`, with ranks beside them for the
    Laplacian kernels; gaps are filled with the median and marked. Categories become a column of 0
    and 1 for each level, of two levels a single one; those of fewer than 3 rows, and those beyond
    the 128 most frequent, share one. Levels that were not seen belong to that, or are 0 in all.
    Where these are more than 256 columns, the levels of a category share one scale, and only the
    256 largest scales count, with the other levels of their categories. The Gaussian kernel has a
    matrix of scales for up to 800 columns, and beyond a multiplier for each.

    Every member is a ridge regression with a kernel exp(-(sigma |x - y|)^exponent) of rows whose
    scales were learned on a random half of them by a recursive feature machine, and that is judged
    at the other half by exact leave-one-out: its width, its penalty and the number of rounds of
    learning. Predictions average over both halves. With more rows than fit one leaf, the kernel is
    that of partially independent conditionals: exact within leaves, through landmarks
    between them, so that time and memory are linear in the rows.

    Time is that of a dozen to some hundred solutions in all rows up to 2,500 of them, and rises
    with the number of pairs of classes. Rows that are equal count as one with a weight.

    Two classes are told apart by one step of the logistic loss from a ridge regression, more by
    regressions for all pairs with that step and without it; the step depends on the row itself, so
    that its leave-one-out values are approximate. More than 30 classes are told apart by one ridge
    regression for each, which share a factorisation. Probabilities of pairs are coupled, and
    blended with those of other members, by the log loss of rows that were left out.

    References
    ----------
    Snelson and Ghahramani, Local and global sparse Gaussian process approximations (2007);
    Radhakrishnan, Beaglehole, Pandit and Belkin, Mechanism for feature learning in neural networks
    and backpropagation-free machine learning models, Science 383 (2024);
    Wu, Lin and Weng, Probability estimates for multi-class classification by pairwise coupling,
    JMLR 5 (2004).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import KernelMachineClassifier
    >>> colours = ["red", "blue"] * 30
    >>> X = np.array([colours, np.linspace(0, 1, 60)], dtype=object).T
    >>> y = ["warm" if colour == "red" else "cold" for colour in colours]
    >>> model = KernelMachineClassifier(random_state=0).fit(X, y)
    >>> model.predict([["blue", 0.3], ["red", None]]).tolist()
    ['cold', 'warm']
    """

    _parameter_constraints: ClassVar[dict] = {
        **_KernelMachine._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        n_components: int = 400,
        *,
        max_leaf_size: int = 2500,
        kernels: Any = "auto",
        relevance: Literal["auto"] | None = "auto",
        categorical_features: Any = "from_dtype",
        class_weight: Any = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.max_leaf_size = max_leaf_size
        self.kernels = kernels
        self.relevance = relevance
        self.categorical_features = categorical_features
        self.class_weight = class_weight
        self.random_state = random_state
        self.verbose = verbose

    @serial_blas()  # its threads wait for each other at matrices of the size of leaves
    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Self:
        """Fit members to a table, and blend them.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            The table: numbers, with NaN or None for gaps, and categories.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0; rows of weight 0 are dropped. A weight says how many observations
            like this one were made; only ratios matter.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        draft, fitted = self._fit(X, y, sample_weight)
        data, predictions = fitted.data, fitted.predictions
        n_classes, codes = len(draft.classes_), data.codes
        if n_classes == 1:
            draft.best_score_ = 0.0
            return self._commit_blend(draft, fitted, np.zeros(0))
        if n_classes == 2:
            logits = np.stack([_logits(values) for values in predictions])
            weights, offset = weights_of_two_classes(logits, codes, data.weights)
            loo_predictions = np.column_stack([np.zeros(len(codes)), weights @ logits + offset])
            parameters = {"offset": offset, "smoothing": 1 / data.weights.sum()}
        else:
            of_modes = _of_modes(predictions, len(data.modes))
            calibrations = [
                ClassCalibration.of(values, codes, data.weights, n_classes) for values in of_modes
            ]
            logs = _calibrated(calibrations, of_modes)
            weights = weights_of_classes(logs, codes, data.weights)
            loo_predictions = np.tensordot(weights, logs, 1)
            parameters = {"calibrations": calibrations}
        logs = log_softmax(loo_predictions, axis=1)[np.arange(len(codes)), codes]
        draft.best_score_ = float(np.average(logs, weights=data.weights))
        return self._commit_blend(draft, fitted, weights, **parameters)

    def _validate_y(self, rows, y):
        y = check_classes(rows, y)
        check_class_weight(self.class_weight, np.unique(y))
        return y

    def _class_factors(self, y, weights):
        if self.class_weight is None:
            return super()._class_factors(y, weights)
        classes, codes = np.unique(y, return_inverse=True)
        return class_factors(self.class_weight, classes, codes, weights, is_batch=False)[codes]

    def _encode_y(self, y, weights):
        self.classes_, codes = np.unique(y, return_inverse=True)
        n_classes = len(self.classes_)
        targets = np.eye(n_classes)[codes]
        if n_classes == 2:
            targets = 2 * targets[:, 1:] - 1
        targets = targets - np.average(targets, axis=0, weights=weights)
        if n_classes > _MOST_PAIRED:
            return targets, codes, [of_all_classes(n_classes)]
        return targets, codes, of_pairs(n_classes)

    def decision_function(self, X: Array) -> np.ndarray:
        """Return the logarithms of the odds of the second class, or those of all probabilities.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows of a table like that of `fit`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            The scores, of two classes positive for the second.
        """
        columns, blend = self._read_columns(X), self._fitted
        if len(self.classes_) == 1:
            return np.zeros(len(columns[0]))
        return self._scores(blend.predictions(blend.columns(columns)))

    def _scores(self, predictions):
        """Return the `decision_function`, given each kernel's predictions."""
        blend = self._fitted
        if len(self.classes_) == 2:
            logits = [_logits(values) for values in predictions]
            return np.tensordot(blend.weights, logits, 1) + blend.offset
        n_modes = len(blend.calibrations) // len(predictions)
        logs = _calibrated(blend.calibrations, _of_modes(predictions, n_modes))
        return log_softmax(np.tensordot(blend.weights, logs, 1), axis=1)

    def predict_proba(self, X: Array) -> np.ndarray:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows of a table like that of `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            The probabilities, in the order of ``classes_``.
        """
        scores = self.decision_function(X)
        if len(self.classes_) == 1:
            return np.ones((len(scores), 1))
        return self._probabilities(scores)

    def _probabilities(self, scores):
        if scores.ndim == 2:
            return np.exp(scores)
        smoothing = self._fitted.smoothing
        seconds = (1 - smoothing) * expit(scores) + smoothing / 2
        firsts = (1 - smoothing) * expit(-scores) + smoothing / 2
        return np.column_stack([firsts, seconds])

    def _losses(self, predictions, data):
        shares = self._probabilities(self._scores(predictions))
        return -np.log(shares[np.arange(len(shares)), data.codes])

    def predict(self, X: Array) -> np.ndarray:
        """Return the most probable labels.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows of a table like that of `fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
            The labels.
        """
        scores = self.decision_function(X)
        places = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
        return self.classes_[places]


def _logits(values):
    """Return the logarithms of the odds of two classes, of which ridge regressions say half."""
    return np.clip(2 * values[:, 0], -_MOST_LOGIT, _MOST_LOGIT)


def _of_modes(predictions, n_modes):
    """Return the predictions of every kernel and mode."""
    return [part for values in predictions for part in np.hsplit(values, n_modes)]


def _calibrated(calibrations, of_modes):
    """Return the logarithms of probabilities, (m, n, K)."""
    pairs = zip(calibrations, of_modes, strict=True)
    return np.stack([calibration(values) for calibration, values in pairs])


class KernelMachineRegressor(RegressorMixin, _KernelMachine):
    """Predict numbers from tables of numbers and categories by a blend of kernel machines.

    One call for a table as it comes: text, gaps and outliers need no preparation, and nothing needs
    tuning. For positive targets with a heavy tail, fit their logarithms, with
    `sklearn.compose.TransformedTargetRegressor`.

    Parameters
    ----------
    n_components : int, default=400
        Number of landmarks, through which far rows are seen where there are too many to be exact.
    max_leaf_size : int, default=2500
        Rows of a leaf, within which the kernel is exact. Up to as many distinct rows, the fit is
        exact; beyond, of kernels that differ in their exponent, only the best has members.
    kernels : "auto" or list, default="auto"
        Kernels of the members: "laplacian", ``("laplacian", exponent)`` with an exponent above 0
        and at most 1, and "gaussian". "auto" is ``["laplacian", ("laplacian", 0.6), "gaussian"]``.
    relevance : {"auto"} or None, default="auto"
        Whether scales of the columns are learned from the targets, and tried beside equal ones.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Columns that hold categories: a mask, indices or names. By default those of text, booleans
        and categorical dtypes.
    random_state : int, RandomState instance or None, default=None
        Seed of halves, samples and landmarks.
    verbose : int, default=0
        With 1, print a line for every step of a fit, and first how long one above a minute takes.

    Attributes
    ----------
    estimators_ : list
        The members, those of a kernel next to each other: one for each half of the rows that scales
        were learned from; beyond 5,000 distinct rows only one, whose scales were learned from 1,000
        rows and are judged by all others. They have ``kernel_``, ``sigma_``, ``exponent_``,
        ``alpha_`` and ``relevance_``, multipliers of the columns of numbers that the table becomes,
        or a matrix.
    estimator_weights_ : ndarray of shape (n_estimators,)
        Their weights, which add up to 1, unless there are no members of any weight.
    best_score_ : float
        Negative mean squared error of rows that were left out, one by one, and that the scales have
        not seen, in units of the variance of the target.
    feature_importances_ : ndarray of shape (n_features_in_,)
        How much the squared error of left-out rows rises when a column of X is permuted, as shares
        with sum 1; 0 where it does not rise. Computed when it is first read, by members that are
        fitted to one half of at most 2,000 of the rows and predict the other half.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if X has names that are strings.

    Raises
    ------
    TypeError
        If X is sparse, belongs to CuPy, torch or Dask, or has columns of dates.
    ValueError
        If X has fewer than two rows of positive weight, an entry is infinite, or a parameter is
        invalid.

    See Also
    --------
    KernelMachineClassifier : The same for classes.
    ApproxKernelRidge : A single kernel, many times faster, for numbers alone.
    sklearn.ensemble.HistGradientBoostingRegressor : Faster with many rows.

    Notes
    -----
    Numbers are centred, scaled and bent as by `SmoothClipScaler`, with ranks beside them for the
    Laplacian kernels; gaps are filled with the median and marked. Categories become a column of 0
    and 1 for each level, of two levels a single one; those of fewer than 3 rows, and those beyond
    the 128 most frequent, share one. Levels that were not seen belong to that, or are 0 in all.
    Where these are more than 256 columns, the levels of a category share one scale, and only the
    256 largest scales count, with the other levels of their categories. The Gaussian kernel has a
    matrix of scales for up to 800 columns, and beyond a multiplier for each.

    Every member is a ridge regression with a kernel exp(-(sigma |x - y|)^exponent) of rows whose
    scales were learned on a random half of them by a recursive feature machine, and that is judged
    at the other half by exact leave-one-out: its width, its penalty and the number of rounds of
    learning. Predictions average over both halves. With more rows than fit one leaf, the kernel is
    that of partially independent conditionals: exact within leaves, through landmarks
    between them, so that time and memory are linear in the rows.

    Time is that of a dozen to some hundred solutions in all rows up to 2,500 of them, and rises
    with the number of pairs of classes. Rows that are equal count as one with a weight.

    Standard deviations are those of a normal distribution of which 90 % of the rows that were left
    out lie within the central 90 %: the mean posterior variance of the members plus the variance of
    their predictions, each times a number that these rows choose.

    References
    ----------
    Snelson and Ghahramani, Local and global sparse Gaussian process approximations (2007);
    Radhakrishnan, Beaglehole, Pandit and Belkin, Mechanism for feature learning in neural networks
    and backpropagation-free machine learning models, Science 383 (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import KernelMachineRegressor
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = np.sin(2 * X[:, 0])
    >>> model = KernelMachineRegressor(random_state=0).fit(X, y)
    >>> mean, std = model.predict([[0.5, 0.0, 0.0]], return_std=True)
    >>> mean.round(1).tolist()
    [0.8]
    >>> model.feature_importances_.argmax()
    np.int64(0)
    """

    def __init__(
        self,
        n_components: int = 400,
        *,
        max_leaf_size: int = 2500,
        kernels: Any = "auto",
        relevance: Literal["auto"] | None = "auto",
        categorical_features: Any = "from_dtype",
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.max_leaf_size = max_leaf_size
        self.kernels = kernels
        self.relevance = relevance
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.verbose = verbose

    @serial_blas()
    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Self:
        """Fit members to a table, and blend them.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            The table: numbers, with NaN or None for gaps, and categories.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0; rows of weight 0 are dropped. A weight says how many observations
            like this one were made; only ratios matter.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        draft, fitted = self._fit(X, y, sample_weight)
        data, predictions = fitted.data, fitted.predictions
        weights = weights_of_numbers(np.stack(predictions), data.targets, data.weights)
        residuals = np.tensordot(weights, predictions, 1) - data.targets
        draft.best_score_ = -float(np.average(residuals**2, axis=0, weights=data.weights).mean())

        def scale_of(variance_scale):
            """Return the factor with which nine of ten rows are covered."""
            sizes = np.abs(residuals) / deviations(
                weights, predictions, fitted.variances, variance_scale
            )
            order = np.argsort(sizes, axis=0, kind="stable")
            masses = np.cumsum(data.weights[order], axis=0)
            places = np.argmax(masses >= _COVERED * masses[-1], axis=0)
            widths = np.take_along_axis(sizes, order, axis=0)[places, np.arange(len(places))]
            return (widths / _NORMAL) ** 2

        # Variances are in units of noise whose size they tell themselves, before kernels differ.
        of_noise = scale_of((1.0, 0.0))
        of_both = scale_of((of_noise, 1.0)) if of_noise.all() else np.ones(len(of_noise))
        scales = of_noise * of_both, of_both
        return self._commit_blend(draft, fitted, weights, variance_scale=scales)

    def _validate_y(self, rows, y):
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None.")
        return check_targets(rows, y)

    def _encode_y(self, y, weights):
        self._outputs = y.shape[1:]
        y = y.reshape(len(y), -1)
        self._center = np.average(y, axis=0, weights=weights)
        centred = y - self._center
        largest = np.maximum(np.abs(centred).max(axis=0), np.finfo(float).tiny)
        sizes = np.sqrt(np.average((centred / largest) ** 2, axis=0, weights=weights))
        self._unit = np.where(sizes > 0, sizes, 1.0) * largest
        return centred / self._unit, None, None

    def _losses(self, predictions, data):
        residuals = np.tensordot(self._fitted.weights, predictions, 1) - data.targets
        return np.square(residuals).mean(axis=1)

    def predict(self, X: Array, return_std: bool = False) -> Any:
        """Return predictions of the targets.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows of a table like that of `fit`.
        return_std : bool, default=False
            Whether to return standard deviations, too. The first call factorises the kernel of
            every leaf that is met, about 0.2 s for 2,500 rows and each member. Later calls take
            little longer than predictions: up to 128 MB of factors are kept, but not pickled.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs), or a tuple of two
            The predictions, and the standard deviations of the targets if asked for.
        """
        columns, blend = self._read_columns(X), self._fitted
        rows = blend.columns(columns)
        if not return_std:
            return self._in_units(blend.predictions(rows))
        predictions, variances = blend.predictions_and_variances(rows)
        sizes = deviations(blend.weights, predictions, variances, blend.variance_scale) * self._unit
        return self._in_units(predictions), sizes.reshape(-1, *self._outputs)

    def _in_units(self, predictions):
        values = np.tensordot(self._fitted.weights, predictions, 1) * self._unit + self._center
        return values.reshape(-1, *self._outputs)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
