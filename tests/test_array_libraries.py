"""Arrays of other libraries in, arrays of the same library, device and dtype out.

Every check compares with the NumPy path on the same numbers, seed for seed. Gradients of torch are
compared with the NumPy path's own, or with finite differences (torch.autograd.gradcheck).
"""

import math

import numpy as np
import pytest
from array_api_compat import is_torch_array
from instances import MECHANISMS, accepts, make
from numpy.testing import assert_allclose, assert_array_equal
from samples import FUNCTIONS
from scipy.sparse.linalg import aslinearoperator
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skrf
from skrf import KernelRegressionClassifier, KernelRegressor, OptimalPositiveRF, RFFSampler
from skrf._arrays import to_host
from skrf.attention import ApproxKernelAttention, GeneralizedMap, exact_attention

pytestmark = pytest.mark.filterwarnings("ignore:Random features have collapsed")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 16)), RNG.normal(size=(7, 16))
TOLERANCE = {"float64": {"rtol": 1e-10, "atol": 1e-12}, "float32": {"rtol": 1e-4, "atol": 1e-4}}

HADAMARD = [n for n in MECHANISMS if accepts(n, "projection") and n != "SimplexRFPlus"]
SPECTRA = ("laplacian", "cauchy", "matern32")
EVERY_MAP = [
    *(
        pytest.param(n, {"kernel": k}, id=f"{n}-{k}")
        for n in MECHANISMS
        for k in ("gaussian", "softmax")
    ),
    *(pytest.param(n, {"projection": "hadamard"}, id=f"{n}-hadamard") for n in HADAMARD),
    *(pytest.param("RFFSampler", {"kernel": k}, id=k) for k in SPECTRA),
]
every_map = pytest.mark.parametrize(("name", "params"), EVERY_MAP)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


def mechanism(name, params):
    known_variance = "iid" if accepts(name, "coupling") else None
    return make(name, known_variance, n_components=32, sigma=0.4, random_state=0, **params)


@pytest.fixture(params=[False, True], ids=["", "like-a-gpu"])
def like_a_gpu(request, monkeypatch):
    """Take torch's arrays as they are, or as if they were in the memory of a GPU."""
    if request.param:
        monkeypatch.setattr("skrf._arrays.is_on_gpu", is_torch_array)


# ------------------------------------------------------------------ mechanisms


@every_map
@every_dtype
def test_mechanisms(library, name, params, dtype):
    rows, keys = X.astype(dtype), Y.astype(dtype)
    ours = mechanism(name, params).fit(rows, keys=keys)
    arrays, others = library.array(rows), library.array(keys)
    theirs = mechanism(name, params).fit(arrays, keys=others)
    if hasattr(ours, "omega_"):
        assert_array_equal(theirs.omega_, ours.omega_)
    calls = {"transform": 1, "transform_keys": 1, "exact_kernel": 2, "approximate_kernel": 2}
    if params.get("projection") != "hadamard":
        calls |= {} if name == "SimplexRFPlus" else {"kernel_variance": 2}
    calls |= {"log_transform": 1, "log_transform_keys": 1} if ours.is_positive else {}
    tolerance = TOLERANCE[dtype]
    if dtype == "float32" and params.get("kernel") in SPECTRA:
        # Frequencies with heavy tails: the libraries round angles of some thousands differently.
        tolerance = {"rtol": 1e-3, "atol": 1e-3}
    for method, n_inputs in calls.items():
        expected = getattr(ours, method)(*(rows, keys)[:n_inputs])
        values = getattr(theirs, method)(*(arrays, others)[:n_inputs])
        library.assert_same(values, expected, arrays, **tolerance, err_msg=method)


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF", "PoissonRF"])
def test_rows_of_both_sides_may_need_other_precisions(library, name):
    # Far rows are mapped in float64, near ones in float32.
    rows, keys = X.astype("float32"), Y.astype("float32")
    rows[0] *= 30.0 / np.linalg.norm(rows[0])
    fitted = make(name, n_components=24, sigma=1.5, random_state=0).fit(X, keys=Y)
    for sides in ((rows, keys), (keys, rows)):
        expected = fitted.approximate_kernel(*sides)
        values = fitted.approximate_kernel(*map(library.array, sides))
        library.assert_same(values, expected, library.array(rows), rtol=1e-5, atol=1e-5)


