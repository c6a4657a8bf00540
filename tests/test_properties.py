"""Laws of the fitted map and of its consumers, on generated cases."""

import copy
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import KERNELS, MECHANISMS, accepts, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator

from skrf import KernelRegressionClassifier, KernelRegressor
from skrf.attention import ApproxKernelAttention, GeneralizedMap
from skrf.features import as_feature_map, in_range
from skrf.graphical import ChainMRF
from skrf.projections import Coupling, DenseProjection

EPS = np.finfo(float).eps

# The same cases in every run: a failure is one for everybody.
generated = settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
names = st.sampled_from(sorted(MECHANISMS))
kernels = st.sampled_from(KERNELS)
seeds = st.integers(0, 2**31)
DTYPES = st.sampled_from(["float64", "float32"])
POWERS = st.floats(-300, 300)


def rows(seed, n=12, d=3):
    return np.random.default_rng(seed).normal(size=(n, d))


def quiet(function, *args, **kwargs):
    """Call without warnings of ranges: what is compared are values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def state(estimator):
    """Return what an estimator holds, to be compared later."""
    return {name: id(value) for name, value in vars(estimator).items()}


# ------------------------------------------------------------------ fits, all or nothing

FAULTS = {
    "NaN": lambda X: np.where(np.arange(X.size).reshape(X.shape) == 7, np.nan, X),
    "width": lambda X: X[:, :1],
    "text": lambda X: np.full(X.shape, "a"),
    "axes": lambda X: X[0],
    "nothing": lambda X: X[:0],
}


def fails(function, *args, **kwargs):
    try:
        quiet(function, *args, **kwargs)
    except (ValueError, TypeError, AttributeError):
        return True
    return False


class BrokenCoupling(Coupling):
    """Draws nothing: the last step of a fit fails, after statistics."""

    def draw(self, n_projections, n_features, rng):
        raise ValueError("cannot be drawn")


class KeepingCoupling(Coupling):
    """Draws what it holds."""

    def __init__(self):
        self.matrix = np.random.default_rng(0).normal(size=(24, 3))

    def draw(self, n_projections, n_features, rng):
        return DenseProjection(self.matrix[:n_projections])


@pytest.mark.parametrize("name", [name for name in MECHANISMS if accepts(name, "coupling")])
def test_arrays_of_a_coupling_stay_those_of_the_caller(name):
    coupling, X = KeepingCoupling(), rows(0)
    fitted = make(name, n_components=16, random_state=0).set_params(coupling=coupling).fit(X)
    expected = quiet(fitted.transform, X)
    coupling.matrix *= 2
    assert_array_equal(quiet(fitted.transform, X), expected)


@generated
@given(names, st.sampled_from(sorted(FAULTS)), st.booleans(), seeds)
def test_a_fit_of_a_feature_map_that_raises_changes_nothing(name, fault, was_fitted, seed):
    X = rows(seed)
    mechanism, wrong = make(name, n_components=24, random_state=0), FAULTS[fault](X)
    if was_fitted or fault == "width":
        mechanism.fit(X)
    before = state(mechanism)
    # A fit to rows of another width is one; to keys of another width is not.
    faulty = {"X": X, "keys": wrong} if fault == "width" else {"X": wrong}
    assert fails(mechanism.fit, **faulty)
    if hasattr(mechanism, "partial_fit"):
        assert fails(mechanism.partial_fit, wrong)
    assert state(mechanism) == before
    if accepts(name, "coupling"):
        mechanism.coupling = BrokenCoupling()
        before = state(mechanism)
        assert fails(mechanism.fit, X)
        assert state(mechanism) == before


@settings(generated, max_examples=40)
@given(names, seeds)
def test_what_was_fitted_counts_and_parameters_that_changed_are_named(name, seed):
    X, y = rows(seed), np.arange(12) % 2
    fitted = make(name, n_components=24, sigma=0.5, random_state=0).fit(X)
    expected = fitted.transform(X), fitted.exact_kernel(X)
    fitted.set_params(sigma=3.0, n_components=12, kernel="softmax")
    assert_array_equal(fitted.transform(X), expected[0])
    assert_array_equal(fitted.exact_kernel(X), expected[1])
    assert fitted.sigma_ == 0.5
    if hasattr(fitted, "partial_fit"):
        with pytest.raises(ValueError, match="sigma=3.0 was 0.5"):
            fitted.partial_fit(X)
    model = KernelRegressionClassifier(make("PositiveRF", n_components=8), random_state=0)
    kept = model.fit(X, y).predict_proba(X)
    model.set_params(feature_map__n_components=4, sigma=2.0)
    assert_array_equal(model.predict_proba(X), kept)
    with pytest.raises(ValueError, match="feature_map__n_components=4 was 8"):
        model.partial_fit(X, y)


@settings(generated, max_examples=30)
@given(names, kernels, seeds)
def test_copies_are_independent(name, kernel, seed):
    X = rows(seed)
    fitted = make(name, n_components=24, kernel=kernel, random_state=0).fit(X)
    expected = quiet(fitted.transform, X)
    for make_copy in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        other = make_copy(fitted)
        assert_array_equal(quiet(other.transform, X), expected)
        other.redraw(1)
        if hasattr(other, "partial_fit"):
            quiet(other.partial_fit, 3 * X)
        other.fit(X[:, :2])
        assert_array_equal(quiet(fitted.transform, X), expected)
    for value in vars(fitted).values():
        assert not (isinstance(value, np.ndarray) and value.flags.writeable)
    model = KernelRegressionClassifier(fitted, random_state=0).fit(X, np.arange(12) % 2)
    kept = model.predict_proba(X)
    copy.copy(model).partial_fit(X, np.arange(12) % 2)
    assert_array_equal(model.predict_proba(X), kept)


# ------------------------------------------------------------------ ranges


def log_features(values, scale):
    """Return the logs of the absolute values of features of unlimited range, and their signs."""
    if scale is None:
        return values, np.ones_like(values)
    with np.errstate(divide="ignore"):
        return np.log(np.abs(values)) + scale, np.sign(values)


def log_terms(mechanism, X, Y):
    """Return logs of the absolute terms of all feature products, their signs, the largest log."""
    (a, s), (b, t) = (
        log_features(*feature_map(in_range(feature_map, Z)))
        for feature_map, Z in zip(mechanism.feature_maps_, (X, Y), strict=True)
    )
    largest = max(np.abs(x[np.isfinite(x)]).max() for x in (a, b))
    return a[:, None] + b[None], s[:, None] * t[None], largest


@generated
@given(names, kernels, st.floats(-3, 3), seeds)
def test_the_estimate_of_the_kernel_is_the_sum_of_its_features(name, kernel, power, seed):
    X, Y = rows(seed), rows(seed + 1, 9) + 0.3
    mechanism = make(name, n_components=24, kernel=kernel, sigma=10.0**power, random_state=0)
    mechanism.fit(X, keys=Y)
    logs, signs, largest = log_terms(mechanism, X, Y)
    expected, sign = logsumexp(logs, b=signs, axis=2, return_sign=True)
    size = logsumexp(logs, axis=2)
    with np.errstate(all="ignore"):
        estimates = quiet(mechanism.approximate_kernel, X, Y)
        truth = sign * np.exp(expected)
        room = (1e-10 + 8 * EPS * largest) * np.exp(size)
    is_normal = (np.abs(expected) < 700) & (size < 700)
    assert (np.abs(estimates[is_normal] - truth[is_normal]) <= room[is_normal]).all()


@generated
@given(names, kernels, st.floats(-3, 3), seeds)
def test_a_row_alone_is_the_row_of_its_batch(name, kernel, power, seed):
    X = rows(seed)
    mechanism = make(name, n_components=24, kernel=kernel, sigma=10.0**power, random_state=0)
    feature_map = as_feature_map(mechanism.fit(X))
    values, scale = feature_map(X)
    both = [array for array in (values, scale) if array is not None]
    largest = max(np.abs(array[np.isfinite(array)]).max() for array in both)
    tolerance = 1e-10 + 8 * EPS * largest
    for i in (0, 7):
        row, row_scale = feature_map(X[i : i + 1])
        assert_allclose(row[0], values[i], rtol=0, atol=tolerance * max(1, largest))
        if scale is not None:
            assert_allclose(row_scale[0], scale[i], rtol=tolerance, atol=tolerance)
    if largest < 300:
        single = quiet(mechanism.transform, X[:1])
        assert_allclose(single, quiet(mechanism.transform, X)[:1], rtol=1e-9, atol=1e-300)


def quotient(head, q, k, v, weights):
    """Return the quotient of sums of the same features in unlimited range, and its tolerance."""
    (la, sa), (lb, sb) = log_features(*head[0](q)), log_features(*head[1](k))
    out, room = np.zeros((len(q), v.shape[1])), np.zeros((len(q), 1))
    for i in range(len(q)):
        with np.errstate(divide="ignore"):
            logs = la[i] + lb + np.log(weights[i])[:, None]
        top = logs.max()
        if np.isneginf(top):
            continue
        terms = sa[i] * sb * np.exp(logs - top)
        total = terms.sum()
        room[i] = np.inf  # all terms cancel
        if total != 0:
            out[i] = terms.sum(axis=1) @ v / total
            room[i] = np.abs(terms).sum() / abs(total)
    return out, room


SIZES = st.sampled_from([1e-150, 1e-30, 1e-3, 1.0, 30.0, 1e6, 1e30, 1e100, 1e140])
MAPS = {
    **{name: make(name, n_components=24, random_state=0) for name in MECHANISMS},
    "relu": GeneralizedMap(24, random_state=0),
    "square": GeneralizedMap(24, nonlinearity="square", random_state=0),
    "exp": GeneralizedMap(24, nonlinearity="exp", random_state=0),
}


@settings(generated, max_examples=200)
@given(
    st.sampled_from(sorted(MAPS)),
    st.sampled_from(["plain", "causal", "masked", "stream"]),
    DTYPES,
    SIZES,
    SIZES,
    POWERS,
    seeds,
)
def test_attention_is_the_quotient_of_its_features(name, kind, dtype, size, other, power, seed):
    """For rows of any size and values of any unit; float32 for rows of ordinary size."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(9, 4)) for _ in range(3))
    if dtype == "float32":
        size, other, power = 1.0, 1.0, power / 9
    k[3], q[5] = k[3] * size, q[5] * other
    q, k, v = (array.astype(dtype) for array in (q, k, v))
    unit, is_causal = 10.0**power, kind in ("causal", "stream")
    values = (v * unit).astype(dtype)
    mask = rng.random((9, 9)) * (rng.random((9, 9)) < 0.7) if kind == "masked" else None
    attention = ApproxKernelAttention(MAPS[name], causal=is_causal, mask=mask)
    attention.fit(rng.normal(size=(20, 4)), rng.normal(size=(20, 4)))
    if kind == "stream":
        state, parts = attention.init_state(), []
        for some in (slice(0, 5), slice(5, 9)):
            out, state = quiet(attention.step, q[some], k[some], values[some], state)
            parts.append(out)
        out = np.concatenate(parts)
    else:
        out = quiet(attention, q, k, values)
    assert np.isfinite(out).all()
    weights = np.ones((9, 9)) if mask is None else mask
    weights = np.tril(weights) if is_causal else weights
    maps = attention.feature_maps_[0].feature_maps_
    expected, room = quotient(maps, *(array.astype(float) for array in (q, k, v)), weights)
    # Exponents of the size E are known to E eps.
    tolerance = 1e-10 + 8 * EPS * max(size, other, 1.0) ** 2 * 100 if dtype == "float64" else 1e-3
    known = room * tolerance < 1e-2
    bad = known & (np.abs(out / unit - expected) > 4 * room * tolerance)
    assert not bad.any(), (out[bad.any(axis=1)], expected[bad.any(axis=1)])


