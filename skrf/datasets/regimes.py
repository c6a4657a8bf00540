"""Four regimes of queries and keys on which the papers compare variances."""

from typing import Literal

import numpy as np
from sklearn.datasets import load_digits

from .._typing import RandomState
from .._validation import as_generator, check_integer, check_positive

__all__ = ["REGIMES", "make_regime"]

REGIMES = ("normal", "sphere", "shifted", "digits")


def make_regime(
    regime: Literal["normal", "sphere", "shifted", "digits"],
    n_samples: int = 256,
    *,
    sigma: float = 1.0,
    random_state: RandomState = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and keys with 64 columns, drawn as in the papers' comparison of variances.

    Parameters
    ----------
    regime : {"normal", "sphere", "shifted", "digits"}
        Standard normal rows; rows uniform on the unit sphere; normal rows, where keys have mean 1
        in every column (called heterogen in the source); images of handwritten digits, 8 x 8, with
        grey values in [0, 1].
    n_samples : int, default=256
        Number of queries and of keys.
    sigma : float, default=1.0
        Multiplier of all rows.
    random_state : int, RandomState instance or None, default=None
        Source of the rows.

    Returns
    -------
    X, Y : ndarray of shape (n_samples, 64)
        Queries and keys.

    Raises
    ------
    ValueError
        If the regime is not one of the four, or another parameter is invalid.
    TypeError
        If ``sigma`` is not a real number.

    See Also
    --------
    load_uci : Real rows with labels.
    skrf.theory.compare : Errors of feature maps on such pairs.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), section 5.1. Digits stand in for MNIST.

    Examples
    --------
    >>> from skrf.datasets import make_regime
    >>> X, Y = make_regime("shifted", 1000, random_state=0)
    >>> X.shape, round(float(Y.mean() - X.mean()), 1)
    ((1000, 64), 1.0)
    """
    if not isinstance(regime, str) or regime not in REGIMES:
        raise ValueError(f"regime must be one of {', '.join(map(repr, REGIMES))}; got {regime!r}")
    check_integer("n_samples", n_samples)
    check_positive("sigma", sigma)
    rng = as_generator(random_state)
    if regime == "digits":
        images = load_digits().data / 16
        X, Y = (images[rng.randint(len(images), size=n_samples)] for _ in range(2))
    else:
        X, Y = rng.normal(size=(2, n_samples, 64))
        if regime == "sphere":
            X, Y = (Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in (X, Y))
        elif regime == "shifted":
            Y = Y + 1
    return sigma * X, sigma * Y
