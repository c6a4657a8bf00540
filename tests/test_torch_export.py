"""Modules that do not read their inputs are exported, compiled, mapped and differentiated."""

import pytest

from skrf import DenseExponentialRF, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.attention import GeneralizedMap, ToeplitzMask

torch = pytest.importorskip("torch")

from skrf.torch import RandomFeatureAttention  # noqa: E402 (needs torch)

pytestmark = pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
MAPS = {
    "optimal": OptimalPositiveRF(16),
    "asymmetric": DenseExponentialRF(16, asymmetric=True),
    "hyperbolic": PositiveRF(16, variant="hyperbolic"),
    "hadamard": OptimalPositiveRF(16, projection="hadamard"),
    "exp": GeneralizedMap(16, nonlinearity="exp"),
}


def draw(n=150, n_key_heads=2, width=16, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, n, width, generator=generator, dtype=torch.float64) / 2
    k, v = torch.randn(2, 2, n_key_heads, n, width, generator=generator, dtype=torch.float64) / 2
    return [part.to(dtype) for part in (q, k, v)]


def module(is_causal, feature_map=MAPS["optimal"], check_values=False, **options):
    return RandomFeatureAttention(
        feature_map, is_causal=is_causal, random_state=0, check_values=check_values, **options
    )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", MAPS)
def test_it_equals_the_module_that_reads_its_inputs(kind, is_causal):
    parts = draw()
    pair = [module(is_causal, MAPS[kind], check) for check in (True, False)]
    if is_causal:
        expected, out = (one(*parts) for one in pair)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    expected, out = (one.fit(*parts)(*parts) for one in pair)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    again = module(is_causal, MAPS[kind])
    again.load_state_dict(pair[1].state_dict())
    torch.testing.assert_close(again(*parts), out, rtol=0, atol=0)
    assert again(*draw(dtype=torch.float32)).dtype == torch.float32


@pytest.mark.parametrize("is_causal", [False, True])
def test_it_is_exported_with_free_lengths(is_causal):
    q, k, v = draw()
    attend = module(is_causal).fit(q, k, v)
    attend(q, k, v)
    length = torch.export.Dim.DYNAMIC
    program = torch.export.export(attend, (q, k, v), dynamic_shapes=({2: length},) * 3).module()
    for n in (150, 2, 77, 400):
        parts = draw(n)
        torch.testing.assert_close(program(*parts), attend(*parts), rtol=0, atol=1e-13)


@pytest.mark.parametrize("is_causal", [False, True])
def test_fitted_modules_have_functional_gradients(is_causal):
    q, k, v = draw(40)
    attend = module(is_causal, check_values=True).fit(q, k, v)
    found, right = (
        torch.func.grad(lambda x, call=call: call(x, k, v).square().sum())(q)
        for call in (attend, module(is_causal).fit(q, k, v))
    )
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("is_causal", [False, True])
def test_torch_maps_and_differentiates_it(is_causal):
    q, k, v = draw(40)
    attend = module(is_causal).fit(q, k, v)
    expected = attend(q, k, v)
    torch.testing.assert_close(torch.vmap(attend, (0, None, None))(q[None], k, v)[0], expected)
    rows = q.clone().requires_grad_()
    (right,) = torch.autograd.grad(attend(rows, k, v).square().sum(), rows)
    found = torch.func.grad(lambda x: attend(x, k, v).square().sum())(q)
    torch.testing.assert_close(found, right)
    meta = attend(*(part.to("meta") for part in (q, k, v)))
    assert meta.shape == expected.shape and meta.device.type == "meta"


def test_it_compiles_without_a_graph_break():
    parts = draw(20)
    attend = module(True)
    expected = attend(*parts)
    torch.compiler.reset()  # lengths of earlier tests would be symbols of this graph, which is slow
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*parts), expected, rtol=0, atol=0)


def test_exponents_may_rise_by_600():
    """Also where the first keys weigh exp(-600) of the last, earlier outputs are right."""
    feature_map = GeneralizedMap(nonlinearity="exp", projection="identity")
    q, k, v = draw(n=400, width=4)
    k[..., 0] += torch.linspace(0, 590, 400, dtype=torch.float64)
    pair = [module(True, feature_map, check, scale=1.0) for check in (True, False)]
    expected, out = (one(q, k, v) for one in pair)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_what_it_cannot_serve_is_named():
    q, k, v = draw()
    for attend, match in (
        (module(True, RFFSampler(16)), "quadratic functions of a row, such as"),
        (module(True, GeneralizedMap(16, nonlinearity="exp", epsilon=0.1)), "quadratic functions"),
        (module(False), "takes statistics from data"),
        (module(True, mask=ToeplitzMask.decay(0.1)), "allows no masks"),
    ):
        with pytest.raises(ValueError, match=match):
            attend(q, k, v)
    attend = module(True)
    with pytest.raises(ValueError, match="as many queries as keys"):
        attend(q[..., 1:, :], k, v)
    with pytest.raises(ValueError, match="Keys have width 4, but the operator was fitted to 16"):
        module(True).fit(q, k, v)(q[..., :4], k[..., :4], v)
    for options in ({"return_lse": True}, {"log_gates": torch.zeros(150)}):
        with pytest.raises(ValueError, match="check_values=False allows no"):
            attend(q, k, v, **options)
    with pytest.raises(RuntimeError, match="call the module once"):
        torch.export.export(attend, (q, k, v))
    with pytest.raises(ValueError, match="check_values must be True or False"):
        module(True, check_values=1)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["features", "unfitted", "signed"])
def test_modules_that_read_their_inputs_name_what_they_cannot_serve(kind):
    q, k, v = parts = draw()
    attend = {
        "features": lambda: module(True, check_values=True),
        "unfitted": lambda: module(False, check_values=True),
        "signed": lambda: module(False, RFFSampler(16), check_values=True).fit(*parts),
    }[kind]()
    for call, what in (
        (lambda: torch.jit.trace(attend, (q, k, v)), "torch.jit.trace"),
        (lambda: torch.export.export(attend, (q, k, v)), "torch.export"),
        (lambda: attend(*(part.to("meta") for part in parts)), "device meta"),
        (lambda: torch.vmap(attend, (0, None, None))(q[None], k, v), "torch.vmap"),
        (lambda: torch.vmap(attend, (None, None, 0))(q, k, v[None]), "torch.vmap"),
        (lambda: torch.func.grad(lambda x: attend(x, k, v).sum())(q), "torch.func.grad"),
        (lambda: torch.func.grad(lambda x: attend(q, k, x).sum())(v), "torch.func.grad"),
    ):
        with pytest.raises(RuntimeError, match=f"cannot serve.*{what}"):
            call()


def test_keys_beyond_the_limit_of_exponents_are_seen_in_the_output():
    parts = draw()
    parts[1][:, :, :100] *= 40
    with torch.no_grad():
        expected, out = (module(True, check_values=check)(*parts) for check in (True, False))
    assert expected.isfinite().all()
    assert not out.isfinite().all()
