"""Bad input: every error names the parameter, the value and what is allowed.

scikit-learn's own messages stand for the contents of X; keys, Y and sample_weight are named.
"""

import re
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from instances import MECHANISMS, accepts, make
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skrf import (
    AdaptiveRF,
    ApproxKernelAttention,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    KernelMachineRegressor,
    KernelOperator,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    RelevanceProjection,
    RelevanceScaler,
    RFFSampler,
    theory,
)
from skrf.attention import ToeplitzMask, compare_attention, exact_attention
from skrf.projections import COUPLINGS

X = np.random.default_rng(0).normal(size=(20, 4))
y = np.arange(20) % 3
REGRESSIONS = KernelRegressionClassifier, KernelRegressor
REFUSED = ValueError, TypeError


def says(*words, call, given=(), error=REFUSED):
    """Check that call(*given) raises an error that has all the words, and return its message."""
    with pytest.raises(error) as caught:
        call(*given)
    text = str(caught.value)
    for word in map(str, words):
        # A name or a number as such, not as a part of another.
        assert re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text), f"{word!r} not in {text!r}"
    return text


@pytest.mark.parametrize(
    "model", [ApproxKernelRidge(), KernelMachineRegressor(), KernelRegressor()]
)
def test_targets_whose_differences_overflow_are_named(model):
    targets = np.where(y == 0, 1.7e308, -1.7e308)
    says("y", "1.7e+308", "2e+307", call=model.fit, given=(X, targets))


# ------------------------------------------------------------------ parameters

