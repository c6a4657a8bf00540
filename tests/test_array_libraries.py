"""Arrays of other libraries in, arrays of the same library, device and dtype out.

Every check compares with the NumPy path on the same numbers, seed for seed. Gradients of torch are
compared with the NumPy path's own, or with finite differences (torch.autograd.gradcheck).
"""

import math
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
from instances import KERNELS, MECHANISMS, accepts, make
from numpy.testing import assert_allclose, assert_array_equal
from samples import FUNCTIONS
from scipy.sparse.linalg import aslinearoperator
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skrf
from skrf import KernelRegressionClassifier, KernelRegressor, OptimalPositiveRF, RFFSampler
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    WindowAttention,
    exact_attention,
)

pytestmark = pytest.mark.filterwarnings("ignore:Random features have collapsed")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 16)), RNG.normal(size=(7, 16))
TOLERANCE = {"float64": {"rtol": 1e-10, "atol": 1e-12}, "float32": {"rtol": 1e-4, "atol": 1e-4}}

SPECTRA = ("laplacian", "cauchy", "matern32")
PAIRS_OF_KERNELS = ("OptimalPositiveRF", "DiscreteRF", "HybridRF")
# Every feature map with one of the kernels, in turn; some with both.
EVERY_MAP = [
    *((n, {"kernel": KERNELS[i % 2]}) for i, n in enumerate(MECHANISMS)),
    *((n, {"kernel": k}) for n in PAIRS_OF_KERNELS for k in KERNELS),
    *((n, {"projection": "hadamard"}) for n in ("RFFSampler", "PositiveRF-hyperbolic", "HybridRF")),
    *(("RFFSampler", {"kernel": k}) for k in SPECTRA),
]


def mechanism(name, params):
    coupling = "iid" if accepts(name, "coupling") else None
    return make(name, coupling, n_components=32, sigma=0.4, random_state=0, **params)


# ------------------------------------------------------------------ mechanisms


@cache
def maps_of_numpy(dtype):
    """Return each map, unfitted, with the results of its methods and their numbers of inputs."""
    rows, keys, results = X.astype(dtype), Y.astype(dtype), []
    for name, params in EVERY_MAP:
        feature_map = mechanism(name, params)
        fitted = clone(feature_map).fit(rows, keys=keys)
        calls = {"transform": 1, "transform_keys": 1, "exact_kernel": 2, "approximate_kernel": 2}
        if params.get("projection") != "hadamard" and name != "SimplexRFPlus":
            calls |= {"kernel_variance": 2}
        calls |= {"log_transform": 1, "log_transform_keys": 1} if fitted.is_positive else {}
        expected = {call: getattr(fitted, call)(*(rows, keys)[:n]) for call, n in calls.items()}
        results.append((name, params, feature_map, calls, expected))
    return results


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_feature_maps(library, dtype):
    arrays = [library.array(values.astype(dtype)) for values in (X, Y)]
    for name, params, feature_map, calls, expected in maps_of_numpy(dtype):
        fitted = clone(feature_map).fit(arrays[0], keys=arrays[1])
        tolerance = TOLERANCE[dtype]
        if dtype == "float32" and params.get("kernel") in SPECTRA:
            # Frequencies with heavy tails: the libraries round angles of some thousands otherwise.
            tolerance = {"rtol": 1e-3, "atol": 1e-3}
        for call, n_inputs in calls.items():
            values = getattr(fitted, call)(*arrays[:n_inputs])
            said = f"{call} of {name} with {params}"
            library.assert_same(values, expected[call], arrays[0], **tolerance, err_msg=said)


def test_far_samples_and_weights_of_a_library(library):
    # Far rows are mapped in float64, near ones in float32.
    rows, keys = X.astype("float32"), Y.astype("float32")
    rows[0] *= 30.0 / np.linalg.norm(rows[0])
    for name in ("RFFSampler", "OptimalPositiveRF", "PoissonRF"):
        fitted = make(name, n_components=24, sigma=1.5, random_state=0).fit(X, keys=Y)
        for sides in ((rows, keys), (keys, rows)):
            expected = fitted.approximate_kernel(*sides)
            values = fitted.approximate_kernel(*map(library.array, sides))
            library.assert_same(values, expected, library.array(rows), rtol=1e-5, atol=1e-5)
    weights = RNG.integers(0, 3, size=len(X)).astype(float)
    ours = OptimalPositiveRF(8, random_state=0).fit(X, sample_weight=weights)
    theirs = OptimalPositiveRF(8, random_state=0)
    theirs.partial_fit(library.array(X), sample_weight=library.array(weights))
    assert_allclose(theirs.offset_, ours.offset_, rtol=1e-13)
    assert_allclose(theirs.rho_, ours.rho_, rtol=1e-13)