@settings(generated, max_examples=60)
@given(st.sampled_from(sorted(MAPS)), SIZES, DTYPES, seeds)
def test_a_future_key_and_padding_change_nothing(name, size, dtype, seed):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(40, 4)).astype(dtype) for _ in range(3))
    size = min(size, 1e30) if dtype == "float32" else size
    attention = ApproxKernelAttention(MAPS[name], causal=True)
    if getattr(MAPS[name], "_needs_data", False):
        attention.fit(q, k)
    tolerance = 1e-8 if dtype == "float64" else 5e-3
    before, changed = quiet(attention, q, k, v), k.copy()
    changed[30] *= size
    if not is_signed(name):
        assert_allclose(quiet(attention, q, changed, v)[:30], before[:30], atol=tolerance, rtol=0)
    padding = np.arange(40) == 30
    values = v.copy()
    values[30] *= size
    for keys in (k, changed):
        for operator in (attention, ApproxKernelAttention(MAPS[name]).fit(q, k)):
            hidden = quiet(operator, q, keys, values, key_padding_mask=padding)
            same = quiet(operator, q, np.where(padding[:, None], 0, k).astype(dtype), v,
                         key_padding_mask=padding)  # fmt: skip
            assert_array_equal(hidden, same)


def is_signed(name):
    """Denominators of maps with signs may be near zero, where rounding decides."""
    return not (name in ("relu", "square") or getattr(MAPS[name], "is_positive", False))


