"""What looking at attention tells."""

from dataclasses import dataclass

import numpy as np

TOLERATED = 0.3  # relative error that is no collapse


@dataclass(frozen=True)
class AttentionDiagnosis:
    """What `ApproxKernelAttention.diagnose` returns.

    Parameters
    ----------
    relative_error : float
        Estimated root of the summed squared errors of the output over its summed squares.
    effective_features : ndarray or None
        Effective number of features that carry each of the queries looked at: 1 over the sum of
        squared shares. None for maps that are not positive, with a near field or a mask, and
        without any key.
    sampled_errors : dict or None
        Relative errors at a sample of queries, measured: of the output ("attention"), the "exact
        part" alone where there is a near field, the "mean" of the values, and an exact "window" of
        as many keys as the output costs. None with a mask and for generalised attention.
    """

    relative_error: float
    effective_features: np.ndarray | None
    sampled_errors: dict | None = None

    @property
    def has_collapsed(self):
        """Whether the mean of the values is closer to softmax attention than the output."""
        errors = self.sampled_errors
        return errors is not None and errors["attention"] > max(errors["mean"], TOLERATED)
