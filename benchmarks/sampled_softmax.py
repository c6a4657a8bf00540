"""Drawing negatives by `KernelSampler`: seconds beside a dense softmax, and a word model.

    python benchmarks/sampled_softmax.py --part times
    SKRF_EWT_DIR=... python benchmarks/sampled_softmax.py --part words

Times: a query's hundred draws with their probabilities, from 100,000 keys by 256 features, and the
dense way, which computes all logits first.

Words: a log-bilinear model of the next word given the last two, with unit embeddings times a
scale, learns from batches by sampled softmax: the loss over the word and some negatives, corrected
by the probabilities of these. Negatives are uniform, log-uniform in the rank of a word, or follow
the model itself by random features: the kernel of three tenths of the logits, for which 64 features
are good enough, times the frequencies of words to the power 0.75. Features are computed anew every
50 steps. Every way gets the same CPU seconds and is judged by the perplexity of the full softmax on
the development part (SKRF_EWT_DIR as in text.py). About five minutes.
"""

import argparse
import time

import numpy as np
import scipy.sparse
from text import numbered, treebank

from skrf import KernelSampler, OptimalPositiveRF

WIDTH, BATCH, RATE, SCALE = 48, 256, 0.15, 3.0
TEMPER, EVERY, BUDGET = np.sqrt(0.3), 50, 30


def seconds(call, repeats):
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def times():
    rng = np.random.default_rng(0)
    for n in (10_000, 100_000, 1_000_000):
        keys, queries = rng.normal(size=(n, 32)) / 4, rng.normal(size=(20, 32)) / 4
        start = time.process_time()
        sampler = KernelSampler(random_state=0).fit(keys)
        fit = time.process_time() - start

        def by_features(sampler=sampler, queries=queries):
            sampler.log_prob(queries, sampler.sample(queries, 100, random_state=0))

        def dense(keys=keys, queries=queries):
            logits = queries @ keys.T
            edges = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)
            points = rng.uniform(size=(len(queries), 100)) * edges[:, -1:]
            for edge, point in zip(edges, points, strict=True):
                np.searchsorted(edge, point)

        def update(sampler=sampler, keys=keys):
            sampler.update(17, keys[3])

        ours, theirs = seconds(by_features, 5) / 20, seconds(dense, 3) / 20
        print(
            f"{n:9,} keys: 100 draws {1e3 * ours:6.2f} ms, dense {1e3 * theirs:7.2f} ms "
            f"({theirs / ours:.1f} times); fit {fit:.2f} s, "
            f"update {1e3 * seconds(update, 20):.2f} ms",
            flush=True,
        )


class WordModel:
    """The next word given two: q = scale * unit(A[before] + B[last]), k = scale * unit(C[word])."""

    def __init__(self, n_symbols, seed):
        rng = np.random.default_rng(seed)
        self.tables = [rng.normal(size=(n_symbols + 1, WIDTH)) for _ in range(3)]
        self.squares = [np.full(table.shape, 1e-8) for table in self.tables]

    def queries(self, contexts):
        A, B, _ = self.tables
        sums = A[contexts[:, 0]] + B[contexts[:, 1]]
        return SCALE * sums / np.linalg.norm(sums, axis=1, keepdims=True)

    @property
    def keys(self):
        table = self.tables[2][:-1]
        return SCALE * table / np.linalg.norm(table, axis=1, keepdims=True)

    def step(self, contexts, words, negatives, log_probs):
        """Take a step of Adagrad on the loss over words and negatives, with their corrections."""
        A, B, C = self.tables
        sums, q = A[contexts[:, 0]] + B[contexts[:, 1]], self.queries(contexts)
        chosen = np.column_stack([words, negatives])
        raw = C[chosen]
        norms = np.linalg.norm(raw, axis=2, keepdims=True)
        k = SCALE * raw / norms
        logits = np.einsum("bd,bmd->bm", q, k)
        logits[:, 1:] -= log_probs + np.log(negatives.shape[1])
        logits[:, 1:][negatives == words[:, None]] = -np.inf
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[:, 0] -= 1
        by_q = np.einsum("bm,bmd->bd", shares, k)
        by_k = shares[:, :, None] * q[:, None]
        by_sums = _through_norm(by_q, q, np.linalg.norm(sums, axis=1, keepdims=True), SCALE)
        by_raw = _through_norm(by_k, k, norms, SCALE)
        for table, squares, rows, gradient in (
            (A, self.squares[0], contexts[:, 0], by_sums),
            (B, self.squares[1], contexts[:, 1], by_sums),
            (C, self.squares[2], chosen.ravel(), by_raw.reshape(-1, WIDTH)),
        ):
            different, where = np.unique(rows, return_inverse=True)
            one_hot = np.ones(len(where)), where.ravel(), np.arange(len(where) + 1)
            total = scipy.sparse.csr_array(one_hot, shape=(len(where), len(different))).T @ gradient
            squares[different] += total**2
            table[different] -= RATE * total / np.sqrt(squares[different])

    def perplexity(self, contexts, words):
        losses, keys = [], self.keys
        for start in range(0, len(words), 4096):
            rows = slice(start, start + 4096)
            logits = self.queries(contexts[rows]) @ keys.T
            top = logits.max(axis=1)
            sums = np.exp(logits - top[:, None]).sum(axis=1)
            losses.append(np.log(sums) + top - logits[np.arange(len(logits)), words[rows]])
        return np.exp(np.mean(np.concatenate(losses)))


