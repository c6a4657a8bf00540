"""Sizes that cannot be held are refused at once, by the name of the parameter and the bytes."""

import inspect
import math
import re
import time
import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from instances import COMBINATIONS, KERNELS, MECHANISMS, accepts, make
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skrf
from skrf import (
    AdaptiveRF,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    ClusterNystroem,
    DenseExponentialRF,
    HybridRF,
    KernelOperator,
    KernelRegressionClassifier,
    KernelRegressor,
    KernelRegressorCV,
    OptimalPositiveRF,
    RFFSampler,
    _memory,
)
from skrf.attention import ApproxKernelAttention, GeneralizedMap
from skrf.graphical import ChainMRF, KernelHMM, TreeMRF
from skrf.projections import COUPLINGS, Coupling, blocks

HUGE = 2**40
X = np.random.default_rng(0).normal(size=(40, 3))
WIDE = np.random.default_rng(1).normal(size=(40, 20))
Y = np.arange(40) % 3


@contextmanager
def refused(*words):
    """Check that the block raises MemoryError with these words, at once and holding little."""
    start = time.process_time()
    tracemalloc.start()
    with pytest.raises(MemoryError) as caught:
        yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.process_time() - start < 1 and peak < 5e7
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert re.search(r"needs .*(MiB|GiB|TiB|PiB|EiB|bytes) of memory for .* only .*iB", text), text


@pytest.fixture
def small(monkeypatch):
    """A machine with a hundred megabytes of memory."""
    monkeypatch.setattr(_memory, "_of_machine", lambda: 10**8)
    monkeypatch.setattr(_memory._of_machine, "cache_clear", lambda: None, raising=False)


class Undrawn(Coupling):
    """Must not be drawn."""

    def draw(self, n_projections, n_features, rng):
        pytest.fail("drawn")


# ------------------------------------------------------------------ the limit


