"""Chains and hidden Markov models of text: words and tags, beside n-grams and peers.

    SKRF_EWT_DIR=... python benchmarks/text.py                      words, three seeds, 16 minutes
    SKRF_EWT_DIR=... python benchmarks/text.py --part curve         words, by number of states
    python benchmarks/text.py --part docstrings [--mixed]           other texts, the same settings
    SKRF_EWT_DIR=... python benchmarks/text.py --part tags          a classifier, and a chain on top

SKRF_EWT_DIR holds train.tsv and dev.tsv of the treebank of English web texts, a token per line with
two kinds of tags. Seconds are CPU seconds of one thread.

Words are lower case; those seen less than three times in training are one token, and an end token
follows every sentence. Perplexity is that of all tokens of the development part, unknown and end
included, and every sentence starts anew. The settings were chosen on that part, in about a dozen
runs of five minutes; "docstrings" takes them as they are to the different sentences of the
documentation of Python's library, of which the last tenth is held out: modules that training does
not see. With ``--mixed`` it is every tenth sentence, which repeat phrases of their neighbours word
by word. The curve ends with twenty passes of hmmlearn's EM.

Tags: a logistic regression sees a word, its endings and its shape, or those and the words around.
What it says of sentences that it was not trained with, by five folds, is the evidence of chains:
either the chain learns from tags alone, and the prior of the tags is taken off the evidence with a
weight that is best on these sentences, or it learns from tags with their evidence. CRFsuite is
measured if it is installed (pip install sklearn-crfsuite).
"""

import argparse
import ast
import os
import re
import sysconfig
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from skrf import AdaptiveRF
from skrf.graphical import ChainMRF, KernelHMM

SETTINGS = {"learning_rate": 0.04, "weight_decay": 0.2, "max_iter": 12}
N_STATES, WIDTH, SCALE, BATCH = 512, 64, 0.35, 128
N_FOLDS, LEAST = 5, -20.0  # of log probabilities


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


CURVE = [(n, "exact") for n in (64, 128, 256, 512, 1024)]
CURVE += [(512, 64), (512, 256), (1024, 256), (1024, 1024), (2048, 256), (4096, 256)]


def curve(train, held, n_symbols):
    """Print perplexities and seconds by the numbers of states and of features."""
    for n_states, columns in CURVE:
        feature_map = columns if columns == "exact" else AdaptiveRF(columns)
        model, seconds = trained(train, n_symbols, 0, n_states, feature_map, max_iter=6)
        what = "exact" if columns == "exact" else f"{columns} features"
        show(f"{n_states} states, {what}", perplexity(model, held), seconds)


def peer(train, held, n_symbols, n_iter=20):
    """Print hmmlearn's perplexity after passes of EM; 1e-6 is added to its emissions."""
    from hmmlearn.hmm import CategoricalHMM

    X, lengths = np.concatenate(train)[:, None], list(map(len, train))
    for n_states in (64, 128):
        model = CategoricalHMM(n_states, n_iter=n_iter, n_features=n_symbols, random_state=0)
        start = time.process_time()
        model.fit(X, lengths)
        seconds = time.process_time() - start
        shares = model.emissionprob_ + 1e-6
        model.emissionprob_ = shares / shares.sum(axis=1, keepdims=True)
        score = model.score(np.concatenate(held)[:, None], list(map(len, held)))
        value = np.exp(-score / sum(map(len, held)))
        show(f"hmmlearn, {n_states} states, {n_iter} iterations", value, seconds)


# ---------------------------------------------------------------- tags


def features(words, i, is_wide):
    """Return what a classifier sees of a word."""
    word = words[i]
    found = {
        f"word {word.lower()}": 1,
        f"ends {word[-2:].lower()}": 1,
        f"ends {word[-3:].lower()}": 1,
        "capital": word[0].isupper(),
        "first": i == 0,
        "digit": any(letter.isdigit() for letter in word),
    }
    if is_wide:
        for step in (-2, -1, 1, 2):
            other = words[i + step].lower() if 0 <= i + step < len(words) else ""
            found[f"{step} {other}"] = 1
    return found


def features_of(sentences, is_wide):
    words = [[row[0] for row in sentence] for sentence in sentences]
    return [[features(own, i, is_wide) for i in range(len(own))] for own in words]


