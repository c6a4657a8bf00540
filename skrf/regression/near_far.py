"""Near rows exact, far rows through landmarks: kernel ridge regression linear in the rows.

With features phi of landmarks, the kernel of two rows is

    K(x, y) = phi(x)'phi(y) + [x and y in one leaf] (k(x, y) - phi(x)'phi(y)),

that of partially independent conditionals (Snelson and Ghahramani 2007): positive definite, exact
within a leaf, and of low rank between leaves. Leaves are cut by values of columns, so that equal
rows share one. With R_b the residual kernel of a leaf, and S_b = R_b + alpha / weights, let

    G = 1 + sum_b Phi_b' S_b^-1 Phi_b,    beta = G^-1 sum_b Phi_b' S_b^-1 y_b,
    a_b = S_b^-1 (y_b - Phi_b beta),      f(x) = phi(x)'(beta - Phi_b'a_b) + k(x, X_b) a_b.

The intercept is flat: a and f are those of the targets less b times those of targets that are 1,
with b such that the coefficients add up to 0. Everything about a leaf is a function of its rows and
of what all leaves share.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.blas import dtrmm, strmm
from scipy.linalg.lapack import dpotrf, dtrtri, dtrtrs, spotrf, spotrs, strtri, strtrs
from sklearn.utils import gen_batches

from .._arrays import is_array_api, like, to_host
from .._threads import run_all
from ..features import FeatureMap, as_feature_map, row_codes
from .solve import Solution

_BALANCED = 0.2  # least share of the rows on a side of a cut, if a column allows it
_LEAST_SHARE = 0.1  # of a cut by a column, so that trees are not deep
_SINGLE_ALPHA = 1e-4  # of the kernel's diagonal: a larger alpha hides the rounding of float32
_SINGLE_ERROR = 1e-3  # relative residual of a solution in float32 that is good enough
_SINGLE_PRODUCTS = 1e-3  # of the noise: more hides the rounding of products in float32, too
_SINGLE_SPREAD = 1e6  # of the noise: beyond, what a row lacks of the sum of all is lost in float32
_TOGETHER = 32  # leaves whose sums are held at once
_MOST_KEPT = 2**27  # bytes of factors of leaves
_ANY = 2**62  # numbers of kept residuals: all
_SEARCHED = 3000  # distinct rows, at least, of whole leaves on which a search is judged


# ---------------------------------------------------------------- leaves


@dataclass(frozen=True, eq=False)
class Cut:
    """A cut of rows by the first of some columns in which they differ from given values.

    Parameters
    ----------
    columns : ndarray of int of shape (k,)
        The columns: one, or all of them in order.
    values : ndarray of shape (k,)
        What they are compared with; rows that are smaller or equal go to the left.
    left, right : Cut or int
        What follows; an integer is the number of a leaf.
    """

    columns: np.ndarray
    values: np.ndarray
    left: Any = None
    right: Any = None

    def is_left(self, X):
        """Return which rows go to the left."""
        X = X[:, self.columns]
        rows, first = np.arange(len(X)), np.argmax(X != self.values, axis=1)
        return X[rows, first] <= self.values[first]


@dataclass(frozen=True, eq=False)
class Tree:
    """Leaves of distinct rows, found by cuts near the median of the widest column.

    Parameters
    ----------
    root : Cut or int
        The first cut.
    n_leaves : int
        Number of leaves.
    """

    root: Any
    n_leaves: int

    @classmethod
    def of(cls, X, most):
        """Return the tree of distinct rows with at most so many in a leaf."""
        leaves = []

        def grown(rows):
            if len(rows) <= most:
                leaves.append(rows)
                return len(leaves) - 1
            cut = _cut_of(X[rows])
            is_left = cut.is_left(X[rows])
            return replace(cut, left=grown(rows[is_left]), right=grown(rows[~is_left]))

        root = grown(np.arange(len(X)))
        return cls(root, len(leaves))

    def leaf_of(self, X):
        """Return the number of the leaf of every row."""
        leaves, waiting = np.zeros(len(X), int), [(self.root, np.arange(len(X)))]
        while waiting:
            node, rows = waiting.pop()
            if isinstance(node, Cut):
                is_left = node.is_left(X[rows])
                waiting += [(node.left, rows[is_left]), (node.right, rows[~is_left])]
            else:
                leaves[rows] = node
        return leaves


def _cut_of(X):
    """Return a cut of distinct rows, of which no side is empty.

    Where no column balances, as in one-hot columns of many values, rows are halved in
    lexicographic order.
    """
    best = _LEAST_SHARE, None
    for column in np.argsort(-X.std(axis=0), kind="stable").tolist():
        values, counts = np.unique(X[:, column], return_counts=True)
        if len(values) < 2:
            continue
        shares = np.cumsum(counts[:-1]) / len(X)
        place = int(np.argmin(np.abs(shares - 0.5)))
        side = min(shares[place], 1 - shares[place])
        # Halfway, so that rounding of float32 moves no row to the other side.
        value = values[place] + (values[place + 1] - values[place]) / 2
        value = value if value < values[place + 1] else values[place]
        if side > best[0]:
            best = side, Cut(np.array([column]), np.array([value]))
        if side >= _BALANCED:
            break
    if best[1] is None:
        order = np.lexsort(X.T[::-1])
        return Cut(np.arange(X.shape[1]), X[order[(len(X) - 1) // 2]])
    return best[1]


def leaves_of(X, most):
    """Return the tree of rows with at most so many distinct ones in a leaf, and what is in it.

    Returns
    -------
    tree : Tree
        The tree.
    distinct : ndarray of shape (m, d)
        Distinct rows, in lexicographic order.
    order : ndarray of int of shape (m,)
        These in the order of their leaves.
    bounds : ndarray of int of shape (n_leaves + 1,)
        Where leaves begin and end in that order.
    row_to_distinct : ndarray of int of shape (n,)
        The place of each row in it.
    """
    _, first, row_to_distinct = np.unique(row_codes(X), return_index=True, return_inverse=True)
    distinct = X[first]
    tree = Tree.of(distinct, most)
    leaves = tree.leaf_of(distinct)
    order = np.argsort(leaves, kind="stable")
    bounds = np.searchsorted(leaves[order], np.arange(tree.n_leaves + 1))
    return tree, distinct, order, bounds, np.argsort(order)[row_to_distinct]


def sampled(bounds, row_to_distinct, rng):
    """Return the rows of some whole leaves, with at least 3,000 distinct ones if there are as many.

    Parameters
    ----------
    bounds, number
        As `leaves_of` returns them.
    rng : Generator
        Draws the leaves.
    """
    order = rng.permutation(len(bounds) - 1)
    n_rows = np.cumsum(np.diff(bounds)[order])
    chosen = order[: 1 + np.searchsorted(n_rows, _SEARCHED)]
    return np.flatnonzero(np.isin(_leaf_at(bounds, row_to_distinct), chosen))


def _leaf_at(bounds, rows):
    """Return the leaves of distinct rows, given by their places."""
    return np.searchsorted(bounds, rows, side="right") - 1


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, eq=False)
class NearFarKernel:
    """The kernel: distinct rows in the order of their leaves, landmarks, and residuals of leaves.

    Parameters
    ----------
    feature_map : FeatureMap
        The map, which projects rows on landmarks.
    landmarks : FeatureMap
        Its last step, whose kernel and landmarks live in coordinates of their own.
    tree : Tree
        The leaves.
    X : ndarray of shape (m, d)
        Distinct rows, in the coordinates of the kernel.
    bounds : ndarray of int of shape (n_leaves + 1,)
        Where leaves begin and end.
    row_to_distinct : ndarray of int of shape (n,)
        The distinct row of each row.
    most_kept : int, default=0
        Residual kernels of leaves are kept if those of all have at most so many numbers.
    residuals : dict, default={}
        What `residual` returned for whole leaves, by their numbers.
    """

    feature_map: FeatureMap
    landmarks: FeatureMap
    tree: Tree
    X: np.ndarray
    bounds: np.ndarray
    row_to_distinct: np.ndarray
    most_kept: int = 0
    residuals: dict = field(default_factory=dict)

    @classmethod
    def of(cls, feature_map, X, most):
        """Return the kernel of rows, given the map of a fitted transformer; see `check_leaves`."""
        landmarks, rows = feature_map.projected(to_host(X))
        coordinates = landmarks.coordinates(rows)
        tree, distinct, order, *rest = leaves_of(coordinates, most)
        return cls(feature_map, landmarks, tree, distinct[order], *rest)

    def subset(self, feature_map, X, rows):
        """Return some whole leaves under another map, with residual kernels that are kept.

        Parameters
        ----------
        feature_map : FeatureMap
            The map.
        X : array or sparse matrix of shape (n, d)
            The rows of these leaves.
        rows : ndarray of int of shape (n,)
            Their numbers.
        """
        kept, first, row_to_distinct = np.unique(
            self.row_to_distinct[rows], return_index=True, return_inverse=True
        )
        landmarks, of_kept = feature_map.projected(to_host(X)[first])
        bounds, coordinates = np.searchsorted(kept, self.bounds), landmarks.coordinates(of_kept)
        return NearFarKernel(
            feature_map, landmarks, self.tree, coordinates, bounds, row_to_distinct, _ANY
        )

    def coordinates(self, X):
        """Return the coordinates of rows."""
        landmarks, rows = self.feature_map.projected(to_host(X))
        return landmarks.coordinates(rows)

    def by_leaf(self, coordinates):
        """Yield the rows that fall into each leaf, the leaf, and their kernel with its rows."""
        leaves = self.tree.leaf_of(coordinates)
        for b in np.unique(leaves).tolist():
            here = np.flatnonzero(leaves == b)
            yield here, b, self.kernel(coordinates[here], self.X[self.leaf(b)])

    def leaf(self, b):
        """Return the distinct rows of a leaf as a slice."""
        return slice(*self.bounds[b : b + 2].tolist())

    def landmark_features(self, features):
        """Return features on the host; none for a single leaf, which is exact."""
        return to_host(features)[:, : None if self.tree.n_leaves > 1 else 0]

    def kernel(self, X, Y):
        """Return the kernel of all pairs of rows in its coordinates."""
        return self.landmarks.kernel(X, Y)

    def features(self, X):
        """Return the features of rows in its coordinates; none for a single leaf, which is exact.

        They are not kept: there are more of them than of anything else.
        """
        is_single = self.tree.n_leaves == 1
        return np.zeros((len(X), 0), X.dtype) if is_single else self.landmarks.features(X)

    def residual(self, rows):
        """Return the residual kernel of distinct rows of one leaf, and their features.

        The rows are given by their places; the kernel may be overwritten.
        """
        b = int(_leaf_at(self.bounds, rows[0]))
        start, stop = self.bounds[b : b + 2]
        if b not in self.residuals:
            if len(self.X) * (stop - start) > self.most_kept:
                return self._residual(rows)
            self.residuals[b] = self._residual(slice(start, stop))
        residual, features = self.residuals[b]
        if len(rows) == stop - start:
            return residual.copy(), features
        return residual[np.ix_(rows - start, rows - start)], features[rows - start]

    def _residual(self, rows):
        X = self.X[rows]
        residual, features = self.kernel(X, X), self.features(X)
        residual -= features @ features.T
        return residual, features

    def at_own_rows(self, coef, rows):
        """Return expansions at the distinct rows, (m, V), given coefficients as of `values`."""
        values = np.zeros((len(self.X), rows.shape[1]))
        for b in np.flatnonzero(np.diff(self.bounds)):
            leaf = np.arange(*self.bounds[b : b + 2])
            residual, features = self.residual(leaf)
            values[leaf] = features @ coef + residual @ rows[leaf]
        return values

    def __getstate__(self):
        return vars(self) | {"residuals": {}}

    def distinct_rows(self, rows, weights):
        """Return the `DistinctRows` of rows, given by their places and their weights."""
        kept, row_to_distinct = np.unique(self.row_to_distinct[rows], return_inverse=True)
        return DistinctRows(kept, np.searchsorted(kept, self.bounds), row_to_distinct, weights)

    def far_sums(self, rows):
        """Return Phi_b'a_b, (n_leaves, M, V), of coefficients of the rows, (m, V)."""
        leaves = map(self.leaf, range(self.tree.n_leaves))
        return np.stack([self.features(self.X[leaf]).T @ rows[leaf] for leaf in leaves])

    def values(self, phi, by_leaf, coef, rows, far):
        """Return expansions at rows, (n, V), given their features and what `by_leaf` yields.

        Coefficients are those of the features, (M, V), those of the kernel with the rows of a leaf,
        (m, V), and their `far_sums`.
        """
        values = phi @ coef
        for here, b, kernel in by_leaf:
            values[here] += kernel @ rows[self.leaf(b)] - phi[here] @ far[b]
        return values


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Distinct rows of a problem, with what repetitions of a row add up to.

    Parameters
    ----------
    kept : ndarray of int of shape (m,)
        Their places in the `NearFarKernel`.
    bounds, number
        As there.
    weights : ndarray of shape (n,)
        Weights of the rows.
    """

    kept: np.ndarray
    bounds: np.ndarray
    row_to_distinct: np.ndarray
    weights: np.ndarray

    def leaf(self, b):
        """Return the rows of a leaf as a slice."""
        return slice(*self.bounds[b : b + 2].tolist())

    @cached_property
    def totals(self):
        """Weights of the distinct rows."""
        return np.bincount(self.row_to_distinct, self.weights, len(self.kept))

    def means(self, targets):
        """Return the weighted means of targets (n, T) of equal rows, (m, T)."""
        sums = [
            np.bincount(self.row_to_distinct, self.weights * t, len(self.kept)) for t in targets.T
        ]
        return np.stack(sums, axis=1) / self.totals[:, None]


# ---------------------------------------------------------------- what leaves add up to


@dataclass(frozen=True, eq=False)
class LeafSolution:
    """What is kept of a leaf whose residual kernel was factorised.

    Parameters
    ----------
    features : ndarray of shape (m, M)
        S^-1 Phi.
    targets : ndarray of shape (m, T)
        S^-1 y.
    inverse : ndarray of shape (m,)
        Diagonal of S^-1.
    """

    features: np.ndarray
    targets: np.ndarray
    inverse: np.ndarray


def factor_of(S, least):
    """Return the lower Cholesky factor of a positive definite matrix, in float32 where it is safe.

    It is where the smallest number on the diagonal of the noise is at least 1e-4 of that of the
    kernel, and the solution for random signs, which excite all eigenvectors alike, has a residual
    of at most 1e-3.
    """
    if least >= _SINGLE_ALPHA and S.diagonal().max(initial=0.0) < np.finfo(np.float32).max:
        lower, info = spotrf(S.T.astype(np.float32), lower=1, clean=1, overwrite_a=1)
        if not info:
            probe = np.random.default_rng(0).choice([-1.0, 1.0], len(S))
            solution, _ = spotrs(lower, probe, lower=1)
            if np.abs(S @ solution - probe).max() <= _SINGLE_ERROR:
                return lower
    lower, info = dpotrf(S, lower=1, clean=1)
    if info:
        raise LinAlgError(
            f"alpha is lost in the rounding of a leaf of {len(S)} rows: pass a larger alpha."
        )
    return lower


def inverse_root(lower):
    """Return C with C'C the inverse of a matrix, given its factor, which is overwritten."""
    invert = strtri if lower.dtype == np.float32 else dtrtri
    return invert(lower, lower=1, overwrite_c=1)[0]


