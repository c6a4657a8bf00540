"""Hidden Markov models against enumeration and sums in log space."""

import inspect
import itertools
import pickle
import tracemalloc
import warnings

import hypothesis
import numpy as np
import pytest
from fields import (
    EPS,
    INTEGERS,
    MAPS,
    PRIOR,
    SEEDS,
    SEQUENCES,
    SHARES,
    SMOOTH,
    TABLES_REFUSED,
    WIDE,
    assert_drawn_from,
    assert_gradient,
    assert_refused,
    assert_refused_by_memory,
    assert_same_logs,
    corrected_table,
    dtypes,
    frozen,
    generated,
    joint,
    largest_log,
    made_tables,
    maps,
    marginal,
    scales,
    seeds,
)
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skrf import OptimalPositiveRF, _kernels
from skrf.graphical import FilterState, KernelHMM, _learning, _maximum_likelihood, _recursions
from skrf.graphical._corrections import Corrected
from skrf.graphical._maximum_likelihood import unpacked
from skrf.graphical._potentials import Dense
from skrf.projections import Coupling

STATES, TARGETS, EMITTERS = np.random.default_rng(3).normal(size=(3, 5, 3))
SYMBOLS = np.random.default_rng(4).normal(size=(4, 3))
START = np.random.default_rng(5).normal(size=3)
STARTS = {"uniform": {}, "given": {"start_prob": PRIOR}, "embedding": {"start_embedding": START}}
NORMS = ("local", "global")
X = np.array([0, 3, 3, 1, 2])
MISSING = np.ma.array(X, mask=[0, 1, 0, 0, 1])
UNKNOWN_GRADIENTS = "No gradients are available for this feature_map"


def hmm(name="optimal", start="uniform", **params):
    given = {"targets": TARGETS, "emitters": EMITTERS, "feature_map": MAPS[name], **STARTS[start]}
    return KernelHMM(STATES, SYMBOLS, **given | params)


def log_table(factor):
    """Return the log potentials of all pairs, without their common scale."""
    if isinstance(factor.pair, Corrected):
        return corrected_table(factor.pair)[0]
    if isinstance(factor.pair, Dense):
        return factor.pair.logs
    left, right = (side.logs for side in factor.pair.sides)
    return logsumexp(left[:, None] + right[None], axis=2)


class Reference:
    """Log tables of a model in float64, and what follows from them."""

    def __init__(self, model):
        inner = model._model
        factors = inner.transition, inner.emission
        self.move, emit = map(log_table, factors)
        self.emit = np.column_stack([emit, logsumexp(emit, axis=1)])  # any symbol is the last
        if inner.start_factor is None:
            with np.errstate(divide="ignore"):
                self.start = np.log(inner.start_prob)
        else:
            self.start = log_table(inner.start_factor)[0]
        logs = [self.move]
        for pair in (factor.pair for factor in factors):
            sides = getattr(pair, "sides", getattr(pair, "raw", None))
            logs += [pair.logs] if sides is None else [side.logs for side in sides]
        self.size = largest_log(*logs, self.start)

    def log_weights(self, X):
        """Return the log weights of all paths of states together with the symbols."""
        logs = self.start
        for t, symbol in enumerate(np.ma.filled(X, -1)):
            if t:
                logs = logs[..., None] + self.move
            logs = logs + self.emit[:, symbol]
        return logs

    def forward(self, X, total=logsumexp):
        """Return log sums over the states before each of the symbols, by the last state."""
        emissions = self.emit.T[np.ma.filled(X, -1)]
        sums = [self.start + emissions[0]]
        for emission in emissions[1:]:
            sums.append(total(sums[-1][:, None] + self.move, axis=0) + emission)
        return sums

    def log_prob(self, X, normalization):
        total = logsumexp(self.forward(X)[-1])
        if normalization == "global":
            total -= logsumexp(self.forward(np.ma.masked_all(len(X), int))[-1])
        return total

    def posteriors(self, X):
        back, posteriors = np.zeros(len(self.start)), []
        for t, below in reversed(list(enumerate(self.forward(X)))):
            logs = below + back
            posteriors.insert(0, np.exp(logs - logsumexp(logs)))
            back = logsumexp(self.move + self.emit[:, np.ma.filled(X, -1)[t]] + back, axis=1)
        return np.array(posteriors)

    def log_weight(self, X, path):
        emitted = self.emit[path, np.ma.filled(X, -1)].sum()
        return self.start[path[0]] + self.move[path[:-1], path[1:]].sum() + emitted


def assert_agrees(model, X, room=1e-9, rtol=1e-9):
    """Assert that what a model says of symbols agrees with its tables, and return these."""
    truth, score = Reference(model), model.score(X)
    assert_same_logs(score, truth.log_prob(X, model.normalization), room, rtol)
    log_prob, actual = model.score_samples(X[:, None])
    assert log_prob == score
    assert_allclose(actual, truth.posteriors(X), rtol=0, atol=room)
    assert_array_equal(model.predict_proba(X), actual)
    nearly = actual >= actual.max(axis=1, keepdims=True) * (1 - 1e-10)
    assert_array_equal(model.predict(X), nearly.argmax(axis=1))  # the first of equals
    for algorithm in ("posterior", "viterbi"):
        log_prob, path = model.decode(X, None, algorithm)
        assert_array_equal(model.predict(X, algorithm=algorithm), path)
        weight = truth.log_weight(X, path)
        expected = weight - logsumexp(truth.forward(X)[-1])
        assert_same_logs(log_prob - score, expected, room, rtol)
    assert_same_logs(weight, truth.forward(X, np.max)[-1].max(), room, rtol)
    assert_array_equal(model.decode(X[:, None])[1], path)
    return truth


# ------------------------------------------------------------------ what a model says