WRONG = {
    "n_components": ((0, -3, 2.5, "10", None, np.nan), ("int", "[1, inf)")),
    "sigma": (
        (0, -1.0, np.nan, np.inf, -np.inf, 1e200, "scal", [1.0]),
        ("scale", "median", "float", "in the range (0.0, "),
    ),
    "random_state": (("seed", -1), ("int",)),
    "center": (("no",), ("bool",)),
    "kernel": (("gausian",), ("'gaussian'", "'softmax'")),
    "coupling": (("gausian",), tuple(map(repr, COUPLINGS))),
    "projection": (("gausian",), ("'dense'", "'hadamard'")),
    "variant": (("gausian",), ("'exponential'", "'hyperbolic'", "'regularized'")),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_parameters_are_checked(name):
    # scikit-learn's rule: the constructor stores, `fit` checks.
    for parameter, (values, words) in WRONG.items():
        if accepts(name, parameter) or parameter in make(name).get_params():
            for value in values:
                unfitted = make(name).set_params(**{parameter: value})
                text = says(parameter, repr(value), call=unfitted.fit, given=(X,))
                assert all(word in text for word in words), text


@pytest.mark.parametrize("name", MECHANISMS)
def test_names_of_parameters(name):
    make_with = partial(make, name)
    said = "gamma", "0.2", "sigma = sqrt(2 gamma)"
    says(*said, call=partial(make_with, gamma=0.2), error=TypeError)
    says(*said[::2], call=partial(make_with().set_params, gamma=0.2))
    says("gama", "0.2", "sigma", call=partial(make_with, gama=0.2), error=TypeError)


def test_pairs_need_an_even_number_of_components():
    for name in ("RFFSampler", "PositiveRF-hyperbolic"):
        for method in ("fit", "fit_transform", "partial_fit"):
            call = getattr(make(name, n_components=101), method)
            says("n_components", 101, 100, 102, "multiple of 2", call=call, given=(X,))
        for allowed in (2, 102):
            assert make(name, n_components=allowed).fit(X).n_components_ == allowed


def test_sobol_points_have_a_largest_dimension():
    wide = OptimalPositiveRF(n_components=2, coupling="sobol", random_state=0)
    assert wide.fit(np.ones((2, 21201))).omega_.shape == (2, 21201)
    says("coupling", "'sobol'", 21201, 21202, call=wide.fit, given=(np.ones((2, 21202)),))


# ------------------------------------------------------------------ contents of X, Y and keys

_NAN, _INFINITE = X[:5].copy(), X[:5].copy()
_NAN[2, 1], _INFINITE[2, 1] = np.nan, -np.inf
# Faulty rows, and what the message must say of them apart from the name of the input.
FAULTS = {
    "NaN": (_NAN, ("NaN",)),
    "infinity": (_INFINITE, ("infinity",)),
    "sparse NaN": (sp.csr_array(_NAN), ("NaN",)),
    "sparse infinity": (sp.csc_array(_INFINITE), ("infinity",)),
    "narrow": (X[:5, :3], (3, 4)),
    "wide": (np.ones((5, 7)), (7, 4)),
    "one row flat": (X[0], ("2D array", "1D array")),
    "three axes": (np.ones((2, 5, 4)), (3, 2)),
    "no rows": (X[:0], ("(0, 4)", "minimum of 1")),
    "no columns": (X[:5, :0], ("(5, 0)", "minimum of 1")),
    "text": (X[:5].astype(str).astype(object) + "a", ("could not convert", "OneHotEncoder")),
    "complex": (X[:5] * 1j, ("Complex data not supported",)),
    "scalar": (1.0, ("2D array", "scalar array")),
}
OF_WIDTH = ("narrow", "wide")


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF", "AdaptiveRF", "HybridRF"])
def test_faulty_rows_and_keys(name):
    fitted = make(name, n_components=20, random_state=0).fit(X)
    logs = ["log_transform"] if fitted.is_positive else []
    for kind, (fault, words) in FAULTS.items():
        if kind not in OF_WIDTH:
            says(*words, call=make(name).fit, given=(fault,))
        pairs = ["exact_kernel", "approximate_kernel", "kernel_variance"]
        calls = ["transform", *pairs, *logs, *(["partial_fit"] * hasattr(fitted, "partial_fit"))]
        for method in calls:
            says(*words, call=getattr(fitted, method), given=(fault,))
        words = words if kind != "no columns" else words[1:]
        fit_to = partial(make(name, n_components=20).fit, X, keys=fault)
        says("keys", *words, call=fit_to)
        for method in ("transform_keys", *(f"{method}_keys" for method in logs)):
            says("Y", *words, call=getattr(fitted, method), given=(fault,))
        for method in pairs:
            says("Y", *words, call=getattr(fitted, method), given=(X, fault))


def test_faulty_rows_of_other_libraries(library):
    fitted = OptimalPositiveRF(n_components=6, random_state=0).fit(X)
    words_of_kind = {
        "three axes": ("2D array", "3D array"),
        "no rows": ("(0, 4)", "1 row", "1 feature"),
        "no columns": ("(5, 0)", "1 row", "1 feature"),
    }
    for kind, (fault, words) in FAULTS.items():
        if kind in ("text", "scalar") or "sparse" in kind:
            continue
        rows, words = library.array(fault), words_of_kind.get(kind, words)
        if kind not in OF_WIDTH:
            says(*words, "X", call=OptimalPositiveRF().fit, given=(rows,))
        says(*words, "X", call=fitted.transform, given=(rows,))
        says(*words, "Y", call=fitted.transform_keys, given=(rows,))
        says(*words, "keys", call=partial(OptimalPositiveRF().fit, X, keys=rows))


# ------------------------------------------------------------------ sample_weight

_NEGATIVE = np.ones(20)
_NEGATIVE[3] = -0.5
WEIGHTS = [
    (np.ones(19), ("(19,)", "(20,)")),
    (_NEGATIVE, (">= 0", "-0.5")),
    (np.zeros(20), ("at least one",)),
    (np.full(20, np.nan), ("NaN",)),
    (np.full(20, np.inf), ("infinity",)),
    (np.ones((20, 2)), ("1D array",)),
    (["a"] * 20, ("could not convert string to float", "a")),
]


def test_faulty_weights():
    fits = [make(name).fit for name in MECHANISMS]
    fits += [make(n).fit(X).partial_fit for n in MECHANISMS if hasattr(make(n), "partial_fit")]
    fits += [lambda X, kind=kind, **weight: kind().fit(X, y, **weight) for kind in REGRESSIONS]
    for fit in fits:
        for weights, words in WEIGHTS:
            says("sample_weight", *words, call=partial(fit, X, sample_weight=weights))


# ------------------------------------------------------------------ estimators


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        (KernelRegressionClassifier, "feature_map, sigma, class_weight, random_state"),
        (
            ApproxKernelRidgeCV,
            "feature_map, sigmas, alphas, cv, scoring, subsample, max_leaf_size, random_state, "
            "verbose",
        ),
        (ApproxKernelAttention, "feature_map, causal, mask, scale, block_size, random_state"),
        (ClusterNystroem, "n_components, centers, kernel, exponent, sigma, random_state"),
    ],
)
def test_unknown_parameters_are_told_the_known_ones(kind, known):
    said = kind.__name__, "n_jobs", "2", known
    says(*said, call=partial(kind, n_jobs=2), error=TypeError)


@pytest.mark.parametrize("kind", [ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV])
def test_searches_have_sigmas_for_gamma(kind):
    said = "gamma", "0.2", "sigmas", "sqrt(2 gamma)"
    says(*said, call=partial(kind, gamma=0.2), error=TypeError)


class Passing:
    def __init__(self, *args, **params):
        super().__init__(*args, **params)


