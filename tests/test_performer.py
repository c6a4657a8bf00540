"""The Performer: gradients, chunks, and learning."""

import tracemalloc
from math import comb

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse.linalg import aslinearoperator

from skrf import (
    AdaptiveRF,
    DenseExponentialRF,
    HybridRF,
    OptimalPositiveRF,
    PoissonRF,
)
from skrf.attention import (
    ApproxKernelAttention,
    GeneralizedMap,
    NearField,
    Performer,
    ToeplitzMask,
    exact_attention,
)
from skrf.attention._checkpoints import KEPT, in_reverse

TOKENS = np.random.default_rng(0).integers(7, size=(2, 41))
MAPS = {
    "elu": None,
    "relu": GeneralizedMap(16),
    "softmax": OptimalPositiveRF(12),
}
FITTED = {
    "adaptive": AdaptiveRF(12, asymmetric=True),
    "dense": DenseExponentialRF(12, asymmetric=True),
}
KINDS = {**MAPS, **FITTED, "none": "none"}


def model(name="elu", **params):
    sizes = {"n_layers": 2, "width": 8, "n_heads": 2, "random_state": 0}
    performer = Performer(7, **{"feature_map": KINDS[name], **sizes, **params})
    if name not in FITTED:
        return performer
    for i in range(performer.n_layers):  # that it matters what the features were fitted to
        performer.params[f"{i}.query"] *= 3
    return performer.fit_features(TOKENS)


def check_chunks(performer, chunk_sizes):
    loss, gradients = performer.loss_and_grad(TOKENS)
    for chunk_size in chunk_sizes:
        other, others = performer.loss_and_grad(TOKENS, chunk_size)
        assert_allclose(other, loss, rtol=1e-12)
        assert_allclose(performer.loss(TOKENS, chunk_size), loss, rtol=1e-12)
        for key, gradient in gradients.items():
            assert_allclose(others[key], gradient, rtol=1e-9, atol=1e-9 * np.abs(gradient).max())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", [*MAPS, *FITTED])
def test_chunks_change_nothing(name, norm):
    check_chunks(model(name, norm=norm), (1, 3, 10, 40, 1000))


def peak(performer, tokens, chunk_size=None):
    tracemalloc.start()
    performer.loss_and_grad(tokens, chunk_size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", ["elu", "adaptive"])
def test_chunks_take_the_memory_of_one_chunk(name):
    """Besides the states between chunks, at most a few per cent of the activations of one."""
    performer = model(name, width=32, n_heads=1, redraw_every=1)
    tokens = np.random.default_rng(0).integers(7, size=4001)
    peak(performer, tokens[:11])
    states = 4 * 2 * 32 * (33 + 1) * 8  # four chunks, two layers
    assert peak(performer, tokens, 1000) - states < 1.1 * peak(performer, tokens[:1001])


@pytest.mark.parametrize("near", [None, NearField(8, 4)])
def test_memory_does_not_grow_with_the_text(near):
    """Beyond 64 chunks by the text itself only; with all states kept to 2.6 times."""
    performer = model("elu" if near is None else "softmax", width=32, n_heads=1, near=near)
    tokens = np.random.default_rng(0).integers(7, size=401)
    peak(performer, tokens[:11])
    assert peak(performer, tokens, 2) < 1.2 * peak(performer, tokens[:131], 2)


@pytest.mark.parametrize("n_kept", [1, 2, 3, 7, KEPT])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 34, 35, 100])
def test_states_in_reverse(n, n_kept):
    """Every state comes, few are kept, and no more steps are taken than must be."""
    alive, most, n_steps = set(), 0, 0

    class State:
        def __init__(self, number):
            self.number = number
            alive.add(number)

        def __del__(self):
            alive.discard(self.number)

    def advance(i, state):
        nonlocal most, n_steps
        assert state.number == i
        most, n_steps = max(most, len(alive)), n_steps + 1
        return State(i + 1)

    found = []
    for i, state in in_reverse(advance, State(0), n, n_kept):
        assert state.number == i
        found.append(i)
        del state  # as who is done with it does
    assert found == list(range(n))[::-1]
    assert most <= n_kept + 1  # and the one that the next step starts from
    n_times = next(t for t in range(n) if comb(n_kept + t, t) >= n)
    assert n_steps == n_times * n - comb(n_kept + n_times, n_kept + 1)


