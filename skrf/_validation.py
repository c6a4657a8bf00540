"""Checks at the public interface: inputs, weights and the wording of their errors."""

import copy
import datetime
import math
import pickle
import re
from contextlib import contextmanager
from numbers import Integral, Real
from operator import attrgetter

import numpy as np
import scipy.sparse as sp
from sklearn.frozen import FrozenEstimator
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d

# Private names of scikit-learn are imported only here.
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions  # noqa: F401
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    check_array,
    check_consistent_length,
    validate_data,
)

from ._arrays import LARGEST, is_array_api, largest_entry, namespace, take, to_host

_FLOATS = (np.float64, np.float32)
_LARGEST_TARGET = 2e307  # differences of targets, and their sums over a few, stay finite
_TIMES = datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64
_TIME = re.compile("date|time|duration|period", re.IGNORECASE)  # names of their types begin so
_PLAIN = {type(None), bool, int, float, str}
_PARAMETERS = {}  # what reads those of a class of estimators
_ROWS = {"accept_sparse": "csr", "dtype": _FLOATS}


@contextmanager
def naming(name):
    """Prepend the name of the input to errors that do not mention it."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        if re.search(rf"\b{name}\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        is_text = "could not convert string to float" in str(error)
        hint = ". Columns of text need an encoder, such as OneHotEncoder." if is_text else ""
        raise kind(f"{name}: {error}{hint}") from error


def validate_rows(estimator, X, *, reset, name="X", allow_nan=False):
    """Return the rows of X as floats, float32 kept and everything else float64.

    Parameters
    ----------
    estimator : BaseEstimator
        Holder of ``n_features_in_`` and ``feature_names_in_``.
    X : array-like, sparse matrix, CuPy array or torch tensor of shape (n, d)
        The rows.
    reset : bool
        Whether X sets the number and names of the features rather than being checked against them.
    name : str, default="X"
        Name of the input in error messages.
    allow_nan : bool, default=False
        Whether entries may be NaN.

    Returns
    -------
    array or csr matrix
        The rows in the library of X.
    """
    if type(X).__module__.partition(".")[0] in ("dask", "dask_expr"):
        hint = f"pass {name}.compute()."
        if hasattr(estimator, "fit_batches"):
            hint = (
                "use skrf.dask.fit(estimator, X, y) and skrf.dask.apply(fitted, X, method) for "
                f"{type(estimator).__name__}, or {hint}"
            )
        raise TypeError(f"{name} belongs to Dask ({type(X).__name__}): {hint}")
    if is_array_api(X):
        return _validate_array_api(estimator, X, reset=reset, name=name, allow_nan=allow_nan)
    options = {**_ROWS, "ensure_all_finite": "allow-nan" if allow_nan else True}
    # scikit-learn looks at single entries only if their sum is not finite, which may be inf - inf.
    with np.errstate(invalid="ignore"):
        check_are_numbers(name, X)
        if not reset and _is_plain(estimator, X):
            # The checks of check_array that apply to such an array.
            kind = type(estimator).__name__
            assert_all_finite(X, allow_nan=allow_nan, estimator_name=kind, input_name=name)
            return X
        if name == "X":
            with naming(name):
                return _canonical(validate_data(estimator, X, reset=reset, **options))
        _check_feature_names(estimator, X, reset=False)
        with naming(name):
            rows = check_array(X, input_name=name, estimator=estimator, **options)
    _same_width(estimator, rows, name)
    return _canonical(rows)


def check_are_numbers(name, values):
    """Raise if an entry is masked, or if a column holds dates or times.

    They would count as numbers: a masked entry as what the mask hides, a missing date as -2^63.
    """
    check_not_masked(name, values)
    for column, kind in _columns_of_objects(values):
        if _TIME.match(kind):
            place = "" if column is None else f" in column {column!r}"
            raise TypeError(
                f"{name} has dates or times{place} ({kind}), which are not numbers: pass the time "
                'since some t0, such as (t - t0) / pd.Timedelta("1D").'
            )


def check_not_masked(name, values):
    """Raise if an entry of a masked array is masked."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(
            f"{name} has {np.ma.count_masked(values)} masked entries of {values.size}: leave these "
            "rows out, or fill the entries in."
        )


