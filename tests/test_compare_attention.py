"""The table of operators: errors against exact attention, beside the mean of the values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skrf import OptimalPositiveRF
from skrf.attention import ApproxKernelAttention, compare_attention, exact_attention


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
    table = compare_attention(q, k, v, operators, causal=causal, scale=0.3, **options)
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
