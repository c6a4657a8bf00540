"""Hidden Markov models that learn from batches of sequences."""

import itertools
import os
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skrf import AdaptiveRF
from skrf.graphical import KernelHMM
from skrf.graphical._batches import FreeArrays
from skrf.graphical._learning import gradients

TRUTH = KernelHMM.from_random(4, 6, 5, scale=1.2, random_state=0)
LENGTHS = [3, 9, 1, 7, 12, 5, 8, 2, 10, 6] * 3
X = TRUTH.sample(sum(LENGTHS), random_state=1)[0][:, 0]
OTHERS = TRUTH.sample(200, random_state=2)[0][:, 0], [20] * 10


def start(**params):
    return KernelHMM.from_random(8, 6, 4, random_state=3, **{"max_iter": 6, **params})


def adam(arrays, gradients_at, n_steps, rate, decay):
    """Adam with decoupled weight decay as its papers write it, going up."""
    m, v = ([0 * array for array in arrays] for _ in range(2))
    for t in range(1, n_steps + 1):
        g = gradients_at(arrays)
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
        v = [0.999 * a + 0.001 * b**2 for a, b in zip(v, g, strict=True)]
        arrays = [
            array
            - rate * decay * array
            + rate * (a / (1 - 0.9**t)) / (np.sqrt(b / (1 - 0.999**t)) + 1e-10)
            for array, a, b in zip(arrays, m, v, strict=True)
        ]
    return arrays


@pytest.mark.parametrize("feature_map", ["exact", AdaptiveRF(16)])
@pytest.mark.parametrize("shared", [False, True], ids=["separate", "one array"])
def test_steps_are_those_of_adam(feature_map, shared):
    given = {"start_prob": np.full(8, 1 / 8), "feature_map": feature_map}
    model = start(**given, learning_rate=0.03, weight_decay=0.4)
    if shared:
        model.set_params(targets=None, emitters=None)
    first = clone(model)._model
    roles = ["states", "symbols"] if shared else ["states", "symbols", "targets", "emitters"]

    def gradients_at(arrays):
        values = dict(zip(roles, arrays, strict=True))
        given = {role: values.get(role) for role in first.embeddings}
        if shared:
            given |= {"targets": values["states"], "emitters": values["states"]}
        _, by_role = gradients(first.with_embeddings(given, np.float64), [X[:30], X[30:70]])
        if shared:
            total = sum(by_role[role] for role in ("states", "targets", "emitters"))
            return [total / 70, by_role["symbols"] / 70]
        return [by_role[role] / 70 for role in roles]

    expected = adam([first.embeddings[role] for role in roles], gradients_at, 3, 0.03, 0.4)
    for _ in range(3):
        assert model.partial_fit(X[:70], [30, 40]) is model
    for role, array in zip(roles, expected, strict=True):
        assert_allclose(getattr(model, f"{role}_"), array, rtol=1e-9, atol=1e-12)
    again = pickle.loads(pickle.dumps(model)).partial_fit(X[:70], [30, 40])
    assert_array_equal(again.states_, model.partial_fit(X[:70], [30, 40]).states_)
    # A fit forgets the averages: its next step is the first.
    model.set_params(max_iter=1).fit(X[:70], [30, 40], batch_size=2)
    fitted = clone(model).fit(X[:70], [30, 40], batch_size=2)
    assert_array_equal(model.states_, fitted.states_)
    assert_array_equal(
        model.partial_fit(X[:70], [30, 40]).states_, fitted.partial_fit(X[:70], [30, 40]).states_
    )


def test_rates_fall_to_zero_and_batches_hold_every_sequence():
    """With a gradient of one sign, Adam's steps are the rates themselves."""
    model = KernelHMM(np.zeros((1, 1)), np.array([[1.0], [0.0]]), emitters=[[0.0]])
    model.set_params(learning_rate=0.01, max_iter=4, random_state=0)
    seen = []
    model.fit(
        np.zeros(10, int),
        [2] * 5,
        batch_size=2,
        callback=lambda fitted: seen.append(fitted.emitters_[0, 0]),
    )
    rates = 0.01 * (1 - np.arange(12) / 12)  # three batches in each of four passes
    assert_allclose(seen, np.cumsum(rates)[2::3], rtol=0.03)
    # At first both symbols are equally probable.
    assert_allclose(model.history_[0], -10 * np.log(2), rtol=0.02)
    assert len(model.history_) == 4 and model.converged_


def test_batches_learn_what_all_sequences_teach():
    model = start(max_iter=40).fit(X, LENGTHS, batch_size=5)
    whole = start(max_iter=200, tol=1e-6).fit(X, LENGTHS)
    before = start().score(X, LENGTHS)
    assert model.score(X, LENGTHS) > before + 0.7 * (whole.score(X, LENGTHS) - before)
    assert model.history_[-1] > model.history_[0]
    again = start(max_iter=40).fit(X, LENGTHS, batch_size=5)
    assert_allclose(again.states_, model.states_, rtol=1e-9)  # compiled code may have come in
    other = start(max_iter=40).set_params(random_state=9).fit(X, LENGTHS, batch_size=5)
    assert np.abs(other.states_ - model.states_).max() > 1e-3