@pytest.mark.parametrize(
    ("name", "start", "normalization", "X"),
    [
        *itertools.product(("exact", "optimal"), STARTS, NORMS, [MISSING]),
        ("hyperbolic", "embedding", "local", X),
        ("adaptive", "given", "global", X),
        ("clustered", "embedding", "global", MISSING),
    ],
)
def test_a_model_equals_enumeration(name, start, normalization, X):
    model = hmm(name, start, normalization=normalization)
    truth = assert_agrees(model, X)
    logs = truth.log_weights(X)
    shares, total = joint(logs)
    assert_allclose(logsumexp(truth.forward(X)[-1]), total, rtol=1e-12)
    for t, posterior in enumerate(truth.posteriors(X)):
        assert_allclose(posterior, marginal(shares, t), rtol=1e-12)
    path = model.predict(X, algorithm="viterbi")
    assert_array_equal(path, np.unravel_index(logs.argmax(), logs.shape))
    assert_allclose(logs[tuple(path)], truth.log_weight(X, path), rtol=1e-12)
    if name == "exact":
        assert model._model.transition.T is None is model._model.emission.T  # no identity
        pairs = (truth.move, STATES, TARGETS), (truth.emit[:, :-1], EMITTERS, SYMBOLS)
        for logs, left, right in pairs:
            expected = left @ right.T - logs
            if normalization == "local":
                expected -= logsumexp(left @ right.T, axis=1, keepdims=True)
            assert_allclose(expected - expected[0, 0], 0, atol=1e-12)
    if normalization == "local":
        for logs in (truth.start, truth.move, truth.emit[:, :-1]):
            assert_allclose(logsumexp(logs, axis=-1), 0, atol=1e-12)
        assert_allclose(model.startprob_, np.exp(truth.start), rtol=1e-12)
        assert_allclose(model.transmat_, np.exp(truth.move), rtol=1e-12)
        assert_allclose(model.emissionprob_, np.exp(truth.emit[:, :-1]), rtol=1e-12)


@pytest.mark.parametrize("case", ["exact local", "optimal global", "one symbol"])
def test_samples_come_from_the_model(case):
    if case == "one symbol":  # that all states emit alike: the normaliser is still global
        params = {"feature_map": "exact", "normalization": "global"}
        model = KernelHMM(STATES, np.zeros((1, 3)), **params)
    else:
        name, normalization = case.split()
        model = hmm(name, "given", normalization=normalization)
    symbols, states = model.sample(lengths=[2] * 3000, random_state=0)
    draws = np.hstack([states.reshape(-1, 2), symbols.reshape(-1, 2)])
    n_symbols = len(model.symbols)
    shares = np.empty((5, 5, n_symbols, n_symbols))
    for x in itertools.product(range(n_symbols), repeat=2):
        shares[:, :, x[0], x[1]] = np.exp(Reference(model).log_weights(x))
    assert_drawn_from(draws, shares / shares.sum())


@pytest.mark.parametrize("normalization", NORMS)
def test_several_sequences_are_scored_side_by_side(normalization):
    model = hmm("adaptive", "embedding", normalization=normalization)
    sequences = [X, X[:2], X[::-1], X[:1]]
    together = np.concatenate(sequences), [len(sequence) for sequence in sequences]
    assert_allclose(model.score(*together), sum(map(model.score, sequences)), rtol=1e-12)
    expected = np.vstack([model.predict_proba(sequence) for sequence in sequences])
    assert_allclose(model.predict_proba(*together), expected)
    for algorithm in ("viterbi", "posterior"):
        log_prob, states = model.decode(*together, algorithm)
        alone = [model.decode(sequence, None, algorithm) for sequence in sequences]
        assert_allclose(log_prob, sum(log for log, _ in alone), rtol=1e-12)
        assert_array_equal(states, np.concatenate([path for _, path in alone]))


@pytest.mark.parametrize(
    ("name", "start"), [("exact", "uniform"), ("optimal", "given"), ("adaptive", "embedding")]
)
def test_what_is_known_online_is_that_of_the_score(name, start):
    """Filtered posteriors and the next symbol, after whole and missing symbols."""
    model = hmm(name, start)
    filtered = model.predict_proba(np.ma.append(MISSING, MISSING[:2]), [5, 2], filtered=True)
    assert_array_equal(filtered[5:], filtered[:2])
    state = both = None
    for t in range(6):
        # The probability of a symbol is what it adds to the score.
        before, seen = MISSING[:t], 0.0 if t == 0 else model.score(MISSING[:t])
        logs = [model.score(np.ma.append(before, [symbol])) - seen for symbol in range(4)]
        next_symbol = model.predict_next(None if t == 0 else before)
        assert_allclose(next_symbol, np.exp(logs), rtol=1e-9)
        assert_allclose(model.predict_next(state=state), next_symbol, rtol=1e-9)
        if t == 5:
            break
        state = model.filter_step(MISSING[t], state)  # numpy.ma.masked where it is missing
        assert_allclose(state.log_prob, model.score(MISSING[: t + 1]), rtol=1e-9, atol=1e-12)
        assert_allclose(state.posterior, model.predict_proba(MISSING[: t + 1])[-1], rtol=1e-9)
        assert_allclose(filtered[t], state.posterior, rtol=1e-9)
        both = model.filter_step(np.ma.array([X[t], X[t]], mask=[0, MISSING.mask[t]]), both)
    assert_allclose(both.log_prob, [model.score(X), model.score(MISSING)], rtol=1e-9)
    assert_allclose(model.predict_next(state=both), [model.predict_next(X), next_symbol], rtol=1e-9)


# ------------------------------------------------------------------ range and memory


@pytest.mark.parametrize("normalization", NORMS)
@pytest.mark.parametrize("scale", [1.0, 25.0])
def test_long_sequences_equal_sums_in_log_space(scale, normalization):
    """Posteriors come from segments that are filtered twice, of 22 symbols each."""
    states, symbols, targets = (scale * table for table in (STATES, SYMBOLS, TARGETS))
    given = {"feature_map": MAPS["optimal"], "normalization": normalization}
    model = KernelHMM(states, symbols, targets=targets, **given)
    room = 1e-9 * max(1.0, scale**2 / 10)  # logarithms are of the size of scale**2, and cancel
    assert_agrees(model, np.random.default_rng(0).integers(4, size=500), room)


def emitters_that_differ(first, later, dtype=np.float64):
    """Return a model of two states that stay: the second emits symbol 0 at e^first, the first
    emits symbol 1 at e^later."""
    eye = np.eye(2, dtype=dtype)
    emitters = np.array([[0, later], [first, 0]], dtype=dtype)
    return KernelHMM(2000 * eye, eye, targets=eye, emitters=emitters, feature_map="exact")