def solve_lower(lower, sides, trans=0):
    """Return L^-1 times some columns, or that of its transpose."""
    solve = strtrs if lower.dtype == np.float32 else dtrtrs
    return solve(lower, sides, lower=1, trans=trans)[0] if sides.size else sides


def solve_leaf(near_far, distinct, b, noise, targets, is_even, with_inverse=True):
    """Return a `LeafSolution`, and Phi' S^-1 times the features and targets, (M, M + T).

    Parameters
    ----------
    near_far : NearFarKernel
        What has the kernel and the features.
    distinct : DistinctRows
        The rows.
    b : int
        The leaf.
    noise : ndarray of shape (m,)
        What is added to the diagonal, of all leaves.
    targets : ndarray of shape (m, T)
        Targets, of all leaves.
    is_even : bool
        Whether no row's noise exceeds that of another 1e6 times.
    with_inverse : bool, default=True
        Whether the diagonal of the inverse is wanted, which takes most of the time.
    """
    rows = distinct.leaf(b)
    S, features = near_far.residual(distinct.kept[rows])
    np.einsum("ii->i", S)[...] += noise[rows]
    least, n, inverse = noise[rows].min(initial=np.inf), features.shape[1], np.nan
    lower = factor_of(S, least)
    # In float32, sums of leaves lose what is small beside their largest directions.
    is_single = n > 0 and lower.dtype == features.dtype == np.float32
    is_single &= is_even and least >= _SINGLE_PRODUCTS
    dtype = np.float32 if is_single else np.float64
    sides = np.hstack([features, targets[rows]]).astype(dtype, order="F")
    if with_inverse:
        root = inverse_root(lower).astype(dtype, copy=False)
        multiply = strmm if is_single else dtrmm
        inverse = np.einsum("ij,ij->j", root, root)
        halves = multiply(1.0, root, sides, lower=1)
        through = multiply(1.0, root, halves, lower=1, trans_a=1)
    else:
        lower = lower.astype(dtype, copy=False)
        halves = solve_lower(lower, sides)
        through = solve_lower(lower, halves, trans=1)
    of_leaf = (halves[:, :n].T @ halves).astype(np.float64)
    return LeafSolution(through[:, :n], through[:, n:], inverse), of_leaf


