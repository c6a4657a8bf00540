"""Features that vanish or overflow: one warning each, logarithms instead."""

import os
import re
import warnings
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from contract import POSITIVE, X, every_mechanism, every_positive, mechanism, one_warning
from instances import KERNELS, MECHANISMS, accepts, make
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

import skrf
from skrf import (
    ApproxKernelRidge,
    ClusterNystroem,
    ClusterQuantizer,
    KernelRegressor,
    OptimalPositiveRF,
    RFFSampler,
)
from skrf.statistics import PairStatistics

ROWS = [getattr(skrf, name) for name in skrf.__all__]
ROWS = [kind for kind in ROWS if hasattr(kind, "predict")]


@every_positive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vanished_rows_give_one_warning_a_call(name, dtype):
    fitted = mechanism(name, sigma=2.5).fit(X)
    far = X.astype(dtype)
    far[[0, 3, 4]] = 400.0
    words = (type(fitted).__name__, np.dtype(dtype).name, "smaller sigma", "log_transform")
    for rows in (far, sp.csr_array(far)):
        with one_warning(*words, "Rows of features of X vanished"):
            features = fitted.transform(rows)
        assert features.dtype == dtype and not features[[0, 3, 4]].any()
        with one_warning(*words, "Rows of features of Y vanished"):
            fitted.transform_keys(rows)
        for method in ("log_transform", "log_transform_keys"):
            assert np.isfinite(getattr(fitted, method)(rows)).all()
    with one_warning(*words):
        mechanism(name, sigma=2.5).set_output(transform="default").fit(X).transform(far)


@every_mechanism
def test_softmax_overflow_gives_one_warning_a_call(name):
    # Centred, positive features too are near exp(|sigma x|^2 / 2) here.
    far = X + 100.0
    fitted = mechanism(name, kernel="softmax", sigma=0.5).fit(far)
    methods = ["transform", "transform_keys", "exact_kernel", "approximate_kernel"]
    methods += ["kernel_variance"] if name != "SimplexRFPlus" else []
    for method in methods:
        with one_warning("overflowed in float64", "smaller sigma", type(fitted).__name__):
            assert not np.isfinite(getattr(fitted, method)(far)).all()
    if name in POSITIVE:
        logs = fitted.log_transform(far)
        assert np.isfinite(logs).all() and (logs > 710).all()
    if name != "SimplexRFPlus":
        pairs = fitted.kernel_variance(far, log=True)
        assert not np.isnan(pairs).any() and (pairs < np.inf).all()


@pytest.mark.parametrize("name", MECHANISMS)
def test_log_features_are_finite_at_every_scale(name):
    scales = [(1e-8, 1e-8), (1e-8, 1), (1e-8, 1e8), (1e-3, 1), (1, 1e8), (1e3, 1), (1e8, 1)]
    degenerate = X[:1], np.ones((5, 3)), X[:, :1], np.zeros((3, 2))
    cases = [*((sigma, size * X) for sigma, size in scales), *product((1e-3, 1e3), degenerate)]
    for (sigma, rows), kernel in product(cases, KERNELS):
        fitted = make(name, n_components=6, kernel=kernel, sigma=sigma, random_state=0).fit(rows)
        for dtype in (np.float32, np.float64):
            logs = fitted.feature_maps_[0](rows.astype(dtype)).values
            assert not np.isnan(logs).any()
            if fitted.is_positive:
                # A row has the features of its own cluster alone.
                n_clusters = len(getattr(fitted, "query_centers_", [0]))
                n_own = fitted.n_components_ // n_clusters
                assert (np.isfinite(logs).sum(axis=1) == n_own).all()


