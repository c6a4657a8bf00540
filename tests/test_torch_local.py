"""The torch module of local attention: values, gradients, states and arguments."""

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from torch.utils import _pytree  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from skrf.attention import LocalAttention as Operator  # noqa: E402
from skrf.attention import ToeplitzMask  # noqa: E402
from skrf.attention.local.blocks import together  # noqa: E402
from skrf.torch import LocalAttention, chunked_loss  # noqa: E402

SMALL = {True: (20, 6, 1), False: (30, 6, 3)}


def inputs(n=110, heads=4, key_heads=2, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, heads, n, width, generator=generator, dtype=torch.float64) + 0.5
    k, v = torch.randn(2, 2, key_heads, n, width, generator=generator, dtype=torch.float64)
    return 1.5 * q, 1.5 * k, v


def small(is_causal, **options):
    return LocalAttention(*SMALL[is_causal], block=8, is_causal=is_causal, **options)


def close(one, other, atol=1e-12):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def hidden_keys(n=110):
    hidden = torch.zeros(2, n, dtype=torch.bool)
    hidden[0, :9] = hidden[1, -5:] = hidden[1, 50:53] = True
    return hidden


@pytest.mark.parametrize("is_causal", [True, False])
def test_is_the_operator(is_causal):
    parts, hidden = inputs(), hidden_keys()
    operator = Operator(*SMALL[is_causal], block=8, causal=is_causal)
    arrays = [part.numpy() for part in parts]
    module = small(is_causal)
    close(module(*parts), torch.from_numpy(operator(*arrays)))
    expected = operator(*arrays, key_padding_mask=hidden.numpy())
    close(module(*parts, key_padding_mask=hidden), torch.from_numpy(expected))
    close(module(*parts, attn_mask=~hidden), torch.from_numpy(expected))
    operator.fit(*(part.numpy() for part in inputs(seed=1)[:2]))
    module.fit(*inputs(seed=1))
    close(module(*parts), torch.from_numpy(operator(*arrays)))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("hidden", [None, hidden_keys()], ids=["all", "padded"])
@pytest.mark.parametrize("most", [3, 100])
def test_blocks_together(is_causal, hidden, most, as_on_gpu, monkeypatch):
    """On a GPU blocks are computed together: outputs and gradients are those one at a time."""
    module = small(is_causal)

    def found():
        parts = [part.requires_grad_() for part in inputs()]
        out = module(*parts, key_padding_mask=hidden)
        out.backward(torch.sin(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape))
        return [out, *(part.grad for part in parts)]

    expected, counts = found(), []

    def noted(*given):
        blocks = together(*given)
        counts.extend(block.count for block in blocks)
        return blocks

    monkeypatch.setattr("skrf.torch._local.together", noted)
    # Of 8 queries, at most 40 near keys and 8 heads.
    monkeypatch.setattr("skrf._arrays._GPU_ENTRIES", most * 8 * 40 * 8)
    as_on_gpu()
    for one, other in zip(expected, found(), strict=True):
        close(one, other)
    assert max(counts) > 2
    if hidden is None:  # otherwise texts are computed one at a time
        assert (max(counts) < 5) == (most == 3)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("case", ["plain", "padded", "fitted", "no summary"])
def test_gradients(is_causal, case):
    parts = [part.requires_grad_() for part in inputs(n=64, heads=2, key_heads=1, width=2)]
    module = small(is_causal)
    if case == "no summary":
        module.n_summaries, module.n_heavy = 0, 5
    if case == "fitted":
        module.fit(*inputs(heads=2, key_heads=1, width=2, seed=1))
    options = {"key_padding_mask": hidden_keys(64)} if case == "padded" else {}
    weights = torch.randn(2, 2, 64, 2, generator=torch.Generator().manual_seed(1)).double()
    assert torch.autograd.gradcheck(
        lambda *parts: (module(*parts, **options) * weights).sum(), parts, fast_mode=True
    )


def steps(module, parts, sizes, hidden=None):
    state, outs, first = module.init_state(), [], 0
    for size in sizes:
        some = slice(first, first + size)
        padding = None if hidden is None else hidden[:, some]
        now = [part[:, :, some] for part in parts]
        out, state = module.step(*now, state, key_padding_mask=padding)
        outs.append(out)
        first += size
    return torch.cat(outs, dim=2), state


