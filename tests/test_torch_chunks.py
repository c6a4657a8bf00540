"""States of `RandomFeatureAttention`, and losses that go through long sequences in chunks."""

import io
import os
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.multiprocessing as mp  # noqa: E402 (needs torch)
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils import _pytree  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from skrf import OptimalPositiveRF  # noqa: E402
from skrf.attention import AttentionState, ToeplitzMask  # noqa: E402
from skrf.torch import RandomFeatureAttention, StreamState, chunked_loss  # noqa: E402
from skrf.torch.chunks import _stride  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Random features have collapsed")

N = 37
TOKENS = torch.randint(20, (2, N + 1), generator=torch.Generator().manual_seed(0))


def inputs(n, n_heads=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, n_heads, n, 8, generator=generator, dtype=dtype) / 2
    return [q, k[:, ::2], v[:, ::2]]  # two query heads for each key head


class Model(nn.Module):
    """Two layers of attention and of what acts on single positions."""

    def __init__(self, dropout=0.0, is_checkpointed=None):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.projections = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.out, self.dropout = nn.Linear(8, 20), nn.Dropout(dropout)
        self.attentions = nn.ModuleList(
            RandomFeatureAttention(OptimalPositiveRF(16), is_causal=True, random_state=i)
            for i in range(2)
        )
        self.is_checkpointed = is_checkpointed

    def layer(self, number, x):
        q, k, v = self.projections[number](x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return x + self.dropout(self.attentions[number](q, k, v).transpose(1, 2).flatten(2))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for number in range(2):
            layer = partial(self.layer, number)
            if self.is_checkpointed is not None:
                x = checkpoint(layer, x, use_reentrant=self.is_checkpointed)
            else:
                x = layer(x)
        return self.out(x)


def made(dtype=torch.float64, seed=0, **params):
    torch.manual_seed(seed)
    return Model(**params).to(dtype)


def loss_of(model, part):
    logits, truth = model(TOKENS[:, :-1][:, part]), TOKENS[:, 1:][:, part]
    return cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="sum")


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def chunked(model, chunk_size=5, **options):
    return chunked_loss(partial(loss_of, model), N, chunk_size=chunk_size, modules=model, **options)


# ------------------------------------------------------------------ states