def test_gradients_of_feature_maps():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rows = torch.tensor(Y[:2], requires_grad=True)
    for name, params in EVERY_MAP:
        fitted = mechanism(name, params).fit(torch.tensor(X, requires_grad=True), keys=Y)
        # Parameters and draws are constants, also of rows that carry a gradient.
        assert not any(getattr(value, "requires_grad", False) for value in vars(fitted).values())
        for method in ("transform", "transform_keys", *(["log_transform"] * fitted.is_positive)):

            def nonzero(rows, fitted=fitted, method=method):
                features = getattr(fitted, method)(rows)
                return features[features > -np.inf]  # the logarithms of others do not move

            assert torch.autograd.gradcheck(nonzero, rows, fast_mode=True), (name, params, method)


# ------------------------------------------------------------------ kernel regression

LABELS = {
    "whole": np.array([3, 5, 9]),
    "float": np.array([0.0, 2.0, 4.0]),
    "bool": np.array([False, True]),
    "text": np.array(["a", "b", "c"]),
}
FEATURE_MAPS = {
    "default": None,
    "signed": RFFSampler(64),
    "discrete": skrf.PoissonRF(32, sigma=0.1),
    "adaptive": skrf.AdaptiveRF(32),
    "clustered": skrf.HybridRF(64, coefficients="clustered"),
    "scikit-learn": Nystroem(n_components=20),
    "pipeline": make_pipeline(StandardScaler(), OptimalPositiveRF(32)),
}
ROWS = RNG.normal(size=(150, 5))
WEIGHTS = RNG.integers(0, 3, size=150) / 2


def seeded(feature_map):
    """Return a feature map, and the seed that its consumer may set."""
    if feature_map != "pipeline":
        return FEATURE_MAPS[feature_map], 0
    return clone(FEATURE_MAPS[feature_map]).set_params(optimalpositiverf__random_state=0), None


def assert_scores(library, values, expected, arrays, dtype):
    tolerance = TOLERANCE["float64"] if dtype == "float64" else {"rtol": 2e-3, "atol": 2e-4}
    library.assert_same(values, expected, arrays, **tolerance)


# Every feature map, kind of labels and dtype, and the branches on pairs of them.
@pytest.mark.parametrize(
    ("feature_map", "labels", "dtype"),
    [
        ("default", "whole", "float64"),
        ("default", "text", "float32"),
        ("signed", "float", "float32"),
        ("signed", "text", "float64"),
        ("discrete", "bool", "float64"),
        ("adaptive", "text", "float32"),
        ("clustered", "whole", "float32"),
        ("scikit-learn", "float", "float64"),
        ("pipeline", "bool", "float32"),
    ],
)
def test_classifier(library, feature_map, labels, dtype):
    y = LABELS[labels][np.argmax(ROWS[:, : len(LABELS[labels])], axis=1)]
    rows = ROWS.astype(dtype)
    feature_map, seed = seeded(feature_map)
    ours, theirs = (KernelRegressionClassifier(feature_map, random_state=seed) for _ in range(2))
    ours.fit(rows, y, WEIGHTS)
    arrays, is_text = library.array(rows), y.dtype.kind == "U"
    targets = y if is_text else library.array(y)
    theirs.fit(arrays, targets, library.array(WEIGHTS))
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        values = getattr(theirs, method)(arrays)
        assert_scores(library, values, getattr(ours, method)(rows), arrays, dtype)
    predicted = theirs.predict(arrays)
    assert isinstance(predicted, np.ndarray) == is_text
    predicted = predicted if is_text else library.host(predicted)
    assert predicted.dtype == y.dtype
    # In float32 a tie may fall the other way.
    assert np.mean(predicted == ours.predict(rows)) >= (1 if dtype == "float64" else 0.99)
    assert theirs.score(arrays, targets) == pytest.approx(ours.score(rows, y), abs=0.01)
    # The model itself is NumPy's: it predicts for NumPy arrays as well.
    assert type(theirs.predict_proba(rows)) is np.ndarray