def test_fit_takes_weights_of_the_library(library):
    weights = RNG.integers(0, 3, size=len(X)).astype(float)
    ours = OptimalPositiveRF(8, random_state=0).fit(X, sample_weight=weights)
    theirs = OptimalPositiveRF(8, random_state=0)
    theirs.partial_fit(library.array(X), sample_weight=library.array(weights))
    assert_allclose(theirs.offset_, ours.offset_, rtol=1e-13)
    assert_allclose(theirs.rho_, ours.rho_, rtol=1e-13)


@every_map
def test_gradients_of_mechanisms(name, params):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    fitted = mechanism(name, params).fit(torch.tensor(X, requires_grad=True), keys=Y)
    # Parameters and draws are constants, also of rows that carry a gradient.
    assert not any(getattr(value, "requires_grad", False) for value in vars(fitted).values())
    rows = torch.tensor(Y[:2], requires_grad=True)
    for method in ("transform", "transform_keys", *(["log_transform"] * fitted.is_positive)):

        def nonzero(rows, method=method):
            features = getattr(fitted, method)(rows)
            return features[features > -np.inf]  # the logarithms of others do not move

        assert torch.autograd.gradcheck(nonzero, rows), method


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
every_feature_map = pytest.mark.parametrize("feature_map", FEATURE_MAPS)
ROWS = RNG.normal(size=(150, 5))
WEIGHTS = RNG.integers(0, 3, size=150) / 2


def small_blocks(monkeypatch):
    monkeypatch.setattr("skrf.regression._blocks._TORCH_ROWS", 64)


@every_feature_map
@pytest.mark.parametrize("labels", LABELS)
@every_dtype
def test_classifier(library, feature_map, labels, dtype, monkeypatch):
    small_blocks(monkeypatch)
    y = LABELS[labels][np.argmax(ROWS[:, : len(LABELS[labels])], axis=1)]
    rows = ROWS.astype(dtype)
    ours = KernelRegressionClassifier(FEATURE_MAPS[feature_map], random_state=0)
    if feature_map == "pipeline":
        ours.set_params(random_state=None, feature_map__optimalpositiverf__random_state=0)
    theirs = skrf.KernelRegressionClassifier(**ours.get_params(deep=False))
    ours.fit(rows, y, WEIGHTS)
    arrays, is_text = library.array(rows), y.dtype.kind == "U"
    own_y = y if is_text else library.array(y)
    theirs.fit(arrays, own_y, library.array(WEIGHTS))
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        values = getattr(theirs, method)(arrays)
        assert_scores(library, values, getattr(ours, method)(rows), arrays, dtype)
    predicted = theirs.predict(arrays)
    assert isinstance(predicted, np.ndarray) == is_text
    found = predicted if is_text else library.host(predicted)
    assert found.dtype == y.dtype
    # In float32 a tie may fall the other way.
    assert np.mean(found == ours.predict(rows)) >= (1 if dtype == "float64" else 0.99)
    assert theirs.score(arrays, own_y) == pytest.approx(ours.score(rows, y), abs=0.01)
    # The model itself is NumPy's: it predicts for NumPy arrays as well.
    assert_scores(None, theirs.predict_proba(rows), ours.predict_proba(rows), rows, dtype)


def assert_scores(library, values, expected, arrays, dtype):
    tolerance = TOLERANCE["float64"] if dtype == "float64" else {"rtol": 2e-3, "atol": 2e-4}
    if library is None:
        assert_allclose(values, expected, **tolerance)
        return
    # -inf where a map with signs gives no class a positive score: rounding may decide which.
    library.assert_same(values, expected, arrays, **tolerance)


