"""Predictions of the members of a kernel machine as probabilities, and how they are blended.

Both are chosen by the predictions of rows that members have not seen.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize, nnls
from scipy.special import expit, log_expit, log_softmax, softmax

from .decide import coupled, signs_of

# How values of pairs may become logarithms of odds: as they are, times a number, or as shares
# (1 + value) / 2 with some slack, shown by its negative; averaged over the pairs, or coupled.
_MAPS = [("mean", by) for by in (1.0, 2.0, 4.0, 8.0, -0.02, -0.1, -0.3, -1.0)]
_MAPS += [("coupled", by) for by in (1.0, 2.0, 4.0, 8.0, -0.02)]
# Values of classes are logarithms, or shares with a smooth lower bound.
_CLASS_MAPS = [("softmax", 2.0), *(("share", by) for by in (0.003, 0.01, 0.03, 0.1, 0.3))]
_BEST_MAPS = 3  # that are optimised
_LOOKS = (0.0, 0.7, 1.4)  # logarithms of a multiplier, by which they are chosen
_MAP_ROWS = 4000  # on which
_LEAST = 1e-9  # coupled probability
_PENALTY = 5.0  # of weights, in rows
_STEPS = 60
_ALL_STEPS, _RATE = 100, 4.0  # of weights of many classes


def class_logs(values, n_classes, kind, by):
    """Return logarithms of probabilities of classes, but for what is common to a row.

    Parameters
    ----------
    values : ndarray of shape (n, P) or (n, K)
        Regressions of all pairs of classes, positive for the second, or of every class.
    n_classes : int
        Number of classes, K.
    kind : {"mean", "coupled", "softmax", "share"}
        Whether logarithms are averaged over the pairs of a class, or their probabilities coupled.
        Of classes, whether values are logarithms or shares (1 + value) / 2, bounded smoothly.
    by : float
        A multiplier of the values; of pairs negative if it is the slack of shares, and of shares
        where the bound begins.
    """
    if kind == "softmax":
        return by * values
    if kind == "share":
        shares = (1 + values) / 2
        return np.log((shares + np.hypot(shares, by)) / 2)
    if by > 0:
        firsts, seconds = log_expit(-by * values), log_expit(by * values)
    else:
        most = 1 - 0.8 * by
        shares = np.clip(values, -most, most)
        firsts, seconds = (np.log((1 - by - s * shares) / (2 - 2 * by)) for s in (1, -1))
    if kind == "mean":
        signs = signs_of(n_classes)
        return (firsts @ (signs < 0).T + seconds @ (signs > 0).T) / (n_classes - 1)
    return np.log(np.maximum(coupled(np.exp(firsts), np.exp(seconds), n_classes), _LEAST))


@dataclass(frozen=True, eq=False)
class ClassCalibration:
    """Logarithms of probabilities of classes from values of all pairs, or of all classes.

    Parameters
    ----------
    map : tuple
        The best of the maps of `class_logs`.
    scale : float
        Multiplies its logarithms.
    offsets : ndarray of shape (K,)
        What is added to those of each class.
    smoothing : float
        Share of the rows that are as likely to have any class.
    """

    map: tuple
    scale: float
    offsets: np.ndarray
    smoothing: float

    @classmethod
    def of(cls, values, codes, weights, n_classes):
        """Return the calibration of least log loss on rows that were left out."""
        n = weights.sum()
        shares, n_rows = weights / n, len(codes)
        targets = np.eye(n_classes)[codes]

        def loss(point, logs, rows=slice(None)):
            scale, offsets = np.exp(point[0]), point[1:]
            log_shares = log_softmax(logs * scale + offsets, axis=1)
            residuals = (np.exp(log_shares) - targets[rows]) * shares[rows, None]
            loss_value = -shares[rows] @ np.sum(log_shares * targets[rows], axis=1)
            slope = np.append(np.sum(residuals * logs) * scale, residuals.sum(axis=0))
            slope[1:] += _PENALTY / n * offsets
            return loss_value + _PENALTY / 2 / n * offsets @ offsets, slope

        sample = np.arange(n_rows)
        if n_rows > _MAP_ROWS:
            sample = np.sort(np.random.default_rng(0).permutation(n_rows)[:_MAP_ROWS])
        first_losses = []
        maps = _MAPS if values.shape[1] == n_classes * (n_classes - 1) / 2 else _CLASS_MAPS
        for kind, by in maps:
            logs = class_logs(values[sample], n_classes, kind, by)
            points = [np.append(scale, np.zeros(n_classes)) for scale in _LOOKS]
            first_losses.append(min(loss(point, logs, sample)[0] for point in points))
        best = None
        for place in np.argsort(first_losses, kind="stable")[:_BEST_MAPS]:
            logs = class_logs(values, n_classes, *maps[place])
            start, options = np.append(0.7, np.zeros(n_classes)), {"maxiter": _STEPS}
            optimum = minimize(loss, start, logs, jac=True, method="L-BFGS-B", options=options)
            if best is None or optimum.fun < best[0]:
                best = optimum.fun, maps[place], optimum.x
        _, chosen, point = best
        return cls(chosen, float(np.exp(point[0])), point[1:], 1 / n)

    def __call__(self, values):
        """Return the logarithms, (n, K)."""
        n_classes = len(self.offsets)
        logs = class_logs(values, n_classes, *self.map) * self.scale + self.offsets
        shares = (1 - self.smoothing) * softmax(logs, axis=1) + self.smoothing / n_classes
        return np.log(shares)


def weights_of_numbers(values, targets, weights):
    """Return weights of members, which add up to 1, for numbers.

    Parameters
    ----------
    values : ndarray of shape (m, n, T)
        Members' predictions of rows that they have not seen.
    targets : ndarray of shape (n, T)
        Targets, of about variance 1.
    weights : ndarray of shape (n,)
        Weights of the rows.
    """
    m = len(values)
    roots = np.sqrt(weights)[:, None]
    columns = (values * roots).reshape(m, -1).T
    equal, most = np.full(m, 1 / m), 1e3 * np.abs(columns).max(initial=1.0)
    system = np.vstack([columns, np.full((1, m), most), np.sqrt(_PENALTY) * np.eye(m)])
    sides = np.concatenate([(targets * roots).ravel(), [most], np.sqrt(_PENALTY) * equal])
    members = nnls(system, sides)[0]
    return members / members.sum()


def weights_of_two_classes(logits, codes, weights):
    """Return weights of members and an offset for two classes.

    Parameters
    ----------
    logits : ndarray of shape (m, n)
        Logarithms of the odds of the second class.
    codes : ndarray of int of shape (n,)
        Classes of the rows.
    weights : ndarray of shape (n,)
        Weights of the rows.
    """
    m, n = len(logits), weights.sum()
    shares, signs, equal = weights / n, 2.0 * codes - 1, np.full(m, 1 / m)

    def loss(point):
        margins = signs * (point[:m] @ logits + point[m])
        apart = np.append(point[:m] - equal, point[m])
        slopes = -signs * expit(-margins) * shares
        slope = np.append(logits @ slopes, slopes.sum()) + _PENALTY / n * apart
        return -shares @ log_expit(margins) + _PENALTY / 2 / n * apart @ apart, slope

    bounds = [(0, None)] * m + [(None, None)]
    best = minimize(loss, np.append(equal, 0.0), jac=True, method="L-BFGS-B", bounds=bounds).x
    return best[:m], best[m]


def weights_of_classes(logs, codes, weights):
    """Return weights of members, which add up to 1, for more than two classes.

    A free sum would sharpen what is calibrated already.

    Parameters
    ----------
    logs : ndarray of shape (m, n, K)
        Logarithms of probabilities.
    codes : ndarray of int of shape (n,)
        Classes of the rows.
    weights : ndarray of shape (n,)
        Weights of the rows.
    """
    m, n, n_classes = len(logs), weights.sum(), logs.shape[2]
    shares, targets, equal = weights / n, np.eye(n_classes)[codes], np.full(m, 1 / m)
    members = equal
    for _ in range(_ALL_STEPS):
        residuals = (softmax(np.tensordot(members, logs, 1), axis=1) - targets) * shares[:, None]
        slope = np.einsum("nk,mnk->m", residuals, logs) + _PENALTY / n * (members - equal)
        members = members * np.exp(-_RATE * (slope - slope.min()))
        members = members / members.sum()
    return members
