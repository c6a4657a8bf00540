"""Measure a step of the hidden Markov filter against a dense one as the number of states grows.

    python benchmarks/hmm.py [--few | --loops | --starts]

Compares `KernelHMM.filter_step` (256 features) with a step that holds the matrix of states by
states and is written in plain NumPy with the same look-up of emissions, for one sequence and for
eight at once. The dense matrix is the product of the two factors of the other model, so that both
posteriors must agree. A round takes some steps of each in shuffled order, on at most two threads;
printed are the fastest steps of all rounds and the median ratio over rounds. Writes
docs/benchmarks/hmm_filter.png.

With --few it measures three to 64 states on one long series instead, beside hmmlearn in both of its
modes, by CPU time: the first call, the best of later ones, and how both compare. With --starts it
fits seven problems from ten seeds each, and prints the log likelihoods per sample where they end
beside the best of 16 fits by hmmlearn. With --loops it prints the CPU time of products of matrices
over that of compiled loops, from which `skrf.graphical._few.loops_pay` was made.
"""

import argparse
import random
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

from skrf import AdaptiveRF, OptimalPositiveRF
from skrf.graphical import KernelHMM

PICTURE = Path(__file__).parents[1] / "docs" / "benchmarks" / "hmm_filter.png"
SEED = 0
N_COMPONENTS, N_SYMBOLS, WIDTH, SCALE = 256, 64, 8, 0.5
SIZES = tuple(64 << i for i in range(9))  # to 16,384 states
N_ROUNDS = 9
BATCHES = (1, 8)
MANY = 10**6  # symbols of the longest series of few states
PROBLEMS = (
    "sunspots, 6",
    "left-right, 5",
    "left-right, 8",
    "regimes, variances only",
    "regimes, make_regime",
    "Gaussian, 4",
    "8 symbols",
)


# ---------------------------------------------------------------- filters of many states


class DenseFilter:
    """The forward algorithm with a matrix of states by states."""

    def __init__(self, model):
        own = model._model
        self.transition = own.transition.R @ own.transition.T
        self.log_emissions = own.log_emissions(np.arange(N_SYMBOLS))
        self.start = own.start

    def step(self, symbols, state):
        """Return (posterior, log_prob) after symbols; one sequence is a vector."""
        if state is None:
            predicted, log_prob = self.start, 0.0
        else:
            predicted, log_prob = state[0] @ self.transition, state[1]
        logs = self.log_emissions[symbols]
        top = logs.max(axis=-1, keepdims=True)
        weights = np.exp(logs - top) * predicted
        total = weights.sum(axis=-1, keepdims=True)
        return weights / total, log_prob + (np.log(total) + top)[..., 0]


def seconds_of_steps(step, symbols, state, most=1.0):
    """Return the seconds of steps, as many as there is time for, each from the last state."""
    times, began = [], time.perf_counter()
    for now in symbols:
        start = time.perf_counter()
        state = step(now, state)
        times.append(time.perf_counter() - start)
        if time.perf_counter() - began > most:
            break
    return times


def filters():
    """Return {(states, sequences): milliseconds of a step with features and with the matrix}."""
    found, shuffle = {}, random.Random(SEED).shuffle
    print("states sequences  features, ms  dense, ms  dense / features: fastest, median")
    for n_states in SIZES:
        rng = np.random.default_rng(SEED)
        roles = {"states": n_states, "targets": n_states, "emitters": n_states}
        embeddings = {
            role: SCALE * rng.standard_normal((n, WIDTH))
            for role, n in (roles | {"symbols": N_SYMBOLS}).items()
        }
        maps = {"feature_map": OptimalPositiveRF(N_COMPONENTS), "random_state": SEED}
        model = KernelHMM(**embeddings, **maps)
        steps = model.filter_step, DenseFilter(model).step
        for batch in BATCHES:
            symbols = rng.integers(N_SYMBOLS, size=(12, *([batch] if batch > 1 else [])))
            states = [None, None]
            for now in symbols[:2]:
                states = [step(now, state) for step, state in zip(steps, states, strict=True)]
            np.testing.assert_allclose(states[0].posterior, states[1][0], rtol=1e-9, atol=1e-12)
            times = [], []
            for _ in range(N_ROUNDS):
                order = [0, 1]
                shuffle(order)
                for i in order:
                    times[i].append(seconds_of_steps(steps[i], symbols, states[i]))
            medians = [[median(own) for own in side] for side in times]
            ratio = median(b / a for a, b in zip(*medians, strict=True))
            best = [1e3 * min(map(min, side)) for side in times]
            found[n_states, batch] = best
            print(
                f"{n_states:6} {batch:9} {best[0]:13.3f} {best[1]:10.3f} {best[1] / best[0]:12.1f}"
                f" {ratio:8.1f}",
                flush=True,
            )
    return found


