"""Independent streams of random numbers, one for each draw, so that no draw affects another."""

import numpy as np

OMEGA, PHASE, QUERIES, SPECTRUM, COEFFICIENTS, BASES = 0, 1, 2, 4, 5, 6
KEYS, MEDIAN, CENTERS, SUMS = 7, 8, 9, 10


def rng_of(seed, *stream):
    """Return the generator of a stream of a seed: one of the constants, and numbers within it."""
    return np.random.default_rng([seed, *stream])