@pytest.mark.parametrize(
    ("dtype", "first"),
    [
        (np.float64, -640),
        (np.float64, -650),
        (np.float64, -900),
        (np.float32, -58),
        (np.float32, -62),
    ],
)
def test_unlikely_symbols_go_through_log_space(dtype, first):
    """The second state, held at e^first, is the only one that can emit what comes next."""
    model = emitters_that_differ(first, -6000, dtype)
    score = np.log(0.5) + first
    assert_allclose(model.score([0, 1]), score, rtol=1e-6)
    assert_allclose(model.predict_proba([0, 1]), [[0, 1], [0, 1]], atol=1e-6)
    state = model.filter_step(1, model.filter_step(0))
    assert_allclose(state.log_prob, score, rtol=1e-6)
    assert_allclose(state.posterior, [0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "first", "later"), [(np.float64, -760, -460), (np.float32, -110, -50)]
)
def test_what_has_underflowed_counts_when_it_grows_later(dtype, first, later):
    """No single step is unlikely, but after three the state that was lost explains all of them."""
    model = emitters_that_differ(first, later, dtype)
    sequence = [0, 1, 1, 1]
    assert_allclose(model.score(sequence), np.log(0.5) + first, rtol=1e-6)
    assert_allclose(model.predict_proba(sequence), np.tile([0, 1], (4, 1)), atol=1e-6)
    # From the end: symbol 1 first, then what only the other state explains.
    assert_allclose(model.predict_proba(sequence[::-1]), np.tile([0, 1], (4, 1)), atol=1e-6)
    known = model.predict_proba(sequence, filtered=True)
    ends = [model.predict_proba(sequence[:t])[-1] for t in (1, 2, 3, 4)]
    assert_allclose(known, ends, atol=1e-6)
    assert_allclose(model.predict_next(sequence), known[-1] @ model.emissionprob_, atol=1e-6)
    state = None
    for steps, symbol in enumerate(sequence, 1):
        state = model.filter_step(symbol, state)
        assert_allclose(state.log_prob, model.score(sequence[:steps]), rtol=1e-6)


def test_float32_keeps_the_range_of_float64():
    """Emissions whose logarithms are e38 and more below the others' are 0, without a warning."""
    states, symbols = np.float32([[1e20], [1.0]]), np.float32([[1e20], [-1e20]])
    model = KernelHMM(states, symbols, feature_map="exact")
    assert_allclose(model.score([0, 0, 0]), 0, atol=1e-6)
    assert_allclose(model.predict_proba([1, 0]), [[0, 1], [1, 0]], atol=1e-6)
    # A start of 1e-60 is 0 in float32; only that state emits what is seen.
    model = emitters_that_differ(-200, -200, np.float32).set_params(start_prob=[1e-60, 1.0])
    assert_allclose(model.score([0]), np.log(1e-60), rtol=1e-6)


@pytest.mark.parametrize(("seed", "normalization"), [(31, "local"), (42, "global")])
def test_transitions_below_all_numbers_make_no_warning(seed, normalization):
    """Logarithms are sums of the largest embeddings and of transitions that are 0."""
    rng = np.random.default_rng(seed)
    E, T, S = 30 * rng.normal(size=(3, 4, 2))
    model = KernelHMM(E, S, targets=T, feature_map="exact", normalization=normalization)
    sequence = rng.integers(4, size=12)
    expected = Reference(model).log_prob(sequence, normalization)
    assert_allclose(model.score(sequence), expected, rtol=1e-10)


@pytest.mark.parametrize("scale", [0.5, 300.0])
def test_viterbi_of_products_is_that_of_the_table(monkeypatch, scale):
    """Where products underflow, the paths into those states are found in log space."""
    rng = np.random.default_rng(0)
    E, T, M = scale * rng.normal(size=(3, 12, 3))
    S = scale * rng.normal(size=(4, 3))
    model = KernelHMM(E, S, targets=T, emitters=M, feature_map=MAPS["optimal"])
    sequence = rng.integers(4, size=50)
    truth = Reference(model)
    expected = truth.forward(sequence, np.max)[-1].max()
    for entries in (_recursions._BLOCK_ENTRIES, 36):  # all states, then three per block
        monkeypatch.setattr(_recursions, "_BLOCK_ENTRIES", entries)
        monkeypatch.setattr("skrf.graphical._potentials._BLOCK", entries)
        log_prob, states = model.decode(sequence)
        assert_allclose(log_prob, expected, rtol=1e-12)
        assert_allclose(truth.log_weight(sequence, states), expected, rtol=1e-12)


def test_many_symbols_are_looked_up_without_a_table(monkeypatch):
    """Also emissions below the smallest number, which are in log space."""
    far = 30 * np.eye(2)
    tables = [hmm("adaptive", "given"), KernelHMM(far, far, feature_map="exact")]
    sequences = [np.ma.append(X, MISSING), np.array([0, 1, 1])]
    expected = [(m.score(x), m.predict_proba(x)) for m, x in zip(tables, sequences, strict=True)]
    monkeypatch.setattr(_recursions, "_EMISSION_ENTRIES", 0)
    for model, sequence, (score, posteriors) in zip(tables, sequences, expected, strict=True):
        again = clone(model)
        assert again._model._log_emissions is None is not model._model._log_emissions
        assert_allclose(again.score(sequence), score, rtol=1e-12)
        assert_allclose(again.predict_proba(sequence), posteriors, rtol=1e-12)
        steps = (each.filter_step([1, 0, 1]) for each in (again, model))
        assert_allclose(*(step.log_prob for step in steps))


def test_float32_embeddings_give_float32_probabilities():
    wide = hmm("optimal", "embedding")
    names = ("states", "symbols", "targets", "emitters", "start_embedding")
    model = clone(wide).set_params(**{name: np.float32(getattr(wide, name)) for name in names})
    assert model.predict_proba(X).dtype == np.float32
    assert_allclose(model.score(X), wide.score(X), rtol=1e-5)
    # A posterior of the other type is taken too.
    state, other = (model.filter_step(2, first.filter_step(1)) for first in (model, wide))
    assert state.posterior.dtype == other.posterior.dtype == np.float32
    assert isinstance(state.log_prob, float)
    assert_allclose(other.posterior, state.posterior, rtol=1e-5)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        fitted = clone(model).set_params(max_iter=2).fit(X)
    assert fitted.states_.dtype == np.float64
    assert fitted.predict_proba(X).dtype == np.float32
    # One array of float64 makes all of them float64.
    assert model.set_params(states=STATES).predict_proba(X).dtype == np.float64


def test_many_states_and_long_sequences_need_no_memory_for_pairs():
    """5,000 states and 500 symbols: pairs of states take 200 MB, of states and symbols 20 MB."""
    feature_map = OptimalPositiveRF(4, random_state=0)
    model = KernelHMM.from_random(5000, 3, 2, feature_map=feature_map, random_state=0)
    tracemalloc.start()
    symbols, _ = model.sample(500, random_state=0)
    model.score(symbols)
    model.predict(symbols)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


# ------------------------------------------------------------------ reports and tables