def test_subclasses_may_pass_parameters_on():
    class OfMixin(Passing, KernelRegressor):
        pass

    class Named(OptimalPositiveRF):
        def __init__(self, *, name="", **params):
            super().__init__(**params)
            self.name = name

    assert OfMixin(sigma=2.0).sigma == 2.0
    assert Named(name="mine", n_components=8).n_components == 8
    says("width", "sigma, random_state", call=lambda: OfMixin(width=1), error=TypeError)
    said = "gamma", "0.2", "sigma = sqrt(2 gamma)"
    says(*said, call=lambda: Named(gamma=0.2), error=TypeError)


with_targets = pytest.mark.parametrize(
    "estimator",
    [
        *REGRESSIONS,
        ApproxKernelRidge,
        ApproxKernelRidgeClassifier,
        RelevanceScaler,
        RelevanceProjection,
    ],
)


@with_targets
def test_faulty_targets(estimator):
    for targets, words in (
        (None, ("None",)),
        (y[:19], (20, 19)),
        (np.zeros((20, 0)), ()),
        (y + 1j, ()),
        (np.where(y == 1, np.nan, 1.0), ("NaN",)),
        (np.where(y == 1, np.inf, 1.0), ("infinity",)),
    ):
        says("y", *words, call=estimator().fit, given=(X, targets))


@with_targets
@pytest.mark.parametrize("missing", [None, np.nan, np.datetime64("NaT", "s"), "pandas.NA"])
def test_missing_targets_are_told(estimator, missing):
    if isinstance(missing, str):
        missing = pytest.importorskip("pandas").NA
    for kind in ("a", 1):
        labels = np.array([kind] * 20, dtype=object)
        labels[7] = missing
        text = says("y", 7, "missing", call=estimator().fit, given=(X, labels))
        assert repr(missing) in text
    if estimator is KernelRegressionClassifier:
        says("classes", "None", call=estimator().partial_fit, given=(X, y, [0, 1, 2, None]))
        model = estimator().fit(X, y)
        says("y", 7, "missing", call=model.partial_fit, given=(X, labels))


def test_dates_are_labels_and_no_targets():
    dates = np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]")[y % 2]
    assert KernelRegressionClassifier().fit(X, dates).predict(X).dtype == dates.dtype
    says("y", "dates", call=KernelRegressor().fit, given=(X, dates))
    dates[3] = "NaT"
    for estimator in REGRESSIONS:
        says("y", "NaT", 3, call=estimator().fit, given=(X, dates))


OF_PANDAS = {  # a column of dates in every form that a table has for times
    "dates": lambda t: t,
    "durations": lambda t: t - t[0],
    "zones": lambda t: t.dt.tz_localize("UTC"),
    "days": lambda t: t.dt.date,
    "categories": lambda t: t.astype("category"),
    "periods": lambda t: t.dt.to_period("D"),
    "of pyarrow": lambda t: t.astype("timestamp[ns][pyarrow]"),
}


@pytest.mark.parametrize("kind", [*OF_PANDAS, "pyarrow", "polars", "array", "list"])
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "beside numbers"])
def test_dates_are_no_numbers(kind, is_alone):
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    t, column = pd.Series(pd.date_range("2020-01-01", periods=20), name="t"), "'t'"
    t[3] = pd.NaT
    numbers = {} if is_alone else {"u": X[:, 0]}
    if kind in OF_PANDAS:
        rows = pd.DataFrame({"t": OF_PANDAS[kind](t), **numbers})
    elif kind == "pyarrow":
        rows = pa.table({"t": pa.array(t, from_pandas=True), **numbers})
    elif kind == "polars":
        rows = pytest.importorskip("polars").from_pandas(pd.DataFrame({"t": t, **numbers}))
    else:
        rows, column = t.to_numpy()[:, None], 0
        if not is_alone:  # objects of NumPy, which become floats without an error
            rows = np.array([[time, *row] for (time,), row in zip(rows, X, strict=True)], object)
        rows = rows if kind == "array" else list(map(list, rows))
    said = "X", "dates or times", f"column {column}", '(t - t0) / pd.Timedelta("1D")'
    for estimator in (RFFSampler(4), KernelRegressor(), ApproxKernelRidgeClassifier()):
        says(*said, call=estimator.fit, given=(rows, y), error=TypeError)
    if kind in OF_PANDAS:
        table = rows.drop(index=3)
        for target in (table["t"], table):
            said = "y", "dates or times", "column 't'"
            says(*said, call=ApproxKernelRidge().fit, given=(X[:19], target), error=TypeError)
    says("sample_weight", "dates", call=RFFSampler(4).fit, given=(X, None, t), error=TypeError)