def test_the_advice_helps():
    rows = np.random.default_rng(0).normal(size=(200, 30)) * 100
    standard = StandardScaler().fit_transform(rows)
    for sigma, wide, has_units in ((1.0, rows, True), (20.0, standard, False)):
        fitted = make("OptimalPositiveRF", n_components=8, sigma=sigma, random_state=0).fit(wide)
        with pytest.warns(RuntimeWarning, match="^Rows of features of X vanished") as caught:
            fitted.transform(wide)
        text = str(caught[0].message)
        assert "Normalizer" in text and ("standardised inputs" in text) == has_units
        # The text is the same for other data: Python shows it once per location.
        with pytest.warns(RuntimeWarning, match=re.escape(text)):
            fitted.transform(2 * wide)
    # What it says is enough: every other warning is an error.
    for better, sigma in ((Normalizer().transform(rows), 10.0), (standard, 0.4)):
        make("PositiveRF", n_components=8, sigma=sigma, random_state=0).fit_transform(better)
    assert np.isfinite(fitted.log_transform(standard)).all()


@every_mechanism
def test_float32_rows_far_from_zero_have_the_features_of_float64(name):
    for offset in (0.0, 1e4, 1e7):
        rows = (offset + np.random.default_rng(0).normal(size=(30, 4))).astype(np.float32)
        fitted = make(name, sigma=0.5, random_state=0).fit(rows)
        method = fitted.log_transform if fitted.is_positive else fitted.transform
        assert_allclose(method(rows), method(rows.astype(np.float64)), rtol=1e-5, atol=2e-5)


def shown(call, action="always"):
    """Return the warnings of a call, all of which must point at this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        call()
    assert {os.path.basename(w.filename) for w in caught} <= {"test_range.py", "<made>"}
    return [str(w.message) for w in caught]


def test_rows_far_from_all_landmarks_are_named():
    rows = StandardScaler().fit_transform(np.random.default_rng(0).normal(size=(300, 4)))
    fitted = ClusterNystroem(20, random_state=0).fit(rows)
    model = Pipeline([("map", fitted), ("ridge", Ridge().fit(fitted.transform(rows), rows[:, 0]))])
    rows[[7, 9]] = 130.0
    for Z, words in ((rows, "in 2 of 300 rows, 7, 9,"), (np.full((8, 4), 130.0), "4 and 3 more")):
        [text] = shown(lambda Z=Z: fitted.transform(Z))
        assert words in text and "intercept" in text and "standard" not in text
        assert shown(lambda Z=Z: model.predict(Z)) == [text]
    with pytest.warns(RuntimeWarning, match="rows, 2, 4, which"):
        assert_array_equal(model.predict(rows[5:10])[[2, 4]], model[-1].intercept_)


def test_a_call_warns_once_for_all_blocks_at_the_line_of_the_user():
    """scikit-learn's tasks change filters, so that Python forgets what it has shown."""
    rows = np.random.default_rng(0).normal(size=(5000, 3))
    steep = OptimalPositiveRF(8, sigma=90.0, random_state=0)
    for kind in (KernelRegressor, ApproxKernelRidge):
        model = kind(FeatureUnion([("map", steep)]))
        for call in (lambda m=model: m.fit(rows, rows[:, 0]), lambda m=model: m.predict(rows)):
            texts = shown(call)
            assert sum(text.startswith("Rows of features of X vanished") for text in texts) == 1
    assert len(shown(lambda: steep.fit(rows).transform(rows))) == 1
    # A function that a process of joblib gets anew in every task.
    code = compile("steep.transform(rows)", "<made>", "exec")
    assert len(shown(lambda: exec(code, {"steep": steep, "rows": rows}), "default")) == 1
    twice = [exec, exec]
    assert (
        len(shown(lambda: [f(code, {"steep": steep, "rows": rows}) for f in twice], "default")) == 1
    )


# Kernel machines scale every column.
HIDING = [kind for kind in ROWS if not kind.__name__.startswith("KernelMachine")]


