"""Exact attention against a dense formula in float64; the shapes and numbers it accepts."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from skrf.attention import ApproxKernelAttention, exact_attention

BATCH, HEADS, LENGTH = 2, 3, 11


def rng_of(seed=0):
    return np.random.default_rng(seed)


def draw(*shape, std=1.0, dtype=np.float64, seed=0):
    return (std * rng_of(seed).normal(size=shape)).astype(dtype)


def draw_qkv(q_shape, k_shape, width, **options):
    """Return queries, keys and values, the latter of another width."""
    shapes = q_shape, k_shape, (*k_shape[:-1], width)
    return [draw(*shape, seed=seed, **options) for seed, shape in enumerate(shapes)]


def naive(q, k, v, *, causal=False, mask=None, scale=None, padding=None):
    """Attention of one head by its definition, in float64, row by row."""
    q, k, v = (np.asarray(array, dtype=np.float64) for array in (q, k, v))
    scale = q.shape[1] ** -0.5 if scale is None else scale
    out = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        weights = np.ones(len(k)) if mask is None else np.array(mask[i], dtype=float)
        if padding is not None:
            weights[padding] = 0
        if causal:
            weights[i + 1 :] = 0
        kept = np.flatnonzero(weights)
        if kept.size:
            logits = scale * (k[kept] @ q[i])
            terms = weights[kept] * np.exp(logits - logits.max())
            out[i] = terms @ v[kept] / terms.sum()
    return out


def naive_heads(q, k, v, padding, mask):
    """The same for (batch, heads, ...) with fewer key heads, padding of these, masks of heads."""
    out = np.empty((*q.shape[:3], v.shape[-1]))
    group = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        j = h // group
        out[b, h] = naive(q[b, h], k[b, j], v[b, j], padding=padding[b, j], mask=mask[h])
    return out


def masks(n_queries, n_keys):
    """Return masks of shape (L, S) and the same as dense arrays; the third row has no key."""
    keep = rng_of(3).random((n_queries, n_keys)) < 0.6
    keep[2] = False
    weights = keep * rng_of(4).exponential(size=keep.shape)
    integers = (weights * 5).astype(int)
    return {
        "none": (None, None),
        "boolean": (keep, keep),
        "weights": (weights, weights),
        "integers": (integers, integers),
        "sparse boolean": (sp.coo_array(keep), keep),
        "sparse": (sp.csc_matrix(weights), weights),
        "toarray": (HasToArray(weights), weights),
    }


def assert_close(actual, wanted, rtol=1e-12, atol=1e-13):
    np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol)


class HasToArray:
    def __init__(self, values):
        self.values = values

    def toarray(self):
        return self.values


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_definition(causal):
    n_keys = LENGTH if causal else LENGTH + 3
    q, k, v = draw_qkv((2, LENGTH, 5), (2, n_keys, 5), 4)
    padding = rng_of(5).random((2, n_keys)) < 0.3
    padding[0, :2] = True  # the first queries of a causal sequence see no key
    for kind, (mask, dense) in masks(LENGTH, n_keys).items():
        given = {"causal": causal, "scale": 0.7 if kind == "weights" else None}
        wanted = [
            naive(q[h], k[h], v[h], mask=dense, padding=padding[h], **given) for h in range(2)
        ]
        given.update(mask=mask, key_padding_mask=padding)
        for block_size in (1, 4, 1024):
            out = exact_attention(q, k, v, block_size=block_size, **given)
            assert_close(out, wanted)
            assert kind == "none" or not out[:, 2].any()


@pytest.mark.parametrize("n_key_heads", [1, 2, 6])
def test_grouped_heads_and_padding(n_key_heads):
    q, k, v = draw_qkv((BATCH, 6, LENGTH, 3), (BATCH, n_key_heads, 9, 3), 2)
    of_heads = rng_of(6).exponential(size=(6, LENGTH, 9))
    for shape in ((9,), (BATCH, 9), (BATCH, n_key_heads, 9)):
        padding = rng_of(5).random(shape) < 0.5
        padding[0] |= padding.ndim > 1  # nothing is left of the first sequence
        everywhere = padding[:, None] if shape == (BATCH, 9) else padding
        everywhere = np.broadcast_to(everywhere, (BATCH, n_key_heads, 9))
        for mask, dense in ((None, np.ones_like(of_heads)), (of_heads, of_heads)):
            out = exact_attention(q, k, v, mask=mask, key_padding_mask=padding)
            assert_close(out, naive_heads(q, k, v, everywhere, dense))


def test_keys_without_leading_axes_are_shared():
    q, k, v = draw_qkv((BATCH, HEADS, LENGTH, 3), (7, 3), 2)
    out = exact_attention(q, k, v)
    for b, h in np.ndindex(BATCH, HEADS):
        assert_close(out[b, h], naive(q[b, h], k, v))
    lists = [[1, 2]], [[3, 4], [5, 6]], [[1], [2]]
    assert_close(exact_attention(*lists), naive(*lists, scale=2**-0.5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_logits_of_ten_thousand(dtype, causal):
    """Logits are +-1e4 plus numbers around 1: ties at the top, whose weights need all digits."""
    signs = np.where(rng_of().random(20) < 0.5, -1, 1)
    keys_signs = np.where(np.arange(20) % 3 == 0, -1, 1)
    q = np.column_stack([100 * signs, draw(20, 3, seed=1)]).astype(dtype)
    k = np.column_stack([100 * keys_signs, draw(20, 3, seed=2)]).astype(dtype)
    v = draw(20, 4, dtype=dtype, seed=3)
    # The second mask leaves each query the keys at -1e4 only, 2e4 below those that it hides.
    for mask in (None, signs[:, None] != keys_signs):
        out = exact_attention(q, k, v, causal=causal, scale=1.0, mask=mask)
        assert out.dtype == dtype
        wanted = naive(q, k, v, causal=causal, scale=1.0, mask=mask)
        # Products in float32 would be off by 1e4 * 6e-8, and the output by as much.
        assert_close(out, wanted, atol=1e-6 if dtype == np.float32 else 1e-10)
        assert np.ptp(wanted, axis=0).min() > 0.1


def test_numbers_at_the_end_of_the_range():
    q = k = np.array([[1e30]], dtype=np.float32)
    v = np.array([[2.0]], dtype=np.float32)
    np.testing.assert_array_equal(exact_attention(q, k, v), v)
    with pytest.raises(ValueError, match="too large.*1e\\+200"):
        exact_attention([[1e200]], [[1e200]], [[1.0]])
    v = np.full((50, 1), np.finfo(np.float32).max / 2, np.float32)
    zeros = np.zeros((50, 2), np.float32)
    assert_close(exact_attention(zeros, zeros, v), v, rtol=1e-5)


def test_tiny_and_huge_mask_weights_act_as_log_weights():
    q, k, v = np.zeros((1, 1), np.float32), np.array([[0.0], [800]], np.float32), np.eye(2)
    out = exact_attention(q + 1, k, v, mask=[[1.0, 1e-300]], scale=1.0)
    assert_close(out[0, 0], np.exp(-800 - np.log(1e-300)))
    single = exact_attention(q, k, v.astype(np.float32), mask=[[1e-300, 3e-300]])
    assert_close(single, [[0.25, 0.75]], rtol=1e-6)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["float16"] * 3, "float16"),
        (["float16", "float32", "float16"], "float32"),
        (["float16", "float16", "float64"], "float64"),
        (["float32", "float32", "int32"], "float64"),
        (["bool"] * 3, "float64"),
    ],
)
def test_dtypes_of_outputs(dtypes, expected):
    arrays = zip(draw(3, 6, 3, std=2), dtypes, strict=True)
    parts = [array.astype(dtype) for array, dtype in arrays]
    out = exact_attention(*parts)
    assert out.dtype == expected
    # Sums are in float32 or better: of float16 only the rounding of the output is left.
    tolerance = {"float16": 2.0**-11 * 8, "float32": 1e-5, "float64": 1e-13}[expected]
    assert_close(out, naive(*parts), atol=tolerance)


def test_memory_is_linear():
    """Peak of Python's allocations over the output: two arrays of a block, not L x S."""
    q, k, v = draw(3, 4000, 4, dtype=np.float32)
    exact_attention(q, k, v, block_size=100, causal=True)  # compiles what it calls
    tracemalloc.start()
    out = exact_attention(q, k, v, block_size=100, causal=True)
    peak = tracemalloc.get_traced_memory()[1] - out.nbytes
    tracemalloc.stop()
    assert peak < 2 * 100 * 4000 * 4 < 4000 * 4000 * 4 / 16


