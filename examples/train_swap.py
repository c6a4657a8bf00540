"""Replace exact attention in a trained language model with random features, and train further.

    python examples/train_swap.py [--steps 300] [--more 100] [--length 256]

The model and the text are those of `train_torch.py`. A model is trained with exact attention; its
attention is then replaced with random features, and training continues. Prints the loss on held-out
text right after the replacement and after every 25 further steps, next to that of exact attention
trained for as long, and saves the curves to examples/output. This is the experiment of section 3.8
of Likhosherstov's thesis (2022) on a far smaller model and text. Takes about five minutes on two
cores.
"""

import argparse
import copy
import warnings

import torch
from matplotlib.figure import Figure
from train_torch import ALPHABET, OUTPUT, RATE, Exact, LanguageModel, train_model

from skrf import OptimalPositiveRF, RFFSampler
from skrf.exceptions import FeatureCollapseWarning
from skrf.torch import RandomFeatureAttention

ATTENTIONS = {
    "exact attention": Exact,
    "optimal positive, 256": lambda: features(OptimalPositiveRF(256)),
    "optimal positive, 64": lambda: features(OptimalPositiveRF(64)),
    "trigonometric, 256": lambda: features(RFFSampler(256)),
}


def features(feature_map):
    """Return attention with a feature map."""
    return RandomFeatureAttention(feature_map, is_causal=True, random_state=0)


def main():
    """Train, replace, train on, and show what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--more", type=int, default=100, help="steps after the replacement")
    parser.add_argument("--length", type=int, default=256, help="letters of a sequence")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the loss says what it costs
    torch.manual_seed(0)
    model = LanguageModel(len(ALPHABET), options.length, Exact)
    _, losses, _ = train_model(model, options.steps, options.length, RATE, seed=1)
    print(f"trained with exact attention: {losses[-1]:.3f} nats per letter")
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, attention in ATTENTIONS.items():
        replaced = copy.deepcopy(model)
        for layer in replaced.layers:
            layer.attend = attention()
        steps, losses, _ = train_model(replaced, options.more, options.length, RATE / 4, seed=2)
        print(f"{name:24}" + "".join(f"{loss:8.3f}" for loss in losses), flush=True)
        axes.plot(steps, losses, "-o", label=name)
    axes.set(xlabel="steps after the replacement", ylabel="loss of held-out text (nats per letter)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "train_swap.png", dpi=150)
    print(f"Curves: {OUTPUT / 'train_swap.png'}")


if __name__ == "__main__":
    main()