def _columns_of_objects(values):
    """Yield the columns of a table, series or array that may hold times, and what they hold."""
    schema = getattr(values, "schema", None)
    if hasattr(schema, "items"):  # polars
        yield from ((name, str(kind)) for name, kind in schema.items())
    elif hasattr(schema, "types"):  # pyarrow
        yield from zip(schema.names, map(str, schema.types), strict=True)
    elif hasattr(values, "iloc"):  # pandas
        is_table = values.ndim == 2
        kinds = list(values.dtypes) if is_table else [values.dtype]
        for place in (k for k, kind in enumerate(kinds) if kind.kind not in "biuf"):
            column = values.iloc[:, place] if is_table else values
            yield column.name, _kind_of(column, kinds[place])
    elif getattr(getattr(values, "dtype", None), "kind", "O") in "OmM" and not is_array_api(values):
        try:
            array = np.asarray(values)
        except (TypeError, ValueError):  # ragged, as its conversion to floats will say
            return
        if array.ndim and array.size and array.dtype.kind in "OmM":
            for place, column in enumerate(array.reshape(len(array), -1).T):
                yield place if array.ndim > 1 else None, _kind_of(column, array.dtype)


def _kind_of(column, dtype):
    """Return the name of a dtype, and of objects that of a type of times."""
    if hasattr(dtype, "categories"):
        column, dtype = dtype.categories, dtype.categories.dtype
    kinds = set(map(type, column)) if dtype.kind == "O" else ()
    times = sorted(kind.__name__ for kind in kinds if issubclass(kind, _TIMES))
    return next(filter(_TIME.match, times), str(dtype))  # NaTType alone says nothing


def _is_plain(estimator, X):
    """Return whether X is a matrix of floats with the right width, and no names are known."""
    return (
        type(X) is np.ndarray
        and X.ndim == 2
        and X.dtype in _FLOATS
        and X.shape[0] > 0
        and X.shape[1] == getattr(estimator, "n_features_in_", 0)
        and not hasattr(estimator, "feature_names_in_")
    )


def _canonical(rows):
    """Return sparse rows with every entry stored once, without which squares would be wrong."""
    if sp.issparse(rows) and not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def _validate_array_api(estimator, X, *, reset, name, allow_nan):
    xp = namespace(X)
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array for {name}, got {X.ndim}D array instead.")
    if X.shape[0] < 1 or X.shape[1] < 1:
        raise ValueError(
            f"Found array {name} with shape {tuple(X.shape)} while a minimum of 1 row and "
            "1 feature is required."
        )
    if xp.isdtype(X.dtype, "complex floating"):
        raise ValueError(f"Complex data not supported in {name}, got dtype {X.dtype}.")
    if X.dtype not in (xp.float32, xp.float64):
        X = xp.astype(X, xp.float64)
    is_valid = ~xp.isinf(X) if allow_nan else xp.isfinite(X)
    if not bool(xp.all(is_valid)):
        what = "infinity" if allow_nan else "NaN or infinity"
        raise ValueError(f"Input {name} contains {what}.")
    _check_feature_names(estimator, X, reset=reset)
    if name == "X":
        _check_n_features(estimator, X, reset=reset)
    else:
        _same_width(estimator, X, name)
    return X


def _same_width(estimator, rows, name):
    if rows.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"{name} has {rows.shape[1]} features, but {type(estimator).__name__} was fitted "
            f"with {estimator.n_features_in_} features in X."
        )


def check_range(name, rows):
    """Raise unless all entries are finite and statistics of their squares can be computed."""
    largest = largest_entry(rows)
    if not math.isfinite(largest):
        raise ValueError(f"{name} contains NaN or infinity; all entries must be finite.")
    if largest > LARGEST:
        raise ValueError(
            f"{name} is too large for its statistics: entries must be at most {LARGEST:g}. The "
            f"largest entry of {name} is {largest:.4g}."
        )


def check_rows(name, X):
    """Return rows, dense or CSR, float32 or float64, or raise and name them."""
    with naming(name):
        check_are_numbers(name, X)
        return check_array(X, input_name=name, **_ROWS)


def check_weights(sample_weight, X):
    """Return weights of the rows of X as float64: at least 0, and some of them positive."""
    with naming("sample_weight"):
        # It reads only the number of rows of X, so arrays of other libraries stay where they are.
        rows = np.empty((X.shape[0], 0)) if is_array_api(X) else X
        check_are_numbers("sample_weight", sample_weight)
        weights = to_host(sample_weight)
        weights = _check_sample_weight(weights, rows, dtype=np.float64, copy=False)
    if weights.min() < 0:
        raise ValueError(f"sample_weight must be >= 0 everywhere, got {float(weights.min())!r}.")
    if not weights.any():
        raise ValueError("sample_weight must be positive for at least one row, got only 0.")
    return weights


