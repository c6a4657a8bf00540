"""Hidden Markov models against enumeration, dense computations and hmmlearn."""

import inspect
import itertools
import pickle
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
    assert_same_logs,
    dtypes,
    every_map,
    every_smooth_map,
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
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skrf import OptimalPositiveRF, PoissonRF
from skrf.graphical import FilterState, KernelHMM, _learning, _maximum_likelihood, _recursions

STATES, TARGETS, EMITTERS = np.random.default_rng(3).normal(size=(3, 5, 3))
SYMBOLS = np.random.default_rng(4).normal(size=(4, 3))
START = np.random.default_rng(5).normal(size=3)
STARTS = {"uniform": {}, "given": {"start_prob": PRIOR}, "embedding": {"start_embedding": START}}
every_start = pytest.mark.parametrize("start", STARTS)
both_norms = pytest.mark.parametrize("normalization", ["local", "global"])
X = np.array([0, 3, 3, 1, 2])
MISSING = np.ma.array(X, mask=[0, 1, 0, 0, 1])


def hmm(name="optimal", start="uniform", **params):
    given = {"targets": TARGETS, "emitters": EMITTERS, "feature_map": MAPS[name], **STARTS[start]}
    return KernelHMM(STATES, SYMBOLS, **given | params)


def log_table(channel):
    """Return the log potentials of all pairs, without their common scale."""
    if channel.T is None:
        return channel.log_R
    return logsumexp(channel.log_R[:, :, None] + channel.log_T[None], axis=1)


def dense_hmm(model):
    """Return start, transition and emission tables from the approximate potentials."""
    found = model._model
    tables = []
    for channel in (found.transition, found.emission):
        tables.append(np.exp(log_table(channel) + channel.log_scale))
    start = found.start.copy()
    if found.start_channel is not None:
        start = start * np.exp(found.start_channel.log_scale)
    return start, *tables


def fills(symbols):
    """Return all sequences that the missing symbols may stand for."""
    choices = zip(np.ma.getmaskarray(symbols), np.ma.getdata(symbols), strict=True)
    return itertools.product(*(range(4) if gone else [symbol] for gone, symbol in choices))


def log_weights(model, symbols):
    """Return the log weights of all paths of states together with the symbols."""
    if isinstance(symbols, np.ma.MaskedArray):
        return logsumexp([log_weights(model, fill) for fill in fills(symbols)], axis=0)
    start, move, emit = (np.log(table) for table in dense_hmm(model))
    n, length = len(start), len(symbols)
    logs = np.zeros((n,) * length)
    for t, symbol in enumerate(symbols):
        own = (start if t == 0 else 0) + emit[:, symbol]
        logs = logs + own.reshape([-1 if i == t else 1 for i in range(length)])
        if t:
            logs = logs + move.reshape([n if i in (t - 1, t) else 1 for i in range(length)])
    return logs


def log_weights_of(model, symbols):
    """Return what `log_weights` does, where the tables' exponentials leave the range of floats."""
    own, logs = model._model, 0.0
    move, emit = (log_table(channel) for channel in (own.transition, own.emission))
    n, length = len(emit), len(symbols)
    for t, symbol in enumerate(symbols):
        values = (own.log_start if t == 0 else 0) + emit[:, symbol]
        logs = logs + values.reshape([-1 if i == t else 1 for i in range(length)])
        if t:
            logs = logs + move.reshape([n if i in (t - 1, t) else 1 for i in range(length)])
    return logs


@pytest.mark.parametrize("X", [X, MISSING], ids=["whole", "missing"])
@both_norms
@every_start
@every_map
def test_hmm_equals_enumeration(name, start, normalization, X):
    model = hmm(name, start, normalization=normalization)
    if name == "exact":
        assert model._model.transition.T is None is model._model.emission.T  # no identity
        _, move, emit = dense_hmm(model)
        for table, left, right in ((move, STATES, TARGETS), (emit, EMITTERS, SYMBOLS)):
            expected = np.exp(left @ right.T)
            if normalization == "local":
                expected /= expected.sum(axis=1, keepdims=True)
            assert_allclose(table, expected, rtol=1e-10)
    logs = log_weights(model, X)
    shares, total = joint(logs)
    if normalization == "global":
        every = logsumexp(log_weights(model, np.ma.masked_all(5, dtype=int)))
        total, logs = total - every, logs - every
    assert_allclose(model.score(X), total, rtol=1e-10)
    log_prob, found = model.score_samples(X[:, None])
    assert_allclose(log_prob, total, rtol=1e-10)
    for t in range(5):
        assert_allclose(found[t], marginal(shares, t), rtol=1e-9)
    log_prob, states = model.decode(X, algorithm="posterior")
    assert_array_equal(states, found.argmax(axis=1))
    assert_array_equal(model.predict(X), states)
    assert_allclose(log_prob, logs[tuple(states)], rtol=1e-10)
    best = np.unravel_index(logs.argmax(), logs.shape)
    log_prob, states = model.decode(X[:, None])
    assert_array_equal(states, best)
    assert_allclose(log_prob, logs.max(), rtol=1e-10)
    assert_array_equal(model.predict(X, algorithm="viterbi"), best)


def test_local_models_are_normalised():
    for name in MAPS:
        start, move, emit = dense_hmm(hmm(name, "embedding"))
        assert_allclose(start.sum(), 1, rtol=1e-12)
        assert_allclose(move.sum(axis=1), 1, rtol=1e-12)
        assert_allclose(emit.sum(axis=1), 1, rtol=1e-12)


@both_norms
@every_map
def test_hmm_samples_come_from_the_model(name, normalization):
    model = hmm(name, "given", normalization=normalization)
    rng = np.random.RandomState(0)
    draws = []
    for _ in range(3000):
        symbols, states = model.sample(2, random_state=rng)
        draws.append([*states, *symbols[:, 0]])
    shares = np.empty((5, 5, 4, 4))
    for x in itertools.product(range(4), repeat=2):
        shares[:, :, x[0], x[1]] = np.exp(log_weights(model, x))
    assert_drawn_from(np.array(draws), shares / shares.sum())


def test_global_paths_of_symbols_that_tell_nothing_are_drawn_from_the_model():
    """One symbol, that all states emit alike: the normaliser is still one of whole sequences."""
    model = KernelHMM(STATES, np.zeros((1, 3)), feature_map="exact", normalization="global")
    rng = np.random.RandomState(0)
    draws = np.array([model.sample(2, random_state=rng)[1] for _ in range(3000)])
    shares = np.exp(STATES @ STATES.T)
    assert_drawn_from(draws, shares / shares.sum())