@generated
@given(names, kernels, SIZES, DTYPES, seeds)
def test_kernel_regression_is_finite_at_any_size(name, kernel, size, dtype, seed):
    rng = np.random.default_rng(seed)
    size = min(max(size, 1e-30), 1e30) if dtype == "float32" else size
    X = (rng.normal(size=(30, 3)) * size).astype(dtype)
    y = np.arange(30) % 3
    mechanism = make(name, n_components=24, kernel=kernel, random_state=0)
    model = KernelRegressionClassifier(mechanism).fit(X, y)
    proba = quiet(model.predict_proba, X)
    assert np.isfinite(proba).all()
    assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    targets = rng.normal(size=30)
    predicted = quiet(KernelRegressor(mechanism).fit(X, targets).predict, X)
    assert np.isfinite(predicted).all()
    assert predicted.min() >= targets.min() - 1e-6 and predicted.max() <= targets.max() + 1e-6


def test_samples_beyond_the_range_are_named():
    X = np.random.default_rng(0).normal(size=(8, 3))
    far, y = X.copy(), np.arange(8) % 2
    far[2] = 1e160
    model = KernelRegressionClassifier(make("AdaptiveRF", n_components=24)).fit(X, y)
    attention = ApproxKernelAttention(make("PositiveRF", n_components=24)).fit(X, X)
    mechanisms = [make(name, n_components=24, kernel="softmax").fit(X) for name in MECHANISMS]
    for function, inputs, said in (
        *((mechanism.transform, (far,), "X") for mechanism in mechanisms),
        (model.predict, (far,), "X"),
        (model.partial_fit, (far, y), "X"),
        (attention, (far, X, X), "q"),
        (attention, (X, far, X), "k"),
    ):
        with pytest.raises(ValueError, match=rf"{said} is too large .* of {said} is 1e\+160"):
            function(*inputs)