class Evidence:
    """Log probabilities of tags of training sentences that were left out, and of tests."""

    def __init__(self, train, test, tags, n_tags, is_wide):
        seen = [sum(features_of(part, is_wide), []) for part in (train, test)]
        table = DictVectorizer().fit(seen[0])
        X, X_test = map(table.transform, seen)
        folds = np.repeat(np.arange(len(train)) % N_FOLDS, list(map(len, train)))
        start = time.process_time()
        self.test = self._logs(X, tags, X_test, n_tags)
        self.seconds = time.process_time() - start
        self.train = np.empty((len(tags), n_tags))
        for fold in range(N_FOLDS):
            is_out = folds == fold
            self.train[is_out] = self._logs(X[~is_out], tags[~is_out], X[is_out], n_tags)
        self.seconds_of_folds = time.process_time() - start

    @staticmethod
    def _logs(X, tags, X_test, n_tags):
        model = LogisticRegression(C=3.0, max_iter=60, tol=1e-3).fit(X, tags)
        logs = np.full((X_test.shape[0], n_tags), LEAST)
        logs[:, model.classes_] = np.maximum(model.predict_log_proba(X_test), LEAST)
        return logs


def show_tags(name, guess, truth, seconds):
    print(f"  {name:52}{np.mean(guess == truth):8.3f}{seconds:9.1f} s", flush=True)


def chain_of(n_tags, seed=0, width=32, **params):
    start = 0.3 * np.random.default_rng(seed).normal(size=(2, n_tags, width))
    return ChainMRF(*start, **params)


def compare(evidence, tags, truth, lengths, lengths_test):
    n_tags = evidence.test.shape[1]
    show_tags("the classifier", evidence.test.argmax(axis=1), truth, evidence.seconds)
    start = time.process_time()
    chain = chain_of(n_tags).fit(tags, lengths=lengths)
    prior = np.log(np.bincount(tags, minlength=n_tags) / len(tags))

    def decoded(logs, weight, lengths):
        return chain.decode(unary=logs - weight * prior, lengths=lengths)[1]

    weights = np.linspace(0, 1, 5)
    right = [np.mean(decoded(evidence.train, weight, lengths) == tags) for weight in weights]
    best = weights[int(np.argmax(right))]
    seconds = time.process_time() - start
    for weight in sorted({0.0, best}):
        guess = decoded(evidence.test, weight, lengths_test)
        show_tags(f"chain learned from tags, less {weight:.2f} of the prior", guess, truth, seconds)
    start = time.process_time()
    chain = chain_of(n_tags, max_iter=60).fit(tags, unary=evidence.train, lengths=lengths)
    seconds = time.process_time() - start + evidence.seconds_of_folds
    given = {"unary": evidence.test, "lengths": lengths_test}
    show_tags("chain learned with evidence, best path", chain.decode(**given)[1], truth, seconds)
    guess = chain.marginals(**given).argmax(axis=1)
    show_tags("chain learned with evidence, marginals", guess, truth, seconds)


def crfsuite(train, test, names, truth):
    try:
        from sklearn_crfsuite import CRF
    except ImportError:
        return
    for is_wide in (False, True):
        X, X_test = (
            [[{k: float(v) for k, v in row.items()} for row in sentence] for sentence in part]
            for part in (features_of(train, is_wide), features_of(test, is_wide))
        )
        start = time.process_time()
        model = CRF(c1=0.0, c2=0.1, max_iterations=100)
        model.fit(X, [[row[2] for row in sentence] for sentence in train])
        seconds = time.process_time() - start
        guess = np.array([names.get(tag, -1) for path in model.predict(X_test) for tag in path])
        show_tags(
            f"CRFsuite, {'the words around' if is_wide else 'the word'}", guess, truth, seconds
        )


def tags(n_sentences=1500):
    """Print accuracies of taggers and chains."""
    train, test = tokens_of("train")[:n_sentences], tokens_of("dev")
    names = {tag: i for i, tag in enumerate(sorted({r[2] for s in train for r in s}))}
    own, truth = (np.array([names.get(r[2], -1) for s in p for r in s]) for p in (train, test))
    lengths = [list(map(len, part)) for part in (train, test)]
    for is_wide in (False, True):
        print("The classifier sees the word" + " and the words around" * is_wide)
        evidence = Evidence(train, test, own, len(names), is_wide)
        compare(evidence, own, truth, *lengths)
    crfsuite(train, test, names, truth)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = "gate", "curve", "docstrings", "tags"
    parser.add_argument("--part", choices=parts, default="gate")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mixed", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # iterations are limited for all
    if args.part == "tags":
        return tags()
    texts = docstrings(args.mixed) if args.part == "docstrings" else map(treebank, ("train", "dev"))
    train, held, n_symbols = numbered(*texts)
    print(f"{len(train):,} sentences, held out {len(held):,}; {n_symbols:,} symbols")
    best = show_ngrams(train, held, n_symbols)
    if args.part == "curve":
        curve(train, held, n_symbols)
        peer(train, held, n_symbols)
    else:
        value = gate(train, held, n_symbols, args.seeds)
        print(f"the best trigram is at {best:.1f}, the model {100 * (value / best - 1):+.1f} %")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