def _through_norm(gradient, scaled, norms, scale):
    """Return the gradient with respect to x of that with respect to scale * x / |x|."""
    unit = scaled / scale
    return scale / norms * (gradient - unit * np.sum(gradient * unit, axis=-1, keepdims=True))


def examples(sentences, n_symbols):
    """Return the two words before every word (n_symbols where there is none), and the words."""
    contexts, words = [], []
    for sentence in sentences:
        padded = np.concatenate([[n_symbols] * 2, sentence])
        contexts.append(np.column_stack([padded[:-2], padded[1:-1]]))
        words.append(sentence)
    return np.vstack(contexts), np.concatenate(words)


def learned(way, data, n_symbols, n_negatives, budget, seed):
    """Return the model after some CPU seconds, and the number of steps."""
    contexts, words = data
    rng, model = np.random.default_rng(seed), WordModel(n_symbols, seed)
    counts = np.bincount(words, minlength=n_symbols)
    ranks = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
    shares = np.ones(n_symbols) if way == "uniform" else np.log1p(1 / (1 + ranks))
    shares = shares / shares.sum()
    start, n_steps, edges = time.process_time(), 0, np.cumsum(shares)
    sampler = KernelSampler(OptimalPositiveRF(64, kernel="softmax"), random_state=seed)
    while time.process_time() - start < budget:
        rows = rng.integers(len(words), size=BATCH)
        if way == "kernel":
            if n_steps % EVERY == 0:
                sampler.fit(TEMPER * model.keys, sample_weight=(1 + counts) ** 0.75)
            q = TEMPER * model.queries(contexts[rows])
            negatives = sampler.sample(q, n_negatives, random_state=int(rng.integers(2**31)))
            log_probs = sampler.log_prob(q, negatives)
        else:
            points = rng.uniform(size=(BATCH, n_negatives)) * edges[-1]
            negatives = np.minimum(np.searchsorted(edges, points), n_symbols - 1)
            log_probs = np.log(shares[negatives])
        model.step(contexts[rows], words[rows], negatives, log_probs)
        n_steps += 1
    return model, n_steps


def words():
    train, held, n_symbols = numbered(treebank("train"), treebank("dev"))
    data, test = examples(train, n_symbols), examples(held, n_symbols)
    print(f"{n_symbols:,} words, {len(data[1]):,} examples, {BUDGET} CPU seconds each")
    ways = ("uniform", "log-uniform", "kernel")
    for way, n_negatives in ((way, n) for way in ways for n in (4, 16, 64)):
        model, n_steps = learned(way, data, n_symbols, n_negatives, BUDGET, 0)
        what = f"{way:12}{n_negatives:4} negatives"
        print(f"{what}{model.perplexity(*test):9.1f}{n_steps:8} steps", flush=True)


PARTS = {"times": times, "words": words}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, default="times")
    PARTS[parser.parse_args().part]()


if __name__ == "__main__":
    main()
