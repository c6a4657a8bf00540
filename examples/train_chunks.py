"""Train a language model of letters on long sequences in chunks, then write text letter by letter.

    python examples/train_chunks.py [--steps 200] [--length 4096] [--chunk 256]

A causal torch transformer (2 layers, 4 heads, width 64) learns Python's own help from sequences of
thousands of letters. It is trained twice, from the same weights on the same batches: with exact
attention on the whole sequence, and with `RandomFeatureAttention` through `chunked_loss`, which
holds the activations of one chunk at a time. Prints the loss on held-out text and the training
time, then writes letters one at a time, each from the attention state after the previous one. Takes
about ten minutes on two cores.
"""

import argparse
import time
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from train_torch import ALPHABET, WIDTH, Exact, Layer, read_text

from skrf.torch import RandomFeatureAttention, chunked_loss

N_LAYERS, RATE, EVERY, N_WRITTEN = 2, 1e-2, 50, 300


class LanguageModel(nn.Module):
    """Logits of the next letter from a letter, the one before, and attention to all earlier ones.

    All parts but attention act on single positions, so that chunks give the loss of the whole.
    """

    def __init__(self, n_letters, attention):
        super().__init__()
        self.letters = nn.ModuleList([nn.Embedding(n_letters, WIDTH) for _ in range(2)])
        self.layers = nn.ModuleList([Layer(Exact()) for _ in range(N_LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, n_letters))
        for layer in self.layers:  # afterwards, so that all models start from the same weights
            layer.attend = attention()

    def forward(self, now, before):
        """Return logits for the letters of some positions, and the letters before them."""
        rows = self.letters[0](now) + self.letters[1](before)
        for layer in self.layers:
            rows = layer(rows)
        return self.head(rows)

    def loss(self, tokens, part):
        """Return the summed loss of some positions of sequences with two letters before the first.

        Position i predicts letter i + 2 from the letters i + 1 and i.
        """
        logits = self(tokens[:, 1:-1][:, part], tokens[:, :-2][:, part])
        return functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 2:][:, part].flatten(), reduction="sum"
        )


def train(model, options, *, is_chunked):
    """Train a model, and return its mean loss of held-out text and the seconds of training."""
    n_letters, text, held_out = read_text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=options.steps)
    generator, seconds, length = torch.Generator().manual_seed(1), 0.0, options.length
    evaluated = held_out[: length + 2][None]
    for step in range(options.steps + 1):
        if step % EVERY == 0 or step == options.steps:
            with torch.no_grad():
                loss = model.eval().loss(evaluated, slice(None)).item() / length
            print(f"  step {step:4}: {loss:.3f} nats per letter", flush=True)
        if step < options.steps:
            start = torch.randint(len(text) - length - 2, (), generator=generator)
            loss_of = partial(model.train().loss, text[start : start + length + 2][None])
            begin = time.perf_counter()
            optimizer.zero_grad()
            if is_chunked:
                loss = chunked_loss(loss_of, length, chunk_size=options.chunk, modules=model)
            else:
                loss = loss_of(slice(None))
            (loss / length).backward()
            optimizer.step()
            schedule.step()
            seconds += time.perf_counter() - begin
    return loss, seconds


class Streaming(nn.Module):
    """Attention that keeps a state, so that every call continues the last one."""

    def __init__(self, attend):
        super().__init__()
        self.attend, self.state = attend, attend.init_state()

    def forward(self, query, key, value):
        """Return attention of the next positions to all positions so far."""
        out, self.state = self.attend.step(query, key, value, self.state)
        return out


@torch.no_grad()
def write(model, prompt, n_letters):
    """Return letters that a model writes after a prompt, and the seconds of each."""
    for layer in model.eval().layers:
        layer.attend = Streaming(layer.attend)
    torch.manual_seed(2)
    letters, seconds = prompt.tolist(), []
    logits = model(prompt[None, 1:], prompt[None, :-1])
    for _ in range(n_letters):
        start = time.perf_counter()
        chances = torch.softmax(2 * logits[0, -1], dim=0)
        letters.append(torch.multinomial(chances, 1).item())
        now, before = torch.tensor(letters[-1:])[None], torch.tensor(letters[-2:-1])[None]
        logits = model(now, before)
        seconds.append(time.perf_counter() - start)
    return letters, seconds


def main():
    """Train both and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=4096, help="letters of a sequence")
    parser.add_argument("--chunk", type=int, default=256, help="letters of a chunk")
    options = parser.parse_args()
    n_letters, _, held_out = read_text()

    def features():
        return RandomFeatureAttention(is_causal=True, random_state=0)

    for name, attention in (("exact attention, whole", Exact), ("features, in chunks", features)):
        torch.manual_seed(0)
        model = LanguageModel(n_letters, attention)
        print(name)
        _, seconds = train(model, options, is_chunked=attention is features)
        print(f"  {seconds:.1f} seconds", flush=True)
    letters, seconds = write(model, held_out[:200], N_WRITTEN)
    print("".join(ALPHABET[letter] for letter in letters[200:]))
    first, last = (sum(seconds[at : at + 50]) / 50 for at in (0, len(seconds) - 50))
    print(f"{1000 * first:.2f} ms for each of the first letters, {1000 * last:.2f} ms of the last")


if __name__ == "__main__":
    main()
