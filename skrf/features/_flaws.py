"""What feature maps say about rows and columns that do not suit them."""

import numpy as np

from .._arrays import namespace, to_host
from .._warnings import names_of, warn

_APART = 1e4  # ratio of scales above which the kernel hardly depends on the smaller column
_ROUNDING = 1e-14  # of the mean of thousands of equal numbers, relative to it, with a margin
_NAMED = 5  # of many rows or columns


def warn_of_scales(feature_map, moments, rows=None):
    """Warn of columns that hide others, because a kernel of differences adds all of them up.

    Columns that are hardly ever different from 0 have small deviations at any scale: ranges of
    dense rows tell them from small ones. Otherwise most columns must be hidden.
    """
    scales = np.sqrt(moments.variances)
    varies = scales > _ROUNDING * np.abs(moments.mean)
    if feature_map.kernel == "softmax" or not _differ(scales[varies]):
        return
    if isinstance(rows, np.ndarray):
        scales = np.ptp(rows, axis=0)
        is_clear = _differ(scales[varies])
    else:
        is_clear = np.mean(scales[varies] < scales.max() / _APART) >= 0.5
    if not is_clear:
        return
    names = names_of(feature_map, len(scales))
    large = listed(names[varies & (scales / _APART > scales[varies].min())])
    small = listed(names[varies & (scales < scales[varies].max() / _APART)])
    warn(
        f"Columns of X differ in scale by more than {_APART:g}: the kernel hardly depends on "
        f"{small} beside {large}. Scale them first, for instance with StandardScaler.",
        UserWarning,
        key="scales",
    )


def _differ(scales):
    return scales.size > 0 and scales.max() / _APART > scales.min()


def warn_of_far_rows(features, name):
    """Warn of rows without features: those far from all landmarks."""
    xp = namespace(features)
    far = np.flatnonzero(to_host(xp.all(features == 0, axis=1)))
    warn(
        f"Features of {name} vanish in {features.dtype} in {len(far)} of {len(features)} rows, "
        f"{listed(far)}, which are too far from all landmarks: linear models predict their "
        "intercept there. Clip outliers, or use a smaller sigma.",
        RuntimeWarning,
        key="far rows",
    )


def listed(names):
    """Return the first few names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_NAMED].tolist())
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
