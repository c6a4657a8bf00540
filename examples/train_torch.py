"""Train small torch models with exact attention, and with random features in its place.

    python examples/train_torch.py [--only attention] [--steps 300] [--length 512] [--seeds 1]

Causal transformers (2 layers, 4 heads, width 64) learn Python's own help, letter by letter. Within
an experiment, all start from the same weights and see the same batches. The experiments are those
of Likhosherstov's thesis (2022) and of Reid et al., Simplex random features (2023), on far smaller
models and texts:

- attention: `RandomFeatureAttention` at its defaults, the features elu(x) + 1 of linear
  transformers, and no attention;
- features: trigonometric (FAVOR), positive (FAVOR+) and optimal positive features (FAVOR++, fitted
  to a batch every 25 steps), fixed or redrawn before every step (sections 4.6.1 and 6.6.3);
- couplings: independent, orthogonal and simplex projections, redrawn (section 5.4 of the paper);
- generalised: the eight nonlinearities of generalised attention (section 3.8.5);
- decays: weights that decrease exponentially with the distance, at rates as in ALiBi;
- swap: features replace the exact attention of a trained model, which is trained on (section 3.8);
- images: a classifier of digits, whose pixels are tokens, with and without a mask of relative
  positions (section 4.6.2);
- fine-tune: gradients of whole sequences and of chunks, and one step of gradient descent on the
  first half of an unseen passage before the second is predicted (sections 5.6.4 and 5.6.5).

Prints the loss on held-out text in nats per letter, and saves curves to examples/output. The first
takes two minutes on two cores, the others up to ten.
"""

import argparse
import copy
import time
import warnings
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from torch import nn
from torch.nn import functional

from skrf import OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.attention import GeneralizedMap, ToeplitzMask
from skrf.exceptions import FeatureCollapseWarning
from skrf.torch import RandomFeatureAttention, chunked_loss

OUTPUT = Path(__file__).parent / "output"
ALPHABET = sorted({*"".join(topics.values())})
N_LAYERS, N_HEADS, WIDTH = 2, 4, 64
BATCH, N_EVALUATED, RATE, EVERY = 4, 16, 1e-2, 25
N_FEATURES, FIT_EVERY = 64, 25
RATES = [2.0 ** -(2 * i) for i in range(1, 5)]  # of the decays of four heads
UNORDERED = 3.0  # nats per letter of the frequencies of letters, rounded up
GRID, IMAGE_WIDTH, N_IMAGES = (8, 8), 32, 1000
SPREAD = 2.0  # of the logarithms of initial weights: from weights of 1, masks learn slowly
STEP_RATES, N_PASSAGES = (0.03, 0.1, 0.3, 1.0), 100


def read_text():
    """Return the training and held-out parts of the text as numbers."""
    text = "".join(topics[name] for name in sorted(topics))
    numbers = {letter: i for i, letter in enumerate(ALPHABET)}
    tokens = torch.tensor([numbers[letter] for letter in text])
    n_train = int(0.9 * len(tokens))
    return tokens[:n_train], tokens[n_train:]


# ---------------------------------------------------------------- attention


class Exact(nn.Module):
    """Torch's own causal attention, with a decay of the weights for every head if asked for."""

    def __init__(self, rates=None):
        super().__init__()
        self.rates = rates

    def forward(self, query, key, value):
        """Return exact attention."""
        if self.rates is None:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        positions = torch.arange(query.shape[-2], dtype=query.dtype)
        lags = positions[:, None] - positions
        bias = torch.where(lags >= 0, -torch.tensor(self.rates)[:, None, None] * lags, -torch.inf)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)


class Nothing(nn.Module):
    """What there is to be gained: a model that sees the last letters alone."""

    def forward(self, query, key, value):
        """Return zeros."""
        return torch.zeros_like(value)


class Refitted(nn.Module):
    """Attention with a map that is fitted to a batch now and then, and perhaps redrawn."""

    def __init__(self, feature_map, is_redrawn=False, **options):
        super().__init__()
        self.attend = RandomFeatureAttention(feature_map, random_state=0, **options)
        self.is_redrawn, self.n_calls = is_redrawn, 0

    def forward(self, query, key, value):
        """Return attention."""
        if self.training:
            if self.n_calls % FIT_EVERY == 0:
                self.attend.fit(query, key, value)
            elif self.is_redrawn:
                self.attend.redraw()
            self.n_calls += 1
        return self.attend(query, key, value)