def plot(found):
    """Draw the time of the fastest step against the number of states."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    sizes = sorted({n for n, _ in found})
    for axis, batch in zip(figure.subplots(1, 2, sharey=True), BATCHES, strict=True):
        labels = f"{N_COMPONENTS} features", "matrix of states by states"
        for i, (label, color) in enumerate(zip(labels, ("C0", "C3"), strict=True)):
            axis.loglog(sizes, [found[n, batch][i] for n in sizes], "o-", color=color, label=label)
            line = [found[sizes[-1], batch][i] * (n / sizes[-1]) ** (i + 1) for n in sizes]
            label = ("linear", "quadratic")[i]
            axis.loglog(sizes, line, color=color, linestyle=":", linewidth=1, label=label)
        title = "one sequence" if batch == 1 else f"{batch} sequences at once"
        axis.set(xlabel="states", title=title, ylim=(0.005, None))
        axis.set_xticks(sizes, sizes, rotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("fastest time of a filter step, ms")
    figure.axes[0].legend()
    figure.savefig(PICTURE, dpi=110)


# ---------------------------------------------------------------- few states, beside hmmlearn


def best_of(function, n_times=5):
    """Return the CPU times of the first call, and the least of some later ones, in ms."""
    times = []
    for _ in range(n_times + 1):
        began = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - began))
    return times[0], min(times[1:])


def quietly(function):
    """Return a function that calls another without its warnings and what hmmlearn logs."""
    import logging
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    logging.getLogger("hmmlearn").setLevel(logging.CRITICAL)

    def call(*args):
        with warnings.catch_warnings():
            # Fits stop after a given number of steps.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return function(*args)

    return call


def few_pairs(n_states, n_samples=20_000, n_symbols=8, **params):
    """Return our model, hmmlearn's in both modes with the same tables, and symbols."""
    from hmmlearn.hmm import CategoricalHMM

    model = KernelHMM.from_random(n_states, n_symbols, scale=0.8, random_state=SEED, **params)
    X = model.sample(n_samples, random_state=SEED)[0]
    theirs = {}
    for mode in ("log", "scaling"):
        other = CategoricalHMM(n_states, implementation=mode, n_features=n_symbols)
        other.startprob_, other.transmat_ = model.startprob_, model.transmat_
        other.emissionprob_ = model.emissionprob_
        theirs[mode] = other
    return model, theirs, X


def fits(n_states, X, n_iter, n_symbols=8):
    """Return fits of n_iter steps: ours by L-BFGS, and hmmlearn's EM in both modes."""
    from hmmlearn.hmm import CategoricalHMM
    from sklearn.base import clone

    params = {"max_iter": n_iter, "tol": 0.0, "random_state": SEED, "n_init": 1}
    ours = KernelHMM.from_random(n_states, n_symbols, **params)
    found = {"ours": quietly(lambda: clone(ours).fit(X))}
    for mode in ("log", "scaling"):
        params = {"n_iter": n_iter, "tol": -1e9, "implementation": mode, "random_state": SEED}
        found[mode] = quietly(lambda params=params: CategoricalHMM(n_states, **params).fit(X))
    return found