def test_masked_entries_are_no_numbers():
    masked = np.ma.masked_array(X, mask=np.arange(80).reshape(20, 4) == 5)
    target, said = np.ma.masked_array(y * 1.0, mask=y == 2), "6 masked entries of 20"
    fitted = RFFSampler(4).fit(X)
    for call, arguments in (
        (RFFSampler(4).fit, (masked,)),
        (fitted.transform, (masked,)),
        (OptimalPositiveRF(4).fit, (masked,)),
        (KernelRegressor().fit, (masked, y)),
        (theory.kernel_variance, (fitted, masked)),
        (KernelOperator, (fitted, masked)),
    ):
        says("X", "1 masked entries of 80", call=call, given=arguments)
    says("Y", "1 masked entries of 80", call=fitted.exact_kernel, given=(X, masked))
    for estimator in (KernelRegressor(), ApproxKernelRidge(), RelevanceScaler()):
        says("y", said, call=estimator.fit, given=(X, target))
        says("sample_weight", said, call=estimator.fit, given=(X, y * 1.0, target))
    for estimator in (KernelRegressionClassifier(), ApproxKernelRidgeClassifierCV(), AdaptiveRF(4)):
        says("y", said, call=estimator.fit, given=(X, target.astype(int)))
    for place, name in enumerate("qkv"):
        qkv = [X, X, X]
        qkv[place] = masked
        for call in (exact_attention, partial(compare_attention, operators={})):
            says(name, "1 masked entries of 80", call=call, given=qkv)
    mask = np.ma.masked_array(np.ones((20, 20)), mask=np.eye(20))
    for call in (partial(exact_attention, mask=mask), ApproxKernelAttention(mask=mask)):
        says("mask", "20 masked entries of 400", call=call, given=(X, X, X))
    rate = np.ma.masked_array([0.1, 0.2], mask=[0, 1])
    says("rate", "1 masked entries of 2", call=ToeplitzMask.decay, given=(rate,))
    # Without a masked entry, such an array is like any other.
    assert (fitted.transform(np.ma.masked_array(X)) == fitted.transform(X)).all()


@pytest.mark.filterwarnings("ignore:A column-vector y:sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "of pyarrow", "table"])
def test_integers_and_booleans_that_may_be_missing_are_labels(kind):
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    convert = {
        "pandas": lambda values, name: pd.Series(values, dtype=name),
        "pyarrow": lambda values, name: pa.array(values),
        "of pyarrow": lambda values, name: pd.Series(values, dtype=f"{name.lower()}[pyarrow]"),
        "table": lambda values, name: pd.DataFrame({"y": pd.Series(values, dtype=name)}),
    }[kind]
    large, odd = [2**60 + int(k) for k in y], [bool(k % 2) for k in range(20)]
    options = {"sigma": 1.0, "random_state": 0}
    for values, name, dtype in ((large, "Int64", np.int64), (odd, "boolean", bool)):
        name = "bool" if kind == "of pyarrow" and dtype is bool else name
        labels = convert(values, name)
        for estimator in (
            KernelRegressionClassifier(RFFSampler(8), **options),
            ApproxKernelRidgeClassifierCV(RFFSampler(8), sigmas=2, cv=2, random_state=0),
            ApproxKernelRidgeClassifier(AdaptiveRF(8), **options),
        ):
            fitted = estimator.fit(X, labels)
            assert fitted.score(X, labels) == np.mean(fitted.predict(X) == values)
            assert fitted.classes_.dtype == dtype and set(fitted.classes_) == set(values)
        values = [*values[:7], None, *values[8:]]
        for estimator in (KernelRegressionClassifier(), ClusterNystroem(4), RelevanceScaler()):
            says("y", call=estimator.fit, given=(X, convert(values, name)))


@pytest.mark.parametrize("estimator", REGRESSIONS)
def test_parameters_of_a_feature_map(estimator):
    search = GridSearchCV(estimator(), {"feature_map__n_components": [4, 8]}, cv=2)
    step = {f"{estimator.__name__.lower()}__feature_map__sigma": 4}
    for call in (
        lambda: search.fit(X, y),
        lambda: estimator(RFFSampler()).set_params(feature_map=None, feature_map__sigma=4),
        lambda: make_pipeline(StandardScaler(), estimator()).set_params(**step),
    ):
        text = says("feature_map=None", call=call, error=ValueError)
        assert "feature_map=ClusterQuantizer(n_components=256)" in text
    search = GridSearchCV(estimator(OptimalPositiveRF()), search.param_grid, cv=2).fit(X, y)
    assert search.best_params_["feature_map__n_components"] in (4, 8)
    for value in ("rbf", 3, RFFSampler):
        text = says("feature_map", "fit", "transform", call=estimator(value).fit, given=(X, y))
        assert repr(value) in text
