"""Gradient ascent on a log likelihood, and its warnings if it does not converge."""

import copy
import operator
import warnings
from numbers import Integral, Real

import numpy as np
import scipy.optimize
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from .._estimator import EstimatorBase
from .._progress import Progress
from .._validation import Interval, check_integer, commit, draft_of, snapshot

NOT_FINITE = (
    "stopped after {n_iter} iterations at a gradient that is not finite: begin with embeddings "
    "whose entries are nearer to 1."
)
_ENDS = {  # by the status of the optimiser; None if it met a value that is not finite
    1: "reached max_iter={max_iter} while the log likelihood still gained more than tol={tol} of "
    "itself: raise max_iter, or tol if that is enough.",
    2: "stopped after {n_iter} iterations at a failed line search: no step along the gradient "
    "raises the log likelihood by more than rounding. Raise tol={tol}.",
    None: NOT_FINITE,
}


_STOPPED, _NO_STEP = 99, 2  # status of the optimiser after a callback, and a failed line search


class MaximumLikelihood(EstimatorBase):
    """Estimators that learn by `maximize`.

    A subclass has ``_make_model()``, and what its model depends on: ``_arrays``, the names of
    parameters that hold arrays, and ``_settings``, the values of the others.
    """

    _fitted = None  # a model, after `fit`
    _copies: dict = {}  # of the parameters in `_arrays`, made when these are first used
    _made = None  # those, the other settings, and the model of both
    _parameter_constraints = {
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "verbose": ["verbose"],
    }

    # scikit-learn asks for every attribute, and some are tables that are computed when asked for.
    __dir__ = object.__dir__

    def __setattr__(self, name, value):
        # What is given again is copied again: the same object may hold something else now.
        super().__setattr__(name, value)
        if name in self._copies:
            self._copies = {other: of for other, of in self._copies.items() if other != name}

    def _own(self, name):
        """Return the copy of a parameter that was made when it was first used."""
        if name not in self._copies:
            self._copies = self._copies | {name: copy.deepcopy(getattr(self, name))}
        return self._copies[name]

    @property
    def _model(self):
        """What was learned, or the model of the current parameters."""
        if self._fitted is not None:
            return self._fitted
        arrays, settings = [self._own(name) for name in self._arrays], snapshot(self._settings)
        if self._made is not None:
            made_arrays, made_settings, model = self._made
            if all(map(operator.is_, arrays, made_arrays)) and settings == made_settings:
                return model
        model = self._make_model()
        self._made = arrays, settings, model
        return model

    def _draft(self):
        """Return an unfitted copy of the parameters as they are now, to fit."""
        draft = draft_of(self)
        draft._copies = {
            name: own
            for name, own in self._copies.items()
            if snapshot(own) == snapshot(getattr(self, name))
        }
        return draft

    def _limits(self):
        """Check the parameters, and return those of `maximize`."""
        self._validate_params()
        whole = self.max_iter
        if whole is not None:
            whole = check_integer("max_iter", whole)  # scikit-learn takes True for 1
        return {"max_iter": whole, "tol": self.tol, "verbose": self.verbose}

    def _commit(self, draft, learnt, history, trouble, stacklevel=3):
        """Take over what a draft has learned, and warn if it did not converge."""
        draft.history_, draft.converged_ = history, trouble is None
        if trouble:
            warnings.warn(f"fit {trouble}", ConvergenceWarning, stacklevel=stacklevel)
        for name, value in learnt.items():
            setattr(draft, f"{name}_", value)
        return commit(self, draft)

    @property
    def n_iter_(self) -> int:
        """Number of iterations of `fit`."""
        if not hasattr(self, "history_"):
            raise NotFittedError(f"This {type(self).__name__} was not fitted: call fit first.")
        return len(self.history_)


def unpacked(vector, arrays):
    """Return a vector as arrays of the shapes of others."""
    ends = np.cumsum([array.size for array in arrays])[:-1]
    pairs = zip(np.split(vector, ends), arrays, strict=True)
    return [values.reshape(array.shape) for values, array in pairs]


def maximize(
    objective,
    arrays,
    n_samples,
    *,
    max_iter,
    tol,
    verbose=False,
    name="fit",
    callback=None,
    is_near=False,
):
    """Return where L-BFGS ends, the log likelihoods on the way, and what went wrong.

    Parameters
    ----------
    objective : callable
        Takes a list of arrays and returns the log likelihood and its gradients.
    arrays : list of ndarray
        Starting point.
    n_samples : int
        Steps are those for the mean over this number of samples.
    max_iter : int
        Largest number of iterations.
    tol : float
        Gain, as a share of the log likelihood, below which to stop.
    verbose : bool, default=False
        Whether to print every iteration.
    name : str, default="fit"
        Prefix of these lines.
    callback : callable, default=None
        Called with the arrays after every iteration; True ends.
    is_near : bool, default=False
        Whether the start may be a maximum already, so that a failed line search says no more.

    Returns
    -------
    arrays : list of ndarray
        Result of the last finished iteration.
    history : list of float
        Log likelihood after every iteration.
    trouble : str or None
        Why it ended if it did not converge.
    """
    start = _flat(arrays)
    history, latest, reached = [], [], [start]
    progress = Progress(verbose, name)

    def loss(vector):
        # NaN would end L-BFGS as if it had converged.
        check_finite(vector)
        log_prob, gradients = objective(unpacked(vector, arrays))
        gradient = _flat(gradients)
        check_finite(log_prob, gradient)
        latest[:] = [log_prob]
        return -log_prob / n_samples, -gradient / n_samples

    def keep(vector):
        history.extend(latest)
        reached[:] = [vector.copy()]
        progress(f"iteration {len(history)}: log likelihood {history[-1]:.6f}")
        if callback is not None and callback(unpacked(reached[0], arrays)):
            raise StopIteration

    # No step gains more than the whole, so all tolerances from 1 on are equivalent.
    options = {"maxiter": max_iter, "maxfun": np.inf, "ftol": min(tol, 1.0), "gtol": 0.0}
    try:
        status = scipy.optimize.minimize(
            loss, start, jac=True, method="L-BFGS-B", callback=keep, options=options
        ).status
    except FloatingPointError:
        status = None
    trouble = None
    if is_near and status == _NO_STEP:
        status, history = 0, history or [objective(arrays)[0]]
    if status not in (0, _STOPPED):
        trouble = _ENDS[status].format(max_iter=max_iter, tol=tol, n_iter=len(history))
    return unpacked(reached[0], arrays), history, trouble


def _flat(arrays):
    return np.concatenate([array.ravel() for array in arrays])


def check_finite(*values):
    """Raise FloatingPointError unless all values are finite."""
    if not all(np.isfinite(value).all() for value in values):
        raise FloatingPointError("not finite")
