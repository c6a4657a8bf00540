"""Train a small torch language model with exact attention, and with features in its place.

    python examples/train_torch.py [--steps 300] [--length 512]

A causal transformer (2 layers, 4 heads, width 64) learns Python's own help, letter by letter. From
the same initial weights and on the same batches, it is trained with torch's exact attention, with
`RandomFeatureAttention` at its defaults, with the features elu(x) + 1 of linear transformers, with
the formula of the package performer-pytorch, and without attention, from the last three letters
alone. Prints the loss on held-out text and saves the curves to examples/output. Takes less than two
minutes on two cores.
"""

import argparse
import math
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

from skrf.attention import GeneralizedMap
from skrf.torch import RandomFeatureAttention

OUTPUT = Path(__file__).parent / "output"
ALPHABET = sorted({*"".join(topics.values())})
N_LAYERS, N_HEADS, WIDTH = 2, 4, 64
N_LETTERS = 3  # that the rows of a place begin with
BATCH, N_EVALUATED, RATE, EVERY = 4, 16, 1e-2, 25
EXACT = "exact attention"


def read_text():
    """Return the size of the alphabet, and the training and held-out parts of the text."""
    text = "".join(topics[name] for name in sorted(topics))
    numbers = {letter: i for i, letter in enumerate(ALPHABET)}
    tokens = torch.tensor([numbers[letter] for letter in text])
    n_train = int(0.9 * len(tokens))
    return len(ALPHABET), tokens[:n_train], tokens[n_train:]


# ---------------------------------------------------------------- attentions


class Exact(nn.Module):
    """Torch's own."""

    def forward(self, query, key, value):
        """Return exact causal attention."""
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class Nothing(nn.Module):
    """What there is to be gained: a model that sees the last letters alone."""

    def forward(self, query, key, value):
        """Return zeros."""
        return torch.zeros_like(value)


class PerformerPytorch(nn.Module):
    """FAVOR+ by the formula of performer-pytorch: its epsilons, its number of features."""

    def __init__(self, width):
        super().__init__()
        n_features = int(width * math.log(width))
        n_blocks = -(-n_features // width)
        blocks = [torch.linalg.qr(torch.randn(width, width))[0].T for _ in range(n_blocks)]
        lengths = torch.randn(n_features, width).norm(dim=1, keepdim=True)
        self.register_buffer("projections", lengths * torch.cat(blocks)[:n_features])

    def features(self, rows, axes):
        """Return the features of rows, less a constant exponent."""
        rows = rows / rows.shape[-1] ** 0.25
        products = rows @ self.projections.T
        exponents = products - rows.square().sum(dim=-1, keepdim=True) / 2
        largest = products.amax(dim=axes, keepdim=True).detach()
        return (torch.exp(exponents - largest) + 1e-4) / math.sqrt(len(self.projections))

    def forward(self, query, key, value):
        """Return causal attention of the features."""
        of_query, of_key = self.features(query, -1), self.features(key, (-2, -1))
        weights = torch.tril(of_query @ of_key.mT)
        added = 1e-6 * of_query.sum(dim=-1, keepdim=True)
        return weights @ value / (weights.sum(dim=-1, keepdim=True) + added)


def elu():
    """Return attention with the features elu(x) + 1."""
    feature_map = GeneralizedMap(nonlinearity="elu", projection="identity")
    return RandomFeatureAttention(feature_map, is_causal=True, random_state=0)


ATTENTIONS = {
    EXACT: Exact,
    "RandomFeatureAttention": lambda: RandomFeatureAttention(is_causal=True, random_state=0),
    "elu features": elu,
    "performer-pytorch": lambda: PerformerPytorch(WIDTH // N_HEADS),
    "no attention": Nothing,
}


# ---------------------------------------------------------------- the model


class Layer(nn.Module):
    """Attention and a network, each on normalised rows and added to what came in."""

    def __init__(self, attend, width=WIDTH):
        super().__init__()
        self.attend = attend
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.to_parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        hidden = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.network = nn.Sequential(*hidden)

    def forward(self, rows):
        """Return rows of the same shape (batch, length, width)."""
        parts = self.to_parts(self.norms[0](rows)).unflatten(-1, (3, N_HEADS, -1))
        attended = self.attend(*parts.permute(2, 0, 3, 1, 4))
        rows = rows + self.out(attended.transpose(1, 2).flatten(2))
        return rows + self.network(self.norms[1](rows))


class LanguageModel(nn.Module):
    """Logits of the next letter; `attention` makes what every layer attends with."""

    def __init__(self, n_letters, length, attention):
        super().__init__()
        self.letters = nn.ModuleList([nn.Embedding(n_letters, WIDTH) for _ in range(N_LETTERS)])
        self.places = nn.Embedding(length, WIDTH)
        self.layers = nn.ModuleList([Layer(Exact()) for _ in range(N_LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, n_letters))
        for layer in self.layers:  # afterwards, so that all models start from the same weights
            layer.attend = attention()

    def loss(self, tokens):
        """Return the mean loss of all letters but the first, in nats."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        rows = self.places.weight[: inputs.shape[1]]
        for i, letters in enumerate(self.letters):  # the letters at and before a place
            rows = rows + functional.pad(letters(inputs), (0, 0, i, 0))[:, : inputs.shape[1]]
        for layer in self.layers:
            rows = layer(rows)
        return functional.cross_entropy(self.head(rows).flatten(0, 1), targets.flatten())


def train(attention, n_steps, length, seed=0):
    """Return steps, losses of held-out text after them, and the seconds of training."""
    torch.manual_seed(seed)
    model = LanguageModel(len(ALPHABET), length, attention)
    return train_model(model, n_steps, length, RATE, seed + 1)


def train_model(model, n_steps, length, rate, seed):
    """Train a model, and return what `train` does."""
    _, text, held_out = read_text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=n_steps)
    places = torch.linspace(0, len(held_out) - length - 1, N_EVALUATED).long()
    evaluated = held_out[places[:, None] + torch.arange(length + 1)]
    generator, losses, seconds = torch.Generator().manual_seed(seed), {}, 0.0
    for step in range(n_steps + 1):
        if step % EVERY == 0 or step == n_steps:
            with torch.no_grad():
                losses[step] = model.eval().loss(evaluated).item()
        if step < n_steps:
            starts = torch.randint(len(text) - length, (BATCH, 1), generator=generator)
            start = time.perf_counter()
            optimizer.zero_grad()
            model.train().loss(text[starts + torch.arange(length + 1)]).backward()
            optimizer.step()
            schedule.step()
            seconds += time.perf_counter() - start
    return list(losses), list(losses.values()), seconds


def plot(curves, path):
    """Save the curves of all attentions."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, (steps, losses, _)), style in zip(
        curves.items(), ("k-", "C0--", "C1-.", "C3:", "0.6"), strict=True
    ):
        axes.plot(steps, losses, style, label=name)
    axes.set(xlabel="steps", ylabel="loss of held-out text (nats per letter)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def main():
    """Train all and show what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=512, help="letters of a sequence")
    options = parser.parse_args()
    curves = {}
    print(f"{'attention':24} {'loss':>6} {'to exact':>9} {'seconds':>8}")
    for name, attention in ATTENTIONS.items():
        curves[name] = train(attention, options.steps, options.length)
        last, exact = curves[name][1][-1], curves[EXACT][1][-1]
        print(f"{name:24} {last:6.3f} {last / exact - 1:9.1%} {curves[name][2]:8.1f}", flush=True)
    path = OUTPUT / "train_torch.png"
    plot(curves, path)
    print(f"Curves: {path}")


if __name__ == "__main__":
    main()
