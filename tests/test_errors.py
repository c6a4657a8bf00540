"""Bad input: every error names the parameter, the value and what is allowed.

scikit-learn's own messages stand for the contents of X; keys, Y and sample_weight are named.
"""

import inspect
import re

import numpy as np
import pytest
import scipy.sparse as sp
from instances import MECHANISMS, accepts, make
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skrf import (
    ApproxKernelAttention,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    KernelRegressionClassifier,
    KernelRegressionClassifierCV,
    KernelRegressor,
    KernelRegressorCV,
    OptimalPositiveRF,
    RelevanceScaler,
    RFFSampler,
)
from skrf.projections import COUPLINGS

X = np.random.default_rng(0).normal(size=(20, 4))
y = np.arange(20) % 3

every_mechanism = pytest.mark.parametrize("name", MECHANISMS)


class Message:
    """Runs a call that must raise ValueError or TypeError, and looks for words in its message."""

    def __init__(self, call, kinds=(ValueError, TypeError)):
        with pytest.raises(kinds) as caught:
            call()
        self.text = str(caught.value)

    def names(self, *words):
        for word in map(str, words):
            # A name or a number as such, not as a part of another.
            pattern = rf"(?<![\w.]){re.escape(word)}(?!\w)"
            assert re.search(pattern, self.text), f"{word!r} is not in {self.text!r}"


# ------------------------------------------------------------------ parameters


@every_mechanism
@pytest.mark.parametrize("value", [0, -3, 2.5, "10", None, np.nan])
def test_n_components_is_a_whole_number_of_at_least_one(name, value):
    message = Message(lambda: make(name, n_components=value).fit(X))
    message.names("n_components", repr(value), "int", "[1, inf)")


@pytest.mark.parametrize("name", ["RFFSampler", "PositiveRF-hyperbolic"])
@pytest.mark.parametrize(("value", "nearest"), [(3, (2, 4)), (101, (100, 102))])
def test_pairs_need_an_even_number_of_columns(name, value, nearest):
    for call in ("fit", "fit_transform", "partial_fit"):
        message = Message(lambda call=call: getattr(make(name, n_components=value), call)(X))
        message.names("n_components", value, *nearest, "multiple of 2")
    for allowed in nearest:
        assert make(name, n_components=allowed).fit(X).n_components_ == allowed


@every_mechanism
@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, -np.inf, 1e200, "scal", None, [1.0]])
def test_sigma_is_positive_and_finite(name, value):
    message = Message(lambda: make(name, sigma=value).fit(X))
    message.names("sigma", repr(value), "scale", "median", "float")
    assert "range (0.0, " in message.text


@every_mechanism
def test_gamma_is_told_to_be_sigma(name):
    message = Message(lambda: make(name, gamma=0.2), TypeError)
    message.names("gamma", "0.2", "sigma = sqrt(2 gamma)")
    Message(lambda: make(name, gama=0.2), TypeError).names("gama", "0.2", "sigma")
    # What scikit-learn asks of a constructor is what it was.
    unfitted = make(name)
    kind = type(unfitted)
    assert (
        list(inspect.signature(kind).parameters)
        == list(inspect.signature(kind.__init__).parameters)[1:]
    )
    assert "gamma" not in unfitted.get_params()
    assert repr(clone(unfitted).get_params()) == repr(unfitted.get_params())
    with pytest.raises(ValueError, match=r"(?s)Invalid parameter 'gamma' .* sqrt\(2 gamma\)"):
        unfitted.set_params(gamma=0.2)


@every_mechanism
def test_unknown_names_are_told_with_the_known_ones(name):
    allowed = {
        "kernel": ("gaussian", "softmax"),
        "coupling": tuple(COUPLINGS),
        "projection": ("dense", "hadamard"),
        "variant": ("exponential", "hyperbolic", "regularized"),
    }
    checked = 0
    for parameter, values in allowed.items():
        if accepts(name, parameter) or parameter == "kernel":
            unfitted = make(name).set_params(**{parameter: "gausian"})
            Message(lambda unfitted=unfitted: unfitted.fit(X)).names(
                parameter, "'gausian'", *map(repr, values)
            )
            checked += 1
    assert checked


