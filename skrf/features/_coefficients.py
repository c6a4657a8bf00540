"""Coefficients of hybrid features: weights of the bases for every pair of rows, as features.

The weights of p + 1 bases, from those of distant pairs to those of close ones, are estimated by n
features of random rows tau each and add up to 1 in every draw. A block is a pair of multipliers and
the index of the base whose columns they multiply.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Real

import numpy as np

from .. import variances
from .._arrays import cast, columns, like, namespace
from .._typing import Array

_FAR = 150.0  # standard deviations at which a Gaussian vanishes


class Angular:
    """Weights by the angle: n chains of p signs on which two rows agree or not.

    A chain selects the base at which the signs sgn(tau.x) and sgn(tau.y) of two rows first differ,
    or the last base if all agree. So the weights are the shares of a multinomial count of n chains
    with the probabilities f (1 - f)^k and (1 - f)^p, f = angle / pi.
    """

    def n_columns(self, n_coefficients, widths):
        """Return the number of columns per projection, given those of each base."""
        return sum(widths) + n_coefficients * self.growth(widths)

    def growth(self, widths):
        """Return how many columns a coefficient adds."""
        last = len(widths) - 1
        return sum((2 ** min(k + 1, last) - 1) * width for k, width in enumerate(widths))

    def blocks(self, products, ones, n_bases, *, keys):
        """Return the blocks of one side, given products with the tau rows and a column of 1."""
        xp, last = namespace(products), n_bases - 1
        signs = xp.where(products < 0, like(-1.0, products), like(1.0, products))
        n = products.shape[1] // max(last, 1)
        blocks = [(ones * 2 ** (-min(k + 1, last) / 2), k) for k in range(n_bases)]
        # (1 + s_1) ... (1 + s_(k-1)) (1 - s_k) / 2^k as a sum of products of signs.
        chain = []
        for k in range(last):
            block_signs = signs[:, k * n : (k + 1) * n]
            turned = [block_signs / math.sqrt(max(n, 1)), *(link * block_signs for link in chain)]
            half = 2 ** (-(k + 1) / 2)
            blocks += [(half * link, k) for link in chain]
            blocks += [((-half if keys else half) * link, k) for link in turned]
            chain += turned
        return blocks + [(2 ** (-last / 2) * link, last) for link in chain]

    def moments(self, X, Y, n_coefficients, n_bases, width):
        """Return E l_k l_j of the weights of all pairs, shape (n_bases, n_bases, n_x, n_y)."""
        unit = [Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1e-300) for Z in (X, Y)]
        # Compute the angle from chords, which is accurate for nearly equal or opposite directions.
        chords = variances.PairGeometry.of(*unit)
        sides = np.sqrt(chords.difference2), np.sqrt(chords.sum2)
        far, near = (2 / np.pi * np.arctan2(*pair) for pair in (sides, sides[::-1]))
        near[far + near == 0] = 1.0  # both rows are 0, so all signs agree
        if n_coefficients == 0:
            far = near = np.full_like(far, 0.5)
        means = np.stack([*(far * near**k for k in range(n_bases - 1)), near ** (n_bases - 1)])
        expected = means[:, None] * means[None, :]
        if n_coefficients:
            expected *= 1 - 1 / n_coefficients
            expected[np.diag_indices(n_bases)] += means / n_coefficients
        return expected


class Gaussian:
    """Weights by the distance: 1 - g_1, g_1 - g_2, ..., g_p with Gaussians g_k of falling widths.

    g_k = mean of cos(tau.(x - y) / w_k): E g_k = exp(-|x - y|^2 / (2 w_k^2)).
    """

    def n_columns(self, n_coefficients, widths):
        """Return the number of columns per projection, given those of each base."""
        return widths[0] + 2 * n_coefficients * self.growth(widths)

    def growth(self, widths):
        """Return how many columns a cosine or a sine adds."""
        return sum(widths[:-1]) + sum(widths[1:])

    def blocks(self, products, ones, n_bases, *, keys):
        """Return the blocks of one side, given products with the tau rows and a column of 1."""
        blocks = [(ones, 0)]
        for k, (cosine, sine) in enumerate(_cosines(products, n_bases - 1)):
            pair = columns([cosine, sine])
            blocks += [(-pair if keys else pair, k), (pair, k + 1)]
        return blocks

    def moments(self, X, Y, n_coefficients, n_bases, width):
        """Return E l_k l_j of the weights of all pairs, shape (n_bases, n_bases, n_x, n_y)."""
        difference2 = variances.PairGeometry.of(X, Y).difference2
        if n_coefficients == 0:
            expected = np.zeros((n_bases, n_bases, *difference2.shape))
            expected[0, 0] = 1.0
            return expected
        distances = np.sqrt(difference2)
        exponents = [(np.minimum(distances, _FAR * w) / w) ** 2 / 2 for w in np.atleast_1d(width)]
        # Subtract Gaussians without cancellation; the wider one has the smaller exponent.
        pairs = pairwise([np.zeros_like(difference2), *exponents])
        means = [-np.exp(-a) * np.expm1(a - b) for a, b in pairs]
        means = np.stack([*means, np.exp(-exponents[-1])])
        expected = means[:, None] * means[None, :]
        for k, exponent in enumerate(exponents):
            spread = np.expm1(-2 * exponent) ** 2 / (2 * n_coefficients)
            expected[[k, k + 1], [k, k + 1]] += spread
            expected[[k, k + 1], [k + 1, k]] -= spread
        return expected


class Coefficients:
    """Weights of two bases for `HybridRF`: lambda(x, y) for the second, 1 - lambda for the first.

    lambda(x, y) = a + E sum_i f_i(tau . x) g_i(tau . y), where E is the mean over random rows tau.

    Parameters
    ----------
    constant : float
        The constant a.
    functions : sequence of tuple of two callables
        The pairs (f_i, g_i), functions of arrays of products.
    sampler : callable, default=None
        Takes a number of rows, their width and a NumPy Generator, and returns rows tau. None means
        standard normal rows.

    See Also
    --------
    HybridRF : Accepts it as ``coefficients``.

    References
    ----------
    Choromanski et al., Hybrid random features (2022): the general form of the coefficients.

    Examples
    --------
    The weights of ``coefficients="angular"``; that of the first base is the angle over pi:

    >>> import numpy as np
    >>> from skrf import HybridRF
    >>> from skrf.features import Coefficients
    >>> angular = Coefficients(0.5, [(lambda z: np.sign(z) / 2, np.sign)])
    >>> X = np.random.default_rng(0).normal(size=(50, 3)) / 2
    >>> HybridRF(400, coefficients=angular, random_state=0).fit(X).transform(X).shape
    (50, 378)
    """

    def __init__(
        self,
        constant: float,
        functions: Sequence[tuple[Callable, Callable]],
        sampler: Callable | None = None,
    ) -> None:
        functions = [tuple(pair) if isinstance(pair, list) else pair for pair in functions]
        pairs = [
            isinstance(pair, tuple) and [*map(callable, pair)] == [True] * 2 for pair in functions
        ]
        if not functions or not all(pairs):
            raise ValueError(f"functions must hold pairs of two callables, got {functions!r}.")
        is_number = isinstance(constant, Real) and not isinstance(constant, bool)
        if not is_number or not math.isfinite(constant):
            raise ValueError(f"constant must be a finite number, got {constant!r}.")
        if sampler is not None and not callable(sampler):
            raise ValueError(f"sampler must be a callable or None, got {sampler!r}.")
        self.constant, self.functions, self.sampler = float(constant), functions, sampler

    def n_columns(self, n_coefficients: int, widths: Sequence[int]) -> int:
        """Return the number of columns per projection, given those of each base."""
        return sum(widths) + n_coefficients * self.growth(widths)

    def growth(self, widths: Sequence[int]) -> int:
        """Return how many columns a coefficient adds."""
        return len(self.functions) * sum(widths)

    def draw(self, n_rows: int, n_features: int, rng: np.random.Generator) -> np.ndarray:
        """Return rows tau."""
        if self.sampler is None:
            return rng.standard_normal((n_rows, n_features))
        rows = np.array(self.sampler(n_rows, n_features, rng), dtype=np.float64)
        if rows.shape != (n_rows, n_features) or not np.isfinite(rows).all():
            raise ValueError(
                f"sampler must return finite rows of shape {(n_rows, n_features)}, got "
                f"{rows.shape}."
            )
        return rows

    def blocks(self, products: Array, ones: Array, n_bases: int, *, keys: bool) -> list:
        """Return the blocks of one side, given products with the tau rows and a column of 1."""
        constants = (1.0, 1.0) if keys else (1 - self.constant, self.constant)
        blocks = [(ones * weight, k) for k, weight in enumerate(constants)]
        root = math.sqrt(max(products.shape[1], 1))
        for pair in self.functions:
            values = cast(pair[keys](products), products.dtype) / root
            blocks += [(-values if keys else values, 0), (values, 1)]
        return blocks


def _cosines(products, n_groups):
    """Return cosines and sines of every group of products, divided by the root of its size."""
    xp, n = namespace(products), products.shape[1] // n_groups
    groups = [products[:, k * n : (k + 1) * n] for k in range(n_groups)]
    root = math.sqrt(max(n, 1))
    return [(xp.cos(angles) / root, xp.sin(angles) / root) for angles in groups]