@pytest.mark.parametrize("kind", [*HIDING, RFFSampler, ClusterNystroem, ClusterQuantizer])
def test_columns_that_hide_others_are_named_once(kind):
    pandas = pytest.importorskip("pandas")
    rows = np.random.default_rng(0).normal(size=(60, 3))
    frame = pandas.DataFrame(rows, columns=["a", "b", "time"]).assign(same=1e9)
    y = np.arange(60) % 2
    assert shown(lambda: kind().fit(frame, y)) == []
    frame["time"] = 1.7e9 + 3e7 * rows[:, 2]
    hidden = "Columns of X differ in scale by more than 10000: the kernel hardly depends on "
    [text] = shown(lambda: kind().fit(frame, y))
    assert text.startswith(hidden + "'a', 'b' beside 'time'. Scale")
    [text] = shown(lambda: kind().fit(frame.to_numpy(), y))
    assert text.startswith(hidden + "0, 1 beside 2. Scale")
    if hasattr(kind(), "fit_batches"):
        [text] = shown(lambda: kind().fit_batches([(frame, y), (frame, y)]))
        assert text.startswith(hidden)
    if "feature_map" in kind().get_params(deep=False):
        options = {"sigmas": None} if hasattr(kind(), "sigmas") and "Ridge" in kind.__name__ else {}
        scaled = kind(make_pipeline(StandardScaler(), OptimalPositiveRF(8)), **options)
        if not hasattr(kind(), "sigmas") or options:
            assert shown(lambda: scaled.fit(frame, y)) == []


def test_columns_that_are_hardly_ever_different_from_zero_hide_nothing():
    rng = np.random.default_rng(0)
    pixels = np.round(255 * rng.random((20_000, 6)))
    pixels[:, 5] = 0
    pixels[7, 5] = 1  # a deviation of .007, beside 74
    entries = sp.random(200, 20_000, density=1e-3, format="csr", random_state=0)
    for rows in (pixels, sp.csr_array(pixels), entries):
        assert shown(lambda X=rows: RFFSampler(2).fit(X)) == []
    assert shown(lambda: RFFSampler(2).fit_statistics(PairStatistics.of(pixels))) == []
    parts = RFFSampler(2).fit(pixels)
    assert shown(lambda: parts.partial_fit(pixels[:1])) == []
    # Few numbers beside a category, as a ColumnTransformer stacks them.
    mixed = sp.hstack(
        [sp.csr_array(np.eye(9)[rng.integers(0, 9, 500)]), 1e7 * rng.random((500, 1))]
    )
    [text] = shown(lambda: RFFSampler(2).fit(mixed))
    assert "0, 1, 2, 3, 4 and 4 more beside 9." in text
    softmax = RFFSampler(2, kernel="softmax")
    assert shown(lambda: softmax.fit(mixed)) == []


# ------------------------------------------------------------------ extreme numbers

OWN_WORDS = (
    "Rows of features of [XY] vanished",
    "Features of [XY] overflowed",
    "Kernel (values|estimates) overflowed",
    "Variances overflowed",
)
# Powers of 10 of sigma and of the rows, and which rows have that size.
EXTREMES = [
    (30, 149, "all"),
    (100, 76, "all"),
    (149, 20, "all"),
    (149, 0, "all"),
    (141, 0, "equal"),
    (150, 0, "equal"),
    (20, 122, "equal"),
    (1, 37, "one row"),
    (30, 20, "one row"),
    (-8, -300, "all"),
    (-160, 150, "one row"),
    (-300, 149, "one column"),
    (-300, -323, "one row"),
    (-323, 0, "all"),
    (0, -323, "one column"),
]


def extreme_rows(power, which, dtype):
    rows = np.random.default_rng(0).normal(0.3, 0.5, size=(12, 3))
    size = 10.0**power
    if which == "equal":
        rows = np.full_like(rows, size)
    else:
        place = {"all": np.s_[:], "one row": np.s_[3], "one column": np.s_[:, 1]}[which]
        rows[place] *= size / np.abs(rows[place]).max()
    return rows.astype(dtype)


