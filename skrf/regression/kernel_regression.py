"""Code shared by the classifier and the regressor of kernel regression."""

import warnings
from dataclasses import replace
from typing import Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._arrays import cast, like, namespace, to_host
from .._typing import RandomState, Sigma, Transformer
from .._validation import StrOptions, validate_rows
from ..exceptions import FeatureCollapseWarning
from ..features import ClusterQuantizer, suits_ratios
from .base import SIGMA, KernelEstimator
from .key_sums import KeySums, bytes_of_sums
from .leave_one_out import best_exact_sigma, best_sigma
from .moments import beside_threads
from .rows import ExactMap
from .search import maps_of

_SINGLE_BITS = 100  # sizes of predictions that float32 can represent


class KernelRegression(KernelEstimator):
    """Base of the estimators that divide sums of features by a sum of features."""

    _default_map = ClusterQuantizer(256)
    _parameter_constraints = {
        **KernelEstimator._parameter_constraints,
        "sigma": [StrOptions({"scale", "median"}), SIGMA, None],
    }
    _warns = True

    def __init__(
        self,
        feature_map: Transformer | Literal["exact"] | None = None,
        *,
        sigma: Sigma | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.feature_map = feature_map
        self.sigma = sigma
        self.random_state = random_state

    def _leaves_sigma_open(self, feature_map):
        if self.sigma is not None or getattr(feature_map, "kernel", None) == "softmax":
            return False
        return feature_map.get_params(deep=False).get("sigma", 1.0) is None

    def _fit_map(self, data, is_first_batch=False):
        if isinstance(self.feature_map, str):
            if self.sigma is None:
                self.sigma_, share, score = best_exact_sigma(data)
            else:
                self.sigma_, share, score = data.resolved(self.sigma), 0.0, None
            self._keep_score(score)
            maps = (ExactMap(to_host(data.X).copy(), self.sigma_),) * 2
            return replace(self._before(maps, data), prior_share=share)
        feature_map, share = self._check_size(self._prepared(sigma=self.sigma), data), 0.0
        if not suits_ratios(feature_map):
            raise ValueError(
                f"feature_map={feature_map!r} does not suit kernel regression, because sums of its "
                "features may be negative: use ridge regression, or another map."
            )
        if self._leaves_sigma_open(feature_map):
            with beside_threads(feature_map):
                sigma, share, score = best_sigma(feature_map, data)
            self._keep_score(score)
            feature_map.set_params(sigma=sigma)
        self.feature_map_ = data.fitted(feature_map)
        if hasattr(self.feature_map_, "sigma_"):
            self.sigma_ = self.feature_map_.sigma_
        return replace(self._before(maps_of(self.feature_map_), data), prior_share=share)

    def _map_of_batches(self, sigma, data=None):
        return self._prepared(sigma)

    def _keep_score(self, score):
        if score is not None:
            self.best_score_ = score

    def _before(self, maps, data):
        return KeySums.before(self.get_params(), maps, data)

    def _bytes_of_sums(self, n_columns, data):
        return bytes_of_sums(n_columns, data)

    def _query(self, X, function):
        """Return `KeySums.query` for rows that the user passes to a public method, and a dtype.

        The dtype is that of the rows, which predictions have, too.
        """
        check_is_fitted(self)
        lost = []

        def noted(sums, block):
            xp, weights = namespace(sums), sums[:, :, 0]
            is_partial = bool(xp.any(weights[:, 0] == 0))  # all weights take several times as long
            lost.append(is_partial and bool(xp.any(xp.all(weights == 0, axis=1))))
            return function(sums, block)

        X = validate_rows(self, X, reset=False)
        answer = self._fitted.query(X, noted)
        if any(lost) and self._warns:
            warnings.warn(
                "Some rows of X are predicted by the class shares or the mean target alone: the "
                "features of feature_map are 0 there, or beyond the range of floats. Use a "
                "positive map, such as OptimalPositiveRF, or smaller inputs.",
                FeatureCollapseWarning,
                stacklevel=3,
            )
        return answer, X.dtype

    def _means_of(self):
        """Return a function of the sums of a block that returns its means of the targets."""
        targets, exponents = self._fitted.targets, self._fitted.exponents[1:]
        is_double = max(np.abs(exponents).max(), targets.most.max()) > _SINGLE_BITS

        def means_of(sums, _):
            weight, weighted = sums[:, 0, :1], sums[:, 0, 1:]
            xp = namespace(sums)
            means = weighted / xp.where(weight > 0, weight, like(1.0, weight))
            means = cast(means, xp.float64) if is_double else means
            with np.errstate(over="ignore"):
                means = means * like(np.ldexp(1.0, exponents), means)
            means = xp.clip(means, like(targets.low, means), like(targets.high, means))
            return xp.where(weight > 0, means, like(targets.mean, means))

        return means_of
