"""Local attention against its definition, computed key by key."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import logsumexp, softmax

from skrf.attention import LocalAttention, ToeplitzMask, compare_attention, exact_attention
from skrf.attention.local.layout import sizes_of
from skrf.attention.local.selection import Statistics, scores_of

SMALL = {True: (20, 6, 1), False: (30, 6, 3)}  # window, heavy keys and summaries


def inputs(n=150, heads=2, key_heads=None, d=5, e=3, seed=0, size=1.5):
    rng = np.random.default_rng(seed)
    q = size * rng.normal(size=(2, heads, n, d)) + rng.normal(size=d)
    k, v = (rng.normal(size=(2, key_heads or heads, n, width)) for width in (d, e))
    return q, size * k, v


def small(causal, **options):
    return LocalAttention(*SMALL[causal], block=8, causal=causal, **options)


def clusters(keys, n):
    """K-means by its definition."""
    centers = keys[np.arange(n) * len(keys) // n].copy()
    sample = keys[:: -(-len(keys) // 512)]
    for _ in range(5):
        labels = ((sample[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        for c in range(n):
            if (labels == c).any():
                centers[c] = sample[labels == c].mean(axis=0)
    return ((keys[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)


def by_definition(q, k, v, operator, known=None, rate=0.0, rows=None):
    """Attention of one head: what some queries see, one key at a time, and its decay."""
    sizes, n = operator._sizes(), len(q)
    q = q / np.sqrt(q.shape[1])
    causal = sizes.causal
    if known is None:
        n_first = max(-(-sizes.units // sizes.block), 1) * sizes.block
        of = slice(n_first if causal else n)
        step = 1 if causal else -(-n // 512)
        q_some, k_some = q[of][::step], k[of][::step]
        known = q[of].mean(axis=0), q_some.var(axis=0), k_some.mean(axis=0), k_some.var(axis=0)
    mean, variance, key_mean, key_variance = known
    scores = k @ mean + rate * np.arange(n)
    order = (k * mean + variance * (k - key_mean) ** 2 / 2) @ (1 / (1 + variance * key_variance))
    order = np.where(causal & (np.arange(n) < 4), np.inf, order + rate * np.arange(n))
    labels = np.zeros(n, int) if causal else clusters(k, sizes.n_summaries)
    rows = np.arange(n) if rows is None else rows
    out = np.empty((len(rows), v.shape[1]))
    for row, i in enumerate(rows):
        start = i - i % sizes.block
        if causal:
            low, high = (0 if start < sizes.units else start - sizes.window), i + 1
            beyond = np.arange(low)
        else:
            low = start + sizes.block // 2 - sizes.window // 2
            low = min(max(low, 0), n - sizes.window)
            high = low + sizes.window
            beyond = np.r_[0:low, high:n]
            if n <= sizes.units:
                low, high, beyond = 0, n, np.arange(0)
        heavy = sorted(beyond, key=lambda j: (-order[j], j))[: sizes.n_heavy]
        exact = [*range(low, high), *heavy]
        logs, values = [q[i] @ k[j] - rate * (i - j) for j in exact], [v[j] for j in exact]
        rest = np.setdiff1d(beyond, heavy)
        for c in range(sizes.n_summaries):
            own = rest[labels[rest] == c]
            if len(own):
                weights = softmax(scores[own])
                tangent = logsumexp(scores[own]) + (q[i] - mean) @ (weights @ k[own])
                logs.append(tangent - rate * i)
                values.append(weights @ v[own])
        out[row] = softmax(logs) @ np.array(values)
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [10, 36, 60, 61, 150, 1100])
def test_is_its_definition(causal, n):
    q, k, v = inputs(n)
    operator = small(causal)
    out = operator(q, k, v)
    rows = np.arange(n)
    if n == 1100:  # the ends, and where 64 blocks of 8 that are computed at once meet the next
        rows = np.r_[0:12, 504:520, 1016:1032, 1084:1100]
    for b, h in np.ndindex(2, 2):
        expected = by_definition(q[b, h], k[b, h], v[b, h], operator, rows=rows)
        assert_allclose(out[b, h][rows], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.02, 30.0, [0.3, 0.001]])
def test_a_decay_multiplies_all_weights(rate):
    q, k, v = inputs(heads=4, key_heads=2)
    operator = small(True, mask=ToeplitzMask.decay(rate))
    out, rates = operator(q, k, v), np.repeat(np.broadcast_to(rate, 2), 2)
    for b, h in np.ndindex(2, 4):
        given = q[b, h], k[b, h // 2], v[b, h // 2]
        expected = by_definition(*given, operator, rate=rates[h])
        assert_allclose(out[b, h], expected, rtol=0, atol=1e-10)
    state, parts = operator.init_state(), []
    for part in cut((q, k, v), [60, 1, 1, 30, 58]):
        one, state = operator.step(*part, state)
        parts.append(one)
    assert_allclose(np.concatenate(parts, axis=2), out, rtol=0, atol=1e-12)
    # Padding before a text moves its positions; after a fit queries may be missing.
    padded = [np.concatenate([array[:, :, :9], array], axis=2) for array in (q, k, v)]
    shifted = operator(*padded, key_padding_mask=np.arange(159) < 9)
    assert_allclose(shifted[:, :, 9:], out, rtol=0, atol=1e-10)
    operator.fit(q, k)
    assert_allclose(operator(q[:, :, 100:], k, v), operator(q, k, v)[:, :, 100:], atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_after_the_fastest_decay_nothing_is_left(dtype):
    q, k, v = (array.astype(dtype) for array in inputs(150))
    out = small(True, mask=ToeplitzMask.decay(1e308))(q, k, v)
    assert_allclose(out, v, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.01, 0.5, 20.0])
def test_a_decay_in_float32_is_near_float64_at_any_position(rate):
    arrays = inputs(5000, heads=1, size=0.7)
    operator = LocalAttention(100, 20, 1, causal=True, mask=ToeplitzMask.decay(rate))
    single = operator(*(array.astype(np.float32) for array in arrays))
    assert single.dtype == np.float32
    assert_allclose(single, operator(*arrays), rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": ToeplitzMask.decay(0.1)},
        {"mask": ToeplitzMask.decay([0.1, 0.2], [1.0, 1.0]), "causal": True},
        {"mask": np.ones((150, 150)), "causal": True},
    ],
)
def test_other_masks_are_refused(options):
    with pytest.raises(ValueError, match=r"mask must be None or ToeplitzMask.decay\(rate\)"):
        LocalAttention(**options)(*inputs())
    with pytest.raises(ValueError, match=r"mask must be None or ToeplitzMask.decay\(rate\)"):
        LocalAttention(**options).diagnose(*inputs())


@pytest.mark.parametrize("causal", [True, False])
def test_a_fitted_mean_query_is_used(causal):
    q, k, v = inputs(heads=4, key_heads=2)
    operator = small(causal).fit(*inputs(40, heads=4, key_heads=2, seed=1)[:2])
    operator.partial_fit(*inputs(70, heads=4, key_heads=2, seed=2)[:2])
    of_all = np.concatenate([inputs(n, 4, 2, seed=s)[0] for n, s in ((40, 1), (70, 2))], axis=2)
    assert_allclose(operator.mean_queries_, of_all.mean(axis=(0, 2)), rtol=1e-12)
    assert_allclose(operator.query_variances_, of_all.var(axis=(0, 2)), rtol=1e-12)
    of_keys = np.concatenate([inputs(n, 4, 2, seed=s)[1] for n, s in ((40, 1), (70, 2))], axis=2)
    assert_allclose(operator.mean_keys_, of_keys.mean(axis=(0, 2))[[0, 0, 1, 1]], rtol=1e-9)
    assert_allclose(operator.key_variances_, of_keys.var(axis=(0, 2))[[0, 0, 1, 1]], rtol=1e-9)
    out = operator(q, k, v)
    for b, h in np.ndindex(2, 4):
        known = operator.mean_queries_[h] / np.sqrt(5), operator.query_variances_[h] / 5
        known = *known, operator.mean_keys_[h], operator.key_variances_[h]
        expected = by_definition(q[b, h], k[b, h // 2], v[b, h // 2], operator, known)
        assert_allclose(out[b, h], expected, rtol=0, atol=1e-12)


def test_keys_are_chosen_by_their_mean_weights():
    known = np.array([[0.5, -1.0], [0.8, 2.0], [0.3, 0.1], [1.5, 0.0]])
    mean, variance, key_mean, key_variance = known
    keys = np.array([[0.2, -0.4], [1.0, 0.7], [-2.0, 1.5]])

    def weight(k, i):
        def density(q):
            weight = q * (k - key_mean[i]) - key_variance[i] * q * q / 2
            return np.exp(weight - (q - mean[i]) ** 2 / (2 * variance[i]))

        return quad(density, -30, 30, points=[mean[i]])[0]

    weights = np.log([[weight(k[i], i) for i in range(2)] for k in keys]).sum(axis=1)
    given = Statistics(*(part[None, None] for part in known)), keys[None]
    scores = scores_of(*given)[0, 0]
    assert_allclose(scores - scores[0], weights - weights[0], rtol=1e-7)


def test_variances_that_are_rounding_count_as_none():
    mean = np.array([3.1, 1e200, 1.0])
    moments = np.stack([mean, [9.61 + 1e-14, np.inf, 1.5], 0 * mean, 0 * mean])
    assert_array_equal(Statistics.of(moments).variance, [0.0, 0.0, 0.5])
    q, k, v = inputs()
    alike = small(True).fit(np.ones_like(q), k)
    assert not alike.query_variances_.any()
    for causal in (True, False):  # squares beyond the range of floats
        outs = [small(causal)(x * q, k / x, v) for x in (1.0, 2.0**600)]
        assert np.isfinite(outs[1]).all() and outs[1].shape == outs[0].shape
        assert np.isfinite(small(causal)(q, 1e155 * k, v)).all()
    hidden, wild = np.arange(150) < 9, q.copy()
    wild[:, :, :9] = 1e200
    fitted = [small(True).fit(part, k, key_padding_mask=hidden) for part in (q, wild)]
    assert_array_equal(fitted[0].query_variances_, fitted[1].query_variances_)


def cut(arrays, pieces):
    edges = np.cumsum([0, *pieces])
    return [[a[:, :, i:j] for a in arrays] for i, j in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize("is_fitted", [True, False])
@pytest.mark.parametrize("pieces", [[1] * 150, [7] * 21 + [3], [8, 64, 78], [5, 140, 5]])
def test_chunks_are_the_whole(pieces, is_fitted):
    arrays = inputs(heads=4, key_heads=2)
    operator = small(True)
    if is_fitted:
        operator.fit(*inputs(40, 4, 2, seed=1)[:2])
    state, outs = operator.init_state(), []
    for part in cut(arrays, pieces):
        out, state = operator.step(*part, state)
        outs.append(out)
    assert_allclose(np.concatenate(outs, axis=2), operator(*arrays), rtol=0, atol=1e-12)
    assert state.recent.shape[2] <= operator.units + 2 * operator.block


def test_a_state_is_not_changed_and_does_not_grow():
    q, k, v = inputs(400)
    operator = small(True)
    state, sizes = operator.init_state(), []
    for part in cut((q, k, v), [1] * 100):
        before = state.mapped(lambda _, array: array.copy())
        _, after = operator.step(*part, state)
        state.mapped(lambda name, array, b=before: assert_array_equal(array, getattr(b, name)))
        state = after
        sizes.append(state.recent.shape[2])
    assert max(sizes[60:]) <= operator.units + operator.block


@pytest.mark.parametrize("causal", [True, False])
def test_padding_changes_nothing(causal):
    q, k, v = inputs(150)
    operator, longer = small(causal), [np.full((2, 2, 200, 5), 9.0) for _ in range(3)]
    firsts, hidden = (50, 13), np.ones((2, 200), bool)
    for b, first in enumerate(firsts):
        hidden[b, first : first + 150] = False
        for whole, real in zip(longer, (q, k, np.pad(v, [(0, 0)] * 3 + [(0, 2)])), strict=True):
            whole[b, :, first : first + 150] = real[b]
    out = operator(*longer, key_padding_mask=hidden)[..., :3]
    expected = operator(q, k, v)
    for b, first in enumerate(firsts):
        assert_allclose(out[b, :, first : first + 150], expected[b], rtol=0, atol=1e-12)
    assert not out[0, :, :50].any()
    assert_allclose(
        operator.fit(*longer[:2], key_padding_mask=hidden).mean_queries_, q.mean((0, 2))
    )


def test_streams_with_padding_of_several_lengths():
    q, k, v = inputs(150)
    operator, hidden = small(True), np.zeros((2, 150), bool)
    hidden[1, :37] = True
    hidden[0, 40:43] = True
    state, outs = operator.init_state(), []
    for i in range(0, 150, 5):
        part = [array[:, :, i : i + 5] for array in (q, k, v)]
        out, state = operator.step(*part, state, key_padding_mask=hidden[:, i : i + 5])
        outs.append(out)
    whole = operator(q, k, v, key_padding_mask=hidden)
    assert_allclose(np.concatenate(outs, axis=2), whole, rtol=0, atol=1e-12)
    alone = operator(*(array[1:, :, 37:] for array in (q, k, v)))
    assert_allclose(whole[1:, :, 37:], alone, rtol=0, atol=1e-12)
    # A state of one text goes on as the same text does in a batch.
    one, part = state.select([1]), [array[:, :, :9] for array in (q, k, v)]
    together = operator.step(*part, state)[0][1:]
    assert_allclose(operator.step(*(a[1:] for a in part), one)[0], together, rtol=0, atol=1e-12)


def test_the_future_changes_nothing():
    q, k, v = inputs(150)
    out = small(True)(q, k, v)
    others = [array.copy() for array in (q, k, v)]
    for array in others:
        array[:, :, 100:] = -5.0
    assert_array_equal(small(True)(*others)[:, :, :100], out[:, :, :100])


def test_fewer_queries_are_the_last_positions():
    q, k, v = inputs(150)
    operator = small(True)
    with pytest.raises(ValueError, match=r"neither that of a fit nor that of the first positions"):
        operator(q[:, :, -20:], k, v)
    operator.fit(q, k)
    assert_allclose(operator(q[:, :, -21:], k, v), operator(q, k, v)[:, :, -21:], atol=1e-12)
    q, k, v = inputs(3000)  # more than are computed at once
    assert_allclose(operator(q[:, :, -5:], k, v), operator(q, k, v)[:, :, -5:], atol=1e-12)
    with pytest.raises(ValueError, match=r"20 queries in q and 3000 keys in k"):
        small(False)(q[:, :, -20:], k, v)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1e-150, 1.0, 30.0, 1e70])
def test_any_size_of_inputs(causal, size):
    q, k, v = inputs(150)
    operator = small(causal)
    out = operator(q * size, k * size, v)
    assert np.isfinite(out).all()
    if size < 1e-100:  # all weights are equal
        expected = exact_attention(q * size, k * size, v, causal=causal)
        assert_allclose(out, expected, atol=1e-12)
    assert_allclose(operator(q * size, k * size, 1e300 * v) / 1e300, out, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_float32_is_near_float64(causal):
    q, k, v = (array.astype(np.float32) for array in inputs(150))
    operator = small(causal)
    out = operator(q, k, v)
    assert out.dtype == np.float32
    wide = operator(*(array.astype(np.float64) for array in (q, k, v)))
    assert_allclose(out, wide, rtol=0, atol=2e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_its_matrix_and_diagnosis(causal):
    q, k, v = inputs(150)
    operator = small(causal)
    matrix = operator.attention_matrix(q, k)
    assert_allclose(matrix @ v, operator(q, k, v), atol=1e-12)
    assert_allclose(matrix.sum(axis=-1), 1.0, rtol=1e-12)
    exact = exact_attention(q, k, v, causal=causal)
    diagnosis = operator.diagnose(q, k, v)
    error = np.linalg.norm(operator(q, k, v) - exact) / np.linalg.norm(exact)
    assert diagnosis.relative_error == pytest.approx(error, rel=0.3)
    table = compare_attention(q, k, v, {"local": operator})
    assert [row.error for row in table if row.name == "local"] == pytest.approx([error])


def test_equal_keys_are_chosen_from_the_first():
    q, k, v = inputs(150)
    k[:, :, ::3] = k[:, :, :1]
    for causal in (True, False):
        operator = small(causal)
        out = operator(q, k, v)
        for b, h in np.ndindex(2, 2):
            expected = by_definition(q[b, h], k[b, h], v[b, h], operator)
            assert_allclose(out[b, h], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("numbers", [(20, 0, 1), (20, 6, 0), (0, 6, 1), (20, 0, 0), (0, 0, 0)])
@pytest.mark.parametrize("block", [1, 8])
def test_any_part_may_be_empty(numbers, block):
    q, k, v = inputs(150)
    operator = LocalAttention(*numbers, block=block, causal=True)
    out = operator(q, k, v)
    assert_allclose(out[0, 0], by_definition(q[0, 0], k[0, 0], v[0, 0], operator), atol=1e-12)


def test_units():
    assert LocalAttention(causal=True).units == 256
    assert LocalAttention().units == 288
    assert sizes_of(None, None, None, 32, True)[:3] == (175, 64, 1)
    assert sizes_of(None, None, None, 32, False)[:3] == (200, 72, 16)
    assert sizes_of(None, None, None, 100, False)[:3] == (300, 72, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 40}, "window must be at least 3 blocks, 96, unless causal=True, got 40"),
        ({"window": -1, "causal": True}, "window must be an integer >= 0, got -1"),
        ({"n_heavy": 1.5}, "n_heavy must be an integer >= 0, got 1.5"),
        ({"n_summaries": 2, "causal": True}, "n_summaries must be 0 or 1 with causal=True, got 2"),
        ({"block": 0}, "block must be an integer >= 1, got 0"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"scale": -1.0}, "scale must be a finite number > 0 or None, got -1.0"),
    ],
)
def test_parameters_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LocalAttention(**options)(*inputs(400))


def test_states_and_fits_must_suit():
    q, k, v = inputs(20)
    operator = small(True)
    _, state = operator.step(q, k, v, operator.init_state())
    for other, parts, name in (
        (operator, (q[:1], k[:1], v[:1]), "heads of keys are"),
        (operator, (q, k[:, :1], v[:, :1]), "heads of keys are"),
        (operator, (q, k, v[..., :1]), "numbers per key and value are 8, these are 6"),
        (operator, (q[..., :3], k[..., :3], np.concatenate([v, v], -1)[..., :5]), "sizes are"),
        (LocalAttention(20, 6, 0, block=8, causal=True), (q, k, v), "sizes are"),
        (LocalAttention(12, 6, 1, block=8, causal=True), (q, k, v), "sizes are"),
        (LocalAttention(20, 6, 1, block=4, causal=True), (q, k, v), "sizes are"),
        (small(True).fit(q, k), (q, k, v), "sizes are"),
    ):
        with pytest.raises(ValueError, match=f"same inputs and operator: its {name}"):
            other.step(*parts, state)
    with pytest.raises(TypeError, match=r"state must come from init_state"):
        operator.step(q, k, v, None)
    with pytest.raises(ValueError, match=r"Streaming needs causal=True"):
        small(False).init_state()
    operator.fit(q[:, :1], k[:, :1])
    with pytest.raises(ValueError, match=r"q has 2 heads of width 5, but .* 1 of width 5"):
        operator(q, k, v)
    with pytest.raises(ValueError, match=r"partial_fit needs heads and width of fit"):
        operator.partial_fit(q, k)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_laws_hold_for_any_inputs(data):
    causal = data.draw(st.booleans())
    block = data.draw(st.integers(1, 6))
    window = data.draw(st.integers(0 if causal else 3 * block, 20))
    sizes = window, data.draw(st.integers(0, 5)), data.draw(st.integers(0, 1 if causal else 4))
    n, size = data.draw(st.integers(1, 60)), 10.0 ** data.draw(st.integers(-70, 70))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    q, k, v = rng.normal(size=(3, 2, n, 3))
    q, k = q * size, k * size * rng.integers(0, 2, size=(2, n, 1))  # some keys are equal
    hidden = rng.random((2, n)) < data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64])) if 1e-18 < size < 1e18 else float
    q, k, v = (array.astype(dtype) for array in (q, k, v))
    operator = LocalAttention(*sizes, block=block, causal=causal)
    with np.errstate(under="ignore"):
        out = operator(q, k, v, key_padding_mask=hidden)
    assert out.dtype == dtype
    # Outputs are means of values that are not hidden, and 0 where there is none.
    rounding = 1e-5 if dtype == np.float32 else 1e-12
    for h in range(2):
        seen = v[h][~hidden[h]]
        low, high = (seen.min(axis=0), seen.max(axis=0)) if len(seen) else (0.0, 0.0)
        assert (out[h] >= np.minimum(low, 0) - rounding).all()
        assert (out[h] <= np.maximum(high, 0) + rounding).all()
    if not causal:
        return
    state, outs, i = operator.init_state(), [], 0
    while i < n:
        some = slice(i, i + data.draw(st.integers(1, 20)))
        parts = (array[:, some] for array in (q, k, v))
        with np.errstate(under="ignore"):
            part, state = operator.step(*parts, state, key_padding_mask=hidden[:, some])
        outs.append(part)
        i = some.stop
    assert_allclose(np.concatenate(outs, axis=1), out, rtol=0, atol=10 * rounding)


@pytest.mark.parametrize("causal", [True, False])
def test_entries_and_the_future_do_not_choose_for_others(causal):
    """Tied scores in float32, of which a large key elsewhere decides the precision."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        q = rng.integers(-3, 4, size=(2, 120, 6)).astype(np.float32)
        k = 2 * rng.choice([-1, 1], size=(2, 120, 6)).astype(np.float32)
        v = rng.normal(size=(2, 120, 3)).astype(np.float32)
        operator = small(causal)
        out, other = operator(q, k, v), k.copy()
        other[1, -1] *= 1e4
        changed = operator(q, other, v)
        assert_allclose(changed[0], out[0], atol=1e-5)
        if causal:
            assert_allclose(changed[1, :-1], out[1, :-1], atol=1e-5)
        else:
            # Neither do the order of arrays, and the dtype.
            assert_allclose(operator(np.asfortranarray(q), k, v), out, atol=1e-5)
            wide = operator(*(array.astype(np.float64) for array in (q, k, v)))
            assert_allclose(wide, out, atol=1e-5)