def check_gradients(performer, chunk_size):
    """Compare gradients in random directions with differences of losses."""
    _, gradients = performer.loss_and_grad(TOKENS, chunk_size)
    rng, step = np.random.default_rng(1), 1e-6
    for key, value in performer.params.items():
        direction = rng.normal(size=value.shape)
        losses = []
        for sign in (1, -1):
            performer.params[key] = value + sign * step * direction
            losses.append(performer.loss(TOKENS))
        performer.params[key] = value
        expected = (losses[0] - losses[1]) / (2 * step)
        assert_allclose(np.sum(gradients[key] * direction), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", ["elu", "softmax", *FITTED])  # relu has corners
def test_gradients_are_those_of_differences(name, norm):
    check_gradients(model(name, norm=norm), 16)


def test_later_tokens_do_not_change_earlier_losses():
    performer = model("softmax")
    changed = TOKENS.copy()
    changed[:, 30:] = (changed[:, 30:] + 1) % 7
    short = TOKENS[:, :30]
    assert performer.loss(short) == pytest.approx(performer.loss(changed[:, :30]), rel=1e-12)
    hidden = [performer._hidden(t, 0, [()] * performer.n_layers)[0] for t in (TOKENS, changed)]
    assert_allclose(hidden[0][:, :30], hidden[1][:, :30], rtol=1e-12)
    assert np.abs(hidden[0][:, 30:] - hidden[1][:, 30:]).max() > 0.1


def test_it_learns():
    """A text with a rule of period 5 and one random token in five."""
    rng = np.random.default_rng(0)
    tokens = np.arange(1001) % 5
    noisy = rng.uniform(size=1001) < 0.2
    tokens[noisy] = rng.integers(5, size=noisy.sum())
    performer = Performer(5, n_layers=1, width=16, n_heads=2, random_state=0)
    for _ in range(60):
        loss, gradients = performer.loss_and_grad(tokens, chunk_size=250)
        for key, gradient in gradients.items():
            performer.params[key] -= 0.3 * gradient
    assert loss < 0.75 * np.log(5)
    drawn = performer.generate(tokens[:50], 100, temperature=0.1, random_state=0)
    assert drawn.shape == (100,) and np.mean(np.diff(drawn) % 5 == 1) > 0.8
    again = performer.generate(tokens[:50], 100, temperature=0.1, random_state=0)
    assert_array_equal(drawn, again)


@pytest.mark.parametrize("params", [{}, {"name": "softmax", "near": NearField(5, 2)}])
def test_single_precision(params):
    double, single = (model(**params, dtype=dtype) for dtype in ("float64", "float32"))
    loss, gradients = double.loss_and_grad(TOKENS)
    other, others = single.loss_and_grad(TOKENS, 8)
    assert_allclose(other, loss, rtol=1e-5)
    for key, gradient in gradients.items():
        assert others[key].dtype == np.float32
        assert_allclose(others[key], gradient, atol=1e-4 * np.abs(gradient).max())


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"n_heads": 3}, "n_heads=3 must divide width=8"),
        ({"norm": "none"}, "norm must be 'pre' or 'post'"),
        ({"dtype": "int32"}, "dtype must be"),
        ({"n_layers": 0}, "n_layers must be an integer >= 1, got 0"),
        ({"redraw_every": 0}, "redraw_every must be an integer >= 1, got 0"),
    ],
)
def test_parameters_are_checked(params, said):
    with pytest.raises(ValueError, match=said):
        model(**params)


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_features_are_fitted_to_every_layer_and_head(norm):
    """The statistics are those of queries and keys of the fitted model."""
    performer = model("dense", norm=norm, n_layers=3)
    loss, seen = performer.loss(TOKENS), []
    attention = performer._attention

    def spied(layer, x, states):
        seen.append([x @ performer.params[f"{layer}.{name}"] for name in ("query", "key")])
        return attention(layer, x, states)

    performer._attention = spied
    performer.loss(np.c_[TOKENS, TOKENS[:, 0]])  # the last token only is predicted
    for layer, pair in enumerate(seen):
        for head, own in enumerate(performer._sets[layer]):
            found = own.heads[0].mechanism.statistics_
            for rows, side in zip(pair, (found.queries, found.keys), strict=True):
                rows = rows.reshape(-1, 2, 4)[:, head]
                assert_allclose(side.mean, rows.mean(axis=0), rtol=1e-9)
                assert_allclose(side.covariance, np.cov(rows.T, bias=True), rtol=1e-9, atol=1e-12)
    # Features of before leave no trace.
    del performer._attention
    assert performer.redraw(1).loss(TOKENS) != pytest.approx(loss, rel=1e-6)
    assert performer.fit_features(TOKENS).loss(TOKENS) == loss