class Offsets(nn.Module):
    """A mask with a weight, the exponential of a parameter, for every head and offset."""

    def __init__(self):
        super().__init__()
        sizes = [2 * n - 1 for n in GRID]
        self.logarithms = nn.Parameter(SPREAD * torch.randn(N_HEADS, *sizes))

    def forward(self):
        """Return the mask of a call."""
        return ToeplitzMask(self.logarithms.exp(), shape=GRID)


class ExactOnImages(nn.Module):
    """Torch's own attention, with the logarithms of the weights of a mask as a bias."""

    def __init__(self, mask=None):
        super().__init__()
        self.mask = mask
        pixels = torch.cartesian_prod(*(torch.arange(n) for n in GRID))
        self.offsets = (pixels[:, None] - pixels + torch.tensor(GRID) - 1).unbind(dim=-1)

    def forward(self, query, key, value):
        """Return exact attention."""
        bias = None if self.mask is None else self.mask.logarithms[:, *self.offsets]
        return functional.scaled_dot_product_attention(query, key, value, bias)


def features(feature_map=None):
    """Return causal attention with fixed features."""
    return RandomFeatureAttention(feature_map, is_causal=True, random_state=0)


def refitted(feature_map, is_redrawn=False, mask=None):
    """Return a function that makes causal attention with a feature map."""
    return lambda: Refitted(feature_map, is_redrawn, is_causal=True, mask=mask)


ATTENTIONS = {
    "attention": {
        "RandomFeatureAttention": features,
        "elu features": lambda: features(GeneralizedMap(nonlinearity="elu", projection="identity")),
    },
    "features": {
        f"{name}, {draw}": refitted(kind(N_FEATURES), is_redrawn)
        for name, kind in (
            ("trigonometric", RFFSampler),
            ("positive", PositiveRF),
            ("optimal positive", OptimalPositiveRF),
        )
        for draw, is_redrawn in (("fixed", False), ("redrawn", True))
    },
    "couplings": {
        coupling: refitted(OptimalPositiveRF(N_FEATURES, coupling=coupling), True)
        for coupling in ("iid", "orthogonal", "simplex")
    },
    "generalised": {
        name: refitted(GeneralizedMap(N_FEATURES, nonlinearity=function))
        for name, function in {
            **{name: name for name in ("sigmoid", "exp", "relu", "abs")},
            **{"gelu": functional.gelu, "cos": torch.cos, "tanh": torch.tanh},
            "identity": lambda z: z,
        }.items()
    },
    "decays": {
        "exact, decays": lambda: Exact(RATES),
        "optimal positive": refitted(OptimalPositiveRF(N_FEATURES)),
        **{
            f"{name}, decays": refitted(feature_map, mask=ToeplitzMask.decay(RATES))
            for name, feature_map in (
                ("optimal positive", OptimalPositiveRF(N_FEATURES)),
                ("relu", GeneralizedMap(N_FEATURES)),
            )
        },
    },
}
SWAPPED = {
    "exact attention": Exact,
    "optimal positive, 256": lambda: features(OptimalPositiveRF(256)),
    "optimal positive, 64": lambda: features(OptimalPositiveRF(64)),
    "trigonometric, 256": lambda: features(RFFSampler(256)),
}
ON_IMAGES = {
    "exact, mask": lambda: ExactOnImages(Offsets()),
    "exact": ExactOnImages,
    "features, mask": lambda: Refitted(OptimalPositiveRF(64), mask=Offsets()),
    "features": lambda: Refitted(OptimalPositiveRF(64)),
    "no attention": Nothing,
}


# ---------------------------------------------------------------- models


class Layer(nn.Module):
    """Attention and a network, each on normalised rows and added to what came in."""

    def __init__(self, width):
        super().__init__()
        self.attend = Nothing()
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


