"""Measure memory and time of losses in chunks, in torch.

    python benchmarks/chunks.py

A causal model of two layers (width 64, 4 heads, 64 features) on 4 sequences of random tokens.
Memory is the largest sum of bytes of living tensors, without parameters, counted at every
operation. Ratios are to the same work at 1,024 tokens, and to the whole sequence at once; a picture
is saved to docs/guide/chunks.png. A second table has the size of a chunk, beside activation
checkpointing of layers, and how far gradients are from those of the whole, relative to their norm.
"""

import time
import weakref
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from skrf import OptimalPositiveRF
from skrf.torch import RandomFeatureAttention, chunked_loss

BATCH, WIDTH, HEADS, FEATURES, VOCABULARY = 4, 64, 4, 64, 256
LENGTHS = (1024, 4096, 16_384, 65_536)
PICTURE = Path(__file__).parents[1] / "docs" / "guide" / "chunks.png"


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that operations have made and that still live."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.seen = weakref.WeakKeyDictionary()

    def _free(self, n_bytes):
        self.now -= n_bytes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.seen:
                    self.seen[storage] = None
                    weakref.finalize(storage, self._free, storage.nbytes())
                    self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        return out


class Layer(nn.Module):
    """Causal attention and a perceptron, with residuals."""

    def __init__(self, seed):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.attention = RandomFeatureAttention(
            OptimalPositiveRF(FEATURES), is_causal=True, random_state=seed
        )

    def forward(self, x):
        parts = self.inner(self.first(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.outer(self.attention(*parts).transpose(1, 2).flatten(2))
        return x + self.perceptron(self.second(x))


def model():
    """Return a language model."""
    torch.manual_seed(0)
    layers = Layer(0), Layer(1)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY))


def losses(length, **options):
    """Return the model, and functions that return the loss of the whole and in chunks."""
    network, tokens = model(), torch.randint(VOCABULARY, (BATCH, length + 1))

    def loss_of(part):
        logits, truth = network(tokens[:, :-1][:, part]), tokens[:, 1:][:, part]
        return cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="sum")

    return (
        lambda: loss_of(slice(None)),
        lambda: chunked_loss(loss_of, length, modules=network, **options),
    )


def peak(loss):
    """Return the largest number of living bytes of a forward and backward pass."""
    loss().backward()  # gradients exist
    with LiveBytes() as counter:
        loss().backward()
    return counter.most


def seconds(loss, rounds=3):
    """Return the shortest time of a forward and backward pass."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        loss().backward()
        taken.append(time.perf_counter() - start)
    return min(taken)


def measure_memory():
    """Bytes and seconds against the length."""
    print(f"{'tokens':>8}{'chunks, MB':>12}{'whole, MB':>12}{'chunks, s':>12}{'whole, s':>12}")
    rows = []
    for length in LENGTHS:
        whole, chunked = losses(length)
        row = [peak(chunked) / 1e6, peak(whole) / 1e6, seconds(chunked), seconds(whole)]
        rows.append([length, *row])
        first = rows[0][1]
        print(f"{length:8}" + "".join(f"{value:12.2f}" for value in row), flush=True)
        print(f"{'':8}  memory of chunks / at 1,024: {row[0] / first:.2f}, ", end="")
        print(f"time of chunks / of the whole: {row[2] / row[3]:.2f}", flush=True)
    return rows


def plot(rows):
    """Save memory and time against the length."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    lengths, *columns = zip(*rows, strict=True)
    for axes, (chunks, whole), unit in zip(
        figure.subplots(1, 2), (columns[:2], columns[2:]), ("MB of tensors", "seconds"), strict=True
    ):
        axes.loglog(lengths, whole, "k-s", label="whole sequence")
        axes.loglog(lengths, chunks, "C0-o", label="chunked_loss")
        axes.set(xlabel="tokens of a sequence", ylabel=f"{unit}, forward and backward")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150)


def measure_chunk_sizes(length):
    """Bytes, seconds and discrepancy of gradients by the size of a chunk, and checkpointing."""
    network, tokens = model(), torch.randint(VOCABULARY, (BATCH, length + 1))
    parameters = list(network.parameters())

    def loss_of(part, is_checkpointed=False):
        rows = network[0](tokens[:, :-1][:, part])
        for layer in network[1:-1]:
            rows = checkpoint(layer, rows, use_reentrant=False) if is_checkpointed else layer(rows)
        logits, truth = network[-1](rows), tokens[:, 1:][:, part]
        return cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="sum")

    def gradient(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss(), parameters)])

    works = {"whole": lambda: loss_of(slice(None))}
    works["checkpoint"] = lambda: loss_of(slice(None), is_checkpointed=True)
    for size in (64, 256, 1024, 4096):
        works[f"{size:,}"] = lambda size=size: chunked_loss(
            loss_of, length, chunk_size=size, modules=network
        )
    expected = gradient(works["whole"])
    print(f"{length:,} tokens, by chunk size")
    for name, loss in works.items():
        apart = (gradient(loss) - expected).norm() / expected.norm()
        print(
            f"{name:>12}{peak(loss) / 1e6:10.1f} MB{seconds(loss):8.2f} s{apart:12.1e}", flush=True
        )


if __name__ == "__main__":
    plot(measure_memory())
    measure_chunk_sizes(16_384)