def test_the_report_is_the_distance_to_the_exact_kernel():
    model, exact = hmm("optimal"), hmm("exact")
    report = model.report()
    for name, table in (("transition", "transmat_"), ("emission", "emissionprob_")):
        distances = np.abs(getattr(model, table) - getattr(exact, table)).sum(axis=1) / 2
        assert_allclose(report[name], distances, rtol=1e-9)
    many = np.random.default_rng(6).normal(size=(300, 3)) / 2
    report = KernelHMM(many, SYMBOLS, feature_map="exact").report(50, random_state=0)
    assert report["transition"].shape == report["emission"].shape == (50,)
    assert max(distances.max() for distances in report.values()) < 1e-12


def test_a_fitted_map_keeps_its_sigma():
    """Potentials are those of its features, which the report knows."""
    held = frozen(OptimalPositiveRF(64, random_state=0), STATES, sigma=0.5)
    model, fitted = hmm("exact").set_params(feature_map=held), held.estimator
    pairs = (model.transmat_, STATES, TARGETS), (model.emissionprob_, EMITTERS, SYMBOLS)
    for actual, left, right in pairs:
        logs = fitted.log_transform(left)[:, None] + fitted.log_transform_keys(right)[None]
        assert_allclose(actual, softmax(logsumexp(logs, axis=2), axis=1), rtol=1e-9)
    halves = {"targets": TARGETS / 2, "emitters": EMITTERS / 2}
    unit = frozen(OptimalPositiveRF(64, random_state=0), STATES / 2)
    small = KernelHMM(STATES / 2, SYMBOLS / 2, **halves, feature_map=unit)
    report = model.report()
    for name, expected in small.report().items():
        assert_allclose(report[name], expected, rtol=1e-9)


def test_criteria_count_what_embeddings_can_express():
    """Entries of narrow embeddings, or ranks of logits, and the start if it is learnt."""
    tied, untied = KernelHMM(STATES, SYMBOLS, feature_map="exact"), hmm("exact", "embedding")
    held = tied.set_params(start_prob=PRIOR)
    symbols, lengths = np.ma.append(X, MISSING), [5, 5]
    every, mask = KernelHMM.from_random(5, 4, feature_map="exact"), np.tri(5, dtype=bool)
    for model, n_parameters in (
        (held, 15 + 12),
        (clone(tied).set_params(start_prob=None), 15 + 12 + 4),
        (untied, 3 * (5 + 4 - 3) + 3 * (5 + 3 - 3) + 4),
        (every, 5 * 4 + 5 * 3 + 4),
        (clone(every).set_params(transition_mask=mask), 15 - 5 + 5 * 3 + 4),
        (KernelHMM.from_random(1, 8), 7),
    ):
        score = model.score(symbols, lengths)
        assert_allclose(model.aic(symbols, lengths), -2 * score + 2 * n_parameters)
        assert_allclose(model.bic(symbols, lengths), -2 * score + n_parameters * np.log(8))


class Undrawn(Coupling):
    """Must not be drawn."""

    def draw(self, n_projections, n_features, rng):
        pytest.fail("drawn")


def test_tables_that_do_not_exist_are_missing_attributes():
    """So that `hasattr`, `inspect` and debuggers can ask for them; nothing is drawn to tell."""
    names = {name for name, _ in inspect.getmembers(hmm())}
    assert {"feature_map_", "transmat_"} <= names
    undrawn = {"feature_map": OptimalPositiveRF(6, coupling=Undrawn())}
    fitted = hmm(normalization="global", tol=1.0).fit(X)
    for model in (hmm(normalization="global", **undrawn), fitted.set_params(**undrawn)):
        for name in ("startprob_", "transmat_", "emissionprob_"):
            with pytest.raises(AttributeError, match=f"{name} needs normalization='local'"):
                getattr(model, name)
    # Tables have at most 2^24 entries.
    for n_states, n_symbols, name in ((4097, 1, "transmat_"), (4096, 4097, "emissionprob_")):
        model = KernelHMM(np.zeros((n_states, 1)), np.zeros((n_symbols, 1)), **undrawn)
        with pytest.raises(AttributeError, match=f"{name} would have {n_states} x 4097 entries"):
            getattr(model, name)


def test_random_models_are_scaled_and_shown_without_their_embeddings():
    model = KernelHMM.from_random(300, 7, 4, random_state=0)
    assert "states=<ndarray of shape (300, 4)>" in repr(model) and len(repr(model)) < 400
    assert repr(KernelHMM([[1.0]], [[2.0]])) == "KernelHMM(states=<list>, symbols=<list>)"
    assert model.states.shape == (300, 4)
    assert model.feature_map_ == {"transition": "exact", "emission": "exact"}
    for scale in (0.5, np.float32(0.5)):
        half = KernelHMM.from_random(300, 7, 4, scale=scale, random_state=0)
        assert_array_equal(half.states, model.states)
    assert 0.4 < model.targets.std() < 0.6


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize(
    ("name", "start", "normalization"),
    [
        *itertools.product(("exact", "optimal"), STARTS, NORMS),
        ("adaptive", "embedding", "local"),
        ("clustered", "given", "local"),
        ("balanced", "embedding", "global"),
        ("simplex+", "embedding", "global"),
    ],
)
def test_gradients_are_those_of_models_with_the_map_that_was_fitted(name, start, normalization):
    """What a user can check: the map stays, the embeddings move."""
    held = "exact"
    if name != "exact":
        held = frozen(SMOOTH[name], STATES, EMITTERS, keys=np.vstack([TARGETS, SYMBOLS]))
    model = hmm("exact", start, normalization=normalization).set_params(feature_map=held)
    sequences = [MISSING, X[:2], X[::-1], X[:1]]
    symbols, lengths = np.ma.concatenate(sequences), [5, 2, 5, 1]
    given = {role: E for role, E in model._model.embeddings.items() if E is not None}
    vector = np.concatenate([value.ravel() for value in given.values()])

    def score(vector):
        moved = dict(zip(given, unpacked(vector, given.values()), strict=True))
        return clone(model).set_params(**moved).score(symbols, lengths)

    filled = [np.ma.filled(sequence, _recursions.ANY) for sequence in sequences]
    log_prob, gradients = _learning.gradients(model._model, filled)
    assert_allclose(log_prob, model.score(symbols, lengths), rtol=1e-10)
    assert_gradient(np.concatenate([gradients[role].ravel() for role in given]), score, vector)
    assert all(feature_map is held for feature_map in model.feature_map_.values())
    for again in (clone(model), pickle.loads(pickle.dumps(model))):
        assert again.score(symbols, lengths) == model.score(symbols, lengths)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", ["optimal", "adaptive"])