def test_float32_is_near_float64_at_the_default_sizes():
    for seed in range(3):
        parts = np.random.default_rng(seed).normal(size=(3, 1, 600, 64)).astype(np.float32)
        out = LocalAttention()(*parts)
        assert_allclose(out, LocalAttention()(*parts.astype(np.float64)), atol=1e-5)


def test_one_huge_key_leaves_others_their_clusters():
    q, k, v = inputs(150)
    k[:, :, 75] *= 1e5
    q[..., 0] = 0.0
    k[:, :, 75, 1:] = 0.0  # which no query sees
    out = small(False)(q, k, v)
    only = LocalAttention(30, 6, 1, block=8)(q, k, v)
    assert np.abs(out - only).max() > 1e-3


def test_states_hold_no_more_than_they_need_after_padding():
    q, k, v = inputs(4000)
    hidden = np.ones((2, 4000), bool)
    hidden[:, -5:] = False
    operator = small(True)
    _, state = operator.step(q, k, v, operator.init_state(), key_padding_mask=hidden)
    base = state.recent if state.recent.base is None else state.recent.base
    assert base.nbytes < 10 * state.recent.nbytes


@pytest.mark.parametrize(("n_readers", "held"), [(1, 256), (3, 386)])
def test_states_hold_what_the_notes_say(n_readers, held):
    operator = LocalAttention(causal=True)
    parts = inputs(512, n_readers, 1)
    state, sizes = operator.init_state(), []
    for part in cut(parts, [480] + [1] * operator.block):
        _, state = operator.step(*part, state)
        sizes.append(state.recent.shape[2] + n_readers * state.far.shape[2])
    assert np.mean(sizes[1:]) == pytest.approx(held, abs=1)


