"""Sizes that cannot be held are refused at once, by the name of the parameter and the bytes."""

import inspect
import math
import re
import subprocess
import sys
import time
import tracemalloc
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from estimators import ESTIMATORS
from instances import KERNELS, MECHANISMS, accepts, couplings, make
from sklearn.base import clone
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
    KernelSampler,
    OptimalPositiveRF,
    QuadratureFourierFeatures,
    RFFSampler,
    _memory,
)
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    ToeplitzMask,
    WindowAttention,
    exact_attention,
)
from skrf.graphical import ChainMRF, KernelHMM, SemiMarkovChain, TreeMRF, _recursions
from skrf.projections import Coupling

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
def machine(monkeypatch):
    """Return the dictionary of all files that tell this process of its control groups."""
    files, read = {}, Path.read_text

    def read_text(path, *args, **kwargs):
        name = path.as_posix()
        if not name.startswith(("/proc/self/cgroup", "/sys/fs/cgroup")):
            return read(path, *args, **kwargs)
        if name not in files:
            raise FileNotFoundError(name)
        return files[name]

    monkeypatch.setattr(Path, "read_text", read_text)
    _memory._of_machine.cache_clear()
    yield files
    _memory._of_machine.cache_clear()


@pytest.fixture
def small(machine):
    """A machine with a hundred megabytes of memory."""
    machine |= {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": str(10**8)}


class Undrawn(Coupling):
    """Must not be drawn."""

    def draw(self, n_projections, n_features, rng):
        pytest.fail("drawn")


# ------------------------------------------------------------------ the limit


def test_limits_of_control_groups(machine):
    most = _memory.available()  # no such files: not Linux
    assert most > 2**27
    for groups, files, limits in (
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "7", "memory.max": "9"}, [7, 9]),
        # The path of the host, of which a container sees its own group alone, as the root.
        ("0::/docker/x\n", {"memory.max": "300\n"}, [300]),
        (
            "3:cpu:/a\n7:memory,hugetlb:/a\n",
            {"memory/a/memory.limit_in_bytes": "400", "memory/memory.limit_in_bytes": "9" * 19},
            [400, int("9" * 19)],
        ),
        ("0::/a\n", {}, []),
    ):
        machine.clear()
        machine["/proc/self/cgroup"] = groups
        machine |= {f"/sys/fs/cgroup/{name}": text for name, text in files.items()}
        assert list(_memory._group_limits()) == limits
        _memory._of_machine.cache_clear()
        assert _memory.available() == min([most, *limits])


