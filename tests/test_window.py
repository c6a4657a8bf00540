"""Attention to the first keys and the last ones, against its definition."""

import numpy as np
import pytest

from skrf.attention import (
    WindowAttention,
    compare_attention,
    exact_attention,
    merge_attention,
)

LENGTH = 303  # more than two blocks


def draw(*leading, n=LENGTH, n_heads=2, n_key_heads=2, seed=0):
    """Return queries, keys and values."""
    rng = np.random.default_rng(seed)
    heads = n_heads, n_key_heads, n_key_heads
    return [
        rng.normal(size=(*leading, h, n, width)) for h, width in zip(heads, (6, 6, 3), strict=True)
    ]


def mask_of(n, size, n_first):
    """Return which keys positions see."""
    i, j = np.ogrid[:n, :n]
    return (j <= i) & ((i - j < size) | (j < n_first))


@pytest.mark.parametrize("n_first", [0, 1, 4])
@pytest.mark.parametrize("size", [1, 2, 30, 128, 400])
def test_is_exact_attention_under_its_mask(size, n_first):
    q, k, v = draw(2, n_heads=4)
    mask = mask_of(LENGTH, size, n_first)
    out, lse = WindowAttention(size, n_first, scale=0.7)(q, k, v, return_lse=True)
    exact = exact_attention(q, k, v, mask=mask, scale=0.7, return_lse=True)
    np.testing.assert_allclose(out, exact[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse, exact[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("sizes", [[1] * LENGTH, [LENGTH], [5, 200, 1, 97], [128, 128, 47]])
def test_steps_are_a_call(sizes):
    attention, (q, k, v) = WindowAttention(20, 3), draw(2, n_heads=4)
    whole, whole_lse = attention(q, k, v, return_lse=True)
    state, start, results = attention.init_state(), 0, []
    for n in sizes:
        parts = (array[..., start : start + n, :] for array in (q, k, v))
        *result, state = attention.step(*parts, state, return_lse=True)
        results.append(result)
        start += n
        assert state.rows.shape[-2] <= 20 + 3 + 128
    out, lse = zip(*results, strict=True)
    np.testing.assert_allclose(np.concatenate(out, axis=-2), whole, rtol=0, atol=1e-14)
    np.testing.assert_allclose(np.concatenate(lse, axis=-1), whole_lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("in_steps", [False, True])
def test_padding_is_as_if_it_were_not_there(in_steps):
    attention, (q, k, v) = WindowAttention(17, 3), draw(3)
    hidden = np.random.default_rng(1).random((3, LENGTH)) < 0.3
    hidden[0, :90], hidden[1, :3] = True, False
    k[0, :, 5], v[0, :, 5] = np.nan, np.inf  # what padding holds is never read
    if in_steps:
        state, parts = attention.init_state(), []
        for t in range(LENGTH):
            here = slice(t, t + 1)
            inputs = q[:, :, here], k[:, :, here], v[:, :, here]
            out, state = attention.step(*inputs, state, key_padding_mask=hidden[:, here])
            parts.append(out)
        out = np.concatenate(parts, axis=-2)
    else:
        out = attention(q, k, v, key_padding_mask=hidden)
    for i, is_padding in enumerate(hidden):
        alone = attention(*(x[i][:, ~is_padding] for x in (q, k, v)))
        np.testing.assert_allclose(out[i][:, ~is_padding], alone, rtol=0, atol=1e-13)
    assert (out[0, :, :90] == 0).all()
    # A padded query reads the keys before it.
    at = np.flatnonzero(hidden[1])[-1]
    real = np.flatnonzero(~hidden[1, :at])
    seen = np.unique([*real[:3], *real[-17:]])
    expected = exact_attention(q[1, :, [at]].swapaxes(0, 1), k[1][:, seen], v[1][:, seen])
    np.testing.assert_allclose(out[1, :, [at]].swapaxes(0, 1), expected, rtol=0, atol=1e-13)


def test_fewer_queries_than_keys_are_the_last():
    attention, (q, k, v) = WindowAttention(20), draw()
    for n in (1, 64, 150, 302):
        out = attention(q[:, -n:], k, v)
        np.testing.assert_allclose(out, attention(q, k, v)[:, -n:], rtol=0, atol=1e-14)


def test_attention_to_other_keys_merges_with_it():
    attention, (q, k, v) = WindowAttention(20, 4), draw()
    near = attention(q, k, v, return_lse=True)
    i, j = np.ogrid[:LENGTH, :LENGTH]
    far = (j <= i) & ~mask_of(LENGTH, 20, 4)
    far = exact_attention(q, k, v, mask=far, return_lse=True)
    out, _ = merge_attention(*zip(near, far, strict=True))
    np.testing.assert_allclose(out, exact_attention(q, k, v, causal=True), rtol=0, atol=1e-13)


def test_states_of_entries_are_those_of_their_texts():
    attention, (q, k, v) = WindowAttention(9), draw(3)
    *_, state = attention.step(*(x[:, :, :-1] for x in (q, k, v)), attention.init_state())
    chosen = [2, 2, 0]
    last = (x[chosen][:, :, -1:] for x in (q, k, v))
    out, _ = attention.step(*last, state.select(chosen))
    np.testing.assert_allclose(out, attention(q, k, v)[chosen][:, :, -1:], rtol=0, atol=1e-14)
    assert attention.init_state().select([0]).rows is None
    _, state = attention.step(*(x[0, 0] for x in (q, k, v)), attention.init_state())
    with pytest.raises(ValueError, match="select needs a batch"):
        state.select([0])


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_float32_is_near_float64(scale):
    attention, inputs = WindowAttention(20, scale=scale), draw()
    single = attention(*(x.astype(np.float32) for x in inputs))
    assert single.dtype == np.float32
    double = attention(*(x.astype(np.float32).astype(np.float64) for x in inputs))
    np.testing.assert_allclose(single, double, rtol=0, atol=1e-5)


def test_torch_differentiates_calls_and_steps():
    torch = pytest.importorskip("torch")
    attention, arrays = WindowAttention(20, 3), draw(2, n_heads=4)
    whole = attention(*arrays)
    inputs = [torch.tensor(x, requires_grad=True) for x in arrays]
    state, parts = attention.init_state(), []
    for start in range(0, LENGTH, 50):
        block = (x[:, :, start : start + 50] for x in inputs)
        out, state = attention.step(*block, state)
        parts.append(out)
    out = torch.cat(parts, dim=-2)
    np.testing.assert_allclose(out.numpy(force=True), whole, rtol=0, atol=1e-13)
    weights = torch.tensor(np.random.default_rng(1).normal(size=out.shape))
    mask = torch.tensor(mask_of(LENGTH, 20, 3))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    exact = sdpa(*inputs, attn_mask=mask, enable_gqa=True)
    expected = torch.autograd.grad((exact * weights).sum(), inputs)
    for result in (out, attention(*inputs)):
        for one, other in zip(
            torch.autograd.grad((result * weights).sum(), inputs), expected, strict=True
        ):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_is_wrong_is_named():
    q, k, v = draw()
    for params, message in (
        ({"size": 0}, "size must be"),
        ({"size": 5, "n_first": -1}, "n_first must be"),
        ({"size": 5, "scale": 0.0}, "scale must be"),
    ):
        with pytest.raises(ValueError, match=message):
            WindowAttention(**params)(q, k, v)
    attention = WindowAttention(5)
    with pytest.raises(TypeError, match="state must come from init_state"):
        attention.step(q, k, v, None)
    _, state = attention.step(q, k, v, attention.init_state())
    with pytest.raises(ValueError, match="state must come from earlier positions"):
        attention.step(q[:1], k[:1], v[:1], state)
    for operator in (WindowAttention(6), WindowAttention(5, 3)):
        with pytest.raises(ValueError, match="state must come from an operator that keeps"):
            operator.step(q, k, v, state)
    joined = np.concatenate([k, v], axis=-1)
    other = joined[..., :1], joined[..., 1:]  # as wide together, and cut elsewhere
    with pytest.raises(ValueError, match="width of keys are"):
        attention.step(q[..., :1], *other, state)
    with pytest.raises(ValueError, match="return_lse must be"):
        attention(q, k, v, return_lse=1)
    with pytest.raises(TypeError, match="window"):
        WindowAttention(window=3)


def test_is_compared_as_causal():
    table = compare_attention(*draw(), {"window": WindowAttention(150)})
    assert [row.name for row in table] == ["exact", "window", "mean of the values"]
