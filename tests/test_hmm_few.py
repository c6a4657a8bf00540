"""Recursions of few states: plain and compiled, of shares and of logarithms, against each other."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

from skrf import OptimalPositiveRF, _kernels
from skrf._kernels import plain
from skrf.graphical import KernelHMM, _learning, _rank_space, _recursions
from skrf.graphical._few import FewStates, joined, loops_pay
from skrf.graphical._potentials import Dense

cpu = _kernels._cpu()


def few_states(logs, start):
    return FewStates(np.exp(logs), start, Dense(logs))


def forward(logs, start, rows):
    """Return log sums over the states before each position of one sequence."""
    with np.errstate(divide="ignore"):
        sums = [start + rows[0]]
        for row in rows[1:]:
            sums.append(logsumexp(sums[-1][:, None] + logs, axis=0) + row)
    return np.array(sums)


def made(kind, seed):
    """Return logs of transitions, starts and emissions, and sequences."""
    rng = np.random.default_rng(seed)
    n, n_symbols = rng.integers(1, 8), rng.integers(1, 5)
    logs = (400.0 if kind == "large" else 1.5) * rng.normal(size=(n, n))
    if kind == "left-right":
        logs[np.tril_indices(n, -1)] = -np.inf
    elif kind == "masked":
        is_allowed = rng.random((n, n)) < 0.5
        is_allowed[np.arange(n), rng.integers(n, size=n)] = True
        logs[~is_allowed] = -np.inf
    logs -= logs.max() if kind == "global" else logsumexp(logs, axis=1, keepdims=True)
    start = np.log(rng.dirichlet(np.full(n, 0.1)) + 1e-300)
    rows = 10 ** rng.uniform(-1, 2.5) * rng.normal(size=(n_symbols + 1, n))
    rows[rng.random(rows.shape) < 0.2] = -np.inf
    rows[:, 0] = np.maximum(rows[:, 0], -50.0)
    rows[-1] = 0.0  # missing
    return logs, start, rows, [rng.integers(-1, n_symbols, size=m) for m in (17, 1, 4)]


def results(few, kernels, rows, sequences, is_safe):
    """Return log probabilities, posteriors filtered and smoothed, and counts."""
    tops = rows.max(axis=1)
    few.is_safe = is_safe
    run = few.run(kernels, (rows, (np.exp(rows - tops[:, None]), tops)), *joined(sequences), True)
    found = [run.log_probs, run.posteriors().copy()]
    posteriors, (moves, by_symbol, by_start) = run.smoothed(counts=True)
    if not run.in_logs:
        moves, by_start = moves * few.A, by_start * few.start
    return [*found, posteriors, moves, by_symbol, by_start]


@pytest.mark.parametrize("kind", ["any", "large", "global", "masked", "left-right"])
def test_all_recursions_agree(kind):
    n_safe = 0
    for seed in range(12):
        logs, start, rows, sequences = made(kind, seed)
        few = few_states(logs, start)
        is_safe = few.is_safe
        assert is_safe == (few.A.min() > 1e-140)
        expected = results(few, plain, rows, sequences, False)
        ends = [logsumexp(forward(logs, start, rows[sequence])[-1]) for sequence in sequences]
        assert_allclose(expected[0], ends, rtol=1e-11, atol=1e-11)
        for kernels, safe in ((cpu, False), (plain, True), (cpu, True)):
            if safe <= is_safe:
                n_safe += safe
                found = results(few, kernels, rows, sequences, safe)
                for one, other in zip(found, expected, strict=True):
                    assert_allclose(one, other, rtol=1e-9, atol=1e-9)
        paths = [few.viterbi(kernels, rows, *joined(sequences)) for kernels in (plain, cpu)]
        assert_array_equal(*(path for _, path in paths))
        assert_allclose(*(values for values, _ in paths), rtol=1e-12)
    assert n_safe or kind in ("masked", "left-right")


def test_what_outgrows_the_rest_after_it_has_underflowed_is_kept():
    """A state is lost at once, and two steps later it is the only explanation.

    All shares that are predicted are at least 1e-250, so no divisor ever looks too small.
    """
    far = np.log(1e-250)
    logs = np.array([[far, -0.0, far], [far, far, 0.0], [far, far, 0.0]])
    start, rows = np.array([0.0, far, far]), np.zeros((3, 3))
    rows[1, 1:] = -750.0, -2000.0
    rows[2, :2] = -2000.0
    sequences = [np.arange(3)]
    expected = logsumexp(forward(logs, start, rows)[-1])
    few = few_states(logs, start)
    tops = rows.max(axis=1)
    table = rows, (np.exp(rows - tops[:, None]), tops)
    for kernels in (plain, cpu):
        run = few.run(kernels, table, *joined(sequences), False)
        assert_allclose(run.log_probs, expected, rtol=1e-12)


def test_a_state_below_all_numbers_may_be_the_only_one_left():
    """Two states that are never left, of which the first cannot emit the second symbol."""
    with np.errstate(divide="ignore"):
        logs, start = np.log(np.eye(2)), np.log([0.5, 0.5])
    rows, sequences = np.array([[0.0, -1500.0], [-np.inf, 0.0]]), [np.array([0, 1, 1])]
    few, tops = few_states(logs, start), rows.max(axis=1)
    assert not few.is_safe
    table = rows, (np.exp(rows - tops[:, None]), tops)
    for kernels in (plain, cpu):
        run = few.run(kernels, table, *joined(sequences), True)
        assert_allclose(run.log_probs, np.log(0.5) - 1500, rtol=1e-12)
        posteriors, (moves, _, _) = run.smoothed(counts=True)
        assert_allclose(posteriors, np.tile([0, 1], (3, 1)), atol=1e-12)
        assert_allclose(moves, [[0, 0], [0, 2]], atol=1e-12)


def test_a_transition_that_has_lost_digits_is_summed_by_its_logarithm():
    """e^-740 is 85 times the least number, but for a third of it."""
    logs, start = np.array([[0.0, -740.0], [-740.0, 0.0]]), np.array([0.0, -np.inf])
    rows, few = np.array([[0.0, -np.inf], [-np.inf, 0.0]]), few_states(logs, start)
    for kernels in (plain, cpu):
        found = results(few, kernels, rows, [np.arange(2)], False)
        for one, other in zip(found, (-740.0, np.eye(2), np.eye(2)), strict=False):
            assert_allclose(one, other, rtol=1e-12)
        assert_allclose(found[3], [[0, 1], [0, 0]], atol=1e-12)


@pytest.mark.parametrize("start", ["uniform", "embedding"])
def test_sums_in_the_space_of_features_are_those_of_states(start, monkeypatch):
    """Log probabilities and gradients of several sequences, missing symbols among them."""
    rng = np.random.default_rng(0)
    given = {"start_embedding": rng.normal(size=4)} if start == "embedding" else {}
    feature_map = OptimalPositiveRF(6, random_state=0)
    model = KernelHMM.from_random(150, 5, 4, scale=1.0, feature_map=feature_map, random_state=0)
    model = model.set_params(**given)._model
    sequences = [rng.integers(-1, 5, size=m) for m in (40, 7, 1, 7)]
    used, rank_of = [], _rank_space.RankSpace.of

    def of(*args):
        used.append(rank_of(*args))
        return used[-1]

    monkeypatch.setattr(_rank_space.RankSpace, "of", of)
    log_probs = model.log_prob(sequences)
    log_prob, by_role = _learning.gradients(model, sequences)
    assert len(used) == 2 and None not in used
    monkeypatch.setattr(_rank_space, "_GAIN", 0)
    assert_allclose(log_probs, model.log_prob(sequences), rtol=1e-12)
    assert used[-1] is None
    expected, others = _learning.gradients(model, sequences)
    assert_allclose([log_prob, log_probs.sum()], expected, rtol=1e-12)
    for role, gradient in others.items():
        if np.ndim(gradient):
            assert_allclose(by_role[role], gradient, rtol=0, atol=1e-12 * np.abs(gradient).max())


def test_a_first_state_below_all_numbers_leaves_the_space_of_features():
    """The only first state emits the first symbol with a share below all numbers."""
    start, emitters = np.eye(150)[0], np.zeros((150, 2))
    emitters[0, 0] = -800.0
    model = KernelHMM(
        np.random.default_rng(0).normal(size=(150, 2)),
        10 * np.eye(2),
        emitters=emitters,
        start_prob=start,
        feature_map=OptimalPositiveRF(6, random_state=0),
    )
    inner, symbols = model._model, np.zeros(40, int)
    rank = _rank_space.RankSpace.of(inner, [symbols])
    assert rank is not None and not rank.filter(keeps=False)
    rows = inner.emission.pair.matrix.T
    expected = forward(np.log(model.transmat_), inner.log_start, rows[symbols])[-1]
    assert_allclose(model.score(symbols), logsumexp(expected), rtol=1e-9)


@pytest.mark.parametrize("kernel", ["exact", "masked", "features"])
def test_loops_over_many_states_are_products(kernel, monkeypatch):
    """In all tasks, compiled; where transitions are forbidden, of logarithms."""
    monkeypatch.setattr(_kernels, "SYMBOLS", 0)
    rng, lengths = np.random.default_rng(0), [30, 1, 9]
    given = {"feature_map": OptimalPositiveRF(80, random_state=0)} if kernel == "features" else {}
    if kernel == "masked":
        given = {"transition_mask": np.tri(150, dtype=bool) | (rng.random((150, 150)) < 0.05)}
    X, results, n_runs, run = rng.integers(5, size=40), [], [], FewStates.run
    monkeypatch.setattr(FewStates, "run", lambda *args: n_runs.append(1) or run(*args))
    for most in (800, 0):
        monkeypatch.setattr(_recursions, "MOST", most)
        model = KernelHMM.from_random(150, 5, 4, scale=1.0, random_state=0, **given)
        sequences = np.split(X, np.cumsum(lengths)[:-1])
        log_prob, by_role = _learning.gradients(model._model, sequences)
        arrays = [value for value in by_role.values() if np.ndim(value)]
        results.append([model.log_prob(X, lengths), model.predict_proba(X, lengths), log_prob])
        results[-1] += [model.decode(X, lengths)[0], *arrays]
    assert len(n_runs) == (4 if kernel == "masked" else 3)  # none of them by products
    for ours, expected in zip(*results, strict=True):
        assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


def test_loops_pay_by_task():
    assert all(loops_pay(task, 128, 64) for task in ("score", "posteriors", "gradients", "paths"))
    assert loops_pay("posteriors", 800, 64) and not loops_pay("posteriors", 801, 1)
    assert loops_pay("score", 800, 4) and not loops_pay("score", 129, 5)
    assert loops_pay("gradients", 400, 1) and not loops_pay("gradients", 401, 1)
    assert loops_pay("score", 160, 1, 80) and not loops_pay("score", 161, 1, 80)
