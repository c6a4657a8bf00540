"""Warnings of this library that programs can catch by name."""

__all__ = ["FeatureCollapseWarning"]


class FeatureCollapseWarning(UserWarning):
    """Warning that the random features of a query have collapsed onto one or two of them.

    Positive features are exponentials. When the inputs are large compared with the kernel's
    width, one or two of them hold nearly all of the weight, and averaging over the others adds
    nothing: the kernel estimate is as poor as with one or two features, however many there are. A
    smaller ``sigma``, centring, or a feature map of lower variance helps; more features of the same
    kind hardly do. Attention also issues this warning if the mean of the values is closer to exact
    attention, or if weights of both signs cancel; graphical models, if the exact partition function
    provably differs from the approximate one.

    See Also
    --------
    warnings.simplefilter : Turn the warning into an error, or silence it.
    skrf.attention.ApproxKernelAttention.diagnose : How far an output can be trusted.

    Examples
    --------
    Treat a collapse as an error in one part of a program:

    >>> import warnings
    >>> from skrf.exceptions import FeatureCollapseWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", FeatureCollapseWarning)
    ...     try:
    ...         warnings.warn("2 features hold all the weight", FeatureCollapseWarning)
    ...     except FeatureCollapseWarning as warning:
    ...         print(warning)
    2 features hold all the weight
    """