class Transformer(nn.Module):
    """Layers between the embeddings of a subclass and a linear head."""

    def complete(self, attention, width, n_outputs):
        """Add layers and head; `attention` makes what every layer attends with."""
        self.layers = nn.ModuleList([Layer(width) for _ in range(N_LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_outputs))
        self.replace(attention)  # afterwards, so that all models start from the same weights

    def replace(self, attention):
        """Attend with something else from now on."""
        for layer in self.layers:
            layer.attend = attention()
        return self

    def through(self, rows):
        """Return rows after all layers."""
        for layer in self.layers:
            rows = layer(rows)
        return rows


class LanguageModel(Transformer):
    """Logits of the next letter from its position and the last three letters of every position."""

    def __init__(self, length, attention):
        super().__init__()
        self.letters = nn.ModuleList([nn.Embedding(len(ALPHABET), WIDTH) for _ in range(3)])
        self.positions = nn.Embedding(length, WIDTH)
        self.complete(attention, WIDTH, len(ALPHABET))

    def loss(self, tokens):
        """Return the mean loss of all letters but the first, in nats."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        rows = self.positions.weight[: inputs.shape[1]]
        for i, letters in enumerate(self.letters):  # the letters at and before a position
            rows = rows + functional.pad(letters(inputs), (0, 0, i, 0))[:, : inputs.shape[1]]
        return functional.cross_entropy(
            self.head(self.through(rows)).flatten(0, 1), targets.flatten()
        )


class LongModel(Transformer):
    """Logits of the next letter from two letters, and from attention to all earlier positions.

    All parts but attention act on single positions, so that chunks give the loss of the whole.
    """

    def __init__(self, attention):
        super().__init__()
        self.letters = nn.ModuleList([nn.Embedding(len(ALPHABET), WIDTH) for _ in range(2)])
        self.complete(attention, WIDTH, len(ALPHABET))

    def forward(self, letters, previous):
        """Return logits for the letters of some positions, and the letters before them."""
        return self.head(self.through(self.letters[0](letters) + self.letters[1](previous)))

    def sum_of_losses(self, tokens, part):
        """Return the summed loss of positions; position i predicts letter i + 2 from two."""
        logits = self(tokens[:, 1:-1][:, part], tokens[:, :-2][:, part])
        targets = tokens[:, 2:][:, part]
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def loss(self, tokens, chunk=None):
        """Return the mean loss of sequences with two letters before the first."""
        loss_of, length = partial(self.sum_of_losses, tokens), tokens.shape[1] - 2
        if chunk is None:
            total = loss_of(slice(None))
        else:
            total = chunked_loss(loss_of, length, chunk_size=chunk, modules=self)
        return total / (len(tokens) * length)


class Classifier(Transformer):
    """Logits of the classes of images from the mean of their pixels."""

    def __init__(self, attention, has_positions):
        super().__init__()
        self.pixels = nn.Linear(1, IMAGE_WIDTH)
        positions = torch.randn(GRID[0] * GRID[1], IMAGE_WIDTH)
        self.positions = nn.Parameter(positions) if has_positions else None
        self.complete(attention, IMAGE_WIDTH, 10)

    def forward(self, images):
        """Return logits (batch, 10) of images (batch, 64)."""
        rows = self.pixels(images[..., None])
        if self.positions is not None:
            rows = rows + self.positions
        return self.head(self.through(rows).mean(dim=1))


# ---------------------------------------------------------------- training


def train(model, loss_of_step, evaluate, n_steps, rate=RATE):
    """Train a model; return {step: evaluation} and the seconds of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=n_steps)
    evaluations, seconds = {}, []
    for step in range(n_steps + 1):
        if step % EVERY == 0 or step == n_steps:
            with torch.no_grad():
                evaluations[step] = evaluate(model.eval())
        if step < n_steps:
            start = time.perf_counter()
            optimizer.zero_grad()
            loss_of_step(model.train(), step).backward()
            optimizer.step()
            schedule.step()
            seconds.append(time.perf_counter() - start)
    return evaluations, seconds


def passages(tokens, n, window):
    """Return stretches of a text, evenly spread over it."""
    starts = torch.linspace(0, len(tokens) - window, n).long()
    return tokens[starts[:, None] + torch.arange(window)]


def train_on_text(model, n_steps, length, seed, rate=RATE):
    """Train a `LanguageModel` on random stretches of text; return what `train` does."""
    text, held_out = read_text()
    evaluated = passages(held_out, N_EVALUATED, length + 1)
    generator = torch.Generator().manual_seed(seed)

    def loss_of_step(model, step):
        starts = torch.randint(len(text) - length, (BATCH, 1), generator=generator)
        return model.loss(text[starts + torch.arange(length + 1)])

    return train(model, loss_of_step, lambda model: model.loss(evaluated).item(), n_steps, rate)