@dataclass(frozen=True, eq=False)
class NearFar:
    """Kernel ridge regressions of some rows and an alpha.

    Parameters
    ----------
    beta : ndarray of shape (M, T + 1)
        Coefficients of the features, for the targets and then for targets that are 1.
    coef : ndarray of shape (m, T + 1)
        Coefficients of the kernel with the distinct rows.
    inverse : ndarray of shape (m,)
        Diagonal of the inverse of the kernel plus the noise.
    intercept : ndarray of shape (T,)
        Intercepts.
    total : float
        Sum of the coefficients for targets that are 1.
    root : ndarray of shape (M, M)
        R with R R' = G^-1.
    """

    beta: np.ndarray
    coef: np.ndarray
    inverse: np.ndarray
    intercept: np.ndarray
    total: float
    root: np.ndarray

    @property
    def centred(self):
        """Coefficients of the features and of the kernel that add up to 0."""
        return (
            self.beta[:, :-1] - self.beta[:, -1:] * self.intercept,
            self.coef[:, :-1] - self.coef[:, -1:] * self.intercept,
        )

    @property
    def centred_inverse(self):
        """Diagonal of the inverse for an intercept that is flat."""
        return self.inverse - self.coef[:, -1] ** 2 / self.total

    def expansion(self, distinct, n_rows):
        """Return coefficients as of `NearFarSolution`, of all distinct rows, and the intercept."""
        coef, of_distinct = self.centred
        rows = np.zeros((n_rows, of_distinct.shape[1]))
        rows[distinct.kept] = of_distinct
        return coef, rows, self.intercept