def test_long_local_draws_hold_nothing_of_the_length_by_states():
    import tracemalloc

    model = KernelHMM.from_random(2000, 3, 2, feature_map=OptimalPositiveRF(4), random_state=0)
    model.sample(2, random_state=0)
    tracemalloc.start()
    model.sample(2000, random_state=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6  # float64 of the length by states take 32 MB


def test_several_sequences_are_scored_side_by_side():
    for normalization in ("local", "global"):
        model = hmm("adaptive", "embedding", normalization=normalization)
        parts = [X, X[:2], X[::-1], X[:1]]
        expected = sum(model.score(part) for part in parts)
        lengths = [len(part) for part in parts]
        assert_allclose(model.score(np.concatenate(parts), lengths), expected, rtol=1e-12)
        found = model.predict_proba(np.concatenate(parts), lengths)
        assert_allclose(found, np.vstack([model.predict_proba(part) for part in parts]))
        for algorithm in ("viterbi", "posterior"):
            log_prob, states = model.decode(np.concatenate(parts), lengths, algorithm)
            logs, expected = zip(
                *(model.decode(part, None, algorithm) for part in parts), strict=True
            )
            assert_allclose(log_prob, sum(logs), rtol=1e-12)
            assert_array_equal(states, np.concatenate(expected))


def test_the_online_filter_equals_the_score():
    model = hmm("optimal", "given")
    state = None
    for t, symbol in enumerate(X):
        state = model.filter_step(symbol, state)
        assert_allclose(state.log_prob, model.score(X[: t + 1]), rtol=1e-10)
        assert_allclose(state.posterior, model.predict_proba(X[: t + 1])[-1], rtol=1e-10)
    both = None
    for symbols in zip(X, X[::-1], strict=True):
        both = model.filter_step(np.array(symbols), both)
    assert_allclose(both.posterior[0], state.posterior, rtol=1e-12)
    assert_allclose(both.log_prob[1], model.score(X[::-1]), rtol=1e-10)
    with pytest.raises(ValueError, match="state has 2 streams, symbol has 1"):
        model.filter_step(0, both)
    with pytest.raises(ValueError, match="needs normalization='local'"):
        hmm(normalization="global").filter_step(0)


@every_start
@every_map
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
        found = model.predict_next(None if t == 0 else before)
        assert_allclose(found, np.exp(logs), rtol=1e-9)
        assert_allclose(model.predict_next(state=state), found, rtol=1e-9)
        if t == 5:
            break
        state = model.filter_step(MISSING[t], state)  # numpy.ma.masked where it is missing
        assert_allclose(state.log_prob, model.score(MISSING[: t + 1]), rtol=1e-9, atol=1e-12)
        assert_allclose(state.posterior, model.predict_proba(MISSING[: t + 1])[-1], rtol=1e-9)
        assert_allclose(filtered[t], state.posterior, rtol=1e-9)
        both = model.filter_step(np.ma.array([X[t], X[t]], mask=[0, MISSING.mask[t]]), both)
    assert_allclose(both.log_prob, [model.score(X), model.score(MISSING)], rtol=1e-9)
    assert_allclose(model.predict_next(state=both), [model.predict_next(X), found], rtol=1e-9)


@both_norms
@pytest.mark.parametrize("scale", [1.0, 25.0])
def test_long_sequences_and_extreme_embeddings_do_not_underflow(scale, normalization):
    model = KernelHMM(
        scale * STATES,
        scale * SYMBOLS,
        feature_map=MAPS["optimal"],
        normalization=normalization,
    )
    symbols, states = model.sample(2000, random_state=0)
    random = np.random.default_rng(0).integers(4, size=2000)
    for sequence in (symbols[:, 0], random):
        found = model.predict_proba(sequence)
        assert np.isfinite(model.score(sequence))
        assert_allclose(found.sum(axis=1), 1, rtol=1e-9)
    if scale == 1.0 and normalization == "local":
        assert np.isfinite(model.score(np.tile(random, 50)))  # 100,000 symbols


@both_norms
def test_log_space_is_the_same(normalization):
    model = hmm("adaptive", "embedding", normalization=normalization)
    sequence = np.random.default_rng(1).integers(4, size=40)
    own = model._model
    posteriors, log_norms = zip(*own._log_filtered(sequence), strict=True)
    _, filtered, norms = zip(*own.past(sequence), strict=True)
    assert_allclose(np.exp(posteriors), filtered, rtol=1e-9)
    assert_allclose(log_norms, norms, rtol=1e-9)
    slow, fast = own.field(sequence), dict(own.posteriors(sequence))
    assert_allclose(slow.log_partition, sum(norms), rtol=1e-12)
    for t, posterior in enumerate(slow.marginals()):
        assert_allclose(posterior, fast[t], rtol=1e-9)


def test_unlikely_symbols_go_through_log_space():
    """A state that the filter holds at e^-900 is the only one that can emit what comes next."""
    model = KernelHMM(
        1000 * np.array([[1.0, 0.0], [1.0, 0.0]]),
        3000 * np.array([[1.0, 0.0], [-1.0, 0.0]]),
        targets=np.array([[1.0, 0.0], [0.1, 0.0]]),
        emitters=np.array([[1.0, 0.0], [-1.0, 0.0]]),
        start_prob=[1.0, 0.0],
        feature_map="exact",
    )
    # The second symbol costs 900 through the second state, 6000 through the first.
    assert_allclose(model.score([0, 1]), -900, rtol=1e-12)
    assert_allclose(model.predict_proba([0, 1]), [[1, 0], [0, 1]], atol=1e-12)
    with pytest.raises(FloatingPointError, match="too unlikely"):
        model.filter_step(1, model.filter_step(0))


def emitters_that_differ(first, later, dtype=np.float64):
    """Return a model of two states that stay: the second emits symbol 0 at e^first, the first
    emits symbol 1 at e^later."""
    eye = np.eye(2, dtype=dtype)
    emitters = np.array([[0, later], [first, 0]], dtype=dtype)
    return KernelHMM(2000 * eye, eye, targets=eye, emitters=emitters, feature_map="exact")


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
    assert known.dtype == dtype
    ends = [model.predict_proba(sequence[:t])[-1] for t in (1, 2, 3, 4)]
    assert_allclose(known, ends, atol=1e-6)
    assert_allclose(model.predict_next(sequence), known[-1] @ model.emissionprob_, atol=1e-6)
    state, steps = None, 0
    with pytest.raises(FloatingPointError, match="too unlikely"):
        for symbol in sequence:
            state = model.filter_step(symbol, state)
            steps += 1
            assert_allclose(state.log_prob, model.score(sequence[:steps]), rtol=1e-6)
    assert steps >= 2


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_global_normalisers_of_large_embeddings_go_through_log_space(dtype):
    rng = np.random.default_rng(1)
    E, S, T = ((rng.standard_normal((n, 1)) * 50).astype(dtype) for n in (3, 2, 3))
    model = KernelHMM(E, S, targets=T, feature_map="exact", normalization="global")
    every = list(itertools.product(range(2), repeat=3))
    logs = np.array([logsumexp(log_weights_of(model, x)) for x in every])
    expected = logs - logsumexp(logs)
    found = [model.score(x) for x in every]
    assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert np.isfinite(model.report()["transition"]).all()


def test_emissions_beyond_the_range_of_float32_are_0():
    """Without a warning: their logarithms are e38 and more below the others'."""
    states, symbols = np.float32([[1e20], [1.0]]), np.float32([[1e20], [-1e20]])
    model = KernelHMM(states, symbols, feature_map="exact")
    assert_allclose(model.score([0, 0, 0]), 0, atol=1e-6)
    assert_allclose(model.predict_proba([1, 0]), [[0, 1], [1, 0]], atol=1e-6)


def test_float32_starts_keep_their_range():
    """A start of 1e-60 is 0 in float32; only that state emits what is seen."""
    model = emitters_that_differ(-200, -200, np.float32).set_params(start_prob=[1e-60, 1.0])
    assert_allclose(model.score([0]), np.log(1e-60), rtol=1e-6)


def test_segments_of_the_posterior_change_nothing():
    model = hmm("optimal", "given")
    sequence = np.random.default_rng(1).integers(4, size=97)
    start, move, emit = dense_hmm(model)
    forward = [start * emit[:, sequence[0]]]
    for symbol in sequence[1:]:
        step = forward[-1] @ move * emit[:, symbol]
        forward.append(step / step.sum())
    back = np.ones(5)
    found = model.predict_proba(sequence)
    for t in range(96, -1, -1):
        expected = forward[t] * back / (forward[t] @ back)
        assert_allclose(found[t], expected, rtol=1e-9)
        back = move @ (emit[:, sequence[t]] * back)
        back /= back.sum()


def test_viterbi_goes_in_blocks_of_rows(monkeypatch):
    model = hmm("adaptive", "given")
    sequence = np.random.default_rng(2).integers(4, size=6)
    expected = model.predict(sequence, algorithm="viterbi")
    logs = log_weights(model, sequence)
    assert_array_equal(expected, np.unravel_index(logs.argmax(), logs.shape))
    monkeypatch.setattr("skrf.graphical._recursions._BLOCK_ENTRIES", 10)  # two states per block
    assert_array_equal(model.predict(sequence, algorithm="viterbi"), expected)
    exact = hmm("exact", "given")
    logs = log_weights(exact, sequence)
    best = np.unravel_index(logs.argmax(), logs.shape)
    assert_array_equal(exact.decode(sequence)[1], best)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [0.5, 4.0, 300.0])
