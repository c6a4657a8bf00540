"""Every operator of attention on tensors: gradients are differences, and padding has none."""

import inspect

import numpy as np
import pytest

import skrf.attention
from skrf import OptimalPositiveRF, RFFSampler
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    ToeplitzMask,
    WindowAttention,
    exact_attention,
)

torch = pytest.importorskip("torch", reason="needs torch")

import skrf.torch  # noqa: E402 (needs torch)

N = 40
RNG = np.random.default_rng(0)
DECAY = ToeplitzMask.decay(0.1)
MAP = OptimalPositiveRF(8, random_state=0)
GATES = torch.tensor(-RNG.exponential(size=(1, N)))


def features(feature_map=MAP, **options):
    return ApproxKernelAttention(feature_map, **options)


def frozen(feature_map=MAP, **options):
    """Return an operator whose statistics, which are constants, are not those of the call."""
    q, k = RNG.normal(size=(2, N, 3)), RNG.normal(size=(1, N, 3))
    return features(feature_map, **options).fit(q, k)


def gated(operator):
    return lambda *parts, **options: operator(*parts, log_gates=GATES, **options)


def exact(**settings):
    return lambda *parts, **options: exact_attention(*parts, **settings, **options)


def matrix_of(operator):
    return lambda q, k, v, **options: operator.attention_matrix(q, k, **options) @ v


def steps(operator):
    def call(*parts, key_padding_mask=None):
        state, outs = operator.init_state(), []
        for rows in (slice(0, 17), slice(17, 18), slice(18, N)):
            hidden = None if key_padding_mask is None else key_padding_mask[..., rows]
            chunk = (part[..., rows, :] for part in parts)
            out, state = operator.step(*chunk, state, key_padding_mask=hidden)
            outs.append(out)
        return torch.cat(outs, dim=-2)

    return call


FIT = [torch.tensor(RNG.normal(size=(1, heads, N, 3))) for heads in (2, 1, 1)]


def module(kind, *args, **options):
    return getattr(skrf.torch, kind)(*args, **options)


CAUSAL = {"is_causal": True}
OPERATORS = {
    "exact_attention": exact(),
    "exact_attention, causal": exact(causal=True),
    "exact_attention, masked": exact(mask=RNG.uniform(size=(N, N))),
    "exact_attention, decaying": exact(causal=True, mask=DECAY),
    "ApproxKernelAttention": frozen(),
    "ApproxKernelAttention, causal": features(causal=True),
    "ApproxKernelAttention, signed": features(RFFSampler(200, random_state=0), scale=0.1),
    "ApproxKernelAttention, relu": features(GeneralizedMap(16, epsilon=0.1, random_state=0)),
    "ApproxKernelAttention, masked": frozen(mask=RNG.uniform(size=(N, N))),
    "ApproxKernelAttention, Toeplitz": frozen(mask=ToeplitzMask(RNG.uniform(size=2 * N - 1))),
    "ApproxKernelAttention, decaying": features(causal=True, mask=DECAY),
    "ApproxKernelAttention, gated": gated(features(causal=True)),
    "ApproxKernelAttention.attention_matrix": matrix_of(frozen()),
    "ApproxKernelAttention.step": steps(features(causal=True)),
    "WindowAttention": WindowAttention(8, 2),
    "WindowAttention.step": steps(WindowAttention(8, 2)),
    "torch.RandomFeatureAttention": module("RandomFeatureAttention", MAP).fit(*FIT),
    "torch.RandomFeatureAttention, causal": module("RandomFeatureAttention", MAP, **CAUSAL),
    "torch.RandomFeatureAttention.step": steps(module("RandomFeatureAttention", MAP, **CAUSAL)),
}
operators = pytest.mark.parametrize("name", OPERATORS)
pytestmark = pytest.mark.filterwarnings(
    "ignore:Random features have collapsed", "ignore:Outputs reach"
)


def inputs():
    """Return queries of two heads, and keys and values of one, which require gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, N, 3), (1, 1, N, 3), (1, 1, N, 2)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


def test_no_operator_is_missing():
    public = {name: getattr(skrf.attention, name) for name in skrf.attention.__all__}
    modules = {f"torch.{name}": getattr(skrf.torch, name) for name in skrf.torch.__all__}
    found = {
        name
        for name, part in {**public, **modules}.items()
        if inspect.isclass(part) and hasattr(part, "step")
    }
    found.add("exact_attention")
    tested = {name.split(",")[0] for name in OPERATORS}
    assert found | {f"{name}.step" for name in found - {"exact_attention"}} <= tested


@operators
@pytest.mark.parametrize("is_padded", [False, True])
def test_gradients_are_differences(name, is_padded):
    options = {"key_padding_mask": torch.arange(N)[None] % 7 == 1} if is_padded else {}
    assert torch.autograd.gradcheck(
        lambda *parts: OPERATORS[name](*parts, **options), inputs(), fast_mode=True
    )


@operators
def test_gradients_of_padding_alone_are_0(name):
    parts = inputs()
    out = OPERATORS[name](*parts, key_padding_mask=torch.ones(1, N, dtype=torch.bool))
    assert not out.any()
    out.sum().backward()
    assert not any(part.grad is not None and part.grad.any() for part in parts)