def solve_near_far(near_far, distinct, means, alpha, share=1.0, with_inverse=True):
    """Return the `NearFar` of targets' means at the distinct rows, (m, T).

    Parameters
    ----------
    near_far, distinct
        As in `solve_leaf`.
    means : ndarray of shape (m, T)
        Means of the targets of equal rows.
    alpha : float or ndarray of shape (m,)
        The ridge.
    share : float, default=1.0
        The share of all rows that these are, where whole leaves stand for all: what leaves add up
        to is divided by it.
    with_inverse : bool, default=True
        Whether `leave_one_out` or a posterior is wanted.
    """
    numbers = np.flatnonzero(np.diff(distinct.bounds)).tolist()
    noise, targets = alpha / distinct.totals, np.column_stack([means, np.ones(len(means))])
    is_even = noise.max(initial=0.0) <= _SINGLE_SPREAD * noise.min(initial=np.inf)
    options = {"noise": noise, "targets": targets, "is_even": is_even}
    work = partial(solve_leaf, near_far, distinct, with_inverse=with_inverse, **options)
    leaves, inner = [], 0.0
    for batch in gen_batches(len(numbers), _TOGETHER):  # sums of all leaves at once would be large
        for leaf, of_leaf in run_all(work, numbers[batch]):
            leaves.append(leaf)
            inner = inner + of_leaf / share
    gram, cross = np.hsplit(inner, [len(inner)])
    lower = cholesky(np.eye(len(gram)) + gram, lower=True)
    beta = cho_solve((lower, True), cross)
    root = dtrtri(lower, lower=1)[0].T if len(gram) else gram
    coef, inverse = np.zeros(targets.shape), np.zeros(len(targets))
    for b, leaf in zip(numbers, leaves, strict=True):
        rows = distinct.leaf(b)
        coef[rows] = leaf.targets - leaf.features @ beta
        if with_inverse:
            of_features = leaf.features @ root.astype(leaf.features.dtype)
            inverse[rows] = leaf.inverse - np.square(of_features).sum(axis=1)
    sums = coef.sum(axis=0)
    return NearFar(beta, coef, inverse, sums[:-1] / sums[-1], float(sums[-1]) / share, root)


