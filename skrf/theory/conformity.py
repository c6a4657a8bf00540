"""RF-conformity: the property of a coupling that determines the error of positive features.

The mean squared error of positive features differs between couplings only by their conformity,
the mean over pairs of projections of E exp((omega_i + omega_j).z) over a random rotation; smaller
is better. Source: Reid et al., Simplex random features (2023), section 3.
"""

from typing import Literal

import numpy as np
from sklearn.utils import check_array

from .._typing import Array
from .._validation import check_integer, naming
from ..projections import COUPLINGS
from ..variances import exponential_pair, log_hyp0f1

_LONGEST = 1e4  # of the exponent; the result is infinite long before


def expected_conformity(
    coupling: Literal["iid", "orthogonal", "simplex"],
    sum2: float | Array,
    *,
    n_projections: int,
    n_features: int,
) -> float | np.ndarray:
    """Return the mean conformity of a coupling.

    Parameters
    ----------
    coupling : {"iid", "orthogonal", "simplex"}
        The coupling; only these have a closed form.
    sum2 : float or ndarray
        |x + y|^2 of scaled, centred inputs.
    n_projections : int
        Number of projections, at least 2.
    n_features : int
        Dimension d.

    Returns
    -------
    float or ndarray
        The mean conformity: exp(sum2) for independent rows, smaller for the other couplings.

    Raises
    ------
    ValueError
        For a coupling without a closed form, or a single projection.

    See Also
    --------
    sample_conformity : The same for drawn projections.
    skrf.SimplexRF : The coupling of smallest conformity.

    References
    ----------
    Reid et al., Simplex random features (2023), section 3.1.

    Examples
    --------
    >>> from skrf.theory import expected_conformity
    >>> values = [
    ...     expected_conformity(c, 1.0, n_projections=8, n_features=8)
    ...     for c in ("simplex", "orthogonal", "iid")
    ... ]
    >>> values == sorted(values)
    True
    """
    names = [name for name, law in COUPLINGS.items() if law.pair_cosine(2) is not None]
    if not isinstance(coupling, str) or coupling not in names:
        raise ValueError(f"coupling must be one of {names}, got {coupling!r}.")
    law = COUPLINGS[coupling]
    n_projections = check_integer("n_projections", n_projections, 2)
    n_features = check_integer("n_features", n_features)
    sum2 = _squares(sum2)
    excess = sum(
        count * rows * (rows - 1) * exponential_pair(sum2, n_features, law.pair_cosine(rows))
        for rows, count in law.blocks(n_projections, n_features).items()
        if rows > 1
    )
    with np.errstate(over="ignore"):
        return np.exp(sum2) * (1 + excess / (n_projections * (n_projections - 1)))


def sample_conformity(omega: Array, sum2: float) -> float:
    """Return the conformity of drawn projections.

    Parameters
    ----------
    omega : ndarray of shape (n_projections, n_features)
        The projections.
    sum2 : float
        |x + y|^2 of scaled, centred inputs.

    Returns
    -------
    float
        Mean over pairs i != j of 0F1(; d/2; |omega_i + omega_j|^2 sum2 / 4), inf beyond the range
        of floats.

    Raises
    ------
    ValueError
        If there are fewer than two projections, a number is not finite, or ``sum2`` is negative.

    See Also
    --------
    expected_conformity : The mean over all draws.
    skrf.projections.Coupling : How projections are drawn.

    References
    ----------
    Reid et al., Simplex random features (2023), section 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.theory import sample_conformity
    >>> bool(sample_conformity(np.array([[1.0, 0.0], [-1.0, 0.0]]), 2.0) == 1.0)
    True
    """
    with naming("omega"):
        omega = check_array(omega, dtype=np.float64, ensure_min_samples=2, input_name="omega")
    sum2 = _squares(sum2)
    if sum2.ndim:
        raise ValueError(f"sum2 must be a single number, got an array of shape {sum2.shape}.")
    first, second = np.triu_indices(len(omega), 1)
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(omega[first] + omega[second], axis=1) * np.sqrt(sum2)
        lengths = np.minimum(lengths, _LONGEST)
        logs = log_hyp0f1(omega.shape[1] / 2, lengths**2 / 4) + lengths
        return float(np.exp(logs).mean())


def _squares(sum2):
    """Return squared lengths as an array, or raise."""
    with naming("sum2"):
        squares = np.asarray(sum2)
    if squares.dtype.kind not in "iuf":
        raise TypeError(f"sum2 must hold real numbers, got {sum2!r}.")
    if not ((squares >= 0) & (squares < np.inf)).all():
        raise ValueError(f"sum2 must be finite and >= 0 everywhere, got {sum2!r}.")
    return squares.astype(np.float64)