@pytest.mark.parametrize("batch_size", [4, None])
def test_the_iteration_of_the_best_validation_score_is_kept(batch_size):
    model = start(max_iter=200, learning_rate=0.2)
    model.fit(X, LENGTHS, batch_size=batch_size, validation=OTHERS)
    scores = model.validation_history_
    best = int(np.argmax(scores))
    assert len(scores) == len(model.history_) == best + 6 < 200  # it begins to learn by heart
    assert model.score(*OTHERS) / 200 == pytest.approx(scores[best], rel=1e-12)
    assert model.converged_
    longer = start(max_iter=200, learning_rate=0.2, tol=1e-6).fit(X, LENGTHS, batch_size=batch_size)
    assert longer.score(*OTHERS) < model.score(*OTHERS)
    assert not hasattr(longer, "validation_history_")


def test_a_share_of_the_sequences_is_held_out():
    symbols = np.repeat(np.arange(5), 4)  # a symbol for every sequence
    model = start(max_iter=30, learning_rate=0.3)
    model.fit(symbols, [4] * 5, batch_size=2, validation=0.4)
    shares = np.array([model.score(np.full(4, k)) for k in range(5)])
    assert np.count_nonzero(shares > -4 * np.log(5)) == 3  # those that were learned


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_callback_sees_models_and_ends_the_fit(batch_size):
    scores = []

    def callback(fitted):
        scores.append(fitted.score(X, LENGTHS))
        return len(scores) == 3

    model = start().fit(X, LENGTHS, batch_size=batch_size, callback=callback)
    assert len(model.history_) == 3 and model.converged_
    assert model.score(X, LENGTHS) == scores[-1]


def test_a_warm_start_goes_on():
    model = start(warm_start=True, max_iter=3).fit(X, LENGTHS, batch_size=10)
    reached = model.score(X, LENGTHS)
    model.set_params(max_iter=1, learning_rate=1e-9).fit(X, LENGTHS, batch_size=10)
    assert model.score(X, LENGTHS) == pytest.approx(reached, rel=1e-6)
    model.set_params(warm_start=False).fit(X, LENGTHS, batch_size=10)
    assert model.score(X, LENGTHS) == pytest.approx(start().score(X, LENGTHS), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.fit(X, LENGTHS, batch_size=0), "batch_size must be an integer >= 1, got 0"),
        (lambda m: m.set_params(weight_decay=0.1).fit(X), "weight_decay=0.1 needs batch_size"),
        (lambda m: m.set_params(weight_decay=-1.0).fit(X), "weight_decay"),
        (lambda m: m.set_params(learning_rate=0.0).fit(X, batch_size=2), "learning_rate"),
        (lambda m: m.fit(X, LENGTHS, validation=1.5), r"validation must be a share .* got 1.5"),
        (lambda m: m.fit(X, LENGTHS, validation=X), r"validation must be a share"),
        (lambda m: m.fit(X[:1], validation=0.5), r"validation=0.5 needs two samples or more"),
        (lambda m: m.fit(X, LENGTHS, validation=([7], None)), "unknown symbols"),
    ],
)
def test_what_makes_no_sense_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(start())


def test_steps_that_are_not_finite_are_named(monkeypatch):
    given, numbers = start(), itertools.count()

    def faulty(self, arrays, sequences):
        slope = np.nan if next(numbers) > 2 else 1.0
        return 0.0, [np.full_like(array, slope) for array in arrays]

    monkeypatch.setattr(FreeArrays, "gradients", faulty)
    model = start(weight_decay=0.0, learning_rate=0.1)
    with pytest.warns(ConvergenceWarning, match="after 1 iterations at a gradient that is not"):
        model.fit(X[:12], [3] * 4, batch_size=2)
    # The second pass began; the model is that after the first.
    assert_allclose(model.states_, given.states + 0.1 + 0.1 * 11 / 12, rtol=1e-6)
    assert not model.converged_
    with pytest.raises(FloatingPointError):
        model.partial_fit(X[:12])


@pytest.mark.skipif("SKRF_EWT_DIR" not in os.environ, reason="SKRF_EWT_DIR is not set")
def test_words_of_real_sentences_are_learned():
    """Four passes over 3,000 sentences are better than the frequencies of words."""
    sentences = {}
    for part in ("train", "dev"):
        text = (Path(os.environ["SKRF_EWT_DIR"]) / f"{part}.tsv").read_text(encoding="utf8")
        blocks = [block.splitlines() for block in text.split("\n\n") if block.strip()]
        lines = [[line.split("\t")[0].lower() for line in block] for block in blocks]
        sentences[part] = lines[: 3000 if part == "train" else 300]
    counts = Counter(word for sentence in sentences["train"] for word in sentence)
    known = {word: i + 1 for i, word in enumerate(w for w, n in counts.items() if n > 4)}
    coded = {
        part: [np.array([known.get(word, 0) for word in sentence]) for sentence in of_part]
        for part, of_part in sentences.items()
    }
    train, held = (np.concatenate(coded[part]) for part in ("train", "dev"))
    lengths = {part: list(map(len, of_part)) for part, of_part in coded.items()}
    model = KernelHMM.from_random(32, len(known) + 1, 16, scale=0.35, random_state=0)
    model.set_params(max_iter=4, weight_decay=0.2, learning_rate=0.1)
    model.fit(train, lengths["train"], batch_size=64)
    shares = np.bincount(train, minlength=len(known) + 1) / len(train)
    gain = model.score(held, lengths["dev"]) - np.log(shares[held]).sum()
    assert gain / len(held) > 0.1