def test_global_models_of_states_that_meet_themselves_are_corrected(name, start):
    """Features of the same states on both sides are far too large for some of them."""
    given = {"targets": None, "normalization": "global", "feature_map": SMOOTH[name]}
    few = hmm(start=start, **given)
    assert_agrees(few, MISSING)
    truth = Reference(few.set_params(symbols=SYMBOLS[:1]))
    drawn = few.sample(lengths=[3] * 4000, random_state=0)[1].reshape(-1, 3)
    assert_drawn_from(drawn, joint(truth.log_weights(np.zeros(3, int)))[0])
    states = 0.7 * np.random.default_rng(0).normal(size=(60, 3))
    states[40:] = states[:20] + 0.01  # near copies
    starts = {**STARTS, "given": {"start_prob": np.arange(60) / 1770}}[start]
    model = KernelHMM(states, SYMBOLS, **starts, **given)
    truth, pair = assert_agrees(model, MISSING), model._model.transition.pair
    assert 0 < corrected_table(pair)[1].sum() < 60
    errors = softmax(states @ states.T, axis=1) - softmax(truth.move, axis=1)
    assert_allclose(model.report()["transition"], np.abs(errors).sum(axis=1) / 2, atol=1e-12)
    # The factor and the near states stay; the cap and the rests follow the embeddings.
    first, sequences = model._model, [np.ma.filled(MISSING, _recursions.ANY), X[:2], X[:1]]
    log_prob, gradients = _learning.gradients(first, sequences)
    assert_allclose(log_prob, first.log_prob(sequences).sum(), rtol=1e-12)
    shared = gradients["states"] + gradients["targets"]

    def score(vector):
        moved = vector.reshape(60, 3)
        embeddings = first.embeddings | {"states": moved, "targets": moved}
        return first.with_embeddings(embeddings, np.float64).log_prob(sequences).sum()

    assert_gradient(shared.ravel(), score, states.ravel(), step=1e-6)
    model.set_params(max_iter=5, tol=0.0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    assert_allclose(model.score(X), model.history_[-1], rtol=1e-12)
    assert model._model.maps[0].log_factor == first.maps[0].log_factor
    assert pickle.loads(pickle.dumps(model)).score(X) == model.score(X)


@pytest.mark.parametrize("seed", range(3))
def test_global_models_are_near_the_exact_kernel_whatever_the_draw(seed):
    """Without the correction these draws are off by .17 to .64 of total variation."""
    rng = np.random.default_rng(0)
    states, symbols = rng.normal(size=(1100, 8)) / 2, rng.normal(size=(20, 8)) / 2
    X, given = rng.integers(20, size=50), {"normalization": "global", "random_state": seed}
    model = KernelHMM(states, symbols, **given)  # exact emissions: there are few symbols
    exact = KernelHMM(states, symbols, feature_map="exact", **given)
    assert abs(model.score(X) - exact.score(X)) < 1
    gap = np.abs(model.predict_proba(X) - exact.predict_proba(X)).sum(axis=1).mean() / 2
    assert gap < 0.15


@pytest.mark.parametrize("normalization", NORMS)
def test_the_objective_of_fit_is_one_function(normalization):
    """The maps are fitted for the first embeddings and stay; roles that share one have its sum.

    The gradient of this function vanishes where fit ends.
    """
    given = {"feature_map": MAPS["adaptive"], "normalization": normalization, "targets": None}
    model = hmm(**given, start="embedding", max_iter=80, tol=1e-12)

    def gradient_norm():
        gradients = _learning.gradients(model._model, [X])[1]
        shared = gradients.pop("states") + gradients.pop("targets")
        return np.linalg.norm(np.concatenate([shared.ravel(), *map(np.ravel, gradients.values())]))

    begin, maps_before, before = model.score(X), model.feature_map_, gradient_norm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X)
    assert all(model.feature_map_[kind] is held for kind, held in maps_before.items())
    assert_allclose(model.score(X), model.history_[-1], rtol=1e-12)
    assert model.history_[-1] > begin and gradient_norm() < 0.03 * before


@pytest.mark.parametrize(
    ("name", "scale", "normalization"),
    [
        ("exact", 3.0, "local"),
        ("exact", 300.0, "global"),
        ("optimal", 30.0, "global"),
        ("optimal", 300.0, "local"),
    ],
)
def test_gradients_of_large_embeddings_are_finite(name, scale, normalization):
    """No NumPy warning, and the gradient is that of differences, however unlikely the symbols."""
    rng = np.random.default_rng(0)
    E, T, M, S = (scale * rng.normal(size=(n, 2)) for n in (3, 3, 3, 4))
    given = {"targets": T, "emitters": M, "start_embedding": E[0] / 2}
    model = KernelHMM(E, S, **given, feature_map=MAPS[name], normalization=normalization)
    first, sequences = model._model, [rng.integers(4, size=n) for n in (9, 4, 4)]
    log_prob, gradients = _learning.gradients(first, sequences)
    room = 1e-12 * scale**2  # of large normalisers that cancel
    assert_allclose(log_prob, sum(map(model.score, sequences)), rtol=1e-10, atol=room)
    step = 1e-6 / scale
    # What the differences lose to rounding: global normalisers are of the size of scale**2.
    lost = 100 * EPS * scale**2 / step * (normalization == "global")
    for role, value in first.embeddings.items():
        direction = rng.normal(size=value.shape)
        values = []
        for sign in (1, -1):
            moved = {**first.embeddings, role: value + sign * step * direction}
            other = type(first)(moved, first.maps, first.start_prob, first.is_local)
            values.append(other.log_prob(sequences).sum())
        expected = (values[0] - values[1]) / (2 * step)
        size = np.abs(gradients[role]).max() + scale
        assert_allclose(np.sum(gradients[role] * direction), expected, atol=1e-4 * size + lost)


def test_gradients_add_up_over_batches(monkeypatch):
    """Neither the number of sequences side by side nor that of samples in a product matters."""
    model = hmm("optimal", "embedding")._model
    rng = np.random.default_rng(2)
    sequences = [rng.integers(4, size=n) for n in (7, 1, 30, 2, 30, 12)]
    alone = [_learning.gradients(model, [sequence]) for sequence in sequences]
    for repeats, entries in ((50, 2**24), (1, 400), (1, 1)):  # more than 1024 samples, then few
        monkeypatch.setattr(_learning, "_GRADIENT_ENTRIES", entries)
        log_prob, gradients = _learning.gradients(model, repeats * sequences)
        assert_allclose(log_prob, repeats * sum(log for log, _ in alone), rtol=1e-12)
        for role, gradient in gradients.items():
            expected = repeats * sum(by_role[role] for _, by_role in alone)
            assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------ fit


