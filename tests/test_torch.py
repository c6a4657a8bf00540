"""`RandomFeatureAttention`, the module of torch, against the operator and exact attention."""

import copy
import io
import pickle
from functools import partial

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PoissonRF,
    PositiveRF,
)
from skrf.attention import ApproxKernelAttention, GeneralizedMap, ToeplitzMask
from skrf.features import record_of, restored

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402 (needs torch)

from skrf.torch import RandomFeatureAttention  # noqa: E402 (needs torch)

pytestmark = pytest.mark.filterwarnings("ignore:Random features have collapsed")

ATTENTIONS = {
    "default": {},
    "causal": {"is_causal": True},
    "balanced": {"feature_map": DenseExponentialRF(32, asymmetric=True)},
    "signed": {"feature_map": GeneralizedMap(32)},
    "hyperbolic": {"feature_map": PositiveRF(32, variant="hyperbolic")},
    "poisson": {"feature_map": PoissonRF(32, positive=True)},
}
every_attention = pytest.mark.parametrize("name", ATTENTIONS)


def inputs(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(3, *(shape or (2, 4, 80, 8)), generator=generator, dtype=torch.float64)
    return [array.to(dtype) for array in parts / 2]


def made(name, seed=0, **params):
    return RandomFeatureAttention(**{**ATTENTIONS[name], "random_state": seed, **params})


def sent(state):
    """Return a state_dict that went through a file, from which no code was run."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ------------------------------------------------------------------ values


@every_attention
def test_a_module_is_the_operator(name):
    q, k, v = inputs()
    attend = made(name)
    params = {parameter.replace("is_", ""): value for parameter, value in ATTENTIONS[name].items()}
    operator = ApproxKernelAttention(**params).redraw(attend.seed)
    torch.testing.assert_close(attend(q, k, v), operator(q, k, v))
    padding = torch.arange(80) >= torch.tensor([[70], [80]])
    expected = operator(q, k, v, key_padding_mask=padding)
    torch.testing.assert_close(attend(q, k, v, key_padding_mask=padding), expected)
    operator.fit(q, k, key_padding_mask=padding)
    attend.fit(q, k, v, key_padding_mask=padding)
    torch.testing.assert_close(attend(q, k, v), operator(q, k, v))


@pytest.mark.parametrize("name", ["default", "causal", "balanced"])
def test_short_floats_round_the_result_alone(name):
    for dtype in (torch.float16, torch.bfloat16):
        parts = inputs(dtype=dtype)
        single = [array.float() for array in parts]
        attend = made(name).fit(*parts)
        result, expected = attend(*parts), attend(*single)
        assert result.dtype == dtype
        bound = 4 * torch.finfo(dtype).eps * expected.abs() + torch.finfo(dtype).tiny
        assert ((result.float() - expected).abs() <= bound).all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attend(*single), expected)


def test_masks_of_the_last_queries_are_the_last_rows_of_a_mask():
    q, k, v = inputs(2, 4, 30, 8, dtype=torch.float64)
    added = torch.randn(30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attend = RandomFeatureAttention(random_state=0, is_causal=True)
    last = attend(q[:, :, -7:], k, v, added[-7:])
    torch.testing.assert_close(last, attend(q, k, v, added)[:, :, -7:])


def test_arguments_mean_what_they_mean_to_torch():
    q, k, v = inputs(2, 4, 30, 8, dtype=torch.float64)
    attend, causal = (
        RandomFeatureAttention(random_state=0, is_causal=is_causal) for is_causal in (False, True)
    )
    is_key = torch.arange(30) < torch.tensor([[20], [30]])
    padded = attend(q, k, v, key_padding_mask=~is_key)
    for attn_mask in (is_key, is_key[:, None, None, :]):
        assert torch.equal(attend(q, k, v, attn_mask), padded)
    # Of pairs: weights times exp(attn_mask), as in the operator with a mask.
    added = torch.randn(30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    operator = ApproxKernelAttention(mask=added.exp()).redraw(attend.seed)
    for attn_mask in (added, added[None, None]):
        torch.testing.assert_close(attend(q, k, v, attn_mask), operator(q, k, v))
    # A constant of every row changes nothing, however large it is.
    for constant, attn_mask in ((-900.0, added), (900.0, added), (-200.0, added.float())):
        torch.testing.assert_close(
            attend(q, k, v, attn_mask + constant), attend(q, k, v, added), rtol=1e-4, atol=1e-4
        )
    hidden = torch.where(is_key, 0.0, torch.finfo(torch.float32).min)[:, None, None]
    assert torch.equal(attend(q, k, v, hidden), padded)  # as transformers pass it
    lower = torch.ones(30, 30, dtype=torch.bool).tril()
    torch.testing.assert_close(causal(q, k, v, lower), causal(q, k, v))
    # Fewer causal queries than keys are the last positions.
    for rows in (slice(29, None), slice(12, None)):
        last = causal(q[:, :, rows], k, v)
        torch.testing.assert_close(last, causal(q, k, v)[:, :, rows])
        torch.testing.assert_close(causal(q[:, :, rows], k, v, lower[rows]), last)
    # Inputs of one head, a scale of the call, and grouped heads.
    one_head = attend(q[:, 0], k[:, 0], v[:, 0])
    assert torch.equal(one_head, attend(q[:, :1], k[:, :1], v[:, :1])[:, 0])
    wide = RandomFeatureAttention(is_causal=True, scale=0.5, random_state=0)
    torch.testing.assert_close(causal(q, k, v, scale=0.5), wide(q, k, v))
    grouped = causal(q, k[:, :2], v[:, :2], enable_gqa=True)
    torch.testing.assert_close(grouped, causal(q, *(x[:, [0, 0, 1, 1]] for x in (k, v))))
    # Each entry of the values is 0 or 4 with a chance of a quarter, so the mean is 1.
    torch.manual_seed(0)
    ones = torch.ones_like(v)
    means = torch.stack([attend(q, k, ones, dropout_p=0.75).mean() for _ in range(40)])
    assert abs(means.mean() - 1) < 4 * means.std() / 40**0.5 < 0.05
    assert torch.equal(attend(q, k, ones), attend(q, k, ones, dropout_p=0.0))


@pytest.mark.filterwarnings("error")
def test_missing_queries_are_not_counted_as_lost():
    q, k, v = inputs(1, 2, 60, 8)
    relu = RandomFeatureAttention(GeneralizedMap(64), is_causal=True, random_state=0)
    relu(8 * q[:, :, -2:], 8 * k, v)


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["default", "balanced", "signed", "hyperbolic"])
def test_gradients_are_differences(name, is_causal):
    parts = inputs(1, 2, 150, 3, dtype=torch.float64)  # three parts of a triangular product
    attend = made(name, is_causal=is_causal).fit(*parts)
    for array in parts:
        array.requires_grad_()
    assert torch.autograd.gradcheck(attend, parts, fast_mode=True)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_of_blocks_are_joined_once(is_causal):
    """The gradient of a slice is as long as the whole: one for every block is quadratic."""

    def n_slices(n_blocks):
        parts = [part.requires_grad_() for part in inputs(1, 1, 1024 * n_blocks, 3)]
        waiting, nodes = [made("default", is_causal=is_causal)(*parts).grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                waiting += [following for following, _ in node.next_functions]
        # Those of columns, of which a block has a few, are no longer than it.
        rows = [node for node in nodes if node.name() == "SliceBackward0"]
        return sum(node._saved_self_sym_sizes[-2] > 1024 for node in rows)

    assert n_slices(3) == n_slices(2)


class Decay(torch.nn.Module):
    """Weights exp(-rate |offset|)."""

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self):
        return ToeplitzMask(torch.exp(-self.rate * torch.arange(-5, 6).abs()))


def test_a_mask_may_be_a_module():
    parts = inputs(1, 2, 6, 3, dtype=torch.float64)
    attend = RandomFeatureAttention(mask=Decay(), random_state=0)
    assert set(dict(attend.named_parameters())) == {"mask.rate"}
    before = attend(*parts)
    before.sum().backward()
    rate = attend.mask.rate
    step = 1e-6
    with torch.no_grad():
        rate += step
        change = (attend(*parts) - before).sum() / step
    assert float(rate.grad) == pytest.approx(float(change), rel=1e-4)
    # No graph of a call is kept: torch refuses to copy one.
    assert torch.equal(copy.deepcopy(attend)(*parts), attend(*parts))
    other = RandomFeatureAttention(mask=Decay(), random_state=1)
    other.load_state_dict(sent(attend.state_dict()))
    assert torch.equal(other(*parts), attend(*parts))


def test_masks_have_the_parameters_of_the_module():
    parts = inputs(1, 2, 6, 3)
    one, two = (
        RandomFeatureAttention(mask=ToeplitzMask(weights), is_causal=True, random_state=0)
        for weights in torch.rand(2, 11, generator=torch.Generator().manual_seed(0)).unbind()
    )
    for attend in one, two:
        assert not dict(attend.named_parameters())
        attend.mask = ToeplitzMask(torch.nn.Parameter(attend.mask.weights))
        assert list(dict(attend.named_parameters())) == ["mask_weights"]
    expected = one(*parts)
    weights = {"mask_weights": one.mask_weights}
    assert torch.equal(torch.func.functional_call(two, weights, tuple(parts)), expected)
    assert not torch.equal(two(*parts), expected)
    two.load_state_dict(one.state_dict(), assign=True)
    assert torch.equal(two(*parts), expected)
    two(*parts).sum().backward()
    assert two.mask_weights.grad.any()
    two.mask = None
    assert not dict(two.named_parameters())


def test_functions_that_are_modules_are_part_of_the_module():
    parts = inputs(1, 2, 6, 3)
    torch.manual_seed(0)

    def network():
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softplus())

    one, two = (
        RandomFeatureAttention(GeneralizedMap(functions=(network(), network())), random_state=0)
        for _ in range(2)
    )
    assert len(list(one.parameters())) == 4
    two.load_state_dict(sent(one.state_dict()))
    assert torch.equal(two(*parts), one(*parts))
    two.double()(*inputs(1, 2, 6, 3, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad.any() for parameter in two.parameters())


def test_calls_at_the_same_time_have_their_own_mask():
    parts, others = inputs(1, 2, 6, 3), []

    def interrupted(X):
        """Begin and end another call, as another thread may."""
        if not others:
            others.append(None)
            others.append(attend(*parts))
        return X

    feature_map = make_pipeline(FunctionTransformer(interrupted), OptimalPositiveRF(8))
    attend = RandomFeatureAttention(feature_map, mask=torch.rand(6, 6), random_state=0)
    result, expected = attend(*parts), attend(*parts)
    assert torch.equal(result, expected)
    assert torch.equal(others[1], expected)
    attend.mask = None
    assert not torch.equal(attend(*parts), expected)


@pytest.mark.parametrize(
    ("name", "value"), [("scale", 2.0), ("feature_map", OptimalPositiveRF(8))], ids=str
)
def test_attributes_may_change_before_a_fit(name, value):
    parts = inputs()
    attend = RandomFeatureAttention(random_state=0)
    before = attend(*parts)
    setattr(attend, name, value)
    expected = RandomFeatureAttention(random_state=0, **{name: value})(*parts)
    assert torch.equal(attend(*parts), expected)
    assert not torch.equal(expected, before)
    attend = RandomFeatureAttention(random_state=0).fit(*parts)
    setattr(attend, name, value)
    with pytest.raises(ValueError, match="has changed after fit"):
        attend(*parts)


# ------------------------------------------------------------------ training


def test_dropout_takes_entries_of_values_while_training():
    q, k, v = inputs(8, 4, 200, 8)
    ones = torch.ones_like(v)
    attend = RandomFeatureAttention(dropout=0.25, scale=1e-6)
    # All weights are equal: an output is the share of entries that are kept, over 0.75.
    torch.manual_seed(0)
    result = attend(q, k, ones)
    shares = result[:, :, 0].double()
    assert (result - result[:, :, :1]).abs().max() < 1e-4
    # 51,200 entries, of a standard deviation of sqrt(1/3): the standard error is 0.0026.
    assert float(shares.mean()) == pytest.approx(1, abs=4.4 * 0.0026)
    assert float(shares.var()) == pytest.approx(1 / 3 / 200, rel=0.4)
    torch.testing.assert_close(attend.eval()(q, k, ones), ones)


class Layer(torch.nn.Module):
    """A layer that calls its attention twice."""

    def __init__(self, **params):
        super().__init__()
        self.project = torch.nn.Linear(6, 18, dtype=torch.float64)
        self.attend = RandomFeatureAttention(OptimalPositiveRF(8), dropout=0.2, **params)

    def forward(self, X):
        for _ in range(2):
            parts = self.project(X).unflatten(-1, (3, 2, 3)).movedim(-3, 0).transpose(-2, -3)
            X = X + self.attend(*parts).transpose(-2, -3).flatten(-2)
        return X


def nested(layer, X):
    """Return what a layer does, checkpointed twice."""
    inner = partial(checkpoint, layer, use_reentrant=False)
    return checkpoint(inner, X, use_reentrant=False)


CHECKPOINTS = {
    "reentrant": partial(checkpoint, use_reentrant=True),
    "not reentrant": partial(checkpoint, use_reentrant=False),
    "nested": nested,
}


@pytest.mark.parametrize(("is_fitted", "is_causal"), [(False, True), (True, False)])
def test_checkpointing_changes_nothing(is_fitted, is_causal):
    def gradient(call):
        torch.manual_seed(0)
        layer = Layer(random_state=0, is_causal=is_causal)
        if is_fitted:
            layer.attend.fit(*inputs(2, 2, 20, 3, dtype=torch.float64))
        X = torch.randn(2, 20, 6, dtype=torch.float64).requires_grad_()
        first, _, last = (call(layer, X) for _ in range(3))
        number = torch.rand(())
        before = copy.deepcopy(layer.attend.state_dict())
        (first + last).square().sum().backward()
        after = layer.attend.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in before)
        return X.grad, layer.project.weight.grad, number

    expected = gradient(lambda layer, X: layer(X))
    for call in CHECKPOINTS.values():
        torch.testing.assert_close(gradient(call), expected, rtol=1e-12, atol=1e-14)


def test_statistics_stay_in_redraws():
    attend = made("default").fit(*inputs())
    before = copy.deepcopy(attend.state_dict())
    attend.redraw()
    after = attend.state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["record/seed"] and set(before) == set(after)
    assert attend.redraw(3).seed == RandomFeatureAttention(random_state=3).seed


# ------------------------------------------------------------------ state


@every_attention
@pytest.mark.parametrize(("is_fitted", "n_redraws"), [(False, 2), (True, 0), (True, 2)])
def test_a_state_round_trips_exactly(name, is_fitted, n_redraws):
    """Through a file, and of modules inside others."""
    parts = inputs(1, 4, 20, 8)
    attend, other = made(name), made(name, seed=1).fit(*inputs(1, 4, 20, 8, seed=1))
    if is_fitted:
        attend.fit(*parts)
    for _ in range(n_redraws):
        attend.redraw()
    state = sent(torch.nn.ModuleDict({"inner": attend}).state_dict())
    for fresh in other, made(name, seed=2):
        outer = torch.nn.ModuleDict({"inner": fresh})
        assert str(outer.load_state_dict(state)) == "<All keys matched successfully>"
        assert torch.equal(fresh(*parts), attend(*parts))
        again = outer.state_dict()
        assert list(again) == list(state)
        assert all(torch.equal(again[entry], state[entry]) for entry in state)
        assert torch.equal(fresh.redraw()(*parts), copy.deepcopy(attend).redraw()(*parts))
    with pytest.raises(RuntimeError, match="Missing key.*record/seed"):
        outer.load_state_dict({"inner.record/other": torch.tensor(0)})
    # Checkpoints of exact attention have no record: the module keeps its own.
    before = outer["inner"](*parts)
    assert str(outer.load_state_dict({})) == "<All keys matched successfully>"
    assert torch.equal(outer["inner"](*parts), before)


def test_both_directions_are_fitted_apart():
    q, k, v = inputs()
    attend, other = (made("default", seed) for seed in (0, 1))
    before = attend(q, k, v)
    attend.fit(q, k, v, is_causal=True)
    assert torch.equal(attend(q, k, v), before)
    attend.fit(2 * q, k, v)
    other.load_state_dict(attend.state_dict())
    for is_causal in (False, True):
        outputs = [module(q, k, v, is_causal=is_causal) for module in (attend, other)]
        assert torch.equal(*outputs)


@pytest.mark.parametrize("name", ["default", "balanced", "poisson"])
def test_copies_pickles_and_casts_have_the_same_outputs(name):
    parts = inputs()
    attend = made(name).fit(*parts)
    expected = attend(*parts)
    copies = [copy.deepcopy(attend), pickle.loads(pickle.dumps(attend))]
    copies.append(copy.deepcopy(attend).half().float())
    for other in copies:
        assert torch.equal(other(*parts), expected)
    copies[0].redraw()
    assert torch.equal(attend(*parts), expected)


def test_a_record_makes_the_feature_map_again():
    X, Y = np.random.default_rng(0).normal(size=(2, 40, 6))
    for feature_map in (
        OptimalPositiveRF(16, kernel="softmax", random_state=0),
        DenseExponentialRF(16, asymmetric=True, kernel="softmax", random_state=0),
        HybridRF(80, base=(DenseExponentialRF(), "positive", "trigonometric"), random_state=0),
    ):
        for keys, more in ((2 * Y + 1, X), (None, None)):
            fitted = copy.copy(feature_map).fit(X, keys=keys)
            for source in (feature_map, copy.copy(feature_map).fit(Y)):
                again = restored(source, record_of(fitted))
                np.testing.assert_array_equal(again.transform_keys(Y), fitted.transform_keys(Y))
                both = [
                    copy.copy(features).partial_fit(Y, keys=more) for features in (again, fitted)
                ]
                np.testing.assert_array_equal(*(features.transform(X) for features in both))


# ------------------------------------------------------------------ compiled


# Both by the compiler itself.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_compiled_module_is_the_eager_one():
    """With the backend that only traces: graphs do not include calls, so none compiles ours."""
    q, k, v = inputs()
    q.requires_grad_()
    attend = made("causal")
    compiled = torch.compile(copy.deepcopy(attend), backend="eager")
    for _ in range(3):
        result, expected = compiled(q, k, v), attend(q, k, v)
        assert torch.equal(result, expected)
        grads = [torch.autograd.grad(out.square().sum(), q)[0] for out in (result, expected)]
        assert torch.equal(*grads)

    def around(q):
        return 2 * attend(q + 1, k, v) + v

    attend.eval()
    torch.testing.assert_close(torch.compile(around, backend="eager")(q), around(q))


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "params",
    [
        {"is_causal": 1},
        {"dropout": 1.0},
        {"dropout": None},
        {"random_state": "a"},
    ],
    ids=str,
)
def test_wrong_parameters_are_named(params):
    ((name, value),) = params.items()
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        RandomFeatureAttention(**params)


def test_wrong_arguments_are_named():
    q, k, v = inputs()
    attend = RandomFeatureAttention(random_state=0)
    with pytest.raises(TypeError, match="key must be a torch.Tensor, got ndarray"):
        attend(q, k.numpy(), v)
    with pytest.raises(ValueError, match=r"query must have the shape .*, got \(80, 8\)"):
        attend(q[0, 0], k, v)
    with pytest.raises(ValueError, match=r"value must have .*, got \(4, 80, 8\)"):
        attend(q, k, v[0])
    with pytest.raises(ValueError, match="query has 4 heads and key 2: pass enable_gqa=True"):
        attend(q, k[:, :2], v[:, :2], enable_gqa=False)
    with pytest.raises(ValueError, match="scale must be a finite number > 0 or None, got -1"):
        attend(q, k, v, scale=-1)
    with pytest.raises(ValueError, match=r"attn_mask has the shape \(2, 4, 80, 80\); sums"):
        attend(q, k, v, torch.ones(2, 4, 80, 80, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"(?s)attn_mask of shape \(2, 80\) must be of bool.* 1"):
        attend(q, k, v, torch.ones(2, 80))
    with pytest.raises(TypeError, match="attn_mask must be of bool or floats, got torch.int64"):
        attend(q, k, v, torch.ones(80, 80, dtype=torch.int64))
    with pytest.raises(ValueError, match="dropout_p must be a number from 0 to less than 1, got 2"):
        attend(q, k, v, dropout_p=2)
    with pytest.raises(ValueError, match=r"attn_mask of shape \(2, 80\) could be"):
        attend(q[:, :, :2], k, v, torch.ones(2, 80, dtype=torch.bool))
    with pytest.raises(TypeError, match="attn_mask must be a torch.Tensor, got bool"):
        attend(q, k, v, True)
    with pytest.raises(ValueError, match="needs a module whose mask is None"):
        masked = RandomFeatureAttention(mask=torch.ones(80, 80))
        masked(q, k, v, torch.ones(80, 80, dtype=torch.bool))
    with pytest.raises(ValueError, match="is_causal must be True, False or None, got 'yes'"):
        attend(q, k, v, is_causal="yes")
    with pytest.raises(ValueError, match="(?s)AdaptiveRF.* learns mixture"):
        RandomFeatureAttention(AdaptiveRF(32)).fit(q, k, v)
    with pytest.raises(ValueError, match="is none of skrf's"):
        record_of(object())


def test_without_a_seed_torch_gives_one():
    seeds = []
    for number in (3, 3, 4):
        torch.manual_seed(number)
        seeds.append(RandomFeatureAttention().seed)
    assert seeds[0] == seeds[1] != seeds[2]
    given = OptimalPositiveRF(8, random_state=5)
    one, two = (RandomFeatureAttention(given).seed for _ in range(2))
    assert one == two != RandomFeatureAttention(given, random_state=6).seed
