"""Linear-time attention, bidirectional, causal and streaming, in plain array-API code.

All sums are those of `skrf._sums`: every denominator is at least 1, or exp(-limit) in causal
blocks, so nothing is divided by zero and no epsilon is added.
"""

from functools import cached_property, lru_cache
from types import SimpleNamespace

import array_api_compat
import numpy as np
from array_api_compat import is_torch_array

from .._arrays import arithmetic, cast, constant, is_array_api, namespace, to_host
from .._sums import (
    Readout,
    Sums,
    added,
    is_inside,
    lifted,
    lowered,
    product,
    rise_limit,
    sums_of_block,
    transposed,
)
from ._heads import as_blocks, as_rows, blocks, filled

FEATURE_ROWS = 1024  # rows whose features are held at a time
CAUSAL_ROWS = 128  # rows of a triangular product
_LEVEL = 1e12  # weight of a feature on a kept scale: leaves room for sums of many blocks
_CHECKED_QUERIES = 16  # per head, in the collapse check


# ---------------------------------------------------------------- bidirectional


def absorb(unit, size=FEATURE_ROWS):
    """Return the sums over all keys of a unit."""
    if unit.head.keys.n_parts > 1 and unit.takes_guesses:
        return _absorb_parts(unit, size)
    sums = _absorb_on_a_guess(unit, size)
    if sums is None:
        for rows in blocks(unit.k.shape[-2], size):
            sums = added(sums, unit.key_rows(rows), unit.values(rows))
    return sums


def _absorb_parts(unit, size):
    """Return the sums over all keys, each of which is zero in some columns."""
    total, level = None, None
    for rows in blocks(unit.k.shape[-2], size):
        keys, values = unit.keys(rows), unit.values(rows)
        if unit.hidden is not None:
            seen = ~unit.hidden[rows]
            keys, values = keys[seen], values[seen]
        own, _ = sums_of_block(unit.head.keys, keys, values, unit.memory[1], [0, len(keys)], level)
        (own,) = own.groups()
        total = own if total is None else total.merge(own)
        level = unit.level(total)
    return total


def _absorb_on_a_guess(unit, size):
    """Return the sums over all keys on a scale guessed from a few, or None if the guess is bad."""
    guess, total = unit.guess(), 0.0
    if guess is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in blocks(unit.k.shape[-2], size):
            factors = unit.key_rows(rows, guess).values
            total += product(np.exp(factors, out=factors), unit.values(rows))
    return Sums(total, guess) if is_inside(total[:, 0], factors.dtype) else None


def query(unit, sums, out, size=FEATURE_ROWS):
    """Write the attention of all queries, given sums over keys."""
    readout = Readout(_for_queries(sums), unit.head.is_positive)
    for rows in blocks(unit.q.shape[-2], size):
        out.put_quotients(rows, readout(unit.head.queries, unit.queries(rows), unit.memory[0]))


def _for_queries(sums):
    """Return sums with an axis for the query heads of a set, if there is an axis for sets."""
    if sums.top.ndim == 1:
        return sums
    return Sums(sums.sums[..., None, :, :], sums.top[..., None, :])


# ---------------------------------------------------------------- causal


def causal(unit, sums, out, size=FEATURE_ROWS):
    """Write causal attention, in which the keys of `sums` come first, and return the new sums."""
    for block in blocks(unit.k.shape[-2], size):
        for rows, step in steps_of(unit, block, sums):
            out.put_quotients(rows, step.found)
            sums = step.after
    return sums