def em_steps(n_states, X, n_iter):
    """Return a function that takes steps of EM on tables."""
    from skrf.graphical import _learning

    model = KernelHMM.from_random(n_states, 8, random_state=SEED)._model
    sequences = [X[:, 0].astype(int)]
    return lambda: _learning.expectation_maximisation(model, sequences, n_iter, 0.0)


def few():
    """Print the times of few states beside those of hmmlearn, and whether gates are met."""
    lines = []

    def gate(what, ours, theirs, most, unit="ms"):
        first, ours = ours if isinstance(ours, tuple) else (float("nan"), ours)
        share = ours / theirs
        met = "met" if share <= most else "MISSED"
        lines.append(
            f"| {what} | {first:.2f} | {ours:.2f} | {theirs:.2f} | {share:.2f} | {most} | {met} |"
        )
        print(lines[-1], flush=True)

    model, _, X = few_pairs(4, 2**17)
    first, later = best_of(partial(model.score, X), 1)
    print(f"Compiled code comes in: {first:.0f} ms for 131,072 symbols, then {later:.1f}.")
    print("| what | first call, ms | ours, ms | compared with, ms | share | at most | |")
    print("|---|---|---|---|---|---|---|")
    for n in (3, 4, 16, 64):
        model, theirs, X = few_pairs(n)
        most, n_times = (1.0 if n <= 4 else 0.5), (5 if n <= 16 else 2)
        for what, name in (
            ("score", "score"),
            ("posterior", "predict_proba"),
            ("Viterbi", "decode"),
            ("predict", "predict"),
        ):
            compared = [best_of(partial(getattr(m, name), X), n_times)[1] for m in theirs.values()]
            own = best_of(partial(getattr(model, name), X), n_times)
            gate(f"{n} states: {what}", own, min(compared), most)
        compared = best_of(partial(theirs["log"].sample, 20_000, random_state=0), 1)[1]
        own = best_of(partial(model.sample, 20_000, random_state=0), 2)
        gate(f"{n} states: sampling", own, compared, 1.0)
        part, n_iter = X[:10_000], 10
        found = {name: best_of(fit, 2)[1] for name, fit in fits(n, part, n_iter).items()}
        faster = min(found["log"], found["scaling"]) / n_iter
        own = best_of(em_steps(n, part, n_iter), 2)[1] / n_iter
        gate(f"{n} states: EM step", own, faster, 0.5 if n <= 4 else 0.3)
        gate(f"{n} states: L-BFGS iteration", found["ours"] / n_iter, faster, 2 if n <= 4 else 0.7)
    onward = np.eye(4, dtype=bool) | np.roll(np.eye(4, dtype=bool), 1, axis=1)
    model, theirs, X = few_pairs(4, transition_mask=onward)
    for name in ("score", "predict_proba", "decode"):  # by logarithms
        own, *compared = (best_of(partial(getattr(m, name), X)) for m in (model, *theirs.values()))
        cells = *own, *(later for _, later in compared)
        print(
            f"| 4 states, forbidden transitions: {name} (first, ours, hmmlearn's log, scaling) | "
            + " | ".join(f"{cell:.2f}" for cell in cells),
            flush=True,
        )
    model, _, X = few_pairs(4, 3000)
    own = best_of(partial(quietly(model.set_params(random_state=0).fit), X), 1)
    gate("default fit of 3,000 symbols, 4 states", own, 3000.0, 1.0)
    large = KernelHMM.from_random(4096, 30, feature_map=AdaptiveRF(128), random_state=0)
    X = np.random.default_rng(0).integers(30, size=5000)
    own = best_of(partial(large.score, X), 1)
    print(f"| 4,096 states, 128 features, 5,000 symbols: score | {own[0]:.2f} | {own[1]:.2f} |")
    model, _, X = few_pairs(16, MANY)
    gate("a million symbols, 16 states: score", best_of(partial(model.score, X), 1), 1000.0, 1.0)
    gate("a million symbols, 16 states: Viterbi", best_of(partial(model.decode, X), 1), 1000.0, 1.0)


# ---------------------------------------------------------------- where fits end, beside hmmlearn


