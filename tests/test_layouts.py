"""Arrays of every layout in memory give what their contiguous copies give, and stay as they are."""

import itertools
import tempfile
import warnings
from functools import partial

import numpy as np
import pytest
from instances import MECHANISMS, make
from numpy.testing import assert_allclose
from sklearn.frozen import FrozenEstimator

import skrf
from skrf import (
    ApproxKernelRidge,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    KernelOperator,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    RelevanceScaler,
    RFFSampler,
    _kernels,
    exact_attention,
)
from skrf.attention import ApproxKernelAttention, ToeplitzMask
from skrf.graphical import ChainMRF, KernelHMM, TreeMRF


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Let compiled code serve the smallest calls: it reads memory without checks."""
    for name in ("ENTRIES", "DIFFERENCES", "SYMBOLS"):
        monkeypatch.setattr(_kernels, name, 0)


# ------------------------------------------------------------------ layouts


def _reversed(values):
    back = (slice(None, None, -1),) * values.ndim
    return np.ascontiguousarray(values[back])[back]


def _sliced(values):
    # What lies between the entries would be noticed.
    wide = np.full([2 * n + 1 for n in values.shape], np.nan if values.dtype.kind == "f" else 1)
    wide = wide.astype(values.dtype)
    every_other = wide[(slice(1, None, 2),) * values.ndim]
    every_other[...] = values
    return every_other


def _turned(values):
    """Axes of memory in another order, as after a swap of heads and positions."""
    order = np.roll(np.arange(values.ndim), 1)
    return np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order))


def _odd_strides(values):
    """Strides of axes of length 1 are arbitrary; here they lead out of the array."""
    sizes = zip(values.strides, values.shape, strict=True)
    strides = [stride if n > 1 else 10**6 for stride, n in sizes]
    return np.lib.stride_tricks.as_strided(values, values.shape, strides)


def _unaligned(values):
    memory = np.empty(values.nbytes + 1, np.uint8)
    unaligned = memory[1:].view(values.dtype).reshape(values.shape)
    unaligned[...] = values
    return unaligned


def _mapped(values):
    """On disk, and read-only."""
    with tempfile.TemporaryFile() as file:
        file.write(values.tobytes())
        file.flush()
        return np.memmap(file, values.dtype, "r", shape=values.shape)


def _broadcasting(axes):
    """Return a layout with one row, or one column, for all in turn."""
    turns = itertools.cycle(axes)

    def broadcast(values):
        return np.broadcast_to(values.take([0], next(turns)), values.shape)

    return broadcast


LAYOUTS = {
    "Fortran": np.asfortranarray,
    "reversed": _reversed,
    "sliced": _sliced,
    "turned": _turned,
    "odd strides": _odd_strides,
    "unaligned": _unaligned,
    "swapped bytes": lambda values: values.astype(values.dtype.newbyteorder()),
    "memory-mapped": _mapped,
}


class Arrays:
    """Hands out random arrays of one layout, and checks later that they were not written to."""

    def __init__(self, layout, dtype):
        self._rng, self._layout, self._dtype = np.random.default_rng(0), layout, dtype
        self._given = []

    def __call__(self, *shape):
        return self._noted(self._layout(self._rng.normal(size=shape).astype(self._dtype)))

    def laid(self, values):
        """Return given values in the layout, unless it would change them."""
        laid = self._layout(values)
        return self._noted(laid if np.array_equal(laid, values) else values)

    def _noted(self, array):
        self._given.append((array, array.tobytes(), array.strides))
        return array

    def check(self):
        """Raise if an array has changed."""
        for array, content, strides in self._given:
            assert array.tobytes() == content and array.strides == strides


def flat(results):
    """Return the arrays of nested results."""
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        return [array for result in results if result is not None for array in flat(result)]
    return [np.asarray(results)]


# ------------------------------------------------------------------ consumers

FEATURE_MAPS = [name for name in MECHANISMS if "-" not in name]
FEATURE_MAPS += ["PositiveRF-hyperbolic", "DiscreteRF-single", "HybridRF-clustered"]


def feature_map(name, arrays):
    X, Y, new = arrays(12, 3), arrays(9, 3), arrays(1, 3)
    weights = np.abs(arrays(12)) + 1
    fitted = make(name, n_components=24, sigma="scale", random_state=0)
    fitted.fit(X, sample_weight=arrays.laid(weights), keys=Y)
    yield fitted.transform(X), fitted.transform(new), fitted.transform_keys(Y)
    yield fitted.approximate_kernel(X, Y), fitted.exact_kernel(X, Y)
    if fitted.is_positive:
        yield fitted.log_transform(X), fitted.log_transform_keys(new)


def merged(arrays):
    batches = [(arrays(20, 3), arrays.laid(np.arange(20) % 3)) for _ in range(2)]
    frozen = FrozenEstimator(MAP().fit(batches[0][0]))
    for kind in (KernelRegressor, KernelRegressionClassifier):
        one, other = (kind(frozen).fit(*batch) for batch in batches)
        yield one.merge(other).predict(batches[1][0])
        # Sigmas are searched for once, which costs most.
        sigma = "scale" if kind is KernelRegressor else None
        yield kind(MAP(sigma=sigma)).fit_batches(batches).predict(arrays(4, 3))
    fitted = MAP().fit_batches([rows for rows, _ in batches])
    yield fitted.partial_fit(arrays(5, 3)).transform(arrays(4, 3))


def wide(arrays):
    X = arrays(30, 144)
    fitted = RFFSampler(160, projection="hadamard", sigma="scale", random_state=0).fit(X)
    return fitted.transform(X), fitted.transform(arrays(1, 144))


def exactly(arrays):
    q, k, v = arrays(2, 9, 3), arrays(2, 9, 3), arrays(2, 9, 2)
    mask = arrays.laid(np.abs(np.random.default_rng(1).normal(size=(9, 9))))
    yield exact_attention(q, k, v), exact_attention(q, k, v, causal=True, mask=mask)
    X, Y = arrays(20, 3), arrays(15, 3)
    kernel = KernelOperator(MAP().fit(X), X, Y)
    yield kernel @ arrays(15, 4), kernel.T @ arrays(20), kernel.diagonal()


def regression(model, arrays):
    X, is_classifier = arrays(36, 3), hasattr(model, "predict_proba") or "Classifier" in repr(model)
    y = arrays.laid(np.arange(36) % 3) if is_classifier else arrays(36, 2)
    weights = arrays.laid(np.arange(36.0) % 4 + 1)
    model.fit(X, y, sample_weight=weights)
    yield model.predict(X), model.predict(arrays(1, 3))
    if hasattr(model, "predict_proba"):
        yield model.predict_proba(X)


def attention(options, arrays):
    for lead, keys in (((), ()), ((2, 4), (2, 2))):
        q, k, v = arrays(*lead, 13, 3), arrays(*keys, 13, 3), arrays(*keys, 13, 2)
        padding = arrays.laid(np.arange(13) % 5 == 4)
        given = {"feature_map": MAP(), **options(arrays)}
        call = ApproxKernelAttention(**given)
        if lead:
            yield call(q, k, v, key_padding_mask=padding), call.fit(q, k)(q, k, v)
        else:
            yield call(q, k, v)
        if call.causal and call.mask is None:
            out, state = call.step(q[..., :5, :], k[..., :5, :], v[..., :5, :], call.init_state())
            yield out
            for i in (5, 6):
                one = [values[..., i : i + 1, :] for values in (q, k, v)]
                out, state = call.step(*one, state)
                yield out


def chain(arrays):
    model = ChainMRF(arrays(9, 3), arrays(9, 3), unary=arrays(7, 9), feature_map=MAP())
    paths = arrays.laid(np.random.default_rng(1).integers(0, 9, size=(4, 7)))
    yield model.log_partition(), model.marginals(), model.log_prob(paths), model.decode()
    yield model.log_prob_gradient(paths)


def tree(arrays):
    edges = arrays.laid(np.array([[0, 1], [0, 2], [2, 3]]))
    model = TreeMRF(edges, arrays(9, 3), arrays(4, 9), feature_map=MAP())
    states = arrays.laid(np.random.default_rng(1).integers(0, 9, size=(5, 4)))
    yield model.log_partition(), model.marginals(), model.log_prob(states), model.decode()
    yield model.log_prob_gradient(states)


def hidden_markov(arrays):
    model = KernelHMM(
        arrays(9, 3),
        arrays(5, 3),
        targets=arrays(9, 3),
        emitters=arrays(9, 3),
        start_embedding=arrays(3),
        feature_map=MAP(),
    )
    symbols, lengths = arrays.laid(np.arange(8) % 5), arrays.laid(np.array([5, 3]))
    yield model.score(symbols, lengths), model.predict_proba(symbols, lengths)
    yield model.filter_step(2).posterior, model.decode(symbols, lengths, algorithm="viterbi")
    model.set_params(max_iter=2, tol=1e-300)
    yield model.fit(symbols, lengths).states_


MAP = partial(OptimalPositiveRF, 16, random_state=0)
SIGNED = partial(RFFSampler, 64, random_state=0)
MODELS = {
    "classifier": lambda: KernelRegressionClassifier(MAP()),
    "regressor": lambda: KernelRegressor(SIGNED()),
    "exact classifier": lambda: KernelRegressionClassifier("exact", sigma=0.8),
    "ridge": lambda: ApproxKernelRidge(SIGNED()),
    "ridge search": lambda: ApproxKernelRidgeCV(SIGNED(), sigmas=[0.5], alphas=[0.1, 1.0]),
    "ridge classifier search": lambda: ApproxKernelRidgeClassifierCV(
        SIGNED(), sigmas=[0.5], alphas=[0.1, 1.0], cv=3
    ),
    "landmarks": lambda: ApproxKernelRidge(skrf.ClusterNystroem(8, random_state=0)),
}
ATTENTION = {
    "bidirectional": lambda arrays: {},
    "causal": lambda arrays: {"causal": True},
    "signed": lambda arrays: {"feature_map": SIGNED(), "causal": True},
    "masked": lambda arrays: {"mask": arrays.laid(np.ones((13, 13)) + np.eye(13))},
    "Toeplitz": lambda arrays: {"mask": ToeplitzMask(np.abs(arrays(25)) + 0.1), "causal": True},
}
CONSUMERS = {
    **{name: partial(feature_map, name) for name in FEATURE_MAPS},
    **{name: lambda arrays, make=make: regression(make(), arrays) for name, make in MODELS.items()},
    **{f"attention, {name}": partial(attention, options) for name, options in ATTENTION.items()},
    "merge and batches": merged,
    "compiled projection": wide,
    "operator and exact attention": exactly,
    "relevance": lambda arrays: (
        RelevanceScaler(random_state=0)
        .fit(arrays(40, 3), arrays.laid(np.arange(40) % 3))
        .transform(arrays(5, 3))
    ),
    "chain": chain,
    "tree": tree,
    "hidden Markov model": hidden_markov,
}


def results(consumer, layout, dtype):
    arrays = Arrays(layout, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = flat(list(consumer(arrays)))
    arrays.check()
    return made


@pytest.mark.parametrize("name", CONSUMERS)
def test_layouts_change_nothing(name):
    """In float64, and in float32 one layout of two that compiled code would notice."""
    single = ("turned", "unaligned")[list(CONSUMERS).index(name) % 2]
    for dtype, close, layouts in ((np.float64, 1e-9, LAYOUTS), (np.float32, 1e-3, [single])):
        run = partial(results, CONSUMERS[name], dtype=dtype)
        plain = run(np.array)
        for layout in layouts:
            assert_same(run(LAYOUTS[layout]), plain, close, layout)


@pytest.mark.parametrize("name", CONSUMERS)
def test_broadcast_arrays_are_their_copies(name):
    """Of arrays in turn, the first row stands for all, or the first column."""
    run = partial(results, CONSUMERS[name], dtype=np.float64)
    broadcast, copied = _broadcasting((0, -1)), _broadcasting((0, -1))
    assert_same(run(broadcast), run(lambda values: np.array(copied(values))), 1e-9, "broadcast")


def assert_same(actual, expected, close, layout):
    assert len(actual) == len(expected) > 0
    for ours, theirs in zip(actual, expected, strict=True):
        largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
        assert_allclose(ours, theirs, rtol=close, atol=close * largest, err_msg=layout)
