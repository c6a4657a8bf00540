"""Hidden Markov models of English words beside n-grams and hmmlearn: perplexity and seconds.

    SKRF_EWT_DIR=... python benchmarks/words.py --part gate
    SKRF_EWT_DIR=... python benchmarks/words.py --part curve
    SKRF_EWT_DIR=... python benchmarks/words.py --part curve --row 4096 256
    SKRF_EWT_DIR=... python benchmarks/words.py --part curve --row 128 hmmlearn
    python benchmarks/words.py --part docstrings
    python benchmarks/words.py --part docstrings --mixed

SKRF_EWT_DIR holds train.tsv and dev.tsv of the treebank of English web texts, a token per line.
Words are lower case; those seen less than three times in training are one token, and an end token
follows every sentence. Perplexity is that of all tokens of the development part, unknown and end
included, and every sentence starts anew. The settings of the gate were chosen on that part, in
about a dozen runs of five minutes; "docstrings" takes them as they are to another text, the
different sentences of the documentation of Python's library, of which the last tenth is held out:
modules that training does not see. With ``--mixed`` it is every tenth sentence: those repeat
phrases of their neighbours in training word by word, which n-grams know by heart.

Seconds are CPU seconds of one thread (OPENBLAS_NUM_THREADS=1). The gate takes 16 minutes, the curve
some hours; ``--row`` asks for one number of states and of features alone ("exact" for the kernel,
"hmmlearn" for twenty passes of its EM).
"""

import argparse
import ast
import os
import re
import sysconfig
import time
from collections import Counter
from pathlib import Path

import numpy as np

from skrf import AdaptiveRF
from skrf.graphical import KernelHMM

SETTINGS = {"learning_rate": 0.04, "weight_decay": 0.2, "max_iter": 12}
N_STATES, WIDTH, SCALE, BATCH = 512, 64, 0.35, 128


def tokens_of(part):
    """Return the sentences of a part of the treebank as lists of rows, a word and its tags."""
    sentences = [[]]
    path = Path(os.environ["SKRF_EWT_DIR"]) / f"{part}.tsv"
    for line in path.read_text(encoding="utf8").splitlines():
        if line:
            sentences[-1].append(line.split("\t"))
        elif sentences[-1]:
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


def treebank(part):
    """Return the sentences of a part of the treebank as lists of words."""
    return [[row[0].lower() for row in sentence] for sentence in tokens_of(part)]


