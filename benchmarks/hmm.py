"""Measure a step of the hidden Markov filter against a dense one as the number of states grows.

python benchmarks/hmm.py [--quick | --targets | --few | --loops | --starts] [--rounds R]
                         [--threads T]

Compares `KernelHMM.filter_step` (256 features) with a step that holds the matrix of states by
states and is written in plain NumPy with the same look-up of emissions, for one sequence and for
eight at once, in the same type of numbers on both sides. It says which of the targets about speed
hold here, prints tables as Markdown and writes benchmarks/results/hmm.json and .png.

How it measures. Every number of states and type of numbers is a process of its own, which holds
both models; the dense matrix is the product of the two factors of the other one, so that the
posteriors of both must agree, and the process stops if they do not. A round takes some steps of
each in shuffled order, every step from the state that the one before left, as a filter does.
Ratios are taken within a round: the tables have their median over rounds, and beside it the ratio
of the fastest steps of all rounds. A target is met if both meet it, missed if neither does, and
else undecided. On a machine with other work, threads of BLAS that wait for each other cost either
side many times the work itself: look at the loads that are printed. Memory is the peak of a
process that never holds a dense matrix.

With --few it measures three to 64 states on one long series instead, beside hmmlearn in both of its
modes, by CPU time: the first call, the best of later ones, and how both compare. With --starts it
fits seven problems from ten seeds each, and prints the log likelihoods per sample where they end
beside the best of 16 fits by hmmlearn. With --loops it
prints the CPU time of products of matrices over that of compiled loops, from which
`skrf.graphical._few.loops_pay` was made.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

from _memory import peak_memory

# No NumPy up here: a child's peak memory begins at what its parent held when it started it.

RESULTS = Path(__file__).parent / "results"
N_THREADS = 2
SEED = 0
N_COMPONENTS, N_SYMBOLS, WIDTH, SCALE = 256, 64, 8, 0.5
SHORTEST, LONGEST, LONGEST_DENSE = 64, 32_768, 16_384
BATCHES = (1, 8)
DTYPES = ("float32", "float64")
WANTED = {1: 16, 8: 24}  # dense / ours at 16,384 states
STEPS_OURS, STEPS_DENSE, SECONDS_A_ROUND = 12, 3, 1.0
SPARE = 1.5e9  # bytes that must be free besides a dense matrix
PROBLEMS = (
    "sunspots, 6",
    "left-right, 5",
    "left-right, 8",
    "regimes, variances only",
    "regimes, make_regime",
    "Gaussian, 4",
    "8 symbols",
)
MANY = 10**6  # symbols of the longest series of few states
MB, GB = 1e6, 1e9


# ---------------------------------------------------------------- one case (the child)


def free_memory():
    """Return how many bytes can be had without swapping, or None where it is not told."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def make_model(n_states, dtype):
    """Return a model of random embeddings in the given type."""
    import numpy as np

    from skrf import OptimalPositiveRF
    from skrf.graphical import KernelHMM

    rng = np.random.default_rng(SEED)
    roles = {"states": n_states, "targets": n_states, "emitters": n_states, "symbols": N_SYMBOLS}
    embeddings = {
        role: (SCALE * rng.standard_normal((n, WIDTH))).astype(dtype) for role, n in roles.items()
    }
    return KernelHMM(**embeddings, feature_map=OptimalPositiveRF(N_COMPONENTS), random_state=SEED)


class DenseFilter:
    """The forward algorithm with a matrix of states by states."""

    def __init__(self, model, dtype):
        import numpy as np

        own = model._model
        n = len(own.start)
        needed = n * n * np.dtype(dtype).itemsize
        free = free_memory()
        if free is not None and free < needed + SPARE:
            raise SystemExit(f"{free / GB:.1f} GB are free, {(needed + SPARE) / GB:.1f} needed")
        self.transition = np.empty((n, n), dtype=dtype)
        for start in range(0, n, 1024):
            rows = slice(start, start + 1024)
            np.matmul(own.transition.R[rows], own.transition.T, out=self.transition[rows])
        self.log_emissions = own.log_emissions(np.arange(N_SYMBOLS)).astype(dtype)
        self.start = own.start

    def step(self, symbols, state):
        """Return (posterior, log_prob) after symbols; one sequence is a vector."""
        import numpy as np

        if state is None:
            predicted, log_prob = self.start, 0.0
        else:
            predicted, log_prob = state[0] @ self.transition, state[1]
        logs = self.log_emissions[symbols]
        top = logs.max(axis=-1, keepdims=True)
        weights = np.exp(logs - top) * predicted
        total = weights.sum(axis=-1, keepdims=True)
        return weights / total, log_prob + (np.log(total) + top)[..., 0]