def compare(experiment, options):
    """Train language models that differ in their attention."""
    methods = {"exact attention": Exact, "no attention": Nothing, **ATTENTIONS[experiment]}
    curves = {}
    print(f"{'attention':28} {'loss':>6} {'least':>6} {'most':>6} {'diverged':>9} {'seconds':>8}")
    for name, attention in methods.items():
        losses, seconds = [], []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            model = LanguageModel(options.length, attention)
            evaluations, times = train_on_text(model, options.steps, options.length, seed + 1)
            losses.append(list(evaluations.values()))
            seconds.append(sum(times))
        losses = np.nan_to_num(losses, nan=np.inf)
        last = losses[:, -1]
        row = f"{last.mean():6.3f} {last.min():6.3f} {last.max():6.3f} {np.sum(last > UNORDERED):9}"
        print(f"{name:28} {row} {np.mean(seconds):8.1f}", flush=True)
        curves[name] = list(evaluations), losses
    plot({"": curves}, "loss of held-out text (nats per letter)", f"train_{experiment}.png")


def swap(options):
    """Replace the attention of a trained model, and train on."""
    torch.manual_seed(0)
    model = LanguageModel(options.length, Exact)
    evaluations, _ = train_on_text(model, options.steps, options.length, seed=1)
    print(f"trained with exact attention: {evaluations[options.steps]:.3f} nats per letter")
    curves = {}
    for name, attention in SWAPPED.items():
        other = copy.deepcopy(model).replace(attention)
        evaluations, _ = train_on_text(other, 100, options.length, seed=2, rate=RATE / 4)
        print(f"{name:24}" + "".join(f"{loss:8.3f}" for loss in evaluations.values()), flush=True)
        curves[name] = list(evaluations), np.array([list(evaluations.values())])
    plot({"after the replacement": curves}, "loss (nats per letter)", "train_swap.png")


def split_images(seed):
    """Return training and held-out images and their classes."""
    X, y = load_digits(return_X_y=True)
    X = ((X - X.mean()) / X.std()).astype(np.float32)
    return train_test_split(X, y, train_size=N_IMAGES, stratify=y, random_state=seed)


def images(options):
    """Train classifiers of images, with positions known from embeddings or from a mask alone."""
    torch.set_num_threads(1)  # the matrices are small
    seeds, panels = range(1, options.seeds + 1), {}  # rate and spread were chosen with seed 0
    for has_positions in (False, True):
        title = f"{'with' if has_positions else 'without'} embeddings of positions"
        panels[title] = {}
        print(f"{title:30} {'accuracy':24} loss")
        for name, attention in ON_IMAGES.items():
            runs = [train_on_images(attention, has_positions, options.steps, s) for s in seeds]
            scores = np.array([list(evaluations.values()) for evaluations in runs])
            panels[title][name] = list(runs[0]), scores[..., 0]
            row = f"{spread(scores[:, -1, 0], 3):24} {spread(scores[:, -1, 1], 2)}"
            print(f"  {name:28} {row}", flush=True)
    for name, model in {"nearest neighbour": KNeighborsClassifier(1), "SVC": SVC()}.items():
        splits = map(split_images, seeds)
        scores = [model.fit(X, y).score(X_test, y_test) for X, X_test, y, y_test in splits]
        print(f"  {name:28} {spread(scores, 3)}")
    plot(panels, "accuracy on held-out images", "train_images.png")


def train_on_images(attention, has_positions, n_steps, seed):
    """Return {step: (accuracy, loss)} on held-out images."""
    X, X_test, y, y_test = map(torch.from_numpy, split_images(seed))
    torch.manual_seed(seed)
    model, generator = Classifier(attention, has_positions), torch.Generator().manual_seed(seed)

    def loss_of_step(model, step):
        rows = torch.randint(len(X), (32,), generator=generator)
        return functional.cross_entropy(model(X[rows]), y[rows])

    def evaluate(model):
        logits = model(X_test)
        accuracy = (logits.argmax(dim=1) == y_test).double().mean().item()
        return accuracy, functional.cross_entropy(logits, y_test).item()

    return train(model, loss_of_step, evaluate, n_steps)[0]


