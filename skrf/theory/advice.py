"""Which mechanism to take for a task."""

from .choice import compare, default_mechanisms


def recommend(
    X,
    Y=None,
    *,
    n_components=100,
    sigma=1.0,
    kernel="gaussian",
    positive=False,
    mechanisms=None,
    criterion="log",
    random_state=0,
):
    """Return the unfitted mechanism of least measured error of the kernel.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Queries.
    Y : array-like of shape (n_keys, n_features), default=None
        Keys; None takes X.
    n_components : int, default=100
        Number of output columns.
    sigma : float, "scale" or "median", default=1.0
        Multiplier of the inputs.
    kernel : {"gaussian", "softmax"}, default="gaussian"
        The kernel.
    positive : bool, default=False
        Consider positive mechanisms only.
    mechanisms : dict of str to mechanism, default=None
        What to try; None takes `default_mechanisms` at the parameters above.
    criterion : {"log", "frobenius"}, default="log"
        The error that counts. "log" is the median over pairs of ``abs(log estimate - log kernel)``:
        take it for kernel regression and attention, where each row is divided by its sum.
        "frobenius" is that of the kernel matrix: take it for ridge regression or support vectors.
    random_state : int, default=0
        Seed of draws and subsample.

    Returns
    -------
    mechanism
        An unfitted clone.

    Raises
    ------
    ValueError
        Where no positive mechanism is among those to try, and for an unknown criterion.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.theory import recommend
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> recommend(X, n_components=32, sigma=3.0, positive=True)
    AdaptiveRF(n_components=32, sigma=3.0)
    """
    if mechanisms is None:
        mechanisms = default_mechanisms(n_components, sigma=sigma, kernel=kernel)
    table = compare(X, Y, mechanisms=mechanisms, criterion=criterion, random_state=random_state)
    allowed = [row for row in table if row.is_positive or not positive]
    if not allowed:
        raise ValueError(f"positive=True, but none of {list(mechanisms)} is positive.")
    return allowed[0].mechanism