@pytest.mark.parametrize("sigma", [0.3, 30.0])
def test_classifier_at_any_sigma_and_in_batches(library, sigma, monkeypatch):
    small_blocks(monkeypatch)
    y = np.argmax(ROWS[:, :3], axis=1)
    ours = KernelRegressionClassifier(skrf.AdaptiveRF(64), sigma=sigma, random_state=0)
    theirs = clone(ours)
    for part in (slice(100), slice(100, None)):
        ours.partial_fit(ROWS[part], y[part], classes=[0, 1, 2, 3])
        classes = library.array(np.arange(4))
        theirs.partial_fit(library.array(ROWS[part]), y[part], classes=classes)
    assert_array_equal(theirs.classes_, [0, 1, 2, 3])
    arrays = library.array(ROWS)
    # No row was seen of class 3; at the large sigma shares underflow, and logarithms do not.
    for method in ("predict_proba", "decision_function"):
        expected, values = getattr(ours, method)(ROWS), getattr(theirs, method)(arrays)
        library.assert_same(values, expected, arrays, **TOLERANCE["float64"])
    assert (expected < -800).any() == (sigma > 1)


def test_attention_takes_arrays_of_one_library(library):
    own = library.array(ROWS)
    for inputs in ((own, own, None), (None, own, own), (own, 1.0, own)):
        for function in (ApproxKernelAttention(), exact_attention):
            with pytest.raises(TypeError, match="q, k and v must be arrays of one library"):
                function(*inputs)


def test_attention_names_shapes_that_do_not_fit(library):
    own = library.array(ROWS)
    with pytest.raises(ValueError, match=r"q of shape \(150, 5\) and 4 in k of shape \(150, 4\)"):
        ApproxKernelAttention()(own, own[:, :4], own)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_no_units_of_values(library, causal):
    attention = ApproxKernelAttention(OptimalPositiveRF(16, random_state=0), causal=causal)
    plain = attention(ROWS, ROWS, ROWS)
    for unit in (1e-300, 1e-30, 1e30, 1e300):
        found = library.host(attention(*map(library.array, (ROWS, ROWS, ROWS * unit))))
        assert_allclose(found / unit, plain, rtol=0, atol=1e-9)


def test_an_absent_class_is_not_predicted(library):
    y = np.argmax(ROWS[:, :3], axis=1)
    model = KernelRegressionClassifier(RFFSampler(2), sigma=3.0, random_state=0)
    model.partial_fit(library.array(ROWS), y, classes=[-1, 0, 1, 2])
    # The first class has the score 0, and with signs that is the largest of some rows.
    assert (model.predict_proba(ROWS).max(axis=1) == model.class_weight_.max() / 150).any()
    predicted = library.host(model.predict(library.array(ROWS)))
    assert predicted.min() >= 0
    assert_array_equal(predicted, model.predict(ROWS))


def test_batches_of_several_libraries(library):
    y = np.argmax(ROWS[:, :3], axis=1)
    ours = KernelRegressionClassifier(skrf.AdaptiveRF(64), sigma="auto", random_state=0)
    theirs = clone(ours)
    for part, array in ((slice(70), library.array), (slice(70, None), np.asarray)):
        ours.partial_fit(ROWS[part], y[part], classes=[0, 1, 2])
        theirs.partial_fit(array(ROWS[part]), y[part], classes=[0, 1, 2])
    assert_allclose(theirs.predict_proba(ROWS), ours.predict_proba(ROWS), **TOLERANCE["float64"])


