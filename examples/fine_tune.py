"""Fine-tune a language model in chunks, as on a device with little memory.

    python examples/fine_tune.py [--steps 200] [--length 512] [--chunk 64] [--seeds 3]

These are the experiments of sections 5.6.4 and 5.6.5 of Likhosherstov's thesis (2022), on the far
smaller model and text of `train_chunks.py`:

- a model is trained with gradients of whole sequences, with those of `chunked_loss`, and with the
  former for the first half of the steps and the latter for the second half;
- the trained model sees the first half of an unseen passage, takes one step of gradient descent on
  its loss through `chunked_loss`, and predicts the second half. The learning rate of this step is
  chosen on other passages.

Prints the loss on held-out text in nats per letter, and the seconds per step. Takes about ten
minutes on two cores.
"""

import argparse
import copy
import time
import warnings
from functools import partial

import numpy as np
import torch
from train_chunks import RATE, LanguageModel
from train_torch import read_text

from skrf.exceptions import FeatureCollapseWarning
from skrf.torch import RandomFeatureAttention, chunked_loss

BATCH, N_EVALUATED, N_PASSAGES = 8, 16, 100
RATES = 0.03, 0.1, 0.3, 1.0
SCHEDULES = {  # the share of steps after which gradients come from chunks
    "whole": 1.0,
    "whole, then chunks": 0.5,
    "chunks": 0.0,
}


def mean_loss(model, tokens, chunk=None):
    """Return the mean loss of sequences with two letters before the first, whole or in chunks."""
    loss_of, length = partial(model.loss, tokens), tokens.shape[1] - 2
    if chunk is None:
        return loss_of(slice(None)) / (len(tokens) * length)
    return chunked_loss(loss_of, length, chunk_size=chunk, modules=model) / (len(tokens) * length)


def train(options, share, seed):
    """Return a model, its loss of held-out text, and the median seconds of a step at the end."""
    n_letters, text, held_out = read_text()
    torch.manual_seed(seed)
    model = LanguageModel(n_letters, partial(RandomFeatureAttention, is_causal=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=options.steps)
    generator, window, seconds = torch.Generator().manual_seed(seed), options.length + 2, []
    for step in range(options.steps):
        starts = torch.randint(len(text) - window, (BATCH, 1), generator=generator)
        tokens = text[starts + torch.arange(window)]
        begin = time.perf_counter()
        optimizer.zero_grad()
        chunk = options.chunk if step >= share * options.steps else None
        mean_loss(model, tokens, chunk).backward()
        optimizer.step()
        schedule.step()
        seconds.append(time.perf_counter() - begin)
    places = torch.linspace(0, len(held_out) - window, N_EVALUATED).long()
    with torch.no_grad():
        loss = mean_loss(model.eval(), held_out[places[:, None] + torch.arange(window)]).item()
    return model, loss, np.median(seconds[-20:])


def after_one_step(model, passage, rate, options):
    """Return losses of the second half of a passage, before and after a step on the first."""
    first, second = passage[None, : options.length + 2], passage[None, options.length :]
    model = copy.deepcopy(model)
    mean_loss(model, first, options.chunk).backward()
    losses = []
    with torch.no_grad():
        for factor in (0.0, rate):
            for parameter in model.parameters():
                parameter -= factor * parameter.grad
            losses.append(mean_loss(model, second).item())
    return losses


def main():
    """Run both experiments and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=512, help="letters of a sequence")
    parser.add_argument("--chunk", type=int, default=64, help="letters of a chunk")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the loss says what it costs
    print(f"{'gradients':20} {'loss':>6} {'least':>6} {'most':>6} {'s a step':>9}")
    models = []
    for name, share in SCHEDULES.items():
        runs = [train(options, share, seed) for seed in range(options.seeds)]
        models.append(runs[0][0])
        losses, seconds = np.array([run[1:] for run in runs]).T
        row = f"{losses.mean():6.3f} {losses.min():6.3f} {losses.max():6.3f}"
        print(f"{name:20} {row} {seconds.mean():9.3f}", flush=True)
    held_out, window = read_text()[2], 2 * options.length + 2
    places = torch.linspace(0, len(held_out) - window, N_PASSAGES + N_PASSAGES // 2).long()
    passages = held_out[places[:, None] + torch.arange(window)]
    tuned, judged = passages[2::3], passages[torch.arange(len(passages)) % 3 != 2]
    of_rates = [
        np.mean([after_one_step(models[0], passage, rate, options)[1] for passage in tuned])
        for rate in RATES
    ]
    rate = RATES[int(np.argmin(of_rates))]
    begin = time.perf_counter()
    losses = np.array([after_one_step(models[0], passage, rate, options) for passage in judged])
    seconds = (time.perf_counter() - begin) / len(judged)
    gain = losses[:, 0] - losses[:, 1]
    before, after = losses.mean(axis=0)
    print(
        f"one step of rate {rate} on {len(judged)} passages: {before:.3f} before, {after:.3f} after"
    )
    print(f"gain {gain.mean():.4f} +- {gain.std(ddof=1) / np.sqrt(len(gain)):.4f}, {seconds:.2f} s")


if __name__ == "__main__":
    main()
