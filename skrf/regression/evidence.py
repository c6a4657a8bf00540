"""The sigma of largest marginal likelihood."""

import numpy as np

from ..features import as_feature_map
from .blocks import beside_threads
from .moments import moments_of_rows
from .search import resolved
from .solve import Spectrum

_ROWS = 2000  # at most
_DECADES, _STEPS = (-1.5, 1.0), 11  # of the wide grid, relative to "scale"
_FINER = np.array([-2, -1, 1, 2]) / 3  # of its steps, around its best
_FLAT = 1e-6  # differences of losses that decide nothing


def sigma_by_evidence(feature_map, data):
    """Return the sigma of largest marginal likelihood, each with the alpha that suits it best.

    Parameters
    ----------
    feature_map : transformer
        Unfitted, with a parameter ``sigma``.
    data : Data
        Rows, of which at most 2,000 are used.
    """
    scale, n = resolved("scale", data), len(data.y)
    if n > _ROWS:
        data = data.part(np.sort(np.random.default_rng(0).permutation(n)[:_ROWS]))

    fit = data.fit_at_sigma(feature_map)

    def losses(sigmas):
        return np.array([_loss(as_feature_map(fit(sigma)), data) for sigma in sigmas])

    with beside_threads(feature_map):
        sigmas = scale * np.logspace(*_DECADES, _STEPS)
        found = losses(sigmas)
        finer = sigmas[np.argmin(found)] * (sigmas[1] / sigmas[0]) ** _FINER
        sigmas, found = np.append(sigmas, finer), np.append(found, losses(finer))
    return float(sigmas[found <= found.min() + _FLAT].min())


def _loss(feature_map, data):
    moments = moments_of_rows(feature_map, data.X, data.values, data.sample_weight)
    return Spectrum(moments).by_evidence()[1]