@every_feature_map
@pytest.mark.parametrize("shape", [(), (2,)])
@every_dtype
def test_regressor(library, feature_map, shape, dtype, monkeypatch, like_a_gpu):
    small_blocks(monkeypatch)
    y = np.sin(ROWS[:, :2]) if shape else np.sin(ROWS[:, 0])
    rows, model = ROWS.astype(dtype), FEATURE_MAPS[feature_map]
    random_state = None if feature_map == "pipeline" else 0
    if feature_map == "pipeline":
        model.set_params(optimalpositiverf__random_state=0)
    ours = KernelRegressor(model, random_state=random_state).fit(rows, y, WEIGHTS)
    theirs = KernelRegressor(model, random_state=random_state)
    arrays = library.array(rows)
    theirs.fit(arrays, library.array(y), WEIGHTS)
    values, expected = theirs.predict(arrays), ours.predict(rows)
    assert_scores(library, values, expected, arrays, dtype)
    assert theirs.score(arrays, library.array(y)) == pytest.approx(ours.score(rows, y), abs=1e-3)


def test_products_with_features_stay_in_the_library(library, monkeypatch):
    fetched = []

    def recorded(values, to_host=skrf._arrays.to_host):
        if skrf._arrays.is_array_api(values):
            fetched.append(tuple(values.shape))
        return to_host(values)

    for module in ("_base", "_mixins", "classifier"):
        monkeypatch.setattr(f"skrf.regression.{module}.to_host", recorded)
    y = np.argmax(ROWS[:, :3], axis=1)
    model = KernelRegressionClassifier(OptimalPositiveRF(20)).fit(library.array(ROWS), y)
    # The rows once, for their statistics; then sums of the 20 features of each class.
    assert fetched == [ROWS.shape, (3, 20, 1), (3, 20)]
    fetched.clear()
    model.predict_proba(library.array(ROWS))
    assert not fetched


def test_gradients_of_probabilities():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    y = np.argmax(ROWS[:, :3], axis=1)
    rows = torch.tensor(ROWS[:3], requires_grad=True)
    for estimator, method in (
        (KernelRegressionClassifier(random_state=0), "decision_function"),
        (KernelRegressor(random_state=0), "predict"),
    ):
        assert torch.autograd.gradcheck(getattr(estimator.fit(ROWS, y), method), rows)


# ------------------------------------------------------------------ attention

ATTENTION_MAPS = {name: make(name, n_components=32, random_state=0) for name in MECHANISMS} | {
    "asymmetric": skrf.AdaptiveRF(32, asymmetric=True, random_state=0),
    "relu": GeneralizedMap(32, random_state=0),
    "elu": GeneralizedMap(nonlinearity="elu", projection="identity"),
    "square": GeneralizedMap(32, nonlinearity="square", random_state=0),
    "exp": GeneralizedMap(32, nonlinearity="exp", epsilon=0.1, random_state=0),
    "functions": GeneralizedMap(**FUNCTIONS, epsilon=0.1),
}
SAFE = [name for name, m in ATTENTION_MAPS.items() if getattr(m, "is_positive", False)]
every_attention_map = pytest.mark.parametrize("name", ATTENTION_MAPS)
every_direction = pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])


def inputs(scale, dtype="float64", length=150, seed=0):
    """Return q of 4 heads, k and v of 2, and the padding of two texts; the first keys are some."""
    rng = np.random.default_rng(seed)
    q, k = (scale * rng.normal(size=(2, heads, length, 6)) for heads in (4, 2))
    v, padding = rng.normal(size=(2, 2, length, 3)), rng.random((2, length)) < 0.1
    padding[1, :3] = True
    return *(part.astype(dtype) for part in (q, k, v)), padding


def compare(library, attention, parts, padding, dtype, **tolerance):
    arrays = [library.array(part) for part in parts]
    for mask in (None, padding):
        expected = attention(*parts, key_padding_mask=mask)
        for given in (mask, None if mask is None else library.array(mask)):
            out = attention(*arrays, key_padding_mask=given)
            library.assert_same(out, expected, arrays[0], **TOLERANCE[dtype] | tolerance)