@pytest.mark.parametrize("mask", [None, "all rows", "their rows"])
def test_fewer_queries_are_the_last_positions(mask, library):
    q, k, v = draw(3, 2, 30, 4)
    weights = None if mask is None else draw(30, 30) ** 2
    expected = exact_attention(q, k, v, causal=True, mask=weights)[:, -7:]
    if mask == "their rows":
        weights = weights[-7:]
    parts = q[:, -7:], k, v
    out = exact_attention(*parts, causal=True, mask=weights, block_size=3)
    assert_close(out, expected, atol=1e-14)
    out = exact_attention(*map(library.array, parts), causal=True, mask=weights)
    assert_close(library.host(out), expected, atol=1e-14)


# ------------------------------------------------------------------ errors


def with_entry(shape, value):
    array = np.ones(shape)
    array[(-1,) * len(shape)] = value
    return array


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"q": np.ones(3)}, ValueError, r"q must have shape \(\.\.\., L, d\), got 1 axes"),
        ({"v": 1.0}, ValueError, r"v must have shape \(\.\.\., S, e\), got 0 axes"),
        ({"q": [[1, 2], [3]]}, ValueError, "q must be an array"),
        ({"q": np.ones((2, 0, 3))}, ValueError, r"q has an empty axis: shape \(2, 0, 3\)"),
        ({"k": np.ones((2, 4, 2))}, ValueError, "q and k must have the same width d, got 3 .* 2"),
        ({"v": np.ones((2, 3, 5))}, ValueError, "k and v must agree in all axes but the last"),
        ({"q": np.ones((3, 4, 3))}, ValueError, r"divisor of q's.*got \(2,\) in k and \(3,\)"),
        ({"q": np.ones((5, 2, 4, 3))}, ValueError, r"got \(2,\) in k and \(5, 2\) in q"),
        ({"q": with_entry((2, 4, 3), np.nan)}, ValueError, "q contains NaN or infinity"),
        ({"k": with_entry((2, 4, 3), np.inf)}, ValueError, "k contains NaN or infinity"),
        ({"v": with_entry((2, 4, 5), -np.inf)}, ValueError, "v contains NaN or infinity"),
        ({"q": np.ones((2, 4, 3), complex)}, TypeError, "q must hold real numbers.*complex128"),
        ({"v": np.full((2, 4, 5), "a")}, TypeError, "v must hold real numbers"),
        ({"q": np.ones((2, 5, 3)), "causal": True}, ValueError, "causal=True .* 5 .* 4 keys"),
        ({"causal": 1}, ValueError, "causal must be True or False, got 1"),
        ({"mask": [[1, 2], [3]]}, ValueError, "mask must be an array"),
        ({"mask": np.ones((4, 3))}, ValueError, r"mask must have the shape .* = \(4, 4\), or"),
        ({"mask": aslinearoperator(np.eye(4))}, TypeError, "an object of type .*LinearOperator"),
        ({"scale": 0}, ValueError, "scale must be a finite number > 0 or None, got 0"),
        ({"block_size": 2.0}, ValueError, "block_size must be an integer"),
        ({"key_padding_mask": np.zeros(4)}, TypeError, "key_padding_mask must be boolean.*float"),
        ({"key_padding_mask": np.zeros((1, 4), bool)}, ValueError, r"or \(2, 4\), got \(1, 4\)"),
    ],
)
def test_errors_name_what_is_wrong(changes, error, words):
    arrays = {"q": np.ones((2, 4, 3)), "k": np.ones((2, 4, 3)), "v": np.ones((2, 4, 5))}
    with pytest.raises(error, match=words):
        exact_attention(**{**arrays, **changes})


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    "shape",
    [(7, 9), (1, 9), (7, 1), (1, 1, 7, 9), (1, 4, 1, 9), (3, 1, 1, 9), (3, 4, 7, 9)],
    ids=str,
)
def test_masks_broadcast(shape, library):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(3, heads, n, 5)) for heads, n in ((4, 7), (2, 9), (2, 9)))
    mask = rng.random(shape)
    whole = np.broadcast_to(mask, (3, 4, 7, 9))
    parts = [q, k, v, mask]
    if library == "torch":
        parts = list(map(pytest.importorskip("torch").tensor, parts))
    out = np.asarray(exact_attention(*parts[:3], mask=parts[3]))
    for i in range(3):
        assert_close(out[i], exact_attention(q[i], k[i], v[i], mask=whole[i]), rtol=1e-13)