# ------------------------------------------------------------------ weights, targets and values

WEIGHTS = {
    "even": lambda rng, n: np.ones(n),
    "random": lambda rng, n: rng.random(n) + 0.1,
    "zeros": lambda rng, n: (rng.random(n) + 0.1) * (np.arange(n) % 3 > 0),
    "far apart": lambda rng, n: 10.0 ** rng.uniform(-9, 9, n) * (np.arange(n) % 4 > 0),
}
# Relative errors beside those that exponents of size E bring, 8 E eps.
RELATIVE = {"float64": 1e-9, "float32": 1e-4}


def seen_weights(fitted, queries, keys, weights, dtype):
    """Return what queries see of every key up to a factor of a row, and how well it is known."""
    logs, signs, largest = log_terms(fitted, queries.astype(float), keys.astype(float))
    with np.errstate(divide="ignore"):
        logs = logs + np.log(weights)[:, None]
    terms = signs * np.exp(logs - logs.max(axis=(1, 2), keepdims=True))
    tolerance = RELATIVE[dtype] + 8 * np.finfo(dtype).eps * max(1.0, largest)
    return terms.sum(axis=2), 4 * tolerance * np.abs(terms).sum(axis=(1, 2))[:, None]


@generated
@given(names, kernels, DTYPES, st.sampled_from(sorted(WEIGHTS)), POWERS, POWERS, POWERS, seeds)
def test_weights_and_targets_have_no_units(name, kernel, dtype, kind, power, other, size, seed):
    rng = np.random.default_rng(seed)
    X, Q = (rng.normal(size=(n, 3)).astype(dtype) for n in (20, 6))
    # Two batches, whose weights are of different sizes.
    weights = WEIGHTS[kind](rng, 20) * 10.0 ** np.repeat([power / 2, other / 2], 10)
    labels, targets = rng.integers(0, 3, 20), rng.normal(size=(20, 3))
    units = 10.0 ** np.array([size, 0, -size])
    fitted = make(name, n_components=24, kernel=kernel, random_state=0).fit(X)
    frozen = FrozenEstimator(fitted)
    model, regressor = KernelRegressionClassifier(frozen), KernelRegressor(frozen)
    for batch in (slice(0, 10), slice(10, 20)):
        model.partial_fit(X[batch], labels[batch], [0, 1, 2], weights[batch])
        regressor.partial_fit(X[batch], targets[batch] * units, weights[batch])
    assert_allclose(model.class_count_, np.bincount(labels, weights, 3), rtol=1e-12)
    mean = weights / weights.sum() @ targets
    assert_allclose(regressor.target_mean_ / units, mean, rtol=1e-9, atol=1e-12)
    seen, room = seen_weights(fitted, Q, X, weights, dtype)
    wide = Q.astype(np.float64)  # whose predictions are not rounded to float32

    scores = np.maximum(seen @ np.eye(3)[labels], 0)
    total = scores.sum(axis=1, keepdims=True)
    known = (total > 100 * room).ravel()
    proba = quiet(model.predict_proba, Q)
    assert np.isfinite(proba).all()
    assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    assert (np.abs(proba * total - scores) <= room)[known].all()
    if fitted.is_positive:
        assert known.all()
        large = scores > 1e-200
        expected = np.log(np.where(large, scores, 1.0) / total)
        error = np.abs(model.predict_log_proba(wide) - expected)
        assert (error <= room / total * (1 - expected))[large].all()

    weight = seen.sum(axis=1, keepdims=True)
    known = (weight > 100 * room).ravel()
    predicted = quiet(regressor.predict, wide) / units
    assert np.isfinite(predicted).all()
    counted = targets[weights > 0]
    means = np.clip(seen @ targets / weight, counted.min(axis=0), counted.max(axis=0))
    assert (np.abs(predicted - means) * weight <= 4 * room * np.abs(targets).max())[known].all()