LIMITED = """
import os, runpy, sys

kind, limit = sys.argv[2:]
if kind == "no resource":  # Windows has no such module
    sys.modules["resource"] = None
elif kind == "no numbers":  # and other systems no such numbers
    sys.modules["resource"], sys.platform = None, "other"
    del os.sysconf
else:
    import resource

    resource.setrlimit(getattr(resource, kind), (int(limit), -1))
print(runpy.run_path(sys.argv[1])["available"]())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of processes")
def test_limits_of_the_process_and_of_unknown_machines():
    limit = 2**27 - 4096
    for kind, expected in (
        ("RLIMIT_AS", limit),
        ("RLIMIT_DATA", limit),
        ("no resource", _memory._of_machine()),
        ("no numbers", min([math.inf, *_memory._group_limits()])),
    ):
        command = [sys.executable, "-c", LIMITED, _memory.__file__, kind, str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert float(done.stdout) == expected


def test_a_limit_that_was_raised_counts(machine):
    machine |= {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "100"}
    _memory.check_fits(90, "n=1", "nothing")
    machine["/sys/fs/cgroup/memory.max"] = "200"
    _memory.check_fits(150, "n=1", "nothing")
    with pytest.raises(MemoryError, match="n=1 needs 300 bytes of memory for nothing, but .* 200 "):
        _memory.check_fits(300, "n=1", "nothing")


# ------------------------------------------------------------------ mechanisms


@pytest.mark.parametrize("name", MECHANISMS)
def test_too_many_components_are_refused(name):
    for coupling in couplings(name):
        mechanism = make(name, coupling, n_components=HUGE, kernel=KERNELS[coupling == "iid"])
        with refused(f"n_components={HUGE}"):
            mechanism.fit(X)
        if not mechanism._needs_data:
            with refused(f"n_components={HUGE}"):
                mechanism.fit_without_data(3)
        if accepts(name, "projection") and coupling in ("iid", "orthogonal", "simplex"):
            mechanism.set_params(projection="hadamard")
            with refused(f"n_components={HUGE}"):
                mechanism.fit(WIDE)


def test_other_sizes_that_no_machine_holds_are_refused():
    for kernel in ("laplacian", "matern12", "matern32", "matern52", "cauchy"):
        with refused(f"n_components={HUGE}", "TiB"):
            RFFSampler(HUGE, kernel=kernel).fit(X)
    with refused("2147483646"):  # integers of NumPy do not overflow
        RFFSampler(np.int32(2**31 - 2)).fit(np.zeros((2, 10_000)))
    rows = sp.csr_array((np.ones(1), ([0], [0])), shape=(5, 3 * 10**6))
    for kind in (DenseExponentialRF, AdaptiveRF):
        with refused("X with 3000000 columns", "TiB"):
            kind(8).fit(rows)
    sampler = KernelSampler(OptimalPositiveRF(8)).fit(X)
    for queries, size in ((X[0], "32 TiB"), (X, "1.25 PiB")):
        with refused(f"n_samples={HUGE}", size):
            sampler.sample(queries, HUGE)
    with refused(f"n_components={HUGE}"):
        skrf.theory.compare(X, n_components=HUGE)
    maps = [OptimalPositiveRF(HUGE), AdaptiveRF(HUGE), GeneralizedMap(HUGE)]
    maps.append(GeneralizedMap(HUGE, projection="hadamard"))
    for causal, feature_map in product((False, True), maps):
        operator = ApproxKernelAttention(feature_map, causal=causal)
        with refused(f"n_components={HUGE}"):
            operator(WIDE, WIDE, WIDE)
        with refused(f"n_components={HUGE}"):
            operator.fit(WIDE, WIDE)


DENSE = "ApproxKernelAttention", "WindowAttention", "KernelHMM", "ChainMRF", "TreeMRF"
DENSE += ("SmoothClipScaler", "KernelMachine")  # refuse sparse rows by name


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if not n.startswith(DENSE)])
def test_no_estimator_dies_of_sparse_rows_with_too_many_columns(name, small):
    """A few numbers, and the most columns that indices of 32 bits allow."""
    model, n_columns, y = clone(ESTIMATORS[name]()[0]), 2**31 - 1, np.arange(30) % 3
    places = np.arange(30), n_columns - 1 - y
    rows = sp.csr_array((np.ones(30), places), shape=(30, n_columns))
    with refused(f"X with {n_columns} columns"):
        model.fit(rows, y)
    if hasattr(model, "fit_batches") and "exact" not in name:
        with refused(f"X with {n_columns} columns"):
            model.fit_batches([(rows, y)])


def test_what_can_be_held_is_fitted(small):
    assert RFFSampler(2**20, coupling="iid").fit(X).n_components_ == 2**20  # 16 MiB
    with refused("n_components=8388608 of RFFSampler", "128 MiB", "95"):
        RFFSampler(2**23).fit(X)
    # Landmarks and clusters are never more than rows.
    assert ClusterNystroem(HUGE).fit(X).n_components_ == len(X)
    clustered = HybridRF(HUGE, coefficients="clustered", n_clusters=2**20).fit(X)
    assert clustered.n_components_ == len(X) ** 2
    with refused("n_components=5000 of ClusterNystroem"):
        ClusterNystroem(5000).fit(np.random.default_rng(0).normal(size=(5000, 2)))
    features = RFFSampler(256, random_state=0).fit(X)
    assert QuadratureFourierFeatures(10**5).fit(X[:, :1]).n_components_ == 10**5 - 1
    with refused("n_components=10000000 of QuadratureFourierFeatures", "686"):
        QuadratureFourierFeatures(10**7).fit(X[:, :2])
    with refused("X with 100000 rows", "256 features"):
        KernelOperator(features, np.zeros((100_000, 3)))
    with refused("Y with 100000 rows", "195"):
        KernelOperator(features, X, np.zeros((100_000, 3)))


# ------------------------------------------------------------------ what uses them

ROWS = [
    value
    for value in (getattr(skrf, name) for name in skrf.__all__)
    if hasattr(value, "predict") and "feature_map" in inspect.signature(value).parameters
]


@pytest.mark.parametrize("cls", ROWS)
def test_regression_on_too_many_components_is_refused(cls):
    models = [cls(kind(HUGE)) for kind in (RFFSampler, AdaptiveRF, HybridRF)]
    is_search, is_ridge = hasattr(cls(), "sigmas"), "Ridge" in cls.__name__
    if is_ridge or not is_search:
        scaled = cls(make_pipeline(StandardScaler(), OptimalPositiveRF(HUGE)))
        models.append(scaled.set_params(sigmas=None) if is_search else scaled)
    if not (is_ridge or is_search):
        models.append(cls(RFFSampler(HUGE)))
    for model in models:
        with refused(f"n_components={HUGE}"):
            model.fit(X, Y)
        with refused(f"n_components={HUGE}"):
            model.fit_batches([(X, Y), (X, Y)])
        if not is_search:
            classes = {"classes": [0, 1, 2]} if "Classifier" in cls.__name__ else {}
            with refused(f"n_components={HUGE}"):
                model.partial_fit(X, Y, **classes)


def test_second_moments_are_refused_before_anything_is_drawn(small):
    maps = [kind(8192, coupling=Undrawn()) for kind in (RFFSampler, HybridRF, OptimalPositiveRF)]
    maps.append(make_pipeline(StandardScaler(), maps[-1]))
    with refused("n_components=100000000 of HybridRF"):
        ApproxKernelRidge(HybridRF(10**8, coefficients="clustered")).fit(X, Y)
    for kind, feature_map in product((ApproxKernelRidge, ApproxKernelRidgeClassifier), maps):
        with refused("n_components=8192 of ", f"the sums of {kind.__name__}"):
            kind(feature_map).fit(X, Y)
        with refused("n_components=8192 of ", f"the sums of {kind.__name__}"):
            kind(feature_map).fit_batches([(X, Y)])
    # Of maps that do not tell their number of features before they have made some.
    with refused("feature_map with 8192 columns", "512"):
        ApproxKernelRidge(RBFSampler(n_components=8192)).fit(X, Y)
    model = ApproxKernelRidge(FrozenEstimator(RFFSampler(8192).fit(X)))
    for method in (model.fit, model.partial_fit):
        with refused("feature_map with 8192 columns", "512"):
            method(X, Y)


def test_searches_hold_the_moments_of_all_folds(small):
    # One matrix of moments takes 8 MiB, those of a search 160 MiB.
    assert ApproxKernelRidge(RFFSampler(1024, random_state=0)).fit(X, Y).alpha_ == 1
    for kind in (ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV):
        feature_map = RFFSampler(1024, coupling=Undrawn())
        model = kind(feature_map, sigmas=[0.5, 1.0], alphas=[1.0], cv=5)
        with refused("n_components=1024 of RFFSampler", "16"):
            model.fit(X, Y)
        with refused("n_components=1024 of RFFSampler", "16"):  # its search is that of fit
            model.fit_batches([(X, Y)] * 2)


@pytest.mark.parametrize("targets", [Y, np.column_stack([Y, X])], ids=["one", "four"])
def test_posteriors_that_cannot_be_held_are_refused(small, targets):
    model = ApproxKernelRidge(RFFSampler(16, random_state=0)).fit(X, targets)
    rows = np.zeros((60_000, 3))
    with refused("return_cov=True at 60000 rows"):
        model.predict(rows, return_cov=True)
    with refused(f"n_samples={HUGE} at 40 rows"):
        model.sample_y(X, n_samples=HUGE)
    with refused("n_samples=300 at 60000 rows"):
        model.sample_y(rows, n_samples=300)
    assert model.predict(rows[:9], return_cov=True)[1].shape[:2] == (9, 9)
    assert model.sample_y(rows[:9], n_samples=300).shape[-1] == 300


def test_sums_of_many_classes_are_refused(small):
    rows, labels = np.random.default_rng(0).normal(size=(2000, 2)), np.arange(2000) // 2
    map_of = {"n_components": 4096, "coupling": Undrawn()}
    model = KernelRegressionClassifier(RFFSampler(**map_of))
    with refused("n_components=4096 of RFFSampler", "of KernelRegress"):
        model.fit(rows, labels)
    frozen = KernelRegressor(FrozenEstimator(RFFSampler(2**16).fit(rows)))
    with refused("feature_map with 65536 columns"):
        frozen.fit(rows, np.ones((2000, 500)))


def test_graphical_models_that_cannot_be_held_are_refused(small):
    huge = {"feature_map": OptimalPositiveRF(HUGE)}
    states = np.random.default_rng(0).normal(size=(3000, 2))
    wide = OptimalPositiveRF(2048, coupling=Undrawn())
    chain = ChainMRF(X)
    assert np.isfinite(chain.log_partition(HUGE))
    exact = KernelHMM(states, states, feature_map="exact")
    many = KernelHMM(states, X[:5, :2], feature_map=OptimalPositiveRF(8))
    for call, arguments, words in (
        (ChainMRF(X, **huge).log_partition, [5], [f"n_components={HUGE}"]),
        (TreeMRF([(0, 1)], X, **huge).log_partition, [], [f"n_components={HUGE}"]),
        (KernelHMM(X, X[:5], **huge).score, [Y], [f"n_components={HUGE}"]),
        # Features of states, pairs of states.
        (ChainMRF(states, feature_map=wide).log_partition, [5], ["=2048 of OptimalPositiveRF"]),
        (exact.score, [Y], ["feature_map='exact' of 9000000 pairs of states"]),
        # Lengths, and numbers of states.
        (chain.marginals, [HUGE], [f"length={HUGE}"]),
        (chain.decode, [HUGE], [f"length={HUGE}"]),
        (chain.sample, [HUGE], [f"length={HUGE}"]),
        (chain.log_partition_gradient, [HUGE], [f"length={HUGE}"]),
        (KernelHMM.from_random, [HUGE, 5], [f"n_states={HUGE}", "n_symbols=5", "width=16"]),
        # Distributions of many states.
        (many.report, [HUGE], [f"n_states={HUGE}"]),
        (many.predict_proba, [np.zeros(6000, int)], ["X with 6000 rows", "3000 states"]),
        (
            ChainMRF(states, states, feature_map=OptimalPositiveRF(8)).edge_marginals,
            [3],
            ["embeddings of 3000 and 3000 states", "137"],
        ),
    ):
        with refused(*words):
            call(*arguments)


def test_large_decays_are_not_made_dense(small):
    with refused("length=40 with 1000000 rates needs"):
        ToeplitzMask.decay(np.ones(10**6)).toarray(40)


def test_states_of_a_window_hold_no_more_than_there_are_positions():
    parts = np.random.default_rng(0).normal(size=(3, 40, 4))
    operator = WindowAttention(HUGE, HUGE)
    expected = exact_attention(*parts, causal=True)
    np.testing.assert_allclose(operator(*parts), expected, atol=1e-12)
    tracemalloc.start()
    first, state = operator.step(*parts[:, :30], operator.init_state())
    second, state = operator.step(*parts[:, 30:], state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(np.concatenate([first, second]), expected, atol=1e-12)
    assert state.rows.shape == (40, 8)
    assert peak < 1e6


def test_more_draws_than_can_be_held_are_refused():
    evidence = np.zeros((6, 40))
    chain, tree = ChainMRF(X), TreeMRF([(0, 1), (1, 2)], X)
    models = [KernelHMM(X, X[:5], normalization=kind) for kind in ("local", "global")]
    for call, options, words in (
        (chain.sample, {"length": 5, "n": HUGE}, [f"n={HUGE}", "40 TiB"]),
        (chain.sample, {"n": HUGE, "unary": [evidence, evidence]}, [f"n={HUGE}", "96 TiB"]),
        (tree.sample, {"n": HUGE}, [f"n={HUGE}", "24 TiB"]),
        (SemiMarkovChain(X, [0.0, 0.0]).sample, {"unary": evidence, "n": HUGE}, [f"n={HUGE}"]),
        (models[0].sample, {"n_samples": HUGE}, [f"n_samples={HUGE}", "16 TiB"]),
        (models[1].sample, {"n_samples": HUGE}, [f"n_samples={HUGE}", "336 TiB"]),
        (models[0].sample, {"lengths": [HUGE, 3]}, [f"lengths that sum to {HUGE + 3}"]),
        (models[0].set_params(n_init=HUGE).fit, {"X": Y}, [f"n_init={HUGE}"]),
        (KernelSampler().fit(X).sample, {"q": X, "n_samples": HUGE}, [f"n_samples={HUGE}"]),
    ):
        with refused(*words):
            call(**options)


def test_draws_of_many_sequences_are_made_in_blocks_and_not_padded(monkeypatch):
    monkeypatch.setattr(_recursions, "_BLOCK_ENTRIES", 2**12)
    model = KernelHMM(X, X[:5])
    model.sample(random_state=0)
    tracemalloc.start()
    states = model.sample(lengths=[1] * 20_000 + [500], random_state=0)[1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert states.shape == (20_500,) and np.ptp(states) > 20
    assert peak < 3e6  # distributions of all first states take 6 MB, paths of one length 80 MB