@pytest.mark.parametrize("sigma", [0.3, 30.0, None])
def test_classifier_at_any_sigma_and_in_batches(library, sigma):
    y = np.argmax(ROWS[:, :3], axis=1)
    ours = KernelRegressionClassifier(skrf.AdaptiveRF(64), sigma=sigma, random_state=0)
    theirs = clone(ours)
    # The second batch of the automatic sigma is one of NumPy.
    second = np.asarray if sigma is None else library.array
    for array, batch in ((library.array, np.s_[:100]), (second, np.s_[100:])):
        ours.partial_fit(ROWS[batch], y[batch], classes=[0, 1, 2, 3])
        theirs.partial_fit(array(ROWS[batch]), y[batch], classes=array(np.arange(4)))
    assert_array_equal(theirs.classes_, [0, 1, 2, 3])
    arrays = library.array(ROWS)
    # No row was seen of class 3; at the large sigma shares underflow, and logarithms do not.
    for method in ("predict_proba", "decision_function"):
        expected, values = getattr(ours, method)(ROWS), getattr(theirs, method)(arrays)
        library.assert_same(values, expected, arrays, **TOLERANCE["float64"])
    assert sigma is None or (expected < -800).any() == (sigma > 1)


def test_an_absent_class_is_not_predicted(library):
    y = np.argmax(ROWS[:, :3], axis=1)
    model = KernelRegressionClassifier(RFFSampler(2), sigma=3.0, random_state=0)
    model.partial_fit(library.array(ROWS), y, classes=[-1, 0, 1, 2])
    # The first class has the score 0, and with signs that is the largest of some rows.
    assert (model.predict_proba(ROWS).max(axis=1) == model.class_count_.max() / 150).any()
    predicted = library.host(model.predict(library.array(ROWS)))
    assert predicted.min() >= 0
    assert_array_equal(predicted, model.predict(ROWS))


@pytest.mark.parametrize(
    ("feature_map", "n_targets", "dtype"),
    [
        ("default", 2, "float32"),
        ("signed", 2, "float64"),
        ("discrete", 0, "float32"),
        ("scikit-learn", 2, "float32"),
        ("pipeline", 0, "float64"),
    ],
)
def test_regressor(library, feature_map, n_targets, dtype):
    y = np.sin(ROWS[:, :n_targets] if n_targets else ROWS[:, 0])
    rows = ROWS.astype(dtype)
    feature_map, seed = seeded(feature_map)
    ours = KernelRegressor(feature_map, random_state=seed).fit(rows, y, WEIGHTS)
    theirs = KernelRegressor(feature_map, random_state=seed)
    arrays = library.array(rows)
    theirs.fit(arrays, library.array(y), WEIGHTS)
    expected = ours.predict(rows)
    assert_scores(library, theirs.predict(arrays), expected, arrays, dtype)
    assert theirs.score(arrays, library.array(y)) == pytest.approx(ours.score(rows, y), abs=1e-3)


@pytest.mark.parametrize("feature_map", ["signed", "adaptive", "clustered", "scikit-learn"])
def test_blocks_of_rows(library, feature_map, as_on_gpu):
    """Of 2^14 rows, or on a GPU of more: the model is that of a block of the same rows."""
    many, y = np.tile(ROWS, (111, 1)), np.argmax(ROWS[:, :3], axis=1)
    frozen = FrozenEstimator(clone(FEATURE_MAPS[feature_map]).set_params(random_state=0).fit(ROWS))
    arrays, labels = library.array(many), library.array(np.tile(y, 111))
    for kind, method in (
        (KernelRegressionClassifier, "decision_function"),
        (KernelRegressor, "predict"),
    ):
        expected = getattr(kind(frozen).fit(ROWS, y), method)(ROWS)
        expected = np.tile(expected, (111, *[1] * (expected.ndim - 1)))
        model = kind(frozen).fit(arrays, labels)
        library.assert_same(
            getattr(model, method)(arrays), expected, arrays, **TOLERANCE["float64"]
        )
    as_on_gpu()
    model.fit(arrays, labels)
    library.assert_same(model.predict(arrays), expected, arrays, **TOLERANCE["float64"])


# ------------------------------------------------------------------ attention

