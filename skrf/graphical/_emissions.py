"""Emissions of rows of numbers: what a hidden Markov model asks of them, and normal ones."""

import copy
from typing import Any, Literal, Self

import numpy as np
from scipy.linalg import solve_triangular

from .._typing import Array, RandomState
from .._validation import draw_seed, naming
from ._potentials import as_array, check_entries, unmasked

_FLOOR = 1e-6  # of variances, as a share of the variance of a column
_LEAST_ROOT = 1e-12  # of what variances have above the floor, as a share of them
_KINDS = {
    "diag": "diagonal",
    "full": "symmetric",
    "tied": "the same for all states",
    "spherical": "multiples of the identity",
}
_LOG_2_PI = np.log(2 * np.pi)


class GaussianEmissions:
    """Normal emissions: the rows of a state have a mean and a covariance.

    Any object with these methods can be the `emissions` of a `KernelHMM`; without `pull_back`, its
    parameters are learnt by expectation maximisation alone. Entries of rows that are masked
    (``numpy.ma``), or NaN in calls of `KernelHMM`, are summed out, so a row counts with what was
    observed of it.

    Parameters
    ----------
    means : array-like of shape (n_states, p)
        Means.
    covars : array-like of shape (n_states, p) or (n_states, p, p)
        Variances, or covariances.
    covariance_type : {"diag", "full", "tied", "spherical"}, default="diag"
        What covariances are: diagonal, any, the same for all states, or multiples of the identity.

    Attributes
    ----------
    floor : ndarray of shape (p,)
        Least variances: a millionth of those of the columns that `update` saw, or 1
        for columns that are constant; 0 before.
    parameters : list of ndarray
        Parameters without constraints, of which `pull_back` returns gradients. They are those of
        columns that are standardised, so that no column counts more than another.
    n_parameters : int
        Number of free parameters.

    See Also
    --------
    KernelHMM : Takes them as `emissions`.

    References
    ----------
    Maximum likelihood from incomplete data via the EM algorithm (1977).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf.graphical import GaussianEmissions
    >>> emissions = GaussianEmissions([[0.0], [5.0]], [[1.0], [1.0]])
    >>> emissions.log_likelihood(np.array([[0.0], [5.0]])).round(2)
    array([[ -0.92, -13.42],
           [-13.42,  -0.92]])
    """

    def __init__(
        self,
        means: Array,
        covars: Array,
        *,
        covariance_type: Literal["diag", "full", "tied", "spherical"] = "diag",
    ) -> None:
        check_covariance_type(covariance_type)
        # Copies, as of all arrays that models take: the caller may write to theirs.
        self.means = as_array("means", means, np.float64).copy()
        covars = as_array("covars", covars, np.float64).copy()
        n, p = self.means.shape if self.means.ndim == 2 else (0, 0)
        if covars.shape == (n, p):
            covars = covars[:, :, None] * np.eye(p)
        is_shaped = n * p > 0 and covars.shape == (n, p, p)
        if not is_shaped or not (np.isfinite(self.means).all() and np.isfinite(covars).all()):
            raise ValueError(
                "means must hold finite numbers of shape (n_states, p) and covars of shape "
                f"(n_states, p) or (n_states, p, p), got {means!r} and {covars!r}."
            )
        with naming("covars"):
            np.linalg.cholesky(covars)
        self.covars, self.covariance_type, self.floor = covars, covariance_type, np.zeros(p)
        constrained = self._constrained(covars, np.ones(n))
        constrained = (constrained + constrained.transpose(0, 2, 1)) / 2
        roots = np.sqrt(np.diagonal(covars, axis1=1, axis2=2).max(axis=0))
        units = np.outer(roots, roots)
        if not np.allclose(covars / units, constrained / units, atol=1e-8):
            raise ValueError(
                f"covars must be {_KINDS[covariance_type]} with {covariance_type=}, got {covars!r}."
            )
        variances = np.diagonal(covars, axis1=1, axis2=2).mean(axis=0) + self.means.var(axis=0)
        if covariance_type == "spherical":  # of which a state has one variance
            variances = np.full_like(variances, variances.mean())
        self._centre, self._scales = self.means.mean(axis=0), np.sqrt(variances)
        self._parameters = None

    def __repr__(self):
        n, p = self.means.shape
        return f"<GaussianEmissions of {n} states and {p} columns, {self.covariance_type!r}>"

    @property
    def n_parameters(self) -> int:
        """Number of free parameters."""
        n, p = self.means.shape
        of_one = p * (p + 1) // 2
        of_covars = {"diag": n * p, "full": n * of_one, "tied": of_one, "spherical": n}
        return n * p + of_covars[self.covariance_type]

    @property
    def _is_diagonal(self):
        return self.covariance_type in ("diag", "spherical")

    def log_likelihood(self, X: Array) -> np.ndarray:
        """Return the log density of every row in every state.

        Parameters
        ----------
        X : ndarray of shape (n_samples, p)
            Rows; masked entries are missing.

        Returns
        -------
        ndarray of shape (n_samples, n_states)
            Log densities of the entries that are not missing.
        """
        table = np.zeros((len(X), len(self.means)))
        for rows, columns, values in _by_pattern(X):
            table[rows] = -0.5 * len(columns) * _LOG_2_PI
            for k, (mean, inverse, log_det) in enumerate(self._roots_of_precisions(columns)):
                scaled = _product(values - mean, inverse)
                with np.errstate(over="ignore"):  # so far away that the density is 0
                    table[rows, k] -= 0.5 * np.einsum("ij,ij->i", scaled, scaled) + log_det
        return table

    def _roots_of_precisions(self, columns):
        """Yield the mean of some columns, W with W.T W their precision, and -log det W, by state.

        W is the vector of its diagonal if covariances are diagonal.
        """
        for mean, covar in zip(self.means, self.covars, strict=True):
            if self._is_diagonal:
                root = np.sqrt(np.diag(covar)[columns])
                yield mean[columns], 1.0 / root, np.log(root).sum()
            else:
                root = np.linalg.cholesky(covar[np.ix_(columns, columns)])
                identity = np.eye(len(root))
                inverse = solve_triangular(root, identity, lower=True) if len(root) else identity
                yield mean[columns], inverse, np.log(np.diag(root)).sum()

    def update(self, posteriors: np.ndarray, X: Array) -> Self:
        """Return the emissions that maximise the expected log likelihood.

        Parameters
        ----------
        posteriors : ndarray of shape (n_samples, n_states)
            Posteriors of the states.
        X : ndarray of shape (n_samples, p)
            Rows; masked entries have the expectation given the others.

        Returns
        -------
        GaussianEmissions
            New emissions; states without any share keep theirs, but for the floor.
        """
        new = copy.copy(self)
        new._standardise(X)
        totals, patterns = posteriors.sum(axis=0), list(_by_pattern(X))
        means, covars = self.means.copy(), self.covars.copy()
        for k in np.flatnonzero(totals > 0):
            weights = posteriors[:, k].astype(float)
            filled, spread = self._expected(k, weights, X, patterns)
            means[k] = weights @ filled / totals[k]
            apart = filled - means[k]
            if self._is_diagonal:
                spread = spread + np.diag(weights @ apart**2)
            else:
                spread = spread + (weights * apart.T) @ apart
            covars[k] = spread / totals[k]
        new.means, new.covars = means, new._floored(new._constrained(covars, totals))
        return new

    def _expected(self, k, weights, X, patterns):
        """Return the rows that a state expects, given what was seen, and their covariances' sum."""
        if not np.ma.is_masked(X):
            return np.ma.getdata(X), 0.0
        mean, covar = self.means[k], self.covars[k]
        filled, spread = np.empty(X.shape), np.zeros(covar.shape)
        for rows, seen, values in patterns:
            lost = np.setdiff1d(np.arange(len(mean)), seen)
            gain = np.linalg.solve(covar[np.ix_(seen, seen)], covar[np.ix_(seen, lost)])
            filled[np.ix_(rows, seen)] = values
            filled[np.ix_(rows, lost)] = mean[lost] + (values - mean[seen]) @ gain
            conditional = covar[np.ix_(lost, lost)] - covar[np.ix_(lost, seen)] @ gain
            spread[np.ix_(lost, lost)] += weights[rows].sum() * conditional
        return filled, spread

    def _constrained(self, covars, totals):
        """Return the likeliest covariances of this type, given those of states with some shares."""
        if self._is_diagonal:
            variances = np.diagonal(covars, axis1=1, axis2=2)
            if self.covariance_type == "spherical":
                variances = variances.mean(axis=1, keepdims=True)
            return variances[:, :, None] * np.eye(len(self.floor))
        if self.covariance_type == "tied":
            return np.tile(np.average(covars, axis=0, weights=totals), (len(covars), 1, 1))
        return covars

    def _standardise(self, X):
        """Take the units of parameters, and the floor, from the columns of X."""
        variances = np.ma.filled(X.var(axis=0), 0.0)
        # Of a constant, the mean is off by rounding.
        rounding = (8 * np.finfo(float).eps * np.abs(np.ma.filled(X, 0)).max(axis=0)) ** 2
        if self.covariance_type == "spherical":  # of which a state has one variance
            variances, rounding = (
                np.full_like(values, values.mean()) for values in (variances, rounding)
            )
        is_flat = variances <= rounding
        self._centre = np.ma.filled(X.mean(axis=0), 0.0)
        self._scales = np.sqrt(np.where(is_flat, 1.0, variances))
        self.floor = np.where(is_flat, 1.0, _FLOOR * variances)
        self._parameters = None

    def _floored(self, covars):
        """Return covariances of which no direction varies less than the floor."""
        if self._is_diagonal:
            variances = np.maximum(np.diagonal(covars, axis1=1, axis2=2), self.floor)
            return variances[:, :, None] * np.eye(len(self.floor))
        roots = np.sqrt(self.floor)
        units = np.outer(roots, roots)  # roots first: products of floors may overflow
        values, vectors = np.linalg.eigh(covars / units)
        floored = (vectors * np.maximum(values, 1.0)[:, None]) @ vectors.transpose(0, 2, 1) * units
        return np.where((values.min(axis=1) < 1.0)[:, None, None], floored, covars)

    @property
    def parameters(self) -> list[np.ndarray]:
        """Means, and roots of what covariances have above the floor, of standardised columns."""
        if self._parameters is not None:  # any rotation of roots is one, too: keep this one
            return self._parameters
        means = (self.means - self._centre) / self._scales
        variances = np.diagonal(self.covars, axis1=1, axis2=2)
        if self._is_diagonal:
            over = np.maximum(variances - self.floor, _LEAST_ROOT * variances)
            logs = np.log(over / self._scales**2)
            return [means, logs[:, :1] if self.covariance_type == "spherical" else logs]
        # Each covariance in units of its own, where the rounding of the largest is nobody's all.
        distinct = slice(1 if self.covariance_type == "tied" else None)
        scales = np.sqrt(variances[distinct])
        over = self.covars[distinct] - np.diag(self.floor)
        values, vectors = np.linalg.eigh(over / (scales[:, :, None] * scales[:, None]))
        roots = vectors * np.sqrt(np.maximum(values, _LEAST_ROOT))[:, None]
        return [means, roots * (scales / self._scales)[:, :, None]]

    def with_parameters(self, parameters: list[np.ndarray]) -> Self:
        """Return emissions of other parameters.

        Parameters
        ----------
        parameters : list of ndarray
            Arrays like those of `parameters`.

        Returns
        -------
        GaussianEmissions
            New emissions.
        """
        new = copy.copy(self)
        new._parameters, (means, roots) = parameters, parameters
        new.means = self._centre + means * self._scales
        if self._is_diagonal:
            with np.errstate(over="ignore"):
                variances = np.exp(roots) * self._scales**2 + self.floor
            new.covars = variances[:, :, None] * np.eye(len(self.floor))
        else:
            roots = roots * self._scales[:, None]
            covars = roots @ roots.transpose(0, 2, 1) + np.diag(self.floor)
            new.covars = np.broadcast_to(covars, self.covars.shape).copy()
        return new

    def pull_back(self, posteriors: np.ndarray, X: Array) -> list[np.ndarray]:
        """Return gradients of the expected log likelihood with respect to `parameters`.

        Parameters
        ----------
        posteriors : ndarray of shape (n_samples, n_states)
            Posteriors of the states.
        X : ndarray of shape (n_samples, p)
            Rows.

        Returns
        -------
        list of ndarray
            Gradients, in the shapes of `parameters`.
        """
        by_means, by_covars = np.zeros(self.means.shape), np.zeros(self.covars.shape)
        for rows, columns, values in _by_pattern(X):
            at = np.ix_(columns, columns)
            for k, (mean, inverse, _) in enumerate(self._roots_of_precisions(columns)):
                weights, scaled = posteriors[rows, k], _product(values - mean, inverse)
                by_means[k, columns] += _product(weights @ scaled, inverse.T)
                inverse = np.diag(inverse) if inverse.ndim == 1 else inverse
                spread = (weights * scaled.T) @ scaled - weights.sum() * np.eye(len(columns))
                by_covars[k][at] += 0.5 * (inverse.T @ spread @ inverse)
        by_means *= self._scales
        by_covars *= np.outer(self._scales, self._scales)
        roots = self.parameters[1]
        if self._is_diagonal:
            by_variances = np.diagonal(by_covars, axis1=1, axis2=2)
            if self.covariance_type == "spherical":
                by_variances = by_variances.sum(axis=1, keepdims=True)
            return [by_means, by_variances * np.exp(roots)]
        if self.covariance_type == "tied":
            by_covars = by_covars.sum(axis=0, keepdims=True)
        return [by_means, 2 * by_covars @ roots]

    def sample(self, states: np.ndarray, rng: RandomState) -> np.ndarray:
        """Return a row for every state.

        Parameters
        ----------
        states : ndarray of int of shape (n_samples,)
            States.
        rng : RandomState
            Source of the draws.

        Returns
        -------
        ndarray of shape (n_samples, p)
            Rows.
        """
        generator: Any = rng
        rows = generator.normal(size=(len(states), self.means.shape[1]))
        for k, root in enumerate(np.linalg.cholesky(self.covars)):
            is_here = states == k
            rows[is_here] = self.means[k] + rows[is_here] @ root.T
        return rows


