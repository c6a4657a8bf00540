"""Learning the embeddings of a hidden Markov model: gradients of its likelihood, and L-BFGS."""

import numpy as np
import scipy.optimize
import scipy.sparse

from ._recursions import Model

_GRADIENT_ENTRIES = 2**24  # posteriors of a batch of sequences; a longer one goes alone
_GRADIENT_ROWS = 1024  # samples in one product of matrices


def learn(first, sequences, max_iter, tol):
    """Return a model whose embeddings have the largest likelihood near those of another.

    Parameters
    ----------
    first : Model
        Where to begin; its feature maps are kept.
    sequences : list of ndarray
        Symbols.
    max_iter : int
        Largest number of iterations.
    tol : float
        Gain, as a share of the log likelihood, below which to stop.

    Returns
    -------
    model : Model
        At the learnt embeddings.
    history : list of float
        Log likelihood after every iteration.
    converged : bool
        Whether the iterations ended before their limit.
    """
    # Roles that share an array keep sharing it.
    arrays = {}
    for role, value in first.embeddings.items():
        if value is not None:
            arrays.setdefault(id(value), (value, []))[1].append(role)
    arrays = list(arrays.values())
    n_symbols = sum(map(len, sequences))
    history, latest = [], {}

    def model_at(vector, dtype=np.float64):
        embeddings, start = dict(first.embeddings), 0
        for value, roles in arrays:
            part = vector[start : start + value.size].reshape(value.shape)
            start += value.size
            embeddings.update(dict.fromkeys(roles, part))
        return Model(embeddings, first.maps, first.given_start, True, dtype)

    def objective(vector):
        log_prob, found = gradients(model_at(vector), sequences)
        if not np.isfinite(log_prob):
            return np.inf, np.zeros_like(vector)  # the line search turns back
        latest["log_prob"] = log_prob
        flat = [sum(found[role] for role in roles).ravel() for _, roles in arrays]
        return -log_prob / n_symbols, -np.concatenate(flat) / n_symbols

    result = scipy.optimize.minimize(
        objective,
        np.concatenate([value.ravel() for value, _ in arrays]),
        jac=True,
        method="L-BFGS-B",
        callback=lambda vector: history.append(latest["log_prob"]),
        options={"maxiter": max_iter, "ftol": tol, "gtol": 0.0},
    )
    return model_at(result.x, first.dtype), history, bool(result.nit < max_iter)


def gradients(model, sequences):
    """Return the log probability and its gradients with respect to the embeddings.

    The log probability is NaN, and the gradients are not finite, where it needs log space.
    """
    move, emit = model.transition, model.emission
    by_R, by_T, by_start = (np.zeros_like(part) for part in (move.R, move.T, model.start))
    n_symbols = len(model.embeddings["symbols"])
    counts = np.zeros((len(model.start), n_symbols))
    total = 0.0
    for batch in _batches(model, sequences):
        steps = list(model.filtered_together(batch))
        total += sum(log_norms.sum() for _, _, log_norms in steps)
        for earlier, ahead, weighed, symbols, posteriors in _backward(model, steps):
            if earlier is None:
                by_start += weighed.sum(axis=0)
            else:
                by_R += earlier.T @ ahead
                by_T += (earlier @ move.R).T @ weighed
            one_hot = np.ones(len(symbols)), symbols, np.arange(len(symbols) + 1)
            chosen = scipy.sparse.csr_array(one_hot, shape=(len(symbols), n_symbols))
            counts += (chosen.T @ posteriors).T
    emissions = np.exp(model.log_emissions(np.arange(n_symbols))).T
    ratio = np.divide(counts, emissions, out=np.zeros_like(counts), where=counts > 0)
    found = dict.fromkeys(model.embeddings, 0.0)
    _pull(model, found, emit, ratio @ emit.T.T, emit.R.T @ ratio)
    _pull(model, found, move, by_R, by_T)
    if model.start_channel is not None:
        first = model.start_channel
        _pull(model, found, first, (first.T @ by_start)[None], np.outer(first.R[0], by_start))
    return float(total), found


def _batches(model, sequences):
    """Yield lists of sequences of similar length, from long to short, as memory allows."""
    ordered = sorted(sequences, key=len, reverse=True)
    start = 0
    while start < len(ordered):
        size = max(1, _GRADIENT_ENTRIES // (len(ordered[start]) * len(model.start)))
        yield ordered[start : start + size]
        start += size


def _backward(model, steps):
    """Yield what gradients add up, for many samples at a time.

    These are posteriors one position earlier given the past, messages in feature space,
    weighed messages, symbols and posteriors given all symbols. The first two are None at first
    positions, which come last.
    """
    move = model.transition
    back = np.ones((0, len(model.start)))  # scaled so that posterior . back = 1
    kept, size = [], 0
    for t in range(len(steps) - 1, -1, -1):
        symbols, posterior, log_norms = steps[t]
        if len(back) < len(symbols):  # sequences that end here
            back = np.vstack([back, np.ones((len(symbols) - len(back), len(model.start)))])
        weighed = np.exp(model.log_emissions(symbols) - log_norms[:, None]) * back
        ahead = earlier = None
        if t:
            ahead = weighed @ move.T.T
            earlier = steps[t - 1][1][: len(symbols)]
        kept.append((earlier, ahead, weighed, symbols, posterior * back))
        size += len(symbols)
        if t <= 1 or size >= _GRADIENT_ROWS:
            parts = zip(*kept, strict=True)
            yield [None if part[0] is None else np.concatenate(part) for part in parts]
            kept, size = [], 0
        if t:
            back = ahead @ move.R.T


def _pull(model, found, channel, by_R, by_T):
    """Add gradients with respect to the matrices of a channel, pulled back to the embeddings."""
    by_log_R = channel.R * by_R
    by_left = by_log_R - channel.R * by_log_R.sum(axis=1, keepdims=True)
    by_log_T = channel.T * by_T
    by_sums = by_left.sum(axis=0) - by_log_T.sum(axis=1)
    by_right = (by_log_T + channel.T * by_sums[:, None]).T
    left, right = channel.roles
    u, v = model.embeddings[left], model.embeddings[right]
    if isinstance(channel.maps, str):
        found[left] += by_left @ v
        found[right] += by_left.T @ u
    else:
        found[left] += channel.maps[0].pull_back(u, by_left)
        found[right] += channel.maps[1].pull_back(v, by_right)