@every_attention_map
@every_direction
def test_attention(library, name, causal, dtype="float64"):
    *parts, padding = inputs(0.5, dtype)
    # Blocks of 100 rows, and of 128 in a triangle: neither divides the length.
    attention = ApproxKernelAttention(ATTENTION_MAPS[name], causal=causal, block_size=100)
    # Sums that are made elsewhere differ by rounding: parameters that a search finds by more.
    tolerance = {"rtol": 1e-4, "atol": 1e-7} if name == "GeneralizedExponentialRF" else {}
    if not causal or not getattr(ATTENTION_MAPS[name], "_needs_data", False):
        compare(library, attention, parts, padding, dtype, **tolerance)
    attention.fit(library.array(parts[0]), library.array(parts[1]))
    compare(library, attention, parts, padding, dtype)


@pytest.mark.parametrize("name", SAFE)
@every_direction
@every_dtype
@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
def test_attention_of_large_inputs(library, name, causal, dtype):
    """Exponents of keys rise by a thousand within a block, beyond the range of float64."""
    *parts, padding = inputs(6.0, dtype)
    parts[1] = (parts[1] * np.geomspace(7, 0.1, 150)[:, None]).astype(dtype)
    attention = ApproxKernelAttention(ATTENTION_MAPS[name], causal=causal)
    attention.fit(*parts[:2])
    compare(library, attention, parts, padding, dtype)


@every_direction
def test_what_else_attention_does(library, causal):
    *parts, padding = inputs(0.5)
    arrays = [library.array(part) for part in parts]
    attention = ApproxKernelAttention(OptimalPositiveRF(32, random_state=0), causal=causal)
    matrix = attention.attention_matrix(*arrays[:2], key_padding_mask=padding)
    expected = attention.attention_matrix(*parts[:2], key_padding_mask=padding)
    library.assert_same(matrix, expected, arrays[0], **TOLERANCE["float64"])
    theirs, ours = attention.diagnose(*arrays), attention.diagnose(*parts)
    assert theirs.relative_error == pytest.approx(ours.relative_error, rel=1e-9)
    assert_allclose(theirs.effective_features, ours.effective_features, rtol=1e-10)
    flat = [library.array(part[0, 0]) for part in parts]
    expected = attention(*(part[0, 0] for part in parts))
    library.assert_same(attention(*flat), expected, flat[0], **TOLERANCE["float64"])
    with pytest.raises(TypeError, match="a LinearOperator works on NumPy arrays, got q of"):
        ApproxKernelAttention(mask=aslinearoperator(np.ones((150, 150))))(*arrays)
    with pytest.raises(TypeError, match="q, k and v must be arrays of one library"):
        attention(arrays[0], parts[1], parts[2])
    with pytest.raises(ValueError, match="k contains NaN"):
        attention(arrays[0], arrays[1] * float("nan"), arrays[2])
    with pytest.raises(ValueError, match="v has an empty axis: shape \\(2, 2, 150, 0\\)"):
        attention(*arrays[:2], arrays[2][..., :0])
    with pytest.raises(TypeError, match="q must hold real numbers"):
        attention(library.array(parts[0] + 0j), *arrays[1:])


@pytest.mark.parametrize("name", ["OptimalPositiveRF", "RFFSampler"])
@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_streams(library, name, is_fitted, dtype):
    q, k, v, padding = inputs(0.5, dtype)
    attention = ApproxKernelAttention(ATTENTION_MAPS[name], causal=True)
    attention = attention.fit(q, k) if is_fitted else attention
    arrays = [library.array(part) for part in (q, k, v)]
    expected = attention(q, k, v, key_padding_mask=padding)
    state = attention.init_state()
    for start in (0, 1, 64, 140):
        now = slice(start, {0: 1, 1: 64, 64: 140}.get(start))
        chunk = [part[:, :, now, :] for part in arrays]
        out, state = attention.step(*chunk, state, key_padding_mask=padding[:, now])
        library.assert_same(out, expected[:, :, now], arrays[0], **TOLERANCE[dtype])
    with pytest.raises(ValueError, match="state must come from .* these need .* of numpy"):
        attention.step(q, k, v, state)
    with pytest.raises(ValueError, match=r"it holds sums of shape \(2, 2, 32, 4\)"):
        attention.step(*(part[:1, ...] for part in arrays), state)