def leave_one_out(solution, distinct, targets, alpha, weights):
    """Return predictions of every row by all others, (n, T), and A^-1_ii of each, (n,).

    A row leaves with its whole weight w: with its equals, of the weight W together,

        A^-1_ii = (w / W)^2 d + (w / alpha) (1 - w / W),
        a_i = (w / W) a + (w / alpha) (y_i - mean y).

    Parameters
    ----------
    solution : NearFar
        The solution.
    distinct : DistinctRows
        The rows.
    targets : ndarray of shape (n, T)
        Targets of all rows.
    alpha : float or ndarray of shape (m,)
        The ridge.
    weights : ndarray of shape (n,)
        Weights of all rows.
    """
    row_to_distinct, means = distinct.row_to_distinct, distinct.means(targets)
    share = weights / distinct.totals[row_to_distinct]
    scale = weights / np.broadcast_to(alpha, distinct.totals.shape)[row_to_distinct]
    inverse = share**2 * solution.centred_inverse[row_to_distinct] + scale * (1 - share)
    coef = share[:, None] * solution.centred[1][row_to_distinct]
    coef = coef + scale[:, None] * (targets - means[row_to_distinct])
    return targets - coef / inverse[:, None], inverse


# ---------------------------------------------------------------- what estimators hold


def check_leaves(transformer, X, most):
    """Raise if a fitted transformer and rows do not allow for leaves of at most so many rows."""
    name = f"max_leaf_size={most}"
    if is_array_api(X):
        raise TypeError(f"{name} needs rows of NumPy, pandas or SciPy, got {type(X)}.")
    if not as_feature_map(transformer).is_projected:
        raise ValueError(
            f"{name} needs a map of landmarks, ClusterNystroem, whose residual kernel is positive "
            f"definite, got feature_map={transformer!r}."
        )


