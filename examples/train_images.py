"""Train a small image classifier, with and without a mask of relative positions.

    python examples/train_images.py [--steps 500] [--seeds 3]

A transformer (2 layers, 4 heads, width 32) learns to classify scikit-learn's digits. Each of their
8 x 8 pixels is a token, and the class is predicted from the mean of the output rows. Attention is
exact or uses random features, which are fitted to a batch every 25 steps. Either may have a weight
for every head and every offset between two pixels, trained with the model; for the features, this
is a `ToeplitzMask` with two axes. Positions are known from learned embeddings, or from this mask
alone. This is the experiment of section 4.6.2 of Likhosherstov's thesis (2022) on far smaller
images. Prints the accuracy and loss on held-out images (mean and range over seeds) and the accuracy
of a nearest neighbour and of an SVC, and saves the curves to examples/output. Takes about seven
minutes on two cores.
"""

import argparse
import warnings

import numpy as np
import torch
from joblib import Parallel, delayed
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from torch import nn
from torch.nn import functional
from train_features import Refitted
from train_torch import N_HEADS, N_LAYERS, OUTPUT, Layer, Nothing

from skrf import OptimalPositiveRF
from skrf.attention import ToeplitzMask
from skrf.exceptions import FeatureCollapseWarning

GRID, WIDTH, N_TRAIN = (8, 8), 32, 1000
BATCH, RATE, EVERY = 32, 1e-2, 25
SPREAD = 2.0  # of the logarithms of initial weights: from weights of 1, masks learn slowly


class Offsets(nn.Module):
    """A weight for every head and offset, the exponential of a parameter."""

    def __init__(self):
        super().__init__()
        sizes = [2 * n - 1 for n in GRID]
        self.logarithms = nn.Parameter(SPREAD * torch.randn(N_HEADS, *sizes))

    def forward(self):
        """Return the mask of a call."""
        return ToeplitzMask(self.logarithms.exp(), shape=GRID)


class Exact(nn.Module):
    """Torch's own, with the logarithms of the weights as a bias."""

    def __init__(self, mask=None):
        super().__init__()
        self.mask = mask
        places = torch.cartesian_prod(*(torch.arange(n) for n in GRID))
        offsets = places[:, None] - places + torch.tensor(GRID) - 1
        self.offsets = offsets.unbind(dim=-1)

    def forward(self, query, key, value):
        """Return exact attention."""
        bias = None if self.mask is None else self.mask.logarithms[:, *self.offsets]
        return functional.scaled_dot_product_attention(query, key, value, bias)


ATTENTIONS = {
    "exact, mask": lambda: Exact(Offsets()),
    "exact": Exact,
    "features, mask": lambda: Refitted(OptimalPositiveRF(64), mask=Offsets()),
    "features": lambda: Refitted(OptimalPositiveRF(64)),
    "no attention": Nothing,
}
SETTINGS = {False: "without embeddings of places", True: "with embeddings of places"}


class Classifier(nn.Module):
    """Logits of the classes; `attention` makes what every layer attends with."""

    def __init__(self, attention, has_places):
        super().__init__()
        self.pixels = nn.Linear(1, WIDTH)
        places = torch.randn(GRID[0] * GRID[1], WIDTH)
        self.places = nn.Parameter(places) if has_places else None
        self.layers = nn.ModuleList([Layer(Nothing(), WIDTH) for _ in range(N_LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))
        for layer in self.layers:  # afterwards, so that all models start from the same weights
            layer.attend = attention()

    def forward(self, images):
        """Return logits (batch, 10) of images (batch, 64)."""
        rows = self.pixels(images[..., None])
        if self.places is not None:
            rows = rows + self.places
        for layer in self.layers:
            rows = layer(rows)
        return self.head(rows.mean(dim=1))


def split(seed):
    """Return training and held-out images and their classes."""
    images, labels = load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype(np.float32)
    return train_test_split(images, labels, train_size=N_TRAIN, stratify=labels, random_state=seed)


def train(attention, has_places, n_steps, seed):
    """Return steps, and the accuracies and losses on held-out images after them."""
    torch.set_num_threads(1)  # models are trained side by side
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the loss says what it costs
    images, held_out, labels, truth = map(torch.from_numpy, split(seed))
    torch.manual_seed(seed)
    model = Classifier(attention, has_places)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=n_steps)
    generator, scores = torch.Generator().manual_seed(seed), {}
    for step in range(1, n_steps + 1):
        rows = torch.randint(len(images), (BATCH,), generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(model.train()(images[rows]), labels[rows]).backward()
        optimizer.step()
        schedule.step()
        if step % EVERY == 0 or step == n_steps:
            with torch.no_grad():
                logits = model.eval()(held_out)
            accuracy = (logits.argmax(dim=1) == truth).double().mean().item()
            scores[step] = accuracy, functional.cross_entropy(logits, truth).item()
    return list(scores), *np.transpose(list(scores.values()))


def plot(curves, path):
    """Save the mean accuracies and their range over seeds, side by side."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    colours = {"exact": "k", "features": "C0", "no attention": "0.6"}
    for axes, setting in zip(panels, SETTINGS.values(), strict=True):
        for name, (steps, accuracies) in curves[setting].items():
            kind, _, mask = name.partition(", ")
            style = "-" if mask or kind == "no attention" else "--"
            axes.plot(steps, accuracies.mean(axis=0), style, color=colours[kind], label=name)
            ends = accuracies.min(axis=0), accuracies.max(axis=0)
            axes.fill_between(steps, *ends, color=colours[kind], alpha=0.15, linewidth=0)
        axes.set(xlabel="steps", title=setting, ylim=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy on held-out images")
    panels[1].legend(frameon=False, loc="lower right")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def spread(values, digits):
    """Return the mean and the range of values as text."""
    mean, least, most = (f"{x:.{digits}f}" for x in (np.mean(values), min(values), max(values)))
    return f"{mean} ({least} to {most})"


def main():
    """Train all and show what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)  # RATE and SPREAD were chosen with seed 0
    runs = Parallel(n_jobs=-1, return_as="generator")(
        delayed(train)(attention, has_places, options.steps, seed)
        for has_places in SETTINGS
        for attention in ATTENTIONS.values()
        for seed in seeds
    )
    curves = {}
    for setting in SETTINGS.values():
        print(f"{setting:30} {'accuracy':24} loss")
        curves[setting] = {}
        for name in ATTENTIONS:
            steps, accuracies, losses = zip(*(next(runs) for _ in seeds), strict=True)
            curves[setting][name] = steps[0], np.array(accuracies)
            last = [of_run[-1] for of_run in accuracies], [of_run[-1] for of_run in losses]
            print(f"  {name:28} {spread(last[0], 3):24} {spread(last[1], 2)}", flush=True)
    print("not trained in steps")
    for name, model in {"nearest neighbour": KNeighborsClassifier(1), "SVC": SVC()}.items():
        scores = []
        for images, held_out, labels, truth in map(split, seeds):
            scores.append(model.fit(images, labels).score(held_out, truth))
        print(f"  {name:28} {spread(scores, 3)}")
    path = OUTPUT / "train_images.png"
    plot(curves, path)
    print(f"Curves: {path}")


if __name__ == "__main__":
    main()
