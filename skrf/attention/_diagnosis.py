"""Reports on attention's error."""

import math
import warnings
from dataclasses import dataclass, field

import numpy as np

from .._arrays import largest_entry
from ..exceptions import FeatureCollapseWarning
from ._shapes import unit_for

TOLERATED = 0.3  # relative error up to which there is no collapse


@dataclass(frozen=True)
class AttentionDiagnosis:
    """Result of `ApproxKernelAttention.diagnose`.

    Parameters
    ----------
    relative_error : float
        Estimated relative error of the output: the root of the ratio of its summed squared errors
        to its summed squares.
    effective_features : ndarray or None
        Effective number of features that carry each sampled query: 1 over the sum of squared
        shares. None for maps that are not positive, with a near field or a mask, and without any
        key.
    sampled_errors : dict or None
        Relative errors measured at a sample of queries: of the output ("attention"), the "exact
        part" alone if there is a near field, the "mean" of the values, and an exact "window" with
        as many keys as the output costs. None with a mask and for generalised attention.

    See Also
    --------
    ApproxKernelAttention.diagnose : Returns it.
    recommend_attention : Operators that may do better.
    skrf.exceptions.FeatureCollapseWarning : The warning of a call.

    References
    ----------
    Ours.
    """

    relative_error: float
    effective_features: np.ndarray | None = field(repr=False)  # hundreds of numbers
    sampled_errors: dict | None = None

    @property
    def has_collapsed(self) -> bool:
        """Whether the mean of the values is closer to softmax attention than the output."""
        errors = self.sampled_errors
        return errors is not None and errors["attention"] > max(errors["mean"], TOLERATED)


def spread(outputs, n_groups):
    """Return the relative error of the mean of groups, estimated from the spread of outputs.

    Parameters
    ----------
    outputs : list of ndarray
        Outputs of every group, of independent draws if there are no groups, or a single one.
    n_groups : int
        How many of them a call averages; 0 and 1 both mean a single one.
    """
    unit = unit_for(max(map(largest_entry, outputs)))  # keeps squares within the range of floats
    outputs = [out / unit for out in outputs]
    mean = np.mean(outputs, axis=0, dtype=np.float64)
    of_one = sum(np.sum((out - mean) ** 2) for out in outputs) / max(len(outputs) - 1, 1)
    # The square of the mean minus the part that its own noise adds.
    size = np.sum(mean**2) - of_one / len(outputs)
    variance = of_one / max(n_groups, 1)
    return math.sqrt(variance / size) if size > 0 else (math.inf if variance else 0.0)


def warn_of_lost(n_lost, groups):
    """Warn about queries whose weights sum to 0; to be called from a public method."""
    if n_lost:
        warnings.warn(
            f"Some outputs are 0 because the weights of their queries sum to 0 ({n_lost} of "
            f"{math.prod(groups.q.shape[:-1])} queries): the features of feature_map have signs "
            "or zeros. Use a positive map, such as OptimalPositiveRF, or more features.",
            FeatureCollapseWarning,
            stacklevel=3,
        )
