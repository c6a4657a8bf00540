"""Learning the embeddings of a hidden Markov model: gradients of its likelihood, and starts."""

import math
from bisect import bisect
from functools import partial

import numpy as np

from .._kernels import of_recursions
from .._memory import check_fits
from .._progress import Progress
from .._sums import log_product
from ._batches import FreeArrays, Watch, climb, held_out_log_prob
from ._few import FewStates, joined
from ._maximum_likelihood import maximize, unpacked
from ._potentials import add_rows
from ._rank_space import RankSpace
from ._recursions import ANY

_GRADIENT_ENTRIES = 2**24  # posteriors in a batch of sequences; a longer one is alone
_GRADIENT_ROWS = 1024  # samples in one product of matrices
_SCREENED, _CONTINUED, _FINISHED = 16, 3, 2  # starts: of EM, of more EM, and of L-BFGS
_ON_PATH = 0.7  # of the posterior of a start along paths, of which the rest is for all states
_LEAST_SHARE = 1e-10  # of probabilities that EM learns, so that none is lost for good


def learn(initial, sequences, n_init, rng, limits, batches, *, validation, callback, redraw=None):
    """Return a model whose embeddings maximise the likelihood locally, from those of another.

    Parameters
    ----------
    initial : Model
        Starting point; its feature maps are kept.
    sequences : list of ndarray
        Symbols.
    n_init : int or "screened"
        Number of starts. Those after the first are normal, with the root mean squares of the first.
        "screened" chooses them among 16 by steps of EM, if these are possible, else it is 1.
    rng : RandomState
        Source of the other starts, and of the order of batches.
    limits : dict
        ``max_iter``, ``tol`` and ``verbose``, as in `maximize`.
    batches : dict or None
        ``batch_size``, ``learning_rate`` and ``weight_decay`` of `climb`; None means `maximize`.
    validation : tuple or None
        What chooses among iterations and starts; see `Watch`.
    callback : callable or None
        Called with a model after every iteration; True ends.
    redraw : callable, default=None
        Returns other emissions for a start.

    Returns
    -------
    model : Model
        The model at the embeddings of the start with the highest likelihood.
    scores : list of float
        Mean log probability of a symbol of the validation sequences after every iteration.
    history : list of float
        Its log likelihood after every iteration.
    trouble : str or None
        Why it ended if it did not converge.
    """
    free = FreeArrays(initial, gradients)
    starts, names, n_symbols = [(free, free.arrays)], ["fit"], sum(map(len, sequences))
    if initial.has_few:  # whose passes are known beforehand
        of_recursions(limits["max_iter"] * n_symbols, Progress(limits["verbose"]))
    is_screened = n_init == "screened" and batches is None and _takes_tables(free)
    if is_screened:
        starts = _screened(free, sequences, rng, limits, redraw)
        names = [f"fit, start {number} of {len(starts)}" for number in range(1, len(starts) + 1)]
    elif n_init not in (1, "screened"):
        starts += [(free, arrays) for arrays in _normal_starts(free, n_init - 1, rng, redraw)]
        names = [f"fit, start {number} of {n_init}" for number in range(1, n_init + 1)]

    def ended(start, name):
        free, arrays = start
        watch = Watch(free, callback, validation)
        shared = {"max_iter": limits["max_iter"], "verbose": limits["verbose"]}
        shared |= {"name": name, "callback": watch}
        if batches is not None:
            arrays, *progress = climb(free, arrays, sequences, rng, **batches, **shared)
        else:
            objective = partial(free.gradients, sequences=sequences)
            options = {"tol": limits["tol"], "is_near": is_screened}
            arrays, *progress = maximize(objective, arrays, n_symbols, **options, **shared)
            if not watch.scores:  # no step raises the likelihood of a start that is an optimum
                watch(arrays)
        arrays = arrays if watch.best is None else watch.best
        return free.model(arrays, initial.dtype), watch.scores, *progress

    # Not by histories, which are empty if a start is already a maximum.
    judges = (sequences, []) if validation is None else validation
    ends = map(ended, starts, names)
    return max(ends, key=lambda end: held_out_log_prob(end[0], judges))


