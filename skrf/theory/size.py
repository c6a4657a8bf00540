"""How many columns an error takes."""

from numbers import Real

import numpy as np
from sklearn.base import clone

from ._sample import check_mechanism, check_rows, relative_error, sample_rows

_LARGEST = 2**24


def n_components_for(mechanism, X, Y=None, *, rel_error):
    """Return the least number of columns whose predicted error is small enough.

    Parameters
    ----------
    mechanism : mechanism
        An unfitted or fitted mechanism of this library with a closed-form variance; it is cloned.
    X : array-like of shape (n_samples, n_features)
        Queries.
    Y : array-like of shape (n_keys, n_features), default=None
        Keys; None takes X.
    rel_error : float
        Wanted root mean squared error of the kernel matrix over its root mean square.

    Returns
    -------
    int
        A number of columns that the mechanism can make. At most 400 rows a side are looked at.

    Raises
    ------
    NotImplementedError
        Where the mechanism has no closed-form variance.
    ValueError
        Where ``rel_error`` is not a positive number, or more than 2^24 columns would be needed.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import OptimalPositiveRF
    >>> from skrf.theory import n_components_for
    >>> X = np.random.default_rng(0).normal(size=(50, 4)) / 2
    >>> loose, tight = (n_components_for(OptimalPositiveRF(), X, rel_error=e) for e in (0.2, 0.1))
    >>> 3 < tight / loose < 5
    True
    """
    if not isinstance(rel_error, Real) or not rel_error > 0:
        raise ValueError(f"rel_error must be a number > 0, got {rel_error!r}.")
    check_mechanism(mechanism)
    X = check_rows(X)
    rows = sample_rows(X, 0)
    keys = rows if Y is None else sample_rows(check_rows(Y, "Y"), 1)
    step = mechanism.columns_per_projection

    def is_enough(count):
        fitted = clone(mechanism).set_params(n_components=count * step, random_state=0)
        fitted.fit(X, keys=Y)
        return relative_error(fitted, rows, keys) <= rel_error

    high = 1
    while not is_enough(high):
        high *= 2
        if high * step > _LARGEST:
            raise ValueError(
                f"rel_error={rel_error!r} would take more than {_LARGEST} columns of "
                f"{mechanism!r}: take a smaller sigma, another mechanism or a larger rel_error."
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return int(np.int64(high) * step)
