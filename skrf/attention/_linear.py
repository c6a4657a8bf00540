"""Linear-time attention, bidirectional, causal and streaming, in plain array-API code.

All sums are those of `skrf._sums`: every denominator is at least 1, or exp(-limit) in causal
blocks, so nothing is divided by zero and no epsilon is added.
"""

from functools import cached_property, lru_cache
from types import SimpleNamespace

import array_api_compat
import numpy as np
from array_api_compat import is_torch_array

from .._arrays import (
    arithmetic,
    cast,
    constant,
    is_array_api,
    is_on_gpu,
    namespace,
    to_host,
)
from .._sums import (
    Readout,
    Sums,
    added,
    is_inside,
    lifted,
    lowered,
    product,
    rise_limit,
)
from ._factors import Factors, raised
from ._heads import EVERYTHING, PART_ROWS, Output, as_blocks, as_rows, blocks, filled

FEATURE_ROWS = 1024  # rows whose features are held at a time
CAUSAL_ROWS = 128  # rows of a triangular product
_LEVEL = 1e12  # weight of a feature on a kept scale: leaves room for sums of many blocks
_CHECKED_QUERIES = 16  # per head, in the collapse check


# ---------------------------------------------------------------- bidirectional


def absorb(unit, size=FEATURE_ROWS):
    """Return the sums over all keys of a unit."""
    if unit.is_joint:
        return Sums.stack([absorb(own, size) for own in unit.sets()])
    sums = None if unit.is_parted else _absorb_on_a_guess(unit, size)
    if sums is None:
        for rows in blocks(unit.k.shape[-2], size):
            sums = absorbed(unit, rows, sums)
    return sums


def absorbed(unit, rows, sums):
    """Return sums after some more keys of a unit."""
    values = unit.values(rows)
    if not unit.is_parted:
        return added(sums, unit.key_rows(rows), values)
    keys = unit.key_parts(rows)
    sums = raised(keys, sums, values.shape[-1])
    return Sums(sums.sums + Factors.at(sums.top, lowered, keys).summed(values), sums.top)


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
    if unit.is_joint:
        _set_by_set(query, unit, sums, out, size)
        return
    readout = Readout(_for_queries(sums), unit.head.is_positive)
    for rows in blocks(unit.q.shape[-2], size):
        out.put_quotients(rows, readout(unit.head.queries, unit.queries(rows), unit.memory[0]))


def _set_by_set(function, unit, sums, out, size):
    """Write what a function writes for each set of a unit, and return what it returns."""
    n_sets, found, parts = unit.k.shape[0], [], []
    earlier = [None] * n_sets if sums is None else sums.groups()
    for own, before in zip(unit.sets(), earlier, strict=True):
        part = Output()
        found.append(function(own, before, part, size))
        parts.append(part.joined())
    out.put(slice(0, unit.q.shape[-2]), namespace(unit.q).stack(parts))
    return found


def _for_queries(sums):
    """Return sums with an axis for the query heads of a set, if there is an axis for sets."""
    if sums.top.ndim == 1:
        return sums
    return Sums(sums.sums[..., None, :, :], sums.top[..., None, :])


# ---------------------------------------------------------------- causal


def causal(unit, sums, out, size=FEATURE_ROWS):
    """Write causal attention, in which the keys of `sums` come first, and return the new sums."""
    if unit.is_joint:
        return Sums.stack(_set_by_set(causal, unit, sums, out, size))
    for block in causal_blocks(unit, size):
        for rows, step in steps_of(unit, block, sums):
            out.put_quotients(rows, step.found)
            sums = step.after
    return sums


def causal_blocks(unit, size):
    """Return the blocks of positions that are worked on at a time."""
    return blocks(unit.k.shape[-2], min(size, PART_ROWS) if unit.is_parted else size)


def steps_of(unit, block, sums):
    """Yield (rows, Step) for a block of positions, in as few steps as its exponents allow."""
    guess, values, step = unit.level(sums), unit.values(block), None
    if unit.is_parted:
        step = _step_of_parts(unit, block, sums, values)
    elif guess is not None:
        # The exponents so far also suit the block if all denominators come out near 1.
        left, right = unit.query_rows(block, -guess).values, unit.key_rows(block, guess).values
        with np.errstate(over="ignore", invalid="ignore"):
            np.exp(left, out=left), np.exp(right, out=right)
            step = Step.of(Sums(sums.sums, guess), (left, left), (right, right), values)
        is_level = step.total[..., 0].max() < _LEVEL and np.isfinite(step.total).all()
        step = step if is_level else None
    if step is not None and is_inside(step.found[..., 0], values.dtype):
        yield block, step
        return
    queries, keys = unit.query_rows(block), unit.key_rows(block)
    sums = Sums.before(keys, values) if sums is None else sums
    for rows, top in safe_parts(sums, keys):
        own = queries.part(rows), keys.part(rows), values[..., rows, :]
        step = _step(Sums(sums.at(top), top), *own)
        yield slice(block.start + rows.start, block.start + rows.stop), step
        sums = step.after


def _step(before, queries, keys, values):
    """Return the step of some positions, given earlier sums on a scale that suits them."""
    if is_torch_array(values) and values.ndim > 2:
        from ._torch import causal_product

        found, total = causal_product(before, queries, keys, values)
        return SimpleNamespace(found=found, after=Sums(before.sums + total, before.top))
    left, right = lifted(queries, before.top[..., None, :]), lowered(keys, before.top)
    return Step.of(before, left, right, values)


