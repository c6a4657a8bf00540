"""Packed sequences are attended to as if each were alone."""

import pytest

from skrf import OptimalPositiveRF
from skrf.attention import GeneralizedMap, ToeplitzMask

torch = pytest.importorskip("torch")

from skrf.torch import RandomFeatureAttention  # noqa: E402 (needs torch)

pytestmark = pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
LENGTHS = [3, 0, 1, 50, 17, 0, 130, 2, 40]
EDGES = torch.tensor([0, *LENGTHS]).cumsum(0)


def draw(dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, sum(LENGTHS), 8, generator=generator, dtype=torch.float64) * scale
    k, v = torch.randn(2, 1, 2, sum(LENGTHS), 8, generator=generator, dtype=torch.float64) * scale
    return [part.to(dtype).requires_grad_() for part in (q, k, v)]


@pytest.mark.parametrize(("is_causal", "has_gates"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["shared", "fitted", "elu"])
def test_they_equal_separate_calls_and_so_do_gradients(kind, dtype, is_causal, has_gates):
    feature_map = GeneralizedMap(16, nonlinearity="elu") if kind == "elu" else OptimalPositiveRF(16)
    attend = RandomFeatureAttention(feature_map, is_causal=is_causal, random_state=0)
    parts = draw(dtype, scale=3.0)
    if kind == "fitted":
        attend.fit(*parts)
    gates = -torch.rand(2, sum(LENGTHS), generator=torch.Generator().manual_seed(1))
    gates = gates.to(dtype).requires_grad_() if has_gates else None
    out, lse = attend(*parts, cu_seqlens=EDGES, log_gates=gates, return_lse=True)
    separate = []
    for start, stop in zip(EDGES[:-1].tolist(), EDGES[1:].tolist(), strict=True):
        if start < stop:
            own_gates = gates[:, start:stop] if has_gates else None
            own = [part[..., start:stop, :] for part in parts]
            separate.append(attend(*own, log_gates=own_gates, return_lse=True))
    expected, expected_lse = (torch.cat(x, dim=2) for x in zip(*separate, strict=True))
    tolerance = {"rtol": 0, "atol": 1e-10 if dtype == torch.float64 else 1e-5}
    torch.testing.assert_close(out, expected, **tolerance)
    torch.testing.assert_close(lse, expected_lse, rtol=tolerance["atol"], atol=tolerance["atol"])
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    leaves = [*parts, *([gates] if has_gates else [])]
    found, right = (torch.autograd.grad((x * weights).sum(), leaves) for x in (out, expected))
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance["atol"] * other.abs().max())


def test_what_does_not_fit_is_named():
    attend = RandomFeatureAttention(is_causal=True, random_state=0)
    q, k, v = draw()
    n = sum(LENGTHS)
    for edges, error, match in (
        ([0, n], TypeError, "tensor of int"),
        (torch.tensor([0.0, n]), TypeError, "tensor of int"),
        (torch.tensor([0, n - 1]), ValueError, f"from 0 to the number of positions, {n}"),
        (torch.tensor([1, n]), ValueError, "from 0"),
        (torch.tensor([0, 9, 5, n]), ValueError, "must rise"),
    ):
        with pytest.raises(error, match=match):
            attend(q, k, v, cu_seqlens=edges)
    with pytest.raises(ValueError, match=r"number of positions, 0, got \[0, 0\]"):
        attend(*(part[..., :0, :] for part in (q, k, v)), cu_seqlens=torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="batch 1"):
        attend(*(part.expand(2, -1, -1, -1) for part in (q, k, v)), cu_seqlens=EDGES)
    with pytest.raises(ValueError, match=r"log_gates must be .* \(1, 2, 243\), got \(3, 243\)"):
        attend(q, k, v, cu_seqlens=EDGES, log_gates=torch.zeros(3, n))
    with pytest.raises(ValueError, match="log_gates .* need causal=True"):
        attend(q, k, v, is_causal=False, cu_seqlens=EDGES, log_gates=torch.zeros(n))
    with pytest.raises(ValueError, match="key_padding_mask=None"):
        attend(q, k, v, cu_seqlens=EDGES, key_padding_mask=torch.zeros(1, n, dtype=torch.bool))
    masked = RandomFeatureAttention(is_causal=True, mask=ToeplitzMask.decay(0.1), random_state=0)
    with pytest.raises(ValueError, match="whose mask is None"):
        masked(q, k, v, cu_seqlens=EDGES)
