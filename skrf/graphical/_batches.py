"""Gradient ascent on batches of sequences: Adam with decoupled weight decay."""

import numpy as np
from scipy.special import softmax

from .._progress import Progress
from ._maximum_likelihood import NOT_FINITE, check_finite

_FIRST, _SECOND = 0.9, 0.999  # shares of the averages that a step keeps
_LEAST = 1e-10  # of the root of the average of squares: no gradient is divided by less
_PATIENCE = 5  # passes without a better validation score, after which to stop


class Adam:
    """Averages of the gradients of arrays and of their squares (Kingma and Ba, 2015).

    Parameters
    ----------
    arrays : list of ndarray
        The arrays to learn.
    """

    def __init__(self, arrays):
        self.n_steps = 0
        self.means, self.squares = ([np.zeros_like(array) for array in arrays] for _ in range(2))

    def step(self, arrays, gradients, rate, decay):
        """Return the arrays after a step up the gradients.

        Parameters
        ----------
        arrays, gradients : list of ndarray
            Values, and the gradients of what is to grow.
        rate : float
            Length of a step in units of a gradient's usual size.
        decay : float
            Share of the arrays, times the rate, that is lost (Loshchilov and Hutter, 2019).
        """
        self.n_steps += 1
        stepped, shares = [], [1 - decay_rate**self.n_steps for decay_rate in (_FIRST, _SECOND)]
        for array, gradient, mean, square in zip(
            arrays, gradients, self.means, self.squares, strict=True
        ):
            mean += (1 - _FIRST) * (gradient - mean)
            square += (1 - _SECOND) * (gradient**2 - square)
            step = mean / shares[0] / (np.sqrt(square / shares[1]) + _LEAST)
            stepped.append(array + rate * (step - decay * array))
        return stepped


