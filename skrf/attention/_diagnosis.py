"""What is told of attention's error."""

import math
import warnings
from dataclasses import dataclass, field

import numpy as np

from .._arrays import largest_entry
from ..exceptions import FeatureCollapseWarning
from ._shapes import unit_for

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

    See Also
    --------
    ApproxKernelAttention.diagnose : Makes it.
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
    """Return the relative error of the mean of groups, from how far outputs of one draw are apart.

    Parameters
    ----------
    outputs : list of ndarray
        Of every group; of independent draws where there are no groups; or a single one.
    n_groups : int
        How many of them a call takes the mean of; 0 and 1 are a single one.
    """
    unit = unit_for(max(map(largest_entry, outputs)))  # in which squares have no size to speak of
    outputs = [out / unit for out in outputs]
    mean = np.mean(outputs, axis=0, dtype=np.float64)
    of_one = sum(np.sum((out - mean) ** 2) for out in outputs) / max(len(outputs) - 1, 1)
    # The square of the mean less what its own noise adds to it.
    size = np.sum(mean**2) - of_one / len(outputs)
    variance = of_one / max(n_groups, 1)
    return math.sqrt(variance / size) if size > 0 else (math.inf if variance else 0.0)


def warn_of_lost(n_lost, groups):
    """Warn of queries whose weights sum to 0, called by what the user calls."""
    if n_lost:
        warnings.warn(
            f"Some outputs are 0 because the weights of their queries sum to 0 ({n_lost} of "
            f"{math.prod(groups.q.shape[:-1])} queries): the features of feature_map have signs "
            "or zeros. Use a positive map, such as OptimalPositiveRF, or more features.",
            FeatureCollapseWarning,
            stacklevel=3,
        )