ATTENTION_MAPS = {name: make(name, n_components=32, random_state=0) for name in MECHANISMS} | {
    "asymmetric": skrf.AdaptiveRF(32, asymmetric=True, random_state=0),
    "relu": GeneralizedMap(32, random_state=0),
    "elu": GeneralizedMap(nonlinearity="elu", projection="identity"),
    "square": GeneralizedMap(32, nonlinearity="square", random_state=0),
    "exp": GeneralizedMap(32, nonlinearity="exp", epsilon=0.1, random_state=0),
    "functions": GeneralizedMap(**FUNCTIONS, epsilon=0.1),
}


def inputs(scale, dtype="float64", length=150, seed=0):
    """Return q of 4 heads, k and v of 2, and the padding of two texts; the first keys are some."""
    rng = np.random.default_rng(seed)
    q, k = (scale * rng.normal(size=(2, heads, length, 6)) for heads in (4, 2))
    v, padding = rng.normal(size=(2, 2, length, 3)), rng.random((2, length)) < 0.1
    padding[1, :3] = True
    return *(values.astype(dtype) for values in (q, k, v)), padding


def compare(library, attention, parts, padding, dtype, **said):
    arrays = [library.array(values) for values in parts]
    for mask in (None, padding):
        expected = attention(*parts, key_padding_mask=mask)
        given = None if mask is None else library.array(mask)
        out = attention(*arrays, key_padding_mask=given)
        library.assert_same(out, expected, arrays[0], **TOLERANCE[dtype], **said)


BOTH_WAYS = ("OptimalPositiveRF", "RFFSampler", "asymmetric", "functions", "HybridRF-clustered")
IN_ALL = BOTH_WAYS[:2]  # positive and signed features, in all combinations and with two texts


def attentions(causal):
    """Yield the name of a map, and whether it is fitted in advance and keys are padded."""
    for i, (name, feature_map) in enumerate(ATTENTION_MAPS.items()):
        if i % 2 == causal and name not in BOTH_WAYS:
            continue
        needs_fit = causal and getattr(feature_map, "_needs_data", False)
        for fits, is_padded in product([False, True], repeat=2):
            if fits if needs_fit else fits != is_padded or name in IN_ALL:
                yield name, fits, is_padded


@cache
def attention_of_numpy(name, causal, fits, is_padded):
    """Return q, k, v, the padding or None, the attention and its output."""
    *parts, padding = inputs(0.5)
    if name not in IN_ALL:
        parts, padding = [array[1:] for array in parts], padding[1:]
    padding = padding if is_padded else None
    # Blocks of 100 rows, and of 128 in a triangle: neither divides the length.
    attention = ApproxKernelAttention(ATTENTION_MAPS[name], causal=causal, block_size=100)
    if fits:
        attention.fit(*parts[:2])
    return parts, padding, attention, attention(*parts, key_padding_mask=padding)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_attention(library, causal):
    for name, fits, is_padded in attentions(causal):
        parts, padding, attention, expected = attention_of_numpy(name, causal, fits, is_padded)
        arrays = [library.array(values) for values in parts]
        if fits:
            attention = clone(attention).fit(*arrays[:2])
        out = attention(*arrays, key_padding_mask=library.array(padding) if is_padded else None)
        # Sums that are made elsewhere differ by rounding: parameters that a search finds by more.
        tolerance = {"rtol": 1e-4, "atol": 1e-7} if name == "GeneralizedExponentialRF" else {}
        said = TOLERANCE["float64"] | tolerance | {"err_msg": name}
        library.assert_same(out, expected, arrays[0], **said)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_window_attention(library, dtype):
    *parts, padding = inputs(0.5, dtype)
    attention = WindowAttention(20)
    compare(library, attention, parts, padding, dtype)
    arrays = [library.array(values) for values in parts]
    expected, state = attention(*parts), attention.init_state()
    for some in (slice(0, 60), slice(60, 61), slice(61, 62), slice(62, 150)):
        out, state = attention.step(*(array[..., some, :] for array in arrays), state)
        library.assert_same(out, expected[..., some, :], arrays[0], **TOLERANCE[dtype])
    assert state.select([0]).rows.shape[0] == 1


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
def test_attention_of_large_inputs(library, dtype):
    """Exponents of keys rise by a thousand within a block, beyond the range of float64."""
    *parts, padding = inputs(6.0, dtype)
    parts[1] = (parts[1] * np.geomspace(7, 0.1, 150)[:, None]).astype(dtype)
    for name, causal in (
        ("OptimalPositiveRF", True),
        ("PositiveRF-hyperbolic", True),
        ("AdaptiveRF", False),
        ("DenseExponentialRF", True),
    ):
        attention = ApproxKernelAttention(ATTENTION_MAPS[name], causal=causal).fit(*parts[:2])
        compare(library, attention, parts, padding, dtype, err_msg=name)