@pytest.mark.parametrize("sizes", [[1] * 64, [5, 40, 1, 18], [8] * 8])
@pytest.mark.parametrize("is_padded", [True, False])
def test_gradients_flow_through_states(sizes, is_padded):
    module, hidden = small(True), hidden_keys(64) if is_padded else None
    weights = torch.randn(2, 2, 64, 2, generator=torch.Generator().manual_seed(1)).double()
    gradients = []
    for call in (
        lambda *parts: module(*parts, key_padding_mask=hidden),
        lambda *parts: steps(module, parts, sizes, hidden)[0],
    ):
        parts = [part.requires_grad_() for part in inputs(64, heads=2, key_heads=1, width=2)]
        out = call(*parts)
        (out * weights).sum().backward()
        gradients.append([out.detach(), *(part.grad for part in parts)])
    for one, other in zip(*gradients, strict=True):
        close(one, other)


class Model(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.mix, self.attend = nn.Linear(6, 18).double(), attend

    def forward(self, rows):
        return self.attend(*self.mix(rows).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4))


@pytest.mark.parametrize("chunk", [1, 7, 32, 100])
@pytest.mark.parametrize("n_states", [64, 3])
def test_losses_in_chunks(chunk, n_states):
    torch.manual_seed(0)
    model, rows = Model(small(True)), 2 * torch.randn(2, 100, 6, dtype=torch.float64)

    def loss_of(part):
        weights = torch.linspace(-1, 1, 100, dtype=torch.float64)[part, None]
        return (model(rows[:, part]) * weights).square().sum()

    loss_of(slice(None)).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss = chunked_loss(loss_of, 100, chunk_size=chunk, n_states=n_states, modules=model)
    loss.backward()
    close(loss.detach(), loss_of(slice(None)).detach(), atol=1e-10)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        close(parameter.grad, gradient, atol=1e-10)


def test_rates_of_decays_train():
    rate = nn.Parameter(torch.tensor([0.2, 0.01], dtype=torch.float64))
    module = small(True, mask=ToeplitzMask.decay(rate))
    assert dict(module.named_parameters()).keys() == {"mask_rate"}
    parts = inputs(64, heads=4, key_heads=2, width=2)
    weights = torch.randn(2, 4, 64, 2, generator=torch.Generator().manual_seed(1)).double()

    def loss(rate):
        tried = small(True, mask=lambda: ToeplitzMask.decay(rate))
        return (tried(*parts) * weights).sum()

    assert torch.autograd.gradcheck(loss, rate, fast_mode=True)
    gradients = []
    for out in (module(*parts), steps(module, parts, [5, 40, 1, 18])[0]):
        gradients.append(torch.autograd.grad((out * weights).sum(), rate)[0])

    def loss_of(rows):
        return (module(*(part[:, :, rows] for part in parts)) * weights[:, :, rows]).sum()

    chunked_loss(loss_of, 64, chunk_size=16, modules=module).backward()
    for gradient in (gradients[1], rate.grad):
        close(gradient, gradients[0], atol=1e-10)


def test_states_are_pytrees():
    module, parts = small(True), inputs()
    _, state = steps(module, parts, [90])
    later = [part[:, :, 90:95] for part in parts]
    out, _ = module.step(*later, state)
    doubled = _pytree.tree_map(lambda tensor: tensor.clone(), state)
    close(module.step(*later, doubled)[0], out)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    close(module.step(*later, torch.load(file, weights_only=True))[0], out)
    close(module.step(*(part[[1, 1]] for part in later), state.select([1, 1]))[0], out[[1, 1]])
    assert not state.detach().recent.requires_grad
    assert state.to("cpu").far.dtype == torch.float64
    with pytest.raises(ValueError, match="A state keeps its dtype"):
        state.to(torch.float32)
    assert module.init_state().select([0]).recent is None


def test_a_state_is_as_small_after_a_long_text():
    module = LocalAttention(40, 10, is_causal=True)
    state = module.init_state()
    for n in (1000, 1):
        _, state = module.step(*inputs(n), state)
        held = sum(t.untyped_storage().nbytes() for t in state.tensors().values())
        rows = 2 * 2 * (40 + 2 * 32) + 2 * 4 * 11
        assert held < 1.5 * 8 * 8 * rows


