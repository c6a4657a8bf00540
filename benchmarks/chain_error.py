"""What `ChainMRF.report` says of the error of log Z, against the error itself.

python benchmarks/chain_error.py [--full]

Chains of 50 variables with embeddings of 16 normal numbers, of standard deviation 0.4 and 0.8, and
ten draws of AdaptiveRF(256). --full adds 20,000 states with one draw; their exact partition
function takes minutes.
"""

import argparse
import time
import warnings

import numpy as np

from skrf import AdaptiveRF
from skrf.exceptions import FeatureCollapseWarning
from skrf.graphical import ChainMRF

LENGTH, WIDTH = 50, 16
DEVIATIONS = (0.4, 0.8)
BLOCK = 2**22  # entries of the kernel matrix at once


def exact_log_partition(embeddings):
    """Return log Z of the kernel itself, by sums that stay in the range of floats here."""
    size = BLOCK // len(embeddings)
    blocks = [embeddings[a : a + size] for a in range(0, len(embeddings), size)]
    top = np.square(embeddings).sum(axis=1).max()
    message, log_scale = np.ones(len(embeddings)), 0.0
    for _ in range(LENGTH - 1):
        message = np.concatenate([np.exp(rows @ embeddings.T - top) @ message for rows in blocks])
        log_scale += top + np.log(message.max())
        message /= message.max()
    return log_scale + np.log(message.sum())


def measure(n_states, deviation, n_draws):
    """Print a line for every draw, and in how many the estimate is within a factor of two."""
    embeddings = deviation * np.random.default_rng(0).normal(size=(n_states, WIDTH))
    began = time.perf_counter()
    exact = exact_log_partition(embeddings)
    took = time.perf_counter() - began
    print(f"\n{n_states} states, deviation {deviation}: exact log Z {exact:.3f}, {took:.1f} s")
    print("   log Z   error  reported    lower    upper  holds  warns  seconds")
    n_good = 0
    for seed in range(n_draws):
        # The same embeddings as `later`: without, features are corrected and have no such errors.
        chain = ChainMRF(embeddings, embeddings, feature_map=AdaptiveRF(256), random_state=seed)
        approximate = chain.log_partition(LENGTH)
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FeatureCollapseWarning)
            told = chain.report(LENGTH)
        took = time.perf_counter() - began
        error = exact - approximate
        n_good += 0.5 <= told.error / error <= 2
        holds = told.lower - 1e-6 <= exact <= told.upper + 1e-6
        print(
            f"{approximate:8.2f} {error:7.2f} {told.error:9.2f} {told.lower:8.2f} "
            f"{told.upper:8.2f}  {holds!s:>5}  {bool(caught)!s:>5} {took:8.2f}"
        )
    print(f"within a factor of two: {n_good} of {n_draws}")


def main():
    """Measure all sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="20,000 states, too")
    sizes = [(400, 10), (2000, 10)] + [(20_000, 1)] * parser.parse_args().full
    for n_states, n_draws in sizes:
        for deviation in DEVIATIONS:
            measure(n_states, deviation, n_draws)


if __name__ == "__main__":
    main()