@pytest.mark.parametrize(("name", "normalization"), [("exact", "global"), ("optimal", "local")])
def test_fit_climbs_and_knows_of_normalisers_and_missing_symbols(name, normalization, capsys):
    truth = KernelHMM.from_random(3, 4, 2, scale=2.0, feature_map="exact", random_state=1)
    symbols, _ = truth.sample(120, random_state=0)
    symbols = np.ma.array(symbols, mask=np.random.default_rng(0).random(symbols.shape) < 0.2)
    lengths = [50, 20, 50]
    model = hmm(name, "embedding", normalization=normalization, max_iter=15, verbose=1)
    before = model.score(symbols, lengths)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(symbols, lengths)
    assert_allclose(model.history_[-1], model.score(symbols, lengths), rtol=1e-10)
    assert model.history_[-1] > before + 5 and (np.diff(model.history_) > -1e-6).all()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_ == 15 and f"{model.history_[-1]:.6f}" in lines[-1]
    # What is filled in makes no difference.
    again = clone(model).set_params(verbose=0)
    other = np.ma.array(np.where(symbols.mask, 3 - symbols.data, symbols.data), mask=symbols.mask)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        assert again.fit(other, lengths).history_ == model.history_
    assert capsys.readouterr().out == ""


def climbing(**params):
    """Return an unfitted model, and symbols that it can learn."""
    truth = KernelHMM.from_random(3, 4, 2, scale=2.0, feature_map="exact", random_state=1)
    symbols, _ = truth.sample(40, random_state=0)
    given = {"feature_map": "exact", "tol": 1e-2, **params}
    return KernelHMM.from_random(3, 4, 2, scale=0.5, random_state=0, **given), symbols


def test_convergence_is_what_the_optimiser_says(monkeypatch):
    for tol, most in ((1e-2, 99), (1.0, 1), (10**400, 1)):
        model, symbols = climbing(tol=tol)
        assert model.fit(symbols).converged_ and model.n_iter_ <= most  # without a warning
    true_gradients = _learning.gradients
    calls = []

    def downhill(model, sequences):
        log_prob, gradients = true_gradients(model, sequences)
        return log_prob, {role: -value for role, value in gradients.items()}

    def lost(model, sequences):
        log_prob, gradients = true_gradients(model, sequences)
        calls.append(log_prob)
        if len(calls) > 4:
            gradients["states"] = gradients["states"] * np.nan
        return log_prob, gradients

    for replaced, params, said in (
        (true_gradients, {"max_iter": 2}, "max_iter=2 "),
        (downhill, {"n_init": 2}, "0 iterations at a failed line search"),
        (lost, {}, r"\d iterations at a gradient that is not finite"),
    ):
        model, symbols = climbing(**params)
        monkeypatch.setattr(_learning, "gradients", replaced)
        with pytest.warns(ConvergenceWarning, match=said) as caught:
            model.fit(symbols)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert model.converged_ is False
        assert np.isfinite(model.score(symbols))
        if model.history_:
            assert_allclose(model.score(symbols), model.history_[-1])


def test_a_fit_that_raises_changes_nothing():
    model, symbols = climbing(max_iter=2)
    before = dict(vars(model))
    with pytest.raises(ConvergenceWarning):  # warnings are errors here
        model.fit(symbols)
    assert vars(model) == before
    for model in (hmm("exact"), hmm("optimal", n_init=0), climbing()[0].fit([0, 1, 0, 2])):
        before = dict(vars(model))
        for wrong in ([0, 9], np.ma.array([0.0, 1.5])):
            with pytest.raises((ValueError, TypeError)):
                model.fit(wrong)
            assert vars(model).keys() == before.keys()
            assert all(vars(model)[name] is value for name, value in before.items())


def test_the_best_of_several_starts_is_kept(monkeypatch):
    one, symbols = climbing()
    one.fit(symbols)
    starts, results, status = [], [], {}
    climb = _maximum_likelihood.scipy.optimize.minimize

    def minimize(objective, vector, **options):
        result = climb(objective, vector, **options)
        result.status = status.get(result.fun, result.status)
        starts.append(vector)
        results.append(result)
        return result

    monkeypatch.setattr(_maximum_likelihood.scipy.optimize, "minimize", minimize)
    model, _ = climbing(n_init=6)
    model.fit(symbols)
    assert_array_equal(results[0].x[: one.states_.size], one.states_.ravel())
    best = min(results, key=lambda result: result.fun)
    assert best.fun < results[0].fun and len({result.fun for result in results}) > 2
    assert_array_equal(model.states_.ravel(), best.x[: model.states_.size])
    assert_allclose(model.history_[-1], -best.fun * len(symbols), rtol=1e-12)
    assert model.n_iter_ == best.nit
    # The others have the root mean square of the first, for each role.
    for of_role in np.split(np.array(starts), np.cumsum([6, 8, 6]), axis=1):
        sizes = np.sqrt(np.square(of_role).mean(axis=1))
        assert 0.6 < sizes[1:].mean() / sizes[0] < 1.4
    # random_state gives the starts. Of those that fail none warns but the one that is returned.
    again, _ = climbing(n_init=6)
    status.update((result.fun, 2 * (result is not best)) for result in results)
    assert again.fit(symbols).history_ == model.history_


def test_only_none_shares_embeddings():
    """Whatever the type of arrays, and in a clone, which copies each of them."""
    for states in (STATES, np.float32(STATES), STATES.tolist()):
        model = KernelHMM(states, states, targets=states, feature_map="exact", max_iter=2)
        with pytest.warns(ConvergenceWarning):
            fitted, again = model.fit(X), clone(model).fit(X)
        assert fitted.history_ == again.history_
        assert_array_equal(fitted.emitters_, fitted.states_)  # None
        for other in (fitted.targets_, fitted.symbols_):
            assert not np.allclose(other, fitted.states_)
        assert_allclose(fitted.aic(X), -2 * fitted.score(X) + 2 * (2 * 18 + 4))


def test_a_fitted_model_keeps_its_normalization_until_the_next_fit():
    with pytest.warns(ConvergenceWarning):
        local, whole = (hmm("exact", normalization=name, max_iter=2).fit(X) for name in NORMS)
    before = local.score(X), whole.score(X)
    local.set_params(normalization="global")
    whole.set_params(normalization="local")
    assert (local.score(X), whole.score(X)) == before
    assert_allclose(local.predict_next(X).sum(), 1, rtol=1e-12)
    assert_allclose(local.transmat_.sum(axis=1), 1, rtol=1e-12)
    for call in (whole.predict_next, lambda: whole.filter_step(0)):
        with pytest.raises(ValueError, match="needs normalization='local'"):
            call()
    with pytest.raises(AttributeError, match="transmat_ needs normalization='local'"):
        whole.transmat_  # noqa: B018