@dataclass(frozen=True, eq=False)
class NearFarSolution(Solution):
    """Regressions whose values depend on the leaf of a row, and on the rows of that leaf.

    Parameters
    ----------
    near_far : NearFarKernel
        The leaves and their rows.
    rows : ndarray of shape (m, V)
        Coefficients of the kernel with the distinct rows.
    far : ndarray of shape (n_leaves, M, V)
        Phi_b'a_b, what the features of a leaf know already.
    """

    near_far: NearFarKernel | None = None
    rows: np.ndarray | None = None
    far: np.ndarray | None = None
    reads_rows = True

    def values_at(self, features, X):
        """Return the regressions at rows, (n, V), given their features."""
        near_far, phi = self.near_far, self.near_far.landmark_features(features)
        by_leaf = near_far.by_leaf(near_far.coordinates(X))
        values = near_far.values(phi, by_leaf, self.coef, self.rows, self.far)
        return like(values * self.unit + self.intercept, features)

    def deviations_at(self, features, X, is_projected):
        """Return the standard deviations of targets at rows, (n, T)."""
        near_far, phi = self.near_far, self.near_far.landmark_features(features)
        by_leaf = near_far.by_leaf(near_far.coordinates(X))
        return like(self.posterior.deviations(phi, by_leaf), features)

    def covariances_at(self, features, X, feature_map):
        """Return the covariances of the targets at rows, (n, n), of noise of variance 1."""
        near_far, phi = self.near_far, self.near_far.landmark_features(features)
        return self.posterior.covariances(phi, near_far.coordinates(X)) + np.eye(len(features))


class Factors(dict):
    """Tuples of arrays that are kept from one call to the next, up to 128 MB, but not pickled."""

    def keep(self, key, factor):
        """Keep a tuple of arrays if there is room."""
        if sum(part.nbytes for parts in (factor, *self.values()) for part in parts) <= _MOST_KEPT:
            self[key] = factor

    def __reduce__(self):
        return Factors, ()