def steps_of(unit, block, sums):
    """Yield (rows, Step) for a block of positions, in as few steps as its exponents allow."""
    guess, values = unit.level(sums), unit.values(block)
    if guess is not None:
        # The exponents so far also suit the block if all denominators come out near 1.
        left, right = unit.query_rows(block, -guess).values, unit.key_rows(block, guess).values
        with np.errstate(over="ignore", invalid="ignore"):
            np.exp(left, out=left), np.exp(right, out=right)
            step = Step(sums.sums, guess, left, left, right, right, values)
        is_level = step.total[..., 0].max() < _LEVEL and np.isfinite(step.total).all()
        if is_level and is_inside(step.found[..., 0], left.dtype):
            yield block, step
            return
    queries, keys = unit.query_rows(block), unit.key_rows(block)
    sums = Sums.before(keys, values) if sums is None else sums
    for rows, top in safe_parts(sums, keys):
        own = queries.part(rows), keys.part(rows), values[..., rows, :]
        step = Step.of(sums, top, *own)
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
    left, left_slopes : array of shape (..., G, n, M)
        Factors of the queries, and their slopes.
    right, right_slopes : array of shape (..., n, M)
        Those of the keys.
    values : array of shape (..., n, e + 1)
        [weight, values].

    Attributes
    ----------
    found : array of shape (..., G, n, e + 1)
        Numerators and denominators.
    near : array of shape (..., G, B, c, c)
        Triangles of products of B parts of c rows; the last part is padded with zeros.
    earlier : array of shape (..., 1, B, M, e + 1)
        Sums over the keys before each part.
    total : array of shape (..., M, e + 1)
        Sums over all keys of these positions.
    """

    @classmethod
    def of(cls, sums, top, queries, keys, values):
        """Return the step of some positions on a scale that suits them."""
        if is_torch_array(values):
            from ._torch import causal_product

            found, total = causal_product(sums, top, queries, keys, values)
            return SimpleNamespace(found=found, after=Sums(sums.at(top) + total, top))
        left, right = lifted(queries, top[..., None, :]), lowered(keys, top)
        return cls(sums.at(top), top, *left, *right, values)

    def __init__(self, far, top, left, left_slopes, right, right_slopes, values):
        self.far, self.top, self.left, self.right = far, top, left, right
        self.slopes, self.values = (left_slopes, right_slopes), cast(values, right.dtype)
        left, right, values = in_parts(left), *map(of_keys, (right, self.values))
        self.near = triangle(left @ transposed(right))
        self.earlier, self.total = running(cast(far, left.dtype), transposed(right) @ values)
        found = arithmetic(left).add(left @ self.earlier, self.near @ values)
        self.found = as_rows(found)[..., : self.left.shape[-2], :]

    @cached_property
    def after(self):
        """The sums including the keys of these positions."""
        return Sums(self.far + cast(self.total, self.far.dtype), self.top)


def in_parts(array, size=CAUSAL_ROWS):
    """Return rows (..., n, m) in parts (..., B, c, m), the last one padded with zeros."""
    n = array.shape[-2]
    n_parts = -(-n // size)
    missing = n_parts * size - n if n_parts > 1 else 0
    return as_blocks(filled(array, 0, missing), n_parts)


def of_keys(array):
    """Return rows of keys in parts, with an axis for the heads that read them."""
    return in_parts(array)[..., None, :, :, :]


def running(first, products, *, is_reverse=False):
    """Return sums over what comes before every part, and over all parts alone.

    Parameters
    ----------
    first : array of shape (..., M, c)
        What comes before the first part.
    products : array of shape (..., 1, B, M, c)
        Sums over each part.
    is_reverse : bool, default=False
        Whether later parts come before earlier ones; NumPy only.

    Returns
    -------
    sums : array of shape (..., 1, B, M, c)
        first plus all earlier parts.
    total : array of shape (..., M, c)
        The sum of all parts.
    """
    if is_array_api(products):
        sums = namespace(products).cumulative_sum(products, axis=-3, include_initial=True)
        return first[..., None, None, :, :] + sums[..., :-1, :, :], sums[..., 0, -1, :, :]
    found, total = np.empty_like(products), np.zeros_like(products[..., 0, :, :])
    n_parts = products.shape[-3]
    for i in reversed(range(n_parts)) if is_reverse else range(n_parts):
        np.add(first[..., None, :, :], total, out=found[..., i, :, :])
        total += products[..., i, :, :]
    return found, total[..., 0, :, :]


def safe_parts(sums, keys):
    """Yield (rows, exponents at their end), where exponents rise by at most the limit within rows.

    Every feature then has a key of exponent top - limit or more before any row of the part, so the
    row's denominator is at least exp(-limit).
    """
    limit = rise_limit(keys.values)
    waiting = [slice(0, keys.values.shape[-2])]
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


def triangle(products):
    """Return products with those of later keys set to 0; NumPy products are overwritten."""
    if not isinstance(products, np.ndarray):
        return namespace(products).tril(products)
    products *= _ones_below(products.shape[-1], products.dtype)
    return products


@lru_cache(maxsize=16)
def _ones_below(n, dtype):
    return np.tri(n, dtype=dtype)


# ---------------------------------------------------------------- diagnosis


def count_lost(unit, sums, out, is_causal):
    """Return the number of queries whose weights sum to 0 although they see a key.

    Always 0 for a positive map. `sums` are those over the keys of earlier calls, or None.
    """
    if unit.head.is_positive or not out.zeros:
        return 0
    xp = namespace(unit.q)
    is_key = xp.ones_like(unit.k[..., 0]) if unit.hidden is None else ~unit.hidden
    n_keys = array_api_compat.array_namespace(is_key).cumulative_sum(
        cast(is_key, xp.int64), axis=-1
    )
    if sums is not None:
        n_keys = n_keys + cast(xp.max(sums.top, axis=-1, keepdims=True) > -np.inf, xp.int64)
    n_lost = 0
    for rows, is_zero in out.zeros:
        n_seen = n_keys[..., None, rows if is_causal else slice(-1, None)]
        n_lost += int(xp.sum(cast(is_zero & (n_seen > 0), xp.int64)))
    return n_lost


def effective_features(unit, sums):
    """Return, on the host, the effective number of features of some queries that see a key.

    None for maps with signs and for queries without any key.
    """
    if not unit.head.is_positive:
        return None
    n_queries = unit.q.shape[-2]
    thinned = constant(unit.queries(slice(None, None, -(-n_queries // _CHECKED_QUERIES))))
    xp = namespace(thinned)
    sums = _for_queries(Sums(constant(sums.sums), sums.top))
    factors, _ = lifted(unit.memory[0].rows(unit.head.queries, thinned), sums.top)
    shares = factors * cast(sums.sums[..., None, :, 0], factors.dtype)
    total, squares = (to_host(xp.sum(part, axis=-1)).ravel() for part in (shares, shares * shares))
    return total[squares > 0] ** 2 / squares[squares > 0] if (squares > 0).any() else None
