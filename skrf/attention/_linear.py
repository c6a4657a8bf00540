"""Linear-time attention: bidirectional, causal, streaming. Plain array-API code for every library.

All sums are those of `skrf._sums`: every denominator is at least 1, or exp(-limit) in causal
blocks, so nothing is divided by zero and no epsilon is added.
"""

import numpy as np

from .._arrays import constant, namespace, to_host
from .._sums import (
    Readout,
    Sums,
    is_inside,
    lifted,
    like_dtype,
    lowered,
    product,
    transposed,
    weighed,
)
from ._heads import Output, blocks

FEATURE_ROWS = 1024  # rows whose features are held at a time
CAUSAL_ROWS = 128  # rows of a triangular product
# How far the exponents of a feature may rise within a causal block before it is split.
_LIMITS = {"float32": 40.0, "float64": 300.0}
_CHECKED_QUERIES = 16  # of a head, by the collapse check


# ---------------------------------------------------------------- bidirectional


def absorb(unit, sums, size=FEATURE_ROWS):
    """Return the sums with all keys of a unit; None stands for none before."""
    found = _absorb_on_a_guess(unit, size)
    if found is not None:
        return found if sums is None else sums.merge(found)
    for rows in blocks(unit.k.shape[-2], size):
        features, values = unit.key_rows(rows), unit.values(rows)
        sums = Sums.before(features, values) if sums is None else sums
        sums = sums.add(features, values)
    return sums


def _absorb_on_a_guess(unit, size):
    """Return the sums over all keys on a scale that a few of them tell, None where it is bad."""
    guess, total = unit.guess(), 0.0
    if guess is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in blocks(unit.k.shape[-2], size):
            factors = unit.key_rows(rows, guess).values
            total += product(np.exp(factors, out=factors), unit.values(rows))
    return Sums(total, guess) if is_inside(total[:, 0], factors.dtype) else None


def query(unit, sums, out, size=FEATURE_ROWS):
    """Write the attention of all queries to the keys of a state."""
    readout = Readout(_for_queries(sums), unit.head.is_positive)
    for rows in blocks(unit.q.shape[-2], size):
        out.put_quotients(rows, readout(unit.head.queries, unit.queries(rows), unit.memory[0]))


def _for_queries(sums):
    """Return sums with an axis for the query heads of a set, where sets have an axis."""
    if sums.top.ndim == 1:
        return sums
    return Sums(sums.sums[..., None, :, :], sums.top[..., None, :])


# ---------------------------------------------------------------- causal


def causal(unit, sums, out, size=FEATURE_ROWS):
    """Write causal attention, the keys of `sums` before those given, and return the new sums."""
    for block in blocks(unit.k.shape[-2], size):
        values = unit.values(block)
        for rows, step in steps_of(unit, block, values, sums):
            out.put_quotients(rows, step.found)
            sums = step.after
    return sums


def steps_of(unit, block, values, sums):
    """Yield (rows, Step) of a block of positions, in as few steps as its exponents allow."""
    guess = unit.level(sums)
    if guess is not None:
        # The exponents so far serve the block, too, where all denominators come out near 1.
        left, right = unit.query_rows(block, -guess).values, unit.key_rows(block, guess).values
        with np.errstate(over="ignore", invalid="ignore"):
            np.exp(left, out=left), np.exp(right, out=right)
            step = Step(sums.sums, guess, left, right, values)
        if is_inside(step.found[..., 0], left.dtype) and np.isfinite(step.total).all():
            yield block, step
            return
    queries, keys = unit.query_rows(block), unit.key_rows(block)
    sums = Sums.before(keys, values) if sums is None else sums
    for rows, top in safe_parts(sums, keys, slice(0, values.shape[-2])):
        left = lifted(queries.part(rows), top[..., None, :])
        right, weights = lowered(keys.part(rows), top)
        step = Step(sums.at(top), top, left, right, values[..., rows, :], weights)
        yield slice(block.start + rows.start, block.start + rows.stop), step
        sums = step.after