@dataclass(frozen=True, eq=False)
class LeafPosterior:
    """The posterior of a regression, by the leaf of a row.

    Given the coefficients u of the features, which are normal about beta with the covariance G^-1,
    the residual of a leaf is a process of its own. With r the residual kernel of a row and the rows
    of its leaf, the variance of f, for noise of variance alpha, is

        1 - phi'phi - r'S^-1 r + |R'(phi - Phi'S^-1 r)|^2 + (1 - f_1(x))^2 / sum a_1,

    where f_1 and a_1 are those of targets that are 1, since the intercept is flat.

    Parameters
    ----------
    near_far : NearFarKernel
        The leaves and their rows.
    solution : NearFar
        The solution.
    noise : ndarray of shape (m,)
        What was added to the diagonal.
    alpha : float
        The ridge.
    deviation : ndarray of shape (T,)
        Standard deviations of the noise; NaN if there are too few rows to estimate it.
    freedom : float
        What the rows are worth.
    factors : Factors, default=None
        Keeps the factors of leaves from one call to the next, of noise beyond 1e-2 in float32.
    """

    near_far: NearFarKernel
    solution: NearFar
    noise: np.ndarray
    alpha: float
    deviation: np.ndarray
    freedom: float
    factors: Factors | None = None

    def _factor(self, b):
        """Return L with L L' = S of a leaf, its features Phi, and L^-1 Phi."""
        if self.factors is not None and (self, b) in self.factors:
            return self.factors[self, b]
        rows = self.near_far.leaf(b)
        S, features = self.near_far.residual(np.arange(rows.start, rows.stop))
        np.einsum("ii->i", S)[...] += self.noise[rows]
        # Noise hides the rounding of what is left of 1 in float32.
        lower = factor_of(S, 0.0 if self.factors is None else self.noise[rows].min() / 100)
        factor = lower, features, solve_lower(lower, features)
        if self.factors is not None:
            self.factors.keep((self, b), factor)
        return factor

    def _by_leaf(self, features, by_leaf):
        """Yield the rows of each leaf, and what their variances are made of.

        These are phi, L^-1 r with L L' = S, R'(phi - Phi'S^-1 r) and 1 - f_1.
        """
        solution = self.solution
        for here, b, kernel in by_leaf:
            phi, (lower, leaf_features, solved) = features[here], self._factor(b)
            r = kernel - phi @ leaf_features.T
            rooted = solve_lower(lower, r.T)
            through = (phi - rooted.T @ solved) @ solution.root
            coef = solution.coef[self.near_far.leaf(b), -1]
            yield here, phi, rooted, through, 1 - phi @ solution.beta[:, -1] - r @ coef

    def covariances(self, features, coordinates):
        """Return the covariances of f at rows over the variance of the noise, (n, n)."""
        covariances, gaps = np.zeros((len(features),) * 2), np.zeros(len(features))
        through, by_leaf = np.zeros(features.shape), self.near_far.by_leaf(coordinates)
        for here, phi, rooted, through[here], gaps[here] in self._by_leaf(features, by_leaf):
            block = self.near_far.kernel(coordinates[here], coordinates[here]) - phi @ phi.T
            covariances[np.ix_(here, here)] = block - rooted.T @ rooted
        covariances += through @ through.T + np.outer(gaps, gaps) / self.solution.total
        return covariances / self.alpha

    def deviations(self, features, by_leaf):
        """Return the standard deviations of targets at rows, (n, T)."""
        variances = np.zeros(len(features))
        for here, phi, rooted, through, gaps in self._by_leaf(features, by_leaf):
            residual = 1 - np.square(phi).sum(axis=1) - np.square(rooted).sum(axis=0)
            through = np.square(through).sum(axis=1) + gaps**2 / self.solution.total
            variances[here] = residual + through
        variances = np.maximum(variances / self.alpha, 0.0)
        return np.sqrt(variances[:, None] + 1) * self.deviation


def problem_targets(problems, codes, targets):
    """Yield the rows and targets of each problem, or its level where a side has no rows.

    Parameters
    ----------
    problems : sequence of Problem or None
        What is solved for among the classes; None is all targets.
    codes : ndarray of int of shape (n,) or None
        Classes of the rows.
    targets : ndarray of shape (n, T)
        The targets without problems.
    """
    if problems is None:
        yield np.arange(len(targets)), targets, None
        return
    # The last classes may have no rows.
    counts = np.bincount(codes, minlength=1 + max(problem.groups.max() for problem in problems))
    for problem in problems:
        if problem.lacks_a_side(counts):
            yield None, None, problem.only_target(counts)
            continue
        of_class = np.zeros((len(counts), problem.targets.shape[1]))
        of_class[problem.groups] = problem.targets
        rows = np.flatnonzero(np.isin(codes, problem.groups))
        yield rows, of_class[codes[rows]], None