def docstrings(is_mixed=False):
    """Return the different sentences of the documentation of Python, training and held out."""
    found, kinds = {}, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if {"test", "tests", "site-packages"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
        for text in filter(None, texts):
            for sentence in re.split(r"(?<=[.!?:])\s+|\n\s*\n", text):
                words = re.findall(r"\w+|[^\w\s]", sentence.lower())
                if 2 < len(words) <= 80:  # longer ones are tables
                    found[tuple(words)] = None
    found = list(found)
    if is_mixed:
        return [s for i, s in enumerate(found) if i % 10], found[::10]
    end = 9 * len(found) // 10
    return found[:end], found[end:]


def numbered(train, held):
    """Return sentences as numbers with an end token, and the number of symbols."""
    counts = Counter(word for sentence in train for word in sentence)
    known = sorted(word for word, count in counts.items() if count > 2)
    numbers = {word: i for i, word in enumerate(known)}
    unknown, end = len(known), len(known) + 1
    parts = (
        [np.array([*(numbers.get(word, unknown) for word in sentence), end]) for sentence in part]
        for part in (train, held)
    )
    return *parts, len(known) + 2


class KneserNey:
    """Interpolated n-grams: continuation counts below the top order, uniform at the bottom."""

    def __init__(self, sentences, order, discount, n_symbols):
        self.order, self.discount, self.n_symbols = order, discount, n_symbols
        grams = Counter(gram for sentence in sentences for gram in self._grams(sentence))
        self.tables = {}
        for n in range(order, 0, -1):
            totals, kinds = Counter(), Counter()
            for gram, count in grams.items():
                totals[gram[:-1]] += count
                kinds[gram[:-1]] += 1
            self.tables[n] = grams, totals, kinds
            grams = Counter(gram[1:] for gram in grams)

    def _grams(self, sentence):
        padded = (-1,) * (self.order - 1) + tuple(sentence.tolist())
        return (padded[i : i + self.order] for i in range(len(sentence)))

    def probability(self, gram):
        """Return the probability of the last symbol after the others."""
        if not gram:
            return 1 / self.n_symbols
        counts, totals, kinds = self.tables[len(gram)]
        below, total = self.probability(gram[1:]), totals[gram[:-1]]
        if not total:
            return below
        share = self.discount * kinds[gram[:-1]] / total
        return max(counts[gram] - self.discount, 0) / total + share * below

    def perplexity(self, sentences):
        """Return the perplexity of sentences."""
        logs = [np.log(self.probability(g)) for s in sentences for g in self._grams(s)]
        return np.exp(-np.mean(logs))


def perplexity(model, sentences):
    lengths = list(map(len, sentences))
    return np.exp(-model.score(np.concatenate(sentences), lengths) / sum(lengths))


def trained(train, n_symbols, seed, n_states=N_STATES, feature_map="exact", **settings):
    """Return a fitted model and its CPU seconds."""
    model = KernelHMM.from_random(
        n_states,
        n_symbols,
        WIDTH,
        scale=SCALE,
        feature_map=feature_map,
        random_state=seed,
        **{**SETTINGS, **settings},
    )
    model.set_params(start_embedding=SCALE * np.random.default_rng(seed).normal(size=WIDTH))
    start = time.process_time()
    model.fit(np.concatenate(train), list(map(len, train)), batch_size=BATCH)
    return model, time.process_time() - start


def show(name, value, seconds=None):
    print(f"{name:44}{value:8.1f}" + ("" if seconds is None else f"{seconds:9.0f} s"), flush=True)


def show_ngrams(train, held, n_symbols):
    """Print the perplexities of n-grams, and return that of the best trigram."""
    best = np.inf
    for order, discount in ((1, 0.75), (2, 0.75), (3, 0.75), (3, 0.8), (3, 0.9)):
        value = KneserNey(train, order, discount, n_symbols).perplexity(held)
        show(f"Kneser-Ney, {order} words, discount {discount}", value)
        best = min(best, value) if order == 3 else best
    return best


def gate(train, held, n_symbols, seeds):
    values = []
    for seed in range(seeds):
        model, seconds = trained(train, n_symbols, seed)
        values.append(perplexity(model, held))
        show(f"{N_STATES} states, seed {seed}", values[-1], seconds)
    show(f"{N_STATES} states, mean of {seeds} seeds", np.mean(values))
    return np.mean(values)


CURVE = [(n, "exact") for n in (64, 128, 256, 512, 1024)] + [
    *((512, 64), (512, 256), (1024, 256), (1024, 1024), (2048, 256), (4096, 256))
]


def curve(train, held, n_symbols, rows):
    for n_states, columns in rows:
        feature_map = columns if columns == "exact" else AdaptiveRF(columns)
        model, seconds = trained(train, n_symbols, 0, n_states, feature_map, max_iter=6)
        what = "exact" if columns == "exact" else f"{columns} features"
        show(f"{n_states} states, {what}", perplexity(model, held), seconds)


def peer(train, held, n_symbols, sizes=(64, 128), n_iter=20):
    """Print hmmlearn's perplexity after passes of EM; 1e-6 is added to its emissions."""
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError:
        print("hmmlearn is not installed: pip install hmmlearn")
        return
    X, lengths = np.concatenate(train)[:, None], list(map(len, train))
    for n_states in sizes:
        model = CategoricalHMM(n_states, n_iter=n_iter, n_features=n_symbols, random_state=0)
        start = time.process_time()
        model.fit(X, lengths)
        seconds = time.process_time() - start
        shares = model.emissionprob_ + 1e-6
        model.emissionprob_ = shares / shares.sum(axis=1, keepdims=True)
        score = model.score(np.concatenate(held)[:, None], list(map(len, held)))
        value = np.exp(-score / sum(map(len, held)))
        show(f"hmmlearn, {n_states} states, {n_iter} iterations", value, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("gate", "curve", "docstrings"), default="gate")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--row", nargs=2, metavar=("STATES", "FEATURES"))
    args = parser.parse_args()
    is_other = args.part == "docstrings"
    texts = docstrings(args.mixed) if is_other else map(treebank, ("train", "dev"))
    train, held, n_symbols = numbered(*texts)
    sizes = len(train), sum(map(len, train)), len(held), sum(map(len, held))
    print("{:,} sentences of {:,} tokens, held out {:,} of {:,}".format(*sizes), end="")
    print(f"; {n_symbols:,} symbols")
    best = show_ngrams(train, held, n_symbols)
    if args.row:
        states, columns = args.row
        if columns == "hmmlearn":
            peer(train, held, n_symbols, [int(states)])
        else:
            columns = columns if columns == "exact" else int(columns)
            curve(train, held, n_symbols, [(int(states), columns)])
    elif args.part == "curve":
        curve(train, held, n_symbols, CURVE)
        peer(train, held, n_symbols)
    else:
        value = gate(train, held, n_symbols, args.seeds)
        print(f"the best trigram is at {best:.1f}, the model {100 * (value / best - 1):+.1f} %")


if __name__ == "__main__":
    main()