def _step_of_parts(unit, block, sums, values):
    """Return the step of a block whose features are taken in parts."""
    queries, keys = unit.query_parts(block), unit.key_parts(block)
    before = raised(keys, sums, values.shape[-1])
    left, right = (Factors.at(before.top, *own) for own in ((lifted, queries), (lowered, keys)))
    return Step(before, left, right, values[..., None, :, :], values.shape[-2])


class Step:
    """Some positions of causal attention that share a scale.

    Parameters
    ----------
    before : Sums of shape (..., M, e + 1)
        Sums over the keys of earlier positions, on that scale.
    left : Factors of shape (..., B, G c, M)
        Those of the queries in B parts of c positions, the heads of a set one after the other; the
        last part is padded with zeros.
    right : Factors of shape (..., B, c, M)
        Those of the keys.
    values : array of shape (..., B, c, e + 1)
        [weight, values].
    n : int
        Number of positions.

    Attributes
    ----------
    found : array of shape (..., G, n, e + 1)
        Numerators and denominators.
    near : array of shape (..., B, G c, c)
        Triangles of products.
    earlier : array of shape (..., B, M, e + 1)
        Sums over the keys before each part.
    total : array of shape (..., M, e + 1)
        Sums over all keys of these positions.
    """

    @classmethod
    def of(cls, before, left, right, values):
        """Return the step, given the factors and slopes of queries and of keys by position."""
        values, n = in_parts(cast(values, right[0].dtype)), values.shape[-2]
        return cls(before, _folded(together, *left), _folded(in_parts, *right), values, n)

    def __init__(self, before, left, right, values, n):
        self.before, self.left, self.right, self.values, self.n = before, left, right, values, n
        self.near = triangle(left.products(right))
        far = cast(before.sums, values.dtype)
        self.earlier, self.total = running(far, right.summed(values))
        found = arithmetic(values).add(left.read(self.earlier), self.near @ values)
        self.found = self.apart(found)

    @cached_property
    def after(self):
        """The sums including the keys of these positions."""
        sums = self.before.sums
        return Sums(sums + cast(self.total, sums.dtype), self.before.top)

    def apart(self, rows):
        """Return rows of `left` (..., B, G c, m) by heads and positions, (..., G, n, m)."""
        xp, c = namespace(rows), self.values.shape[-2]
        rows = xp.reshape(rows, (*rows.shape[:-2], -1, c, rows.shape[-1]))
        return as_rows(xp.moveaxis(rows, -3, -4))[..., : self.n, :]


def _folded(fold, factors, slopes):
    """Return factors in one part, after a change of the order of rows."""
    own = fold(factors)
    return Factors([(EVERYTHING, EVERYTHING, own, own if slopes is factors else fold(slopes))])


def in_parts(array, size=CAUSAL_ROWS):
    """Return rows (..., n, m) in parts (..., B, c, m), the last one padded with zeros."""
    n = array.shape[-2]
    n_parts = -(-n // size)
    missing = n_parts * size - n if n_parts > 1 else 0
    return as_blocks(filled(array, 0, missing), n_parts)


def together(array, size=CAUSAL_ROWS):
    """Return rows of heads (..., G, n, m) in parts, those of all heads together."""
    return as_rows(namespace(array).moveaxis(in_parts(array, size), -4, -3))


def running(first, products, *, is_reverse=False):
    """Return sums over what comes before every part, and over all parts alone.

    Parameters
    ----------
    first : array of shape (..., M, c)
        What comes before the first part.
    products : array of shape (..., B, M, c)
        Sums over each part, which are overwritten.
    is_reverse : bool, default=False
        Whether later parts come before earlier ones.

    Returns
    -------
    sums : array of shape (..., B, M, c)
        first plus all earlier parts.
    total : array of shape (..., M, c)
        The sum of all parts.
    """
    if is_on_gpu(products):
        return _running_at_once(first, products, is_reverse)
    total, parts = 0.0 * first, range(products.shape[-3])
    for i in reversed(parts) if is_reverse else parts:
        before, total = total, total + products[..., i, :, :]
        products[..., i, :, :] = first + before
    return products, total


def _running_at_once(first, products, is_reverse):
    """Return what `running` does, in few operations."""
    xp = namespace(products)
    ordered = xp.flip(products, axis=-3) if is_reverse else products
    sums = xp.cumulative_sum(ordered, axis=-3, dtype=products.dtype)
    total, sums = sums[..., -1, :, :], first[..., None, :, :] + sums[..., :-1, :, :]
    if is_reverse:
        products[..., :-1, :, :], products[..., -1, :, :] = xp.flip(sums, axis=-3), first
    else:
        products[..., 1:, :, :], products[..., 0, :, :] = sums, first
    return products, total


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
    """Return products (..., G c, c), 0 for later keys; NumPy products are overwritten."""
    xp, c = namespace(products), products.shape[-1]
    heads = xp.reshape(products, (*products.shape[:-2], -1, c, c))
    if is_array_api(products):
        return xp.reshape(xp.tril(heads), products.shape)
    heads *= _ones_below(c, products.dtype)
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
