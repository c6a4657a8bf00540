"""Exact attention against a dense formula in float64 and against torch; the shapes it accepts."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from skrf.attention import exact_attention
from skrf.attention._inputs import check_inputs

RNG = np.random.default_rng(0)  # anew for every test
BATCH, HEADS, GROUP, LENGTH = 2, 3, 2, 11


@pytest.fixture(autouse=True)
def _seed(monkeypatch):
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(0))


def draw(*shape, std=1.0, dtype=np.float64):
    return (std * RNG.normal(size=shape)).astype(dtype)


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


def naive_heads(q, k, v, padding=None, **options):
    """The same for (batch, heads, ...) with fewer key heads, and padding (batch, key heads, S)."""
    out = np.empty((*q.shape[:3], v.shape[-1]))
    group = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        j = h // group
        own = None if padding is None else padding[b, j]
        out[b, h] = naive(q[b, h], k[b, j], v[b, j], padding=own, **options)
    return out


def make_mask(kind, n_queries, n_keys):
    """Return a mask of shape (L, S) and the same as a dense array."""
    keep = RNG.random((n_queries, n_keys)) < 0.6
    keep[2 % n_queries] = False  # a row without any key
    weights = keep * RNG.exponential(size=keep.shape)
    if kind == "boolean":
        return keep, keep
    if kind == "weights":
        return weights, weights
    if kind == "integers":
        return (weights * 5).astype(int), (weights * 5).astype(int)
    if kind == "sparse boolean":
        return sp.coo_array(keep), keep
    if kind == "sparse":
        return sp.csc_matrix(weights), weights
    return HasToArray(weights), weights


def assert_close(actual, wanted, rtol=1e-12, atol=1e-13):
    np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol)


class HasToArray:
    def __init__(self, values):
        self.values = values

    def toarray(self):
        return self.values


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("block_size", [1, 4, 1024])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "kind", [None, "boolean", "weights", "integers", "sparse boolean", "sparse", "toarray"]
)
def test_equals_the_definition(kind, causal, block_size):
    n_keys = LENGTH if causal else LENGTH + 3
    q, k, v = draw(2, LENGTH, 5), draw(2, n_keys, 5), draw(2, n_keys, 4)
    mask, dense = (None, None) if kind is None else make_mask(kind, LENGTH, n_keys)
    padding = RNG.random((2, n_keys)) < 0.3
    out = exact_attention(
        q,
        k,
        v,
        causal=causal,
        mask=mask,
        scale=0.7,
        key_padding_mask=padding,
        block_size=block_size,
    )
    for h in range(2):
        wanted = naive(q[h], k[h], v[h], causal=causal, mask=dense, scale=0.7, padding=padding[h])
        assert_close(out[h], wanted)
    if kind is not None:
        np.testing.assert_array_equal(out[:, 2], 0)


@pytest.mark.parametrize("n_key_heads", [1, 2, 6])
@pytest.mark.parametrize("padding_axes", ["S", "batch", "heads"])
def test_grouped_heads_and_padding(n_key_heads, padding_axes):
    q = draw(BATCH, 6, LENGTH, 3)
    k, v = draw(BATCH, n_key_heads, 9, 3), draw(BATCH, n_key_heads, 9, 2)
    shape = {"S": (9,), "batch": (BATCH, 9), "heads": (BATCH, n_key_heads, 9)}[padding_axes]
    padding = RNG.random(shape) < 0.5
    everywhere = padding[:, None] if padding_axes == "batch" else padding
    everywhere = np.broadcast_to(everywhere, (BATCH, n_key_heads, 9))
    out = exact_attention(q, k, v, key_padding_mask=padding)
    wanted = naive_heads(q, k, v, padding=everywhere)
    assert_close(out, wanted)


def test_keys_without_leading_axes_are_shared():
    q, k, v = draw(BATCH, HEADS, LENGTH, 3), draw(7, 3), draw(7, 2)
    out = exact_attention(q, k, v)
    for b, h in np.ndindex(BATCH, HEADS):
        assert_close(out[b, h], naive(q[b, h], k, v))
    np.testing.assert_array_equal(exact_attention(q[0, 1], k, v).shape, (LENGTH, 2))


@pytest.mark.parametrize("causal", [False, True])
def test_default_scale_is_that_of_the_width(causal):
    q, k, v = draw(3, LENGTH, 7)
    out = exact_attention(q, k, v, causal=causal)
    assert_close(out, naive(q, k, v, causal=causal, scale=7**-0.5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_logits_of_ten_thousand(dtype, causal):
    """Logits are +-1e4 plus numbers around 1: ties at the top, whose weights need all digits."""
    signs = np.where(RNG.random(20) < 0.5, -1, 1)
    keys_signs = np.where(np.arange(20) % 3 == 0, -1, 1)
    q = np.column_stack([100 * signs, draw(20, 3)]).astype(dtype)
    k = np.column_stack([100 * keys_signs, draw(20, 3)]).astype(dtype)
    v = draw(20, 4, dtype=dtype)
    # The second mask leaves each query the keys at -1e4 only, 2e4 below those that it hides.
    for mask in (None, signs[:, None] != keys_signs):
        out = exact_attention(q, k, v, causal=causal, scale=1.0, mask=mask)
        assert out.dtype == dtype
        wanted = naive(q, k, v, causal=causal, scale=1.0, mask=mask)
        # Products in float32 would be off by 1e4 * 6e-8, and the output by as much.
        assert_close(out, wanted, atol=1e-6 if dtype == np.float32 else 1e-10)
        assert np.ptp(wanted, axis=0).min() > 0.1


def test_logits_beyond_float32():
    q = k = np.array([[1e30]], dtype=np.float32)
    v = np.array([[2.0]], dtype=np.float32)
    np.testing.assert_array_equal(exact_attention(q, k, v), v)
    with pytest.raises(ValueError, match="too large.*1e\\+200"):
        exact_attention([[1e200]], [[1e200]], [[1.0]])


def test_tiny_and_huge_mask_weights_act_as_log_weights():
    q, k, v = np.zeros((1, 1), np.float32), np.array([[0.0], [800]], np.float32), np.eye(2)
    out = exact_attention(q + 1, k, v, mask=[[1.0, 1e-300]], scale=1.0)
    assert_close(out[0, 0], np.exp(-800 - np.log(1e-300)))
    single = exact_attention(q, k, v.astype(np.float32), mask=[[1e-300, 3e-300]])
    assert_close(single, [[0.25, 0.75]], rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_without_keys_are_zero(causal):
    q, k, v = draw(3, BATCH, HEADS, LENGTH, 4)
    padding = np.zeros((BATCH, LENGTH), bool)
    padding[0] = True
    out = exact_attention(q, k, v, causal=causal, key_padding_mask=padding)
    np.testing.assert_array_equal(out[0], 0)
    assert_close(out[1], exact_attention(q, k, v, causal=causal)[1])
    padding[0, 3:] = False
    out = exact_attention(q, k, v, causal=causal, key_padding_mask=padding)
    assert np.all(out[0, :, :3] == 0) == causal
    assert np.all(out[0, :, 3:] != 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("width", [1, 3])
def test_smallest_sizes(length, width, causal):
    q, k, v = draw(3, length, width)
    out = exact_attention(q, k, v, causal=causal)
    assert_close(out, naive(q, k, v, causal=causal))
    if not causal:
        one = exact_attention(q, k[:1], v[:1])
        assert_close(one, np.repeat(v[:1], length, axis=0))


def test_values_near_the_largest_float():
    v = np.full((50, 1), np.finfo(np.float32).max / 2)
    out = exact_attention(*(np.zeros((50, 2), np.float32),) * 2, v.astype(np.float32))
    assert_close(out, v, rtol=1e-5)


@pytest.mark.parametrize("std", [0.5, 1.0, 4.0])
def test_float32_agrees_with_float64(std):
    q, k, v = (draw(HEADS, 300, 16, std=std, dtype=np.float32) for _ in range(3))
    out = exact_attention(q, k, v, causal=True)
    assert out.dtype == np.float32
    double = exact_attention(*(array.astype(np.float64) for array in (q, k, v)), causal=True)
    assert double.dtype == np.float64
    assert_close(out, double, atol=2e-5 * std)


def test_short_floats_come_out_as_they_came_in():
    q, k, v = (draw(6, 3, std=2).astype(np.float16) for _ in range(3))
    out = exact_attention(q, k, v)
    assert out.dtype == np.float16
    # Sums are those of float32: what is left is the rounding of the output.
    assert_close(out, naive(q, k, v), atol=2.0**-11 * 8)
    assert exact_attention(q, k.astype(np.float32), v).dtype == np.float32
    assert exact_attention(q, k, v.astype(np.float64)).dtype == np.float64


@pytest.mark.parametrize("dtype", [np.int32, bool])
def test_other_dtypes_become_float64(dtype):
    q, k, v = (draw(6, 3, std=2).astype(dtype) for _ in range(3))
    out = exact_attention(q, k, v)
    assert out.dtype == np.float64
    assert_close(out, naive(q, k, v))
    assert exact_attention(q.astype(np.float32), k.astype(np.float32), v).dtype == np.float64


@pytest.mark.parametrize("causal", [False, True])
def test_future_and_padding_change_nothing(causal):
    q, k, v = draw(3, LENGTH, 4)
    padding = np.arange(LENGTH) == 4
    before = exact_attention(q, k, v, causal=causal, key_padding_mask=padding)
    k[4] *= 50
    v[4] = 1e6
    if causal:
        k[8:], v[8:] = 30 * k[8:], 1e6
    after = exact_attention(q, k, v, causal=causal, key_padding_mask=padding)
    kept = 8 if causal else LENGTH
    assert_close(after[:kept], before[:kept])


def test_memory_is_linear():
    """Peak of Python's allocations over the output: two arrays of a block, not L x S."""
    q, k, v = (draw(4000, 4, dtype=np.float32) for _ in range(3))
    exact_attention(q[:50], k[:50], v[:50])
    tracemalloc.start()
    out = exact_attention(q, k, v, block_size=100, causal=True)
    peak = tracemalloc.get_traced_memory()[1] - out.nbytes
    tracemalloc.stop()
    assert peak < 2 * 100 * 4000 * 4 < 4000 * 4000 * 4 / 16


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_key_heads", [2, 4])
@pytest.mark.parametrize("restriction", [None, "padding", "mask"])
def test_equals_torch(restriction, n_key_heads, dtype, causal):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q = draw(BATCH, 4, LENGTH, 8).astype(dtype)
    k, v = (draw(BATCH, n_key_heads, LENGTH, 8).astype(dtype) for _ in range(2))
    keep = np.ones((BATCH, 1, LENGTH, LENGTH), bool)
    ours = {}
    if restriction == "padding":
        # The first key stays: torch has no defined result for rows without any.
        padding = (RNG.random((BATCH, LENGTH)) < 0.5) & (np.arange(LENGTH) > 0)
        keep &= ~padding[:, None, None]
        ours = {"key_padding_mask": padding}
    elif restriction == "mask":
        mask = (RNG.random((LENGTH, LENGTH)) < 0.5) | (np.arange(LENGTH) == 0)
        keep &= mask
        ours = {"mask": mask}
    if causal:
        keep &= np.tri(LENGTH, dtype=bool)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(array) for array in (q, k, v)),
        attn_mask=torch.from_numpy(keep),
        enable_gqa=True,
    )
    out = exact_attention(q, k, v, causal=causal, **ours)
    assert out.dtype == np.dtype(dtype)
    assert_close(out, wanted.numpy(), atol=1e-6 if dtype == "float32" else 1e-13)