class Step:
    """Some positions of causal attention that share a scale.

    Parameters
    ----------
    far : array of shape (..., M, e + 1)
        Sums over the keys of earlier positions.
    top : array of shape (..., M) or (..., 1)
        Their exponents.
    left : array of shape (..., G, n, M)
        Factors of the queries.
    right : array of shape (..., n, M)
        Factors of the keys.
    values : array of shape (..., n, e + 1)
        Values, the weight first.
    weights : array of shape (..., n, 1) or None
        What multiplies the values.

    Attributes
    ----------
    found : array of shape (..., G, n, e + 1)
        Numerators and denominators.
    parts : list of (slice, array, array)
        Rows that were worked on at once, triangles of their products, and sums over earlier keys.
    """

    def __init__(self, far, top, left, right, values, weights=None):
        self.far, self.top, self.left, self.right, self.weights = far, top, left, right, weights
        self.values = like_dtype(weighed(values, weights), right)
        self.parts, self.total, found = [], 0.0, Output()
        before = like_dtype(far, left)
        for rows in blocks(values.shape[-2], CAUSAL_ROWS):
            own, seen = left[..., rows, :], self.values[..., rows, :]
            near = triangle(own @ transposed(right[..., rows, :])[..., None, :, :])
            earlier = before + self.total
            found.put(rows, own @ earlier[..., None, :, :] + near @ seen[..., None, :, :])
            self.total = self.total + transposed(right[..., rows, :]) @ seen
            self.parts.append((rows, near, earlier))
        self.found = found.joined()

    @property
    def after(self):
        """The sums over the keys of these positions, too."""
        return Sums(self.far + like_dtype(self.total, self.far), self.top)


def safe_parts(sums, keys, part):
    """Yield (rows, exponents at their end) that rise by no more than the limit within a part.

    Every feature then has a key of exponent top - limit or more before any row of the part, so the
    row's denominator is at least exp(-limit).
    """
    limit = _LIMITS[str(keys.values.dtype).rsplit(".", 1)[-1]]
    waiting = [part]
    while waiting:
        rows = waiting.pop()
        own = keys.part(rows)
        top = sums.raised(own)
        if rows.stop - rows.start > 1 and sums.rise(own, top) > limit:
            middle = (rows.start + rows.stop) // 2
            waiting += [slice(middle, rows.stop), slice(rows.start, middle)]
            continue
        yield rows, top
        sums = Sums(sums.sums, top)


_TRIANGLES = {}


def triangle(products):
    """Return products with those of later keys 0; NumPy's are overwritten."""
    if not isinstance(products, np.ndarray):
        return namespace(products).tril(products)
    key = products.shape[-1], products.dtype
    if key not in _TRIANGLES and key[0] == CAUSAL_ROWS:
        _TRIANGLES[key] = np.tri(key[0], dtype=products.dtype)
    products *= _TRIANGLES[key] if key in _TRIANGLES else np.tri(key[0], dtype=products.dtype)
    return products


# ---------------------------------------------------------------- looking at it


def effective_features(unit, sums):
    """Return, on the host, the effective number of features of some queries that see a key.

    None for maps with signs, and without any key.
    """
    if not unit.head.is_positive or sums.is_empty:
        return None
    n_queries = unit.q.shape[-2]
    thinned = constant(unit.queries(slice(None, None, -(-n_queries // _CHECKED_QUERIES))))
    xp = namespace(thinned)
    sums = _for_queries(Sums(constant(sums.sums), sums.top))
    factors = lifted(unit.memory[0].rows(unit.head.queries, thinned), sums.top)
    shares = factors * like_dtype(sums.sums[..., None, :, 0], factors)
    total, squares = (to_host(xp.sum(part, axis=-1)).ravel() for part in (shares, shares * shares))
    return total[squares > 0] ** 2 / squares[squares > 0] if (squares > 0).any() else None