def test_masks_that_do_not_fit_or_are_added_are_named():
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4, 7, 5))
    for shape in ((3, 1, 1, 7), (2, 7), (2, 3, 7, 7)):
        with pytest.raises(ValueError, match="key_padding_mask"):
            exact_attention(q, k, v, mask=np.ones(shape))
    added = np.where(np.tri(7) > 0, 0.0, -np.inf)
    for call in (exact_attention, lambda *x, mask: ApproxKernelAttention(mask=mask)(*x)):
        with pytest.raises(ValueError, match=r"got -inf.*pass exp\(mask\)"):
            call(q, k, v, mask=added)


def test_operators_take_masks_with_leading_axes_of_one():
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4, 7, 5))
    rng = np.random.default_rng(1)
    for mask, whole in ((rng.random((1, 1, 7, 7)), None), (rng.random((1, 4, 7, 7)), None)):
        whole = mask[0, 0] if mask.shape[1] == 1 else mask[0]
        operators = [ApproxKernelAttention(random_state=0, mask=m).fit(q, k) for m in (mask, whole)]
        assert_close(*(operator(q, k, v) for operator in operators), rtol=0)
    with pytest.raises(ValueError, match="key_padding_mask"):
        ApproxKernelAttention(mask=np.ones((2, 1, 1, 7)))(q, k, v)