def climb(
    free,
    arrays,
    sequences,
    rng,
    *,
    batch_size,
    max_iter,
    learning_rate,
    weight_decay,
    verbose,
    name,
    callback,
):
    """Return where passes over batches of sequences end, like `maximize`.

    Parameters
    ----------
    free : FreeArrays
        What is learned.
    arrays : list of ndarray
        Where it begins.
    sequences : list of ndarray
        Symbols.
    rng : RandomState
        Source of the order of the sequences.
    batch_size, max_iter : int
        Number of sequences in a batch, and of passes.
    learning_rate : float
        That of the first step, from which it falls to 0 in equal steps.
    weight_decay : float
        As in `Adam.step`.
    verbose : bool
        Whether to print every pass.
    name : str
        Prefix of these lines.
    callback : callable
        Called with the arrays after every pass; True ends.

    Returns
    -------
    arrays : list of ndarray
        Result of the last pass.
    history : list of float
        Log likelihood of every pass, each batch before its step.
    trouble : str or None
        Why it ended if that was not planned.
    """
    history, adam, progress = [], Adam(arrays), Progress(verbose, name)
    n_steps = -(-len(sequences) // batch_size)
    for number in range(max_iter):
        order, total, reached = rng.permutation(len(sequences)), 0.0, arrays
        for k in range(n_steps):
            batch = [sequences[i] for i in order[k * batch_size : (k + 1) * batch_size]]
            rate = learning_rate * (1 - (number + k / n_steps) / max_iter)
            try:
                log_prob, arrays = free.stepped(arrays, batch, adam, rate, weight_decay)
            except FloatingPointError:
                return reached, history, NOT_FINITE.format(n_iter=number)
            total += log_prob
        history.append(total)
        progress(f"pass {number + 1}: log likelihood {total:.6f}")
        if callback(arrays):
            break
    return arrays, history, None


def held_out_log_prob(model, validation):
    """Return the log probability of held-out sequences, given what comes before them."""
    whole, before, *data = validation
    if data:  # not of the data that the model observes
        model = model.unobserved
        model = model if data[0] is None else model.observing(data[0])
    total = model.log_prob(whole).sum()
    return float(total - model.log_prob(before).sum() if before else total)


class Watch:
    """What is done after every iteration: a callback, and a score that may end the fit.

    Parameters
    ----------
    free : FreeArrays
        What is learned.
    callback : callable or None
        Called with the model; True ends.
    validation : tuple or None
        Sequences whose score chooses the iteration, and ends if it does not rise any more; their
        beginnings, given which they are scored; and for other data these, None if symbols.
    """

    def __init__(self, free, callback, validation):
        self.free, self.callback, self.validation = free, callback, validation
        self.scores, self.best = [], None

    def __call__(self, arrays):
        """Return whether to end."""
        if self.callback is None and self.validation is None:
            return False  # a model costs about as much as a gradient
        model, is_worse = self.free.model(arrays), False
        if self.validation is not None:
            whole, before, *_ = self.validation
            n_symbols = sum(map(len, whole)) - sum(map(len, before))
            score = held_out_log_prob(model, self.validation) / n_symbols
            if score > max(self.scores, default=-np.inf):
                self.best = arrays
            self.scores.append(score)
            is_worse = len(self.scores) - 1 - np.argmax(self.scores) >= _PATIENCE
        return is_worse or (self.callback is not None and bool(self.callback(model)))


class FreeArrays:
    """The embeddings that a fit moves; roles that share an array continue to share it.

    Parameters
    ----------
    initial : Model
        Its feature maps are kept.
    objective : callable
        Returns the log probability of sequences under a model, and gradients by role.
    """

    def __init__(self, initial, objective):
        self.initial, self.objective = initial, objective
        is_known = initial.emitter is None
        self._shared, self.roles = {}, []
        for role, value in initial.embeddings.items():
            is_learnt = is_known or role not in ("emitters", "symbols")
            if value is not None and is_learnt and id(value) not in self._shared:
                self._shared[id(value)] = value
                self.roles.append(role)
        self._allowed = np.isfinite(initial.log_start)
        self.arrays = [
            *self._shared.values(),
            *self.start_and_emissions(np.exp(initial.log_start), initial.emitter),
        ]

    def start_and_emissions(self, start, emitter):
        """Return the arrays that are no embeddings: logs of the start, and emissions."""
        arrays = []
        if self.initial.learns_start:
            arrays.append(np.log(np.maximum(start[self._allowed], 1e-300)))
        return arrays + (emitter.parameters if hasattr(emitter, "pull_back") else [])

    def model(self, arrays, dtype=np.float64):
        """Return the model at arrays."""
        initial, parameters = self.initial, arrays[len(self._shared) :]
        by_array = dict(zip(self._shared, arrays, strict=False))
        embeddings = {
            role: by_array.get(id(value), value) for role, value in initial.embeddings.items()
        }
        start = emitter = None
        if initial.learns_start:
            start = np.zeros(len(self._allowed))
            start[self._allowed], parameters = softmax(parameters[0]), parameters[1:]
        if parameters:
            emitter = initial.emitter.with_parameters(parameters)
        return initial.with_embeddings(embeddings, dtype, start, emitter)

    def gradients(self, arrays, sequences):
        """Return the log probability of sequences, and its gradients."""
        log_prob, by_role = self.objective(self.model(arrays), sequences)
        embeddings = self.initial.embeddings
        roles = (
            [role for role in embeddings if id(embeddings[role]) == key] for key in self._shared
        )
        gradients = [sum(by_role[role] for role in sharing) for sharing in roles]
        if self.initial.learns_start:
            of_start = by_role["start_prob"][self._allowed]
            shares = softmax(arrays[len(gradients)])
            gradients.append(of_start - shares * of_start.sum())
        return log_prob, gradients + by_role.get("emitter", [])

    def stepped(self, arrays, batch, adam, rate, decay):
        """Return the log probability of a batch, and the arrays after a step for its symbols."""
        log_prob, gradients = self.gradients(arrays, batch)
        check_finite(log_prob, *gradients)
        n_symbols = sum(map(len, batch))
        scaled = [gradient / n_symbols for gradient in gradients]
        return log_prob, adam.step(arrays, scaled, rate, decay)
