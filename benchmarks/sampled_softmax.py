"""Drawing keys by `KernelSampler`: seconds beside a dense softmax.

    python benchmarks/sampled_softmax.py

A query's hundred draws with their probabilities, from up to a million keys by 256 features, and the
dense way, which computes all logits first. Half a minute.
"""

import time

import numpy as np

from skrf import KernelSampler


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


if __name__ == "__main__":
    times()
