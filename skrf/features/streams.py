"""Independent streams of random numbers, one for each draw, so that no draw affects another.

``rng_of(seed, *stream)`` returns the generator of a stream: one of these constants, and numbers
within it.
"""

from .._validation import rng_of as rng_of

OMEGA, PHASE, QUERIES, SPECTRUM, COEFFICIENTS, BASES = 0, 1, 2, 4, 5, 6
KEYS, MEDIAN, CENTERS, SUMS = 7, 8, 9, 10
