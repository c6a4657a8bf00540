"""Tags of words by a classifier, and by a chain on top of it: accuracy and seconds.

    SKRF_EWT_DIR=... python benchmarks/tags.py --sentences 1500

SKRF_EWT_DIR holds train.tsv and dev.tsv of the treebank of English web texts, a token per line with
two kinds of tags, of which the finer is used. A logistic regression sees a word, its endings and
its shape, or those and the words around. What it says of sentences that it was not trained with, by
five folds, is the evidence of chains: either the chain learns from tags alone, and the prior of the
tags is taken off the evidence with a weight that is best on these sentences, or it learns from tags
with their evidence. All are tested on the development part. CRFsuite, a linear-chain conditional
random field, is measured if it is installed (pip install sklearn-crfsuite).

Seconds are CPU seconds, with OPENBLAS_NUM_THREADS=1. About three minutes with 1,500 sentences.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from words import tokens_of

from skrf.graphical import ChainMRF

N_FOLDS, LEAST = 5, -20.0  # of log probabilities


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


def show(name, guess, truth, seconds):
    print(f"  {name:52}{np.mean(guess == truth):8.3f}{seconds:9.1f} s", flush=True)


def chain_of(n_tags, seed=0, width=32, **params):
    start = 0.3 * np.random.default_rng(seed).normal(size=(2, n_tags, width))
    return ChainMRF(*start, **params)


def compare(evidence, tags, truth, lengths, lengths_test):
    n_tags = evidence.test.shape[1]
    show("the classifier", evidence.test.argmax(axis=1), truth, evidence.seconds)
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
        show(f"chain learned from tags, less {weight:.2f} of the prior", guess, truth, seconds)
    start = time.process_time()
    chain = chain_of(n_tags, max_iter=60).fit(tags, unary=evidence.train, lengths=lengths)
    seconds = time.process_time() - start + evidence.seconds_of_folds
    given = {"unary": evidence.test, "lengths": lengths_test}
    show("chain learned with evidence, best path", chain.decode(**given)[1], truth, seconds)
    guess = chain.marginals(**given).argmax(axis=1)
    show("chain learned with evidence, marginals", guess, truth, seconds)


def peer(train, test, names, truth):
    try:
        from sklearn_crfsuite import CRF
    except ImportError:
        print("CRFsuite is not installed: pip install sklearn-crfsuite")
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
        show(f"CRFsuite, {'the words around' if is_wide else 'the word'}", guess, truth, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=1500)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # iterations are limited for all
    train, test = tokens_of("train")[: args.sentences], tokens_of("dev")
    names = {tag: i for i, tag in enumerate(sorted({r[2] for s in train for r in s}))}
    tags, truth = (np.array([names.get(r[2], -1) for s in p for r in s]) for p in (train, test))
    lengths, lengths_test = (list(map(len, part)) for part in (train, test))
    print(f"{len(train):,} sentences of {len(tags):,} words, {len(names)} tags; ", end="")
    print(f"tested on {len(test):,} of {len(truth):,}")
    for is_wide in (False, True):
        print("The classifier sees the word" + " and the words around" * is_wide)
        evidence = Evidence(train, test, tags, len(names), is_wide)
        compare(evidence, tags, truth, lengths, lengths_test)
    peer(train, test, names, truth)


if __name__ == "__main__":
    main()
