"""Tables of numbers and categories as columns of numbers, for kernels of distances.

Numbers are centred, scaled and bent by `SmoothClipScaler`; categories become a column of 0 and 1
per level. Gaps of numbers are filled with the median and marked, those of categories are a level.
"""

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from numbers import Number

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import _check_feature_names, _check_n_features

from .._arrays import is_array_api
from .._memory import check_fits
from .._validation import check_are_numbers, validate_rows
from .._warnings import warn
from ..features import SmoothClipScaler

_RARE = 3  # rows of a level, below which it is put together with the others
_MOST_LEVELS = 128  # with a column of their own
_RANKS = np.sqrt(12.0)  # times uniform ranks: columns of variance 1
_GAP = "a missing value"  # the level of a gap; text is kept apart by its type
_FEW_LEVELS = 12  # of text, up to which numbers and dates may well be names
_MOST = 0.9  # share of the levels that look like numbers, or of the rows that have their own level
_SURE = 5  # rows of known levels that are expected before it is said that there are none
_COPIES = 4  # of the columns in float32 that a fit holds at once
_NAMED = 5  # columns that a warning names

# Numbers as people write them, without spaces and signs of currencies, and dates.
_UNITS = dict.fromkeys(map(ord, " \t\u00a0\u2009\u202f$€£¥%'"))
_NUMBER = re.compile(
    r"(?=.*\d)[-+\u2212]?(\d{1,3}(,\d{3})+|\d{1,3}(\.\d{3})+|\d*)([.,]\d*)?(e[-+]?\d+)?",
    re.IGNORECASE,
)
_CODE = re.compile(r"\s*0\d+\s*")  # such as a postcode
_DATE = re.compile(
    r"\s*(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]\d{1,2}:\d\d.*)?\s*"
)


# ---------------------------------------------------------------- columns as they are given