def walk(rng, moves, start, length):
    """Return a path of states."""
    path, edges = [], np.cumsum(np.vstack([moves, start]), axis=1)
    for point in rng.uniform(size=length):
        row = edges[path[-1] if path else -1]
        path.append(min(int(np.searchsorted(row, point)), len(start) - 1))
    return np.array(path)


def problem(name):
    """Return samples, lengths, what `KernelHMM` takes, and the log likelihood of the truth."""
    from skrf.datasets import make_regime

    rng, lengths, means, shares = np.random.default_rng(5), [2000], None, None
    if name == "sunspots, 6":
        from statsmodels.datasets import sunspots

        series = np.sqrt(sunspots.load_pandas().data["SUNACTIVITY"].to_numpy()[:231, None])
        return series, None, {"states": 6, "emissions": "gaussian"}, None
    if name.startswith("regimes"):
        moves, n = 0.925 * np.eye(3) + 0.025, 3
        path = walk(rng, moves, np.full(3, 1 / 3), 2000)
        if "make_regime" in name:  # keys of three regimes, of which a state has one each
            keys = [make_regime(kind, 2000, random_state=0)[1] for kind in ("normal", "sphere")]
            keys.append(make_regime("shifted", 2000, random_state=1)[1])
            rows = np.array(keys)[path, np.arange(2000)]
            return rows, None, {"states": 3, "emissions": "gaussian"}, None
        means, variances = np.zeros((3, 1)), np.square([[0.5], [1.2], [2.5]])
    elif name.startswith("Gaussian"):
        n = int(name[-1])
        moves = 0.9 * np.eye(n) + 0.1 * rng.dirichlet(np.ones(n), size=n)
        means = rng.normal(size=(n, 2)) * 1.5
        variances = rng.uniform(0.5, 1.5, (n, 2))
    elif name == "left-right, 5":  # 40 sequences, and a state or two may be left out
        n, lengths = 5, [60] * 40
        ahead = np.triu(np.ones((n, n))) - np.triu(np.ones((n, n)), 3)
        moves = 0.15 * rng.dirichlet(np.ones(n), size=n) * ahead + 0.9 * np.eye(n)
        moves /= moves.sum(axis=1, keepdims=True)
        shares = rng.dirichlet(np.full(12, 0.5), size=n)
    elif name == "left-right, 8":  # one sequence, 300 symbols of every state in turn
        n, lengths = 8, [2400]
        moves = np.eye(n) * (1 - 1 / 300) + np.eye(n, k=1) / 300
        moves[-1, -1] = 1
        shares = rng.dirichlet(np.ones(8), size=n)
    else:  # 8 symbols
        n = 4
        moves = 0.5 * np.eye(n) + 0.5 * rng.dirichlet(np.ones(n), size=n)
        shares = rng.dirichlet(np.full(8, 0.4), size=n)
    start = np.eye(n)[0] if name.startswith("left") else np.full(n, 1 / n)
    path = np.concatenate([walk(rng, moves, start, length) for length in lengths])
    given = {"states": n}
    if name.startswith("left"):
        given |= {"transition_mask": moves > 0, "start_mask": start > 0}
    if name == "left-right, 8":
        path = np.repeat(np.arange(n), 300)
    if means is None:
        edges = shares.cumsum(axis=1)[path]
        X = (rng.random((len(path), 1)) > edges).sum(axis=1).clip(max=shares.shape[1] - 1)[:, None]
        truth = KernelHMM.from_tables(start, moves, shares)
    else:
        X = means[path] + np.sqrt(variances[path]) * rng.normal(size=(len(path), means.shape[1]))
        given["emissions"] = "gaussian"
        truth = KernelHMM.from_tables(start, moves, means=means, covars=variances)
    return X, lengths, given, truth.score(X, lengths) / len(X)


