"""Lengths of the rows of a projection."""

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv


def chi_norms(n_rows, n_features, rng):
    """Return independent norms of N(0, I_d) vectors (chi distributed)."""
    return np.sqrt(rng.chisquare(n_features, size=n_rows))


def mirrored(norms, n_features):
    """Return norms (..., b) of which the second of each pair is the first one's mirror quantile.

    A quantile u of one is the quantile 1 - u of the other; an odd last norm stays independent.
    Source: Reid et al., Variance-reducing couplings for random features (pairwise norm coupling).
    """
    norms, half, shape = norms.copy(), norms.shape[-1] // 2, n_features / 2
    first = norms[..., : 2 * half : 2] ** 2 / 2
    # Invert each half of the distribution from its small tail: probabilities near 1 lose all
    # digits.
    norms[..., 1 : 2 * half : 2] = np.sqrt(
        2
        * np.where(
            first > shape,
            gammaincinv(shape, gammaincc(shape, first)),
            gammainccinv(shape, gammainc(shape, first)),
        )
    )
    return norms
