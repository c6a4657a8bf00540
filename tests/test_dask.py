"""Fits to collections of Dask: equal to one machine, also on a cluster that loses a worker.

One cluster of two processes serves all tests. What batches make of rows is tested in
`test_batches.py`; here it is whether chunks arrive and what schedulers do with them.
"""

import importlib
import os
import re
import signal
import sys
import threading
import time
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from skrf import (
    AdaptiveRF,
    ApproxKernelRidge,
    ApproxKernelRidgeClassifier,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    KernelRegressionClassifier,
    KernelRegressor,
    OptimalPositiveRF,
    RFFSampler,
    _threads,
)

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("dask.distributed")
da = pytest.importorskip("dask.array")
import skrf.dask  # noqa: E402 (Dask may be missing)

N = 400
_rng = np.random.default_rng(0)
X = _rng.normal(size=(N, 3))
Y = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 1)]
T = np.sin(2 * X[:, 0]) + X[:, 1]
WEIGHTS = _rng.random(N) * (np.arange(N) % 5 > 0)
CUTS = range(0, N, 20)  # 20 chunks: more than a task merges

SIGNED = RFFSampler(24, sigma="scale", random_state=0)
POSITIVE = OptimalPositiveRF(24, sigma="scale", random_state=0)
BY_LABELS = AdaptiveRF(12, random_state=0)
CASES = {
    "classifier": (KernelRegressionClassifier(POSITIVE), Y),
    "sampled": (KernelRegressionClassifier(BY_LABELS), Y),
    "regressor": (KernelRegressor(SIGNED), T),
    "ridge": (ApproxKernelRidge(SIGNED, alpha="evidence"), T),
    "weights of classes": (ApproxKernelRidgeClassifier(SIGNED, class_weight={"b": 9, "c": 0}), Y),
    "classifier search": (ApproxKernelRidgeClassifierCV(BY_LABELS, sigmas=3), Y),
    "ridge search": (ApproxKernelRidgeCV(SIGNED, sigmas=3, cv=3), T),
}


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def on_threads():
    with dask.config.set(scheduler="threads"):
        yield


def batches(*arrays):
    return [tuple(array[k : k + 20] for array in arrays) for k in CUTS]


def assert_same_bits(one, two):
    """Compare predictions and, where there are some, logarithms of tiny ones."""
    for method in ("predict", "predict_log_proba"):
        if hasattr(one, method):
            assert_array_equal(getattr(one, method)(X), getattr(two, method)(X))


def as_array(rows, size=20):
    return da.from_array(rows, chunks=(size, *rows.shape[1:]))


# ------------------------------------------------------------------ equal to one machine


