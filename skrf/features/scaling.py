"""Columns on a common scale by their quantiles, with outliers bent instead of cut off."""

from functools import partial
from typing import Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .._arrays import cast, columns, like, namespace, take, to_host
from .._estimator import EstimatorBase, Unless
from .._typing import Array, Result
from .._validation import (
    check_range,
    commit,
    draft_of,
    drop_zero_weights,
    read_only,
    validate_rows,
)
from ._sigma import weighted_quantile

_BOUND = 3.0  # of transformed entries
_FAR = 1e9  # scales from the median, beyond which entries are the bound to rounding
_PARTS = 2048  # equal parts of the ranks, beside whose limits values are kept


def _obstacle_to_inversion(scaler):
    """Return why the scaler has no inverse, or None."""
    is_fitted = hasattr(scaler, "center_")
    if (scaler._fitted is not None) if is_fitted else scaler.ranks:
        return "with ranks=True every column becomes two. Use ranks=False."


class SmoothClipScaler(OneToOneFeatureMixin, TransformerMixin, EstimatorBase):
    r"""Centre columns at their median, scale them by their quartiles and bend outliers smoothly.

    Choose it in place of a StandardScaler for columns with heavy tails: neither the centre nor the
    scale depends on outliers, and all entries end between -3 and 3, so that no row is far from all
    others in the eyes of a kernel. Entries within the usual range hardly change their proportions.
    Where targets depend on how far out entries are, a StandardScaler is better.

    Parameters
    ----------
    ranks : bool, default=False
        Whether to append the rank of every entry among the training rows, between 0 and 1, as
        further columns. They spread crowded values out.

    Attributes
    ----------
    center_ : ndarray of shape (n_features,)
        Medians.
    scale_ : ndarray of shape (n_features,)
        Interquartile ranges; half the range where these are 0, and 0 for constant columns.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    TypeError
        If X is sparse.
    ValueError
        By `fit`, if X or the weights are invalid.

    See Also
    --------
    RelevanceScaler : Multipliers learned from the target; put it after this scaler.
    sklearn.preprocessing.RobustScaler : The same centre and scale, with outliers left as they are.
    sklearn.preprocessing.QuantileTransformer : Ranks alone.

    Notes
    -----
    An entry x becomes z / sqrt(1 + (z / 3)^2), where z = (x - median) / scale. Constant columns
    become 0. NaN is ignored by `fit` and remains NaN; a column of NaN alone counts as constant.
    Weights count as repetitions. Quantiles are the lowest values with at least the given share
    of the weight below or at them, averaged with the next values if the share is met exactly.

    The rank of a training row is the share of the weight below it plus half of that at its value;
    other values are interpolated, and those outside of the training range get the ranks of its
    ends. If a column has more than 6,144 distinct values, only some of them are kept, and ranks
    have errors below 0.0005.

    References
    ----------
    Scaling and clipping of RealMLP: Holzmüller, Grinsztajn and Steinwart, Better by default: strong
    pre-tuned MLPs and boosted trees on tabular data (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import SmoothClipScaler
    >>> X = np.array([[1.0], [2.0], [3.0], [4.0], [1e6]])
    >>> SmoothClipScaler().fit_transform(X).round(2).ravel().tolist()
    [-0.95, -0.49, 0.0, 0.49, 3.0]
    >>> SmoothClipScaler(ranks=True).fit_transform(X)[:, 1].round(2).tolist()
    [0.1, 0.3, 0.5, 0.7, 0.9]
    """

    _parameter_constraints = {"ranks": ["boolean"]}
    _fitted = None  # values and their ranks, for every column

    def __init__(self, ranks: bool = False) -> None:
        self.ranks = ranks

    def fit(self, X: Array, y: None = None, sample_weight: Array | None = None) -> Self:
        """Compute medians, scales and ranks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN is ignored.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, at least 0, which count as repetitions; rows of weight 0 are dropped.

        Returns
        -------
        self : object
            The fitted scaler.
        """
        self._validate_params()
        draft = draft_of(self)
        X = to_host(draft._rows(X, reset=True))
        weights, X = drop_zero_weights(sample_weight, X)
        draft.center_, draft.scale_ = np.zeros((2, X.shape[1]))
        knots = []
        for j in range(X.shape[1]):
            values, masses = _distribution(X[:, j], weights)
            check_range("X", values[[0, -1]])
            low, draft.center_[j], high = (
                weighted_quantile(values, masses, share) for share in (0.25, 0.5, 0.75)
            )
            draft.scale_[j] = high - low or (values[-1] - values[0]) / 2
            if self.ranks:
                knots.append(_knots(values, masses))
        draft._fitted = tuple(knots) if self.ranks else None
        read_only(draft.center_)
        read_only(draft.scale_)
        return commit(self, draft)

    def transform(self, X: Array) -> Result:
        """Return X with every column centred, scaled and bent, and ranks beside them if wanted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows: a NumPy, CuPy or torch array. NaN remains NaN.

        Returns
        -------
        ndarray of shape (n_samples, n_features) or (n_samples, 2 n_features)
            Transformed columns, and with ``ranks=True`` the ranks in the same order after them,
            float32 for float32 input and float64 otherwise.
        """
        check_is_fitted(self)
        X = self._rows(X, reset=False)
        xp = namespace(X)
        rows = cast(X, xp.float64)
        scale = np.where(self.scale_ > 0, self.scale_, np.inf)
        with np.errstate(over="ignore"):
            z = (rows - like(self.center_, rows)) / like(scale, rows)
        z = xp.clip(z, -_FAR, _FAR)  # their squares would overflow
        out = z / xp.sqrt(1 + (z / _BOUND) ** 2)
        if self._fitted is not None:
            ranks = [_ranks(rows[:, j], *knots) for j, knots in enumerate(self._fitted)]
            out = columns([out, xp.stack(ranks, axis=1)])
        return cast(out, X.dtype)

    @partial(Unless, _obstacle_to_inversion)
    def inverse_transform(self, X: Array) -> Result:
        """Return the original columns of transformed ones; only without ranks.

        The nearer an entry is to 3 or -3, the more its rounding is magnified.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Transformed rows.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            The original rows. Entries that `transform` rounded to 3 or -3 become as large as those
            of the next smaller number.

        Raises
        ------
        ValueError
            If an entry is not between -3 and 3.
        """
        check_is_fitted(self)
        X = self._rows(X, reset=False)
        xp = namespace(X)
        beyond = X[xp.abs(X) > _BOUND]
        if beyond.shape[0]:
            raise ValueError(
                f"X must be between -{_BOUND:g} and {_BOUND:g} everywhere, as transform returns "
                f"it, got {float(beyond[0]):.4g}."
            )
        below = _BOUND * (1 - float(xp.finfo(X.dtype).eps))
        z = xp.clip(cast(X, xp.float64), -below, below)
        z = z / xp.sqrt((1 - z / _BOUND) * (1 + z / _BOUND))
        return cast(z * like(self.scale_, z) + like(self.center_, z), X.dtype)

    def get_feature_names_out(self, input_features: Array | None = None) -> np.ndarray:
        """Return the names of the columns, and of ranks, which end in "_rank".

        Underscores follow until no column has the name of a rank.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Names of the input features, which must be those of `fit` if these are known.

        Returns
        -------
        ndarray of str
            The names.
        """
        names = super().get_feature_names_out(input_features)
        if self._fitted is None:
            return names
        suffix = "_rank"
        while set(names) & {f"{name}{suffix}" for name in names}:
            suffix += "_"
        return np.concatenate([names, [f"{name}{suffix}" for name in names]]).astype(object)

    def _rows(self, X, reset):
        rows = validate_rows(self, X, reset=reset, allow_nan=True)
        if sp.issparse(rows):
            raise TypeError(
                "SmoothClipScaler needs dense rows, because it subtracts medians, got X as a "
                "sparse matrix: pass X.toarray()."
            )
        return rows

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _distribution(values, weights):
    """Return the distinct values of a column in order, 0 if there are only NaN, and weights."""
    is_known = ~np.isnan(values)
    values = values[is_known].astype(np.float64)
    if not len(values):
        return np.zeros(1), np.ones(1)
    if weights is None:
        values, counts = np.unique(values, return_counts=True)
        return values, counts.astype(np.float64)
    values, places = np.unique(values, return_inverse=True)
    weights = weights[is_known]
    weights = np.ldexp(weights, -np.frexp(weights.max())[1])  # their sum might overflow
    return values, np.bincount(places, weights)