def test_fits_leave_padding_out():
    q, k, _ = inputs(40)
    hidden = np.zeros((2, 40), bool)
    hidden[1] = True
    operator = small(True).fit(q, k, key_padding_mask=hidden)
    assert_allclose(operator.mean_queries_, q[0].mean(axis=1))
    known = operator.mean_queries_.copy()
    with pytest.raises(ValueError, match="must leave a key in every head"):
        operator.fit(q, k, key_padding_mask=np.ones((2, 40), bool))
    assert_array_equal(operator.mean_queries_, known)


def test_the_first_keys_are_heavy():
    """Whatever the mean query says: language models put much weight on them."""
    q, k, v = inputs(150)
    k[:, :, :4] = -5 * q[:, :, :60].mean(axis=2, keepdims=True)  # the smallest scores
    matrix = small(True).attention_matrix(q, k)
    expected = np.exp(q[:, :, 120:] @ k[:, :, :4].swapaxes(-1, -2) / np.sqrt(5))
    own = np.exp(np.sum(q[:, :, 120:] * k[:, :, 120:], axis=-1) / np.sqrt(5))
    rows = np.arange(120, 150)
    given_own = matrix[:, :, rows, rows]
    assert_allclose(matrix[:, :, 120:, :4] / given_own[..., None], expected / own[..., None])