def fine_tune(options):
    """Train with gradients of whole sequences and of chunks; then take one step on new passages."""
    text, held_out = read_text()
    window, models = options.length + 2, []
    evaluated = passages(held_out, N_EVALUATED, window)
    # The share of steps after which gradients come from chunks.
    for name, share in {"whole": 1.0, "whole, then chunks": 0.5, "chunks": 0.0}.items():
        losses, times = [], []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            model = LongModel(partial(RandomFeatureAttention, is_causal=True))
            generator = torch.Generator().manual_seed(seed)

            def loss_of_step(model, step, generator=generator, share=share):
                starts = torch.randint(len(text) - window, (8, 1), generator=generator)
                chunk = 64 if step >= share * options.steps else None
                return model.loss(text[starts + torch.arange(window)], chunk)

            evaluations, seconds = train(
                model, loss_of_step, lambda model: model.loss(evaluated).item(), options.steps
            )
            losses.append(evaluations[options.steps])
            times.append(np.median(seconds[-20:]))
            models.append(model)
        print(f"{name:20} {spread(losses, 3)}, {np.mean(times):.3f} s a step", flush=True)
    unseen = passages(held_out, N_PASSAGES + N_PASSAGES // 2, 2 * options.length + 2)
    is_tuned = torch.arange(len(unseen)) % 3 == 2
    rate = min(
        STEP_RATES,
        key=lambda rate: np.mean([after_a_step(models[0], p, rate)[1] for p in unseen[is_tuned]]),
    )
    losses = np.array([after_a_step(models[0], passage, rate) for passage in unseen[~is_tuned]])
    before, after = losses.mean(axis=0)
    error = np.diff(losses).std(ddof=1) / np.sqrt(len(losses))
    print(f"a step of rate {rate}: {before:.3f} before, {after:.3f} after, +- {error:.4f}")


def after_a_step(model, passage, rate):
    """Return losses of the second half of a passage, before and after a step on the first."""
    middle = len(passage) // 2 - 1
    first, second = passage[None, : middle + 2], passage[None, middle:]
    model = copy.deepcopy(model)
    model.loss(first, 64).backward()
    with torch.no_grad():
        losses = [model.loss(second).item()]
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
        return [*losses, model.loss(second).item()]


def spread(values, digits):
    """Return the mean and the range of values as text."""
    mean, least, most = (f"{x:.{digits}f}" for x in (np.mean(values), min(values), max(values)))
    return f"{mean} ({least} to {most})"


def plot(panels, label, name):
    """Save the mean of all curves, and their range over seeds, in a panel for each title."""
    figure = Figure(figsize=(3.2 + 3.2 * len(panels), 4), layout="constrained")
    baselines = {"exact attention": "k", "exact": "k", "no attention": "0.6"}
    for axes, (title, curves) in zip(
        np.atleast_1d(figure.subplots(1, len(panels), sharey=True)), panels.items(), strict=True
    ):
        kinds = {}
        for method, (steps, values) in curves.items():
            kind, _, variant = method.partition(", ")
            colour = baselines.get(kind) or f"C{kinds.setdefault(kind, len(kinds))}"
            style = "--" if variant in {"redrawn", "decays", "mask", "64"} else "-"
            axes.plot(steps, values.mean(axis=0), style, color=colour, label=method)
            ends = values.min(axis=0), values.max(axis=0)
            axes.fill_between(steps, *ends, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel="steps", title=title)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel(label)
    figure.axes[-1].legend(frameon=False)
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / name, dpi=150)
    print(f"Curves: {OUTPUT / name}")


EXPERIMENTS = {  # and their steps, letters of a sequence, and seeds
    "attention": (partial(compare, "attention"), 300, 512, 1),
    **{
        name: (partial(compare, name), 300, 256, 3)
        for name in ("features", "couplings", "generalised", "decays")
    },
    "swap": (swap, 300, 256, 1),
    "images": (images, 500, None, 3),
    "fine-tune": (fine_tune, 200, 512, 3),
}


def main():
    """Run one experiment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=EXPERIMENTS, default="attention", help="the experiment")
    for name in ("steps", "length", "seeds"):
        parser.add_argument(f"--{name}", type=int, help="default: that of the experiment")
    options = parser.parse_args()
    run, *defaults = EXPERIMENTS[options.only]
    for name, value in zip(("steps", "length", "seeds"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    # The loss says what it costs that features collapse, or that weights sum to 0.
    warnings.simplefilter("ignore", FeatureCollapseWarning)
    run(options)


if __name__ == "__main__":
    main()
