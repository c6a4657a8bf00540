"""Criteria that need no splits: leave-one-out by leverages, and the marginal likelihood."""

import numpy as np
from sklearn.utils import gen_batches

from .._arrays import take
from .._warnings import warn
from ..features import as_feature_map
from .base import beside_threads
from .data import merged_copies, merged_rows, stratified
from .moments import features_of, moments_of_rows
from .solve import Spectrum

_BLOCK = 2**21  # features of leave-one-out held at once
_LOST = 1e-10  # of what a row sees of itself: less is rounding
_ROWS = 2000  # at most
_DECADES, _STEPS = (-1.5, 1.0), 11  # of the wide grid, relative to "scale"
_FINER = np.array([-2, -1, 1, 2]) / 3  # of its steps, around its best
_FLAT = 1e-6  # differences of losses that decide nothing
_FEW = 1 / 4  # rows that count, of those that are distinct
_NO_NOISE, _NOTHING = 1e-8, 0.5  # of the variance of the targets
_LEAST_ROWS = 20  # of fewer, those that are left out say little


# ---------------------------------------------------------------- leave-one-out


def leave_one_out_errors(feature_map, data, moments, alphas):
    """Return mean squared errors of rows that ridge regression has not seen.

    The leverage of a row says what its prediction would be without it and its weight. Errors are
    infinite if a row is predicted by itself alone.

    Parameters
    ----------
    feature_map : FeatureMap
        The map.
    data : Data
        All rows, with copies merged.
    moments : RidgeMoments
        Of these rows.
    alphas : ndarray of shape (n_alphas,)
        The ridges.
    """
    weights = data.weights
    targets = data.targets(slice(None)) * (data.targets.unit / moments.unit)
    errors = np.zeros((targets.shape[1], 1))
    of_features, of_targets = moments.means
    spectrum, total = Spectrum(moments), moments.total
    shrunk = spectrum.shrunk(alphas)
    coef = spectrum.sides[:, :, None] * shrunk[:, None]
    for rows in gen_batches(len(weights), max(1, _BLOCK // moments.n_columns)):
        features = features_of(feature_map, take(data.X, rows))
        turned, of_rows = (features - of_features) @ spectrum.vectors, weights[rows]
        leverage = of_rows[:, None] * (turned**2 @ shrunk + 1 / total)
        left = np.where(1 - leverage > _LOST, 1 - leverage, np.nan)[:, None]
        predicted = np.tensordot(turned, coef, 1) + of_targets[:, None]
        differences = (targets[rows][:, :, None] - predicted) / left
        errors = errors + np.tensordot(of_rows, differences**2, 1)
    errors = moments.shares @ (errors / total)
    return np.where(np.isnan(errors), np.inf, errors)


# ---------------------------------------------------------------- the marginal likelihood


def sigma_by_evidence(feature_map, data):
    """Return the sigma of largest marginal likelihood, each with the alpha that suits it best.

    Parameters
    ----------
    feature_map : transformer
        Unfitted, with a parameter ``sigma``.
    data : Data
        Rows, of which at most 2,000 distinct ones are used.
    """
    scale, (data, sizes) = data.resolved("scale"), merged_rows(data)
    if len(data.y) > _ROWS:
        rows = stratified(np.zeros(len(data.y), int), _ROWS)
        data, sizes = merged_rows(data.part(rows))
    fit = data.fit_at_sigma(feature_map)

    def loss(sigma):
        rows = as_feature_map(fit(sigma)), data.X, data.targets, data.sample_weight
        return Spectrum(moments_of_rows(*rows)).by_evidence(sizes)[1]

    with beside_threads(feature_map):
        sigmas = scale * np.logspace(*_DECADES, _STEPS)
        losses = np.array([loss(sigma) for sigma in sigmas])
        finer = sigmas[np.argmin(losses)] * (sigmas[1] / sigmas[0]) ** _FINER
        sigmas, losses = np.append(sigmas, finer), np.append(losses, [loss(s) for s in finer])
    return float(sigmas[losses <= losses.min() + _FLAT].min())


def check_sizes(sizes):
    """Warn if weights are so unequal that few rows count."""
    if sizes.freedom < _FEW * sizes.n_distinct:
        warn(
            f"sample_weight makes {sizes.n_distinct} distinct rows worth {sizes.freedom:.3g} of "
            "equal weight to alpha='evidence': error bars rest on these. Divide the largest "
            "weights, or pass alpha.",
            UserWarning,
        )


def check_noise_by_leave_one_out(fitted, data):
    """Warn if the marginal likelihood finds no noise, but cannot predict rows that are left out."""
    solution, moments = fitted.solution, fitted.moments
    noise, variances = (solution.posterior.deviation / moments.unit) ** 2, moments.squares
    is_lost = (noise * moments.total < _NO_NOISE * variances).any()
    if not is_lost or fitted.sizes.n_distinct < _LEAST_ROWS:
        return
    rows = merged_copies(data, are_classes=False)
    alphas = np.array([solution.alpha])
    errors = leave_one_out_errors(fitted.maps[0], rows, moments, alphas)[0]
    if errors > _NOTHING * np.mean(moments.squares) / moments.total:
        warn(
            "alpha='evidence' finds no noise in y, but rows that are left out are predicted with "
            f"{errors * moments.total / np.mean(moments.squares):.2g} of its variance as error. "
            "Rows that are nearly repeated do that: merge them, or pass alpha or noise_variance.",
            UserWarning,
        )
