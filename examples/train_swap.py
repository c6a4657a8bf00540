"""Replace exact attention in a trained language model by random features, and train on.

    python examples/train_swap.py [--steps 300] [--more 100] [--length 256]

The model and the text are those of `train_torch.py`. A model is trained with exact attention; then
its layers get features, without training and after some more steps. Prints the loss of held-out
text after every 25 of these steps, beside that of exact attention trained as long, and saves the
curves to examples/output. This is the experiment of section 3.8 of Likhosherstov's thesis (2022) on
a far smaller model and text. Takes about five minutes on two cores.
"""

import argparse
import copy
import warnings

import torch
from matplotlib.figure import Figure
from train_torch import BATCH, EVERY, N_EVALUATED, OUTPUT, RATE, Exact, LanguageModel, read_text

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


def train(model, n_steps, rate, length, seed):
    """Train a model and return the losses of held-out text after some numbers of steps."""
    _, text, held_out = read_text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=n_steps)
    places = torch.linspace(0, len(held_out) - length - 1, N_EVALUATED).long()
    evaluated = held_out[places[:, None] + torch.arange(length + 1)]
    generator, losses = torch.Generator().manual_seed(seed), {}
    for step in range(n_steps + 1):
        if step % EVERY == 0 or step == n_steps:
            with torch.no_grad():
                losses[step] = model.eval().loss(evaluated).item()
        if step < n_steps:
            starts = torch.randint(len(text) - length, (BATCH, 1), generator=generator)
            optimizer.zero_grad()
            model.train().loss(text[starts + torch.arange(length + 1)]).backward()
            optimizer.step()
            schedule.step()
    return losses


def main():
    """Train, replace, train on, and show what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--more", type=int, default=100, help="steps after the replacement")
    parser.add_argument("--length", type=int, default=256, help="letters of a sequence")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the loss says what it costs
    torch.manual_seed(0)
    model = LanguageModel(read_text()[0], options.length, Exact)
    before = train(model, options.steps, RATE, options.length, seed=1)
    print(f"trained with exact attention: {before[options.steps]:.3f} nats per letter")
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, attention in ATTENTIONS.items():
        replaced = copy.deepcopy(model)
        for layer in replaced.layers:
            layer.attend = attention()
        losses = train(replaced, options.more, RATE / 4, options.length, seed=2)
        print(f"{name:24}" + "".join(f"{loss:8.3f}" for loss in losses.values()), flush=True)
        axes.plot(list(losses), list(losses.values()), "-o", label=name)
    axes.set(xlabel="steps after the replacement", ylabel="loss of held-out text (nats per letter)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    OUTPUT.mkdir(exist_ok=True)
    figure.savefig(OUTPUT / "train_swap.png", dpi=150)
    print(f"Curves: {OUTPUT / 'train_swap.png'}")


if __name__ == "__main__":
    main()