def drop_zero_weights(sample_weight, X, *others):
    """Validate weights and drop the rows of weight zero.

    Parameters
    ----------
    sample_weight : array-like of shape (n,), float or None
        Weights of the rows of X, at least 0; None is 1 for every row.
    X : array of shape (n, d)
        The rows.
    *others : array of shape (n, ...)
        Arrays with the same number of rows, from which the same rows are dropped.

    Returns
    -------
    tuple
        The positive weights (None if none were given), X and the others.
    """
    if sample_weight is None:
        return (None, X, *others)
    weights = check_weights(sample_weight, X)
    keep = weights > 0
    if keep.all():
        return (weights, X, *others)
    rows = X.tocsr() if sp.issparse(X) else X
    keep = np.flatnonzero(keep)
    return (weights[keep], take(rows, keep), *(other[keep] for other in others))


def as_generator(random_state):
    """Return a RandomState, or raise and name the parameter."""
    try:
        return check_random_state(random_state)
    except ValueError as error:
        raise ValueError(
            "random_state must be an int from 0 to 2**32 - 1, a RandomState instance or None, got "
            f"{random_state!r}."
        ) from error


def draw_seed(random_state):
    """Return the one integer drawn from a ``random_state``."""
    return int(as_generator(random_state).randint(np.iinfo(np.int32).max))


def rng_of(seed, *stream):
    """Return the generator of a stream of a seed: numbers that say what it draws."""
    return np.random.default_rng([seed, *stream])


# ---------------------------------------------------------------- fitting, all or nothing

_STATE = "_fitted"  # name of the estimators' private fitted state


def draft_of(estimator, *, forget=True):
    """Return a copy to fit, so that a fit that raises leaves the estimator as it was.

    Parameters
    ----------
    estimator : BaseEstimator
        The estimator to fit. Its private fitted state is in ``_fitted``.
    forget : bool, default=True
        Whether the copy is unfitted.
    """
    draft = copy.copy(estimator)
    if forget:
        for name in list(vars(draft)):
            if name.endswith("_") or name == _STATE:
                del vars(draft)[name]
    return draft


def commit(estimator, draft):
    """Give an estimator the attributes of a fitted draft in one assignment, and return it."""
    estimator.__dict__ = vars(draft)
    return estimator


def check_unchanged(estimator, before, what="partial_fit goes on where it began"):
    """Raise unless parameters equal those of a dict, for a fit that continues."""
    changed = ", ".join(
        f"{name}={value!r} was {before.get(name)!r}"
        for name, value in estimator.get_params().items()
        if snapshot(value) != snapshot(before.get(name))
    )
    if changed:
        raise ValueError(f"{what}, but {changed}: call fit.")


def snapshot(value):
    """Return a snapshot that later equals another one only if the value is the same bit for bit."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.shape, value.dtype.char, value.tobytes()
    if kind in (list, tuple):
        return [item if type(item) in _PLAIN else snapshot(item) for item in value]
    if kind in _PARAMETERS:
        return kind, snapshot(_PARAMETERS[kind](value))
    if kind is FrozenEstimator:
        return kind, _state(value.estimator)
    if hasattr(value, "get_params") and not isinstance(value, type):
        names = tuple(value.get_params(deep=False))
        if len(names) < 2:
            return kind, snapshot([getattr(value, name) for name in names])
        _PARAMETERS[kind] = attrgetter(*names)  # reading a signature is slow
        return snapshot(value)
    if hasattr(value, "__array__"):
        value = np.asarray(value)
        return snapshot(value) if not value.dtype.hasobject else value.tolist()
    return value if callable(value) else (kind, value)  # pickles hold functions, not their type


def _state(value):
    """Return a snapshot of a fitted estimator, in which every fit replaces something."""
    if isinstance(value, (list, tuple)):
        return [_state(item) for item in value]
    if hasattr(value, "get_params") and not isinstance(value, type):
        held = vars(value)
        if held.get(_STATE) is not None:  # which every fit of ours replaces
            return type(value), _Itself(held[_STATE])
        return type(value), {name: _state(item) for name, item in held.items()}
    is_read = type(value) in _PLAIN or hasattr(value, "__array__")
    return snapshot(value) if is_read else _Itself(value)


class _Itself:
    """A value that equals nothing but itself."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, _Itself) and self.value is other.value