# ------------------------------------------------------------------ generated cases


def made_hmm(name, scale, dtype, start, normalization, rng):
    """Return a model, and symbols."""
    n, n_symbols = rng.integers(1, 7, size=2)
    width = rng.integers(1, 5)
    E, T, M, S, first = made_tables(rng, scale, dtype, width, n, n, n, n_symbols, 1)
    shares = rng.dirichlet(np.full(n, 0.1))
    given = {"targets": T, "emitters": M}
    if start == "given":
        given["start_prob"] = shares / shares.sum()
    elif start == "embedding":
        given["start_embedding"] = first[0]
    model = KernelHMM(E, S, feature_map=WIDE[name], normalization=normalization, **given)
    X = rng.integers(n_symbols, size=rng.integers(1, 14))
    return model, np.ma.array(X, mask=rng.random(len(X)) < rng.choice([0.0, 0.3]))


norms = st.sampled_from(NORMS)
starts = st.sampled_from(sorted(STARTS))
TOLERANCE = {"float64": 1e-6, "float32": 1e-3}


@generated
@hypothesis.given(maps, scales, dtypes, starts, norms, seeds)
def test_models_of_any_scale_equal_sums_in_log_space(name, scale, dtype, start, norm, seed):
    rng = np.random.default_rng(seed)
    model, X = made_hmm(name, scale, dtype, start, norm, rng)
    rtol = TOLERANCE[dtype]
    room = (1 + len(X)) * 8 * EPS * (1 + Reference(model).size) + rtol
    truth = assert_agrees(model, X, room, rtol)
    assert model.predict_proba(X).dtype == dtype
    for distances in model.report().values():
        assert ((distances >= 0) & (distances <= 1 + room)).all()
    state = None
    for symbol, logs in zip(X, truth.forward(X) if norm == "local" else (), strict=False):
        try:
            state = model.filter_step(symbol, state)
        except FloatingPointError as error:
            assert "too unlikely" in str(error)
            break
        assert_same_logs(state.log_prob, logsumexp(logs), room, rtol)
        assert_allclose(state.posterior, np.exp(logs - logsumexp(logs)), rtol=0, atol=room)


@hypothesis.settings(generated, max_examples=20)
@hypothesis.given(maps, scales, dtypes, starts, norms, st.integers(1, 2), seeds)
def test_fits_from_any_scale_climb_or_say_why(name, scale, dtype, start, norm, n_init, seed):
    rng = np.random.default_rng(seed)
    model, X = made_hmm(name, scale, dtype, start, norm, rng)
    model.set_params(max_iter=3, n_init=n_init, random_state=0)
    before, names = model.score(X), vars(model).keys()
    if name in ("poisson", "geometric", "discrete"):
        with pytest.raises(NotImplementedError, match=UNKNOWN_GRADIENTS):
            model.fit(X)
        assert vars(model).keys() == names
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X)
    assert [warning.category for warning in caught] == [ConvergenceWarning] * (not model.converged_)
    after, truth = model.score(X), Reference(model)
    room = (1 + len(X)) * 8 * EPS * (1 + truth.size) + TOLERANCE[dtype]
    assert_same_logs(after, truth.log_prob(X, norm), room, TOLERANCE[dtype])
    assert after >= before - room - TOLERANCE[dtype] * abs(before) or n_init > 1


# ------------------------------------------------------------------ what is refused

SYMBOLS_REFUSED = [value for value in SEQUENCES if not isinstance(value, np.ma.MaskedArray)]
FILTER = hmm("exact").filter_step(0)
FILTERED = (
    "a", 5, FILTER.posterior, FilterState(FILTER.posterior[:2], 0.0), FilterState("a", 0.0),
    FilterState(-FILTER.posterior, 0.0), FilterState(FILTER.posterior * np.nan, 0.0),
    FilterState(0 * FILTER.posterior, 0.0), FilterState(FILTER.posterior, "a"),
    FilterState(FILTER.posterior, np.zeros(3)), FilterState([[1], [2, 3]], 0.0),
    FilterState(FILTER.posterior, 0.0, np.ones((1, 3))),
)  # fmt: skip


def refused():
    """Yield (call, parameter, values that it refuses)."""
    model, params = hmm("exact"), {"states": STATES, "symbols": SYMBOLS, "feature_map": "exact"}

    def made(name, method, *args):
        return name, lambda value: getattr(KernelHMM(**{**params, name: value}), method)(*args)

    for name, call in (
        ("n_samples", model.sample),
        ("n_states", model.report),
        ("n_states", lambda value: KernelHMM.from_random(value, 3)),
        ("n_symbols", lambda value: KernelHMM.from_random(3, value)),
        ("width", lambda value: KernelHMM.from_random(3, 3, value)),
        made("max_iter", "fit", X),
        made("n_init", "fit", X),
    ):
        has_default = name in ("max_iter", "n_init")
        yield call, name, [value for value in INTEGERS if value is not None or not has_default]
    for name, call in (
        *(("X", getattr(model, of)) for of in ("score", "predict_next", "decode", "bic")),
        ("X", clone(model).fit),
        ("symbol", model.filter_step),
    ):
        yield call, name, SYMBOLS_REFUSED
    yield model.filter_step, "symbol", [2.9, True, "a", None, np.inf, 1j, np.ma.array(2.9)]
    yield model.score, "symbols", [[0, 4], np.ma.array([4, 1], mask=[0, 1])]
    yield lambda value: model.score(X, value), "lengths", (*SEQUENCES, [2, 2], [0, 5])
    yield model.sample, "n_samples", [0]
    yield made("normalization", "score", X)[1], "normalization", ["none", None]
    yield lambda value: model.predict_next(state=value), "state", FILTERED
    yield lambda value: model.filter_step(0, value), "state", FILTERED
    for role in ("states", "symbols", "targets", "emitters", "start_embedding"):
        name, call = made(role, "score", X)
        yield call, name, TABLES_REFUSED
    yield made("targets", "score", X)[1], "targets", [TARGETS[:2]]
    yield made("start_prob", "score", X)[1], "start_prob", (*SHARES, [1, 1, 0, 0, 0])
    for call in (
        lambda value: model.sample(3, random_state=value),
        lambda value: model.report(random_state=value),
        lambda value: KernelHMM.from_random(3, 4, random_state=value),
        lambda value: KernelHMM(STATES, SYMBOLS, random_state=value).score(X),
    ):
        yield call, "random_state", SEEDS
    scales = ("a", None, -1, np.nan, np.inf, True, 1e131, 10**400)
    yield lambda value: KernelHMM.from_random(3, 4, scale=value), "scale", scales
    algorithms = ("mean", np.array(["posterior", "viterbi"]), ["viterbi"])
    for call in (model.predict, model.decode):
        yield lambda value, call=call: call(X, algorithm=value), "algorithm", algorithms