@pytest.mark.parametrize("sizes", [(1,) * 30, (13, 17), (7, 1, 22)], ids=str)
def test_steps_are_one_call(sizes):
    parts, padding = inputs(30), torch.zeros(2, 30, dtype=torch.bool)
    padding[0, :9] = True
    attend = RandomFeatureAttention(is_causal=True, random_state=0)
    for part in parts:
        part.requires_grad_()
    expected = attend(*parts, key_padding_mask=padding)
    state, outputs, start = attend.init_state(), [], 0
    for size in sizes:
        rows = slice(start, start + size)
        chunk = [part[..., rows, :] for part in parts]
        out, state = attend.step(*chunk, state, key_padding_mask=padding[:, rows])
        outputs.append(out)
        start += size
    result = torch.cat(outputs, dim=2)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    weights = torch.randn(expected.shape, dtype=expected.dtype)
    by_steps, by_whole = (
        torch.autograd.grad((out * weights).sum(), parts) for out in (result, expected)
    )
    for gradient, of_whole in zip(by_steps, by_whole, strict=True):
        torch.testing.assert_close(gradient, of_whole, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("state", [None, AttentionState()], ids=["none", "of an operator"])
def test_steps_take_no_other_states(state):
    attend = RandomFeatureAttention(is_causal=True, random_state=0)
    with pytest.raises(TypeError, match=r"state must come from init_state\(\) or step\(\), got "):
        attend.step(*inputs(1), state)


def test_a_state_is_a_pytree_that_goes_through_files():
    attend = RandomFeatureAttention(is_causal=True, random_state=0)
    assert attend.init_state().sums is None
    q, k, v = inputs(6)
    _, state = attend.step(q, k, v.requires_grad_(), attend.init_state())
    assert state.sums.requires_grad and not state.detach().sums.requires_grad
    beams = state.detach().select(torch.tensor([1, 1, 0]))
    assert torch.equal(beams.sums, state.sums[[1, 1, 0]]) and isinstance(beams, StreamState)
    file = io.BytesIO()
    torch.save(beams, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    again = _pytree.tree_map(torch.clone, loaded)
    assert isinstance(again, StreamState) and isinstance(again, AttentionState)
    rows = [part.detach()[[1, 1, 0]] for part in (q, k, v)]
    first, second = (attend.step(*rows, one.to("cpu"))[0] for one in (beams, again))
    assert torch.equal(first, second)
    assert _pytree.tree_map(torch.clone, attend.init_state()).sums is None
    with pytest.raises(ValueError, match=r"A state keeps its dtype, torch.float64, got"):
        state.to(torch.float16)
    with pytest.raises(ValueError, match="state must come from earlier positions"):
        attend.step(q, k, v, beams)
    with pytest.raises(ValueError, match="States need is_causal=True, and mask=None"):
        RandomFeatureAttention().init_state()
    masked = RandomFeatureAttention(is_causal=True, mask=ToeplitzMask(np.ones(3)))
    with pytest.raises(ValueError, match="got is_causal=True and mask=ToeplitzMask"):
        masked.step(q, k, v, StreamState())


# ------------------------------------------------------------------ chunks


@pytest.mark.parametrize(("chunk_size", "n_states"), [(1, 64), (5, 3), (5, 64), (N, 1)])
def test_chunks_have_the_gradients_of_the_whole(chunk_size, n_states):
    for dtype, rtol in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = made(dtype)
        whole = loss_of(model, slice(None))
        expected = gradients(whole, model)
        loss = chunked(model, chunk_size, n_states=n_states)
        assert abs(loss - whole) <= rtol * whole
        found = gradients(loss, model)
        assert (found - expected).norm() <= rtol * expected.norm()
        # The loss of a scaler or of an accumulation has other gradients.
        scaled = gradients(chunked(model, chunk_size, n_states=n_states) * 4, model)
        assert (scaled - 4 * expected).norm() <= 4 * rtol * expected.norm()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_checkpointing_within_chunks_reads_the_same_states():
    model = made(is_checkpointed=False)
    found = gradients(chunked(model), model)
    plain = made()
    expected = gradients(loss_of(plain, slice(None)), plain)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    reentrant = made(is_checkpointed=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        gradients(chunked(reentrant), reentrant)


def test_dropout_is_drawn_again():
    """Every chunk has numbers of its own, which the backward pass repeats."""
    model = made(dropout=0.5)
    torch.manual_seed(3)
    loss = chunked(model)
    found = gradients(loss, model)
    torch.manual_seed(3)
    step, weight = 1e-6, model.out.bias
    with torch.no_grad():
        weight += step
        higher = chunked(model)
    assert float((higher - loss.detach()) / step) == pytest.approx(
        float(weight.grad.sum()), rel=1e-3
    )
    assert chunked(model) != loss and torch.isfinite(found).all()
    numbers = []

    def numbered(part):
        numbers.append(torch.rand(()).item())
        return loss_of(model, part)

    chunked_loss(numbered, N, chunk_size=5, modules=model)
    assert len(set(numbers)) == len(numbers) == 8


def test_autocast_is_that_of_the_call():
    model = made(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = chunked(model)
    found = gradients(loss, model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = gradients(loss_of(model, slice(None)), model)
    assert (found - expected).norm() < 0.02 * expected.norm()
    assert torch.isfinite(loss) and loss.dtype == torch.float32


def test_gradients_flow_only_where_they_are_asked_for():
    model = made()
    with torch.no_grad():
        assert not chunked(model).requires_grad
    for parameter in model.embedding.parameters():
        parameter.requires_grad_(False)
    chunked(model).backward()
    assert model.embedding.weight.grad is None and model.out.weight.grad is not None
    loss = chunked(model)
    with pytest.raises(NotImplementedError, match="Second derivatives"):
        torch.autograd.grad(loss, model.out.weight, create_graph=True)


@pytest.mark.parametrize(("n_chunks", "n_states"), [(64, 64), (65, 64), (256, 64), (100, 1)])
def test_no_more_states_are_held_than_asked_for(n_chunks, n_states):
    stride = _stride(n_chunks, n_states)
    kept = len(range(0, n_chunks, stride))
    least = 2 * n_chunks**0.5
    assert kept + stride - 1 <= max(n_states, least)
    assert stride == 1 or len(range(0, n_chunks, stride - 1)) + stride - 2 > n_states


def test_losses_are_added_in_single_precision():
    """Of many chunks of bfloat16, whose own sums would lose their digits."""
    torch.manual_seed(0)
    mix = nn.Linear(8, 8).bfloat16()
    attend = RandomFeatureAttention(OptimalPositiveRF(16), is_causal=True, random_state=0)
    rows = torch.randn(1, 1, 600, 8, dtype=torch.bfloat16)

    def loss(part):
        x = mix(rows[:, :, part])
        return attend(x, x, x).square().sum()

    value = chunked_loss(loss, 600, chunk_size=2, modules=[mix, attend])
    value.backward()
    found = mix.weight.grad.clone(), mix.bias.grad.clone()
    mix.zero_grad()
    whole = loss(slice(None))
    whole.backward()
    assert abs(value - whole) < 0.01 * whole
    for gradient, expected in zip(found, (mix.weight.grad, mix.bias.grad), strict=True):
        assert (gradient - expected).norm() < 0.005 * expected.norm()


def test_products_of_other_orders_agree_bit_for_bit():
    """torch multiplies by weights that need a gradient in another order."""
    embedding = nn.Embedding(20, 8)
    attend = RandomFeatureAttention(OptimalPositiveRF(16), is_causal=True, random_state=0)

    def loss(part):
        x = embedding(TOKENS[:, :-1][:, part])
        logits = torch.matmul(attend(x, x, x).transpose(0, 1), embedding.weight.T * 1.1)
        truth = TOKENS[:, 1:].T[part]
        return cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="sum")

    for seed in range(5):
        torch.manual_seed(seed)
        embedding.reset_parameters()
        chunked_loss(loss, N, chunk_size=5, modules=[embedding, attend]).backward()
    assert torch.isfinite(embedding.weight.grad).all()
    nan = chunked_loss(lambda part: loss(part) * torch.nan, N, modules=[embedding, attend])
    nan.backward()  # a scaler of losses leaves such a step out
    assert nan.isnan()


def test_what_chunks_cannot_do_is_named():
    model = made()
    with pytest.raises(ValueError, match="modules must hold a causal RandomFeatureAttention"):
        chunked_loss(partial(loss_of, model), N, modules=model.out)
    with pytest.raises(ValueError, match="chunks need is_causal=True"):
        chunked_loss(partial(loss_of, model), N, modules=[model, RandomFeatureAttention()])
    with pytest.raises(RuntimeError, match=r"tensor of shape \(20, 8\) that needs a gradient"):
        parts = [model.attentions, model.projections, model.out]
        chunked_loss(partial(loss_of, model), N, modules=parts)
    with pytest.raises(TypeError, match="must return a Tensor without axes"):
        chunked_loss(lambda part: model(TOKENS[:, part]), N, modules=model)
    with pytest.raises(RuntimeError, match="twice in a chunk"):
        chunked_loss(lambda part: loss_of(model, part) + loss_of(model, part), N, modules=model)
    for name in ("chunk_size", "n_states"):
        with pytest.raises(ValueError, match=name):
            chunked_loss(partial(loss_of, model), N, modules=model, **{name: 0})
    masked = RandomFeatureAttention(is_causal=True, mask=ToeplitzMask(np.ones(3)))
    with pytest.raises(ValueError, match="mask=ToeplitzMask: chunks need mask=None"):
        chunked_loss(partial(loss_of, model), N, modules=[model, masked])
    attend, rows = model.attentions[0], torch.randn(1, 1, N, 4).double()
    for options in ({"is_causal": False}, {"attn_mask": torch.ones(5, 5)}):
        with pytest.raises(ValueError, match="within chunked_loss needs is_causal=True and no"):
            chunked_loss(
                lambda part, given=options: attend(*[rows[:, :, part]] * 3, **given).sum(),
                N,
                chunk_size=5,
                modules=model,
            )
    with pytest.raises(TypeError, match="modules must be a module or a list of modules, got 3"):
        chunked_loss(partial(loss_of, model), N, modules=3)
    with pytest.raises(TypeError, match="loss_of must be a function of a slice, got 3"):
        chunked_loss(3, N, modules=model)
    later = torch.ones((), dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"tensor of shape \(\) that needs a gradient"):
        chunked_loss(
            lambda part: loss_of(model, part) * (later if part.start else 1),
            N,
            chunk_size=5,
            modules=model,
        )
    loss = chunked(model)
    model.out.requires_grad_(False)
    with pytest.raises(RuntimeError, match="are not those of the forward pass"):
        loss.backward()
    model.out.requires_grad_(True)
    generator = np.random.default_rng(0)
    loss = chunked_loss(lambda part: loss_of(model, part) * generator.random(), N, modules=model)
    with pytest.raises(RuntimeError, match="when computed again"):
        loss.backward()
    handle = model.out.weight.register_hook(lambda gradient: gradient)
    with pytest.raises(RuntimeError, match="tensor hook"):
        chunked(model)
    handle.remove()
    assert all(attention._stream is None for attention in model.attentions)


class Loss(nn.Module):
    """A module whose forward pass returns the loss, as DistributedDataParallel needs it."""

    def __init__(self):
        super().__init__()
        self.model = made()

    def forward(self, sequences):
        def loss(part):
            logits = self.model(sequences[:, :-1][:, part])
            truth = sequences[:, 1:][:, part]
            return cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="sum")

        return chunked_loss(loss, N, chunk_size=10, modules=self.model)


def train_in_parallel(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    model = nn.parallel.DistributedDataParallel(Loss())
    model(TOKENS[rank : rank + 1]).backward()
    if rank == 0:
        gradients = [parameter.grad for parameter in model.module.model.parameters()]
        torch.save(gradients, f"{folder}/gradients")
    os._exit(0)  # gloo hangs now and then while it is taken down


def test_two_processes_share_gradients(tmp_path):
    context = mp.get_context("spawn")
    workers = [context.Process(target=train_in_parallel, args=(i, tmp_path)) for i in range(2)]
    for worker in workers:
        worker.start()
    workers[0].join(120)  # it waits for the other one
    assert workers[0].exitcode == 0
    workers[1].kill()
    model = made()
    loss_of(model, slice(None)).backward()
    for gradient, parameter in zip(
        torch.load(tmp_path / "gradients"), model.parameters(), strict=True
    ):
        torch.testing.assert_close(gradient, parameter.grad / 2, rtol=1e-9, atol=1e-11)