def read_only(value):
    """Return a value; an array is made read-only, because copies of an estimator share it."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value


def check_present(name, values):
    """Raise if a value in an array of objects or dates is missing: None, NaN, NaT or NA."""
    if values.dtype.kind not in "OmM":
        return
    missing = np.flatnonzero([_is_missing(value) for value in values.ravel()])
    if len(missing):
        raise ValueError(
            f"{name} has missing values, the first of them {values.ravel()[missing[0]]!r} at "
            f"position {missing[0]}: leave these rows out."
        )


def as_numpy(name, values):
    """Return labels or targets as a NumPy array, in which integers and booleans stay what they are.

    Those of pandas that may be missing, and of Arrow, become floats elsewhere, which distinguish no
    integers above 2^53; with missing entries they are objects here.
    """
    check_not_masked(name, values)
    values = to_host(values)
    if hasattr(values, "iloc"):
        is_table = values.ndim == 2
        kinds = values.dtypes if is_table else [values.dtype]
        plain = {getattr(kind, "numpy_dtype", None) for kind in kinds}
        if len(plain) == 1 and (dtype := plain.pop()) is not None and dtype.kind in "biuf":
            has_all = not values.isna().to_numpy().any()
            return values.to_numpy(dtype=dtype if has_all else object)
    return np.asarray(values)


def check_targets(X, y):
    """Return the targets of rows as float64, or raise and name what is wrong or missing."""
    with naming("y"):
        given, y = y, as_numpy("y", y)
        check_present("y", y)
        check_are_numbers("y", given)
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(X, y)
        if not np.abs(y).max(initial=0) <= _LARGEST_TARGET:
            raise ValueError(
                f"y must hold targets up to {_LARGEST_TARGET:g}, got {np.abs(y).max():.3g}: divide "
                "them by a number."
            )
        return y


def check_labels(name, values):
    """Return labels as a flat array, or raise and name what is wrong or missing."""
    with naming(name):
        labels = column_or_1d(as_numpy(name, values), warn=True)
        check_present(name, labels)
        assert_all_finite(labels, input_name=name)
        return labels


def check_classes(X, y, classes=None):
    """Return labels of rows as a flat array; given classes need not look like classes."""
    y = check_labels("y", y)
    with naming("y"), np.errstate(invalid="ignore"):  # scikit-learn compares floats with integers
        check_consistent_length(X, y)
        is_odd = y.dtype.kind in "fO" and type_of_target(y) not in ("binary", "multiclass")
        if classes is None or is_odd:
            check_classification_targets(y)
    return y


def check_indicators(X, y):
    """Return labels of which a row may have several, (n, n_labels), or raise if not 0 and 1."""
    with naming("y"):
        y = y.toarray() if sp.issparse(y) else as_numpy("y", y)
        check_consistent_length(X, y)
    if not np.isin(y, (0, 1)).all():
        raise ValueError(
            "y must hold one label per row, or 0 and 1 for every label that a row may have, got "
            f"{y.shape[1]} columns of other values."
        )
    return y.astype(int)


def _is_missing(value):
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA is neither equal to itself nor different
        return True


def check_positive(name, value):
    """Return a finite number > 0 as a float, or raise and name it."""
    is_real = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    try:
        number = float(value) if is_real else np.nan
    except OverflowError:  # an int beyond all floats
        number = np.inf
    if not 0 < number < np.inf:
        kind = ValueError if is_real else TypeError
        raise kind(f"{name} must be a finite number > 0, got {value!r}.")
    return number


def check_integer(name, value, least=1):
    """Return an integer of at least `least` as an int, or raise and name it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        shape = getattr(value, "shape", ())  # rows given in its place would fill the screen
        shown = f"an array of shape {shape}" if shape else repr(value)
        raise ValueError(f"{name} must be an integer >= {least}, got {shown}.")
    return int(value)


def same(one, other):
    """Return whether two values hold the same, bit for bit."""
    if one is other:
        return True
    # Pickled twice, because what is read back shares its names and lays out arrays uniformly.
    texts = [pickle.dumps(pickle.loads(pickle.dumps(value))) for value in (one, other)]
    return texts[0] == texts[1]