@every_mechanism
def test_other_parameters_are_checked(name):
    unfitted = make(name)
    Message(lambda: make(name, random_state="seed").fit(X)).names("random_state", "'seed'", "int")
    Message(lambda: make(name, random_state=-1).fit(X)).names("random_state", "-1", "int")
    if "center" in unfitted.get_params():
        Message(lambda: make(name, center="no").fit(X)).names("center", "'no'", "bool")


@every_mechanism
def test_nothing_is_checked_before_fit(name):
    # scikit-learn's rule: the constructor stores, `fit` checks.
    assert make(name, n_components=-1, sigma="nonsense").sigma == "nonsense"


def test_sobol_points_have_a_largest_dimension():
    for d, fits in ((21201, True), (21202, False)):
        wide = OptimalPositiveRF(n_components=2, coupling="sobol", random_state=0)
        if fits:
            assert wide.fit(np.ones((2, d))).omega_.shape == (2, d)
        else:
            Message(lambda wide=wide, d=d: wide.fit(np.ones((2, d)))).names(
                "coupling", "'sobol'", 21201, 21202
            )


# ------------------------------------------------------------------ contents of X, Y and keys


def broken(kind):
    rows = X[:5].copy()
    if kind == "NaN":
        rows[2, 1] = np.nan
    elif kind == "infinity":
        rows[2, 1] = -np.inf
    elif kind == "sparse NaN":
        return sp.csr_array(broken("NaN"))
    elif kind == "sparse infinity":
        return sp.csc_array(broken("infinity"))
    elif kind == "narrow":
        return rows[:, :3]
    elif kind == "wide":
        return np.ones((5, 7))
    elif kind == "one row flat":
        return rows[0]
    elif kind == "three axes":
        return np.ones((2, 5, 4))
    elif kind == "no rows":
        return rows[:0]
    elif kind == "no columns":
        return rows[:, :0]
    elif kind == "text":
        return rows.astype(str).astype(object) + "a"
    elif kind == "complex":
        return rows * 1j
    elif kind == "scalar":
        return 1.0
    return rows


# What the message must say of the contents, apart from the name of the input.
CONTENTS = {
    "NaN": ("NaN",),
    "infinity": ("infinity",),
    "sparse NaN": ("NaN",),
    "sparse infinity": ("infinity",),
    "narrow": (3, 4),
    "wide": (7, 4),
    "one row flat": ("2D array", "1D array"),
    "three axes": (3, 2),
    "no rows": ("(0, 4)", "minimum of 1"),
    "no columns": ("(5, 0)", "minimum of 1"),
    "text": ("could not convert string to float", "OneHotEncoder"),
    "complex": ("Complex data not supported",),
    "scalar": ("2D array", "scalar array"),
}
OF_WIDTH = ("narrow", "wide")
every_fault = pytest.mark.parametrize("kind", CONTENTS)


@every_mechanism
@every_fault
def test_faulty_rows(name, kind):
    fault, words = broken(kind), CONTENTS[kind]
    fitted = make(name, n_components=20, random_state=0).fit(X)
    if kind not in OF_WIDTH:
        Message(lambda: make(name).fit(fault)).names(*words)
    methods = ["transform", "exact_kernel", "approximate_kernel", "kernel_variance"]
    methods += ["log_transform"] if fitted.is_positive else []
    for method in methods:
        Message(lambda method=method: getattr(fitted, method)(fault)).names(*words)
    if hasattr(fitted, "partial_fit"):
        Message(lambda: fitted.partial_fit(fault)).names(*words)


@every_mechanism
@every_fault
def test_faulty_keys_are_named(name, kind):
    fault, words = broken(kind), CONTENTS[kind]
    words = words if kind != "no columns" else ("minimum of 1",)
    unfitted = make(name, n_components=20)
    Message(lambda: unfitted.fit(X, keys=fault)).names("keys", *words)
    fitted = make(name, n_components=20, random_state=0).fit(X)
    methods = ["transform_keys"] + (["log_transform_keys"] if fitted.is_positive else [])
    for method in methods:
        Message(lambda method=method: getattr(fitted, method)(fault)).names("Y", *words)
    for method in ("exact_kernel", "approximate_kernel", "kernel_variance"):
        Message(lambda method=method: getattr(fitted, method)(X, fault)).names("Y", *words)