class PrecomputedEmissions:
    """Emissions of another model, whose log likelihoods of all states are the rows."""

    n_parameters = 0

    def log_likelihood(self, X):
        """Return the rows."""
        return X

    def update(self, posteriors, X):
        """Return the emissions, which learn nothing."""
        return self

    def sample(self, states, rng):
        """Raise, as nothing is known that draws could come from."""
        raise ValueError("sample needs emissions to draw from, got emissions='precomputed'.")


def clustered(n_states, X, covariance_type, rng):
    """Return emissions of the clusters that k-means finds, without the order of the rows."""
    from sklearn.cluster import KMeans  # 12 MB that most users never need

    filled = _filled(X, X.mean(axis=0))
    scales = filled.std(axis=0)
    kmeans = KMeans(n_states, n_init=1, random_state=draw_seed(rng))
    labels = kmeans.fit_predict(filled / np.where(scales > 0, scales, 1.0))
    ones = np.ones((n_states, X.shape[1]))
    unit = GaussianEmissions(filled[:n_states], ones, covariance_type=covariance_type)
    emissions = unit.update(labels[:, None] == np.arange(n_states), filled)
    emissions._standardise(X)
    return emissions


def check_covariance_type(value):
    """Raise unless this is a kind of covariances."""
    if not isinstance(value, str) or value not in _KINDS:
        raise ValueError(f"covariance_type must be one of {[*_KINDS]}, got {value!r}.")