# ------------------------------------------------------------------ layout


def test_heads_are_grouped_by_views():
    q, k, v = draw(BATCH, 6, 5, 3), draw(BATCH, 2, 4, 3), draw(BATCH, 2, 4, 7)
    heads = check_inputs(q, k, v)
    assert heads.q.shape == (4, 3, 5, 3)
    assert heads.k.shape == (4, 4, 3)
    assert heads.v.shape == (4, 4, 7)
    assert heads.padding is None
    for grouped, array in ((heads.q, q), (heads.k, k), (heads.v, v)):
        assert np.shares_memory(grouped, array)
    np.testing.assert_array_equal(heads.q[3, 1], q[1, 4])
    np.testing.assert_array_equal(heads.given_layout(heads.q), q)
    assert heads.given_layout(np.empty((4, 3, 5, 7))).shape == (BATCH, 6, 5, 7)
    assert check_inputs(q, k, v, np.zeros(4, bool)).padding is None
    padding = check_inputs(q, k, v, np.array([[True, False, False, False], [False] * 4])).padding
    np.testing.assert_array_equal(padding[:, 0], [True, True, False, False])


def test_lists_and_single_heads():
    heads = check_inputs([[1, 2]], [[3, 4], [5, 6]], [[1], [2]])
    assert [array.shape for array in (heads.q, heads.k, heads.v)] == [
        (1, 1, 1, 2),
        (1, 2, 2),
        (1, 2, 1),
    ]
    assert heads.q.dtype == np.float64
    assert heads.given_layout(np.empty((1, 1, 1, 1))).shape == (1, 1)


