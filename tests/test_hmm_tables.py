"""Numbers of states, masks, tables and emissions of hidden Markov models."""

import itertools
import pickle
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from fields import assert_drawn_from, assert_gradient, precomputed
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import OrdinalEncoder

from skrf import AdaptiveRF
from skrf.graphical import GaussianEmissions, KernelHMM, _learning, _recursions
from skrf.graphical._batches import FreeArrays

START = np.array([1.0, 0.0, 0.0])
MOVES = np.array([[0.8, 0.2, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]])
EMITTED = np.array([[0.6, 0.4, 0.0, 0.0], [0.1, 0.4, 0.5, 0.0], [0.1, 0.1, 0.2, 0.6]])
X = np.array([0, 1, 1, 2, 1, 3, 3, 0, 2])


def logs_of(start, moves, rows):
    """Return the log probability and the posteriors of one sequence, by enumeration."""
    paths = np.array(list(itertools.product(range(len(start)), repeat=len(rows))))
    with np.errstate(divide="ignore"):
        logs = np.log(start)[paths[:, 0]] + rows[np.arange(len(rows)), paths].sum(axis=1)
        logs += np.log(moves)[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    total = logsumexp(logs)
    shares = np.exp(logs - total)
    posteriors = [
        [shares[paths[:, t] == k].sum() for k in range(len(start))] for t in range(len(rows))
    ]
    return total, np.array(posteriors), paths[logs.argmax()]


def left_right(**params):
    return KernelHMM.from_tables(START, MOVES, EMITTED, **params)


def quiet(model, *args, **params):
    """Fit without warnings of few iterations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*args, **params)


# ------------------------------------------------------------------ tables and masks


def test_tables_are_kept_and_zeros_stay_zero():
    model = left_right()
    for name, table in (("startprob_", START), ("transmat_", MOVES), ("emissionprob_", EMITTED)):
        assert_allclose(getattr(model, name), table, rtol=1e-14)
        assert_array_equal(getattr(model, name) == 0, table == 0)
    with np.errstate(divide="ignore"):
        total, posteriors, path = logs_of(START, MOVES, np.log(EMITTED.T[X]))
    assert_allclose(model.score(X), total, rtol=1e-12)
    assert_allclose(model.predict_proba(X), posteriors, atol=1e-12)
    assert_array_equal(model.predict(X, algorithm="viterbi"), path)
    assert_allclose(clone(model).score(X), total, rtol=1e-12)
    several = model.sample(lengths=[30] * 10, random_state=0)[0]
    fitted = quiet(clone(model).set_params(max_iter=30), several, [30] * 10)
    assert fitted.score(several, [30] * 10) > model.score(several, [30] * 10) + 1
    for name, table in (("startprob_", START), ("transmat_", MOVES), ("emissionprob_", EMITTED)):
        assert_array_equal(getattr(fitted, name) == 0, table == 0)


def test_gradients_of_masked_models_are_those_of_differences():
    """Also of the start that is learnt, with missing symbols and known states."""
    rng = np.random.default_rng(0)
    model = KernelHMM.from_random(4, 5, random_state=0)
    model.set_params(
        transition_mask=np.tri(4, dtype=bool).T | (np.arange(4) == 0),
        start_mask=[True, False, True, True],
        emission_mask=rng.random((4, 5)) < 0.7,
    )
    model.emission_mask[:, 0] = True
    first, symbols = model._model, rng.integers(-1, 5, size=60)
    allowed = np.ones((60, 4), bool)
    allowed[[3, 40], :2] = False
    for case, sequences in (
        (first, np.split(symbols, [20, 21])),
        (first.observing(symbols, allowed), np.split(np.arange(60), [20, 21])),
    ):
        free = FreeArrays(case, _learning.gradients)
        log_prob, gradients = free.gradients(free.arrays, sequences)
        assert_allclose(log_prob, case.log_prob(sequences).sum(), rtol=1e-12)
        flat = np.concatenate([array.ravel() for array in gradients])

        def value(vector, free=free, sequences=sequences):
            ends = np.cumsum([array.size for array in free.arrays])[:-1]
            parts = zip(np.split(vector, ends), free.arrays, strict=True)
            arrays = [part.reshape(array.shape) for part, array in parts]
            return free.model(arrays).log_prob(sequences).sum()

        vector = np.concatenate([array.ravel() for array in free.arrays])
        assert len(free.arrays) == 5 and free.arrays[-1].shape == (3,)
        assert_gradient(flat, value, vector)
        assert (first.transition.R[~model.transition_mask] == 0).all()


def test_masks_hold_from_the_first_step_to_the_last():
    mask = np.eye(4, dtype=bool) | np.eye(4, k=1, dtype=bool)
    start = np.arange(4) == 0
    rng = np.random.default_rng(0)
    symbols = np.tile(np.repeat(rng.permutation(4), 6), 5)
    model = KernelHMM(4, transition_mask=mask, start_mask=start, random_state=0)
    model.fit(symbols, [24] * 5)
    assert_array_equal(model.transmat_ > 0, mask)
    assert_array_equal(model.startprob_, start)
    assert_array_equal(model.predict(symbols[:24]), np.repeat(np.arange(4), 6))
    assert_array_equal(clone(model).fit(symbols, [24] * 5).transmat_, model.transmat_)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"transition_mask": np.ones((2, 3), bool)}, r"transition_mask must .* shape \(3, 3\)"),
        ({"transition_mask": np.ones((3, 3))}, "transition_mask must hold True or False"),
        ({"transition_mask": np.eye(3, k=1, dtype=bool)}, "allows nothing of state 2"),
        ({"start_mask": np.zeros(3, bool)}, "start_mask allows nothing"),
        ({"emission_mask": np.ones((3, 2), bool)}, r"emission_mask must .* shape \(3, 4\)"),
        ({"start_mask": [False, True, True], "start_prob": [0.5, 0.5, 0]}, "start_prob must be 0"),
        (
            {"start_mask": np.ones(3, bool), "feature_map": AdaptiveRF(8)},
            "start_mask needs the kernel itself",
        ),
        ({"emissions": "normal"}, "emissions must be .* 'precomputed' or an object"),
        ({"covariance_type": "own"}, "covariance_type must be one of .*'tied', .* got 'own'"),
        ({"emissions": "gaussian"}, "needs symbols=None and normalization='local'"),
    ],
)
def test_what_does_not_fit_is_named(params, said):
    model = KernelHMM.from_random(3, 4, random_state=0)
    with pytest.raises(ValueError, match=said):
        model.set_params(**params).score(X)
    with pytest.raises(ValueError, match=said):
        model.set_params(**params).fit(X)


@pytest.mark.parametrize(
    ("params", "given", "said"),
    [
        (
            {"normalization": "global"},
            {"X": X, "state_mask": np.ones((9, 3), bool)},
            "state_mask needs",
        ),
        ({"states": 3, "symbols": 4}, {"X": X}, "targets needs embeddings as states, got states=3"),
    ],
)
def test_what_fit_cannot_combine_is_named(params, given, said):
    model = KernelHMM.from_random(3, 4, random_state=0).set_params(**params)
    with pytest.raises(ValueError, match=said):
        model.fit(**given)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (([0.5, 0.6], np.eye(2), np.eye(2)), "startprob must hold probabilities"),
        (([0.5, 0.5], np.eye(3), np.eye(2)), r"transmat must .* shape \(2, 2\)"),
        (([0.5, 0.5], np.eye(2), -np.eye(2)), "emissionprob must"),
        (([0.5, 0.5], np.eye(2)), "emissionprob, or means and covars"),
    ],
)
def test_tables_that_are_none_are_named(args, said):
    with pytest.raises(ValueError, match=said):
        KernelHMM.from_tables(*args)


def test_what_cannot_be_is_minus_infinity_or_named(monkeypatch):
    model = left_right()
    possible = KernelHMM.from_tables([0, 1], np.eye(2), [[1, 0], [0.5, 0.5]])
    assert model.score([0, 3]) == -np.inf and possible.score([1, 1, 0]) == pytest.approx(
        -3 * np.log(2)
    )
    assert_array_equal(model.log_prob([0, 1, 0, 3], [2, 2]), [model.score([0, 1]), -np.inf])
    calls = (
        "predict_proba",
        "predict",
        "decode",
        "score_samples",
        "fit",
        "forecast",
        "predict_next",
    )
    for name in calls:
        with pytest.raises(ValueError, match="X has no probability from sample 1 on"):
            getattr(model, name)([0, 3])
    for algorithm in ("posterior", "viterbi"):
        with pytest.raises(ValueError, match="from sample 3 on"):
            model.predict([0, 1, 0, 3], [2, 2], algorithm=algorithm)
    table = np.zeros((2, 2))
    table[0, 1] = -np.inf
    for dtype in (np.float64, np.float32):  # the latter goes through products
        states = np.eye(2, dtype=dtype)
        given = KernelHMM(states, targets=states.copy(), start_prob=[0, 1], emissions="precomputed")
        assert given.score(table) == -np.inf
        for name in ("predict_proba", "decode", "fit"):
            with pytest.raises(ValueError, match="from sample 0 on"):
                getattr(given, name)(table)
    monkeypatch.setattr(_recursions, "_BLOCK_ENTRIES", 3)  # so that no matrix is kept
    given = clone(given).set_params(feature_map=AdaptiveRF(4, random_state=0))
    with pytest.raises(ValueError, match="from sample 0 on"):
        given.decode(table)


def test_first_symbols_that_are_unlikely_leave_features_their_gradients(monkeypatch):
    """The only first state is e^-400 less likely than another to emit what is seen."""
    rng = np.random.default_rng(0)
    given = {"start_prob": [1.0, 0, 0, 0], "feature_map": AdaptiveRF(8)}
    model = precomputed(KernelHMM.from_random(4, 3, 2, random_state=0, **given))._model
    table = rng.normal(size=(9, 4))
    table[0, 0] = -400.0
    found = []
    for most in (128, 0):
        monkeypatch.setattr(_recursions, "MOST", most)
        case = model.with_embeddings(model.embeddings, float).observing(table)
        found.append(_learning.gradients(case, [np.arange(9)]))
    (log_prob, by_role), (expected, others) = found
    assert_allclose(log_prob, expected, rtol=1e-12)
    for role in ("states", "targets"):
        assert_allclose(by_role[role], others[role], atol=1e-12)


@pytest.mark.parametrize("most", [128, 0])
def test_a_first_state_that_underflows_may_be_the_one_that_stays(most, monkeypatch):
    """What is left after the first symbol hardly reaches the only state that emits the second."""
    monkeypatch.setattr(_recursions, "MOST", most)
    start, far = [1.0, 1e-250, 0.0], 1e-139
    moves = np.array([[1.0, far, far], [0.5, 0.5, far], [0.5, far, 0.5]])
    table = np.array([[-620.0, -200.0, 0.0], [-2000.0, 0.0, -2000.0]])
    model = precomputed(KernelHMM.from_tables(start, moves, np.ones((3, 1))))
    with np.errstate(divide="ignore"):
        expected = logs_of(start, moves, table)[0]
    assert_allclose(model.score(table), expected, rtol=1e-12)


# ------------------------------------------------------------------ numbers of states


def test_a_number_of_states_is_enough(capsys):
    truth = KernelHMM.from_random(3, 4, scale=1.0, random_state=1)
    symbols = truth.sample(300, random_state=0)[0]
    model = KernelHMM(3, random_state=0)
    with pytest.raises(NotFittedError, match="states must hold their embeddings before fit"):
        model.score(symbols)
    assert not hasattr(model, "transmat_")
    model.fit(symbols)
    assert model.n_states_ == 3 and model.emissionprob_.shape == (3, 4)
    assert model.score(symbols) >= truth.score(symbols)
    assert "states=3" in repr(model)
    again = clone(model).fit(symbols)
    assert_array_equal(again.transmat_, model.transmat_)
    assert_allclose(pickle.loads(pickle.dumps(model)).score(symbols), model.score(symbols))
    assert quiet(KernelHMM(2, 6, max_iter=2), symbols).emissionprob_.shape == (2, 6)
    assert quiet(KernelHMM(20, max_iter=1), symbols[:20]).states_.shape == (20, 20)
    assert capsys.readouterr().out == ""
    quiet(clone(model).set_params(verbose=True, max_iter=3), symbols)
    lines = capsys.readouterr().out.splitlines()
    assert sum("start" in line and "of 16" in line for line in lines) == 16
    assert sum(line.startswith("[fit, start 2 of 2] iteration") for line in lines) > 0
    search = GridSearchCV(KernelHMM(2, max_iter=2, random_state=0), {"states": [1, 2]}, cv=2)
    assert quiet(search, symbols).best_params_["states"] in (1, 2)


def regimes(seed=0, n=3000):
    """Return symbols of three regimes, and the regimes."""
    rng = np.random.default_rng(seed)
    moves = np.array([[0.97, 0.02, 0.01], [0.03, 0.95, 0.02], [0.02, 0.03, 0.95]])
    states = [0]
    for _ in range(n - 1):
        states.append(rng.choice(3, p=moves[states[-1]]))
    rows = rng.normal(np.array([0.05, -0.1, 0.0])[states], np.array([0.5, 1.2, 2.5])[states])
    edges = np.quantile(rows, np.linspace(0, 1, 9)[1:-1])
    return np.digitize(rows, edges), np.array(states)


def test_screened_starts_find_regimes():
    symbols, states = regimes()
    model = KernelHMM(3, random_state=1).fit(symbols)
    assert model.score(symbols) > -1.9455 * len(symbols)
    path = model.predict(symbols, algorithm="viterbi")
    orders = itertools.permutations(range(3))
    assert max(np.mean(np.array(order)[path] == states) for order in orders) > 0.8


@pytest.mark.parametrize("seed", [0, 1])
def test_a_series_of_six_parts_is_cut_where_they_end(seed):
    """Left to right through six states; where starts are normal draws, fits end below the truth."""
    rng = np.random.default_rng(0)
    shares, states = rng.dirichlet(np.ones(6), size=6), np.repeat(np.arange(6), 60)
    symbols = (rng.random((360, 1)) > shares.cumsum(axis=1)[states]).sum(axis=1).clip(max=5)
    moves = np.eye(6) * 59 / 60 + np.eye(6, k=1) / 60
    moves[-1, -1] = 1.0
    masks = {"transition_mask": moves > 0, "start_mask": np.arange(6) == 0}
    model = quiet(KernelHMM(6, **masks, max_iter=60, random_state=seed), symbols)
    truth = KernelHMM.from_tables(np.eye(6)[0], moves, shares)
    assert model.score(symbols) > truth.score(symbols) + 10
    assert np.mean(model.predict(symbols, algorithm="viterbi") == states) > 0.9


def test_random_paths_keep_to_the_chain():
    edges = np.cumsum([[0, 0.7, 0.3, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], axis=1)
    shares, rng = [], np.random.RandomState(0)
    allowed = {*((k, k) for k in range(4)), (0, 1), (0, 2), (1, 2), (2, 3)}
    for length in [5, 400] * 200:  # short ones may leave out a state
        path = _learning._random_path(np.ones(4), edges, length, 3.0, rng)
        steps = set(zip(path[:-1], path[1:], strict=True))
        assert len(path) == length
        assert length == 5 or (path[0] == 0 and path[-1] == 3 and steps <= allowed)
        shares.append(np.mean(path == 1))
    assert_allclose(np.mean(shares), 0.7 / 4, atol=0.02)
    edges = np.array([[0.0, 1.0], [1.0, 1.0]])  # never ends, and changes after each visit
    for dwell in (1.5, 20.0):
        path = _learning._random_path(np.array([0.5, 1.0]), edges, 6000, dwell, rng)
        lasting = 6000 / (np.count_nonzero(np.diff(path)) + 1)
        assert 1.0 <= lasting / dwell < 1.5


def test_known_states_bound_the_posteriors_of_a_start():
    symbols, states = regimes(n=300)
    known = np.eye(3, dtype=bool)[states]
    inner = KernelHMM.from_random(3, 8, random_state=0)._model.observing(symbols, known)
    sequences, rng = [np.arange(300)], np.random.RandomState(0)
    tables = _learning._along_paths(inner, sequences, 0.5, rng)
    counts = np.array([np.bincount(symbols[states == k], minlength=8) for k in range(3)])
    assert_allclose(tables[2], counts / counts.sum(axis=1, keepdims=True), atol=1e-8)


def test_starts_of_a_number_have_clusters_of_their_own():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    model = KernelHMM(4, emissions="gaussian", n_init=3, max_iter=1, random_state=0)
    found, maximize = [], _learning.maximize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _learning,
            "maximize",
            lambda objective, arrays, *args, **params: (
                found.append(arrays[-2]) or maximize(objective, arrays, *args, **params)
            ),
        )
        quiet(model, rows)
    assert len(found) == 3 and not any(np.allclose(found[0], other) for other in found[1:])


@pytest.mark.parametrize(("n_states", "limits"), [(3, (300, 1e-8)), (129, (100, 1e-6))])
def test_limits_of_few_states_are_further(n_states, limits):
    symbols, _ = regimes(n=40)
    given = {"n_init": 1, "random_state": 0}
    histories = [
        quiet(KernelHMM(n_states, 8, **given, **params), symbols).history_
        for params in ({}, dict(zip(("max_iter", "tol"), limits, strict=True)), {"tol": 1e-3})
    ]
    assert histories[0] == histories[1] and len(histories[2]) < len(histories[0])


def test_clusters_differ_from_start_to_start():
    """One draw of k-means takes two of these eight for one."""
    rng = np.random.default_rng(2)
    states = np.repeat(rng.permutation(np.tile(np.arange(8), 6)), 5)
    centres = rng.uniform(0, 20, size=(8, 2))
    rows = centres[states] + 0.5 * rng.normal(size=(240, 2))
    model = quiet(KernelHMM(8, emissions="gaussian", max_iter=30, random_state=2), rows)
    apart = np.linalg.norm(centres[:, None] - model.means_, axis=-1)
    assert apart.min(axis=1).max() < 0.4


def test_a_fit_that_begins_at_a_maximum_has_converged():
    """Steps of EM may leave L-BFGS nothing but rounding to gain."""
    for seed in (2, 5, 21, 39):
        rng = np.random.default_rng(seed)
        series = np.concatenate([rng.normal(size=30), 8 + rng.normal(size=30)])
        model = KernelHMM(2, emissions="gaussian", random_state=0).fit(series)
        assert model.converged_ and model.n_iter_ >= 1
        assert_allclose(model.score(series), model.history_[-1], rtol=1e-9)


def test_steps_of_em_are_those_of_their_definition():
    model = KernelHMM.from_random(3, 4, random_state=0)
    inner, few = model._model, X[:6]
    total, posteriors, _ = logs_of(
        model.startprob_, model.transmat_, np.log(model.emissionprob_.T[few])
    )
    log_prob, (start, moves, emitted) = _learning.expectation_maximisation(inner, [few], 1, 0.0)
    assert_allclose(log_prob, total)
    assert_allclose(start, posteriors[0], atol=1e-9)
    counts = np.zeros((3, 4))
    np.add.at(counts.T, few, posteriors)
    assert_allclose(emitted, counts / counts.sum(axis=1, keepdims=True), atol=1e-9)
    rows, pairs = np.log(model.emissionprob_.T[few]), np.zeros((3, 3))
    for i, j, t in itertools.product(range(3), range(3), range(len(few) - 1)):
        held = rows.copy()
        held[t, np.arange(3) != i] = held[t + 1, np.arange(3) != j] = -np.inf
        pairs[i, j] += np.exp(logs_of(model.startprob_, model.transmat_, held)[0] - total)
    assert_allclose(moves, pairs / pairs.sum(axis=1, keepdims=True), atol=1e-9)


def test_steps_of_em_are_the_same_where_nothing_is_known_of_states():
    """Also with a symbol that is missing."""
    model, few = KernelHMM.from_random(3, 4, random_state=0)._model, np.append(X[:6], -1)
    observed = model.observing(few, np.ones((7, 3), bool))
    expected, tables = _learning.expectation_maximisation(model, [few], 1, 0.0)
    log_prob, others = _learning.expectation_maximisation(observed, [np.arange(7)], 1, 0.0)
    assert_allclose(log_prob, expected)
    for one, other in zip(tables, others, strict=True):
        assert_allclose(one, other, rtol=1e-12)


def test_a_warm_start_goes_on_from_what_was_learnt():
    symbols, _ = regimes(n=300)
    model = KernelHMM(3, warm_start=True, max_iter=2, random_state=0)
    before = quiet(model, symbols).score(symbols)
    history = quiet(model, symbols).history_
    assert len(history) == 2 and before < history[0]


def test_starts_are_learnt_unless_given():
    rng = np.random.default_rng(0)
    symbols = np.concatenate([[0, *rng.integers(1, 4, size=9)] for _ in range(40)])
    free = KernelHMM(2, random_state=0).fit(symbols, [10] * 40)
    held = KernelHMM(2, random_state=0, start_prob=[0.5, 0.5]).fit(symbols, [10] * 40)
    assert free.startprob_.max() > 0.99 and free.score(symbols, [10] * 40) > held.score(
        symbols, [10] * 40
    )
    assert_array_equal(held.startprob_, [0.5, 0.5])


def test_the_end_of_one_series_is_held_out_given_the_rest():
    truth = KernelHMM.from_random(3, 5, scale=1.5, random_state=1)
    symbols = truth.sample(200, random_state=0)[0]
    model = quiet(KernelHMM(3, random_state=0, max_iter=4), symbols, validation=0.2)
    expected = (model.score(symbols) - model.score(symbols[:160])) / 40
    assert_allclose(max(model.validation_history_), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="needs two samples"):
        KernelHMM(2).fit([0], validation=0.2)


@pytest.mark.parametrize("n_init", [1, "screened"])
def test_known_states_of_symbols_that_fill_a_small_type(n_init):
    symbols, known = np.arange(256), np.ones((256, 2), bool)
    known[:9, 0] = False
    params = {"max_iter": 2, "n_init": n_init, "random_state": 0}
    models = [KernelHMM.from_random(2, 256, 2, **params) for _ in range(2)]
    quiet(models[0], symbols, state_mask=known)
    quiet(models[1], symbols.astype(np.uint8), state_mask=known)
    assert models[0].history_ == models[1].history_


def test_known_states_are_kept():
    symbols, states = regimes(n=600)
    known = np.ones((600, 3), bool)
    known[::5] = states[::5, None] == np.arange(3)
    model = KernelHMM(3, random_state=0).fit(symbols, state_mask=known)
    path = model.predict(symbols, algorithm="viterbi")
    assert np.mean(path == states) > 0.7  # without relabelling
    others, _ = regimes(1, 200)
    model = KernelHMM(3, max_iter=4, random_state=0)
    quiet(model, symbols, state_mask=known, validation=(others, None))  # of whose states none is
    assert_allclose(max(model.validation_history_), model.score(others) / 200, rtol=1e-10)
    with pytest.raises(ValueError, match=r"state_mask must hold True or False in shape \(600, 3\)"):
        model.fit(symbols, state_mask=known[:5])
    known[7] = False
    with pytest.raises(ValueError, match="from sample 7 on"):
        model.fit(symbols, state_mask=known)


# ------------------------------------------------------------------ the rest of the face


@pytest.mark.parametrize("feature_map", ["exact", AdaptiveRF(16)])
def test_forecasts_and_continued_samples_follow_the_sequence(feature_map):
    model = KernelHMM.from_random(5, 3, scale=1.5, feature_map=feature_map, random_state=0)
    shares = model.forecast(X % 3, 3)
    last = model.predict_proba(X % 3)[-1]
    for step, share in enumerate(shares, 1):
        expected = last @ np.linalg.matrix_power(model.transmat_, step) @ model.emissionprob_
        assert_allclose(share, expected, rtol=1e-9)
    draws = [model.sample(2, after=X % 3, random_state=seed)[0][:, 0] for seed in range(800)]
    first = model.predict_next(X % 3)
    both = np.array([first[k] * model.predict_next(np.append(X % 3, k)) for k in range(3)])
    assert_drawn_from(np.array(draws), both)


def test_tables_of_likelihoods_have_criteria():
    model = KernelHMM.from_random(3, 4, random_state=0)
    table = np.log(model.emissionprob_.T[X])
    other = precomputed(model)
    log_prob, posteriors = other.score_samples(table)
    assert_allclose(log_prob, model.score(X))
    assert_allclose(posteriors, model.predict_proba(X), rtol=1e-9)
    assert_allclose(other.aic(table), 2 * (6 + 2) - 2 * log_prob)
    assert_allclose(other.bic(table), np.log(9) * (6 + 2) - 2 * log_prob)


def test_tables_are_read_only():
    model = KernelHMM.from_random(3, 4, random_state=0)
    for name in ("startprob_", "transmat_", "emissionprob_", "means_", "covars_"):
        with pytest.raises(AttributeError, match=name):
            setattr(model, name, 1)


@pytest.mark.parametrize("symbols", [[0.0, 0.5, np.nan], [0.0, 1e300], [0.0, np.inf], [0, None, 1]])
def test_symbols_that_are_no_integers_are_refused(symbols):
    for model in (KernelHMM.from_random(3, 4), KernelHMM(3)):
        with pytest.raises(ValueError, match="missing ones with NaN or a mask of numpy.ma"):
            model.fit(symbols)


def test_symbols_that_are_nan_are_missing():
    """As OrdinalEncoder returns them."""
    table = pd.DataFrame({"word": ["a", "b", None, "c", "a", None, "b", "b"]})
    symbols = OrdinalEncoder().fit_transform(table)
    masked = np.ma.masked_invalid(symbols)
    model = KernelHMM(2, max_iter=5, random_state=0)
    expected = quiet(clone(model), np.ma.array(masked.filled(0).astype(int), mask=masked.mask))
    assert quiet(model, symbols).score(symbols) == expected.score(masked)
    assert model.emissionprob_.shape == (2, 3)
    assert_array_equal(model.filter_step(np.nan).posterior, model.startprob_)


# ------------------------------------------------------------------ normal emissions


def of_gaussians(kind, n=3, p=2, seed=0, **params):
    """Return a model of normal emissions, and its tables."""
    rng = np.random.default_rng(seed)
    moves, start = rng.dirichlet(np.ones(n), size=n), rng.dirichlet(np.ones(n))
    roots = rng.normal(size=(n, p, p))
    covars = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(p)
    if kind in ("diag", "spherical"):
        covars *= np.eye(p)
    if kind == "spherical":
        covars = covars[:, :1, :1] * np.eye(p)
    elif kind == "tied":
        covars[:] = covars[0]
    means = 2 * rng.normal(size=(n, p))
    emissions = GaussianEmissions(means, covars, covariance_type=kind)
    model = KernelHMM.from_tables(start, moves, means=means, covars=covars, **params)
    model.set_params(emissions=emissions)
    return model, start, moves, means, covars


KINDS = {"diag": 4, "full": 5, "tied": 3, "spherical": 3}  # and parameters of a state of three


@pytest.mark.parametrize("shift", [0.0, 1e6])
@pytest.mark.parametrize("kind", KINDS)
def test_normal_emissions_equal_enumeration(kind, shift):
    """With entries missing, of which the marginal of the others is meant, and far from 0."""
    model, start, moves, means, covars = of_gaussians(kind)
    model.set_params(emissions=GaussianEmissions(means + shift, covars, covariance_type=kind))
    rows = np.ma.array(model.sample(6, random_state=0)[0])
    rows[2, 1] = rows[3, 0] = rows[4] = np.ma.masked
    logs = np.zeros((6, 3))
    for t, k in itertools.product(range(6), range(3)):
        seen = ~np.ma.getmaskarray(rows)[t]
        if seen.any():
            normal = multivariate_normal((means[k] + shift)[seen], covars[k][np.ix_(seen, seen)])
            logs[t, k] = normal.logpdf(rows.data[t, seen])
    total, posteriors, path = logs_of(start, moves, logs)
    assert_allclose(model.score(rows), total, rtol=1e-9)
    assert_allclose(model.predict_proba(rows), posteriors, atol=1e-9)
    assert_array_equal(model.decode(rows)[1], path)
    assert model.bic(rows) == pytest.approx(np.log(5) * (8 + 3 * KINDS[kind]) - 2 * total)
    state = None
    for row in rows:
        state = model.filter_step(row, state)
    assert_allclose(state.log_prob, total, rtol=1e-9)
    assert_allclose(state.posterior, posteriors[-1], atol=1e-9)
    weights, found, spread = model.forecast(rows, 2)
    assert_allclose(weights[1], posteriors[-1] @ moves @ moves, atol=1e-9)
    assert_array_equal(found, means + shift)
    assert_array_equal(spread, covars)
    assert_array_equal(model.means_, found)
    assert_array_equal(model.covars_, covars)
    with pytest.raises(ValueError, match="use forecast"):
        model.predict_next(rows)
    assert "GaussianEmissions of 3 states and 2 columns" in repr(model)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_normal_emissions_are_those_of_differences(kind):
    model, *_ = of_gaussians(kind)
    rows = np.ma.array(model.sample(40, random_state=0)[0])
    rows[np.random.default_rng(0).random(rows.shape) < 0.2] = np.ma.masked
    first = model._model.observing(rows)
    first.emitter.floor = np.array([0.02 if kind == "spherical" else 0.01, 0.02])
    free, sequences = FreeArrays(first, _learning.gradients), [np.arange(25), np.arange(25, 40)]
    sizes = [array.size for array in free.arrays]

    def value(vector):
        parts = zip(np.split(vector, np.cumsum(sizes)[:-1]), free.arrays, strict=True)
        arrays = [part.reshape(array.shape) for part, array in parts]
        return free.model(arrays).log_prob(sequences).sum()

    rng = np.random.default_rng(1)
    for step in (0.0, 0.1):  # away from the start, roots of covariances are any
        arrays = [array + step * rng.normal(size=array.shape) for array in free.arrays]
        log_prob, gradients = free.gradients(arrays, sequences)
        vector = np.concatenate([array.ravel() for array in arrays])
        assert_allclose(log_prob, value(vector), rtol=1e-12)
        assert_gradient(np.concatenate([array.ravel() for array in gradients]), value, vector)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("diag", "diagonal"), ("tied", "the same for all states"), ("spherical", "multiples of the")],
)
def test_covariances_of_another_type_are_refused(kind, said):
    covars = of_gaussians("full")[-1]
    with pytest.raises(ValueError, match=f"covars must be {said}.* covariance_type='{kind}'"):
        GaussianEmissions(np.zeros((3, 2)), covars, covariance_type=kind)


@pytest.mark.parametrize(
    ("means", "covars", "kind", "said"),
    [
        ([[0.0]], [[np.nan]], "diag", "finite numbers .*nan"),
        ([[0.0]], [[np.inf]], "full", "finite numbers .*inf"),
        ([[np.nan]], [[1.0]], "diag", "finite numbers .*nan"),
        (np.zeros((2, 0)), np.zeros((2, 0)), "diag", r"shape \(n_states, p\)"),
        ([[0.0, 0.0]], [[[1.0, 0.5], [0.0, 1.0]]], "full", "symmetric"),
        (np.zeros((1, 3)), [[[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1e12]]], "diag", "diagonal"),
    ],
)
def test_covariances_that_are_none_are_refused(means, covars, kind, said):
    with pytest.raises(ValueError, match=f"(?s){said}"), warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianEmissions(means, covars, covariance_type=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_take_the_type_of_covariances(kind):
    _, start, moves, means, covars = of_gaussians(kind)
    tables = {"means": means, "covars": covars, "covariance_type": kind}
    model = KernelHMM.from_tables(start, moves, **tables)
    assert model.emissions_.covariance_type == kind


@pytest.mark.parametrize("kind", KINDS)
def test_updates_raise_the_likelihood_with_missing_entries(kind):
    model, *_, means, covars = of_gaussians(kind)
    rows = np.ma.array(model.sample(80, random_state=0)[0])
    rows[np.random.default_rng(0).random(rows.shape) < 0.3] = np.ma.masked
    emissions, values = GaussianEmissions(means, covars, covariance_type=kind), []
    for _ in range(20):
        table = emissions.log_likelihood(rows)
        values.append(logsumexp(table, axis=1).sum())
        emissions = emissions.update(np.exp(table - logsumexp(table, axis=1, keepdims=True)), rows)
    assert (np.diff(values) > 0).all() and values[-1] > values[0] + 1
    shares = np.random.default_rng(1).dirichlet(np.ones(3), size=80)
    for gradient in emissions.update(shares, rows.data).pull_back(shares, rows.data):
        assert_allclose(gradient, 0.0, atol=1e-9)  # no others of the type are likelier


@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_a_mixture_that_is_separated_is_found(covariance_type):
    rng = np.random.default_rng(0)
    states = np.repeat(rng.integers(3, size=40), 10)
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]])
    rows = centres[states] + rng.normal(size=(400, 2))
    for shift in (0.0, 1e6):
        model = KernelHMM(
            3, emissions="gaussian", covariance_type=covariance_type, random_state=0
        ).fit(rows + shift)
        order = np.lexsort(model.means_.T.round())
        found = model.means_[order] - shift
        assert_allclose(
            found[np.lexsort(found.T.round())], centres[np.lexsort(centres.T)], atol=0.5
        )
        assert np.mean(model.predict(rows + shift)[:10] == model.predict(rows + shift)[0]) == 1
    assert_allclose(model.score(rows + shift), model.history_[-1], rtol=1e-9)
    known = KernelHMM(3, emissions="gaussian", random_state=0).fit(rows, validation=0.2)
    assert known.validation_history_
    other = KernelHMM(2, emissions="gaussian", random_state=0).fit(
        rows, validation=(rows[:50], None)
    )
    assert_allclose(max(other.validation_history_), other.score(rows[:50]) / 50, rtol=1e-9)


def test_variances_have_a_floor_that_is_relative_to_the_data():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=30), np.full(30, 0.1)])
    flat = KernelHMM(2, emissions="gaussian", random_state=0).fit(rows)
    assert_allclose(flat.covars_[:, 1, 1], 1.0)  # of a constant, about which nothing is known
    rows[:, 1] = rows[:, 0]
    for covariance_type in ("diag", "full"):
        for scale in (1.0, 1e8):
            model = KernelHMM(
                3,
                emissions="gaussian",
                covariance_type=covariance_type,
                max_iter=20,
                random_state=0,
            )
            quiet(model, scale * rows)
            least = np.linalg.eigvalsh(model.covars_).min() / scale**2
            assert least >= 0.99e-6 * rows[:, 0].var()
            assert np.isfinite(model.score(scale * rows))


@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("scales", [(1.0, 1e-4, 1e4), (1e6, 1.0, 1e-3), (1e-6, 1e3, 1e8)])
def test_fits_do_not_depend_on_the_units_of_columns(kind, scales):
    """Whether expectation maximisation has ended, or leaves much to L-BFGS."""
    model, *_ = of_gaussians(kind, n=3, p=3)
    rows, scales = model.sample(100, random_state=0)[0], np.array(scales)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    params = {"emissions": "gaussian", "covariance_type": kind, "random_state": 0}
    for max_iter in (5, 50):
        model, other = (KernelHMM(3, **params, max_iter=max_iter) for _ in range(2))
        quiet(model, rows)
        quiet(other, rows * scales + scales)
        log_scales = 100 * np.log(scales).sum()
        assert_allclose(other.score(rows * scales + scales) + log_scales, model.score(rows), 1e-6)
        found, means = np.sort((other.means_ - scales) / scales, axis=0), model.means_
        assert_allclose(found, np.sort(means, axis=0), atol=2e-3)  # states have no order


@pytest.mark.parametrize("kind", KINDS)
def test_fits_survive_states_that_collapse(kind):
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(120, 3)) + 3 * rng.integers(2, size=(120, 1))
    outlier = np.where(np.arange(120)[:, None] == 60, 1e6 * rows, rows)
    for values in (outlier, np.clip(rows, -1, 1), np.round(rows), np.repeat(rows[:24], 5, axis=0)):
        model = KernelHMM(3, emissions="gaussian", covariance_type=kind, max_iter=8, random_state=0)
        quiet(model, values)
        assert np.isfinite(model.score(values))
        assert_allclose(model.predict_proba(values).sum(axis=1), 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_do_not_depend_on_the_unit_of_all_columns(kind):
    """Even where products of two variances overflow, or vanish; a state of one row collapses."""
    model, *_, means, covars = of_gaussians(kind)
    rows, states = model.sample(30, random_state=0)
    posteriors, learnt = np.eye(3)[states], []
    posteriors[0] = [1.0, 0.0, 0.0]
    posteriors[1:, 0] = 0.0
    for scale in (1.0, 2.0**-400, 2.0**400):
        emissions = GaussianEmissions(means * scale, covars * scale**2, covariance_type=kind)
        learnt.append(emissions.update(posteriors, rows * scale).covars / scale**2)
    assert_allclose(learnt[1], learnt[0], rtol=1e-9)
    assert_allclose(learnt[2], learnt[0], rtol=1e-9)


def test_spherical_covariances_that_are_given_stay_spherical():
    means, rng = np.array([[0.0, 0.0], [1.0, 30.0]]), np.random.default_rng(0)
    emissions = GaussianEmissions(means, np.ones((2, 2)), covariance_type="spherical")
    model = KernelHMM(np.eye(2), targets=0.1 * np.eye(2), emissions=emissions, max_iter=5)
    quiet(model, np.repeat(means, 20, axis=0) + rng.normal(size=(40, 2)))
    variances = np.diagonal(model.covars_, axis1=1, axis2=2)
    assert_array_equal(variances[:, 0], variances[:, 1])


def test_emissions_do_not_follow_arrays_that_change():
    _, start, moves, means, covars = of_gaussians("full")
    model = KernelHMM.from_tables(start, moves, means=means, covars=covars)
    before = model.score(np.zeros((3, 2)))
    means[:] = covars[:] = 100.0
    assert model.score(np.zeros((3, 2))) == before


def test_draws_of_many_columns_hold_no_matrix_for_each_row():
    rng, states = np.random.default_rng(0), np.repeat([1, 0], 5000)
    roots = np.tril(rng.normal(size=(2, 40, 40))) + 5 * np.eye(40)
    covars = roots @ roots.transpose(0, 2, 1)
    emissions = GaussianEmissions(rng.normal(size=(2, 40)), covars, covariance_type="full")
    tracemalloc.start()
    rows = emissions.sample(states, np.random.RandomState(0))
    assert tracemalloc.get_traced_memory()[1] < 4 * rows.nbytes
    tracemalloc.stop()
    apart = rows - emissions.means[states]
    normal = np.random.RandomState(0).normal(size=rows.shape)
    assert_allclose(apart[:3], normal[:3] @ roots[1].T, rtol=1e-9)
    assert_allclose(apart[-3:], normal[-3:] @ roots[0].T, rtol=1e-9)


def test_numbers_that_are_nan_are_missing():
    rows = of_gaussians("full")[0].sample(60, random_state=0)[0]
    masked = np.ma.array(rows, mask=np.random.default_rng(0).random(rows.shape) < 0.2)
    model = KernelHMM(2, emissions="gaussian", max_iter=5, random_state=0)
    scores = []
    for values in (masked, masked.filled(np.nan)):
        quiet(model, values)
        scores.append((model.score(values), *model.emissions_.means.ravel()))
    assert scores[0] == scores[1]


def test_rows_that_are_too_far_away_are_named():
    model = KernelHMM.from_tables(
        [0.5, 0.5], np.full((2, 2), 0.5), means=[[0.0], [1e-30]], covars=np.full((2, 1), 1e-60)
    )
    for call in (model.score, model.predict_proba, model.fit, model.filter_step):
        with pytest.raises(
            ValueError, match=r"X must hold entries up to 1e\+140, got one of 1e\+160"
        ):
            call([1e160] if call == model.filter_step else [[0.0], [-1e160]])
    with pytest.raises(ValueError, match="X has no probability from sample 1 on"):
        model.predict_proba([[0.0], [1e130]])
    assert model.score([[0.0], [1e130]]) == -np.inf


def test_emissions_of_any_kind_are_learnt_by_em():
    class Counts:
        """Poisson emissions."""

        def __init__(self, means):
            self.means, self.n_parameters = means, len(means)

        def log_likelihood(self, rows):
            return rows * np.log(self.means) - self.means

        def update(self, posteriors, rows):
            return Counts(posteriors.T @ rows[:, 0] / posteriors.sum(axis=0))

        def sample(self, states, rng):
            return rng.poisson(self.means[states])[:, None].astype(float)

    truth = KernelHMM.from_tables([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[1.0], [1.0]])
    states = truth.sample(600, random_state=0)[1]
    counts = np.random.default_rng(0).poisson(np.array([2.0, 9.0])[states])
    model = KernelHMM(2, emissions=Counts(np.array([1.0, 4.0])), random_state=0).fit(counts)
    order = np.argsort(np.argsort(model.emissions_.means))
    assert_allclose(np.sort(model.emissions_.means), [2.0, 9.0], rtol=0.1)
    assert np.mean(order[model.predict(counts)] == states) > 0.9
    assert model.sample(5, random_state=0)[0].shape == (5, 1)
    assert not hasattr(model, "covars_")
    assert model.forecast(counts, 2).shape == (2, 2)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1.0, np.inf]] * 4, "finite numbers, or NaN"),
        (np.zeros((4, 2, 2)), r"shape \(n_samples, p\)"),
        (np.zeros((1, 2)), "a row for each of 2 states"),
    ],
)
def test_rows_that_are_none_are_named(rows, said):
    model = KernelHMM(2, emissions="gaussian")
    with pytest.raises(ValueError, match=said):
        model.fit(rows)
    with pytest.raises(NotFittedError):
        KernelHMM(np.eye(2), emissions="gaussian").score([[0.0]])
