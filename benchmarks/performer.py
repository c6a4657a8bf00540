"""Measure the memory and time of a Performer's gradient against the size of its chunks.

python benchmarks/performer.py [--length L]

Every case is a process of its own. Memory is the growth of its peak resident memory over that
before the call.
"""

import argparse
import subprocess
import sys
import time

from _memory import peak_memory

LENGTH = 16_384


def run_case(length, chunk_size):
    """Print loss, seconds and megabytes of one gradient."""
    import numpy as np

    from skrf.attention import Performer

    tokens = np.random.default_rng(0).integers(64, size=length + 1)
    model = Performer(64, n_layers=3, width=128, n_heads=4, dtype="float32", random_state=0)
    model.loss_and_grad(tokens[:65])
    before = peak_memory()
    start = time.perf_counter()
    loss, _ = model.loss_and_grad(tokens, chunk_size)
    seconds = time.perf_counter() - start
    after = peak_memory()
    print(loss, seconds, (after - before) / 2**20)


def main():
    """Run all chunk sizes and print a table."""
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


if __name__ == "__main__":
    main()
