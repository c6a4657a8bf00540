"""Train a small language model with several kinds of features in its attention.

    python examples/train_features.py [--only features] [--steps 300] [--length 256] [--seeds 3]

The model, the text and the batches are those of `train_torch.py`; every kind has 64 features per
head. The experiments are those of Likhosherstov's thesis (2022) and of Reid et al., Simplex random
features (2023), on a far smaller model and text:

- features: trigonometric (FAVOR), positive (FAVOR+) and optimal positive features (FAVOR++, fitted
  to a batch every 25 steps), either with fixed random numbers or redrawn before every step
  (sections 4.6.1 and 6.6.3 of the thesis);
- couplings: optimal positive features with independent, orthogonal and simplex projections, redrawn
  (section 5.4 of the paper);
- generalised: the eight nonlinearities of generalised attention (section 3.8.5 of the thesis);
- decays: attention whose weights decrease exponentially with the distance, at rates as in ALiBi,
  either exact or with features, where the decay is part of the state.

Prints the mean and range of the loss on held-out text, and how many runs ended with a loss above
that of letter frequencies alone; saves the curves to examples/output. Each experiment takes about
ten minutes on two cores.
"""

import argparse
import warnings

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from train_torch import OUTPUT, Exact, Nothing, train

from skrf import OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.attention import GeneralizedMap, ToeplitzMask
from skrf.exceptions import FeatureCollapseWarning
from skrf.torch import RandomFeatureAttention

N_FEATURES, FIT_EVERY = 64, 25
RATES = [2.0 ** -(2 * i) for i in range(1, 5)]  # of the decays of four heads
UNORDERED = 3.0  # nats per letter of the frequencies of letters, rounded up
KINDS = {"trigonometric": RFFSampler, "positive": PositiveRF, "optimal positive": OptimalPositiveRF}
NONLINEARITIES = {
    "sigmoid": "sigmoid",
    "exp": "exp",
    "relu": "relu",
    "abs": "abs",
    "gelu": torch.nn.functional.gelu,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "identity": lambda z: z,
}


class Refitted(nn.Module):
    """Attention with a map that is fitted or redrawn while it is trained."""

    def __init__(self, feature_map, is_redrawn, **options):
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


class ExactDecay(nn.Module):
    """Torch's attention, whose weights fall at a rate for every head."""

    def forward(self, query, key, value):
        """Return exact causal attention with decays."""
        places = torch.arange(query.shape[-2], dtype=query.dtype)
        lags = places[:, None] - places
        bias = torch.where(lags >= 0, -torch.tensor(RATES)[:, None, None] * lags, -torch.inf)
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def of_map(feature_map, is_redrawn=False, mask=None):
    """Return what makes attention with a feature map."""
    return lambda: Refitted(feature_map, is_redrawn, is_causal=True, mask=mask)


EXPERIMENTS = {
    "features": {
        f"{name}, {draw}": of_map(kind(N_FEATURES), is_redrawn)
        for name, kind in KINDS.items()
        for draw, is_redrawn in (("fixed", False), ("redrawn", True))
    },
    "couplings": {
        coupling: of_map(OptimalPositiveRF(N_FEATURES, coupling=coupling), True)
        for coupling in ("iid", "orthogonal", "simplex")
    },
    "generalised": {
        name: of_map(GeneralizedMap(N_FEATURES, nonlinearity=function))
        for name, function in NONLINEARITIES.items()
    },
    "decays": {
        "exact, decays": ExactDecay,
        "optimal positive": of_map(OptimalPositiveRF(N_FEATURES)),
        **{
            f"{name}, decays": of_map(feature_map, mask=ToeplitzMask.decay(RATES))
            for name, feature_map in (
                ("optimal positive", OptimalPositiveRF(N_FEATURES)),
                ("relu", GeneralizedMap(N_FEATURES)),
            )
        },
    },
}
BASELINES = {"exact attention": Exact, "no attention": Nothing}


def plot(curves, path):
    """Save the mean curves and the range over seeds."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    kinds = {}
    for name, (steps, losses) in curves.items():
        kind, _, draw = name.partition(", ")
        colour = {"exact attention": "k", "no attention": "0.6"}.get(kind)
        colour = colour or f"C{kinds.setdefault(kind, len(kinds))}"
        style = "--" if draw in {"redrawn", "decays"} else "-"
        axes.plot(steps, losses.mean(axis=0), style, color=colour, label=name)
        axes.fill_between(steps, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.15)
    axes.set(xlabel="steps", ylabel="loss of held-out text (nats per letter)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def main():
    """Train all and show what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=EXPERIMENTS, default="features", help="the experiment")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=256, help="letters of a sequence")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    # The loss says what it costs that features collapse, or that weights sum to 0.
    warnings.simplefilter("ignore", FeatureCollapseWarning)
    curves = {}
    print(f"{'attention':28} {'loss':>6} {'least':>6} {'most':>6} {'diverged':>9} {'seconds':>8}")
    for name, make in {**BASELINES, **EXPERIMENTS[options.only]}.items():
        runs = [train(make, options.steps, options.length, seed) for seed in range(options.seeds)]
        losses = np.nan_to_num([losses for _, losses, _ in runs], nan=np.inf)
        curves[name] = runs[0][0], losses
        last = losses[:, -1]
        row = f"{last.mean():6.3f} {last.min():6.3f} {last.max():6.3f}"
        seconds = np.mean([seconds for *_, seconds in runs])
        print(f"{name:28} {row} {np.sum(last > UNORDERED):9} {seconds:8.1f}", flush=True)
    path = OUTPUT / f"train_{options.only}.png"
    plot(curves, path)
    print(f"Curves: {path}")


if __name__ == "__main__":
    main()