def test_fitted_features_are_closer_to_softmax_attention():
    errors = {"plain": [], "fitted": []}
    for seed in range(8):
        performer = model("softmax", feature_map=FITTED["dense"], norm="post", random_state=seed)
        performer.params["0.query"] *= 3
        x = performer._embedded(TOKENS, 0)
        projections = (performer.params[f"0.{name}"] for name in ("query", "key", "value"))
        q, k, v = (performer._split(x @ projection) for projection in projections)
        joined = performer._join(exact_attention(q, k, v, causal=True), x.shape)
        for kind, own in errors.items():
            if kind == "fitted":
                performer.fit_features(TOKENS)
            found = performer._attention(0, x, ())[0]
            own.append(np.linalg.norm(found - joined @ performer.params["0.output"]))
    # Seen: 16.6 and 9.6.
    assert np.mean(errors["fitted"]) < 0.8 * np.mean(errors["plain"])


def test_a_map_without_a_member_that_needs_no_data():
    clustered = HybridRF(8, coefficients="clustered")
    performer = Performer(7, width=8, n_heads=2, feature_map=clustered, random_state=0)
    for method, arguments in (
        (performer.loss, (TOKENS,)),
        (performer.loss_and_grad, (TOKENS,)),
        (performer.generate, ([0], 1)),
        (performer.redraw, ()),
    ):
        with pytest.raises(ValueError, match=r"needs statistics of data: call fit_features"):
            method(*arguments)
    assert performer.fit_features(TOKENS) is performer
    assert_allclose(performer.loss(TOKENS, 7), performer.loss(TOKENS), rtol=1e-9)
    assert performer.generate([1], 5, random_state=0).shape == (5,)
    with pytest.raises(ValueError, match="tokens must lie in 0 to 6"):
        performer.fit_features([7])


@pytest.mark.parametrize("name", ["softmax", "relu", *FITTED])
def test_features_are_drawn_anew_every_n_calls(name):
    performer, other, kept = (model(name, redraw_every=n, random_state=3) for n in (2, 2, None))
    losses = []
    for _ in range(6):
        loss, gradients = performer.loss_and_grad(TOKENS)
        # Every chunk sees one draw, and so do the loss and a model of the same seed.
        again, others = other.loss_and_grad(TOKENS, 7)
        assert_allclose([again, performer.loss(TOKENS, 9)], loss, rtol=1e-12)
        for key, gradient in gradients.items():
            assert_allclose(others[key], gradient, rtol=1e-9, atol=1e-9 * np.abs(gradient).max())
        losses.append(loss)
    assert losses[0] == losses[1] == kept.loss_and_grad(TOKENS)[0]
    assert len(set(losses)) == 3 and losses[2] == losses[3] and losses[4] == losses[5]
    assert kept.loss_and_grad(TOKENS)[0] == losses[0]
    drawn = performer.generate([1], 20, random_state=0)
    assert_array_equal(other.generate([1], 20, random_state=0), drawn)


def test_redraw_keeps_parameters_and_statistics():
    performer = model("adaptive")
    loss, params = performer.loss(TOKENS), {k: p.copy() for k, p in performer.params.items()}
    before = [own.heads[0].mechanism for sets in performer._sets for own in sets]
    assert performer.redraw(5) is performer
    after = [own.heads[0].mechanism for sets in performer._sets for own in sets]
    for old, new in zip(before, after, strict=True):
        assert_array_equal(new.centers_, old.centers_)
        assert np.abs(new.omega_ - old.omega_).min() > 0
    for key, value in params.items():
        assert_array_equal(performer.params[key], value)
    assert performer.loss(TOKENS) != loss
    assert performer.loss(TOKENS) == model("adaptive").redraw(5).loss(TOKENS)


# ---------------------------------------------------------------- near fields


def first_attention(performer, operator, is_fitted=False):
    """Return what the first layer adds to the embedded text, and what an operator makes of it."""
    x = performer._embedded(TOKENS[:, :40], 0)
    found = performer._attention(0, x, ())[0]
    projections = (performer.params[f"0.{name}"] for name in ("query", "key", "value"))
    q, k, v = (performer._split(x @ projection).reshape(2, 2, 40, 4) for projection in projections)
    out = (operator.fit(q, k, v) if is_fitted else operator)(q, k, v)
    return found, performer._join(out, x.shape) @ performer.params["0.output"]


