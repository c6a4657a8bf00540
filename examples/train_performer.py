"""Train a small Performer on text that Python ships, in memory that does not grow with the text.

    python examples/train_performer.py [--steps 300]

The text is the source of a module of the standard library, read as characters. Each step takes the
gradient over 2,048 characters in chunks of 256: the activations of one chunk are held at a time.
The loss is compared with the entropy of single characters, which is what a model without any
context could reach. At the end the model writes some text of its own.
"""

import argparse
import argparse as text_source
import inspect
import time

import numpy as np
from threadpoolctl import threadpool_limits

from skrf.attention import Performer

LENGTH, CHUNK = 2048, 256


def adam(params, rate=5e-3, decay=(0.9, 0.99), epsilon=1e-8):
    """Return a function that changes the parameters by one step of Adam."""
    means = {name: np.zeros_like(value) for name, value in params.items()}
    squares = {name: np.zeros_like(value) for name, value in params.items()}
    count = 0

    def step(gradients):
        nonlocal count
        count += 1
        for name, gradient in gradients.items():
            means[name] += (1 - decay[0]) * (gradient - means[name])
            squares[name] += (1 - decay[1]) * (gradient**2 - squares[name])
            mean = means[name] / (1 - decay[0] ** count)
            size = np.sqrt(squares[name] / (1 - decay[1] ** count))
            params[name] -= rate * mean / (size + epsilon)

    return step


def main():
    """Train, report and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    text = inspect.getsource(text_source)
    alphabet = sorted(set(text))
    tokens = np.array([alphabet.index(letter) for letter in text])
    held_out, tokens = tokens[: 4 * LENGTH + 1], tokens[4 * LENGTH :]
    shares = np.bincount(tokens) / len(tokens)
    entropy = -np.sum(shares[shares > 0] * np.log(shares[shares > 0]))
    print(f"{len(tokens)} characters of {len(alphabet)} kinds, unigram entropy {entropy:.2f} nats")

    model = Performer(
        len(alphabet), n_layers=2, width=64, n_heads=4, dtype="float32", random_state=0
    )
    step = adam(model.params)
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for count in range(1, steps + 1):
        begin = rng.integers(len(tokens) - LENGTH - 1)
        loss, gradients = model.loss_and_grad(tokens[begin : begin + LENGTH + 1], CHUNK)
        step(gradients)
        if count % 50 == 0 or count == steps:
            seconds = time.perf_counter() - start
            print(f"step {count}: loss {loss:.2f} nats ({seconds:.0f} s)", flush=True)
    pieces = held_out[:-1].reshape(4, LENGTH)
    print(f"held-out text: {model.loss(pieces, CHUNK):.2f} nats, unigram entropy {entropy:.2f}")
    drawn = model.generate(pieces[0][:200], 300, temperature=0.7, random_state=0)
    print("".join(alphabet[token] for token in drawn))


if __name__ == "__main__":
    with threadpool_limits(1):  # the matrices are small: more threads would wait for each other
        main()