@pytest.mark.parametrize(
    "kind", [kind for kind in CONTENTS if kind not in ("text", "scalar") and "sparse" not in kind]
)
def test_faulty_rows_of_other_libraries(library, kind):
    fault = library.array(broken(kind))
    words = CONTENTS[kind]
    fitted = OptimalPositiveRF(n_components=6, random_state=0).fit(X)
    words = {"three axes": ("2D array", "3D array"), "one row flat": ("2D array", "1D array")}.get(
        kind, words
    )
    words = (*words, "1 row", "1 feature") if kind.startswith("no ") else words
    words = tuple(word for word in words if word != "minimum of 1")
    if kind not in OF_WIDTH:
        Message(lambda: OptimalPositiveRF().fit(fault)).names(*words, "X")
    Message(lambda: fitted.transform(fault)).names(*words, "X")
    Message(lambda: fitted.transform_keys(fault)).names(*words, "Y")
    Message(lambda: OptimalPositiveRF().fit(X, keys=fault)).names(*words, "keys")


# ------------------------------------------------------------------ sample_weight


def weight_faults():
    short, negative = np.ones(19), np.ones(20)
    negative[3] = -0.5
    return {
        "too short": (short, ("(19,)", "(20,)")),
        "negative": (negative, (">= 0", "-0.5")),
        "all zero": (np.zeros(20), ("at least one",)),
        "NaN": (np.full(20, np.nan), ("NaN",)),
        "infinite": (np.full(20, np.inf), ("infinity",)),
        "two columns": (np.ones((20, 2)), ("1D array",)),
        "text": (["a"] * 20, ("could not convert string to float", "a")),
    }


every_weight_fault = pytest.mark.parametrize("kind", weight_faults())


@every_mechanism
@every_weight_fault
def test_faulty_weights(name, kind):
    weights, words = weight_faults()[kind]
    Message(lambda: make(name).fit(X, sample_weight=weights)).names("sample_weight", *words)
    if hasattr(make(name), "partial_fit"):
        fitted = make(name).fit(X)
        Message(lambda: fitted.partial_fit(X, sample_weight=weights)).names("sample_weight", *words)


@pytest.mark.parametrize(
    "estimator",
    [
        KernelRegressorCV,
        KernelRegressionClassifierCV,
        ApproxKernelRidgeCV,
        ApproxKernelRidgeClassifierCV,
    ],
)
def test_gamma_of_a_search_is_told_to_be_sigmas(estimator):
    message = Message(lambda: estimator(gamma=0.2), TypeError)
    message.names("gamma", "0.2", "sigmas", "sqrt(2 gamma)")


class Passing:
    def __init__(self, *args, **params):
        super().__init__(*args, **params)


def test_subclasses_may_pass_parameters_on():
    class OfMixin(Passing, KernelRegressor):
        pass

    class Own(OptimalPositiveRF):
        def __init__(self, *, name="", **params):
            super().__init__(**params)
            self.name = name

    assert OfMixin(sigma=2.0).sigma == 2.0
    assert Own(name="own", n_components=8).n_components == 8
    Message(lambda: OfMixin(width=1), TypeError).names("width", "sigma, random_state")
    Message(lambda: Own(gamma=0.2), TypeError).names("gamma", "0.2", "sigma = sqrt(2 gamma)")


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
@every_weight_fault
def test_faulty_weights_of_estimators(estimator, kind):
    weights, words = weight_faults()[kind]
    Message(lambda: estimator().fit(X, y, sample_weight=weights)).names("sample_weight", *words)


# ------------------------------------------------------------------ estimators


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
@every_fault
def test_faulty_rows_of_estimators(estimator, kind):
    fault, words = broken(kind), CONTENTS[kind]
    fitted = estimator(RFFSampler(n_components=4, random_state=0)).fit(X, y)
    if kind not in OF_WIDTH and kind != "scalar":
        Message(lambda: estimator().fit(fault, y[: len(np.shape(fault)) and fault.shape[0]])).names(
            *words
        )
    methods = ["predict"]
    methods += ["predict_proba", "decision_function"] if hasattr(fitted, "classes_") else []
    for method in methods:
        Message(lambda method=method: getattr(fitted, method)(fault)).names(*words)


with_targets = pytest.mark.parametrize(
    "estimator",
    [
        KernelRegressionClassifier,
        KernelRegressor,
        ApproxKernelRidge,
        ApproxKernelRidgeClassifier,
        RelevanceScaler,
    ],
)


