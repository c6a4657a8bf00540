"""Chains of one kind of variable with potentials exp(x_t . y_{t+1})."""

import numpy as np
from sklearn.base import BaseEstimator

from .._sums import log_columns, log_product, log_sum_exp, peaked
from .._validation import check_integer, naming, remembered
from ._error import estimate
from ._potentials import (
    as_array,
    as_generator,
    check_embeddings,
    draw_rows,
    factors,
    fitted_maps,
)


class ChainMRF(BaseEstimator):
    r"""A chain of variables with the potential exp(x_t . y_{t+1}) between neighbours.

    All n states of a variable have an embedding x as the earlier and y as the later of a pair. With
    D features, log_partition costs O(n D^2 + D^2 length), and O(D^3 log length) beyond that of a
    few hundred positions; nothing of size n x n is made. With random features this is the model of
    the approximate potentials, exactly: all methods agree with each other.

    Parameters
    ----------
    embeddings : array-like of shape (n, d)
        Embeddings of the states; the potential of a pair is the exponential of their product.
    later : array-like of shape (n, d), default=None
        Embeddings of the states as the later of a pair; None takes `embeddings`.
    feature_map : mechanism, "exact" or None, default=None
        Positive features for the softmax kernel, or "exact", the kernel itself. None takes "exact"
        where that is no dearer (up to 512 states), else ``AdaptiveRF(256)``.
    random_state : int, RandomState instance or None, default=None
        Source of the draw, where the map has none.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import ChainMRF
    >>> embeddings = np.random.default_rng(0).normal(size=(50, 4)) / 2
    >>> chain = ChainMRF(embeddings, random_state=0)
    >>> exact = ChainMRF(embeddings, feature_map="exact")
    >>> bool(abs(chain.log_partition(20) - exact.log_partition(20)) < 0.5)
    True
    >>> chain.sample(20, 3, random_state=0).shape
    (3, 20)
    """

    def __init__(self, embeddings, later=None, *, feature_map=None, random_state=None):
        self.embeddings = embeddings
        self.later = later
        self.feature_map = feature_map
        self.random_state = random_state

    @property
    def _model(self):
        """The factors and their transfer matrix at the current parameters and array contents."""
        given = self.embeddings, self.later, self.feature_map, self.random_state

        def make():
            left = check_embeddings(self.embeddings)
            right = left
            if self.later is not None:
                right = check_embeddings(self.later, "later", left.shape[1])
                if len(right) != len(left):
                    raise ValueError(
                        f"later has {len(right)} rows; embeddings has {len(left)}, one a state."
                    )
            maps = fitted_maps(self.feature_map, left, right, self.random_state)
            pair = factors(maps, left, right)
            return pair, log_product(pair.right.T, pair.left)

        return remembered(self, "_kept", given, make)

    # ---------------------------------------------------------------- sums over all paths

    def log_partition(self, length):
        """Return the logarithm of the sum of the products of potentials over all paths.

        Parameters
        ----------
        length : int or array-like of int
            Number of variables; several lengths are answered at once.

        Returns
        -------
        float or ndarray
            One value a length.
        """
        lengths = as_array("length", length)
        if lengths.size == 0:
            raise ValueError(f"length must hold integers >= 1, got {length!r}.")
        wanted = [check_integer("length", n) for n in lengths.ravel().tolist()]
        known = {n: self._log_partition(n) for n in set(wanted)}
        values = np.array([known[n] for n in wanted], dtype=np.float64).reshape(lengths.shape)
        return values if lengths.ndim else float(values)

    def _log_partition(self, length):
        pair, transfer = self._model
        if length == 1:
            return float(np.log(len(pair.left)))
        first = log_sum_exp(pair.left, axis=0)
        last = log_sum_exp(pair.right, axis=0)
        steps = length - 2
        # Squaring costs D^3 for every bit, going step by step D^2 for every position.
        if steps > 2 * len(first):
            while steps:
                if steps & 1:
                    last = log_columns(transfer.T, last)
                steps >>= 1
                if steps:
                    transfer = log_product(transfer, transfer)
        else:
            last = _messages(transfer, last, steps + 1)[-1]
        return float(log_sum_exp(first + last))

    def log_prob(self, paths):
        """Return the log probability of paths.

        Parameters
        ----------
        paths : array-like of int of shape (length,) or (n_paths, length)
            States.

        Returns
        -------
        float or ndarray of shape (n_paths,)
            Log probabilities under the approximate potentials, which are normalised.
        """
        pair, _ = self._model
        paths = as_array("paths", paths)
        if paths.ndim not in (1, 2) or paths.size == 0 or paths.dtype.kind not in "iu":
            raise ValueError(
                "paths must be integers of shape (length,) or (n_paths, length), got shape "
                f"{paths.shape} and dtype {paths.dtype}."
            )
        if paths.min() < 0 or paths.max() >= len(pair.left):
            raise ValueError(
                f"paths must hold states from 0 to {len(pair.left) - 1}, got values from "
                f"{paths.min()} to {paths.max()}."
            )
        total = -self._log_partition(paths.shape[-1])
        for t in range(paths.shape[-1] - 1):
            total = total + pair.values(paths[..., t], paths[..., t + 1])
        return float(total) if paths.ndim == 1 else np.broadcast_to(total, len(paths)).copy()

    def report(self, length, *, n_products=9):
        """Estimate and bound how far log_partition is from that of the exact kernel.

        A product with the exact matrix costs O(n^2 d) and is made in blocks of rows. It makes
        windows of positions longer, over which sums are exact; the rest is extrapolated. With
        length - 1 products or more everything is exact, and the bounds meet.

        Parameters
        ----------
        length : int
            Number of variables.
        n_products : int, default=9
            Number of products.

        Returns
        -------
        ErrorReport
            The estimated ``error`` in nats, exact minus approximate, the estimate of the exact
            ``log_partition``, and its ``lower`` and ``upper`` bounds.

        Warns
        -----
        FeatureCollapseWarning
            Where the bounds exclude the approximate log partition function, by more than 0.1.

        Examples
        --------
        >>> import numpy as np
        >>> from skrf import AdaptiveRF
        >>> from skrf.graphical import ChainMRF
        >>> embeddings = np.random.default_rng(0).normal(size=(50, 4)) / 4
        >>> chain = ChainMRF(embeddings, feature_map=AdaptiveRF(64), random_state=0)
        >>> told = chain.report(20)
        >>> abs(told.error) < 0.1 and told.lower <= told.log_partition <= told.upper
        True
        """
        length = check_integer("length", length)
        n_products = check_integer("n_products", n_products)
        approximate = self._log_partition(length)
        left = check_embeddings(self.embeddings)
        right = left if self.later is None else check_embeddings(self.later, "later")
        return estimate(left, right, length, approximate, n_products=n_products)

    # ---------------------------------------------------------------- marginals and samples

    def _sides(self, length):
        """Return messages in feature space from both ends: row t belongs to edge (t, t + 1)."""
        pair, transfer = self._model
        from_left = _messages(transfer.T, log_sum_exp(pair.left, axis=0), length - 1)
        from_right = _messages(transfer, log_sum_exp(pair.right, axis=0), length - 1)[::-1]
        return from_left, from_right

    def marginals(self, length):
        """Return the distribution of every variable.

        Parameters
        ----------
        length : int
            Number of variables.

        Returns
        -------
        ndarray of shape (length, n)
            Rows sum to 1.
        """
        pair, _ = self._model
        if check_integer("length", length) == 1:
            return np.full((1, len(pair.left)), 1 / len(pair.left))
        from_left, from_right = self._sides(length)
        logs = np.zeros((length, len(pair.left)))
        logs[1:] += log_product(from_left, pair.right.T)
        logs[:-1] += log_product(from_right, pair.left.T)
        return _normalised(logs)

    def edge_marginals(self, length, position):
        """Return the joint distribution of two neighbours; quadratic in the states.

        Parameters
        ----------
        length : int
            Number of variables.
        position : int
            The earlier of the two variables, 0 to length - 2.

        Returns
        -------
        ndarray of shape (n, n)
            Sums to 1.
        """
        pair, _ = self._model
        length = check_integer("length", length, 2)
        if check_integer("position", position, 0) > length - 2:
            raise ValueError(f"position must lie in 0 to {length - 2}, got {position!r}.")
        from_left, from_right = self._sides(length)
        logs = pair.matrix()
        if position > 0:
            logs = logs + log_columns(pair.right.T, from_left[position - 1])[:, None]
        if position < length - 2:
            logs = logs + pair.spread(from_right[position + 1])
        return _normalised(logs.reshape(1, -1)).reshape(logs.shape)

    def sample(self, length, n=1, *, random_state=None):
        """Draw paths, exactly from the model of the approximate potentials.

        Parameters
        ----------
        length : int
            Number of variables.
        n : int, default=1
            Number of paths.
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        ndarray of int of shape (n, length)
            States.
        """
        pair, _ = self._model
        rng = as_generator(random_state)
        with naming("n or length"):
            paths = np.empty((check_integer("n", n), check_integer("length", length)), dtype=int)
        if length == 1:
            paths[:, 0] = rng.randint(len(pair.left), size=n)
            return paths
        _, later = self._sides(length)
        ahead = pair.spread(later[0])
        paths[:, 0] = draw_rows(np.broadcast_to(ahead, (n, len(ahead))), rng)
        for t in range(length - 1):
            # A feature of the edge, given the earlier state; then the later state, given it.
            feature = draw_rows(pair.left[paths[:, t]] + later[t], rng)
            ahead = pair.spread(later[t + 1]) if t < length - 2 else 0.0
            paths[:, t + 1] = draw_rows(pair.right.T[feature] + ahead, rng)
        return paths


def _messages(transfer, message, count):
    """Return the log messages m, transfer m, transfer^2 m, ... as rows.

    The matrix is exponentiated once and messages are kept normalised; where that underflows, sums
    are taken in log space.
    """
    messages = np.empty((max(count, 1), len(message)))
    messages[0] = message
    top = transfer.max()
    matrix = np.exp(transfer - top)
    is_safe = transfer.min() > top - 300
    for t in range(1, count):
        before = messages[t - 1]
        scale = before.max()
        if is_safe and before.min() > scale - 300:
            messages[t] = np.log(matrix @ np.exp(before - scale)) + (scale + top)
        else:
            messages[t] = log_columns(transfer.T, before)
    return messages


def _normalised(logs):
    shares = peaked(logs)
    return shares / shares.sum(axis=1, keepdims=True)