def read_columns(estimator, X, reset):
    """Return the columns of a table as arrays, and what each holds by its dtype.

    Numbers come as float64 with NaN for gaps; categories as objects with None for gaps. The latter
    hold "text", or are a "category" that the dtype declares, booleans among them.
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
        if array.ndim != 2:
            raise ValueError(
                f"Expected 2D array for X, got {array.ndim}D array instead. Reshape your data: "
                "X.reshape(-1, 1) is a single column, X.reshape(1, -1) a single row."
            )
        if array.dtype.kind not in "OUST" or not array.size:
            rows = validate_rows(estimator, array, reset=reset, allow_nan=True)
            return [x.astype(np.float64) for x in rows.T], ["number"] * rows.shape[1]
        check_are_numbers("X", array)  # dates, and masked entries
        _check_n_features(estimator, array, reset=reset)
        _check_feature_names(estimator, array, reset=reset)
        return _read(array.T.astype(object), range(array.shape[1]), [False] * array.shape[1])
    twice = [name for name, count in Counter(X.columns).items() if count > 1]
    if twice:
        raise ValueError(
            f"X must have columns of different names, got {twice[0]!r} more than once: rename the "
            "columns, or leave copies out."
        )
    if 0 in X.shape:
        raise ValueError(f"X must have rows and columns, got shape {tuple(X.shape)}.")
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)
    check_are_numbers("X", X)  # dates
    names = list(X.columns)
    columns = [X.iloc[:, j] if hasattr(X, "iloc") else X[name] for j, name in enumerate(names)]
    declared = [str(column.dtype).split("(")[0] in _CATEGORIES for column in columns]
    return _read(map(_as_objects, columns), names, declared)


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
    """Return columns as floats or categories, and what each holds."""
    read, kinds = [], []
    for values, name, is_category in zip(columns, names, declared, strict=True):
        values, kind = np.asarray(values), "number"
        if values.dtype.kind == "O":
            values, kind = _read_objects(values, name, is_category)
        if values.dtype.kind == "f" and np.isinf(values).any():
            raise ValueError(
                f"X must hold finite numbers, or NaN for a gap, got infinity in column {name!r}."
            )
        read.append(values)
        kinds.append(kind)
    return read, kinds


def _read_objects(values, name, is_category):
    types = set(map(type, values))
    odd = [kind for kind in types if not issubclass(kind, Hashable) or issubclass(kind, complex)]
    if odd:
        raise TypeError(
            f"X must hold numbers and text, got {min(odd, key=str).__name__} in column {name!r}."
        )
    missing = tuple(kind for kind in types if kind.__name__ in ("NoneType", "NAType"))
    is_gap = np.array([isinstance(value, missing) or value != value for value in values], bool)
    known = values[~is_gap]
    types = set(map(type, known))
    if not is_category and all(map(_is_of_numbers, types)):
        numbers = np.full(len(values), np.nan)
        numbers[~is_gap] = known.astype(np.float64)
        return numbers, "number"
    values = values.copy()
    values[is_gap] = None
    return values, "category" if is_category or types <= {bool, np.bool_} else "text"


def _is_of_numbers(kind):
    return issubclass(kind, Number) and not issubclass(kind, (bool, np.bool_, complex))


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
    text = ", ".join(map(repr, given[:5].tolist()))
    if given.dtype.kind == "b" and len(given) == len(chosen):
        chosen = given.copy()
    elif given.dtype.kind in "iu" and given.size and 0 <= given.min() <= given.max() < len(chosen):
        chosen[given] = True
    elif given.dtype.kind in "UO" and names is not None and np.isin(given, names).all():
        chosen = np.isin(names, given)
    elif given.size:
        raise ValueError(
            "categorical_features must be 'from_dtype', None, or a mask, indices or names of "
            f"the {len(chosen)} columns of X, got {text}."
        )
    left = np.flatnonzero(np.array(by_dtype) & ~chosen)
    if len(left):
        name = int(left[0]) if names is None else names[left[0]]
        raise ValueError(
            f"categorical_features must name column {name!r}, which holds no numbers, got "
            f"{text or categorical}."
        )
    return chosen


# ---------------------------------------------------------------- columns that say something else


def warn_of_text(columns, are_undeclared, table, names):
    """Warn of numbers and dates that are text, and of categories that tell rows apart.

    Parameters
    ----------
    columns : list of ndarray
        Columns of training rows.
    are_undeclared : sequence of bool
        Which hold text that nobody has called a category.
    table : Table
        What they become.
    names : list
        Names of the columns, or their places.
    """
    numbers, dates, identifiers = [], [], []
    places = np.flatnonzero(table.are_categories).tolist()
    for place, levels in zip(places, table.levels, strict=True):
        text = set(columns[place]) - {None} if are_undeclared[place] else ()
        text = sorted(set(map(str, text)), key=lambda level: (len(level), level))
        n, name = len(text), repr(names[place])
        are_numbers = [_looks_like_a_number(level) for level in text]
        if n > _FEW_LEVELS and sum(map(bool, map(_DATE.fullmatch, text))) >= _MOST * n:
            dates.append(f"{name} ({n} levels, such as {text[-1]!r})")
        elif (
            n > _FEW_LEVELS
            and sum(are_numbers) >= _MOST * n
            and not any(map(_CODE.fullmatch, text))
        ):
            odd = [level for level, is_one in zip(text, are_numbers, strict=True) if not is_one]
            odd = odd or [level for level in text if not _is_float(level)]
            but = f"{odd[0]!r} is not a number" if odd else f"such as {text[0]!r}"
            numbers.append(f"{name} ({n} levels; {but})")
        elif levels.are_identifiers:
            identifiers.append(f"{name} ({levels.n_levels} levels)")
    names_them = (
        "If the levels are names, list the column in categorical_features, or give it the dtype "
        "'category'."
    )
    if numbers:
        _warn(
            f"X has numbers as text in {_listed(numbers)}. Each level becomes a category without "
            "an order: pass numbers, with NaN for gaps (pd.read_csv has na_values, decimal and "
            "thousands; a NumPy array with text holds nothing else, a data frame holds both). "
            f"{names_them}",
            "numbers",
        )
    if dates:
        _warn(
            f"X has dates as text in {_listed(dates)}. Each level becomes a category without an "
            "order: pass the time since some t0, such as (pd.to_datetime(column) - t0) / "
            f"pd.Timedelta('1D'). {names_them}",
            "dates",
        )
    if identifiers:
        _warn(
            f"X has a different value in nearly every row of {_listed(identifiers)}, like an "
            "identifier or free text, which says nothing about other rows: drop the column.",
            "identifiers",
        )


def _warn(text, key):
    warn(text, UserWarning, ("tables", key))


def _listed(columns):
    """Return a list of columns in words."""
    text = ("column " if len(columns) == 1 else "columns ") + ", ".join(columns[:_NAMED])
    return text + f" and {len(columns) - _NAMED} more" * (len(columns) > _NAMED)


def _looks_like_a_number(text):
    text = text.translate(_UNITS)
    return bool(_NUMBER.fullmatch(text))


def _is_float(text):
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


# ---------------------------------------------------------------- columns of numbers


@dataclass(frozen=True, eq=False)
class Levels:
    """Levels of a category that have a column of their own.

    ``OneHotEncoder`` of scikit-learn takes no levels of several types, keeps None and NaN apart,
    and puts all levels of two rows together where none has more.

    Parameters
    ----------
    place : dict
        The column of every level that has one; of two levels, only the second has.
    rest : int or None
        The column of rare levels, and of those that were never seen.
    n_columns : int
        Number of columns.
    kinds : frozenset of str
        What they are: text, numbers or others, none of which equals another.
    n_levels, n_known : int
        Number of levels, and of rows that have one, without gaps.
    n_common : int
        Number of rows of levels that have a column.
    """

    place: dict
    rest: int | None
    n_columns: int
    kinds: frozenset
    n_levels: int
    n_known: int
    n_common: int

    @classmethod
    def of(cls, values):
        """Return the levels of a column, in the order of their names."""
        counts = Counter(map(_level, values))
        known = sorted(counts, key=lambda level: (-counts[level], str(type(level)), _rank(level)))
        # A level of a single row says nothing about other rows.
        least = max(min(_RARE, max(counts.values())), 2)
        common = [level for level in known[:_MOST_LEVELS] if counts[level] >= least]
        places = {level: k for k, level in enumerate(common)}
        rest = len(common) if len(common) < len(known) else None
        n_columns = len(common) + (rest is not None)
        if len(known) == 2 and common:
            places, rest, n_columns = {known[0]: None, known[1]: 0}, None, 1
        levels = [level for level in known if level != (_GAP,)]
        n_known, n_common = (
            sum(counts[level] for level in group) for group in (levels, set(levels) & places.keys())
        )
        kinds = frozenset(map(_kind, levels))
        return cls(places, rest, n_columns, kinds, len(levels), n_known, n_common)

    @property
    def are_identifiers(self):
        """Whether nearly every row has a level of its own."""
        return self.n_known > 1 and self.n_levels >= _MOST * self.n_known

    def check(self, values, name):
        """Raise if values cannot equal any level by their type, and warn if none of them does."""
        values = [level for level in map(_level, values) if level != (_GAP,)]
        example = next((level for level in self.place if level != (_GAP,)), None)
        if self.kinds and values and self.kinds.isdisjoint(map(_kind, values)):
            expected, kind = " or ".join(sorted(self.kinds)), _kind(values[0])
            raise TypeError(
                f"X must hold {expected} in column {name!r}, as in fit"
                f"{'' if example is None else f' (such as {example!r})'}, got {kind} (such as "
                f"{values[0]!r}): convert the column, or fit to such columns."
            )
        n_expected = len(values) * self.n_common / max(self.n_known, 1)
        if n_expected >= _SURE and self.place.keys().isdisjoint(values):
            warn(
                f"X has no level in column {name!r} that was frequent in fit (such as "
                f"{example!r}), only others (such as {values[0]!r}), which tell the model "
                "nothing. Check that they are spelled as in fit.",
                UserWarning,
                ("levels", name),
            )

    def __call__(self, values):
        """Return a column of 0 and 1 per level, (n, n_columns)."""
        columns = np.zeros((len(values), self.n_columns), np.float32)
        places = [self.place.get(_level(value), self.rest) for value in values]
        rows = [i for i, place in enumerate(places) if place is not None]
        columns[rows, [places[i] for i in rows]] = 1
        return columns


def _rank(level):
    """Return what levels of a type are sorted by."""
    return level if isinstance(level, (str, Number)) else repr(level)


def _kind(level):
    """Return what a level is, of which only the same can equal it."""
    if isinstance(level, (str, Number)):
        return "text" if isinstance(level, str) else "numbers"
    return type(level).__name__


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
        # A column without any value may be of text later.
        is_empty = [column.dtype.kind == "f" and np.isnan(column).all() for column in columns]
        are_categories = are_categories | np.array(is_empty)
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
        n_columns = 2 * numbers.shape[1] + has_gaps.sum() + sum(level.n_columns for level in levels)
        rows = f"X of {len(columns[0])} rows, whose columns become {n_columns} columns of numbers,"
        check_fits(_COPIES * 4 * n_columns * len(columns[0]), rows, "these")
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
        of_levels = np.repeat(categories, [levels.n_columns for levels in self.levels])
        sources = np.concatenate([numbers, numbers, numbers[self.has_gaps], of_levels])
        return sources[self.kept]

    @property
    def groups(self):
        """Numbers of groups of columns, which are the levels of a category and single columns."""
        is_level = self.are_categories[self.sources]
        single = len(self.are_categories) + np.arange(len(self.sources))
        return np.unique(np.where(is_level, self.sources, single), return_inverse=True)[1]

    def columns_of_kernels(self, encoded):
        """Return the columns for every kernel by name: the Gaussian has no ranks."""
        smooth = encoded
        if self.are_ranks.any():
            smooth = np.ascontiguousarray(encoded[:, ~self.are_ranks])
        return {"laplacian": encoded, "gaussian": smooth}

    def conformed(self, columns, names):
        """Return columns of other rows as they were in fit; see `Levels.check`.

        Parameters
        ----------
        columns : list of ndarray
            The columns.
        names : list
            Their names, or their places.
        """
        columns, levels = list(columns), iter(self.levels)
        for place, is_category in enumerate(self.are_categories.tolist()):
            if is_category:
                next(levels).check(columns[place], names[place])
            else:
                columns[place] = _as_numbers(columns[place], names[place])
        return columns

    def __call__(self, columns):
        """Return the columns of numbers, float32, of rows given by their columns."""
        numbers, parts = _numbers(columns, self.are_categories), []
        if self.scaler is not None:
            is_gap = np.isnan(numbers)
            bent = self.scaler.transform(np.where(is_gap, self.medians, numbers))
            n = numbers.shape[1]
            parts = [bent[:, :n], _RANKS * (bent[:, n:] - 0.5), is_gap[:, self.has_gaps]]
        categories = [columns[place] for place in np.flatnonzero(self.are_categories)]
        parts += [levels(column) for levels, column in zip(self.levels, categories, strict=True)]
        encoded = np.hstack([np.asarray(part, np.float32) for part in parts])
        return np.ascontiguousarray(encoded[:, self.kept] if self.kept.ndim else encoded)


def _numbers(columns, are_categories):
    """Return the columns of numbers side by side."""
    numbers = [columns[place] for place in np.flatnonzero(~are_categories).tolist()]
    return np.column_stack(numbers) if numbers else np.zeros((len(columns[0]), 0))


def _as_numbers(column, name):
    """Return a column that held numbers in fit as floats: booleans and categories may be some."""
    if column.dtype.kind != "O":
        return column
    for value in column:
        if value is not None and not isinstance(value, (Number, np.bool_)):
            raise TypeError(
                f"X must hold numbers in column {name!r}, as in fit, got {_kind(value)} (such as "
                f"{value!r}): convert the column, with NaN for gaps."
            )
    return column.astype(np.float64)  # None becomes NaN