@with_targets
def test_faulty_targets(estimator):
    Message(lambda: estimator().fit(X, None)).names("y", "None")
    Message(lambda: estimator().fit(X, y[:19])).names("y", 20, 19)
    Message(lambda: estimator().fit(X, np.zeros((20, 0)))).names("y")
    Message(lambda: estimator().fit(X, y + 1j)).names("y")
    for value, word in ((np.nan, "NaN"), (np.inf, "infinity")):
        Message(lambda value=value: estimator().fit(X, np.where(y == 1, value, 1.0))).names(
            "y", word
        )


@with_targets
@pytest.mark.parametrize(
    "missing", [None, np.nan, np.float64("nan"), np.datetime64("NaT", "s"), "pandas.NA"], ids=repr
)
def test_missing_targets_are_told(estimator, missing):
    if missing == "pandas.NA":
        missing = pytest.importorskip("pandas").NA
    for kind in ("a", 1):
        labels = np.array([kind] * 20, dtype=object)
        labels[7] = missing
        message = Message(lambda labels=labels: estimator().fit(X, labels))
        message.names("y", 7, "missing")
        assert repr(missing) in message.text
    if estimator is KernelRegressionClassifier:
        Message(lambda: estimator().partial_fit(X, y, [0, 1, 2, None])).names("classes", "None")
        model = estimator().fit(X, y)
        Message(lambda: model.partial_fit(X, labels)).names("y", 7, "missing")


def test_dates_are_labels_and_no_targets():
    dates = np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]")[y % 2]
    assert KernelRegressionClassifier().fit(X, dates).predict(X).dtype == dates.dtype
    Message(lambda: KernelRegressor().fit(X, dates)).names("y", "dates")
    dates[3] = "NaT"
    for estimator in (KernelRegressionClassifier, KernelRegressor):
        Message(lambda estimator=estimator: estimator().fit(X, dates)).names("y", "NaT", 3)


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
def test_parameters_of_a_map_that_is_not_there(estimator):
    search = GridSearchCV(estimator(), {"feature_map__n_components": [4, 8]}, cv=2)
    for call in (
        lambda: search.fit(X, y),
        lambda: estimator(RFFSampler()).set_params(feature_map=None, feature_map__sigma=4),
        lambda: make_pipeline(StandardScaler(), estimator()).set_params(
            **{f"{estimator.__name__.lower()}__feature_map__sigma": 4}
        ),
    ):
        message = Message(call, (ValueError,))
        message.names("feature_map=None")
        assert "feature_map=AdaptiveRF(n_components=256)" in message.text
    own = GridSearchCV(estimator(OptimalPositiveRF()), search.param_grid, cv=2).fit(X, y)
    assert own.best_params_["feature_map__n_components"] in (4, 8)


@pytest.mark.parametrize(
    ("estimator", "known"),
    [
        (KernelRegressionClassifier, "feature_map, sigma, random_state"),
        (KernelRegressionClassifierCV, "feature_map, sigmas, cv, scoring, random_state, verbose"),
        (ApproxKernelAttention, "feature_map, causal, mask, scale, block_size, random_state"),
        (ClusterNystroem, "n_components, centers, sigma, random_state"),
    ],
)
def test_unknown_parameters_are_answered_with_the_known(estimator, known):
    message = Message(lambda: estimator(class_weight="balanced"), (TypeError,))
    message.names(estimator.__name__, "class_weight", "'balanced'", known)
    assert ", ".join(inspect.signature(estimator).parameters).startswith(known)


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
@pytest.mark.parametrize("value", ["rbf", 3, RFFSampler])
def test_a_feature_map_is_a_transformer(estimator, value):
    message = Message(lambda: estimator(value).fit(X, y))
    message.names("feature_map", "fit", "transform")
    assert repr(value) in message.text


@pytest.mark.parametrize("estimator", [KernelRegressionClassifier, KernelRegressor])
def test_parameters_of_the_map_are_checked_through_the_estimator(estimator):
    Message(lambda: estimator(sigma=-1.0).fit(X, y)).names("sigma", "-1.0", "scale", "median")
    Message(lambda: estimator(random_state="seed").fit(X, y)).names("random_state", "'seed'")
    Message(lambda: estimator(RFFSampler(n_components=3)).fit(X, y)).names("n_components", 3, 2, 4)


def test_a_classifier_wants_classes():
    Message(lambda: KernelRegressionClassifier().fit(X, X[:, 0])).names("label type", "continuous")
    Message(lambda: KernelRegressionClassifier().fit(X, X[:, :2])).names("1d array")
