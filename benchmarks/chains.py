"""Chains with features against the exact kernel: errors, reports of errors, and times.

    python benchmarks/chains.py                   errors of chains with one embedding a state
    python benchmarks/chains.py --part reports    what `ChainMRF.report` says of the error
    python benchmarks/chains.py --part times

All chains have 50 variables. Errors of log Z in nats and mean total variation of marginals: the
guide's embeddings over 20 draws, normal embeddings of several deviations and widths (5 draws, and
3 for 8,000 states), and 200 centres with ten copies of each, exact or moved a little. "as given"
are the errors of the same features without the correction, which ``later=embeddings`` leaves out.

Reports are about such features: ten draws of AdaptiveRF(256), embeddings of 16 normal numbers.

Times: of the first log Z with its set-up, of marginals afterwards, of a step of training (the
likelihood of 20 paths and its gradient, as after every move of the embeddings), of 100,000
variables, and of a message with and without the correction, beside the exact kernel's.
"""

import argparse
import time
import warnings

import numpy as np
from scipy.special import logsumexp

from skrf import AdaptiveRF, OptimalPositiveRF
from skrf.exceptions import FeatureCollapseWarning
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


# ---------------------------------------------------------------- errors


def show_errors(name, embeddings, n_draws):
    """Print the errors of both maps."""
    value, shares = exact(embeddings)
    for map_name, feature_map in MAPS.items():
        rows = []
        for seed in range(n_draws):
            options = {"feature_map": feature_map, "random_state": seed}
            chain = ChainMRF(embeddings, **options)
            gap = np.abs(chain.marginals(LENGTH) - shares).sum(axis=1).mean() / 2
            raw = ChainMRF(embeddings, embeddings, **options).log_partition(LENGTH) - value
            rows.append((chain.log_partition(LENGTH) - value, gap, raw))
        errors, gaps, raws = np.abs(rows).T
        print(
            f"{name:26}{map_name:24}largest error {errors.max():6.2f}  median "
            f"{np.median(errors):5.2f}  variation {gaps.mean():.3f}  as given {raws.max():7.1f}",
            flush=True,
        )


def errors():
    """Print the errors of all embeddings."""
    show_errors("guide", np.random.default_rng(0).normal(size=(2000, 8)) / 2, 20)
    rng = np.random.default_rng(1)
    copies = np.repeat(rng.normal(size=(200, 8)) / 2, 10, axis=0)
    show_errors("ten copies each", copies, 10)
    show_errors("moved by 0.05", copies + 0.05 * rng.normal(size=copies.shape), 10)
    for n, n_draws in ((2000, 5), (8000, 3)):
        for deviation in (0.35, 0.5, 0.8):
            for width in (4, 8, 16):
                embeddings = deviation * np.random.default_rng(1).normal(size=(n, width))
                show_errors(f"{n}, deviation {deviation}, d={width}", embeddings, n_draws)


# ---------------------------------------------------------------- reports


def reports():
    """Print a line for every draw, and in how many the estimate is within a factor of two."""
    warnings.simplefilter("ignore", FeatureCollapseWarning)  # the report says it
    for n_states, deviation in ((400, 0.4), (400, 0.8), (2000, 0.4), (2000, 0.8)):
        embeddings = deviation * np.random.default_rng(0).normal(size=(n_states, 16))
        value, n_good = exact(embeddings)[0], 0
        print(f"\n{n_states} states, deviation {deviation}: exact log Z {value:.3f}")
        print("   log Z   error  reported    lower    upper  holds")
        for seed in range(10):
            # The same embeddings as `later`: without, features are corrected.
            features = {"feature_map": AdaptiveRF(256), "random_state": seed}
            chain = ChainMRF(embeddings, embeddings, **features)
            approximate, report = chain.log_partition(LENGTH), chain.report(LENGTH)
            error = value - approximate
            n_good += 0.5 <= report.error / error <= 2
            holds = report.lower - 1e-6 <= value <= report.upper + 1e-6
            print(
                f"{approximate:8.2f} {error:7.2f} {report.error:9.2f} {report.lower:8.2f} "
                f"{report.upper:8.2f}  {holds!s:>5}",
                flush=True,
            )
        print(f"within a factor of two: {n_good} of 10")


# ---------------------------------------------------------------- times


def seconds(call, repeats=1):
    """Return the CPU seconds of a call, in the mean of some."""
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
    """Print the seconds of features and of the exact kernel by the number of states."""
    print(
        "states            first log Z   marginals    a step   100,000   a message  (not corrected)"
    )
    for n in (300, 600, 1200, 2400, 4800):
        embeddings = np.random.default_rng(0).normal(size=(n, 8)) / 2
        for name in ("exact", "AdaptiveRF(256)"):
            options = {"feature_map": MAPS.get(name, name), "random_state": 0}
            chain = ChainMRF(embeddings, **options)
            row = [seconds(lambda chain=chain: chain.log_partition(LENGTH))]
            row.append(seconds(lambda chain=chain: chain.marginals(LENGTH), 3))
            paths = chain.sample(LENGTH, 20, random_state=0)
            row.append(seconds(lambda chain=chain, paths=paths: step(chain, paths), 3))
            row.append(seconds(lambda chain=chain: chain.log_partition(100_000)))
            for later in (None, embeddings):
                pair = ChainMRF(embeddings, later, **options)._model.pair(0, 1)
                logs = np.zeros(n)
                pair.sums(logs)
                row.append(seconds(lambda pair=pair, logs=logs: pair.sums(logs), 200))
            *calls, message, plain = row
            columns = "".join(f"{value:9.3f} s" for value in calls)
            print(
                f"{n:6} {name:15}{columns}{1e6 * message:9.0f} us{1e6 * plain:9.0f} us", flush=True
            )


PARTS = {"errors": errors, "reports": reports, "times": times}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, default="errors")
    PARTS[parser.parse_args().part]()
