"""The recipe for models of Hugging Face: they compute the same with a cache and with padding."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

N_TEXTS, LENGTH, N_PADS, N_NEW = 3, 40, 7, 24


@pytest.fixture(scope="module")
def recipe():
    """Return what the example defines."""
    pytest.importorskip("transformers", "5.24", reason="transformers 5.24 is not installed")
    path = Path(__file__).parents[1] / "examples" / "hugging_face.py"
    return SimpleNamespace(**runpy.run_path(str(path)))


@pytest.fixture
def model(recipe):
    return recipe.tiny_model(attn_implementation=recipe.NAME)


@pytest.fixture
def tokens():
    return torch.randint(3, 256, (N_TEXTS, LENGTH))


def padded(tokens):
    """Return texts after padding, and the mask and positions that go with them."""
    pads = torch.randint(3, 256, (N_TEXTS, N_PADS))
    mask = torch.ones(N_TEXTS, N_PADS + LENGTH, dtype=torch.int64)
    mask[:, :N_PADS] = 0
    return torch.cat([pads, tokens], dim=1), mask, (mask.cumsum(dim=1) - 1).clamp(min=0)


def written(model, tokens, **arguments):
    """Return the letters that a model adds to texts."""
    arguments = {"attention_mask": torch.ones_like(tokens), "do_sample": False, **arguments}
    lengths = {"min_new_tokens": N_NEW, "max_new_tokens": N_NEW, "pad_token_id": 0}
    return model.generate(tokens, **lengths, **arguments)[:, tokens.shape[1] :]


@torch.no_grad()
def test_prefill_and_steps_give_the_logits_of_a_full_pass(model, tokens, recipe):
    full, cache = model(tokens, use_cache=False).logits, recipe.state_cache()
    parts = [tokens[:, :20], tokens[:, 20:25], *tokens[:, 25:].split(1, dim=1)]
    logits = [model(part, cache=cache).logits for part in parts]
    torch.testing.assert_close(torch.cat(logits, dim=1), full, rtol=0, atol=1e-4)
    assert cache.get_seq_length() == LENGTH
    exact = recipe.tiny_model(attn_implementation="sdpa")
    exact.load_state_dict(model.state_dict())
    # Attention matters in this model, and features approximate it.
    assert 0.01 < (exact(tokens).logits - full).norm() / full.norm() < 0.2


@pytest.mark.parametrize("arguments", [{}, {"num_beams": 3}], ids=str)
def test_generate_with_the_cache_writes_what_full_passes_write(model, tokens, arguments, recipe):
    full = written(model, tokens, use_cache=False, **arguments)
    cache = recipe.state_cache()
    assert torch.equal(written(model, tokens, cache=cache, **arguments), full)
    assert len(full.unique()) > N_NEW / 2
    cache.reset()
    assert torch.equal(written(model, tokens, cache=cache, **arguments), full)
    # The cache that `generate` makes holds all keys and values.
    assert torch.equal(written(model, tokens, **arguments), full)


def test_generate_continues_a_cache_of_the_same_size(model, tokens, recipe):
    cache, sizes = recipe.state_cache(), []
    first = torch.cat([tokens, written(model, tokens, cache=cache)], dim=1)
    sizes.append(recipe.n_bytes(cache))
    second = written(model, first, cache=cache)
    sizes.append(recipe.n_bytes(cache))
    assert torch.equal(second, written(model, first, use_cache=False))
    assert cache.get_seq_length() == LENGTH + 2 * N_NEW - 1
    n_heads, width, n_features = 2, 32, 256
    assert sizes[0] == sizes[1] <= 8 * 2 * N_TEXTS * n_heads * n_features * (width + 2)
    assert all(layer.keys is None and layer.values is None for layer in cache.layers)


@torch.no_grad()
def test_padding_on_the_left_changes_nothing(model, tokens, recipe):
    full = model(tokens, use_cache=False).logits
    behind, mask, positions = padded(tokens)
    close = {"rtol": 0, "atol": 1e-4}
    for arguments in ({"use_cache": False}, {"use_cache": True}, {"cache": recipe.state_cache()}):
        out = model(behind, attention_mask=mask, position_ids=positions, **arguments).logits
        torch.testing.assert_close(out[:, N_PADS:], full, **close)
    cache = recipe.state_cache()
    for start, stop in ((0, 5), (5, 20), (20, LENGTH + N_PADS)):  # the first has padding alone
        out = model(
            behind[:, start:stop],
            attention_mask=mask[:, :stop],
            position_ids=positions[:, start:stop],
            cache=cache,
        ).logits
    torch.testing.assert_close(out, full[:, 20 - N_PADS :], **close)
    assert torch.equal(
        written(model, behind, attention_mask=mask, cache=recipe.state_cache()),
        written(model, tokens, use_cache=False),
    )


def test_the_scale_is_that_of_the_model(model, recipe):
    query, key, value = torch.randn(3, 1, 2, 64, 8)
    module = model.model.layers[0].self_attn
    out, _ = recipe.attention(module, query, key, value, None, scaling=0.1)
    exact = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=0.1
    )
    assert (out.transpose(1, 2) - exact).norm() < 0.1 * exact.norm()


def test_gradients_reach_queries_and_keys(model, tokens):
    model.train()(tokens, labels=tokens).loss.backward()
    projections = model.model.layers[0].self_attn
    assert projections.q_proj.weight.grad.norm() > 0 < projections.k_proj.weight.grad.norm()


def test_what_features_cannot_do_raises(model, tokens, recipe):
    from transformers import MistralConfig, MistralForCausalLM

    packed = torch.arange(LENGTH // 2).repeat(2)[None]
    with pytest.raises(ValueError, match="packed texts"):
        model(tokens[:1], position_ids=packed, use_cache=False)
    with pytest.raises(ValueError, match="static caches"):
        written(model, tokens, cache_implementation="static")
    exact = recipe.tiny_model(attn_implementation="sdpa")
    with pytest.raises(ValueError, match="attn_implementation='random_features'"):
        written(exact, tokens, cache=recipe.state_cache())
    config = MistralConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=8,
        attn_implementation=recipe.NAME,
    )
    with pytest.raises(ValueError, match="windows"):
        MistralForCausalLM(config)(tokens)
    with pytest.raises(ValueError, match="caps"):
        recipe.attention(exact, *torch.ones(3, 1, 1, 2, 4), None, softcap=30.0)