@pytest.mark.parametrize("causal", [False, True])
def test_what_else_attention_does(library, causal):
    *parts, padding = inputs(0.5)
    arrays = [library.array(values) for values in parts]
    attention = ApproxKernelAttention(OptimalPositiveRF(32, random_state=0), causal=causal)
    matrix = attention.attention_matrix(*arrays[:2], key_padding_mask=padding)
    expected = attention.attention_matrix(*parts[:2], key_padding_mask=padding)
    library.assert_same(matrix, expected, arrays[0], **TOLERANCE["float64"])
    theirs, ours = attention.diagnose(*arrays), attention.diagnose(*parts)
    assert theirs.relative_error == pytest.approx(ours.relative_error, rel=1e-9)
    assert_allclose(theirs.effective_features, ours.effective_features, rtol=1e-10)
    q, k, v = (values[0, 0] for values in parts)
    expected = attention(q, k, v)
    for unit in (1.0, 1e-300, 1e300):  # of values
        out = attention(*map(library.array, (q, k, v * unit)))
        assert_allclose(library.host(out) / unit, expected, rtol=0, atol=1e-9)


def test_what_attention_refuses_of_a_library(library):
    attention = ApproxKernelAttention(OptimalPositiveRF(32, random_state=0))
    of_rows = ApproxKernelAttention(mask=aslinearoperator(np.ones((150, 150))))
    q, k, v = parts = [values[0, 0] for values in inputs(0.5)[:3]]
    q_array, k_array, v_array = (library.array(values) for values in parts)
    mixed = "q, k and v must be arrays of one library"
    for call, arguments, error, said in (
        (of_rows, (q_array, k_array, v_array), TypeError, "got an object of type .*LinearOperator"),
        (attention, (q_array, k, v), TypeError, mixed),
        (attention, (None, k_array, v_array), TypeError, mixed),
        (exact_attention, (q_array, k_array, None), TypeError, mixed),
        (exact_attention, (q_array, 1.0, v_array), TypeError, mixed),
        (attention, (q_array, k_array * math.nan, v_array), ValueError, "k contains NaN"),
        (attention, (q_array, k_array, v_array[:, :0]), ValueError, "v has an empty axis: shape"),
        (attention, (q_array, k_array[:, :4], v_array), ValueError, "and 4 in k of shape"),
        (attention, (library.array(q + 0j), k_array, v_array), TypeError, "q must hold real num"),
    ):
        with pytest.raises(error, match=said):
            call(*arguments)


@pytest.mark.parametrize(
    ("name", "is_fitted", "dtype"),
    [
        ("OptimalPositiveRF", True, "float64"),
        ("OptimalPositiveRF", False, "float32"),
        ("RFFSampler", False, "float64"),
    ],
)
def test_streams(library, name, is_fitted, dtype):
    q, k, v, padding = inputs(0.5, dtype)
    attention = ApproxKernelAttention(ATTENTION_MAPS[name], causal=True)
    attention = attention.fit(q, k) if is_fitted else attention
    arrays = [library.array(values) for values in (q, k, v)]
    expected = attention(q, k, v, key_padding_mask=padding)
    state = attention.init_state()
    for start, stop in ((0, 1), (1, 64), (64, 140), (140, None)):
        now = slice(start, stop)
        chunk = [values[:, :, now, :] for values in arrays]
        out, state = attention.step(*chunk, state, key_padding_mask=padding[:, now])
        library.assert_same(out, expected[:, :, now], arrays[0], **TOLERANCE[dtype])
    with pytest.raises(ValueError, match="state must come from .* these need .* of numpy"):
        attention.step(q, k, v, state)
    with pytest.raises(ValueError, match=r"it holds sums of shape \(2, 2, 32, 4\)"):
        attention.step(*(values[:1, ...] for values in arrays), state)


