"""Matrices of a fitted mechanism: the kernel, its estimate, and the variance of the estimate."""

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from .._arrays import cast, is_array_api, like, namespace, scaled_squares
from .._sums import log_estimate, signed_product
from .._typing import Array
from .._validation import validate_rows, warn_once_a_place
from ._map import as_dtype, in_range, mapped, needs_double

_STANDARD = 1.01  # mean square of the entries of standardised inputs, with room for rounding


class KernelMatrixMixin:
    """The public methods that return a matrix for all pairs of rows."""

    def exact_kernel(self, X: Array, Y: Array | None = None, *, log: bool = False) -> Array:
        """Return the kernel that the features estimate.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.
        log : bool, default=False
            Return the natural logarithm, which stays finite.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            exp(-sigma^2 |x - y|^2 / 2), or exp(sigma^2 x.y) for the softmax kernel.

        Warns
        -----
        RuntimeWarning
            Where a value overflows.
        """
        X, Y = self._pair(X, Y)
        logs = self._spec._log_exact_kernel(X, Y, self.sigma_)
        if is_array_api(X):
            # Distances are made on the host.
            logs = cast(logs, X.dtype) if is_array_api(logs) else like(logs, X)
        return logs if log else self._flagged(_exp(logs), "Kernel values overflowed")

    def approximate_kernel(self, X: Array, Y: Array | None = None) -> Array:
        """Return the estimate of the kernel made of the features of X and Y.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            ``transform(X) @ transform_keys(Y).T``, computed on a log scale, so that it is right
            also where single features leave the range of floats.

        Warns
        -----
        RuntimeWarning
            Where a value overflows.
        """
        X, Y = self._pair(X, Y)
        sides = (self._fitted.queries, X, "X"), (self._fitted.keys, Y, "Y")
        queries, keys = (mapped(side, in_range(side, Z, name)) for side, Z, name in sides)
        if is_array_api(X) and not self.is_positive:
            values, scale = signed_product(queries, keys)
            values = values * _exp(scale)
        else:
            logs, sign = log_estimate(queries, keys)
            values = sign * _exp(logs)
        return self._flagged(as_dtype(values, X.dtype), "Kernel estimates overflowed")

    def kernel_variance(self, X: Array, Y: Array | None = None, *, log: bool = False) -> Array:
        """Return the closed-form variance of `approximate_kernel` at the fitted parameters.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.
        log : bool, default=False
            Return the natural logarithm, which neither overflows nor underflows (-inf where the
            estimate is exact).

        Returns
        -------
        ndarray of shape (n_x, n_y)
            Variance over draws, about the mean of the estimate; a proven upper bound where
            ``kernel_variance_is_exact_`` is False.

        Raises
        ------
        NotImplementedError
            Where neither a closed form nor a bound is known; the message says what is.
        """
        logs = self._of_pairs(X, Y, "_log_variance")
        return logs if log else self._flagged(_exp(logs), "Variances overflowed")

    def term_range(
        self, X: Array, Y: Array | None = None, *, log: bool = False, upper: bool = False
    ) -> Array:
        """Return the length of an interval that holds every independent term of the estimate.

        `approximate_kernel` is the mean of ``n_projections_`` terms, one of each projection.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.
        log : bool, default=False
            Return the natural logarithm, which neither overflows nor underflows.
        upper : bool, default=False
            Also where terms depend on each other, but so that no exponential moment of their mean
            is larger than that of independent ones: bounds of upper tails hold there, too.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            At least the largest possible term less the smallest one.

        Raises
        ------
        ValueError
            Where terms are not bounded or not independent; the message says where they are.
        """
        logs = self._of_pairs(X, Y, "_log_term_range", upper)
        return logs if log else self._flagged(_exp(logs), "Ranges of terms overflowed")

    def term_variance(self, X: Array, Y: Array | None = None, *, log: bool = False) -> Array:
        """Return the variance of one of the terms that `term_range` speaks of.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.
        log : bool, default=False
            Return the natural logarithm, which neither overflows nor underflows.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            The variance of what a single projection estimates.

        Raises
        ------
        NotImplementedError
            Where no closed form is known, or terms are not those that `term_range` speaks of.
        """
        logs = self._of_pairs(X, Y, "_log_term_variance")
        return logs if log else self._flagged(_exp(logs), "Variances overflowed")

    def block_moment(self, X: Array, Y: Array | None = None, *, log: bool = False) -> Array:
        """Return the sum of the second moments of the independent parts that the estimate is of.

        Every block of projections makes one part, its share of the mean; none is negative.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None takes X.
        log : bool, default=False
            Return the natural logarithm, which neither overflows nor underflows.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            The sum of the second moments, or an upper bound of it.

        Raises
        ------
        NotImplementedError
            Where the second moment of a block is not known.
        ValueError
            Where parts may be negative or are not independent; the message says where they are.
        """
        logs = self._of_pairs(X, Y, "_log_block_moment")
        return logs if log else self._flagged(_exp(logs), "Second moments overflowed")

    @property
    def kernel_variance_is_exact_(self) -> bool:
        """Whether `kernel_variance` is the variance itself and not an upper bound."""
        fitted = self._known
        middle = fitted.statistics.queries.mean[None, :]
        fitted.spec._log_variance(fitted, middle, middle)  # raises where it is not known
        return fitted.spec._variance_is_exact(fitted.learned)

    def _of_pairs(self, X, Y, method, *arguments):
        """Return what a method of the fitted mechanism says of all pairs of rows."""
        X, Y = self._pair(X, Y)
        logs = getattr(self._fitted.spec, method)(self._fitted, X, Y, *arguments)
        return like(logs, X) if is_array_api(X) else logs

    def _pair(self, X, Y):
        check_is_fitted(self)
        X = validate_rows(self, X, reset=False)
        Y = X if Y is None else validate_rows(self, Y, reset=False, name="Y")
        for side, Z, name in ((self._fitted.queries, X, "X"), (self._fitted.keys, Y, "Y")):
            needs_double(side, Z, name)
        return X, Y

    def _log_exact_kernel(self, X, Y, sigma):
        """Return the log kernel of all pairs of rows."""
        if self.kernel == "softmax":
            # In float64 before they are scaled: sigma and products may leave the range of float32.
            X, Y = (cast(Z, namespace(Z).float64) * sigma for Z in (X, Y))
            product = X @ Y.T
            return product.toarray() if sp.issparse(product) else product
        return scaled_squares(X, Y, sigma) / -2

    def _flagged(self, values, what):
        """Return values, with a warning where some overflowed."""
        if not bool(namespace(values).all(namespace(values).isfinite(values))):
            self._warn_of_range(what, values.dtype)
        return values

    def _warn_of_range(self, what, dtype):
        """Warn in words that are the same for all data: Python shows such a text once a place."""
        queries = self._fitted.statistics.queries
        advice = ["a smaller sigma", "rows of unit norm (scikit-learn's Normalizer)"]
        if np.mean(queries.variances + queries.mean**2) > _STANDARD:
            advice.append("standardised inputs")
        if self.is_positive:
            advice.append("log_transform, which stays finite")
        warn_once_a_place(
            f"{what} in {dtype}, in {type(self).__name__}: sigma_ times the norm of a row should "
            f"not be above 10 or so. Use {', '.join(advice[:-1])} or {advice[-1]}."
        )


def _exp(logs):
    with np.errstate(over="ignore"):
        return namespace(logs).exp(logs)
