"""Fourier features of a lattice of frequencies, for few columns: nothing is random."""

import math
from dataclasses import dataclass, field
from itertools import product
from numbers import Real
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize_scalar

from .. import _kernels
from .._arrays import LARGEST, Kept, largest_entry, like, namespace
from .._sums import Rows
from .._typing import RandomState, Sigma
from .._validation import Interval, StrOptions
from ._affine import about_a_row
from ._docs import document
from ._map import FeatureMap
from .base import BaseRandomFeatures
from .spectra import SPECTRA, Gaussian

_MOST_COLUMNS = 3  # of X; beyond, a lattice has too few frequencies on every axis
_LOW, _HIGH = 0.02, 0.98  # shares of the distinct values of a column between which most rows lie
_EDGE = 1e-9  # relative: frequencies so near to the radius count as inside
_ALIASES = 4  # neighbours of a period whose kernel is not negligible, on either side
_KERNELS = {"gaussian": Gaussian(), **{f"matern{n}2": SPECTRA[f"matern{n}2"] for n in (1, 3, 5)}}


class Lattice(NamedTuple):
    """Frequencies at equal distances inside of a ball.

    Parameters
    ----------
    frequencies : ndarray of shape (m, d)
        One of every pair of opposite ones, without 0.
    shares : ndarray of shape (m + 1,)
        Weights of 0 and of the pairs; they add up to 1.
    bound : float
        Upper bound of the error of the kernel.
    """

    frequencies: np.ndarray
    shares: np.ndarray
    bound: float