FIELDS = [NearField(1, 0), NearField(3, 2), NearField(5, (0, 7, 30)), NearField(13, 41)]


@pytest.mark.parametrize(
    ("name", "field"),
    [*(("softmax", field) for field in FIELDS), *((name, FIELDS[2]) for name in [*FITTED, "none"])],
    ids=str,
)
def test_chunks_change_nothing_with_a_near_field(name, field):
    """Wherever chunks end: in a block, between two, or after one position."""
    performer = model(name, near=field, n_layers=1)
    check_chunks(performer, (1, 7, 16, field.block, 2 * field.block + 1))
    if name == "none":  # for which there is nothing to fit, and nothing to draw
        loss = performer.loss(TOKENS)
        assert performer.fit_features(TOKENS).redraw(0).loss(TOKENS) == loss


@pytest.mark.parametrize("field", FIELDS[1:3], ids=str)
@pytest.mark.parametrize("name", ["softmax", "dense"])
def test_gradients_with_a_near_field_are_those_of_differences(name, field):
    check_gradients(model(name, near=field), 8)


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_attention_with_a_near_field_is_that_of_the_operator(field):
    feature_map = OptimalPositiveRF(12, random_state=5)
    performer = model(feature_map=feature_map, near=field)
    operator = ApproxKernelAttention(feature_map, causal=True, near=field)
    found, expected = first_attention(performer, operator)
    assert_allclose(found, expected, rtol=1e-9)


def test_features_of_a_near_field_are_fitted_to_every_head():
    """As the operator fits them, and drawing anew keeps what far keys count."""
    feature_map = DenseExponentialRF(12, asymmetric=True, random_state=5)
    performer = model("dense", feature_map=feature_map, near=NearField(3, 2), norm="post")
    performer.fit_features(TOKENS[:, :40])
    operator = ApproxKernelAttention(feature_map, causal=True, near=NearField(3, 2))
    found, expected = first_attention(performer, operator, is_fitted=True)
    assert_allclose(found, expected, rtol=1e-9)
    shrink = [own.shrink for sets in performer._sets for own in sets]
    assert_array_equal(shrink[:2], operator.shrink_[:, None])
    assert 0 < np.min(shrink) and np.ptp(shrink) > 0
    loss = performer.loss(TOKENS)
    assert performer.redraw(3).loss(TOKENS) != pytest.approx(loss, rel=1e-9)
    assert_array_equal([own.shrink for sets in performer._sets for own in sets], shrink)


@pytest.mark.parametrize(
    ("prompt", "n", "said"),
    [([[1], [2]], 5, r"prompt .* shape \(L,\), got shape \(2, 1\)"), ([1], -1, "n must .* got -1")],
)
def test_one_text_is_continued_at_a_time(prompt, n, said):
    with pytest.raises(ValueError, match=said):
        Performer(5, width=8, n_heads=2).generate(prompt, n)


def test_a_near_field_generates_what_it_has_learnt_to_expect():
    """The likeliest token after the whole text, though the text is seen token by token."""
    performer = model("softmax", near=NearField(3, 2))
    text = [1, 2, 3]
    drawn = performer.generate(text, 12, temperature=1e-6, random_state=0)
    for token in drawn:
        tokens = np.array([text])
        hidden = performer._hidden(tokens, 0, [()] * performer.n_layers)[0]
        assert token == np.argmax(performer._linear("logits", hidden)[0][0, -1])
        text.append(token)


def test_what_near_fields_refuse():
    near = NearField(4, 2)
    for params, said in (
        ({"near": 3}, "near must be a NearField or None, got 3"),
        ({"near": "auto"}, "near must be a NearField or None, got 'auto'"),
        ({"near": near, "mask": np.ones((9, 9))}, "near and mask exclude each other"),
        ({"near": near, "feature_map": GeneralizedMap(16)}, "a map of the softmax kernel"),
        ({"feature_map": "none"}, "feature_map='none' needs a near field"),
    ):
        with pytest.raises(ValueError, match=said):
            model(**params)
    assert np.isfinite(model(near=near).loss_and_grad(TOKENS, 9)[0])  # with a map of its own


# ---------------------------------------------------------------- masks