def test_viterbi_of_products_is_that_of_the_table(monkeypatch, scale, dtype):
    """Where products underflow, the paths into those states are found in log space."""
    rng = np.random.default_rng(0)
    tables = {name: scale * rng.normal(size=(12, 3)) for name in ("states", "targets", "emitters")}
    tables["symbols"] = scale * rng.normal(size=(4, 3))
    model = KernelHMM(
        **{name: table.astype(dtype) for name, table in tables.items()}, feature_map=MAPS["optimal"]
    )
    sequence = rng.integers(4, size=50)
    expected = model.decode(sequence)
    monkeypatch.setattr("skrf.graphical._recursions._BLOCK_ENTRIES", 36)  # three states per block
    log_prob, states = model.decode(sequence)
    rtol = 1e-12 if dtype == np.float64 else 1e-6
    assert_allclose(log_prob, expected[0], rtol=rtol)
    # One step, into states that no likely path enters too.
    own, best = model._model, 1000 * rng.normal(size=12)
    logs, choice = own._entered(np.exp(own.transition.log_T.T), best)
    every = log_table(own.transition) + best[:, None]
    assert_array_equal(choice, every.argmax(axis=0))
    assert_allclose(logs, every.max(axis=0), rtol=1e-12)
    assert_allclose(log_prob, Reference(model).log_weight(sequence, states), rtol=rtol)


def test_the_report_is_the_distance_to_the_exact_kernel():
    many = np.random.default_rng(6).normal(size=(300, 3)) / 2
    model = hmm("optimal")
    _, move, emit = dense_hmm(model)
    _, true_move, true_emit = dense_hmm(hmm("exact"))
    found = model.report()
    assert_allclose(found["transition"], np.abs(move - true_move).sum(axis=1) / 2, rtol=1e-9)
    assert_allclose(found["emission"], np.abs(emit - true_emit).sum(axis=1) / 2, rtol=1e-9)
    exact = KernelHMM(many, SYMBOLS, feature_map="exact").report(50, random_state=0)
    assert exact["transition"].shape == (50,)
    assert max(part.max() for part in exact.values()) < 1e-12
    distances = [
        KernelHMM(many, SYMBOLS, feature_map=OptimalPositiveRF(m, random_state=0)).report()
        for m in (16, 1024)
    ]
    for name in ("transition", "emission"):
        assert 0 < distances[1][name].mean() < 0.4 * distances[0][name].mean() < 0.4


@both_norms
@every_start
@pytest.mark.parametrize("name", ["exact", "optimal", "adaptive"])
def test_gradients_are_those_of_differences(name, start, normalization):
    model = hmm(name, start, normalization=normalization)
    parts = [X, MISSING[::-1], X[:1], X[::-1]]
    sequences = [np.ma.filled(part, _recursions.ANY) for part in parts]
    first = model._model
    log_prob, gradients = _learning.gradients(first, sequences)
    assert_allclose(log_prob, sum(model.score(part) for part in parts), rtol=1e-10)
    rng, step = np.random.default_rng(0), 1e-6
    for role, value in first.embeddings.items():
        if value is None:
            continue
        direction = rng.normal(size=value.shape)
        values = []
        for sign in (1, -1):
            moved = {**first.embeddings, role: value + sign * step * direction}
            other = type(first)(moved, first.maps, first.given_start, first.is_local)
            values.append(other.log_prob(sequences))
        expected = (values[0] - values[1]) / (2 * step)
        assert_allclose(np.sum(gradients[role] * direction), expected, rtol=1e-6, atol=1e-8)