@pytest.mark.parametrize(
    ("name", "scheduler"),
    [*((name, "on_threads") for name in CASES), ("ridge search", "client")],
)
def test_the_bits_are_those_of_batches(name, scheduler, request):
    request.getfixturevalue(scheduler)
    estimator, targets = CASES[name]
    before = repr(estimator), set(vars(estimator))
    whole = clone(estimator).fit_batches(batches(X, targets, WEIGHTS))
    model = skrf.dask.fit(estimator, as_array(X), as_array(targets), sample_weight=WEIGHTS)
    assert type(model) is type(estimator) and (repr(estimator), set(vars(estimator))) == before
    assert_same_bits(model, whole)
    assert set(vars(model)) == set(vars(whole))
    methods = ("predict_proba", "decision_function", "predict")
    method = next(name for name in methods if hasattr(whole, name))
    expected = getattr(whole, method)(X)
    actual = skrf.dask.apply(model, as_array(X, 90), method)
    assert_allclose(actual, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_arrays_in_any_chunks(on_threads):
    rows, targets = as_array(X), as_array(T)
    unknown = rows[rows[:, 0] > -9], targets[rows[:, 0] > -9]
    assert np.isnan(unknown[0].shape[0])
    expected = KernelRegressor(POSITIVE).fit_batches(batches(X, T))
    for arrays in (
        (rows.rechunk((20, 2)), targets),  # columns cut
        unknown,
        (rows, targets.rechunk(111)),
        (rows, T),
        (rows, T.tolist()),
    ):
        assert_same_bits(skrf.dask.fit(KernelRegressor(POSITIVE), *arrays), expected)


def test_tables():
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pd.DataFrame(X, columns=list("uvw"))
    frame = dd.from_pandas(table.assign(t=T, k=WEIGHTS), npartitions=5)
    # Partitions that hold no row, as filters leave them.
    frame = dd.concat([frame, frame[frame["t"] > 100]])
    rows = frame[list("uvw")]
    model = skrf.dask.fit(KernelRegressor(POSITIVE), rows, frame["t"], sample_weight=frame["k"])
    whole = KernelRegressor(POSITIVE).fit(table, T, WEIGHTS)
    assert_array_equal(model.feature_names_in_, list("uvw"))
    predicted = skrf.dask.apply(model, rows)
    assert isinstance(predicted, da.Array) and predicted.dtype == np.float64
    assert np.isnan(predicted.shape[0])
    assert_allclose(predicted.compute(), whole.predict(table), rtol=1e-12, atol=1e-14)


def test_columns_of_files(tmp_path, on_threads):
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pd.DataFrame(X, columns=list("uvw")).assign(t=T, **dict.fromkeys("abcdefgh", "text"))
    for number, start in enumerate(range(0, N, 100)):
        table[start : start + 100].to_parquet(tmp_path / f"{number}.parquet")
    frame = dd.read_parquet(tmp_path)
    assert len(frame["t"].to_delayed()) < frame.npartitions  # Dask reads several of them at once
    whole = ApproxKernelRidge(SIGNED).fit(table[["u", "v"]], T)
    model = skrf.dask.fit(ApproxKernelRidge(SIGNED), frame[["u", "v"]], frame["t"])
    predicted = skrf.dask.apply(model, frame[["u", "v"]])
    assert_allclose(predicted.compute(), whole.predict(table[["u", "v"]]), rtol=1e-9, atol=1e-12)

    seen = []

    def read(number, columns=None):
        seen.append(columns)
        return table[columns or list(table)][number * 100 : number * 100 + 100]

    frame = dd.from_map(read, range(4), meta=table[:0])
    skrf.dask.fit(ApproxKernelRidge(SIGNED), frame[["u", "v"]], frame["t"])
    assert set(map(tuple, seen)) == {("u", "v"), ("t",)}


def test_lists_of_sparse_chunks(on_threads):
    chunks = batches(sp.csr_array(X), T, WEIGHTS)
    whole = KernelRegressor(POSITIVE).fit_batches(chunks)
    rows, targets, weights = ([dask.delayed(x) for x in side] for side in zip(*chunks, strict=True))
    model = skrf.dask.fit(KernelRegressor(POSITIVE), rows, targets, sample_weight=weights)
    assert_same_bits(model, whole)
    wholes = [dask.delayed(chunk, traverse=False) for chunk in chunks]
    assert_same_bits(skrf.dask.fit(KernelRegressor(POSITIVE), wholes), whole)
    predicted = skrf.dask.apply(model, rows)
    assert_allclose(predicted.compute(), whole.predict(sp.csr_array(X)), rtol=1e-12)


def test_feature_maps(on_threads):
    model = skrf.dask.fit(SIGNED, as_array(X), sample_weight=as_array(WEIGHTS))
    whole = clone(SIGNED).fit(X, sample_weight=WEIGHTS)
    features = skrf.dask.apply(model, as_array(X.astype(np.float32)), "transform")
    assert features.shape == (N, 24) and features.dtype == np.float32
    assert_allclose(features, whole.transform(X), atol=1e-5)
    assert features.chunks == as_array(X).chunks[:1] + ((24,),)


def test_apply_is_lazy_and_knows_dtype_and_shape():
    model = KernelRegressionClassifier(POSITIVE).fit(X, Y)
    rows = as_array(X).map_blocks(lambda block: 1 / 0, dtype=float, meta=np.empty((0, 0)))
    labels, chances = (skrf.dask.apply(model, rows, name) for name in ("predict", "predict_proba"))
    assert labels.dtype == model.classes_.dtype and labels.shape == (N,)
    assert chances.dtype == np.float64 and chances.shape == (N, 3)
    empty = da.concatenate([as_array(X), as_array(X)[as_array(X)[:, 0] > 99]])
    predicted, expected = skrf.dask.apply(model, empty), model.predict(X)
    model.fit(X[:9], Y[:9])  # what is lazy is of the model as it was
    assert_array_equal(predicted.compute(scheduler="sync"), expected)


# ------------------------------------------------------------------ what is decided where


def test_a_random_state_of_none_is_resolved_once(client):
    model = KernelRegressor(OptimalPositiveRF(24))
    one, two = (skrf.dask.fit(model, as_array(X), as_array(T)) for _ in range(2))
    assert not np.array_equal(one.feature_map_.transform(X), two.feature_map_.transform(X))
    # All chunks were mapped by the map that the model holds.
    frozen = FrozenEstimator(one.feature_map_)
    expected = KernelRegressor(frozen).fit(X, T).predict(X)
    assert_allclose(one.predict(X), expected, rtol=0, atol=1e-12)


def test_the_sample_is_as_large_as_asked_for(on_threads):
    model = KernelRegressionClassifier(BY_LABELS)
    tenth = (np.arange(N) % 10 == 0).astype(float)
    for weights, n_rows in ((None, 60), (tenth, 30)):  # of 400, and of 40 that count
        fitted = skrf.dask.fit(
            model, as_array(X), as_array(Y), sample_weight=weights, sample_rows=n_rows
        )
        assert fitted.feature_map_.statistics_.queries.weight == n_rows
        assert fitted.class_count_.sum() == (N if weights is None else 40)


class Spread(TransformerMixin, BaseEstimator):
    """Offers work to the threads of the package, and notes which ones took it."""

    threads: ClassVar = set()

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        def work(rows):
            time.sleep(0.01)
            self.threads.add(threading.get_ident())

        _threads.run_rows(work, 8, 1)
        return np.ones((len(X), 1))


def test_a_task_keeps_to_its_thread():
    """Others have work of their own. What BLAS may do is what its worker says."""
    Spread.threads.clear()
    with threadpool_limits(4, user_api="blas"), dask.config.set(scheduler="sync"):
        skrf.dask.fit(KernelRegressor(Spread()), as_array(X), as_array(T))
        assert Spread.threads == {threading.get_ident()}
        Spread().transform(X)
        assert len(Spread.threads) > 1  # elsewhere threads are as they were


# ------------------------------------------------------------------ errors


def test_what_does_not_go_together(on_threads):
    model, rows, targets = KernelRegressor(POSITIVE), as_array(X), as_array(T)
    with_nan = as_array(np.where(np.arange(N)[:, None] == 300, np.nan, X))
    for exception, words, estimator, *arrays in (
        (TypeError, "X must be a dask array, .* got array", model, X, T),
        (TypeError, "X must be a dask array", model, dask.delayed(X), T),
        (TypeError, "y must be a dask array", model, [dask.delayed(X)], T),
        (TypeError, "estimator must be an instance", LogisticRegression(), rows, targets),
        (ValueError, "y has 399 rows, but X has 400", model, rows, targets[:-1]),
        (ValueError, "y has 1 chunks, but X has 20", model, rows, [dask.delayed(T)]),
        (ValueError, "at least one row", model, rows[:0], targets[:0]),
        (ValueError, "X contains NaN", model, with_nan, targets),  # seen in a task
    ):
        with pytest.raises(exception, match=words):
            skrf.dask.fit(estimator, *arrays)
    with pytest.raises(ValueError, match="sample_rows must be an integer"):
        skrf.dask.fit(model, rows, targets, sample_rows=0)
    fitted = clone(POSITIVE).fit(X)
    for method in ("fit_transform", "score", "get_params", "nothing", "predict"):
        with pytest.raises(ValueError, match="method must name a method"):
            skrf.dask.apply(fitted, rows, method)
    with pytest.raises(ValueError, match="not fitted"):
        skrf.dask.apply(RFFSampler(4), rows, "transform")


def test_plain_estimators_say_where_to_go():
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    fitted = KernelRegressor(POSITIVE).fit(X, T)
    for rows in (as_array(X), dd.from_pandas(pd.DataFrame(X), npartitions=2)):
        for call in (RFFSampler().fit, fitted.predict, lambda rows: clone(fitted).fit(rows, T)):
            with pytest.raises(TypeError, match=r"belongs to Dask.*skrf\.dask\.fit"):
                call(rows)
    # Targets are read: they are small.
    assert_array_equal(KernelRegressor(POSITIVE).fit(X, as_array(T)).predict(X), fitted.predict(X))


def test_without_dask_the_module_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.delitem(sys.modules, "skrf.dask")
    with pytest.raises(ImportError, match=r"needs Dask.*scikit-random-features\[dask\]"):
        importlib.import_module("skrf.dask")


# ------------------------------------------------------------------ the cluster


class KillAtFirstPartial(distributed.diagnostics.plugin.SchedulerPlugin):
    """Kills the process of the worker that has the first finished sums."""

    name = "kill-at-first-partial"

    def __init__(self, pids):
        self.pids, self.killed, self.n_done = pids, None, 0

    def transition(self, key, start, finish, *args, worker=None, **kwargs):
        if re.fullmatch(r"skrf-sums-\w+-\d+", str(key)) and finish == "memory":
            self.n_done += 1
            if self.killed is None:
                self.killed = self.pids[worker]
                os.kill(self.killed, signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_killed_worker_changes_no_bit(client):
    rows = da.random.default_rng(0).normal(size=(12_000, 3), chunks=(500, 3))
    targets = (rows[:, 0] + rows[:, 1] > 0).astype(int)
    model = KernelRegressionClassifier(OptimalPositiveRF(64, sigma="scale", random_state=0))
    undisturbed = skrf.dask.fit(model, rows, targets)
    pids = client.run(os.getpid)
    assert len(pids) == 2
    plugin = KillAtFirstPartial(pids)
    scheduler = client.cluster.scheduler
    client.cluster.sync(_add, scheduler, plugin)
    disturbed = skrf.dask.fit(model, rows, targets)
    client.cluster.sync(_remove, scheduler, plugin)
    assert plugin.killed in pids.values()
    assert plugin.n_done > 24  # of 24 chunks: some were summed again
    assert_same_bits(disturbed, undisturbed)
    assert disturbed.class_count_.sum() == 12_000
    client.wait_for_workers(2, timeout=20)


async def _add(scheduler, plugin):
    scheduler.add_plugin(plugin)


async def _remove(scheduler, plugin):
    scheduler.remove_plugin(plugin.name)
