"""Independent streams of random numbers, one for each draw, so that no draw affects another."""

import numpy as np

OMEGA, PHASE, QUERIES, PILOT, SPECTRUM, COEFFICIENTS, BASES = range(7)
KEYS, MEDIAN, CENTERS, SUMS, JUDGES, COUNTS = range(7, 13)


def rng_of(seed, *stream):
    """Return the generator of a stream of a seed: one of the constants, and numbers within it."""
    return np.random.default_rng([seed, *stream])