def _normal_starts(free, number, rng, redraw):
    """Return normal starts with the root mean squares of the first, and emissions of their own."""
    embeddings, fixed = free.arrays[: len(free.roles)], free.arrays[len(free.roles) :]
    roots = [np.sqrt(np.mean(np.square(value))) for value in embeddings]
    shape = number, sum(value.size for value in embeddings)
    check_fits(8 * math.prod(shape), f"n_init={number + 1!r}", "other starts")
    starts = []
    for draw in rng.normal(size=shape):
        if redraw is not None:
            parameters = redraw().parameters
            fixed = fixed[: -len(parameters)] + parameters
        starts.append([*map(np.multiply, roots, unpacked(draw, embeddings)), *fixed])
    return starts


# ---------------------------------------------------------------- expectation maximisation
#
# Where embeddings are wide enough for any tables, steps of EM go over the tables themselves.


def _takes_tables(free):
    """Return whether embeddings can hold any tables of transitions and emissions."""
    initial = free.initial
    roles = ["states", "targets"]
    if initial.emission is not None:
        roles = ["states", "symbols", "targets", "emitters"]
    is_wide = initial.embeddings["states"].shape[1] >= len(initial.start)
    is_exact = initial.transition.T is None and (len(roles) == 2 or initial.emission.T is None)
    is_plain = initial.is_local and initial.start_factor is None and is_exact
    return is_plain and is_wide and set(roles) == set(free.roles) and initial.has_few