# ------------------------------------------------------------------ errors


def inputs(**changes):
    arrays = {"q": np.ones((2, 4, 3)), "k": np.ones((2, 4, 3)), "v": np.ones((2, 4, 5))}
    return {**arrays, **changes}


def with_entry(shape, value):
    array = np.ones(shape)
    array[(-1,) * len(shape)] = value
    return array


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"q": np.ones(3)}, ValueError, r"q must have shape \(\.\.\., L, d\), got 1 axes"),
        ({"k": np.ones(3)}, ValueError, r"k must have shape \(\.\.\., S, d\), got 1 axes"),
        ({"v": 1.0}, ValueError, r"v must have shape \(\.\.\., S, e\), got 0 axes"),
        ({"q": [[1, 2], [3]]}, ValueError, "q must be an array"),
        ({"q": np.ones((2, 0, 3))}, ValueError, r"q has an empty axis: shape \(2, 0, 3\)"),
        ({"k": np.ones((2, 0, 3)), "v": np.ones((2, 0, 5))}, ValueError, "k has an empty axis"),
        ({"v": np.ones((2, 4, 0))}, ValueError, "v has an empty axis"),
        ({"k": np.ones((2, 4, 2))}, ValueError, "q and k must have the same width d, got 3 .* 2"),
        ({"v": np.ones((2, 3, 5))}, ValueError, "k and v must agree in all axes but the last"),
        ({"v": np.ones((4, 5))}, ValueError, "k and v must agree"),
        (
            {"k": np.ones((2, 3, 3))},
            ValueError,
            r"k of shape \(2, 3, 3\) and v of shape \(2, 4, 5\), for q of shape \(2, 4, 3\)",
        ),
        ({"q": np.ones((3, 4, 3))}, ValueError, r"divisor of q's.*got \(2,\) in k and \(3,\)"),
        ({"q": np.ones((1, 4, 3))}, ValueError, r"divisor of q's.*got \(2,\) in k and \(1,\)"),
        ({"q": np.ones((4, 3))}, ValueError, r"got \(2,\) in k and \(\) in q"),
        ({"q": np.ones((5, 2, 4, 3))}, ValueError, r"got \(2,\) in k and \(5, 2\) in q"),
        (
            {"q": np.ones((3, 2, 4, 3)), "k": np.ones((1, 2, 4, 3)), "v": np.ones((1, 2, 4, 5))},
            ValueError,
            r"got \(1, 2\) in k and \(3, 2\) in q",
        ),
        ({"q": with_entry((2, 4, 3), np.nan)}, ValueError, "q contains NaN or infinity"),
        ({"k": with_entry((2, 4, 3), np.inf)}, ValueError, "k contains NaN or infinity"),
        ({"v": with_entry((2, 4, 5), -np.inf)}, ValueError, "v contains NaN or infinity"),
        ({"q": np.ones((2, 4, 3), complex)}, TypeError, "q must hold real numbers.*complex128"),
        ({"v": np.full((2, 4, 5), "a")}, TypeError, "v must hold real numbers"),
        ({"q": np.ones((2, 5, 3)), "causal": True}, ValueError, "causal=True .* 5 .* 4 keys"),
        ({"causal": 1}, ValueError, "causal must be True or False, got 1"),
        ({"mask": [[1, 2], [3]]}, ValueError, "mask must be an array"),
        ({"scale": 0}, ValueError, "scale must be a finite number > 0 or None, got 0"),
        ({"scale": np.nan}, ValueError, "scale must be a finite number"),
        ({"scale": "auto"}, ValueError, "scale must be .* got 'auto'"),
        ({"block_size": 0}, ValueError, "block_size must be an integer >= 1, got 0"),
        ({"block_size": 2.0}, ValueError, "block_size must be an integer"),
        ({"key_padding_mask": np.zeros(4)}, TypeError, "key_padding_mask must be boolean.*float"),
        ({"key_padding_mask": np.zeros(3, bool)}, ValueError, r"shape \(4,\) or \(2, 4\), got"),
        ({"key_padding_mask": np.zeros((1, 4), bool)}, ValueError, r"got \(1, 4\)"),
        (
            {"mask": np.ones((4, 3))},
            ValueError,
            r"mask must have the shape .* = \(4, 4\), or",
        ),
        ({"mask": with_entry((4, 4), -0.5)}, ValueError, "mask must be finite and >= 0.*-0.5"),
        ({"mask": sp.csr_array(with_entry((4, 4), -0.5))}, ValueError, "mask must be.*-0.5"),
        ({"mask": with_entry((4, 4), np.nan)}, ValueError, "mask must be finite"),
        ({"mask": with_entry((4, 4), np.inf)}, ValueError, "mask must be finite"),
        ({"mask": np.ones((4, 4), complex)}, TypeError, "mask must hold real numbers.*complex"),
        ({"mask": aslinearoperator(np.eye(4))}, TypeError, r"toarray\(\).*MatrixLinearOperator"),
    ],
)
def test_errors_name_what_is_wrong(changes, error, said):
    with pytest.raises(error, match=said):
        exact_attention(**inputs(**changes))