def check_log_likelihoods(X, n_states):
    """Return log likelihoods of all states, of which every row allows some."""
    table = as_array("X", X, np.float64)
    if table.ndim != 2 or table.shape[1] != n_states or len(table) == 0:
        raise ValueError(
            f"X must have shape (n_samples, {n_states}), a log likelihood for every state, got "
            f"{table.shape}."
        )
    if np.isnan(table).any() or (table == np.inf).any():
        raise ValueError("X must not hold NaN or +inf where it holds log likelihoods.")
    if not np.isfinite(table).any(axis=1).all():
        row = int(np.argmin(np.isfinite(table).any(axis=1)))
        raise ValueError(f"X forbids every state at sample {row}.")
    return table


def check_rows(X, width=None):
    """Return rows of numbers, masked where they were or are NaN."""
    rows, is_masked = unmasked(X)
    rows = as_array("X", rows, np.float64)
    mask = np.isnan(rows) | is_masked
    rows = np.where(mask, 0.0, rows)
    if rows.ndim == 1 and width in (None, 1):
        rows, mask = rows[:, None], mask[:, None]
    if rows.ndim != 2 or rows.size == 0 or width not in (None, rows.shape[1]):
        wanted = "p" if width is None else width
        raise ValueError(f"X must have shape (n_samples, {wanted}), got {np.shape(X)}.")
    if not np.isfinite(rows).all():
        raise ValueError("X must hold finite numbers, or NaN or a mask where one is missing.")
    check_entries("X", rows)
    return np.ma.array(rows, mask=mask) if mask.any() else rows


def _product(rows, root):
    """Return rows times the transpose of a root, which may be the vector of its diagonal."""
    return rows * root if root.ndim == 1 else rows @ root.T


def _filled(X, values):
    return np.where(np.ma.getmaskarray(X), np.ma.filled(values, 0.0), np.ma.getdata(X))


def _by_pattern(X):
    """Yield rows that lack the same columns, the columns that they have, and what is there."""
    is_missing, X = np.ma.getmaskarray(X), np.ma.getdata(X)
    if not is_missing.any():
        yield np.arange(len(X)), np.arange(X.shape[1]), X
        return
    patterns, which = np.unique(is_missing, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        rows, columns = np.flatnonzero(which.ravel() == number), np.flatnonzero(~pattern)
        yield rows, columns, X[np.ix_(rows, columns)]