@both_norms
@every_smooth_map
def test_the_objective_of_fit_is_one_function(name, normalization, monkeypatch):
    """The maps are fitted for the first embeddings and stay, also when a user holds one."""
    own = {"feature_map": SMOOTH[name], "normalization": normalization, "max_iter": 4}
    model = hmm(**own, start="embedding")
    parts = [MISSING, X[:2], X[::-1]]
    symbols, lengths = np.ma.concatenate(parts), [5, 2, 5]
    begin, climb, maps_before = (
        model.score(symbols, lengths),
        _learning.maximize,
        model.feature_map_,
    )
    ends = []

    def checked(objective, arrays, *args, **limits):
        if not ends:
            assert_allclose(objective(arrays)[0], begin, rtol=1e-12)
        end, *told = climb(objective, arrays, *args, **limits)
        # Climbs with clusters end at an edge between them, where the objective has a step.
        place = arrays if name == "clustered" else end
        vector = np.concatenate([part.ravel() for part in place])
        found = np.concatenate([part.ravel() for part in objective(place)[1]])
        assert_gradient(
            found, lambda at: objective(_maximum_likelihood.unpacked(at, place))[0], vector
        )
        ends.append(objective(end)[0])
        return end, *told

    monkeypatch.setattr(_learning, "maximize", checked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_params(n_init=2).fit(symbols, lengths)
    assert all(model.feature_map_[kind] is own for kind, own in maps_before.items())
    assert_allclose([model.score(symbols, lengths), max(ends)], model.history_[-1], rtol=1e-12)

    # With a map of the user's own, the model at other embeddings is the same function of them.
    held = frozen(SMOOTH[name], STATES, EMITTERS, keys=np.vstack([TARGETS, SYMBOLS]))
    model = hmm(**own | {"feature_map": held}, start="embedding")
    given = model._model.embeddings
    vector = np.concatenate([value.ravel() for value in given.values()])

    def score(vector):
        moved = _maximum_likelihood.unpacked(vector, given.values())
        made = KernelHMM(**dict(zip(given, moved, strict=True)), feature_map=held)
        return made.set_params(normalization=normalization).score(symbols, lengths)

    sequences = [np.ma.filled(part, _recursions.ANY) for part in parts]
    found = _learning.gradients(model._model, sequences)[1]
    assert_gradient(np.concatenate([found[role].ravel() for role in given]), score, vector)
    assert all(own is held for own in model.feature_map_.values())
    for again in (clone(model), pickle.loads(pickle.dumps(model))):
        assert again.score(symbols, lengths) == model.score(symbols, lengths)


def test_the_report_knows_the_sigma_of_a_fitted_map():
    held = frozen(OptimalPositiveRF(64, random_state=0), STATES, sigma=0.5)
    halves = {"targets": TARGETS / 2, "emitters": EMITTERS / 2}
    unit = frozen(OptimalPositiveRF(64, random_state=0), STATES / 2)
    small = KernelHMM(STATES / 2, SYMBOLS / 2, **halves, feature_map=unit)
    found = hmm("exact").set_params(feature_map=held).report()
    for name, expected in small.report().items():
        assert_allclose(found[name], expected, rtol=1e-9)


@both_norms
@pytest.mark.parametrize("start", ["given", "embedding"])
@pytest.mark.parametrize("name", ["exact", "adaptive"])
def test_gradients_in_log_space_are_the_same(name, start, normalization):
    own, sequence = hmm(name, start, normalization=normalization)._model, np.append(X, -1)
    fast = _learning._counts(own, [sequence], np.ones(1))
    slow = _learning._log_counts(own, sequence)
    assert_allclose(slow[0], fast[0], rtol=1e-12)
    for part, expected in zip(slow[1], fast[1], strict=True):
        assert_allclose(part, expected, rtol=1e-9, atol=1e-300)


@both_norms
@pytest.mark.parametrize("scale", [3.0, 30.0, 300.0])
@pytest.mark.parametrize("name", ["exact", "optimal"])
def test_gradients_of_large_embeddings_are_finite(name, scale, normalization):
    """No NumPy warning, and the gradient is that of differences, however unlikely the symbols."""
    rng = np.random.default_rng(0)
    E, T, M, S = (scale * rng.normal(size=(n, 2)) for n in (3, 3, 3, 4))
    own = {"targets": T, "emitters": M, "start_embedding": E[0] / 2}
    model = KernelHMM(E, S, **own, feature_map=MAPS[name], normalization=normalization)
    first, sequences = model._model, [rng.integers(4, size=n) for n in (9, 4, 4)]
    log_prob, found = _learning.gradients(first, sequences)
    room = 1e-12 * scale**2  # of large normalisers that cancel
    assert_allclose(log_prob, sum(map(model.score, sequences)), rtol=1e-10, atol=room)
    step = 1e-6 / scale
    for role, value in first.embeddings.items():
        direction = rng.normal(size=value.shape)
        values = []
        for sign in (1, -1):
            moved = {**first.embeddings, role: value + sign * step * direction}
            other = type(first)(moved, first.maps, first.given_start, first.is_local)
            values.append(sum(norm for part in sequences for _, norm in other._log_filtered(part)))
            if normalization == "global":
                every = [np.full(len(part), _recursions.ANY) for part in sequences]
                values[-1] -= sum(norm for part in every for _, norm in other._log_filtered(part))
        expected = (values[0] - values[1]) / (2 * step)
        size = np.abs(found[role]).max() + scale
        # What the differences lose to rounding: global normalisers are of the size of scale**2.
        lost = 100 * EPS * scale**2 / step * (normalization == "global")
        assert_allclose(np.sum(found[role] * direction), expected, atol=1e-4 * size + lost)


def test_gradients_add_up_over_batches(monkeypatch):
    """Neither the number of sequences side by side nor that of samples in a product matters."""
    own = hmm("optimal", "embedding")._model
    rng = np.random.default_rng(2)
    sequences = [rng.integers(4, size=n) for n in (7, 1, 30, 2, 30, 12)]
    expected_log_prob, expected = _learning.gradients(own, sequences)
    for entries, rows in ((1, 1), (400, 5), (10**6, 1)):
        monkeypatch.setattr(_learning, "_GRADIENT_ENTRIES", entries)
        monkeypatch.setattr(_learning, "_GRADIENT_ROWS", rows)
        log_prob, gradients = _learning.gradients(own, sequences)
        assert_allclose(log_prob, expected_log_prob, rtol=1e-12)
        for role, value in expected.items():
            assert_allclose(gradients[role], value, rtol=1e-9, atol=1e-12)


@both_norms
def test_many_symbols_are_looked_up_without_a_table(monkeypatch, normalization):
    wanted = hmm("adaptive", "given", normalization=normalization)
    wanted.score(X)
    monkeypatch.setattr(_recursions, "_EMISSION_ENTRIES", 0)
    model = hmm("adaptive", "given", normalization=normalization)
    assert model._model._log_emissions is None is not wanted._model._log_emissions
    for symbols in (X, MISSING, np.ma.append(X, MISSING)):
        assert_allclose(model.score(symbols), wanted.score(symbols), rtol=1e-12, atol=1e-12)
        assert_allclose(model.predict_proba(symbols), wanted.predict_proba(symbols), rtol=1e-12)
    if normalization == "local":
        found, expected = (own.filter_step([1, 3, 1]).log_prob for own in (model, wanted))
        assert_allclose(found, expected)
    # Emissions below the smallest number are found in log space.
    far = 30 * np.array([[1.0, 0.0], [0.0, 1.0]])
    for entries in (0, 100):
        monkeypatch.setattr(_recursions, "_EMISSION_ENTRIES", entries)
        steep = KernelHMM(far, far, feature_map="exact")._model
        expected = [[0, -900], [-900, 0]]
        assert_allclose(steep.log_emissions(np.array([0, 1])), expected, atol=1e-9)


@pytest.mark.parametrize("start", ["uniform", "embedding"])
def test_float32_embeddings_give_float32_probabilities(start):
    embeddings = {"targets": TARGETS, "emitters": EMITTERS}
    if start == "embedding":
        embeddings["start_embedding"] = START
    narrow = {name: value.astype(np.float32) for name, value in embeddings.items()}
    own = MAPS["optimal"]
    wide = KernelHMM(STATES, SYMBOLS, feature_map=own, **embeddings)
    model = KernelHMM(
        STATES.astype(np.float32), SYMBOLS.astype(np.float32), feature_map=own, **narrow
    )
    sequence = np.random.default_rng(1).integers(4, size=500)
    found = model.predict_proba(sequence)
    assert found.dtype == model._model.transition.R.dtype == np.float32
    assert_allclose(found, wide.predict_proba(sequence), rtol=1e-3, atol=1e-6)
    assert_allclose(model.score(sequence), wide.score(sequence), rtol=1e-5)
    state = model.filter_step(2, model.filter_step(1))
    assert state.posterior.dtype == np.float32
    assert isinstance(state.log_prob, float)
    # A posterior of the other type is taken too.
    other = model.filter_step(2, wide.filter_step(1))
    assert other.posterior.dtype == np.float32
    assert_allclose(other.posterior, state.posterior, rtol=1e-5)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        fitted = clone(model).set_params(max_iter=2).fit(sequence)
    assert fitted.states_.dtype == np.float64
    assert fitted.predict_proba(X).dtype == np.float32
    # One array of float64 makes all of them float64.
    mixed = KernelHMM(STATES, SYMBOLS.astype(np.float32), feature_map=own)
    assert mixed.predict_proba(X).dtype == np.float64


def test_float32_goes_through_log_space_earlier():
    """The second state, held at e^-65, is the only one that can emit what comes next."""
    embeddings = {
        "states": 100 * np.array([[1.0, 0.0], [1.0, 0.0]]),
        "symbols": 300 * np.array([[1.0, 0.0], [-1.0, 0.0]]),
        "targets": np.array([[1.0, 0.0], [0.35, 0.0]]),
        "emitters": np.array([[1.0, 0.0], [-1.0, 0.0]]),
    }
    for dtype in (np.float64, np.float32):
        given = {name: value.astype(dtype) for name, value in embeddings.items()}
        model = KernelHMM(**given, start_prob=[1.0, 0.0], feature_map="exact")
        assert_allclose(model.score([0, 1]), -65, rtol=1e-6)
        assert_allclose(model.predict_proba([0, 1]), [[1, 0], [0, 1]], atol=1e-6)
        state = model.filter_step(0)
        if dtype == np.float64:
            assert_allclose(model.filter_step(1, state).log_prob, -65, rtol=1e-6)
        else:
            with pytest.raises(FloatingPointError, match="less than 1e-26"):
                model.filter_step(1, state)


def test_fit_climbs_and_keeps_a_model():
    truth = KernelHMM.from_random(4, 6, 3, scale=2.0, feature_map="exact", random_state=1)
    symbols, _ = truth.sample(400, random_state=0)
    lengths = [150, 250]
    model = KernelHMM.from_random(
        8, 6, 3, feature_map=OptimalPositiveRF(32), max_iter=40, random_state=0
    )
    before = model.score(symbols, lengths)
    with pytest.warns(ConvergenceWarning, match="max_iter=40"):
        fitted = clone(model).fit(symbols, lengths)
    assert fitted.score(symbols, lengths) > before + 20
    assert_allclose(fitted.history_[-1], fitted.score(symbols, lengths), rtol=1e-8)
    assert (np.diff(fitted.history_) > -1e-6).all()
    assert fitted.n_iter_ == len(fitted.history_) and fitted.n_iter_ <= 40
    _, move, emit = dense_hmm(fitted)
    assert_allclose(move.sum(axis=1), 1, rtol=1e-10)
    assert_allclose(emit.sum(axis=1), 1, rtol=1e-10)
    with pytest.warns(ConvergenceWarning):
        again = clone(model).fit(symbols, lengths=lengths)
    assert_array_equal(again.states_, fitted.states_)
    # Roles that share embeddings keep sharing them.
    with pytest.warns(ConvergenceWarning):
        tied = KernelHMM(STATES, SYMBOLS, feature_map="exact", max_iter=3).fit(X)
    assert tied.states_ is tied.targets_ or np.array_equal(tied.states_, tied.targets_)


@both_norms
@pytest.mark.parametrize("name", ["exact", "optimal"])
def test_fit_knows_of_normalisers_and_missing_symbols(name, normalization, capsys):
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
    told = f"[fit] iteration 15: log likelihood {model.history_[-1]:.6f}, "
    assert lines[-1].startswith(told) and lines[-1].endswith(" s")
    assert len(lines) == 15
    # What is filled in makes no difference.
    again = hmm(name, "embedding", normalization=normalization, max_iter=15)
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


@pytest.mark.parametrize("tol", [1.0, 3e307, 10**400], ids=["1", "3e307", "10**400"])
def test_no_step_gains_more_than_the_whole(tol):
    model, symbols = climbing(tol=tol)
    assert model.fit(symbols).converged_ and model.n_iter_ == 1


def test_convergence_is_what_the_optimiser_says(monkeypatch):
    model, symbols = climbing()
    assert model.fit(symbols).converged_ and model.n_iter_ < 100  # without a warning
    gradients = _learning.gradients
    calls = []

    def downhill(own, sequences):
        log_prob, found = gradients(own, sequences)
        return log_prob, {role: -value for role, value in found.items()}

    def lost(own, sequences):
        log_prob, found = gradients(own, sequences)
        calls.append(log_prob)
        if len(calls) > 4:
            found["states"] = found["states"] * np.nan
        return log_prob, found

    for replaced, params, said in (
        (gradients, {"max_iter": 2}, "fit reached max_iter=2 "),
        (downhill, {}, "fit stopped after 0 iterations at a failed line search"),
        (lost, {}, r"fit stopped after \d iterations at a gradient that is not finite"),
    ):
        monkeypatch.setattr(_learning, "gradients", replaced)
        model, symbols = climbing(**params)
        with pytest.warns(ConvergenceWarning, match=said) as caught:
            model.fit(symbols)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert model.converged_ is False
        monkeypatch.setattr(_learning, "gradients", gradients)
        assert np.isfinite(model.score(symbols))
        if model.history_:
            assert_allclose(model.score(symbols), model.history_[-1])
    # A warning that is an error leaves everything as it was.
    model, symbols = climbing(max_iter=2)
    before = dict(vars(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConvergenceWarning):
            model.fit(symbols)
    assert vars(model) == before


def test_the_best_of_several_starts_is_kept(monkeypatch):
    one, symbols = climbing()
    one.fit(symbols)
    ends, climb = [], _maximum_likelihood.scipy.optimize.minimize

    def minimize(objective, vector, **options):
        result = climb(objective, vector, **options)
        ends.append((vector, result))
        return result

    monkeypatch.setattr(_maximum_likelihood.scipy.optimize, "minimize", minimize)
    model, _ = climbing(n_init=6)
    model.fit(symbols)
    starts, results = zip(*ends, strict=True)
    assert_array_equal(results[0].x[: one.states_.size], one.states_.ravel())
    best = min(results, key=lambda result: result.fun)
    assert best.fun < results[0].fun and len({result.fun for result in results}) > 2
    assert_array_equal(model.states_.ravel(), best.x[: model.states_.size])
    assert_allclose(model.history_[-1], -best.fun * len(symbols), rtol=1e-12)
    assert model.n_iter_ == best.nit
    # The others have the root mean square of the first, for each role.
    parts = np.split(np.array(starts), np.cumsum([6, 8, 6]), axis=1)
    for part in parts:
        sizes = np.sqrt(np.square(part).mean(axis=1))
        assert 0.6 < sizes[1:].mean() / sizes[0] < 1.4
    # random_state gives the starts.
    again, _ = climbing(n_init=6)
    assert again.fit(symbols).history_ == model.history_


def test_only_the_start_that_is_returned_warns(monkeypatch):
    climb, results = _maximum_likelihood.scipy.optimize.minimize, []
    model, symbols = climbing(n_init=4)

    def minimize(objective, vector, **options):
        result = climb(objective, vector, **options)
        result.status = statuses[len(results)]
        results.append(result.fun)
        return result

    monkeypatch.setattr(_maximum_likelihood.scipy.optimize, "minimize", minimize)
    statuses = [0] * 4
    best = np.argmin(model.fit(symbols) and results)
    for status in (0, 1, 2):
        results.clear()
        statuses = [2 if status == 0 else 0] * 4
        statuses[best] = status
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(symbols)
        assert model.converged_ == (status == 0)
        said = [str(warning.message) for warning in caught]
        assert len(said) == (status > 0)
        assert all({1: "max_iter", 2: "line search"}[status] in text for text in said)


def test_a_fit_that_raises_changes_nothing():
    for make in (
        lambda: hmm("exact"),
        lambda: hmm("optimal", max_iter=0),
        lambda: hmm("optimal", n_init=0),
        lambda: hmm(normalization="global"),
        lambda: climbing()[0].fit([0, 1, 0, 2]),
    ):
        model = make()
        before = dict(vars(model))
        for wrong in ([0, 9], [0.5], "a", np.ma.array([0.0, 1.0])):
            with pytest.raises((ValueError, TypeError)):
                model.fit(wrong)
            assert vars(model).keys() == before.keys()
            assert all(vars(model)[name] is value for name, value in before.items())
    with pytest.raises(
        NotImplementedError, match="No gradients are available for this feature_map"
    ):
        discrete = KernelHMM(STATES, SYMBOLS, feature_map=PoissonRF(8, positive=True))
        discrete.fit(X)
    assert vars(discrete).keys() == discrete.get_params(deep=False).keys()


@every_map
def test_hmmlearn_agrees(name):
    hmmlearn = pytest.importorskip("hmmlearn.hmm", reason="hmmlearn is not installed")
    model = hmm(name, "given")
    other = hmmlearn.CategoricalHMM(n_components=5, n_features=4)
    names = ("startprob_", "transmat_", "emissionprob_")
    for table, expected in zip(names, dense_hmm(model), strict=True):
        assert_allclose(getattr(model, table), expected, rtol=1e-12)
        setattr(other, table, getattr(model, table))
    parts, lengths = np.concatenate([X, X[:3]])[:, None], [5, 3]
    assert_allclose(model.score(parts, lengths), other.score(parts, lengths), rtol=1e-10)
    assert_allclose(model.predict_proba(parts, lengths), other.predict_proba(parts, lengths))
    for algorithm, name in ((None, None), ("viterbi", "viterbi"), ("posterior", "map")):
        ours = model.decode(parts, lengths, algorithm)
        theirs = other.decode(parts, lengths, name)
        assert_array_equal(ours[1], theirs[1])
        if name != "map":  # whose log probability is a sum of posteriors there
            assert_allclose(ours[0], theirs[0], rtol=1e-10)
    for own, expected in zip(
        model.score_samples(parts, lengths), other.score_samples(parts, lengths), strict=True
    ):
        assert_allclose(own, expected, rtol=1e-9)
    assert_array_equal(
        model.predict(parts, lengths, algorithm="viterbi"), other.predict(parts, lengths)
    )


def test_criteria_count_the_entries_of_embeddings():
    tied, own = KernelHMM(STATES, SYMBOLS, feature_map="exact"), hmm("exact", "embedding")
    for model, n_parameters in ((tied, 15 + 12), (own, 3 * 15 + 12 + 3)):
        parts, lengths = np.ma.append(X, MISSING), [5, 5]
        score = model.score(parts, lengths)
        assert_allclose(model.aic(parts, lengths), -2 * score + 2 * n_parameters)
        assert_allclose(model.bic(parts, lengths), -2 * score + n_parameters * np.log(8))
    # Those that `fit` moves.
    with pytest.warns(ConvergenceWarning):
        fitted = clone(tied).set_params(max_iter=2).fit(X)
    assert_allclose(fitted.aic(X), -2 * fitted.score(X) + 2 * 27)


@pytest.mark.parametrize("as_given", [np.asarray, np.float32, np.ndarray.tolist])
def test_only_none_shares_embeddings(as_given):
    """Whatever the type of arrays, and in a clone, which copies each of them."""
    states = as_given(STATES)
    model = KernelHMM(states, states, targets=states, feature_map="exact", max_iter=2)
    with pytest.warns(ConvergenceWarning):
        fitted, again = model.fit(X), clone(model).fit(X)
    assert fitted.history_ == again.history_
    assert_array_equal(fitted.emitters_, fitted.states_)  # None
    for other in (fitted.targets_, fitted.symbols_):
        assert not np.allclose(other, fitted.states_)
    for own in (fitted, again):
        assert_allclose(own.aic(X), -2 * own.score(X) + 2 * 3 * 15)


def test_a_fitted_model_keeps_its_normalization_until_the_next_fit():
    with pytest.warns(ConvergenceWarning):
        local, whole = (
            hmm("exact", normalization=name, max_iter=2).fit(X) for name in ("local", "global")
        )
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


def test_a_start_that_is_a_maximum_is_kept(monkeypatch):
    climb = _learning.maximize

    def first_stays(objective, vector, *args, **limits):
        monkeypatch.setattr(_learning, "maximize", climb)
        return vector, [], None

    with pytest.warns(ConvergenceWarning):
        learnt = KernelHMM(STATES, SYMBOLS, feature_map="exact", max_iter=30).fit(X)
    model = KernelHMM(learnt.states_, learnt.symbols_, feature_map="exact", n_init=3)
    monkeypatch.setattr(_learning, "maximize", first_stays)
    model.set_params(max_iter=1, random_state=0)
    assert model.fit(X).score(X) == learnt.score(X)
    assert model.converged_ and model.history_ == []


@pytest.mark.parametrize(("seed", "normalization"), [(31, "local"), (42, "global")])
def test_bounds_that_overflow_make_no_warning(seed, normalization):
    """Bounds that are infinite meet transitions that are 0."""
    rng = np.random.default_rng(seed)
    states, targets, symbols = 30 * rng.normal(size=(3, 4, 2))
    params = {"feature_map": "exact", "normalization": normalization}
    model = KernelHMM(states, symbols, targets=targets, **params)
    sequence = rng.integers(4, size=12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log_prob = model.score(sequence)
    own = model._model
    expected = sum(log_norm for _, log_norm in own._log_filtered(sequence))
    expected -= own.log_normaliser([sequence])
    assert_allclose(log_prob, expected, rtol=1e-10)


def test_tables_are_made_up_to_a_size(monkeypatch):
    model = hmm("optimal", "embedding")
    monkeypatch.setattr("skrf.graphical.hmm._TABLE_ENTRIES", 24)
    assert model.emissionprob_.shape == (5, 4)
    with pytest.raises(AttributeError, match="transmat_ would have 5 x 5 entries"):
        model.transmat_  # noqa: B018
    members = dict(inspect.getmembers(model))
    assert "emissionprob_" in members and "transmat_" not in members


def test_tables_that_do_not_exist_are_missing_attributes(monkeypatch):
    """So that `hasattr`, `inspect` and debuggers can ask for them; nothing is drawn to tell."""
    model = hmm(normalization="global")
    monkeypatch.setattr(KernelHMM, "_make_model", lambda self: pytest.fail("made a model"))
    assert "transmat_" in dir(hmm()) and "transmat_" in dir(model)
    for name in ("startprob_", "transmat_", "emissionprob_"):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=f"{name} needs normalization='local'"):
            getattr(model, name)
    monkeypatch.undo()
    for normalization in ("local", "global"):
        fitted = hmm(normalization=normalization, tol=1.0).fit(X)
        for own in (hmm(normalization=normalization), fitted):
            names = {name for name, _ in inspect.getmembers(own)}
            assert "feature_map_" in names and names <= set(dir(own))
            assert ("transmat_" in names) is (normalization == "local")


def test_a_model_is_shown_without_its_embeddings():
    model = KernelHMM.from_random(300, 7, 4, random_state=0)
    said = repr(model)
    assert "states=<ndarray of shape (300, 4)>" in said and "random_state=" in said
    assert len(said) < 400 and repr(KernelHMM([[1.0]], [[2.0]])) == (
        "KernelHMM(states=<list>, symbols=<list>)"
    )
    assert model.states.shape == (300, 4)
    assert model.feature_map_ == {"transition": "exact", "emission": "exact"}
    maps = hmm("optimal").feature_map_["transition"]
    assert maps.is_positive and hasattr(maps, "omega_")


def test_hmm_refuses():
    model = hmm()
    for call, said in (
        (lambda: model.score([0, 4]), "unknown symbols: known are 0 to 3"),
        (lambda: model.score([[0, 1]]), "X must hold integers in shape"),
        (lambda: model.score([[0, 1], [1]]), "X holds sequences apart: .* lengths"),
        (lambda: model.score([[0.5]]), r"got shape \(1, 1\) of dtype float64"),
        (lambda: model.score(["a"]), "OrdinalEncoder\\(dtype=int\\) numbers other symbols"),
        (lambda: model.report(X), "n_states must be an integer >= 1, got an array of shape \\(5,"),
        (lambda: model.score(X, [2, 2]), "lengths sum to 4, but X has 5"),
        (lambda: model.score(X, [0, 5]), "lengths must be integers >= 1"),
        (lambda: model.predict(X, algorithm="map"), "algorithm must be"),
        (lambda: model.sample(0), "n_samples must be an integer >= 1"),
        (lambda: hmm(start_prob=[1, 1, 0, 0, 0]).score(X), "probabilities >= 0 that sum to 1"),
        (
            lambda: hmm(start_prob=PRIOR, start_embedding=START).score(X),
            "start_embedding or start_prob, not both",
        ),
        (lambda: hmm(targets=TARGETS[:2]).score(X), "targets has 2 rows; states has 5"),
        (lambda: hmm(normalization="none").score(X), "normalization"),
        (lambda: hmm(normalization="global").predict_next(), "predict_next needs norm"),
        (
            lambda: hmm(normalization="global").predict_proba(X, filtered=True),
            "filtered=True needs",
        ),
        (lambda: model.predict_next(X, model.filter_step(0)), "X or state, not both"),
        (lambda: model.decode(X, algorithm="map"), "algorithm must be 'posterior' or 'viterbi'"),
        (lambda: model.score(np.ma.array([0.0, 1.0], mask=[0, 1])), "of dtype float64"),
        (lambda: model.score(np.ma.array([4, 1], mask=[0, 1])), "unknown symbols"),
        (lambda: model.score([0, -1]), "unknown symbols"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    discrete = KernelHMM(STATES, SYMBOLS, feature_map=PoissonRF(8, positive=True))
    with pytest.raises(NotImplementedError, match="No gradients are available"):
        discrete.fit(X)


# ------------------------------------------------------------------ generated cases


def made_hmm(name, scale, dtype, start, normalization, rng):
    """Return a model, and symbols."""
    n, n_symbols = rng.integers(1, 7, size=2)
    width = rng.integers(1, 5)
    E, T, M, S, first = made_tables(rng, scale, dtype, width, n, n, n, n_symbols, 1)
    shares = rng.dirichlet(np.full(n, 0.1))
    starts = {
        "uniform": {},
        "given": {"start_prob": shares / shares.sum()},
        "embedding": {"start_embedding": first[0]},
    }
    own = {"targets": T, "emitters": M, **starts[start]}
    model = KernelHMM(E, S, feature_map=WIDE[name], normalization=normalization, **own)
    X = rng.integers(n_symbols, size=rng.integers(1, 14))
    return model, np.ma.array(X, mask=rng.random(len(X)) < rng.choice([0.0, 0.3]))


class Reference:
    """Log tables of a model in float64, and what follows from them."""

    def __init__(self, model):
        own = model._model
        self.move, emit = (log_table(part) for part in (own.transition, own.emission))
        self.emit = np.column_stack([emit, logsumexp(emit, axis=1)])  # any symbol is the last
        if own.start_channel is None:
            with np.errstate(divide="ignore"):
                self.start = np.log(own.given_start)
        else:
            self.start = log_table(own.start_channel)[0]
        logs = [vars(part) for part in (own.transition, own.emission)]
        parts = [part[name] for part in logs for name in ("log_R", "log_T")]
        self.size = largest_log(*(part for part in parts if part is not None), self.start)

    def forward(self, X):
        """Return log sums over the states before each of the symbols, by the last state."""
        emissions = self.emit.T[np.ma.filled(X, -1)]
        found = [self.start + emissions[0]]
        for own in emissions[1:]:
            found.append(logsumexp(found[-1][:, None] + self.move, axis=0) + own)
        return found

    def log_prob(self, X, normalization):
        total = logsumexp(self.forward(X)[-1])
        if normalization == "global":
            total -= logsumexp(self.forward(np.ma.masked_all(len(X), int))[-1])
        return total

    def posteriors(self, X):
        back, found = np.zeros(len(self.start)), []
        for t, below in reversed(list(enumerate(self.forward(X)))):
            logs = below + back
            found.insert(0, np.exp(logs - logsumexp(logs)))
            back = logsumexp(self.move + self.emit[:, np.ma.filled(X, -1)[t]] + back, axis=1)
        return np.array(found)

    def log_weight(self, X, path):
        emitted = self.emit[path, np.ma.filled(X, -1)].sum()
        return self.start[path[0]] + self.move[path[:-1], path[1:]].sum() + emitted


norms = st.sampled_from(["local", "global"])
starts = st.sampled_from(sorted(STARTS))
TOLERANCE = {"float64": 1e-6, "float32": 1e-3}


@hypothesis.settings(generated, max_examples=120)
@hypothesis.given(maps, scales, dtypes, starts, norms, seeds)
def test_hmms_of_any_scale_equal_sums_in_log_space(name, scale, dtype, start, normalization, seed):
    rng = np.random.default_rng(seed)
    model, X = made_hmm(name, scale, dtype, start, normalization, rng)
    truth = Reference(model)
    rtol = TOLERANCE[dtype]
    room = (1 + len(X)) * 8 * EPS * (1 + truth.size) + rtol
    assert_same_logs(model.score(X), truth.log_prob(X, normalization), room, rtol)
    found = model.predict_proba(X)
    assert found.dtype == dtype
    assert_allclose(found, truth.posteriors(X), rtol=0, atol=room)
    assert_same_logs(model.decode(X, None, "posterior")[0] - model.score(X), truth.log_weight(
        X, model.predict(X)) - logsumexp(truth.forward(X)[-1]), room, rtol)  # fmt: skip
    path = model.predict(X, algorithm="viterbi")
    logs = truth.log_weight(X, path)
    others = [model.sample(len(X), random_state=seed)[1] for seed in range(3)]
    assert logs >= max(truth.log_weight(X, other) for other in others) - room
    assert all(((part >= 0) & (part <= 1 + room)).all() for part in model.report().values())


@generated
@hypothesis.given(maps, scales, dtypes, starts, seeds)
def test_online_filters_of_any_scale_are_right_or_raise(name, scale, dtype, start, seed):
    rng = np.random.default_rng(seed)
    model, X = made_hmm(name, scale, dtype, start, "local", rng)
    truth, state = Reference(model), None
    room = (1 + len(X)) * 8 * EPS * (1 + truth.size) + TOLERANCE[dtype]
    for symbol, logs in zip(X, truth.forward(X), strict=True):
        try:
            state = model.filter_step(symbol, state)
        except FloatingPointError as error:
            assert "symbol" in str(error)
            return
        assert_same_logs(state.log_prob, logsumexp(logs), room, TOLERANCE[dtype])
        assert_allclose(state.posterior, np.exp(logs - logsumexp(logs)), rtol=0, atol=room)


@hypothesis.settings(generated, max_examples=30)
@hypothesis.given(maps, scales, dtypes, starts, norms, st.integers(1, 2), seeds)
def test_fits_from_any_scale_climb_or_say_why(
    name, scale, dtype, start, normalization, n_init, seed
):
    rng = np.random.default_rng(seed)
    model, X = made_hmm(name, scale, dtype, start, normalization, rng)
    model.set_params(max_iter=3, n_init=n_init, random_state=0)
    before, names = model.score(X), vars(model).keys()
    if name in ("poisson", "geometric", "discrete"):
        with pytest.raises(NotImplementedError, match="No gradients are available"):
            model.fit(X)
        assert vars(model).keys() == names
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X)
    assert [warning.category for warning in caught] == [ConvergenceWarning] * (not model.converged_)
    after, truth = model.score(X), Reference(model)
    room = (1 + len(X)) * 8 * EPS * (1 + truth.size) + TOLERANCE[dtype]
    assert_same_logs(after, truth.log_prob(X, normalization), room, TOLERANCE[dtype])
    assert after >= before - room - TOLERANCE[dtype] * abs(before) or n_init > 1


# ------------------------------------------------------------------ what is refused

SYMBOLS_REFUSED = [value for value in SEQUENCES if not isinstance(value, np.ma.MaskedArray)]
FILTER = hmm("exact").filter_step(0)
FILTERED = (
    "a", 5, FILTER.posterior, FilterState(FILTER.posterior[:2], 0.0), FilterState("a", 0.0),
    FilterState(-FILTER.posterior, 0.0), FilterState(FILTER.posterior * np.nan, 0.0),
    FilterState(0 * FILTER.posterior, 0.0), FilterState(FILTER.posterior, "a"),
    FilterState(FILTER.posterior, None), FilterState(FILTER.posterior, np.zeros(3)),
    FilterState(FILTER.posterior, 0.0, np.ones((1, 3))),
    FilterState(np.ma.array(FILTER.posterior), 0.0), FilterState([[1], [2, 3]], 0.0),
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
        yield call, name, INTEGERS
    for name, call in (
        ("X", model.score),
        ("X", model.predict),
        ("X", model.predict_proba),
        ("X", model.predict_next),
        ("X", model.decode),
        ("X", model.score_samples),
        ("X", model.bic),
        ("X", clone(model).fit),
        ("symbol", model.filter_step),
    ):
        yield call, name, SYMBOLS_REFUSED
    yield model.filter_step, "symbol", [2.9, 2.0, True, "a", None, np.nan, 1j, np.ma.array(2.0)]
    yield lambda value: model.score(X, value), "lengths", SEQUENCES
    yield lambda value: clone(model).fit(X, value), "lengths", SEQUENCES
    yield lambda value: model.predict_next(state=value), "state", FILTERED
    for name, call in (
        *(made(role, "score", X) for role in ("states", "symbols", "targets", "emitters")),
        made("start_embedding", "score", X),
    ):
        yield call, name, TABLES_REFUSED
    yield made("start_prob", "score", X)[1], "start_prob", SHARES
    for call in (
        lambda value: model.sample(3, random_state=value),
        lambda value: model.report(random_state=value),
        lambda value: KernelHMM.from_random(3, 4, random_state=value),
        lambda value: KernelHMM(STATES, SYMBOLS, random_state=value).score(X),
    ):
        yield call, "random_state", SEEDS
    yield lambda value: model.filter_step(0, value), "state", FILTERED
    yield (
        lambda value: KernelHMM.from_random(3, 4, scale=value),
        "scale",
        ("a", None, -1, np.nan, np.inf, True),
    )


def test_what_makes_no_sense_is_refused_by_name():
    assert assert_refused(refused()) > 200


def test_a_model_of_many_states_holds_no_matrix_of_states_by_states():
    """20,000 states: a transition matrix would take 3.2 GB."""
    import tracemalloc

    rng = np.random.default_rng(0)
    model = KernelHMM(
        rng.normal(size=(20_000, 4)) / 2,
        rng.normal(size=(10, 4)) / 2,
        feature_map=OptimalPositiveRF(32, random_state=0),
    )
    tracemalloc.start()
    symbols, _ = model.sample(30, random_state=0)
    model.score(symbols)
    model.predict(symbols)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6


def test_numbers_that_no_array_can_hold_are_named():
    model = KernelHMM(STATES, STATES)
    for number in (2**62, 2**63, 10**400):
        for call, name in (
            (model.sample, "n_samples"),
            (lambda number: KernelHMM.from_random(number, 3), "n_states"),
            (lambda number: KernelHMM.from_random(3, number), "n_symbols"),
            (lambda number: KernelHMM.from_random(3, 3, number), "width"),
            (lambda number: clone(model).set_params(n_init=number).fit([0, 1]), "n_init"),
        ):
            with pytest.raises((ValueError, MemoryError), match=rf"\b{name}\b"):
                call(number)


def test_scales_and_algorithms_are_named():
    for scale in (1e308, 1e131, -1.0, np.nan, 10**400, "a"):
        with pytest.raises(ValueError, match=r"scale must .*to 1e\+130, got"):
            KernelHMM.from_random(3, 3, 2, scale=scale)
    half, single = (
        KernelHMM.from_random(3, 3, 2, scale=scale, random_state=0)
        for scale in (0.5, np.float32(0.5))
    )
    assert_array_equal(half.states, single.states)
    model = KernelHMM.from_random(3, 3, 2, random_state=0)
    for algorithm in ("map", None, np.array(["posterior", "viterbi"]), ["viterbi"]):
        with pytest.raises(ValueError, match="algorithm must be 'posterior' or 'viterbi', got"):
            model.predict([0, 1], algorithm=algorithm)