def says_what_is_wrong(call, *arguments, **options):
    """Return the result, or None after a refusal that names X or sigma.

    Warnings must be those of the library, and results without one must be finite.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(*arguments, **options)
        except ValueError as error:
            assert re.search(r"\b(X|Y|keys|sigma)\b", str(error)), error
            return None
    caught = [w for w in caught if not str(w.message).startswith("Columns of X differ in scale")]
    for warning in caught:
        assert warning.category is RuntimeWarning, warning
        assert re.match("|".join(OWN_WORDS), str(warning.message)), warning
    if isinstance(result, np.ndarray):
        assert not np.isnan(result).any() or caught
        assert np.isfinite(result).all() or caught or options.get("log")
    return result


@pytest.mark.parametrize("name", MECHANISMS)
def test_extreme_numbers_are_served_warned_of_or_refused_by_name(name):
    """Every case in float64, under each kernel in turn; in float32 under the other one.

    Variants of a map take every third case.
    """
    options = {"n_components": 24, "random_state": 0}
    options |= {"coupling": "iid"} if accepts(name, "coupling") else {}
    plain, place = extreme_rows(0, "all", np.float64), list(MECHANISMS).index(name)
    for case, (sigma, power, which) in enumerate(EXTREMES):
        if "-" in name and (case + place) % 3:
            continue
        for dtype in (np.float64, np.float32):
            if dtype is np.float32 and power > 37:
                continue
            rows = extreme_rows(power, which, dtype)
            kernel = KERNELS[(case + (dtype is np.float32)) % 2]
            unfitted = make(name, sigma=10.0**sigma, kernel=kernel, **options)
            fits = [says_what_is_wrong(unfitted.fit, rows)]
            other = says_what_is_wrong(clone(unfitted).fit, plain)
            if other is not None:
                fits += [other]
                adapted = says_what_is_wrong(other._adapted, rows)
                if adapted is not None:
                    says_what_is_wrong(adapted.transform, rows)
            for fitted in filter(None, fits):
                says_what_is_wrong(fitted.transform, rows)
                says_what_is_wrong(fitted.approximate_kernel, rows, plain)
                says_what_is_wrong(fitted.exact_kernel, rows, plain)
                if name != "SimplexRFPlus":
                    variance = says_what_is_wrong(fitted.kernel_variance, rows, plain)
                    if variance is None or not np.isfinite(variance).all():
                        says_what_is_wrong(fitted.kernel_variance, rows, plain, log=True)


def test_rows_that_sigma_makes_too_large_are_refused_at_fit():
    text = r"^{} is too large at sigma={}: .* at most 1e\+150\. The largest entry of {} is {}"
    rows = extreme_rows(0, "all", np.float64)
    for name, side in product(("RFFSampler", "DiscreteRF"), ("X", "keys")):
        sides = {"X": rows, "keys": rows, side: 1e60 * rows}
        with pytest.raises(ValueError, match=text.format(side, r"1e\+100", side, "")):
            make(name, sigma=1e100).fit(**sides)
    rows, keys = np.array([[8e-132, 0.0], [0.0, 3e-132]]), np.array([[1e70, 0.0]])
    for sigma, form in product(("scale", "median"), (np.asarray, sp.csr_array)):
        with pytest.raises(ValueError, match=text.format("keys", r"\S+", "keys", "1e")):
            make("DiscreteRF", sigma=sigma).fit(form(rows), keys=form(keys))


def test_rows_that_vanish_do_not_hide_features_that_overflow():
    fitted = make("PositiveRF", n_components=4, kernel="softmax", random_state=0).fit([[30.0]])
    with one_warning("Rows of features of X vanished and others overflowed in float64"):
        features = fitted.transform([[60.0], [-300.0], [30.0]])
    assert np.isinf(features[0]).all() and not features[1].any() and features[2].all()


@every_positive
@pytest.mark.parametrize("kernel", ["gaussian", "softmax"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_no_logarithm_exceeds_the_bound_that_rules_out_its_search(name, kernel, scale):
    options = {"kernel": kernel} if accepts(name, "kernel") else {}
    model = mechanism(name, sigma=1.5, **options).fit(X)
    rows = scale * X
    for feature_map, logs in zip(
        model.feature_maps_,
        (model.log_transform(rows), model.log_transform_keys(rows)),
        strict=True,
    ):
        largest = feature_map.largest_log(feature_map.exponent_bound(rows))
        assert np.abs(logs[np.isfinite(logs)]).max() <= largest