@pytest.mark.parametrize(
    "own, files, limits",
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "7", "memory.max": "9"}, [7, 9]),
        ("0::/\n", {"memory.max": "500"}, [500]),
        # The path of the host, of which a container sees its own group alone, as the root.
        ("0::/docker/x\n", {"memory.max": "300\n"}, [300]),
        (
            "3:cpu:/a\n7:memory,hugetlb:/a\n",
            {"memory/a/memory.limit_in_bytes": "400", "memory/memory.limit_in_bytes": "9" * 19},
            [400, int("9" * 19)],
        ),
        ("0::/a\n", {}, []),
    ],
)  # fmt: skip
def test_limits_of_control_groups(own, files, limits, tmp_path, monkeypatch):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(_memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(_memory, "_OWN_GROUPS", tmp_path / "own")
    assert list(_memory._group_limits()) == limits
    monkeypatch.setattr(_memory, "_physical", lambda: 450)
    assert _memory._of_machine.__wrapped__() == min([450, *limits])
    monkeypatch.setattr(_memory, "_OWN_GROUPS", tmp_path / "none")  # not Linux
    assert _memory._of_machine.__wrapped__() == 450


def test_limits_of_the_process(monkeypatch):
    limits = {"AS": (-1, -1), "DATA": (-1, -1)}
    known = SimpleNamespace(
        RLIM_INFINITY=-1, RLIMIT_AS="AS", RLIMIT_DATA="DATA", getrlimit=limits.get
    )
    monkeypatch.setattr(_memory, "resource", known)
    machine = _memory._of_machine()
    assert _memory.available() == machine > 2**27
    for name in limits:
        limits[name] = (1000, -1)
        assert _memory.available() == 1000
        limits[name] = (-1, -1)
    monkeypatch.setattr(_memory, "resource", None)  # Windows
    assert _memory.available() == machine


def test_a_limit_that_was_raised_counts(monkeypatch):
    found = iter([100, 200])
    monkeypatch.setattr(_memory, "_physical", lambda: next(found))
    monkeypatch.setattr(_memory, "_group_limits", lambda: [])
    _memory._of_machine.cache_clear()
    _memory.check_fits(150, "n=1", "nothing")
    with pytest.raises(MemoryError, match="n=1 needs 300 bytes of memory for nothing, but .* 200 "):
        found = iter([200])
        _memory.check_fits(300, "n=1", "nothing")
    _memory._of_machine.cache_clear()


def test_memory_that_is_unknown_is_no_limit(monkeypatch):
    monkeypatch.setattr(_memory.sys, "platform", "other")
    monkeypatch.delattr(_memory.os, "sysconf", raising=False)
    assert _memory._physical() == math.inf


# ------------------------------------------------------------------ mechanisms


@pytest.mark.parametrize("name, coupling", COMBINATIONS)
def test_too_many_components_are_refused(name, coupling):
    for kernel in KERNELS:
        mechanism = make(name, coupling, n_components=HUGE, kernel=kernel)
        with refused(f"n_components={HUGE}"):
            mechanism.fit(X)
    if not mechanism._needs_data:
        with refused(f"n_components={HUGE}"):
            mechanism.fit_without_data(3)
    if accepts(name, "projection") and coupling in ("iid", "orthogonal", "simplex"):
        mechanism.set_params(projection="hadamard")
        with refused(f"n_components={HUGE}"):
            mechanism.fit(WIDE)


@pytest.mark.parametrize("kernel", ["laplacian", "matern12", "matern32", "matern52", "cauchy"])
def test_too_many_frequencies_are_refused(kernel):
    with refused(f"n_components={HUGE}", "TiB"):
        RFFSampler(HUGE, kernel=kernel).fit(X)


def test_sizes_of_numpy_do_not_overflow():
    with refused("2147483646"):
        RFFSampler(np.int32(2**31 - 2)).fit(np.zeros((2, 10_000)))


def test_what_can_be_held_is_fitted(small):
    assert RFFSampler(2**20, coupling="iid").fit(X).n_components_ == 2**20  # 16 MiB
    with refused("n_components=8388608 of RFFSampler", "128 MiB", "95"):
        RFFSampler(2**23).fit(X)
    # Landmarks and clusters are never more than rows.
    assert ClusterNystroem(HUGE).fit(X).n_components_ == len(X)
    clustered = HybridRF(HUGE, coefficients="clustered", n_clusters=2**20).fit(X)
    assert clustered.n_components_ == len(X) ** 2
    many = np.random.default_rng(0).normal(size=(5000, 2))
    with refused("n_components=5000 of ClusterNystroem"):
        ClusterNystroem(5000).fit(many)


@pytest.mark.parametrize("coupling", [name for name in COUPLINGS if name not in ("iid", "sobol")])
def test_draws_hold_little_more_than_their_rows(coupling, monkeypatch):
    monkeypatch.setattr(blocks, "_NUMBERS", 500)  # of 5,000 rows, drawn at once
    rng = np.random.default_rng(0)
    COUPLINGS[coupling].draw(8, 1, rng)
    tracemalloc.start()
    drawn = COUPLINGS[coupling].draw(5000, 1, rng)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * drawn.dense().nbytes


@pytest.mark.parametrize("kind", [DenseExponentialRF, AdaptiveRF])
def test_covariances_of_too_many_columns_are_refused(kind):
    rows = sp.csr_array((np.ones(1), ([0], [0])), shape=(5, 3 * 10**6))
    with refused("X with 3000000 columns", "TiB"):
        kind(8).fit(rows)


# ------------------------------------------------------------------ what uses them

ESTIMATORS = [
    value
    for value in (getattr(skrf, name) for name in skrf.__all__)
    if inspect.isclass(value) and "feature_map" in inspect.signature(value).parameters
]
ROWS = [cls for cls in ESTIMATORS if hasattr(cls, "predict")]
MAPS = [
    RFFSampler(HUGE),
    AdaptiveRF(HUGE),
    HybridRF(HUGE),
    make_pipeline(StandardScaler(), OptimalPositiveRF(HUGE)),
]


def test_the_list_of_estimators_is_whole():
    assert len(ROWS) == 8 and set(ESTIMATORS) - set(ROWS) == {ApproxKernelAttention, KernelOperator}


@pytest.mark.parametrize("cls", ROWS)
def test_regression_on_too_many_components_is_refused(cls):
    params = cls().get_params()
    for feature_map in MAPS:
        options = {}
        if "sigmas" in params and feature_map is MAPS[-1]:  # a Pipeline has no sigma
            if "alphas" not in params:
                continue
            options = {"sigmas": None}
        model = cls(feature_map, **options)
        with refused(f"n_components={HUGE}"):
            model.fit(X, Y)
        with refused(f"n_components={HUGE}"):
            model.fit_batches([(X, Y), (X, Y)])
        if "sigmas" not in params:
            classes = {"classes": [0, 1, 2]} if "Classifier" in cls.__name__ else {}
            with refused(f"n_components={HUGE}"):
                model.partial_fit(X, Y, **classes)
    if cls in (KernelRegressionClassifier, KernelRegressor):
        with refused(f"n_components={HUGE}"):
            cls(RFFSampler(HUGE), sigma="auto").fit(X, Y)


@pytest.mark.parametrize("kind", [ApproxKernelRidge, ApproxKernelRidgeClassifier])
def test_second_moments_are_refused_before_anything_is_drawn(kind, small):
    maps = [own(8192, coupling=Undrawn()) for own in (RFFSampler, HybridRF, OptimalPositiveRF)]
    for feature_map in (*maps, make_pipeline(StandardScaler(), maps[-1])):
        with refused("n_components=8192 of ", f"the sums of {kind.__name__}"):
            kind(feature_map).fit(X, Y)
        with refused("n_components=8192 of ", f"the sums of {kind.__name__}"):
            kind(feature_map).fit_batches([(X, Y)])


def test_second_moments_of_maps_that_do_not_tell_their_columns(small):
    for feature_map in (
        RBFSampler(n_components=8192),
        FrozenEstimator(RFFSampler(8192).fit(X)),
    ):
        model = ApproxKernelRidge(feature_map)
        with refused("feature_map with 8192 columns", "512"):
            model.fit(X, Y)


@pytest.mark.parametrize("kind", [ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV])
def test_searches_hold_the_moments_of_all_folds(kind, small):
    # One matrix of moments takes 8 MiB, those of a search 160 MiB.
    options = {"sigmas": [0.5, 1.0], "alphas": [1.0]}
    assert ApproxKernelRidge(RFFSampler(1024, random_state=0)).fit(X, Y).alpha_ == 1
    model = kind(RFFSampler(1024, coupling=Undrawn()), **options)
    with refused("n_components=1024 of RFFSampler", "16"):
        model.fit(X, Y)
    with refused("n_components=1024", "32"):
        model.fit_batches([(X, Y)] * 2)


def test_sums_of_many_classes_are_refused(small):
    rows, labels = np.random.default_rng(0).normal(size=(2000, 2)), np.arange(2000) // 2
    map_of = {"n_components": 4096, "coupling": Undrawn()}
    model = KernelRegressionClassifier(RFFSampler(**map_of))
    with refused("n_components=4096 of RFFSampler", "of KernelRegress"):
        model.fit(rows, labels)
    wide = KernelRegressorCV(RFFSampler(**map_of), sigmas=[1.0, 2.0])
    with refused("n_components=4096 of RFFSampler"):
        wide.fit(rows, np.ones((2000, 500)))
    frozen = KernelRegressor(FrozenEstimator(RFFSampler(2**16).fit(rows)))
    with refused("feature_map with 65536 columns"):
        frozen.fit(rows, np.ones((2000, 500)))


def test_graphical_models_on_too_many_components_are_refused(small):
    for feature_map in (OptimalPositiveRF(HUGE), AdaptiveRF(HUGE)):
        with refused(f"n_components={HUGE}"):
            ChainMRF(X, feature_map=feature_map).log_partition(5)
        with refused(f"n_components={HUGE}"):
            TreeMRF([(0, 1)], X, feature_map=feature_map).log_partition()
        with refused(f"n_components={HUGE}"):
            KernelHMM(X, X[:5], feature_map=feature_map).score(Y)
    # Features of states, and products of features.
    states = np.random.default_rng(0).normal(size=(3000, 2))
    chain = ChainMRF(states, feature_map=OptimalPositiveRF(2048, coupling=Undrawn()))
    with refused("n_components=2048 of OptimalPositiveRF"):
        chain.log_partition(5)
    chain = ChainMRF(X, feature_map=OptimalPositiveRF(4096))
    with refused("feature_map with 4096 columns", "256 MiB"):
        chain.log_partition(5)
    exact = KernelHMM(states, states, feature_map="exact")
    with refused("feature_map='exact' of 9000000 pairs of states"):
        exact.score(Y)


def test_chains_of_too_many_variables_are_refused():
    chain = ChainMRF(X)
    assert np.isfinite(chain.log_partition(HUGE))
    for call in (chain.marginals, chain.decode, chain.sample, chain.log_partition_gradient):
        with refused(f"length={HUGE}"):
            call(HUGE)
    with refused(f"n_states={HUGE}", "n_symbols=5", "width=16"):
        KernelHMM.from_random(HUGE, 5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_too_many_components_is_refused(causal):
    maps = [OptimalPositiveRF(HUGE), AdaptiveRF(HUGE), GeneralizedMap(HUGE)]
    for feature_map in (*maps, GeneralizedMap(HUGE, projection="hadamard")):
        operator = ApproxKernelAttention(feature_map, causal=causal)
        with refused(f"n_components={HUGE}"):
            operator(WIDE, WIDE, WIDE)
        with refused(f"n_components={HUGE}"):
            operator.fit(WIDE, WIDE)


def test_operators_that_cannot_be_held_are_refused(small):
    rows = np.zeros((100_000, 3))
    features = RFFSampler(256, random_state=0).fit(X)
    with refused("X with 100000 rows", "256 features"):
        KernelOperator(features, rows)
    with refused("Y with 100000 rows", "195"):
        KernelOperator(features, X, rows)


def test_advice_on_too_many_components_is_refused():
    with refused(f"n_components={HUGE}"):
        skrf.theory.compare(X, n_components=HUGE)


def test_every_mechanism_is_here():
    assert {name for name, _ in COMBINATIONS} == set(MECHANISMS)
