"""States of attention know who made them, and torch modules refuse what they cannot serve."""

import pickle

import numpy as np
import pytest

from skrf import OptimalPositiveRF
from skrf.attention import ApproxKernelAttention


def draw(seed=0, n=40):
    return np.random.default_rng(seed).normal(size=(3, 2, 2, n, 8))


def features(seed=0, **options):
    return ApproxKernelAttention(OptimalPositiveRF(16, random_state=seed), causal=True, **options)


OPERATORS = {
    "draw": (lambda: features(0), lambda: features(1)),
    "scale": (lambda: features(0), lambda: features(0, scale=1.0)),
    "fit": (lambda: features(0).fit(*draw()[:2]), lambda: features(0).fit(*2 * draw()[:2])),
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_a_state_is_read_by_its_maker_and_its_equals_alone(kind):
    make, make_other = OPERATORS[kind]
    q, k, v = draw()
    first, operator = make(), make()
    _, state = first.step(q, k, v, first.init_state())
    state = pickle.loads(pickle.dumps(state)).select([1, 0])
    operator.step(q, k, v, state)
    with pytest.raises(ValueError, match="made by another operator"):
        make_other().step(q, k, v, state)


@pytest.mark.parametrize("kind", ["draw", "scale"])
def test_entries_are_chosen_by_numbers(kind):
    q, k, v = draw()
    operator = OPERATORS[kind][0]()
    _, state = operator.step(q, k, v, operator.init_state())
    with pytest.raises(TypeError, match="indices must be integers"):
        state.select([True, False])


def test_modules_name_what_they_cannot_serve():
    torch = pytest.importorskip("torch")
    import skrf.torch

    q, k, v = torch.tensor(draw(), dtype=torch.float32)
    module = skrf.torch.RandomFeatureAttention(
        OptimalPositiveRF(16), is_causal=True, random_state=0
    )
    with pytest.raises(TypeError, match="query must be a dense tensor"):
        module(q.to_sparse(), k, v)
    nested = torch.nested.nested_tensor([*q], layout=torch.jagged)
    with pytest.raises(TypeError, match="key must be a dense tensor, got a nested tensor"):
        module(q, nested, v)
    rows = q.clone().requires_grad_()
    out = module(rows, k, v)
    (both,) = torch.autograd.grad(
        out, rows, torch.stack([out, 2 * out]), retain_graph=True, is_grads_batched=True
    )
    (alone,) = torch.autograd.grad(out, rows, out)
    torch.testing.assert_close(both, torch.stack([alone, 2 * alone]))
    _, state = module.step(q, k, v, module.init_state())
    with pytest.raises(TypeError, match="indices must be integers"):
        state.select(torch.tensor([True, False]))
    short = [part.to(torch.float8_e4m3fn) for part in (q, k, v)]
    assert module(*short).dtype == torch.float32
    _, state = module.step(q, k, v, module.init_state())
    with pytest.raises(ValueError, match="made by another operator"):
        module.redraw(1).step(q, k, v, state)