def hmmlearn_fit(X, lengths, given, seed):
    """Return the log likelihood where EM of hmmlearn ends, from one of its own starts."""
    from hmmlearn import hmm

    n, params = given["states"], {"n_iter": 300, "tol": 1e-3, "random_state": seed}
    kind = hmm.GaussianHMM if "emissions" in given else hmm.CategoricalHMM
    if "transition_mask" in given:
        model = kind(n, init_params="e", **params)
        draws = np.random.default_rng(seed).dirichlet(np.ones(n), size=n)
        model.startprob_ = given["start_mask"].astype(float)
        model.transmat_ = draws * given["transition_mask"]
        model.transmat_ /= model.transmat_.sum(axis=1, keepdims=True)
    else:
        model = kind(n, **params)
    return model.fit(X, lengths).score(X, lengths)


def starts(n_seeds=10):
    """Print where fits of several seeds end, beside the best of 16 by hmmlearn."""
    print(
        "| problem | least | median | gate | of 10 | CPU s | hmmlearn, best of 16 | CPU s | truth |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in PROBLEMS:
        X, lengths, given, truth = problem(name)
        began = time.process_time()
        theirs = [quietly(hmmlearn_fit)(X, lengths, given, seed) for seed in range(16)]
        cpu, best = time.process_time() - began, max(theirs) / len(X)
        gate = truth - 0.01 if name == "left-right, 8" else best - 0.002
        fit, ends = quietly(KernelHMM.fit), []
        fit(KernelHMM(**given, max_iter=30, random_state=0), X, lengths)  # compiles
        began = time.process_time()
        for seed in range(n_seeds):
            model = fit(KernelHMM(**given, random_state=seed), X, lengths)
            ends.append(model.score(X, lengths) / len(X))
        own = (time.process_time() - began) / n_seeds
        reached = sum(end >= gate for end in ends)
        last = "" if truth is None else f"{truth:.4f}"
        print(
            f"| {name} | {min(ends):.4f} | {np.median(ends):.4f} | {gate:.4f} | {reached} | "
            f"{own:.2f} | {best:.4f} | {cpu:.1f} | {last} |",
            flush=True,
        )


# ---------------------------------------------------------------- loops and products


def loops():
    """Print the times of products over those of loops, for each task, and which of them serves."""
    from skrf import _kernels
    from skrf.graphical import _learning, _recursions

    pays = _recursions.loops_pay
    _recursions.of_recursions = lambda *_: _kernels._cpu()  # however few symbols there are
    tasks = "score", "posteriors", "gradients", "paths"
    print(f"| states | kernel | sequences | {' | '.join(tasks)} |\n|---|---|---|---|---|---|---|")
    for n_states in (128, 200, 400, 800):
        for feature_map, n_features in (("exact", None), (AdaptiveRF(256), 256)):
            model = KernelHMM.from_random(n_states, 8, feature_map=feature_map, random_state=SEED)
            for lengths in ([5000], [400], [200] * 4, [20] * 64):
                X = np.random.default_rng(SEED).integers(8, size=sum(lengths))
                sequences = np.split(X, np.cumsum(lengths)[:-1])
                calls = (
                    partial(model.score, X, lengths),
                    partial(model.predict_proba, X, lengths),
                    partial(_learning.gradients, model._model, sequences),
                    partial(model.decode, X, lengths),
                )
                times = []
                for is_loop in (True, False):
                    _recursions.loops_pay = lambda *_, is_loop=is_loop: is_loop
                    times.append([best_of(call, 2)[1] for call in calls])
                cells = [
                    f"{product / loop:.2f}"
                    f"{' loops' * pays(task, n_states, len(lengths), n_features)}"
                    for task, loop, product in zip(tasks, *times, strict=True)
                ]
                name = "exact" if n_features is None else f"{n_features} features"
                series = f"{len(lengths)} of {lengths[0]}"
                print(f"| {n_states} | {name} | {series} | {' | '.join(cells)} |", flush=True)


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--few", action="store_true", help="few states, beside hmmlearn")
    chosen.add_argument("--starts", action="store_true", help="where fits end, beside hmmlearn")
    chosen.add_argument("--loops", action="store_true", help="loops against products")
    options = parser.parse_args()
    if options.loops:
        loops()
    elif options.few:
        few()
    elif options.starts:
        starts()
    else:
        with threadpool_limits(2):
            plot(filters())


if __name__ == "__main__":
    main()