def take_steps(step, symbols, state, most, seconds):
    """Take steps until there are enough or time is up; return times and the last state."""
    times = []
    began = time.perf_counter()
    for now in symbols[:most]:
        start = time.perf_counter()
        state = step(now, state)
        end = time.perf_counter()
        times.append(end - start)
        if end - began > seconds:
            break
    return times, state


def check_equal(ours, dense, symbols, dtype):
    """Compare both filters after a few steps."""
    import numpy as np

    state, other = None, None
    for now in symbols[:3]:
        state, other = ours(now, state), dense(now, other)
    rtol = 1e-3 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(state.posterior, other[0], rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(state.log_prob, other[1], rtol=rtol)


def run_case(n_states, dtype, n_rounds, with_dense):
    """Return the times of all steps by batch, method and round, and the peak memory."""
    import numpy as np

    from skrf.graphical import KernelHMM  # noqa: F401, what is imported counts for nobody

    before = peak_memory()
    began = time.perf_counter()
    model = make_model(n_states, dtype)
    model.filter_step(0)
    built = time.perf_counter() - began
    rng = np.random.default_rng(SEED)
    streams = {1: rng.integers(N_SYMBOLS, size=64), 8: rng.integers(N_SYMBOLS, size=(64, 8))}
    methods = {"ours": model.filter_step}
    if with_dense:
        methods["dense"] = DenseFilter(model, dtype).step
        for symbols in streams.values():
            check_equal(*methods.values(), symbols, dtype)
    most = {"ours": STEPS_OURS, "dense": STEPS_DENSE if n_states > 2048 else STEPS_OURS}
    shuffle = random.Random(SEED).shuffle
    times, states = [], {}
    for batch in BATCHES:
        for name, step in methods.items():  # not timed
            state = step(streams[batch][0], None)
            states[batch, name] = step(streams[batch][1], state)
    for i in range(n_rounds):
        order = list(states)
        shuffle(order)
        for batch, name in order:
            found, states[batch, name] = take_steps(
                methods[name], streams[batch], states[batch, name], most[name], SECONDS_A_ROUND
            )
            times.append({"batch": batch, "method": name, "round": i, "times": found})
    return {
        "n_states": n_states,
        "dtype": dtype,
        "with_dense": with_dense,
        "build": built,
        "before": before,
        "peak": peak_memory(),
        "times": times,
    }


# ---------------------------------------------------------------- all cases (the parent)


def measure(cases, n_rounds, n_threads):
    """Return the records of all cases, and the reasons for those that did not run."""
    records, failed = [], []
    environment = {
        **os.environ,
        **{f"{name}_NUM_THREADS": str(n_threads) for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")},
    }
    for n_states, dtype, with_dense in cases:
        load = os.getloadavg()[0]
        case = [str(n_states), dtype, str(n_rounds), str(int(with_dense))]
        done = subprocess.run(
            [sys.executable, __file__, "--case", *case],
            env=environment,
            capture_output=True,
            text=True,
        )
        what = f"{n_states} states, {dtype}"
        if done.returncode:
            said = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
            failed.append(f"{what}: {said}")
        else:
            records.append({**json.loads(done.stdout), "load": load})
            said = f"done, load {load:.1f} at its start"
        print(f"{what}: {said}", file=sys.stderr, flush=True)
    return records, failed


class Times:
    """The steps of one process, by batch and method."""

    def __init__(self, record):
        self.record = record
        self._by_case = {}
        for part in record["times"]:
            rounds = self._by_case.setdefault((part["batch"], part["method"]), {})
            rounds[part["round"]] = part["times"]

    def __contains__(self, case):
        return case in self._by_case

    def typical(self, *case):
        """Return the median over rounds of a round's median."""
        return median(map(median, self._by_case[case].values()))

    def fastest(self, *case):
        """Return the shortest step."""
        return min(map(min, self._by_case[case].values()))

    def gain(self, batch):
        """Return dense / ours: median over rounds, and of the fastest steps."""
        ours, dense = self._by_case[batch, "ours"], self._by_case[batch, "dense"]
        shared = [median(dense[i]) / median(ours[i]) for i in ours]
        return median(shared), self.fastest(batch, "dense") / self.fastest(batch, "ours")


def table(cases):
    """Return the Markdown table of all steps."""
    lines = [
        "| states | type | sequences | ours, ms | fastest, ms | dense, ms | fastest, ms "
        "| dense / ours | fastest / fastest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        for batch in BATCHES:
            cells = [case.record["n_states"], case.record["dtype"], batch]
            for method in ("ours", "dense"):
                if (batch, method) in case:
                    seconds = case.typical(batch, method), case.fastest(batch, method)
                    cells += [f"{1e3 * value:.3f}" for value in seconds]
                else:
                    cells += ["", ""]
            has_dense = (batch, "dense") in case
            cells += [f"{ratio:.1f}" for ratio in case.gain(batch)] if has_dense else ["", ""]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def verdicts(cases):
    """Return a line for every target."""
    lines = []
    for dtype in DTYPES:
        for batch, factor in WANTED.items():
            many = "one sequence" if batch == 1 else f"{batch} sequences at once"
            target = f"{LONGEST_DENSE} states, {dtype}, {many}: less than 1/{factor} of dense"
            found = [
                case
                for case in cases
                if (case.record["n_states"], case.record["dtype"]) == (LONGEST_DENSE, dtype)
                and (batch, "dense") in case
            ]
            if not found:
                lines.append(f"- NOT MEASURED: {target}")
                continue
            ratios = found[0].gain(batch)
            kept = [ratio > factor for ratio in ratios]
            word = "MET" if all(kept) else "UNDECIDED" if any(kept) else "MISSED"
            seen = " and ".join(f"1/{ratio:.1f}" for ratio in ratios)
            lines.append(f"- {word}: {target}: {seen} (medians, fastest)")
    return lines


def memory_lines(records):
    """Return what the processes without a dense matrix needed."""
    lines = []
    for record in records:
        if record["with_dense"]:
            continue
        n, size = record["n_states"], 4 if record["dtype"] == "float32" else 8
        lines.append(
            f"- {n} states, {record['dtype']}: peak {record['peak'] / MB:.0f} MB, of which "
            f"{record['before'] / MB:.0f} MB were there after the imports; built in "
            f"{record['build']:.1f} s. A matrix of states by states would take "
            f"{n * n * size / GB:.1f} GB."
        )
    return lines


def describe(n_rounds, n_threads, loads):
    """Return the lines that say what was measured, where and how."""
    from importlib import metadata

    versions = [f"{name} {metadata.version(name)}" for name in ("numpy", "scipy")]
    return [
        f"{N_COMPONENTS} features, {N_SYMBOLS} symbols, embeddings of width {WIDTH} and standard "
        f"deviation {SCALE}, seed {SEED}.",
        f"{n_threads} threads a process (OPENBLAS_NUM_THREADS = OMP_NUM_THREADS = {n_threads}), "
        f"{os.cpu_count()} cores with a load of {loads[0]:.1f} at the start and {loads[1]:.1f} at "
        f"the end, this benchmark included in the second; {n_rounds} rounds; "
        f"{', '.join(versions)}.",
    ]


def plot(cases, path):
    """Draw the time of the fastest step against the number of states."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained", sharey=True)
    cases = [case for case in cases if case.record["dtype"] == "float64"]
    sizes = sorted({case.record["n_states"] for case in cases})
    for axis, batch in zip(axes, BATCHES, strict=True):
        for method, label, color in (
            ("ours", f"{N_COMPONENTS} features", "C0"),
            ("dense", "matrix of states by states", "C3"),
        ):
            points = sorted(
                (case.record["n_states"], 1e3 * case.fastest(batch, method))
                for case in cases
                if (batch, method) in case
            )
            axis.loglog(*zip(*points, strict=True), marker="o", color=color, label=label)
            start, top = points[-1]
            power = 1 if method == "ours" else 2
            line = [top * (n / start) ** power for n in sizes]
            label = "linear" if power == 1 else "quadratic"
            axis.loglog(sizes, line, color=color, linestyle=":", linewidth=1, label=label)
        axis.set(
            xlabel="states",
            title="one sequence" if batch == 1 else f"{batch} sequences at once",
            ylim=(0.005, None),
        )
        axis.set_xticks(sizes, sizes, rotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("fastest time of a filter step, ms (float64)")
    axes[0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


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

    from skrf.graphical import KernelHMM

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

    from skrf.graphical import KernelHMM

    params = {"max_iter": n_iter, "tol": 0.0, "random_state": SEED, "n_init": 1}
    ours = KernelHMM.from_random(n_states, n_symbols, **params)
    found = {"ours": quietly(lambda: clone(ours).fit(X))}
    for mode in ("log", "scaling"):
        params = {"n_iter": n_iter, "tol": -1e9, "implementation": mode, "random_state": SEED}
        found[mode] = quietly(lambda params=params: CategoricalHMM(n_states, **params).fit(X))
    return found


def em_steps(n_states, X, n_iter):
    """Return a function that takes steps of EM on tables."""
    from skrf.graphical import KernelHMM, _learning

    model = KernelHMM.from_random(n_states, 8, random_state=SEED)._model
    sequences = [X[:, 0].astype(int)]
    return lambda: _learning.expectation_maximisation(model, sequences, n_iter, 0.0)


def few():
    """Print the times of few states beside those of hmmlearn, and whether gates are met."""
    import numpy as np

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
    from sklearn.base import clone

    from skrf.graphical import KernelHMM

    model, _, X = few_pairs(4, 3000)
    own = best_of(partial(quietly(clone(model).set_params(random_state=0).fit), X), 1)
    gate("default fit of 3,000 symbols, 4 states", own, 3000.0, 1.0)
    for n, length in ((5000, 1), (2000, 10)):
        model, _, X = few_pairs(4, n * length)
        lengths = [length] * n
        for name in ("score", "predict_proba"):
            own = best_of(partial(getattr(model, name), X, lengths), 3)
            print(f"| {n} x {length}: {name} | {own[0]:.2f} | {own[1]:.2f} |", flush=True)
        short = clone(model).set_params(max_iter=5, n_init=1)
        own = best_of(partial(quietly(short.fit), X, lengths), 3)
        print(f"| {n} x {length}: five iterations | {own[0]:.2f} | {own[1]:.2f} |", flush=True)
    from skrf import AdaptiveRF

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
    import numpy as np

    path, edges = [], np.cumsum(np.vstack([moves, start]), axis=1)
    for point in rng.uniform(size=length):
        row = edges[path[-1] if path else -1]
        path.append(min(int(np.searchsorted(row, point)), len(start) - 1))
    return np.array(path)


def problem(name):
    """Return samples, lengths, what `KernelHMM` takes, and the log likelihood of the truth."""
    import numpy as np

    from skrf.datasets import make_regime
    from skrf.graphical import KernelHMM

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
    import numpy as np
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


def starts(only, n_seeds=10):
    """Print where fits of several seeds end, beside the best of 16 by hmmlearn."""
    import numpy as np

    from skrf.graphical import KernelHMM

    print(
        "| problem | least | median | gate | of 10 | CPU s | hmmlearn, best of 16 | CPU s | truth |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in PROBLEMS:
        if only and only not in name:
            continue
        X, lengths, given, truth = problem(name)
        began = time.process_time()
        theirs = [quietly(hmmlearn_fit)(X, lengths, given, seed) for seed in range(16)]
        cpu, best = time.process_time() - began, max(theirs) / len(X)
        gate = truth - 0.01 if name == "left-right, 8" else best - 0.002
        fit, ends = quietly(KernelHMM.fit), []
        fit(KernelHMM(**given, max_iter=2, random_state=0), X, lengths)  # compiles
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
    import numpy as np

    from skrf import AdaptiveRF, _kernels
    from skrf.graphical import KernelHMM, _learning, _recursions

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
    """Run all cases and print what was seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two rounds, at most 4,096 states")
    parser.add_argument(
        "--targets", action="store_true", help=f"only {LONGEST_DENSE} states, no results written"
    )
    parser.add_argument("--few", action="store_true", help="few states, beside hmmlearn")
    parser.add_argument(
        "--starts", nargs="?", const="", metavar="PROBLEM", help="where fits end, beside hmmlearn"
    )
    parser.add_argument("--loops", action="store_true", help="loops against products")
    parser.add_argument("--rounds", type=int, help="default 9, quick 2")
    parser.add_argument("--threads", type=int, default=N_THREADS, help=f"default {N_THREADS}")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loops:
        loops()
        return
    if options.few:
        few()
        return
    if options.starts is not None:
        starts(options.starts)
        return
    if options.case:
        n_states, dtype, n_rounds, with_dense = options.case
        record = run_case(int(n_states), dtype, int(n_rounds), with_dense == "1")
        print(json.dumps(record))
        return
    n_rounds = options.rounds or (2 if options.quick else 9)
    longest = 4096 if options.quick else LONGEST
    sizes = [SHORTEST << i for i in range(32) if SHORTEST << i <= longest]
    if options.targets:
        sizes, longest = [LONGEST_DENSE], LONGEST_DENSE
    cases = [(n, "float64", True) for n in sizes if n <= LONGEST_DENSE]
    if longest >= LONGEST_DENSE:
        cases.append((LONGEST_DENSE, "float32", True))
    cases += [(longest, dtype, False) for dtype in DTYPES if longest > LONGEST_DENSE]
    began = os.getloadavg()[0]
    records, failed = measure(cases, n_rounds, options.threads)
    about = describe(n_rounds, options.threads, (began, os.getloadavg()[0]))
    measured = [Times(record) for record in records]
    said = verdicts(measured)
    memory = memory_lines(records)
    missing = [f"- NOT RUN: {reason}" for reason in failed]
    print("\n".join(about), "", table(measured), "", *said, *memory, *missing, sep="\n")
    if options.targets:
        return
    RESULTS.mkdir(exist_ok=True)
    summary = {
        "about": about,
        "verdicts": said + missing,
        "memory": memory,
        "records": records,
    }
    (RESULTS / "hmm.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    if records:
        plot(measured, RESULTS / "hmm.png")


if __name__ == "__main__":
    main()
