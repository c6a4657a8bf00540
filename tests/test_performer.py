"""The Performer: gradients, chunks, and learning."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skrf import HybridRF, OptimalPositiveRF, PoissonRF
from skrf.attention import GeneralizedMap, Performer

TOKENS = np.random.default_rng(0).integers(7, size=(2, 41))
MAPS = {
    "elu": None,
    "relu": GeneralizedMap(16),
    "softmax": OptimalPositiveRF(12),
}


def model(name="elu", **params):
    sizes = {"n_layers": 2, "width": 8, "n_heads": 2, "random_state": 0}
    return Performer(7, **{"feature_map": MAPS[name], **sizes, **params})


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", MAPS)
def test_chunks_change_nothing(name, norm):
    performer = model(name, norm=norm)
    loss, gradients = performer.loss_and_grad(TOKENS)
    for chunk_size in (1, 3, 10, 40, 1000):
        other, others = performer.loss_and_grad(TOKENS, chunk_size)
        assert_allclose(other, loss, rtol=1e-12)
        assert_allclose(performer.loss(TOKENS, chunk_size), loss, rtol=1e-12)
        for key, gradient in gradients.items():
            assert_allclose(others[key], gradient, rtol=1e-9, atol=1e-9 * np.abs(gradient).max())


def test_chunks_take_the_memory_of_one_chunk():
    """Besides the states between chunks, at most a few per cent of the activations of one."""
    performer = model(width=32, n_heads=1)
    tokens = np.random.default_rng(0).integers(7, size=4001)

    def peak(own_tokens, chunk_size):
        tracemalloc.start()
        performer.loss_and_grad(own_tokens, chunk_size)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(tokens[:11], None)
    states = 4 * 2 * 32 * (33 + 1) * 8  # four chunks, two layers
    assert peak(tokens, 1000) - states < 1.1 * peak(tokens[:1001], None)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", ["elu", "softmax"])  # relu has corners
def test_gradients_are_those_of_differences(name, norm):
    performer = model(name, norm=norm)
    _, gradients = performer.loss_and_grad(TOKENS, 16)
    rng, step = np.random.default_rng(1), 1e-6
    for key, value in performer.params.items():
        direction = rng.normal(size=value.shape)
        losses = []
        for sign in (1, -1):
            performer.params[key] = value + sign * step * direction
            losses.append(performer.loss(TOKENS))
        performer.params[key] = value
        expected = (losses[0] - losses[1]) / (2 * step)
        assert_allclose(np.sum(gradients[key] * direction), expected, rtol=1e-5, atol=1e-8)


def test_later_tokens_do_not_change_earlier_losses():
    performer = model("softmax")
    changed = TOKENS.copy()
    changed[:, 30:] = (changed[:, 30:] + 1) % 7
    short = TOKENS[:, :30]
    assert performer.loss(short) == pytest.approx(performer.loss(changed[:, :30]), rel=1e-12)
    hidden = [performer._hidden(t, 0, performer._first_states(2))[0] for t in (TOKENS, changed)]
    assert_allclose(hidden[0][:, :30], hidden[1][:, :30], rtol=1e-12)
    assert np.abs(hidden[0][:, 30:] - hidden[1][:, 30:]).max() > 0.1


def test_it_learns():
    """A text with a rule of period 5 and one random token in five."""
    rng = np.random.default_rng(0)
    tokens = np.arange(1001) % 5
    noisy = rng.uniform(size=1001) < 0.2
    tokens[noisy] = rng.integers(5, size=noisy.sum())
    performer = Performer(5, n_layers=1, width=16, n_heads=2, random_state=0)
    for _ in range(60):
        loss, gradients = performer.loss_and_grad(tokens, chunk_size=250)
        for key, gradient in gradients.items():
            performer.params[key] -= 0.3 * gradient
    assert loss < 0.75 * np.log(5)
    drawn = performer.generate(tokens[:50], 100, temperature=0.1, random_state=0)
    assert drawn.shape == (100,) and np.mean(np.diff(drawn) % 5 == 1) > 0.8
    again = performer.generate(tokens[:50], 100, temperature=0.1, random_state=0)
    assert_array_equal(drawn, again)


def test_single_precision():
    double, single = model(), model(dtype="float32")
    loss, gradients = double.loss_and_grad(TOKENS)
    other, others = single.loss_and_grad(TOKENS, 8)
    assert_allclose(other, loss, rtol=1e-5)
    for key, gradient in gradients.items():
        assert others[key].dtype == np.float32
        assert_allclose(others[key], gradient, atol=1e-4 * np.abs(gradient).max())


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"n_heads": 3}, "n_heads=3 must divide width=8"),
        ({"norm": "none"}, "norm must be 'pre' or 'post'"),
        ({"dtype": "int32"}, "dtype must be"),
        ({"n_layers": 0}, "n_layers must be an integer >= 1, got 0"),
        ({"feature_map": HybridRF(8, coefficients="clustered")}, "needs statistics of data"),
    ],
)
def test_parameters_are_checked(params, said):
    with pytest.raises(ValueError, match=said):
        model(**params)


def test_tokens_are_checked():
    performer = model()
    for tokens, said in (
        ([0.5, 1.0], "tokens must be integers"),
        ([0, 7], "tokens must lie in 0 to 6"),
        ([[3]], "at least two positions"),
    ):
        with pytest.raises(ValueError, match=said):
            performer.loss_and_grad(tokens)
    with pytest.raises(ValueError, match="chunk_size must be"):
        performer.loss_and_grad(TOKENS, 0)
    with pytest.raises(ValueError, match="temperature must be > 0"):
        performer.generate([0], 1, temperature=0)
    discrete = Performer(7, width=8, n_heads=2, feature_map=PoissonRF(8), random_state=0)
    with pytest.raises(NotImplementedError, match="Gradients are not known"):
        discrete.loss_and_grad(TOKENS)