def _knots(values, masses):
    """Return values, and their ranks, between which ranks are interpolated.

    Of many, those are kept that hold the limits of equal parts of the ranks, with both neighbours:
    then those left out lie between values of little weight, so that no rank jumps among them.
    """
    shares = np.cumsum(masses)
    ranks = (shares - masses / 2) / shares[-1]
    if len(values) > 3 * _PARTS:
        limits = np.linspace(0, shares[-1], _PARTS)
        indices = np.searchsorted(shares, limits)[:, None] + [-1, 0, 1]
        indices = np.unique(np.clip(indices, 0, len(values) - 1))
        values, ranks = values[indices], ranks[indices]
    return read_only(values), read_only(ranks)


def _ranks(entries, values, ranks):
    """Return interpolated ranks of entries, those of the ends outside of the values."""
    xp, last = namespace(entries), len(values) - 1
    entries = entries + 0  # a copy without gaps, as torch asks for
    values, ranks = like(values, entries), like(ranks, entries)
    if not last:
        return ranks + 0 * entries  # NaN remains NaN
    entries = xp.clip(entries, values[0], values[last])  # differences of others may overflow
    above = xp.clip(xp.searchsorted(values, entries), 1, last)
    low, high = take(values, above - 1), take(values, above)
    fraction = xp.clip((entries - low) / (high - low), 0.0, 1.0)
    low, high = take(ranks, above - 1), take(ranks, above)
    return low + fraction * (high - low)
