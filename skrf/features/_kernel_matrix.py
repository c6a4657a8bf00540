"""Matrices of a fitted feature map: the kernel, its estimate, and the variance of the estimate."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._arrays import cast, is_array_api, like, namespace
from .._sums import log_estimate, signed_product
from .._typing import Array, Result
from .._validation import validate_rows
from .._warnings import warn
from ._map import as_dtype, in_range, mapped, needs_double

_STANDARD = 1.01  # mean square of the entries of standardised inputs, with room for rounding


class KernelMatrixMixin:
    """The public methods that return a matrix for all pairs of rows."""

    def exact_kernel(self, X: Array, Y: Array | None = None, *, log: bool = False) -> Result:
        """Return the kernel that the features estimate.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None means X.
        log : bool, default=False
            Return the natural logarithm, which stays finite.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            exp(-sigma^2 |x - y|^2 / 2), or exp(sigma^2 x.y) for the softmax kernel.

        Warns
        -----
        RuntimeWarning
            If a value overflows.
        """
        X, Y = self._pair(X, Y)
        logs = self._spec._log_exact_kernel(X, Y, self.sigma_)
        if is_array_api(X):
            # Distances are computed on the host.
            logs = cast(logs, X.dtype) if is_array_api(logs) else like(logs, X)
        return logs if log else self._flagged(_exp(logs), "Kernel values overflowed")

    def approximate_kernel(self, X: Array, Y: Array | None = None) -> Result:
        """Return the estimate of the kernel from the features of X and Y.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None means X.

        Returns
        -------
        ndarray of shape (n_x, n_y)
            ``transform(X) @ transform_keys(Y).T``, computed on a log scale, so that it is correct
            even if individual features exceed the range of floats.

        Warns
        -----
        RuntimeWarning
            If a value overflows.
        """
        X, Y = self._pair(X, Y)
        sides = (self._fitted.queries, X, "X"), (self._fitted.keys, Y, "Y")
        rows = [in_range(side, Z, name) for side, Z, name in sides]
        # Libraries other than NumPy do not multiply float32 by float64.
        dtype = namespace(X).result_type(*(Z.dtype for Z in rows))
        queries, keys = (
            mapped(side[0], cast(Z, dtype)) for side, Z in zip(sides, rows, strict=True)
        )
        if is_array_api(X) and not self.is_positive:
            values, scale = signed_product(queries, keys)
            values = values * _exp(scale)
        else:
            logs, sign = log_estimate(queries, keys)
            values = sign * _exp(logs)
        return self._flagged(as_dtype(values, X.dtype), "Kernel estimates overflowed")

    def kernel_variance(self, X: Array, Y: Array | None = None, *, log: bool = False) -> Result:
        """Return the closed-form variance of `approximate_kernel` at the fitted parameters.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_x, n_features)
            Queries.
        Y : {array-like, sparse matrix} of shape (n_y, n_features), default=None
            Keys; None means X.
        log : bool, default=False
            Return the natural logarithm, which neither overflows nor underflows (-inf where the
            estimate is exact).

        Returns
        -------
        ndarray of shape (n_x, n_y)
            Variance over draws, about the mean of the estimate; an upper bound where
            ``kernel_variance_is_exact_`` is False.

        Raises
        ------
        NotImplementedError
            If neither a closed form nor a bound is known; the message says what is known.
        """
        logs = self._of_pairs(X, Y, "_log_variance")
        return logs if log else self._flagged(_exp(logs), "Variances overflowed")

    @property
    def kernel_variance_is_exact_(self) -> bool:
        """Whether `kernel_variance` is exact rather than an upper bound."""
        fitted = self._known
        try:
            fitted.spec._check_variance(fitted.parameters)
        except NotImplementedError as error:
            # What reads all attributes, as inspect and dir do, leaves out those that raise this.
            raise AttributeError(str(error)) from error
        return fitted.spec._variance_is_exact(fitted.parameters)

    def _of_pairs(self, X, Y, method, *arguments):
        """Return the logarithms that a method of the contract gives for all pairs of rows."""
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

    def _flagged(self, values, subject):
        """Return the values, and warn if some overflowed."""
        if not bool(namespace(values).all(namespace(values).isfinite(values))):
            self._warn_of_range(subject, values.dtype)
        return values

    def _warn_of_range(self, subject, dtype):
        """Warn with a text that is the same for all data."""
        queries = self._fitted.statistics.queries
        advice = ["a smaller sigma", "rows of unit norm (scikit-learn's Normalizer)"]
        if np.mean(queries.variances + queries.mean**2) > _STANDARD:
            advice.append("standardised inputs")
        if self.is_positive:
            advice.append("log_transform, which stays finite")
        warn(
            f"{subject} in {dtype}, in {type(self).__name__}: sigma_ times the norm of a row "
            f"should not be above 10 or so. Use {', '.join(advice[:-1])} or {advice[-1]}.",
            RuntimeWarning,
        )


def _exp(logs):
    with np.errstate(over="ignore"):
        return namespace(logs).exp(logs)
