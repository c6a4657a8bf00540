"""Hybrid features: estimators combined pair by pair, with coefficients that are features too.

K_hat = sum_k l_k E_k combines estimates E_k that are accurate for different pairs, such as a
positive one for distant pairs and a trigonometric one for close pairs, with weights that add up to
1. The weights are products of features, so the combination is one linear map whose columns are
products; it costs O(nd + md + mn) per row.
"""

from collections.abc import Sequence
from inspect import signature
from numbers import Integral, Real
from typing import Literal

from .._typing import Kernel, RandomState, Sigma
from .._validation import Interval, StrOptions, check_positive, draft_of
from ..projections import CouplingLike
from ._clustered import ClusterSteps, check_clusters
from ._coefficients import Coefficients
from ._docs import document
from ._products import NAMED_BASES, NAMED_COEFFICIENTS, ProductSteps
from .base import BaseRandomFeatures
from .gaussian import CenteredRandomFeatures


@document
class HybridRF(CenteredRandomFeatures):
    r"""Hybrid random features: estimates of several feature maps combined pair by pair.

    Choose it if both close and distant pairs must be accurate and features may be negative. With
    ``coefficients="clustered"``, every pair of a query cluster and a key cluster has its own
    estimator, and by default features are positive, or 0 in the columns of other clusters. Queries
    and keys are mapped differently; for linear models on ``transform`` alone, prefer a symmetric
    feature map.

    %(sigma)s

    Parameters
    ----------
    n_components : int, default=100
        Upper limit on the number of components, which are products of features; ``n_components_``
        is the actual number. If not even the smallest product fits, the first base is used alone.
    base : tuple of str or feature map, default=("positive", "trigonometric")
        Two or more bases, from the one for distant pairs to the one for close pairs: "positive",
        "hyperbolic", "trigonometric" or an unfitted instance such as ``OptimalPositiveRF()``.
        Instances must be unbiased and symmetric, and do not receive labels. HybridRF sets their
        sigma, kernel, center, sizes and seeds and, with ``shared=True``, their coupling and
        projection.
    coefficients : {"angular", "gaussian", "clustered"} or Coefficients, default="angular"
        Weights of p + 1 bases. "angular": f, f (1 - f), ..., (1 - f)^p, where f is the angle
        between the inputs, divided by pi; "gaussian": 1 - g_1, g_1 - g_2, ..., g_p with Gaussians
        g_k of their distance; "clustered": membership in clusters; or, for two bases, your own
        `skrf.features.Coefficients`.
    n_coefficients : int, default=None
        Number of coefficient features. None means sqrt(n_components / c) - 1, rounded down and
        limited to between 0 and 8, where c is the number of components per projection that one
        coefficient feature adds (for two bases, the number of columns of both).
    tau : float, tuple of float or "median", default="median"
        Widths of the Gaussian coefficients, in units of the scaled inputs: p numbers, the largest
        first. A single number tau means tau, tau/2, tau/4 and so on; "median" uses the median
        distance as tau.
    shared : bool, default=True
        Whether bases with Gaussian projections share one set of them, drawn with `coupling`; other
        bases are independent. With False, all bases are independent, instances keep their own
        coupling, and ``omega_`` is that of the first base.
    n_clusters : int or tuple of two int, default=2
        Numbers of query clusters and of key clusters; an int stands for both. They are reduced if
        n_components is too small.
    recenter : bool, default=True
        With clusters, shift every pair of clusters to its own origin and use optimal positive
        features. False uses the complex diagonal scaling of the paper.
    %(sigma_parameter)s
    %(kernel)s
    %(coupling)s
    %(projection)s
    %(center)s
    %(random_state)s

    Attributes
    ----------
    %(attributes)s
    %(offset_)s
    n_coefficients_ : int
        Number of coefficient features.
    tau_ : float or ndarray of shape (p,)
        Widths of the Gaussian coefficients; a float for two bases.
    query_centers_, key_centers_ : ndarray of shape (p, n_features) and (q, n_features)
        Centres of the clusters, in coordinates of the scaled, shifted inputs.
    rho_ : ndarray of shape (p, q)
        Root rho of the features of every pair of clusters, as in `OptimalPositiveRF`; only with
        recentred clusters.

    Raises
    ------
    ValueError
        By `fit`, if a parameter is invalid, or if base, n_coefficients, tau or shared is set for
        clusters, which have no use for them.

    See Also
    --------
    theory.hybrid_max_error : Largest relative error of the angular form.
    OptimalPositiveRF : Accurate where the kernel is small.
    RFFSampler : Accurate where the kernel is large.

    Notes
    -----
    The estimate is sum_k lambda_k E_k, with the estimate E_k of the kernel by base k and estimates
    lambda_k of the coefficients, whose exact values add up to 1. A component is a product of a
    feature of a coefficient and one of a base.

    References
    ----------
    Choromanski et al., Hybrid random features (2022), definition 2; the angular weights of more
    than two bases and recentring are ours.

    Examples
    --------
    >>> import numpy as np
    >>> from skrf import HybridRF
    >>> X = np.random.default_rng(0).normal(size=(20, 3)) / 2
    >>> features = HybridRF(1000, random_state=0).fit(X)
    >>> features.n_components_ <= 1000
    True
    >>> error = features.approximate_kernel(X) - features.exact_kernel(X)
    >>> bool(abs(error).mean() < 0.1)
    True

    Any unbiased, symmetric feature maps can be combined; optimal positive features are more
    accurate than plain ones:

    >>> from skrf import OptimalPositiveRF
    >>> better = HybridRF(
    ...     1000,
    ...     base=(OptimalPositiveRF(), "trigonometric"),
    ...     coupling="iid",
    ...     sigma=3.0,
    ...     random_state=0,
    ... ).fit(X)
    >>> plain = HybridRF(1000, coupling="iid", sigma=3.0, random_state=0).fit(X)
    >>> bool(better.kernel_variance(X).max() < plain.kernel_variance(X).max())
    True
    """

    _parameter_constraints = {
        "base": [tuple, list],
        "coefficients": [StrOptions({*NAMED_COEFFICIENTS, "clustered"}), Coefficients],
        "n_coefficients": [Interval(Integral, 1, None, closed="left"), None],
        "tau": [StrOptions({"median"}), Interval(Real, 0, None, closed="neither"), tuple, list],
        "shared": ["boolean"],
        "n_clusters": [Interval(Integral, 1, None, closed="left"), tuple],
        "recenter": ["boolean"],
    }

    def __init__(
        self,
        n_components: int = 100,
        *,
        base: Sequence[str | BaseRandomFeatures] = ("positive", "trigonometric"),
        coefficients: Literal["angular", "gaussian", "clustered"] | Coefficients = "angular",
        n_coefficients: int | None = None,
        tau: float | Sequence[float] | Literal["median"] = "median",
        shared: bool = True,
        n_clusters: int | tuple[int, int] = 2,
        recenter: bool = True,
        sigma: Sigma | None = None,
        kernel: Kernel = "gaussian",
        coupling: CouplingLike = "orthogonal",
        projection: Literal["dense", "hadamard"] = "dense",
        center: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.base = base
        self.coefficients = coefficients
        self.n_coefficients = n_coefficients
        self.tau = tau
        self.shared = shared
        self.n_clusters = n_clusters
        self.recenter = recenter
        self.sigma = sigma
        self.kernel = kernel
        self.coupling = coupling
        self.projection = projection
        self.center = center
        self.random_state = random_state

    _is_symmetric = False

    # ---------------------------------------------------------------- parameters

    def _validate_params(self):
        super()._validate_params()
        if self.coefficients == "clustered":
            self._check_unused()
            check_clusters(self.n_clusters)
            return
        self._check_base()
        if self.coefficients == "gaussian" and isinstance(self.tau, (tuple, list)):
            self._check_widths()
        if isinstance(self.coefficients, Coefficients) and len(self.base) != 2:
            raise ValueError(f"coefficients of a user are for two bases, got base={self.base!r}.")

    def _check_unused(self):
        """Raise unless parameters that clusters have no use for are left alone."""
        for name in ("base", "n_coefficients", "tau", "shared"):
            value, default = getattr(self, name), signature(HybridRF).parameters[name].default
            if (tuple(value) if isinstance(value, list) else value) != default:
                raise ValueError(
                    f"{name}={value!r} has no effect with coefficients='clustered': leave "
                    f"{name}={default!r}, or take other coefficients."
                )

    def _check_base(self):
        is_known = [
            base in NAMED_BASES if isinstance(base, str) else isinstance(base, BaseRandomFeatures)
            for base in self.base
        ]
        if len(self.base) < 2 or not all(is_known):
            raise ValueError(
                "The 'base' parameter of HybridRF must be a tuple of two or more of "
                f"{', '.join(map(repr, NAMED_BASES))} and instances of feature maps. "
                f"Got {self.base!r} instead."
            )
        for i, base in enumerate(self.base):
            if not isinstance(base, str):
                self._check_instance(f"base[{i}]={base!r}", base)

    def _check_instance(self, shown, base):
        """Raise unless a base is unbiased and symmetric, and leaves alone what is set here."""
        base._validate_params()
        flaws = {
            "is biased": not base._is_unbiased,
            "is biased for rows that it clamps": getattr(base, "positive", False),
            "maps queries and keys differently": not base._is_symmetric,
            "has centers='classes'": getattr(base, "centers", None) == "classes",
        }
        for flaw, has in flaws.items():
            if has:
                raise ValueError(
                    f"{shown} {flaw}, and HybridRF needs bases that are unbiased for one kernel, "
                    "symmetric and without labels, such as OptimalPositiveRF, PositiveRF, "
                    "DenseExponentialRF, AdaptiveRF, RFFSampler, PoissonRF, GeometricRF and "
                    "DiscreteRF."
                )
        names = "n_components", "sigma", "kernel", "center", "random_state"
        names += ("coupling", "projection") if self.shared else ()
        defaults = type(base)().get_params(deep=False)
        for name in names:
            setting = getattr(self, name)
            value = getattr(base, name, setting)
            allowed = [setting, defaults.get(name, setting), *([1.0] if name == "sigma" else [])]
            if value not in allowed:
                hint = " or take shared=False" if name in ("coupling", "projection") else ""
                raise ValueError(
                    f"{shown} has {name}={value!r}, but HybridRF sets it from its own {name}="
                    f"{setting!r}: leave the default{hint}."
                )

    def _check_widths(self):
        widths = [check_positive("tau", width) for width in self.tau]
        count = len(self.base) - 1
        if len(widths) != count or sorted(widths, reverse=True) != widths:
            raise ValueError(
                f"tau={self.tau!r} must hold {count} widths, one fewer than bases, from the "
                "largest to the smallest."
            )

    # ---------------------------------------------------------------- steps

    def _as_spec(self):
        """Return the feature map that has the steps of a fit, with copies of bases."""
        params = {name: getattr(self, name) for name in HybridRF._get_param_names()}
        if isinstance(self.base, (tuple, list)):
            params["base"] = tuple(
                draft_of(base) if isinstance(base, BaseRandomFeatures) else base
                for base in self.base
            )
        kind = ClusteredHybridRF if self.coefficients == "clustered" else ProductHybridRF
        return kind(**params)

    @property
    def _is_positive(self):
        return self._as_spec()._is_positive

    @property
    def _columns_per_projection(self):
        return self._as_spec()._columns_per_projection

    @property
    def _needs_data(self):
        """Whether every member of the family needs statistics of data."""
        return self._as_spec()._needs_data

    def _nonlinearity(self, parameters=None, draw=None):
        raise NotImplementedError("Bases have nonlinearities of their own.")


class _Named:
    """What error messages call the class that users know."""

    _class_name = "HybridRF"

    def __repr__(self, N_CHAR_MAX=700):
        return HybridRF(**self.get_params(deep=False)).__repr__(N_CHAR_MAX)


class ProductHybridRF(_Named, ProductSteps, HybridRF):
    """HybridRF as its fits hold it, with coefficients that multiply features of bases."""


class ClusteredHybridRF(_Named, ClusterSteps, HybridRF):
    """HybridRF as its fits hold it, with clusters."""
