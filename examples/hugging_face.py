"""Generate text with a Hugging Face language model whose attention uses random features.

    python examples/hugging_face.py [--model NAME] [--tokens 4096]

Registers `RandomFeatureAttention` with transformers, for models that are loaded with
``attn_implementation="random_features"``, and provides a cache that holds the attention state of
every layer in place of keys and values, so its size does not grow with the text. Prints the speed
and the size of the states during generation. Without ``--model``, a tiny model with random weights
is used, and nothing is downloaded. Needs transformers 5.24 or later. Takes less than a minute on
two cores.
"""

import argparse
import functools
import time

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    Cache,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import causal_mask_function

from skrf.torch import RandomFeatureAttention, StreamState

NAME = "random_features"


@functools.cache
def features_of(layer_idx, scale):
    """Return the attention of a layer: it has no weights, and draws depend on its number alone."""
    return RandomFeatureAttention(is_causal=True, scale=scale, random_state=layer_idx)


def attention(
    module, query, key, value, mask, scaling=None, dropout=0.0, cache_layer=None, **kwargs
):
    """Return causal attention, (batch, length, heads, width), and None in place of weights."""
    if any(kwargs.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise ValueError("Random features have no caps of logits, sinks or biases of positions.")
    attend, padding = features_of(module.layer_idx, scaling), None if mask is None else ~mask
    if cache_layer is None:
        out = attend(query, key, value, dropout_p=dropout, key_padding_mask=padding)
    else:
        out, cache_layer.state = attend.step(
            query, key, value, cache_layer.state, key_padding_mask=padding
        )
    return out.transpose(1, 2).contiguous(), None


def padding_mask(
    q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask=None, **kwargs
):
    """Return which keys are not padding, (batch, kv_length); attention is causal without it."""
    if mask_function is not causal_mask_function or q_offset + q_length != kv_offset + kv_length:
        raise ValueError("Random features have no windows, packed texts or static caches.")
    return None if attention_mask is None else attention_mask[:, -kv_length:]


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, padding_mask)


class StateLayer(CacheLayerMixin):
    """The state of attention of one layer, and the number of positions that it has seen."""

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        """Begin a new text."""
        self.state, self.length = StreamState(), 0

    def lazy_initialization(self, key_states, value_states):
        """Do nothing: the first step makes the arrays."""

    def update(self, key_states, value_states, *, kwargs):
        """Return the new keys and values alone, and pass this layer on to `attention`."""
        if self.length and self.state.sums is None:
            raise ValueError(f"The model must be loaded with attn_implementation={NAME!r}.")
        kwargs["cache_layer"] = self
        self.length += key_states.shape[2]
        return key_states, value_states

    def get_seq_length(self):
        """Return the position from which rotary embeddings count on."""
        return self.length

    def get_mask_sizes(self, query_length):
        """Return how many keys `update` will return, and the position of the first."""
        return query_length, self.length

    def get_max_length(self):
        """Return -1, which stands for no limit."""
        return -1

    def reorder_cache(self, beam_idx):
        """Keep the states of the beams that go on."""
        self.state = self.state.select(beam_idx)


def state_cache():
    """Return an empty cache for ``model.generate(..., cache=state_cache())``."""
    return Cache(layer_class_to_replicate=StateLayer)


def tiny_model(**arguments):
    """Return a model of random weights that has two heads of queries for each head of keys."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2**20,
        initializer_range=0.04,  # with the default, attention hardly matters
        **arguments,
    )
    return LlamaForCausalLM(config).eval()


def n_bytes(cache):
    """Return the size of the states of a cache."""
    states = [layer.state for layer in cache.layers]
    return sum(array.nbytes for state in states for array in (state.sums, state.log_scale))


def main():
    """Write a text in a few parts, each of which continues the cache of the last one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="name or folder of a causal model, default: a tiny one")
    parser.add_argument("--tokens", type=int, default=4096, help="length of the text")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.model is None:
        model = tiny_model(attn_implementation=NAME)
    else:
        model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation=NAME)
    tokens, cache = torch.tensor([[1]], device=model.device), state_cache()
    for _ in range(4):
        start, n_new = time.perf_counter(), options.tokens // 4
        tokens = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            cache=cache,
            do_sample=True,
            min_new_tokens=n_new,
            max_new_tokens=n_new,
        )
        speed = n_new / (time.perf_counter() - start)
        print(
            f"{tokens.shape[1]:7,} tokens: {speed:.0f} tokens per second, "
            f"{n_bytes(cache) / 1e6:.2f} MB of states",
            flush=True,
        )


if __name__ == "__main__":
    main()
