"""Chains whose states have one embedding for both sides, against the exact kernel.

    python benchmarks/symmetric_chains.py
    python benchmarks/symmetric_chains.py --part times

Errors of log Z in nats and mean total variation of marginals for chains of 50 variables: the
guide's embeddings over 20 draws, normal embeddings of several deviations and widths (5 draws, and
3 for 8,000 states), and 200 centres with ten copies of each, exact or moved a little. "as given"
are the errors of the same features without the correction, which ``later=embeddings`` leaves out.

Times: of the first log Z with its set-up, of marginals afterwards, of a step of training (the
likelihood of 20 paths and its gradient, as after every move of the embeddings), of 100,000
variables, and of a message with and without the correction, beside the exact kernel's.
"""

import argparse
import time

import numpy as np
from scipy.special import logsumexp

from skrf import AdaptiveRF, OptimalPositiveRF
from skrf.graphical import ChainMRF

LENGTH = 50
MAPS = {"OptimalPositiveRF(512)": OptimalPositiveRF(512), "AdaptiveRF(256)": AdaptiveRF(256)}


def exact(embeddings):
    """Return log Z and marginals of the kernel itself."""
    logs = embeddings @ embeddings.T
    top, message = logs.max(), np.zeros(len(logs))
    values, messages = np.exp(logs - top), [message]
    for _ in range(LENGTH - 1):
        message = np.log(values @ np.exp(message - message.max())) + message.max() + top
        messages.append(message)
    beliefs = np.array(messages) + np.array(messages[::-1])
    total = logsumexp(messages[-1])
    return total, np.exp(beliefs - total)


def errors(name, embeddings, n_draws):
    value, shares = exact(embeddings)
    for map_name, feature_map in MAPS.items():
        rows = []
        for seed in range(n_draws):
            given = {"feature_map": feature_map, "random_state": seed}
            chain = ChainMRF(embeddings, **given)
            gap = np.abs(chain.marginals(LENGTH) - shares).sum(axis=1).mean() / 2
            raw = ChainMRF(embeddings, embeddings, **given).log_partition(LENGTH) - value
            rows.append((chain.log_partition(LENGTH) - value, gap, raw))
        found, gaps, raws = np.array(rows).T
        print(
            f"{name:26}{map_name:24}largest error {np.abs(found).max():6.2f}  median "
            f"{np.median(np.abs(found)):5.2f}  variation {gaps.mean():.3f}  as given "
            f"{np.abs(raws).max():7.1f}",
            flush=True,
        )


def seconds(call, repeats=1):
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def step(chain, paths):
    """Compute a likelihood and its gradient as `fit` does after every move."""
    model = chain._model
    chain._fitted = model.with_embeddings(table for of in model.tables.values() for table in of)
    chain.log_prob_gradient(paths)
    chain._fitted = model


def times():
    print(
        "states            first log Z   marginals    a step   100,000   a message  (not corrected)"
    )
    for n in (300, 600, 1200, 2400, 4800):
        embeddings = np.random.default_rng(0).normal(size=(n, 8)) / 2
        for name in ("exact", "AdaptiveRF(256)"):
            given = {"feature_map": MAPS.get(name, name), "random_state": 0}
            chain = ChainMRF(embeddings, **given)
            row = [seconds(lambda chain=chain: chain.log_partition(LENGTH))]
            row.append(seconds(lambda chain=chain: chain.marginals(LENGTH), 3))
            paths = chain.sample(LENGTH, 20, random_state=0)
            row.append(seconds(lambda chain=chain, paths=paths: step(chain, paths), 3))
            row.append(seconds(lambda chain=chain: chain.log_partition(100_000)))
            for later in (None, embeddings):
                pair = ChainMRF(embeddings, later, **given)._model.pair(0, 1)
                logs = np.zeros(n)
                pair.sums(logs)
                row.append(seconds(lambda pair=pair, logs=logs: pair.sums(logs), 200))
            *calls, message, plain = row
            columns = "".join(f"{value:9.3f} s" for value in calls)
            print(
                f"{n:6} {name:15}{columns}{1e6 * message:9.0f} us{1e6 * plain:9.0f} us", flush=True
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("errors", "times"), default="errors")
    if parser.parse_args().part == "times":
        times()
        return
    errors("guide", np.random.default_rng(0).normal(size=(2000, 8)) / 2, 20)
    rng = np.random.default_rng(1)
    copies = np.repeat(rng.normal(size=(200, 8)) / 2, 10, axis=0)
    errors("ten copies each", copies, 10)
    errors("moved by 0.05", copies + 0.05 * rng.normal(size=copies.shape), 10)
    for n, n_draws in ((2000, 5), (8000, 3)):
        for deviation in (0.35, 0.5, 0.8):
            for width in (4, 8, 16):
                embeddings = deviation * np.random.default_rng(1).normal(size=(n, width))
                errors(f"{n}, deviation {deviation}, d={width}", embeddings, n_draws)


if __name__ == "__main__":
    main()
