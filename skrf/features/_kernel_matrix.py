"""Matrices of a fitted mechanism: the kernel, its estimate, and the variance of the estimate."""

import warnings

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from .._arrays import is_array_api, like, namespace, squared_distances, squared_norms, to_host
from .._sums import log_estimate, signed_product
from .._validation import validate_rows
from ._map import as_dtype, in_range, mapped


class KernelMatrixMixin:
    """The public methods that return a matrix for all pairs of rows."""

    def exact_kernel(self, X, Y=None, *, log=False):
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
        # Distances are made on the host.
        logs = like(logs, X) if is_array_api(X) and not is_array_api(logs) else logs
        return logs if log else self._flagged(_exp(logs), X, "kernel values")

    def approximate_kernel(self, X, Y=None):
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
        return self._flagged(as_dtype(values, X.dtype), X, "kernel estimates")

    def kernel_variance(self, X, Y=None, *, log=False):
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
        X, Y = self._pair(X, Y)
        logs = self._fitted.spec._log_variance(self._fitted, X, Y)
        if is_array_api(X):
            logs = like(logs, X)
        return logs if log else self._flagged(_exp(logs), X, "variances")

    @property
    def kernel_variance_is_exact_(self):
        """Whether `kernel_variance` is the variance itself and not an upper bound."""
        fitted = self._known
        return fitted.spec._variance_is_exact(fitted.learned)

    def _pair(self, X, Y):
        check_is_fitted(self)
        X = validate_rows(self, X, reset=False)
        return X, (X if Y is None else validate_rows(self, Y, reset=False, name="Y"))

    def _log_exact_kernel(self, X, Y, sigma):
        """Return the log kernel of all pairs of rows."""
        if self.kernel == "softmax":
            product = X @ Y.T
            return (product.toarray() if sp.issparse(product) else product) * sigma**2
        return squared_distances(X, Y) * (-(sigma**2) / 2)

    def _flagged(self, values, X, what):
        """Return values, with a warning where some overflowed."""
        xp = namespace(values)
        if not bool(xp.all(xp.isfinite(values))):
            self._warn_of_range(X, f"{what} overflowed")
        return values

    def _warn_of_range(self, X, what):
        norms = (X.multiply(X)).sum(axis=1) if sp.issparse(X) else squared_norms(X)
        largest = float(to_host(norms).max()) ** 0.5
        warnings.warn(
            f"{type(self).__name__}: {what} in the output's dtype at sigma={self.sigma_:.4g} and "
            f"largest input norm {largest:.4g}. Take a smaller sigma or standardise the inputs"
            + ("; log_transform stays finite." if self.is_positive else "."),
            RuntimeWarning,
            stacklevel=4,
        )


def _exp(logs):
    with np.errstate(over="ignore"):
        return namespace(logs).exp(logs)