ONES = np.ones((41, 41))
WEIGHTS = np.random.default_rng(2).uniform(size=(40, 40))
DISTANCES = np.exp(-np.abs(np.arange(-39, 40)) / 9.0)
MASKS = {
    "array": WEIGHTS,
    "sparse": sp.coo_array(WEIGHTS * (WEIGHTS > 0.5) + np.eye(40)),
    "distances": ToeplitzMask(DISTANCES),
    "grid": ToeplitzMask(np.random.default_rng(3).uniform(0.1, 1, size=(9, 15))),
}


@pytest.mark.parametrize("name", ["elu", "softmax", "adaptive"])
def test_a_mask_of_ones_changes_nothing(name):
    performer = model(name)
    loss, gradients = performer.loss_and_grad(TOKENS)
    for mask in (ONES.astype(bool), ToeplitzMask(np.ones(101)), sp.csr_array(ONES)):
        own = model(name, mask=mask)
        other, others = own.loss_and_grad(TOKENS)
        assert_allclose(other, loss, rtol=1e-12)
        for key, gradient in gradients.items():
            assert_allclose(others[key], gradient, rtol=1e-9, atol=1e-9 * np.abs(gradient).max())
        drawn = own.generate([1, 2], 8, random_state=0)
        assert_array_equal(drawn, performer.generate([1, 2], 8, random_state=0))


@pytest.mark.parametrize("kind", MASKS)
def test_masks_multiply_the_weights_of_earlier_keys(kind):
    """The first positions of a mask serve a shorter text; what is above the diagonal does not."""
    performer = model("softmax", mask=MASKS[kind])
    check_gradients(performer, None)
    dense = MASKS[kind] if kind == "array" else MASKS[kind].toarray()
    for n in (40, 19):
        own = model("softmax", mask=np.tril(dense[:n, :n]))
        assert_allclose(
            performer.loss(TOKENS[:, : n + 1]), own.loss(TOKENS[:, : n + 1]), rtol=1e-12
        )
    assert performer.loss(TOKENS) != pytest.approx(model("softmax").loss(TOKENS), rel=1e-6)


@pytest.mark.parametrize("kind", MASKS)
def test_masked_attention_is_that_of_the_operator(kind):
    feature_map = OptimalPositiveRF(12, random_state=5)
    performer = model(feature_map=feature_map, mask=MASKS[kind])
    mask = MASKS[kind]
    if kind in ("grid", "sparse"):
        mask = mask.toarray()[:40, :40]
    operator = ApproxKernelAttention(feature_map, causal=True, mask=mask)
    found, expected = first_attention(performer, operator)
    assert_allclose(found, expected, rtol=1e-9)


def test_what_masks_refuse():
    performer = model(mask=WEIGHTS[:20, :20])
    for call in (performer.loss, performer.loss_and_grad):
        with pytest.raises(ValueError, match=r"chunk_size must be None with a mask.* got 5"):
            call(TOKENS[:, :10], 5)
        with pytest.raises(ValueError, match="mask is for texts of at most 20 positions, got 40"):
            call(TOKENS)
    with pytest.raises(ValueError, match="mask is for texts of at most 20 positions, got 41"):
        performer.fit_features(TOKENS)
    assert performer.generate([1], 20).shape == (20,)
    with pytest.raises(ValueError, match="mask is for texts of at most 20 positions, got 21"):
        performer.generate([1, 2], 20)
    for mask, said in (
        (np.ones((3, 4)), "mask must have the shape"),
        (np.ones(3), "mask must have the shape"),
        ([[1.0, np.nan], [1.0, 1.0]], "mask must be finite and >= 0"),
        (aslinearoperator(np.eye(3)), "mask: a LinearOperator cannot be made causal"),
    ):
        with pytest.raises(ValueError, match=said):
            model(mask=mask)


def test_tokens_are_checked():
    performer = model()
    for tokens, said in (
        ([0.5, 1.0], "tokens must be integers"),
        ([0, 7], "tokens must lie in 0 to 6"),
        ([[3]], "at least two positions"),
    ):
        with pytest.raises(ValueError, match=said):
            performer.loss_and_grad(tokens)
    with pytest.raises(ValueError, match="chunk_size must be"):
        performer.loss_and_grad(TOKENS, 0)
    with pytest.raises(ValueError, match="temperature must be > 0"):
        performer.generate([0], 1, temperature=0)
    discrete = Performer(7, width=8, n_heads=2, feature_map=PoissonRF(8), random_state=0)
    with pytest.raises(NotImplementedError, match="No gradients are available"):
        discrete.loss_and_grad(TOKENS)