def _screened(free, sequences, rng, limits, redraw):
    """Return where EM ends from the best of 16 starts, twelve of them along random paths."""
    normal = [free.arrays, *_normal_starts(free, _SCREENED // 4 - 1, rng, redraw)]
    starts, n_paths = [_tables(free.model(arrays)) for arrays in normal], _SCREENED - len(normal)
    starts += (
        _along_paths(free.initial, sequences, number / (n_paths - 1), rng)
        for number in range(n_paths)
    )
    progress, ranked = Progress(limits["verbose"]), []
    for number, tables in enumerate(starts):
        n_iter = min(40, limits["max_iter"])
        log_prob, tables = expectation_maximisation(free.initial, sequences, n_iter, 0.0, tables)
        ranked.append((log_prob, number, tables))
        progress(f"start {number + 1} of {_SCREENED}: log likelihood {log_prob:.6f}")
    ranked.sort(key=lambda end: -end[0])
    ends = []
    for _, number, tables in ranked[:_CONTINUED]:
        n_iter, tol = min(200, limits["max_iter"]), limits["tol"]
        log_prob, tables = expectation_maximisation(free.initial, sequences, n_iter, tol, tables)
        progress(f"start {number + 1} goes on: log likelihood {log_prob:.6f}")
        ends.append((log_prob, tables))
    ends.sort(key=lambda end: -end[0])
    return [_embedded(free, tables) for _, tables in ends[:_FINISHED]]


def _tables(model):
    """Return start, transitions and emissions of a model."""
    emission = model.emitter
    if emission is None and model.emission is not None:
        emission = model.emission.R
    return model.start, model.transition.R, emission


def _along_paths(model, sequences, share, rng):
    """Return tables after a step of EM with posteriors near random paths, one a sequence.

    Paths are drawn without a look at the symbols. A state lasts for one position in the mean if
    `share` is 0, and for one of n equal parts of a sequence if it is 1.
    """
    tables = start, A, _ = _tables(model)
    n, (symbols, begins) = len(start), joined(sequences)
    dwell = max(1.0, len(symbols) / len(sequences) / n) ** share**2
    leave = rng.dirichlet(np.ones(n), size=n) * ((A > 0) & ~np.eye(n, dtype=bool))
    totals = leave.sum(axis=1, keepdims=True)
    edges = np.cumsum(np.divide(leave, totals, out=np.zeros((n, n)), where=totals > 0), axis=1)
    lengths = map(len, sequences)
    paths = [_random_path(np.cumsum(start), edges, length, dwell, rng) for length in lengths]
    path, moves = np.concatenate(paths), A.copy()
    goes_on = np.flatnonzero(~begins)
    np.add.at(moves, (path[goes_on - 1], path[goes_on]), 1.0)
    posteriors = np.full((len(path), n), (1 - _ON_PATH) / n)
    posteriors[np.arange(len(path)), path] += _ON_PATH
    if model.allowed is not None:
        posteriors *= model.allowed[symbols]
        posteriors /= posteriors.sum(axis=1, keepdims=True)
    by_row = np.zeros((len(_rows(model, tables[2])), n))
    add_rows(by_row, symbols % len(by_row), posteriors)
    return _maximised(model, tables, moves, by_row, start)


def _random_path(start, edges, length, dwell, rng):
    """Return a path of states that last for some positions each.

    Parameters
    ----------
    start : ndarray of shape (n_states,)
        Cumulative sums of the distribution of the first state.
    edges : ndarray of shape (n_states, n_states)
        Those of distributions of the next other state, 0 for states that are never left.
    length : int
        Length of the path.
    dwell : float
        Mean time in a state. It does not matter for chains with a state that is never left: paths
        reach that state.
    rng : RandomState
        Source of the draws.
    """
    is_end = edges[:, -1] == 0
    n_visits = length if is_end.any() else math.ceil(length / dwell)
    state, visits, edges = bisect(start.tolist(), rng.uniform()), [], edges.tolist()
    for point in rng.uniform(size=n_visits).tolist():
        state = min(state, len(edges) - 1)  # shares may sum to a little less than 1
        visits.append(state)
        if is_end[state]:
            break
        state = bisect(edges[state], point)
    times = np.cumsum(rng.gamma(2.0, size=len(visits)))
    ends = np.round(times / times[-1] * length).astype(int)
    return np.repeat(visits, np.diff(ends, prepend=0))


def expectation_maximisation(model, sequences, max_iter, tol, tables=None):
    """Return the log likelihood before the last step of EM, and the tables after it.

    Parameters
    ----------
    model : Model
        With the exact kernel and few states.
    sequences : list of ndarray
        Symbols, or positions.
    max_iter : int
        Largest number of steps.
    tol : float
        Relative gain below which to stop.
    tables : tuple, default=None
        Start, transitions and emissions to begin with; None means those of the model.
    """
    tables, before = _tables(model) if tables is None else tables, -np.inf
    symbols, starts = joined(sequences)
    kernels = of_recursions(max_iter * len(symbols))
    for _ in range(max_iter):
        start, A, emission = tables
        with np.errstate(divide="ignore"):
            few, rows = FewStates(A, np.log(start)), _rows(model, emission)
        run = few.run(kernels, (rows, model.weights(rows)), symbols, starts, True)
        log_prob, (_, (moves, by_row, by_start)) = run.log_probs.sum(), run.smoothed(True)
        if log_prob - before <= tol * abs(log_prob):
            break
        before = log_prob
        if not run.in_logs:
            moves, by_start = moves * A, by_start * few.start
        tables = _maximised(model, tables, moves, by_row, by_start)
    return float(log_prob), tables


def _maximised(model, tables, moves, by_row, by_start):
    """Return tables after a step of EM.

    Parameters
    ----------
    model : Model
        With the masks, and what was observed.
    tables : tuple
        Start, transitions and emissions before.
    moves : ndarray of shape (n_states, n_states)
        Expected numbers of transitions.
    by_row : ndarray of shape (n_rows, n_states)
        Those of states at symbols, or at positions.
    by_start : ndarray of shape (n_states,)
        Those of first states.
    """
    start, A, emission = tables
    A = _shares(moves, A, model.masks.get("transition"))
    if model.learns_start:
        start = _shares(by_start[None], start[None], model.masks.get("start"))[0]
    if model.emitter is not None:
        emission = emission.update(by_row, model.data)
    else:
        counts = by_row
        if model.data is not None:
            counts = np.zeros((model.base.n_symbols + 1, len(start)))
            add_rows(counts, model.data % len(counts), by_row)
        emission = _shares(counts[:-1].T, emission, model.masks.get("emission"))
    return start, A, emission


def _rows(model, emission):
    """Return log likelihoods of all states at symbols, or at positions."""
    if model.emitter is not None:
        rows = emission.log_likelihood(model.data)
    else:
        rows = np.vstack([np.log(emission).T, np.zeros(len(emission))])
        if model.data is not None:
            rows = rows[model.data]
    return rows if model.allowed is None else np.where(model.allowed, rows, -np.inf)


def _shares(counts, before, mask):
    """Return counts as shares of their rows: at least a little, or 0 where it is forbidden."""
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=before.copy(), where=totals > 0)
    shares = np.maximum(shares, _LEAST_SHARE)
    if mask is not None:
        shares[~np.broadcast_to(mask, shares.shape)] = 0.0
    return shares / shares.sum(axis=1, keepdims=True)


def _embedded(free, tables):
    """Return what is learned, and arrays, of a model whose tables these are."""
    start, A, emission = tables
    width = free.initial.embeddings["states"].shape[1]
    by_role = dict(zip(("states", "targets"), _factors(A, width), strict=True))
    if "symbols" in free.roles:
        by_role |= zip(("emitters", "symbols"), _factors(emission, width), strict=True)
    arrays = [by_role[role] for role in free.roles] + free.start_and_emissions(start, emission)
    if free.initial.emitter is not None and not hasattr(emission, "pull_back"):
        initial = free.initial  # whose emissions gradients do not move
        free = FreeArrays(
            initial.with_embeddings(initial.embeddings, initial.dtype, emitter=emission), gradients
        )
    return free, arrays


def _factors(shares, width):
    """Return embeddings whose products are the logs of shares, but for constants of rows."""
    is_allowed = shares > 0
    logs = np.log(np.maximum(shares, _LEAST_SHARE))
    logs -= np.mean(logs, axis=1, keepdims=True, where=is_allowed)
    logs[~is_allowed] = 0.0
    U, sizes, V = np.linalg.svd(logs, full_matrices=False)
    roots = np.sqrt(sizes[:width])
    sides = U[:, :width] * roots, V[:width].T * roots
    return [np.pad(side, ((0, 0), (0, width - len(roots)))) for side in sides]


def gradients(model, sequences):
    """Return the log probability and its gradients with respect to the embeddings."""
    log_prob, counts = _all_counts(model, sequences, np.ones(len(sequences)))
    if not model.is_local:  # minus what the model gives to all symbols of these lengths
        lengths, repeats = np.unique([len(sequence) for sequence in sequences], return_counts=True)
        every = [np.full(length, ANY) for length in lengths]
        log_total, expected = _all_counts(model, every, repeats)
        log_prob -= log_total
        counts = [list(map(np.subtract, *pair)) for pair in zip(counts, expected, strict=True)]
    (of_symbols,), of_start, of_moves = counts
    factor_counts = [(model.start_factor, of_start), (model.transition, of_moves)]
    if model.data is None:
        factor_counts.append((model.emission, _emission_counts(model, of_symbols)))
    elif model.emitter is None:
        of_data = np.zeros((len(model.start), model.base.n_symbols + 1))
        add_rows(of_data.T, model.data % of_data.shape[1], of_symbols[:, :-1].T)
        factor_counts.append((model.emission, _emission_counts(model.base, of_data)))
    by_role = dict.fromkeys(model.embeddings, 0.0)
    for factor, counts in factor_counts:
        if factor is not None:
            tables = (model.embeddings[role] for role in factor.roles)
            pulled = factor.pull_back(*tables, *counts)
            for role, gradient in zip(factor.roles, pulled, strict=True):
                by_role[role] += gradient
    if model.learns_start:
        by_role["start_prob"] = of_start[0]
    if hasattr(model.emitter, "pull_back"):
        by_role["emitter"] = model.emitter.pull_back(of_symbols[:, :-1].T, model.data)
    return float(log_prob), by_role


# `gradients` adds up expected counts given all symbols, each a list: of states with symbols, the
# last of which is `ANY`; those of the start's factor, or of first states where it is given; and
# those of transitions, as `Factor.pull_back` expects them. They are bounded by the number of
# symbols, however small the underlying probabilities are.


def _all_counts(model, sequences, repeats):
    """Return the log probability and expected counts of sequences, weighted by `repeats`."""
    log_prob, total = 0.0, None
    for batch, weights in _batches(model, sequences, repeats):
        run = model.run("gradients", batch) if (weights == 1).all() else None
        # Counts of logarithms know nothing of features.
        if run is not None and (model.transition.T is None or not run.in_logs):
            batch_log_prob, counts = _counts_of_few(model, run)
        else:
            batch_log_prob, counts = _counts(model, batch, weights)
        log_prob += batch_log_prob
        if total is not None:
            counts = [list(map(np.add, *pair)) for pair in zip(total, counts, strict=True)]
        total = counts
    return log_prob, total


def _counts_of_few(model, run):
    """Return the log probability and expected counts of a pass."""
    log_prob, (_, (moves, by_symbol, by_start)) = run.log_norms.sum(), run.smoothed(counts=True)
    counts = np.zeros((len(model.start), model.n_symbols + 1))
    counts[:, : len(by_symbol)] = by_symbol.T
    if run.in_logs:
        return log_prob, [[counts], _start_counts(model, by_start), [moves]]
    of_start = _start_counts(model, by_start * model.start)
    of_moves = model.transition.expected(np.eye(len(moves)), moves)
    return log_prob, [[counts], of_start, of_moves]


def _counts(model, batch, repeats):
    """Return the log probability and expected counts of sequences, from long to short."""
    if (rank := RankSpace.of(model, batch)) and rank.filter(keeps=True):
        counts, of_start, of_moves = rank.counts(repeats)
        return np.dot(rank.log_probs, repeats), [[counts], _start_counts(model, of_start), of_moves]
    n, none = len(model.start), np.zeros(0, dtype=int)
    counts, of_moves = np.zeros((n, model.n_symbols + 1)), model.transition.pair.counts(*3 * [none])
    steps, back, nodes, edges, size = list(model.filtered(batch)), np.zeros((0, n)), [], [], 0
    for t in range(len(steps) - 1, -1, -1):
        symbols, distributions, log_norms = steps[t]
        # Messages are scaled so that those of a sequence give posteriors times its repeats.
        ended = np.repeat(repeats[len(back) : len(symbols), None], n, axis=1)
        back = np.vstack([back, np.log(ended) if model.in_logs else ended])
        posteriors = np.exp(distributions + back) if model.in_logs else distributions * back
        nodes.append((symbols, posteriors))
        size += len(symbols)
        if t:
            back, ahead = model.step_back(symbols, log_norms, back)
            edges.append((steps[t - 1][1][: len(symbols)], ahead))
        if t <= 1 or size >= _GRADIENT_ROWS:
            symbols, posteriors = map(np.concatenate, zip(*nodes, strict=True))
            add_rows(counts.T, symbols % counts.shape[1], posteriors)  # `ANY` is the last column
            if edges:
                sides = map(np.concatenate, zip(*edges, strict=True))
                of_moves = list(map(np.add, of_moves, _move_counts(model, *sides)))
            nodes, edges, size = [], [], 0
    log_prob = sum(np.dot(log_norms, repeats[: len(log_norms)]) for _, _, log_norms in steps)
    return log_prob, [[counts], _start_counts(model, posteriors.sum(axis=0)), of_moves]


def _move_counts(model, left, right):
    """Return expected counts of transitions, given distributions and what they meet."""
    move = model.transition
    if not model.in_logs:
        return move.expected(left, right)
    _, from_left = move.pair.turned.sums(left)
    sums, from_right = move.pair.sums(right)
    return move.pair.expected(left, right, from_left, from_right, np.exp(left + sums).sum())


def _start_counts(model, of_states):
    """Return expected counts of the start's factor, given those of first states."""
    states, factor = np.arange(len(model.start)), model.start_factor
    return [of_states] if factor is None else factor.pair.counts(0 * states, states, of_states)


def _emission_counts(model, counts):
    """Return expected counts of states with features, and of features with symbols."""
    emit, counts, of_any = model.emission, counts[:, :-1], counts[:, -1:]
    # Any symbol: a state chooses among all its features, whose symbols sum to 1.
    of_any = of_any * np.exp(emit.log_R - model.log_totals[:, None])
    if emit.T is None:
        return [counts + of_any]
    symbols = np.union1d(0, np.flatnonzero(counts.any(axis=0)))  # one at least
    log_T, by_right = emit.pair.sides[1].logs, np.zeros(emit.pair.sides[1].logs.shape)
    with np.errstate(divide="ignore"):
        logs = np.log(counts[:, symbols]) - model.log_emissions(symbols).T
    by_right[symbols] = np.exp(log_T[symbols] + log_product(logs.T, emit.log_R))
    return [of_any + np.exp(emit.log_R + log_product(logs, log_T[symbols])), by_right]


def _batches(model, sequences, repeats):
    """Yield sequences of similar length and their repeats, from long to short, as memory allows."""
    order = np.argsort([-len(sequence) for sequence in sequences], kind="stable")
    start = 0
    while start < len(order):
        size = max(1, _GRADIENT_ENTRIES // (len(sequences[order[start]]) * len(model.start)))
        batch = order[start : start + size]
        yield [sequences[i] for i in batch], repeats[batch]
        start += size
