"""Probabilities of classes from the values that ridge classifiers decide by.

One multiplier turns values into logarithms of odds: of the two classes of a pair, whose odds are
coupled, or of every class against the others. It is the one that suits held-out rows best.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.utils import gen_batches

from .._arrays import in_library_of, like, namespace, to_host
from .decide import n_classes_of, signs_of
from .problems import pairs_of

SCALES = 2.0 ** np.arange(-16, 11)  # multipliers to try
_BLOCK = 2**22  # numbers of the systems that are solved at once
_DOUBT = 1e-3


def losses(values, codes, weights, is_of_pairs):
    """Return the summed log losses of rows for every multiplier in `SCALES`.

    A row has its class but for one part in 1,000, so that rows that are told apart without an error
    do not make probabilities 0 and 1.

    Parameters
    ----------
    values : ndarray of shape (n, P) or (n, n_classes)
        Values of the pairs of classes, positive for the second, or of the classes.
    codes : ndarray of int of shape (n,)
        Classes of the rows.
    weights : ndarray of shape (n,) or None
        Their weights.
    is_of_pairs : bool
        Whether values are those of pairs.
    """
    rows = np.arange(len(codes))
    if is_of_pairs:
        signs = signs_of(n_classes_of(values.shape[1]))
        pairs = np.array([np.flatnonzero(of_class) for of_class in signs])[codes]
        margins = values[rows[:, None], pairs] * signs[codes[:, None], pairs]
    else:
        margins = values[rows, codes, None] - values
    gaps = margins.mean(axis=1) * _DOUBT
    shares = np.ones(len(codes)) if weights is None else weights
    # Exponentials at twice the multiplier are squares, and of exponents below 0 none overflows.
    if is_of_pairs:
        largest, exponentials = np.maximum(-margins, 0.0).mean(axis=1), np.abs(margins)
    else:
        largest = -margins.min(axis=1)
        exponentials = margins + largest[:, None]
    exponentials = np.exp(-SCALES[0] * exponentials)
    results = []
    for scale in SCALES:
        if is_of_pairs:
            of_rows = np.log1p(exponentials).mean(axis=1)
        else:
            of_rows = np.log(exponentials.sum(axis=1))
        results.append(shares @ (of_rows + scale * (largest + gaps)))
        exponentials *= exponentials
    return np.array(results)


@dataclass(frozen=True)
class Calibration:
    """What turns values into probabilities: a multiplier to logarithms of odds.

    Parameters
    ----------
    scale : float
        The multiplier.
    is_of_pairs : bool
        Whether values are those of pairs of classes, or of the classes.
    """

    scale: float
    is_of_pairs: bool

    @classmethod
    def of(cls, values, codes, weights, is_of_pairs):
        """Return the calibration of least log loss on rows; see `losses`."""
        return cls(best_scale(losses(values, codes, weights, is_of_pairs)), is_of_pairs)

    def __call__(self, values, n_classes):
        """Return the probabilities of the classes, (n, n_classes), in the library of the values."""
        xp = namespace(values)
        if not self.is_of_pairs:
            logs = self.scale * values
            shares = xp.exp(logs - xp.max(logs, axis=1, keepdims=True))
            return shares / xp.sum(shares, axis=1, keepdims=True)
        # One less the other would have no digits where it is small.
        firsts, seconds = (
            xp.exp(-xp.logaddexp(like(0.0, values), sign * self.scale * values)) for sign in (1, -1)
        )
        if n_classes == 2:
            return xp.concat([firsts, seconds], axis=1)
        return in_library_of(coupled(to_host(firsts), to_host(seconds), n_classes), values)


def best_scale(of_scales):
    """Return the multiplier of the least loss, between those of `SCALES` by a parabola."""
    place = int(np.argmin(of_scales))
    if not 0 < place < len(SCALES) - 1:
        return float(SCALES[place])
    before, least, after = of_scales[place - 1 : place + 2]
    bend = before - 2 * least + after
    return float(SCALES[place] * 2.0 ** ((before - after) / (2 * bend) if bend > 0 else 0.0))


def coupled(firsts, seconds, n_classes):
    """Return the class probabilities that agree best with those of all pairs.

    They minimise the sum of (r_ji p_i - r_ij p_j)^2 over the pairs, where r_ij is the probability
    of i against j: Wu, Lin and Weng, Probability estimates for multi-class classification by
    pairwise coupling (2004), their second method.

    Parameters
    ----------
    firsts, seconds : ndarray of shape (n, P)
        Probabilities of the first class of every pair against the second, and the reverse.
    n_classes : int
        Number of classes.
    """
    size = max(1, _BLOCK // (n_classes + 1) ** 2)
    if len(seconds) > size:
        blocks = gen_batches(len(seconds), size)
        return np.concatenate([coupled(firsts[a], seconds[a], n_classes) for a in blocks])
    first, second = np.array(pairs_of(n_classes)).T
    against = np.zeros((len(seconds), n_classes, n_classes))  # of the row's class
    against[:, second, first], against[:, first, second] = seconds, firsts
    system = np.ones((len(seconds), n_classes + 1, n_classes + 1))
    system[:, :n_classes, :n_classes] = -against * against.transpose(0, 2, 1)
    classes = np.arange(n_classes)
    system[:, classes, classes] = (against**2).sum(axis=1)
    system[:, -1, -1] = 0.0
    sides = np.zeros((len(seconds), n_classes + 1, 1))
    sides[:, -1] = 1.0
    shares = np.maximum(np.linalg.solve(system, sides)[:, :-1, 0], 0.0)
    return shares / shares.sum(axis=1, keepdims=True)