# ------------------------------------------------------------------ nonsense

JUNK = {
    "nothing": None,
    "text": "a",
    "a number": 2.5,
    "complex": np.ones((12, 3)) * 1j,
    "NaN": np.full((12, 3), np.nan),
    "texts": np.full((12, 3), "a"),
    "no rows": np.ones((0, 3)),
    "three axes": np.ones((2, 12, 3)),
    "a set": {1, 2},
    "a class": KernelRegressor,
    "huge": 10**400,
    "ragged": [[1.0], [1.0, 2.0]],
}
_X, _Y = rows(0), np.arange(12) % 3
_CLASSIFIER = KernelRegressionClassifier(make("OptimalPositiveRF", n_components=8), random_state=0)
_REGRESSOR = KernelRegressor(make("OptimalPositiveRF", n_components=8)).fit(_X, _Y)
_CAUSAL = ApproxKernelAttention(make("OptimalPositiveRF", n_components=8), causal=True)
_STATE = _CAUSAL.init_state()


def attend(q=_X, k=_X, v=_X, padding=None, **params):
    return clone(_CAUSAL).set_params(**params)(q, k, v, key_padding_mask=padding)


# Parameter: calls that give it nonsense.
CALLS = {
    "X": [lambda junk: clone(_CLASSIFIER).fit(junk, _Y), _REGRESSOR.predict],
    "y": [lambda junk, model=model: model.fit(_X, junk) for model in (_CLASSIFIER, _REGRESSOR)],
    "sample_weight": [lambda junk: clone(_CLASSIFIER).fit(_X, _Y, junk)],
    "classes": [lambda junk: clone(_CLASSIFIER).partial_fit(_X, _Y, junk)],
    "sigma": [lambda junk: KernelRegressor(sigma=junk).fit(_X, _Y)],
    "random_state": [lambda junk: KernelRegressor(random_state=junk).fit(_X, _Y)],
    "feature_map": [
        lambda junk: KernelRegressor(junk).fit(_X, _Y),
        lambda junk: attend(feature_map=junk),
    ],
    "q": [lambda junk: attend(q=junk), lambda junk: clone(_CAUSAL).fit(junk, _X)],
    "k": [lambda junk: attend(k=junk), lambda junk: clone(_CAUSAL).fit(_X, junk)],
    "v": [lambda junk: attend(v=junk), lambda junk: _CAUSAL.step(_X, _X, junk, _STATE)],
    "state": [lambda junk: _CAUSAL.step(_X, _X, _X, junk)],
    "key_padding_mask": [lambda junk: attend(padding=junk)],
    "scale": [lambda junk: attend(scale=junk)],
    "block_size": [lambda junk: attend(block_size=junk)],
    "mask": [lambda junk: attend(mask=junk)],
}
# What is no nonsense there.
ALLOWED = {
    "sample_weight": {"nothing", "a number"},
    "sigma": {"nothing", "a number"},
    "random_state": {"nothing"},
    "feature_map": {"nothing"},
    "q": {"three axes"},
    "key_padding_mask": {"nothing"},
    "scale": {"nothing", "a number"},
    "block_size": {"nothing", "huge"},
    "mask": {"nothing"},
}