@pytest.mark.parametrize(
    ("causal", "dtype", "scale"),
    [(False, "float64", 50.0), (True, "float64", 0.5), (True, "float32", 50.0)],
)
def test_exact_attention(library, causal, dtype, scale):
    *parts, padding = inputs(scale, dtype)
    arrays = [library.array(values) for values in parts]
    masks = None, np.tri(150, 150, 20, dtype=bool), np.random.default_rng(0).random((150, 150))
    for mask in masks:
        given = None if mask is None else library.array(mask)
        for padded in (None, padding):
            options = {"causal": causal, "key_padding_mask": padded, "block_size": 64}
            expected = exact_attention(*parts, mask=mask, **options)
            out = exact_attention(*arrays, mask=given, **options)
            library.assert_same(out, expected, arrays[0], **TOLERANCE[dtype])


class Unchanged(TransformerMixin, BaseEstimator):
    """A map of another package that returns its input."""

    def __init__(self, sigma=1.0, kernel="softmax"):
        self.sigma, self.kernel = sigma, kernel

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X


@pytest.mark.parametrize("causal", [False, True])
def test_features_and_inputs_of_torch_are_not_overwritten(causal):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from skrf.torch import RandomFeatureAttention

    parts = [abs(values) for values in inputs(0.5)[:3]]
    tensors, kept = [torch.tensor(values, requires_grad=True) for values in parts], []

    def kept_features(rows):  # by autograd and by their maker
        kept.append(torch.sigmoid(rows))
        return kept[-1]

    of_functions = GeneralizedMap(functions=(kept_features, kept_features))
    for feature_map in (of_functions, OptimalPositiveRF(16)):
        for operator in (
            ApproxKernelAttention(feature_map, causal=causal),
            RandomFeatureAttention(feature_map, is_causal=causal),
        ):
            operator(*tensors).sum().backward()
    with torch.inference_mode():
        ApproxKernelAttention(Unchanged(), causal=causal).fit(*parts[:2])(*tensors)
    for tensor, values in zip(tensors, parts, strict=True):
        assert_array_equal(tensor.detach(), values)
    assert all(0 < rows.min() and rows.max() < 1 for rows in kept)


def test_second_derivatives_and_functions_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v, _ = inputs(0.5, length=4)
    tensors = [torch.tensor(values, requires_grad=True) for values in (q[0], k[0], v[0])]
    fixed = [values.detach() for values in tensors]
    for causal in (False, True):
        features = OptimalPositiveRF(8, random_state=0)
        attention = ApproxKernelAttention(features, causal=causal).fit(q, k)
        assert torch.autograd.gradgradcheck(attention, tensors)
        gradient = torch.func.grad(lambda q, call=attention: call(q, *fixed[1:]).sum())(fixed[0])
        (expected,) = torch.autograd.grad(attention(*tensors).sum(), tensors[:1])
        assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_gradients_against_finite_differences(on_gpu, as_on_gpu):
    """Of attention of every kind, exact attention and kernel regression."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if on_gpu:
        as_on_gpu()
    q, k, v, padding = inputs(0.5, length=7)
    tensors = [torch.tensor(values, requires_grad=True) for values in (q[0], k[0], v[0])]
    maps = [ATTENTION_MAPS[name] for name in ("asymmetric", "elu", "exp", "functions")]
    maps += [OptimalPositiveRF(8, random_state=0), skrf.PoissonRF(8, positive=True, random_state=0)]
    maps += [make("PositiveRF-hyperbolic", n_components=8, random_state=0)]
    # Positive discrete features have a kink at a quantile of what they are fitted to, 2 q here.
    attentions = [ApproxKernelAttention(each, block_size=3).fit(2 * q, 2 * k) for each in maps]
    for causal in (False, True):
        for function in (*attentions, partial(exact_attention, causal=causal)):
            if hasattr(function, "fit"):
                function.set_params(causal=causal)
            padded = partial(function, key_padding_mask=padding[1])
            assert torch.autograd.gradcheck(padded, tensors, fast_mode=True)
    y = np.argmax(ROWS[:, :3], axis=1)
    rows = torch.tensor(ROWS[:3], requires_grad=True)
    for estimator, method in (
        (KernelRegressionClassifier(random_state=0), "decision_function"),
        (KernelRegressor(random_state=0), "predict"),
    ):
        assert torch.autograd.gradcheck(getattr(estimator.fit(ROWS, y), method), rows)
