"""Gradient ascent on a log likelihood, and its warnings if it does not converge."""

import warnings
from numbers import Integral, Real

import numpy as np
import scipy.optimize
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from .._estimator import EstimatorBase
from .._progress import Progress
from .._validation import Interval

_ENDS = {  # by the status of the optimiser; None if it met a value that is not finite
    1: "reached max_iter={max_iter} while the log likelihood still gained more than tol={tol} of "
    "itself: raise max_iter, or tol if that is enough.",
    2: "stopped after {n_iter} iterations at a failed line search: no step along the gradient "
    "raises the log likelihood by more than rounding. Raise tol={tol}.",
    None: "stopped after {n_iter} iterations at a gradient that is not finite: begin with "
    "embeddings whose entries are nearer to 1.",
}


class Climber(EstimatorBase):
    """Estimators that learn by `climb`."""

    _parameter_constraints = {
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "verbose": ["verbose"],
    }

    def _tell(self, history, trouble, stacklevel):
        """Record how learning went, and warn if it did not converge."""
        self.history_, self.converged_ = history, trouble is None
        if trouble:
            warnings.warn(f"fit {trouble}", ConvergenceWarning, stacklevel=stacklevel)

    @property
    def n_iter_(self) -> int:
        """Number of iterations of `fit`."""
        if not hasattr(self, "history_"):
            raise NotFittedError(f"This {type(self).__name__} was not fitted: call fit first.")
        return len(self.history_)


def climb(objective, vector, n_samples, *, max_iter, tol, verbose=False, name="fit"):
    """Return where L-BFGS ends, the log likelihoods on the way, and what went wrong.

    Parameters
    ----------
    objective : callable
        Takes a vector and returns the log likelihood and its gradient.
    vector : ndarray of shape (n,)
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

    Returns
    -------
    vector : ndarray of shape (n,)
        Result of the last finished iteration.
    history : list of float
        Log likelihood after every iteration.
    trouble : str or None
        Why it ended if it did not converge.
    """
    history, latest, reached = [], [], [vector]
    progress = Progress(verbose, name)

    def loss(vector):
        # NaN would end L-BFGS as if it had converged.
        _check_finite(vector)
        log_prob, gradient = objective(vector)
        _check_finite(log_prob, gradient)
        latest[:] = [log_prob]
        return -log_prob / n_samples, -gradient / n_samples

    def keep(vector):
        history.extend(latest)
        reached[:] = [vector.copy()]
        progress(f"iteration {len(history)}: log likelihood {history[-1]:.6f}")

    # No step gains more than the whole, so all tolerances from 1 on are equivalent.
    options = {"maxiter": max_iter, "maxfun": np.inf, "ftol": min(tol, 1.0), "gtol": 0.0}
    try:
        status = scipy.optimize.minimize(
            loss, vector, jac=True, method="L-BFGS-B", callback=keep, options=options
        ).status
    except FloatingPointError:
        status = None
    trouble = None
    if status != 0:
        trouble = _ENDS[status].format(max_iter=max_iter, tol=tol, n_iter=len(history))
    return reached[0], history, trouble


def _check_finite(*values):
    if not all(np.isfinite(value).all() for value in values):
        raise FloatingPointError("not finite")