def test_what_state_dict_holds():
    parts = inputs()
    module = small(True).fit(*inputs(seed=1))
    module.partial_fit(*inputs(seed=2))
    other = small(True)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(*parts), module(*parts))
    assert torch.equal(copy.deepcopy(module)(*parts), module(*parts))
    assert module.half().mean_queries.dtype == torch.float64
    known = module.mean_queries
    with pytest.raises(ValueError, match="NaN"):
        module.fit(torch.nan * parts[0], parts[1])
    assert torch.equal(module.mean_queries, known)
    unfitted = small(True)
    assert not unfitted.state_dict()
    with pytest.raises(RuntimeError, match="mean_queries"):
        small(True).load_state_dict({"mean_queries": known})
    module.load_state_dict({})  # of a model with exact attention
    assert torch.equal(module(*parts), unfitted(*parts))


def test_arguments_of_torch():
    q, k, v = inputs(heads=2)
    module = small(True)
    close(module(q[:, 0], k[:, 0], v[:, 0]), module(q[:, :1], k[:, :1], v[:, :1])[:, 0])
    close(module(q, k, v, scale=2.0), small(True, scale=2.0)(q, k, v))
    sized = LocalAttention(100, block=8)
    close(sized(q, k, v, is_causal=True), LocalAttention(100, block=8, is_causal=True)(q, k, v))
    with pytest.raises(ValueError, match=r"attn_mask of shape \(110, 110\): local attention"):
        module(q, k, v, attn_mask=torch.ones(110, 110, dtype=torch.bool))
    with pytest.raises(ValueError, match="enable_gqa=True"):
        module(torch.cat([q, q], 1), k, v, enable_gqa=False)
    module.fit(q, k)
    close(module(q[:, :, -7:], k, v), module(q, k, v)[:, :, -7:])
    close(module(q, k, v, scale=2.0), small(True, scale=2.0).fit(q, k)(q, k, v))
    dropped = small(True, dropout=0.5)
    assert not torch.equal(dropped(q, k, v), small(True)(q, k, v))
    assert torch.equal(dropped.eval()(q, k, v), small(True)(q, k, v))
    with pytest.raises(TypeError, match="Pass is_causal instead"):
        LocalAttention(causal=True)
    with pytest.raises(ValueError, match="window must be at least 3 blocks"):
        LocalAttention(40)


def test_short_inputs_are_exact():
    q, k, v = inputs(200)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    close(LocalAttention(is_causal=True)(q, k, v), expected)
    expected = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    close(LocalAttention()(q, k, v), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_short_floats_autocast_and_compilation():
    parts = inputs()
    module = small(True)
    short = [part.bfloat16() for part in parts]
    out = module(*short)
    assert out.dtype == torch.bfloat16
    close(out, module(*(part.float() for part in short)).bfloat16())
    model, rows = Model(module).float(), torch.randn(2, 100, 6)
    model.mix.float()
    with torch.autocast("cpu", torch.bfloat16):
        under = model(rows)
    assert (under.float() - model(rows)).norm() < 0.05 * model(rows).norm()
    compiled = torch.compile(model, backend="eager")
    close(compiled(rows), model(rows), atol=1e-6)


def test_activation_checkpointing():
    torch.manual_seed(0)
    model, rows = Model(small(True)), torch.randn(2, 100, 6, dtype=torch.float64)
    model(rows).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    checkpoint(model, rows, use_reentrant=False).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_second_derivatives_raise():
    parts = [part.requires_grad_() for part in inputs()]
    with pytest.raises(NotImplementedError, match="Second derivatives"):
        torch.autograd.grad(small(True)(*parts).sum(), parts, create_graph=True)


def test_values_are_read_linearly():
    q, k, v = inputs()
    module = small(True)
    other = torch.from_numpy(np.random.default_rng(3).normal(size=tuple(v.shape)))
    close(module(q, k, 2 * v - other), 2 * module(q, k, v) - module(q, k, other))


@pytest.mark.parametrize("is_causal", [True, False])
def test_backward_passes_under_autocast(is_causal):
    gradients = []
    for is_enabled in (True, False):
        parts = [part.float().requires_grad_() for part in inputs()]
        with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled):
            small(is_causal)(*parts).square().sum().backward()
        gradients.append([part.grad for part in parts])
    for one, other in zip(*gradients, strict=True):  # products of summaries are short
        assert (one - other).norm() < 0.01 * other.norm()


def test_gradients_of_huge_values():
    q, k, v = (part.float() for part in inputs())
    parts = [q.requires_grad_(), (1e-3 * k).requires_grad_(), (1e37 * v).requires_grad_()]
    for is_causal in (True, False):
        (1e-37 * small(is_causal)(*parts)).sum().backward()
        assert all(part.grad.isfinite().all() for part in parts)