@every_direction
@every_dtype
@pytest.mark.parametrize("scale", [0.5, 50.0])
def test_exact_attention(library, causal, dtype, scale):
    *parts, padding = inputs(scale, dtype)
    arrays = [library.array(part) for part in parts]
    masks = None, np.tri(150, 150, 20, dtype=bool), np.random.default_rng(0).random((150, 150))
    for mask in masks:
        given = None if mask is None else library.array(mask)
        for padded in (None, padding):
            options = {"causal": causal, "key_padding_mask": padded, "block_size": 64}
            expected = exact_attention(*parts, mask=mask, **options)
            out = exact_attention(*arrays, mask=given, **options)
            library.assert_same(out, expected, arrays[0], **TOLERANCE[dtype])


@pytest.mark.parametrize(
    "name", ["OptimalPositiveRF", "PositiveRF-hyperbolic", "asymmetric", "elu", "exp", "functions"]
)
@every_direction
@pytest.mark.parametrize("scale", [0.5, 5.0])
@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
def test_gradients_of_attention_are_those_of_the_module(name, causal, scale, like_a_gpu):
    """The module has a closed form for causal attention; autograd differentiates the operator."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from skrf.torch.module import _Operator

    *parts, padding = inputs(scale)
    gradient = torch.asarray(np.random.default_rng(1).normal(size=(2, 4, 150, 3)))
    found = []
    for kind in (ApproxKernelAttention, _Operator):
        attention = kind(ATTENTION_MAPS[name], causal=causal, block_size=40).fit(*parts[:2])
        tensors = [torch.tensor(part, requires_grad=True) for part in parts]
        out = attention(*tensors, key_padding_mask=padding)
        found.append([out, *torch.autograd.grad(out, tensors, gradient)])
    for own, expected in zip(*found, strict=True):
        assert (own - expected).abs().max() <= 1e-9 * expected.abs().max()


@pytest.mark.parametrize("name", ["RFFSampler", "OptimalPositiveRF", "DenseExponentialRF"])
def test_statistics_of_a_call_copy_sums_alone_to_the_host(library, name, monkeypatch):
    *parts, padding = inputs(0.5)
    sizes = []

    def noted(X):
        if X is not None:
            sizes.append(0 if "bool" in str(X.dtype) else math.prod(X.shape))
        return to_host(X)

    monkeypatch.setattr("skrf.statistics.to_host", noted)
    monkeypatch.setattr("skrf.attention._feature_maps.to_host", noted)
    monkeypatch.setattr("skrf.features.base.to_host", noted)
    attention = ApproxKernelAttention(make(name, n_components=8, random_state=0))
    out = attention(*map(library.array, parts), key_padding_mask=library.array(padding))
    library.assert_same(
        out,
        attention(*parts, key_padding_mask=padding),
        library.array(parts[0]),
        **TOLERANCE["float64"],
    )
    assert max(sizes) <= parts[0].shape[-1] ** 2


def test_causal_attention_of_the_module_refuses_second_derivatives():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from skrf.torch import RandomFeatureAttention

    parts = [torch.tensor(part, requires_grad=True) for part in inputs(0.5)[:3]]
    attention = RandomFeatureAttention(OptimalPositiveRF(16, random_state=0), is_causal=True)
    with pytest.raises(NotImplementedError, match="Second derivatives"):
        torch.autograd.grad(attention(*parts).sum(), parts, create_graph=True)


def test_features_and_inputs_of_torch_are_not_overwritten():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    parts = [torch.tensor(part, requires_grad=True) for part in inputs(0.5)[:3]]
    from skrf.torch import RandomFeatureAttention

    before = [part.detach().clone() for part in parts]
    kept = []

    def own(rows):  # features that autograd and their maker keep
        kept.append(torch.sigmoid(rows))
        return kept[-1]

    generalized = GeneralizedMap(functions=(own, own))
    for feature_map in (generalized, OptimalPositiveRF(16, random_state=0)):
        for kind in (ApproxKernelAttention, RandomFeatureAttention):
            direction = {"causal" if kind is ApproxKernelAttention else "is_causal": True}
            kind(feature_map, **direction)(*parts).sum().backward()
    for part, same in zip(parts, before, strict=True):
        assert torch.equal(part.detach(), same)
    for rows in kept:
        assert 0 < rows.min() and rows.max() < 1


class Unchanged(TransformerMixin, BaseEstimator):
    """A map of another package that returns its input."""

    def __init__(self, sigma=1.0, kernel="softmax"):
        self.sigma, self.kernel = sigma, kernel

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X


@every_direction
def test_inputs_of_torch_are_not_overwritten_in_inference_mode(causal):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    parts = [abs(part) for part in np.random.default_rng(0).normal(size=(3, 12, 3))]
    attention = ApproxKernelAttention(Unchanged(), causal=causal)
    attention.fit(*parts[:2])
    tensors = [torch.tensor(part) for part in parts]
    with torch.inference_mode():
        attention(*tensors)
    for tensor, part in zip(tensors, parts, strict=True):
        assert_array_equal(tensor, part)


def test_bidirectional_attention_in_functions_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v, _ = inputs(0.5, length=4)
    tensors = [torch.tensor(part) for part in (q[0], k[0], v[0])]
    attention = ApproxKernelAttention(OptimalPositiveRF(8, random_state=0)).fit(q, k)
    found = torch.func.grad(lambda q: attention(q, *tensors[1:]).sum())(tensors[0])
    own = tensors[0].clone().requires_grad_()
    attention(own, *tensors[1:]).sum().backward()
    assert_allclose(found, own.grad, rtol=1e-10, atol=1e-14)


def test_second_derivatives_of_bidirectional_attention():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v, _ = inputs(0.5, length=4)
    tensors = [torch.tensor(part, requires_grad=True) for part in (q[0], k[0], v[0])]
    attention = ApproxKernelAttention(OptimalPositiveRF(8, random_state=0)).fit(q, k)
    assert torch.autograd.gradgradcheck(attention, tensors)


@every_direction
def test_gradients_where_backward_is_not_known(causal):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v, padding = inputs(0.5, length=4)
    tensors = [torch.tensor(part, requires_grad=True) for part in (q[0], k[0], v[0])]
    attention = ApproxKernelAttention(skrf.PoissonRF(8, positive=True, random_state=0)).fit(q, k)
    attention.set_params(causal=causal)
    for function in (attention, lambda *args, **kw: exact_attention(*args, causal=causal, **kw)):
        assert torch.autograd.gradcheck(
            lambda *args, f=function: f(*args, key_padding_mask=padding[1]), tensors
        )


def test_memory_of_causal_gradients_is_linear_in_the_length():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    attention = ApproxKernelAttention(OptimalPositiveRF(16, random_state=0), causal=True)
    saved = []
    for length in (512, 1024):
        tensors = [
            torch.tensor(part, requires_grad=True) for part in inputs(0.5, length=length)[:3]
        ]
        kept = {}

        def pack(tensor, kept=kept):
            kept[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = attention(*tensors)
        saved.append(sum(kept.values()))
        assert out.requires_grad
    # Twice the length: the same per position. A matrix of all pairs would make it four times.
    assert saved[1] < 2.1 * saved[0]
