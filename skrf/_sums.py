"""Sums of key features and what queries read of them, in plain array-API code.

What kernel regression and attention do with arrays of other libraries than NumPy; on NumPy's own
arrays they work in place, in `regression` and `attention._linear`. Here nothing is written in
place, so that torch can differentiate, and all leading axes are worked on at once.
"""

from dataclasses import dataclass

import array_api_compat
import numpy as np

from ._arrays import constant, like, namespace


@dataclass(frozen=True)
class FeatureSums:
    """Sums of features times values over keys: feature f holds ``sums[f] * exp(top[f])``.

    Law: adding keys one by one or in any blocks gives the same sums to rounding.

    Parameters
    ----------
    sums : array of shape (..., M, c)
        Float64 whatever the features.
    top : array of shape (..., M) or None
        Largest exponent of every feature, -inf before the first key; None for plain features, as
        opposed to logarithms. A constant: nothing depends on it but rounding.
    """

    sums: object
    top: object = None

    @classmethod
    def before(cls, features, values, is_log):
        """Return the sums before the first of these keys."""
        xp, device = namespace(features), array_api_compat.device(features)
        shape = (*features.shape[:-2], features.shape[-1])
        return cls(
            xp.zeros((*shape, values.shape[-1]), dtype=xp.float64, device=device),
            xp.full(shape, -np.inf, dtype=features.dtype, device=device) if is_log else None,
        )

    def at(self, top):
        """Return the sums on the scale of another top."""
        if top is None:
            return self.sums
        return self.sums * namespace(top).exp(differences(self.top, top))[..., None]

    def raised(self, features):
        """Return the top after more keys."""
        if self.top is None:
            return None
        xp = namespace(features)
        return xp.maximum(self.top, constant(xp.max(features, axis=-2)))

    def add(self, features, values):
        """Return the sums after more keys: features (..., n, M) and values (..., n, c)."""
        xp, top = namespace(features), self.raised(features)
        product = xp.matrix_transpose(lower(features, top)) @ values
        return FeatureSums(self.at(top) + xp.astype(product, xp.float64), top)


def lower(features, top):
    """Turn key features (..., n, M) into factors on the scale of `top`."""
    if top is None:
        return features
    return namespace(features).exp(features - _finite(top)[..., None, :])


def lift(features, top):
    """Turn query features (..., n, M) into factors of sums at `top`, the largest of a row 1."""
    if top is None:
        return features
    xp = namespace(features)
    logs = features + _finite(top)[..., None, :]
    return xp.exp(logs - constant(xp.max(logs, axis=-1, keepdims=True)))


def log_sum_exp(logs):
    """Return log(sum(exp(logs))) along the last axis; -inf where all are."""
    xp = namespace(logs)
    top = _finite(constant(xp.max(logs, axis=-1)))
    with np.errstate(divide="ignore"):
        return xp.log(xp.sum(xp.exp(logs - top[..., None]), axis=-1)) + top


def differences(low, high):
    """Return low - high, -inf where low is -inf (also where both are)."""
    return low - namespace(low).where(low > -np.inf, high, like(0.0, low))


def _finite(top):
    """Return top with 0 for features that no key has."""
    return namespace(top).where(top > -np.inf, top, like(0.0, top))