@dataclass(frozen=True, eq=False)
class NearFarRows:
    """All rows, with exact residuals within leaves, in the place of moments of features.

    Parameters
    ----------
    near_far : NearFarKernel
        The rows.
    codes : ndarray of int of shape (n,) or None
        Classes of the rows.
    targets : ndarray of shape (n, T)
        Targets in units, where there are no problems among classes.
    unit : ndarray of shape (T,)
        The units.
    weights : ndarray of shape (n,)
        Weights of the rows.
    """

    near_far: NearFarKernel
    codes: np.ndarray | None
    targets: np.ndarray
    unit: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, feature_map, data, most):
        """Return the rows of some data, under the map of a fitted transformer."""
        return cls.under(NearFarKernel.of(feature_map, data.X, most), data)

    @classmethod
    def under(cls, near_far, data):
        """Return the rows of some data, given their kernel."""
        codes = data.targets.values if data.targets.n_classes else None
        targets = data.targets(np.arange(len(data.y)))
        return cls(near_far, codes, targets, data.targets.unit, data.weights)

    @property
    def n_columns(self):
        """Number of rows of the largest leaf."""
        return int(np.diff(self.near_far.bounds).max())

    def solved(self, problems, alpha, sizes=None, noise=None):
        """Return the `NearFarSolution` of problems among classes, or of all targets.

        With `sizes`, it has the `LeafPosterior` of a single problem; see `solve_posterior`.
        """
        near_far = self.near_far
        n_rows, n_columns = len(near_far.X), near_far.features(near_far.X[:0]).shape[1]
        expansions, posterior = [], None
        for rows, targets, level in problem_targets(problems, self.codes, self.targets):
            if rows is None:
                nothing = np.zeros((n_columns, len(level))), np.zeros((n_rows, len(level)))
                expansions.append((*nothing, level))
                continue
            distinct = near_far.distinct_rows(rows, self.weights[rows])
            means = distinct.means(targets)
            solution = solve_near_far(
                near_far, distinct, means, alpha, with_inverse=sizes is not None
            )
            expansions.append(solution.expansion(distinct, n_rows))
            if sizes is not None:
                posterior = self._posterior(solution, distinct, targets, alpha, sizes, noise)
        coef, rows, intercept = map(np.hstack, zip(*expansions, strict=True))
        unit = self.unit if problems is None else np.ones(len(intercept))
        far = near_far.far_sums(rows)
        return NearFarSolution(
            alpha, coef, unit, intercept * unit, None, None, posterior, near_far, rows, far
        )

    def held(self, problems, alphas, total):
        """Return the values of all rows by regressions on the others, (n_alphas, n, V).

        Rows that are not of a problem's classes are predicted from all that are.

        Parameters
        ----------
        problems : sequence of Problem or None
            What is solved for among the classes; None is all targets, in units.
        alphas : sequence of float
            The ridges.
        total : callable
            Returns the weight of all rows for which these leaves stand, of a problem or of None.
        """
        near_far, of_problems = self.near_far, []
        regressions = problem_targets(problems, self.codes, self.targets)
        for problem, (rows, targets, level) in zip(problems or [None], regressions, strict=True):
            if rows is None:
                shape = len(alphas), len(near_far.row_to_distinct), len(level)
                of_problems.append(np.broadcast_to(level, shape))
                continue
            distinct = near_far.distinct_rows(rows, self.weights[rows])
            means = distinct.means(targets)
            share = self.weights[rows].sum() / total(problem)
            solutions = [
                solve_near_far(near_far, distinct, means, alpha, share) for alpha in alphas
            ]
            expansions = [solution.expansion(distinct, len(near_far.X)) for solution in solutions]
            beta, of_rows, _ = map(np.hstack, zip(*expansions, strict=True))
            values = near_far.at_own_rows(beta, of_rows)[near_far.row_to_distinct]
            values = np.moveaxis(values.reshape(len(values), len(alphas), -1), 1, 0)
            for place, (solution, alpha) in enumerate(zip(solutions, alphas, strict=True)):
                values[place] += solution.intercept
                values[place, rows], _ = leave_one_out(
                    solution, distinct, targets, alpha, self.weights[rows]
                )
            of_problems.append(values)
        return np.concatenate(of_problems, axis=2)

    def _posterior(self, solution, distinct, targets, alpha, sizes, noise):
        """Return the `LeafPosterior` of a solution to all rows."""
        diagonal = alpha / distinct.totals
        if noise is not None:
            deviation = np.full(len(self.unit), np.sqrt(noise))
            return LeafPosterior(
                self.near_far, solution, diagonal, alpha, deviation, distinct.totals.sum()
            )
        means = distinct.means(targets)
        within = self.weights @ (targets - means[distinct.row_to_distinct]) ** 2
        residuals = diagonal[:, None] * solution.centred[1]
        squares = within + distinct.totals @ residuals**2
        lost = len(diagonal) - diagonal @ solution.centred_inverse  # the intercept among them
        freedom = sizes.freedom - lost
        deviation = np.full(len(self.unit), np.nan)
        if freedom > 0:
            deviation = np.sqrt(sizes.scale * squares / freedom) * self.unit
        return LeafPosterior(
            self.near_far, solution, diagonal, alpha * sizes.scale, deviation, sizes.freedom
        )
