"""Tables of numbers and categories as columns of numbers, for kernels of distances.

Numbers are centred, scaled and bent by `SmoothClipScaler`; categories become a column of 0 and 1
per level. Gaps of numbers are filled with the median and marked, those of categories are a level.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from numbers import Number

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import _check_feature_names, _check_n_features

from .._arrays import is_array_api
from .._validation import check_are_numbers, validate_rows
from ..features import SmoothClipScaler

_RARE = 3  # rows of a level, below which it is put together with the others
_MOST_LEVELS = 128  # with a column of their own
_RANKS = np.sqrt(12.0)  # times uniform ranks: columns of variance 1
_GAP = "a missing value"  # the level of a gap; text is kept apart by its type


# ---------------------------------------------------------------- columns as they are given


def read_columns(estimator, X, reset):
    """Return the columns of a table as arrays, and which hold categories by their dtype.

    Numbers come as float64 with NaN for gaps; categories as objects with None for gaps.
    """
    if is_array_api(X):
        raise TypeError(
            f"X must be a NumPy array or a data frame, got {type(X).__module__}."
            f"{type(X).__name__}: pass it as a NumPy array."
        )
    if sp.issparse(X):
        raise TypeError("X must not be sparse, because columns are ranked: pass X.toarray().")
    if hasattr(X, "schema") and not hasattr(X, "to_dicts"):  # pyarrow, or a query of polars
        raise TypeError(
            f"X must be a NumPy array or a data frame of pandas or polars, got {type(X).__name__}: "
            "pass X.to_pandas() or X.collect()."
        )
    if not hasattr(X, "columns"):
        array = X if isinstance(X, np.ndarray) else np.array(X, dtype=_dtype_of_lists(X))
        if array.dtype.kind not in "OUST" or array.ndim != 2 or not array.size:
            rows = validate_rows(estimator, array, reset=reset, allow_nan=True)
            return [x.astype(np.float64) for x in rows.T], [False] * rows.shape[1]
        _check_n_features(estimator, array, reset=reset)
        _check_feature_names(estimator, array, reset=reset)
        return _read(array.T.astype(object), range(array.shape[1]), [False] * array.shape[1])
    if 0 in X.shape:
        raise ValueError(f"X must have rows and columns, got shape {tuple(X.shape)}.")
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)
    check_are_numbers("X", X)  # dates
    names = list(X.columns)
    given = [X.iloc[:, j] if hasattr(X, "iloc") else X[name] for j, name in enumerate(names)]
    declared = [str(column.dtype).split("(")[0] in _CATEGORIES for column in given]
    return _read(map(_as_objects, given), names, declared)


_CATEGORIES = ("category", "Categorical", "Enum")


def _dtype_of_lists(X):
    """Return None for lists of numbers, and object if some entries are text."""
    array = np.asarray(X)
    return None if array.dtype.kind not in "US" else object


def _as_objects(column):
    """Return a column of a data frame as a float64 array, or as one of objects."""
    kind = getattr(column.dtype, "kind", None)
    if kind in ("f", "i", "u") and not hasattr(column, "isna"):
        return column.to_numpy().astype(np.float64)
    if hasattr(column, "isna"):  # pandas
        if kind in ("f", "i", "u"):
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        values = column.astype(object).to_numpy(dtype=object, copy=True)
        values[column.isna().to_numpy()] = None
        return values
    if hasattr(column.dtype, "is_numeric") and column.dtype.is_numeric():  # polars
        return column.cast(float).to_numpy().astype(np.float64)
    return np.array(column.to_list(), dtype=object)


def _read(columns, names, declared):
    """Return columns as floats or categories, and which are categories."""
    read, are_categories = [], []
    for values, name, is_category in zip(columns, names, declared, strict=True):
        values, is_number = np.asarray(values), False
        if values.dtype.kind == "O":
            is_gap = np.array([value is None or value != value for value in values], bool)
            known = values[~is_gap]
            is_number = not is_category and all(_is_number(value) for value in known)
        if values.dtype.kind == "O" and is_number:
            numbers = np.full(len(values), np.nan)
            numbers[~is_gap] = known.astype(np.float64)
            values = numbers
        elif values.dtype.kind == "O":
            kinds = {type(value) for value in known if not isinstance(value, Hashable)}
            kinds |= {type(value) for value in known if isinstance(value, complex)}
            if kinds:
                raise TypeError(
                    f"X must hold numbers and text, got {min(kinds, key=str).__name__} in column "
                    f"{name!r}."
                )
            values = values.copy()
            values[is_gap] = None
        if values.dtype.kind == "f" and np.isinf(values).any():
            raise ValueError(
                f"X must hold finite numbers, or NaN for a gap, got infinity in column {name!r}."
            )
        read.append(values)
        are_categories.append(values.dtype.kind == "O")
    return read, are_categories


def _is_number(value):
    return isinstance(value, Number) and not isinstance(value, (bool, np.bool_, complex))


def categories_of(categorical, by_dtype, names):
    """Return which columns are categories, given `categorical_features`.

    Parameters
    ----------
    categorical : {"from_dtype"}, array-like or None
        As estimators take it.
    by_dtype : list of bool
        Columns whose dtype says so.
    names : array of str or None
        Names of the columns.
    """
    if isinstance(categorical, str) and categorical == "from_dtype":
        return np.array(by_dtype)
    chosen = np.zeros(len(by_dtype), bool)
    given = np.asarray([] if categorical is None else categorical)
    text = ", ".join(repr(one) for one in given[:5].tolist())
    if given.dtype.kind == "b" and len(given) == len(chosen):
        chosen = given.copy()
    elif given.dtype.kind in "iu" and given.size and 0 <= given.min() <= given.max() < len(chosen):
        chosen[given] = True
    elif given.dtype.kind in "UO" and names is not None and np.isin(given, names).all():
        chosen = np.isin(names, given)
    elif given.size:
        raise ValueError(
            "categorical_features must be 'from_dtype', None, or a mask, places or names of "
            f"columns of X, of which there are {len(chosen)}, got {text}."
        )
    left = np.flatnonzero(np.array(by_dtype) & ~chosen)
    if len(left):
        name = int(left[0]) if names is None else names[left[0]]
        raise ValueError(
            f"categorical_features must name column {name!r}, which holds no numbers, got "
            f"{text or categorical}."
        )
    return chosen


# ---------------------------------------------------------------- columns of numbers


@dataclass(frozen=True, eq=False)
class Levels:
    """Levels of a category that have a column of their own.

    Parameters
    ----------
    place : dict
        The column of every level that has one; of two levels, only the second has.
    rest : int or None
        The column of rare levels, and of those that were never seen.
    n_columns : int
        Number of columns.
    """

    place: dict
    rest: int | None
    n_columns: int

    @classmethod
    def of(cls, values):
        """Return the levels of a column, in the order of their names."""
        counts = {}
        for value in map(_level, values):
            counts[value] = counts.get(value, 0) + 1
        known = sorted(counts, key=lambda one: (-counts[one], str(type(one)), one))
        least = min(_RARE, max(counts.values()))
        common = [one for one in known[:_MOST_LEVELS] if counts[one] >= least]
        rest = len(common) if len(common) < len(known) else None
        if len(known) == 2:
            return cls({known[1]: 0}, None, 1)
        n_columns = len(common) + (rest is not None)
        return cls({one: k for k, one in enumerate(common)}, rest, n_columns)

    def __call__(self, values):
        """Return a column of 0 and 1 per level, (n, n_columns)."""
        columns = np.zeros((len(values), self.n_columns), np.float32)
        places = [self.place.get(_level(value), self.rest) for value in values]
        rows = [i for i, place in enumerate(places) if place is not None]
        columns[rows, [places[i] for i in rows]] = 1
        return columns


def _level(value):
    """Return what stands for a value: integers and floats alike, gaps alike."""
    if value is None or value != value:
        return (_GAP,)
    return value.item() if isinstance(value, np.generic) else value


def comparable(columns):
    """Return numbers, (n, d), that are equal where the values of columns are."""
    return np.column_stack([_comparable(column) for column in columns])


def _comparable(column):
    if column.dtype.kind != "O":
        return np.where(np.isnan(column), np.nan, column)  # of all signs
    codes = {}
    return np.array([codes.setdefault(_level(value), len(codes)) for value in column], float)


@dataclass(frozen=True, eq=False)
class Table:
    """How the columns of a table become columns of numbers.

    Parameters
    ----------
    are_categories : ndarray of bool of shape (d,)
        Which columns of the table are categories.
    scaler : SmoothClipScaler or None
        Of the numbers.
    medians : ndarray of shape (n_numbers,)
        What fills gaps.
    has_gaps : ndarray of bool of shape (n_numbers,)
        Which numbers had gaps, and so have a column that marks them.
    levels : list of Levels
        Of the categories.
    kept : ndarray of bool of shape (n_columns,)
        Columns that are not constant, ranks among them.
    """

    are_categories: np.ndarray
    scaler: SmoothClipScaler | None
    medians: np.ndarray
    has_gaps: np.ndarray
    levels: list
    kept: np.ndarray

    @classmethod
    def of(cls, columns, are_categories, weights):
        """Return the table of training rows, and its columns of numbers."""
        numbers = _numbers(columns, are_categories)
        scaler = None
        if numbers.shape[1]:
            scaler = SmoothClipScaler(ranks=True).fit(numbers, sample_weight=weights)
        medians = np.zeros(0) if scaler is None else scaler.center_
        levels = [
            Levels.of(column)
            for column, is_category in zip(columns, are_categories, strict=True)
            if is_category
        ]
        has_gaps = np.isnan(numbers).any(axis=0)
        table = cls(are_categories, scaler, medians, has_gaps, levels, np.array(True))
        encoded = table(columns)
        kept = np.ptp(encoded, axis=0) > 0
        if not kept.any():  # all rows are alike
            kept[:1] = True
        table = cls(are_categories, scaler, medians, has_gaps, levels, kept)
        return table, encoded[:, kept]

    @property
    def are_ranks(self):
        """Which of the columns are ranks."""
        n = len(self.medians)
        ranks = np.arange(self.kept.size)
        return ((ranks >= n) & (ranks < 2 * n))[self.kept]

    @property
    def sources(self):
        """The column of the table that each column comes from."""
        numbers, categories = (np.flatnonzero(self.are_categories == k) for k in (False, True))
        of_levels = np.repeat(categories, [one.n_columns for one in self.levels])
        sources = np.concatenate([numbers, numbers, numbers[self.has_gaps], of_levels])
        return sources[self.kept]

    def __call__(self, columns):
        """Return the columns of numbers, float32, of rows given by their columns."""
        numbers, parts = _numbers(columns, self.are_categories), []
        if self.scaler is not None:
            is_gap = np.isnan(numbers)
            bent = self.scaler.transform(np.where(is_gap, self.medians, numbers))
            n = numbers.shape[1]
            parts = [bent[:, :n], _RANKS * (bent[:, n:] - 0.5), is_gap[:, self.has_gaps]]
        given = [one for one, is_one in zip(columns, self.are_categories, strict=True) if is_one]
        parts += [levels(column) for levels, column in zip(self.levels, given, strict=True)]
        encoded = np.hstack([np.asarray(part, np.float32) for part in parts])
        return np.ascontiguousarray(encoded[:, self.kept] if self.kept.ndim else encoded)


def _numbers(columns, are_categories):
    """Return the columns of numbers side by side."""
    places = np.flatnonzero(~are_categories).tolist()
    numbers = [columns[place] for place in places]
    for place, column in zip(places, numbers, strict=True):
        if column.dtype.kind == "O":
            raise TypeError(
                f"X must hold numbers in column {place}, which did in fit, got text or categories."
            )
    return np.column_stack(numbers) if numbers else np.zeros((len(columns[0]), 0))
