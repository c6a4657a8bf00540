"""The contract of every feature map: what it learns, what it draws, and the sides it makes.

`fit` collects statistics; from them a feature map learns parameters (`_learn`), draws random
numbers from a seed (`_draw`) and combines the two into its two sides (`_assemble`). These steps are
pure functions of the parameters at `fit`, and their results are kept together in one immutable
`Fitted`. Consumers hold the two sides.
"""

from abc import ABC, abstractmethod
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp

from .._arrays import cast, namespace, scaled_squares
from ..projections.base import dense_bytes
from ._fitted import Sample


class Contract(ABC):
    """What feature maps define, with what holds for most of them."""

    # Before `fit`; afterwards the maps decide.
    _is_positive = False
    _is_symmetric = True
    _is_unbiased = True
    _suits_ratios = True  # of sums of features, as kernel regression divides them

    # Feature maps without the parameter have this kernel, or name their own.
    kernel = "gaussian"

    _needs_full_statistics = _needs_sizes = False
    _looks_at_rows = False  # at single rows, which are then weighted
    _reads_labels = False

    def _sizes(self):
        """Return a namespace with ``n_projections``, or raise ValueError for ``n_components``.

        A single column cannot hold a pair: feature maps with pairs fold it with a random phase or
        sign, which keeps the estimate unbiased.
        """
        columns = self._columns_per_projection
        count, remainder = divmod(int(self.n_components), columns)
        if remainder and self.n_components > 1:
            nearest = [str(max(k * columns, 1)) for k in (count, count + 1)]
            raise ValueError(
                f"n_components={self.n_components} cannot be made by {type(self).__name__}: it "
                f"must be 1 or a multiple of {columns}, those of one projection. The nearest "
                f"allowed: {' and '.join(nearest)}."
            )
        return SimpleNamespace(n_projections=max(count, 1))

    def _n_columns(self, n_rows):
        """Return the number of components after a fit to this many rows."""
        columns = self._sizes().n_projections * self._columns_per_projection
        return min(columns, int(self.n_components))

    def _n_bytes(self, parameters, sample):
        """Return about how many bytes a fit of these sizes holds, rather too few than too many."""
        return dense_bytes(parameters.n_projections, parameters.n_features)

    @abstractmethod
    def _learn(self, parameters, statistics):
        """Add the parameters that depend only on statistics and ``parameters.sigma``."""

    def _learn_from_rows(self, parameters, sample):  # noqa: B027
        """Add what depends on single rows (centres, choices); such feature maps do not merge."""

    @abstractmethod
    def _draw(self, parameters, seed):
        """Return a namespace of random numbers."""

    def _keeps_draw(self, before, parameters):
        """Return whether random numbers drawn for other parameters can be reused for these."""
        return before.n_projections == parameters.n_projections

    @abstractmethod
    def _assemble(self, parameters, draw):
        """Return the `FeatureMap` objects of queries and keys."""

    def _log_exact_kernel(self, X, Y, sigma):
        """Return the log kernel of all pairs of rows; feature maps with their own override this.

        X and Y are validated rows of any kind, dense or sparse, not yet multiplied by sigma.
        """
        if self.kernel == "softmax":
            # Convert to float64 before scaling: sigma and products may leave float32's range.
            X, Y = (cast(Z, namespace(Z).float64) * sigma for Z in (X, Y))
            product = X @ Y.T
            return product.toarray() if sp.issparse(product) else product
        return scaled_squares(X, Y, sigma) / -2

    @abstractmethod
    def _log_variance(self, fitted, X, Y):
        """Return the log variance of the estimate for all pairs of rows."""

    def _check_variance(self, parameters):  # noqa: B027
        """Raise NotImplementedError if `_log_variance` is unknown, without computing anything."""

    def _log_term_range(self, fitted, X, Y, upper):
        """Return the log range of the terms that the estimate averages, or raise."""
        raise ValueError(
            "hoeffding_bound and bernstein_bound need bounded, independent terms, but "
            f"{self!r} has none. These have them with coupling='iid' and projection='dense': "
            "RFFSampler; OptimalPositiveRF and GeneralizedExponentialRF, where the real part of "
            "the fitted A_ is negative; PositiveRF(variant='regularized'). For side='upper' those "
            "whose features are positive may have coupling='orthogonal' or 'simplex', too."
        )

    def _log_term_variance(self, fitted, X, Y):
        """Return the log variance of a term, if terms are independent."""
        return self._log_variance(fitted, X, Y) + np.log(fitted.parameters.n_projections)

    def _log_upper_tail(self, fitted, X, Y, log_error):
        """Return the log of Chernoff's bound of an upper tail, or raise."""
        raise ValueError(
            "upper_tail_bound needs bounded positive terms whose moments are known, but "
            f"{self!r} has none. These have them with projection='dense' and coupling='iid', "
            "'orthogonal' or 'simplex': OptimalPositiveRF, where A_ is negative, and "
            "PositiveRF(variant='regularized')."
        )

    def _log_block_moment(self, fitted, X, Y):
        """Return the log of the summed second moments of the blocks' parts, or raise."""
        raise ValueError(
            "left_tail_bound needs features that are never negative, in independent blocks, but "
            f"{self!r} has none. These have them with projection='dense': PositiveRF, "
            "OptimalPositiveRF and, where A_ is real and s_ is 1, GeneralizedExponentialRF with "
            "coupling='iid', 'orthogonal' or 'simplex'; DenseExponentialRF with 'iid' or "
            "'orthogonal'; PoissonRF, GeometricRF and DiscreteRF with positive=True."
        )

    def _variance_is_exact(self, parameters):
        """Return whether `_log_variance` is exact rather than a bound."""
        return True

    @property
    def _columns_per_projection(self):
        """Number of columns per projection."""
        return 1

    def _obstacle_to_merging(self):
        """Return what is learned from more than mergeable statistics, or None."""
        if self._looks_at_rows:
            return "centres of clusters"
        return "sigma='median'" if self.sigma == "median" else None

    @property
    def _needs_data(self):
        """Whether every member of the family needs statistics of data."""
        return False

    def _labels(self, y, kept_rows, keys):  # noqa: B027
        """Return class codes of the kept rows of y; None if labels are ignored."""

    def _sample(self, X, keys, weights, seed, labels=None):
        """Return the rows that parameters are learned from."""
        sample = Sample(X, X if keys is None else keys, weights, seed, labels)
        return sample.distinct() if self._looks_at_rows else sample

    def _forget_data(self, parameters):  # noqa: B027
        """Set the parameters to those of the member of the family that needs no data."""