def test_what_makes_no_sense_is_refused_by_name():
    assert assert_refused(refused()) > 200
    model = KernelHMM(STATES, STATES)
    assert_refused_by_memory(
        (model.sample, "n_samples"),
        (lambda number: KernelHMM.from_random(number, 3), "n_states"),
        (lambda number: KernelHMM.from_random(3, number), "n_symbols"),
        (lambda number: KernelHMM.from_random(3, 3, number), "width"),
        (lambda number: clone(model).set_params(n_init=number).fit([0, 1]), "n_init"),
    )


def test_what_does_not_go_together_is_refused():
    model, whole = hmm(), hmm(normalization="global")
    both = model.filter_step([0, 1])
    twice = hmm(start_prob=PRIOR, start_embedding=START)
    for call, said in (
        (lambda: twice.score(X), "start_embedding or start_prob, not both"),
        (whole.predict_next, "predict_next needs norm"),
        (lambda: whole.predict_proba(X, filtered=True), "filtered=True needs"),
        (lambda: model.predict_next(X, both), "X or state, not both"),
        (lambda: model.filter_step(0, both), "state has 2 streams, symbol has 1"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_equally_probable_paths_are_chosen_alike_whatever_the_rounding():
    """Paths that visit the same transitions in another order are equal but for rounding."""
    rng = np.random.default_rng(2)
    E, L = (rng.normal(size=(12, 3)) / 2 for _ in range(2))
    S = rng.normal(size=(5, 3)) / 2
    symbols, paths = np.repeat(rng.integers(0, 5, 100), 4), []
    for _ in range(8):
        turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]  # changes nothing but rounding
        model = KernelHMM(E @ turn, S @ turn, targets=L @ turn, feature_map="exact")
        paths.append(model.predict(symbols, algorithm="viterbi"))
    assert len(np.unique(paths, axis=0)) == 1


def test_of_equally_probable_states_the_first_is_taken_whatever_the_rounding(monkeypatch):
    """Nothing is seen of states on a circle, so all are alike."""
    angles = 2 * np.pi * np.arange(9)[:, None] / 9
    model = KernelHMM(np.hstack([np.cos(angles), np.sin(angles)]), SYMBOLS[:, :2])
    unseen = np.ma.masked_all(40, int)
    assert not model.predict(unseen).any()
    monkeypatch.setattr(_kernels, "SYMBOLS", 0)
    assert not model.predict(unseen).any()
    monkeypatch.setattr(_recursions, "MOST", 0)
    assert not clone(model).predict(unseen).any()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: hmm().fit([[0, 1], [1, 2]]), r"in shape \(2, 2\): concatenate sequences and pass"),
        (lambda: hmm().score([[0, 1], [2]]), "X holds sequences apart.*lengths, as in fit"),
        (lambda: hmm().predict_next([0, 1], [50, 50]), "X or state, not both"),
        (lambda: KernelHMM(10, 5).score([0]), "got 10. Call fit first, or KernelHMM.from_random"),
    ],
)
def test_what_hmmlearn_takes_is_answered_with_what_to_do(call, said):
    with pytest.raises((ValueError, TypeError), match=said):
        call()
    assert hmm().n_states_ == 5


def test_codes_that_dwarf_the_symbols_seen_are_refused_unless_their_number_is_given():
    """More than 1,000 codes, and more than 100 for each symbol."""
    X = [0, 1000, 0, 1]
    with pytest.raises(ValueError, match="3 distinct.*largest is 1000.*OrdinalEncoder.*=1001 if"):
        KernelHMM(2).fit(X)
    with pytest.raises(ValueError, match="largest is 1000"):
        KernelHMM(2).fit([0.0, np.nan, 1000.0])
    with pytest.raises(ValueError, match="11 distinct.*largest is 1100"):
        KernelHMM(2).fit([*range(10), 1100])
    codes = np.unique(X, return_inverse=True)[1]
    few = KernelHMM(2, tol=1.0, random_state=0).fit(codes)
    assert few.emissionprob_.shape == (2, 3)
    some = KernelHMM(2, tol=1.0, random_state=0).fit([0, 999, 0, 1])
    assert some.emissionprob_.shape == (2, 1000)
    many = KernelHMM(2, tol=1.0, random_state=0).fit([*range(10), 1099])
    assert many.emissionprob_.shape == (2, 1100)
    every = KernelHMM(2, 1001, tol=1.0, random_state=0).fit(X)
    assert every.emissionprob_.shape == (2, 1001)


# ------------------------------------------------------------------ several sequences


def test_every_sequence_has_its_log_probability():
    model = KernelHMM.from_random(6, 4, scale=1.0, random_state=0)
    X, lengths = model.sample(12, random_state=0)[0], [3, 7, 2]
    parts = np.split(X, np.cumsum(lengths)[:-1])
    for normalization in ("local", "global"):
        model.set_params(normalization=normalization)
        logs = model.log_prob(X, lengths)
        assert_allclose(logs, [model.score(part) for part in parts])
        assert_allclose(logs.sum(), model.score(X, lengths))


@pytest.mark.parametrize("normalization", ["local", "global"])
def test_sequences_drawn_together_have_the_lengths_and_the_law_of_the_model(normalization):
    model = KernelHMM.from_random(
        3, 2, width=2, scale=1.5, normalization=normalization, random_state=0
    )
    X, states = model.sample(lengths=[1, 2] * 2000, random_state=0)
    X, states = X.reshape(-1, 3), states.reshape(-1, 3)
    for columns in ([0], [1, 2]):
        every = np.array(list(np.ndindex((2,) * len(columns))))
        shares = np.exp(model.log_prob(every.ravel(), [len(columns)] * len(every)))
        assert_drawn_from(X[:, columns], shares.reshape((2,) * len(columns)))
    of_one = model.sample(7, random_state=3)
    assert_array_equal(model.sample(lengths=[7], random_state=3)[0], of_one[0])
    with pytest.raises(ValueError, match="lengths must be integers >= 1"):
        model.sample(lengths=[2, 0])