@pytest.mark.parametrize("parameter", CALLS)
def test_nonsense_is_refused_by_the_name_of_the_parameter(parameter):
    for kind, junk in JUNK.items():
        for call in CALLS[parameter]:
            if kind in ALLOWED.get(parameter, ()):
                quiet(call, junk)
                continue
            with pytest.raises((ValueError, TypeError), match=rf"\b{parameter}\b"):
                quiet(call, junk)


STEPS = ("fit", "partial_fit", "bad X", "bad y", "bad weight", "other sigma")


@generated
@given(
    st.sampled_from([KernelRegressionClassifier, KernelRegressor]),
    st.lists(st.sampled_from(STEPS), max_size=7),
    seeds,
)
def test_half_fitted_models_are_those_of_their_good_batches(kind, steps, seed):
    rng = np.random.default_rng(seed)
    model = kind(make("OptimalPositiveRF", n_components=8), random_state=0)
    first = {"classes": [0, 1, 2]} if kind is KernelRegressionClassifier else {}
    good, sigma = [], None  # batches, and the sigma of the first of them
    for step in steps:
        X, y = rng.normal(size=(9, 3)), rng.permutation(9) % 3
        if step == "other sigma":
            model.set_params(sigma=2.0)
        elif step == "fit":
            model.fit(X, y)
            good, sigma = [("fit", X, y)], model.sigma
        elif step == "partial_fit" and (not good or sigma == model.sigma):
            sigma = model.sigma
            model.partial_fit(X, y, **first)
            good.append((step, X, y))
        else:
            bad = {"X": FAULTS["NaN"](X)} if step == "bad X" else {"X": X}
            bad |= {"y": [None] * 9} if step == "bad y" else {"y": y}
            bad |= {"sample_weight": -np.ones(9)} if step == "bad weight" else {}
            with pytest.raises(ValueError, match=r"\b(X|y|sample_weight|sigma)\b"):
                model.partial_fit(**bad, **first)
            if step.startswith("bad"):
                assert fails(model.fit, *bad.values())
    Q = rng.normal(size=(4, 3))
    if not good:
        with pytest.raises(NotFittedError):
            model.predict(Q)
        return
    again = kind(make("OptimalPositiveRF", n_components=8), sigma=sigma, random_state=0)
    for step, X, y in good:
        getattr(again, step)(X, y, **(first if step == "partial_fit" else {}))
    for fitted in (model, pickle.loads(pickle.dumps(model))):
        assert_allclose(fitted.predict(Q), again.predict(Q), rtol=1e-9)


# ------------------------------------------------------------------ graphical models


def test_graphical_models_see_the_parameters_of_their_map_as_they_are():
    chain = ChainMRF(rows(0, 10), feature_map=make("OptimalPositiveRF", n_components=16))
    chain.set_params(random_state=0)
    before = chain.log_partition(9)
    chain.set_params(feature_map__n_components=8)
    assert chain.log_partition(9) == clone(chain).log_partition(9) != before
