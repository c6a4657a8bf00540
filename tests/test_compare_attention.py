"""The table of operators: errors against exact attention, beside the mean of the values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skrf import OptimalPositiveRF
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    ToeplitzMask,
    WindowAttention,
    compare_attention,
    exact_attention,
)


@pytest.mark.filterwarnings("ignore:Random features have collapsed")
@pytest.mark.parametrize(("causal", "padded"), [(False, True), (True, False)])
def test_errors_are_those_of_exact_attention(causal, padded):
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4, 60, 5)) / 2
    hidden = np.arange(60) >= 50
    options = {"key_padding_mask": hidden} if padded else {}
    operators = {
        n: ApproxKernelAttention(OptimalPositiveRF(n), causal=causal, scale=0.3, random_state=0)
        for n in (8, 512)
    }
    table = compare_attention(q, k, v, operators, **options)
    errors = {row.name: row.error for row in table}
    assert list(errors)[0] == "exact" and errors["exact"] == 0
    assert list(errors.values()) == sorted(errors.values())
    right = exact_attention(q, k, v, causal=causal, scale=0.3, **options)
    size = np.linalg.norm(right)
    for n, operator in operators.items():
        error = np.linalg.norm(operator(q, k, v, **options) - right) / size
        assert_allclose(errors[n], error, rtol=1e-12)
    seen = np.tril(np.ones((60, 60))) if causal else np.ones((60, 60))
    seen = seen * ~hidden if padded else seen
    mean = seen / seen.sum(axis=1, keepdims=True) @ v
    assert_allclose(errors["mean of the values"], np.linalg.norm(mean - right) / size, rtol=1e-9)
    assert errors[512] < errors["mean of the values"] / 2
    assert all(row.seconds > 0 for row in table) and "seconds" in repr(table)


def test_other_libraries(library):
    arrays = [library.array(array) for array in np.random.default_rng(0).normal(size=(3, 20, 4))]
    table = compare_attention(*arrays, {"ours": ApproxKernelAttention(random_state=0)})
    assert [row.name for row in table] == ["exact", "ours", "mean of the values"]


def test_what_is_no_operator_is_refused():
    q = np.ones((3, 2))
    for operators in (None, [exact_attention], {"ours": OptimalPositiveRF()}):
        with pytest.raises(TypeError, match="operators must be a dict of str to callable, got"):
            compare_attention(q, q, q, operators)


DECAY = ToeplitzMask.decay(0.1)


def error_of(q, k, v, operator, **settings):
    right = exact_attention(q, k, v, **settings)
    return np.linalg.norm(operator(q, k, v) - right) / np.linalg.norm(right)


@pytest.mark.parametrize(
    ("operator", "settings"),
    [
        (WindowAttention(9), {"causal": True}),
        (ApproxKernelAttention(scale=1.0, random_state=0), {"scale": 1.0}),
        (ApproxKernelAttention(mask=np.tri(60), random_state=0), {"mask": np.tri(60)}),
        (ApproxKernelAttention(causal=True, mask=DECAY), {"causal": True, "mask": DECAY}),
        (lambda q, k, v: exact_attention(q, k, v), {}),
    ],
)
def test_settings_are_those_of_the_operators(operator, settings):
    parts = np.random.default_rng(0).normal(size=(3, 2, 60, 5))

    def plain(q, k, v):
        return exact_attention(q, k, v, **settings)

    table = compare_attention(*parts, {"plain": plain, "one": operator})
    errors = {row.name: row.error for row in table}
    assert errors["plain"] == 0
    assert_allclose(errors["one"], error_of(*parts, operator, **settings), atol=1e-12)
    mean = error_of(0 * parts[0], *parts[1:], operator=lambda q, k, v: plain(*parts), **settings)
    right = np.linalg.norm(plain(*parts))
    size = np.linalg.norm(exact_attention(0 * parts[0], *parts[1:], **settings))
    assert_allclose(errors["mean of the values"], mean * size / right, atol=1e-12)


def test_settings_of_modules():
    torch = pytest.importorskip("torch")
    from skrf.torch import RandomFeatureAttention

    parts = torch.randn(3, 1, 2, 60, 5, generator=torch.Generator().manual_seed(0))
    rate = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64))
    operators = {
        "function": RandomFeatureAttention(is_causal=True, mask=lambda: DECAY, random_state=0),
        "parameter": RandomFeatureAttention(
            is_causal=True, mask=ToeplitzMask.decay(rate), random_state=0
        ),
        "operator": ApproxKernelAttention(causal=True, mask=ToeplitzMask.decay(0.1)),
    }
    errors = {row.name: row.error for row in compare_attention(*parts, operators)}
    assert_allclose(errors["function"], errors["parameter"], rtol=1e-4)


@pytest.mark.parametrize(
    ("operators", "arguments", "words"),
    [
        (
            {"a": ApproxKernelAttention(causal=True), "b": ApproxKernelAttention()},
            {},
            "causal is True .* 'a' and",
        ),
        (
            {"a": ApproxKernelAttention(scale=2.0), "b": ApproxKernelAttention()},
            {},
            "scale is 2.0 .* 0.5 in",
        ),
        (
            {"a": ApproxKernelAttention()},
            {"causal": True},
            "True in the argument and False in operator 'a'",
        ),
        ({"a": ApproxKernelAttention()}, {"scale": 1.0}, "scale is 1.0 in the argument and 0.5"),
        (
            {"a": ApproxKernelAttention()},
            {"mask": np.ones((9, 9))},
            "mask is .* the argument and None",
        ),
        (
            {
                f"{r}": ApproxKernelAttention(causal=True, mask=ToeplitzMask.decay(r))
                for r in (0.1, 0.2)
            },
            {},
            "mask is ToeplitzMask.decay.0.1. .* and ToeplitzMask.decay.0.2.",
        ),
        ({"a": ApproxKernelAttention()}, {"causal": 1}, "causal must be True or False"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(operators, arguments, words):
    parts = np.random.default_rng(0).normal(size=(3, 9, 4))
    with pytest.raises(ValueError, match=words):
        compare_attention(*parts, operators, **arguments)


def test_equal_settings_may_be_written_in_two_ways():
    parts = np.random.default_rng(0).normal(size=(3, 9, 4))
    masks = [ToeplitzMask.decay(rate) for rate in (0.1, np.array(0.1))]
    operators = {
        f"{i}": ApproxKernelAttention(causal=True, mask=mask, random_state=0)
        for i, mask in enumerate(masks)
    }
    operators["scaled"] = ApproxKernelAttention(
        causal=True, mask=masks[0], scale=0.5, random_state=0
    )
    table = compare_attention(*parts, operators, causal=True, scale=1 / 2, mask=masks[1])
    assert len({row.error for row in table if row.name in ("0", "1", "scaled")}) == 1


def test_generalised_attention_is_said_not_to_be_softmax():
    parts = np.random.default_rng(0).normal(size=(3, 9, 4))
    operators = {
        "relu": ApproxKernelAttention(GeneralizedMap(64, random_state=0)),
        "default": ApproxKernelAttention(),
    }
    table = compare_attention(*parts, operators)
    assert [row.name for row in table if not row.is_softmax] == ["relu"]
    assert "Not an approximation of softmax attention: 'relu'" in repr(table)
    assert "Not an approximation" not in repr(
        compare_attention(*parts, {"default": ApproxKernelAttention()})
    )