def lattice_of(spectrum, extents, n_columns):
    """Return the `Lattice` of the least bound that makes at most so many columns.

    The features repeat after a period, which is an extent and a gap; the gap of the Gaussian
    kernel is the radius of the ball, which is about the best one.
    """
    if isinstance(spectrum, Gaussian):
        return _of_gap(spectrum, extents, n_columns, None)
    largest = 60.0 / math.sqrt(2 * spectrum.nu)
    best = minimize_scalar(
        lambda log: _of_gap(spectrum, extents, n_columns, math.exp(log)).bound,
        bounds=(math.log(0.1), math.log(largest)),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return _of_gap(spectrum, extents, n_columns, math.exp(round(best.x, 2)))


def _of_gap(spectrum, extents, n_columns, gap):
    """Return the `Lattice` for a gap; None is the radius."""

    def steps_at(radius):
        return 2 * math.pi / (extents + (radius if gap is None else gap))

    def is_small(radius):
        """Return whether the ball has at most so many points, counted line by line."""
        steps, edge = steps_at(radius), radius * (1 + _EDGE)
        if np.prod(2 * np.floor(edge / steps) + 1) > 8 * n_columns + 8:  # over half are inside
            return False
        lines = _ball(steps[:-1], edge)
        remaining = np.maximum(edge**2 - np.sum((lines * steps[:-1]) ** 2, axis=1), 0.0)
        return np.sum(2 * np.floor(np.sqrt(remaining) / steps[-1]) + 1) <= n_columns

    high = 1.0
    while is_small(high):
        high *= 2
    low = high / 2
    while not is_small(low):  # 0 alone is small
        low, high = low / 2, low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_small(middle) else (low, middle)
    radius = low * (1 - 1e-6)
    steps = steps_at(radius)
    grid = _ball(steps, radius * (1 + _EDGE))
    # Of opposite frequencies, the one whose first number other than 0 is positive.
    signs = np.sign(grid) @ 3 ** np.arange(len(extents))[::-1]
    points = grid[signs > 0]
    points = points[np.lexsort((*points.T[::-1], np.sum((points * steps) ** 2, axis=1).round(9)))]
    frequencies = points * steps
    weights = np.append(1.0, 2 * np.ones(len(points)))
    weights *= spectrum.density(np.append(0.0, np.sum(frequencies**2, axis=1)), len(extents))
    periods = 2 * math.pi / steps
    total, aliases = _aliases(spectrum, periods, extents)
    kept_weight = weights.sum() / np.prod(periods)
    bound = aliases + 2 * max(1 - kept_weight / total, 0.0)
    return Lattice(frequencies, weights / weights.sum(), float(bound))


def _ball(steps, radius):
    """Return the integers whose products with the steps lie in a ball, (n, d)."""
    most = np.floor(radius / steps).astype(int)
    axes = np.meshgrid(*(np.arange(-n, n + 1) for n in most), indexing="ij")
    grid = np.stack(axes, axis=-1).reshape(-1, len(steps)) if axes else np.zeros((1, 0), int)
    return grid[np.sum((grid * steps) ** 2, axis=1) <= radius**2]


def _aliases(spectrum, periods, extents):
    """Return the sum of the kernel at all multiples of the periods, and at the nearest images."""
    total = aliases = 0.0
    for numbers in product(range(-_ALIASES, _ALIASES + 1), repeat=len(periods)):
        n = np.abs(numbers)
        total += math.exp(spectrum.log_profile(np.linalg.norm(n * periods)))
        if n.any():
            nearest = np.where(n > 0, np.maximum(n * periods - extents, 0.0), 0.0)
            aliases += math.exp(spectrum.log_profile(np.linalg.norm(nearest)))
    return total, aliases


@dataclass(frozen=True, eq=False)
class LatticeMap(FeatureMap):
    """Weighted cosines and sines of rows, which are moved to the edge of a box.

    Parameters
    ----------
    sigma : float
        Multiplier of the rows.
    low, high : ndarray of shape (d,)
        The box, with its margin.
    frequencies : ndarray of shape (m, d)
        Frequencies; 0 on axes that are dropped.
    amplitudes : ndarray of shape (2 m + 1,)
        Factors of 1, the cosines and the sines.
    """

    sigma: float
    low: np.ndarray
    high: np.ndarray
    frequencies: np.ndarray
    amplitudes: np.ndarray
    _kept: Kept = field(init=False, default_factory=Kept)
    is_positive = False
    is_double = is_bounded = True
    n_features = property(lambda self: self.frequencies.shape[1])
    n_columns = property(lambda self: len(self.amplitudes))

    def _angles(self, X):
        """Return the angles of the cosines of rows, which are moved into the box."""
        X = X.toarray() if sp.issparse(X) else X
        xp = namespace(X)
        low, high = like(self.low, X), like(self.high, X)
        inside = xp.minimum(xp.maximum(X, low), high)
        middle = like(self.low + (self.high - self.low) / 2, X)
        matrix = self._kept.like(X, lambda: self.sigma * self.frequencies.T)
        return (inside - middle) @ matrix

    def __call__(self, X):
        """Return the `Rows` of X."""
        angles = self._angles(X)
        xp = namespace(angles)
        columns = [xp.ones_like(angles[:, :1]), xp.cos(angles), xp.sin(angles)]
        values = xp.concat(columns, axis=1) * like(self.amplitudes, angles)
        return Rows(values, xp.zeros_like(values[:, :1]))

    def write(self, X, out, room, lower=None):
        """Write the values of rows on the host and return their scale, 0."""
        angles = self._angles(X)
        out[:, 0] = 1.0
        _kernels.sine_cosine(angles, None, out[:, 1:])
        out *= like(self.amplitudes, out)
        return np.zeros((len(out), 1), out.dtype)

    def write_plain(self, X, out, room):
        """Write the features themselves, which are the values."""
        self.write(X, out, room)

    def exponent_bound(self, X):
        """Return 0, or NaN for rows that are not finite."""
        entries = X.data if sp.issparse(X) else X
        return 0.0 * largest_entry(entries) if math.prod(entries.shape) else 0.0


@document
class QuadratureFourierFeatures(BaseRandomFeatures):
    r"""Fourier features with frequencies on a lattice, for at most three columns.

    Choose it for ridge regression on one to three columns, such as times or locations: nothing is
    random, and the kernel is accurate to many digits if the rows span only a few length scales.
    With more columns, a lattice has too few frequencies on every axis: use `RFFSampler`. Features
    can be negative, so do not use it for kernel regression or attention, which divide by sums of
    features.

    Features are periodic. Rows far outside the box of the rows seen by `fit` would be mistaken for
    others, so they are moved to the edge of the box plus a margin, where the kernel with rows in
    the box is nearly 0: predictions there return to the mean, and standard deviations to those of
    the prior.

    %(sigma)s

    Parameters
    ----------
    n_components : int, default=256
        Largest number of components; the actual number is odd, with as many frequencies as fit.
    %(sigma_parameter)s
    kernel : str, default="gaussian"
        "gaussian", exp(-sigma^2 \|x - y\|^2 / 2), or "matern12", "matern32" or "matern52", the
        Matern kernel of smoothness 1/2, 3/2 or 5/2 and length scale 1/sigma. The error of Matern
        kernels falls slowly with the number of components.
    margin : float, default=4.0
        Margin on each side of the box, in length scales. A smaller margin makes the kernel more
        accurate for rows in the box, but wrong for rows outside it.
    box : array-like of shape (n_features, 2), default=None
        Lower and upper end of every column. None takes them from the rows seen by `fit`, except for
        rows that lie far outside the others. Required for fitting in batches.
    random_state : int, RandomState instance or None, default=None
        Unused, because nothing is drawn.

    Attributes
    ----------
    box_ : ndarray of shape (n_features, 2)
        The box, without margin.
    omega_ : ndarray of shape (n_frequencies, n_features)
        The nonzero frequencies, not multiplied by sigma; 0 for columns without extent.
    weights_ : ndarray of shape (n_frequencies + 1,)
        Weights of the frequencies, starting with that of frequency 0; they add up to 1.
    n_components_ : int
        Number of components.
    sigma_, gamma_ : float
        The kernel's scale: the multiplier of the inputs, and the gamma of `rbf_kernel`, which only
        the Gaussian kernel has.
    statistics_ : PairStatistics
        Mergeable statistics of the queries and keys seen by `fit`.
    n_features_in_ : int
        Number of input features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the input features, if X had any.

    Raises
    ------
    ValueError
        By `fit`, if X has more than three columns, or a parameter is invalid.

    See Also
    --------
    RFFSampler : For more columns.
    ApproxKernelRidge : Ridge regression on these features, with standard deviations.

    Notes
    -----
    By Poisson's summation formula, the spectral density at frequencies 2 pi j / T gives the kernel
    plus its images at distances T, 2 T and so on. T is the extent of the box, with one margin, plus
    a gap. Frequencies up to a radius are kept, and their weights add up to 1, so the kernel of a
    row with itself is exact. For the Gaussian kernel, gap and radius are equal, in length scales;
    for Matern kernels, the gap is the one with the smallest error bound.

    References
    ----------
    Mutny and Krause, Efficient high dimensional Bayesian optimization with additivity and
    quadrature Fourier features (2018). Greengard, Rachh and Barnett, Equispaced Fourier
    representations for efficient Gaussian process regression (2023).

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import QuadratureFourierFeatures
    >>> X = np.linspace(0, 10, 200)[:, None]
    >>> features = QuadratureFourierFeatures(64, sigma=1.0).fit(X)
    >>> error = np.abs(features.approximate_kernel(X) - features.exact_kernel(X)).max()
    >>> bool(error < 1e-12 and features.kernel_error_bound() < 1e-12)
    True
    """

    _parameter_constraints = {
        "kernel": [StrOptions(set(_KERNELS))],
        "margin": [Interval(Real, 0, None, closed="left")],
        "box": ["array-like", None],
    }
    _is_unbiased = _suits_ratios = False

    def __init__(
        self,
        n_components: int = 256,
        *,
        sigma: Sigma | None = None,
        kernel: str = "gaussian",
        margin: float = 4.0,
        box: Any = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.sigma = sigma
        self.kernel = kernel
        self.margin = margin
        self.box = box
        self.random_state = random_state

    @property
    def _needs_data(self):
        return self.box is None

    def _obstacle_to_merging(self):
        if self.box is None:
            return "the box of the rows: pass box="
        return super()._obstacle_to_merging()

    def kernel_error_bound(self) -> float:
        """Return an upper bound on the error of the kernel of two rows.

        It holds if one row is in the box and the other is in the box or its margin. Measured errors
        are a few times smaller.

        Returns
        -------
        float
            The bound, at most 2: the kernel and its estimate lie between -1 and 1.
        """
        return min(self._known.parameters.bound, 2.0)

    def _n_bytes(self, parameters, sample):
        # Of the integers in the box around the ball; the ball itself, of frequencies, is smaller.
        return 36 * int(self.n_components) * min(parameters.n_features, _MOST_COLUMNS)

    def _learn(self, parameters, statistics):
        if parameters.n_features > _MOST_COLUMNS:
            raise ValueError(
                f"QuadratureFourierFeatures needs at most {_MOST_COLUMNS} columns, got X with "
                f"{parameters.n_features}: use RFFSampler."
            )

    def _learn_from_rows(self, parameters, sample):
        if self.box is None:
            box = _extents(sample)
        else:
            box = _checked_box(self.box, parameters.n_features)
            if not max(parameters.sigma, 1.0) * np.abs(box).max() <= LARGEST:
                raise ValueError(
                    f"box is too large at sigma={parameters.sigma:.4g}: its ends, and sigma times "
                    f"these, must be between {-LARGEST:g} and {LARGEST:g}, got {self.box!r}."
                )
        parameters.box_ = box
        lengths = (box[:, 1] - box[:, 0]) * parameters.sigma
        is_kept = lengths > 0
        parameters.omega_ = np.zeros((0, parameters.n_features))
        parameters.weights_, parameters.bound = np.ones(1), 0.0
        if is_kept.any():
            spectrum = _KERNELS[self.kernel]
            extents = lengths[is_kept] + self.margin
            lattice = lattice_of(spectrum, extents, int(self.n_components))
            parameters.omega_ = np.zeros((len(lattice.frequencies), parameters.n_features))
            parameters.omega_[:, is_kept] = lattice.frequencies
            parameters.weights_, parameters.bound = lattice.shares, lattice.bound
        parameters.n_projections = 2 * len(parameters.omega_) + 1

    def _draw(self, parameters, seed):
        return SimpleNamespace()

    def _assemble(self, parameters, draw):
        margin = self.margin / parameters.sigma
        roots = np.sqrt(parameters.weights_)
        feature_map = LatticeMap(
            parameters.sigma,
            parameters.box_[:, 0] - margin,
            parameters.box_[:, 1] + margin,
            parameters.omega_,
            np.concatenate([roots, roots[1:]]),
        )
        return feature_map, feature_map

    def _log_exact_kernel(self, X, Y, sigma):
        if self.kernel == "gaussian":
            return super()._log_exact_kernel(X, Y, sigma)
        return SPECTRA[self.kernel].log_kernel(*about_a_row(sigma, X, Y))

    def _check_variance(self, parameters):
        raise NotImplementedError(
            "QuadratureFourierFeatures has no variance, because nothing is random: "
            "kernel_error_bound() bounds its error."
        )

    def _log_variance(self, fitted, X, Y):
        self._check_variance(fitted.parameters)


def _extents(sample):
    """Return the ends of all columns of rows and keys, without those far outside of the others."""
    sides = [sample.queries, sample.keys] if sample.has_keys else [sample.queries]
    rows = [side.toarray() if sp.issparse(side) else np.asarray(side) for side in sides]
    return np.array([_ends(np.unique(column)) for column in np.concatenate(rows).T.astype(float)])


def _ends(values):
    """Return the least and the largest of sorted values that are near most of them."""
    last = len(values) - 1
    low, high = values[math.floor(_LOW * last)], values[math.ceil(_HIGH * last)]
    width = high - low
    near = values[(values >= low - width) & (values <= high + width)]
    return near[0], near[-1]


def _checked_box(box, n_features):
    try:
        array = np.array(box, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    is_right = array.shape == (n_features, 2) and np.isfinite(array).all()
    if not (is_right and (array[:, 0] <= array[:, 1]).all()):
        raise ValueError(
            f"box must hold a lower and an upper end for each of {n_features} columns, got {box!r}."
        )
    return array
