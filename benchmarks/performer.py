"""Measure the memory and time of a Performer's gradient against the size of its chunks.

python benchmarks/performer.py [--length L]

Every case of the table is a process of its own. Memory is the growth of its peak resident memory
over that before the call. Small chunks, whose states between chunks would take the most, follow:
what the arrays of a call take at most at two lengths, and the time with few states kept beside
that with all of them.
"""

import argparse
import subprocess
import sys
import time
import tracemalloc
from unittest import mock

from _memory import peak_memory
from speed import alternate, judge

LENGTH = 16_384
SHORT, SMALL = 1024, 16  # length and chunks at which memory is compared
ROUNDS = 3


def inputs_of(length):
    """Return a model that has been called, and a text."""
    import numpy as np

    from skrf.attention import Performer

    tokens = np.random.default_rng(0).integers(64, size=length + 1)
    model = Performer(64, n_layers=3, width=128, n_heads=4, dtype="float32", random_state=0)
    model.loss_and_grad(tokens[:65])
    return model, tokens


def run_case(length, chunk_size):
    """Print loss, seconds and megabytes of one gradient."""
    model, tokens = inputs_of(length)
    before = peak_memory()
    start = time.perf_counter()
    loss, _ = model.loss_and_grad(tokens, chunk_size)
    seconds = time.perf_counter() - start
    after = peak_memory()
    print(loss, seconds, (after - before) / 2**20)


def peak_of(length):
    """Return the megabytes that one gradient in small chunks takes at most."""
    model, tokens = inputs_of(length)
    tracemalloc.start()
    model.loss_and_grad(tokens, SMALL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def with_all_kept(advance, state, n):
    """Yield what `skrf.attention._checkpoints.in_reverse` does, with every state kept."""
    states = [state]
    for i in range(n - 1):
        states.append(advance(i, states[-1]))
    yield from zip(reversed(range(n)), reversed(states), strict=True)


def compared(length=LENGTH, rounds=ROUNDS):
    """Yield (what, ours, other, largest ratio) of memory and time in small chunks."""
    peaks = [peak_of(own) for own in (length, SHORT)]
    what = f"a Performer's gradient in chunks of {SMALL}: peak memory, {length} / {SHORT} tokens"
    yield what, peaks[:1], peaks[1:], 1.5
    model, tokens = inputs_of(length // 4)

    def few():
        model.loss_and_grad(tokens, SMALL)

    def every():
        with mock.patch("skrf.attention.performer.in_reverse", with_all_kept):
            few()

    times = alternate({"few": few, "every": every}, rounds)
    what = f"a Performer's gradient in chunks of {SMALL}: time, 64 / all states kept"
    yield what, times["few"], times["every"], 1.6


def main():
    """Run all chunk sizes, print a table, and judge small chunks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    length = options.length
    if options.case is not None:
        run_case(length, options.case)
        return
    print(f"3 layers, width 128, 4 heads, float32, L = {length}")
    print("| chunk | loss | seconds | peak over before, MB | of full length |")
    print("|---|---|---|---|---|")
    full = None
    for chunk in (length, 4096, 1024, 256, 64):
        command = [sys.executable, __file__, "--length", str(length), "--case", str(chunk)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        loss, seconds, megabytes = map(float, done.stdout.split())
        full = megabytes if full is None else full
        print(
            f"| {chunk} | {loss:.6f} | {seconds:.2f} | {megabytes:.1f} | {megabytes / full:.3f} |",
            flush=True,
        )
    print("\n| what | best | median | bound | kept |\n|---|---|---|---|---|")
    for own in compared(length):
        judge(*own, at_most=True)


if __name__ == "__main__":
    main()
