"""Conformity and comparisons of feature maps against what draws show."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import hyp0f1, logsumexp
from sklearn.base import clone

from skrf import OptimalPositiveRF, RFFSampler, theory
from skrf.projections import COUPLINGS

X = np.random.default_rng(0).normal(size=(60, 4)) / 2
Y = np.random.default_rng(1).normal(size=(40, 4)) / 2 + 0.3


@pytest.mark.parametrize("coupling", ["iid", "orthogonal", "simplex"])
def test_expected_conformity_is_the_mean_over_draws(coupling):
    rngs = map(np.random.default_rng, range(1000))
    draws = (COUPLINGS[coupling].draw(11, 4, rng).dense() for rng in rngs)
    values = [theory.sample_conformity(omega, 0.8) for omega in draws]
    error = np.std(values, ddof=1) / np.sqrt(1000)
    expected = theory.expected_conformity(coupling, 0.8, n_projections=11, n_features=4)
    assert error < 0.02
    assert abs(np.mean(values) - expected) < 4.4 * error


def test_conformity_names_what_is_known():
    omega = np.random.default_rng(0).normal(size=(3, 2))
    good = {"coupling": "iid", "sum2": 1.0, "n_projections": 4, "n_features": 4}
    for wrong, said in (
        ({"coupling": "sobol"}, "coupling.*iid.*sobol"),
        ({"coupling": ["iid"]}, "coupling must be one of"),
        ({"n_projections": 1}, "n_projections must be an integer >= 2"),
        ({"n_features": None}, "n_features must be an integer >= 1"),
        ({"sum2": "a"}, "sum2 must"),
        ({"sum2": [1.0, -1.0]}, "sum2 must"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            theory.expected_conformity(**{**good, **wrong})
    for wrong in ("a", omega[:1], omega[0], None, np.nan * omega, 1j * omega, omega[:, :0]):
        with pytest.raises((ValueError, TypeError), match=r"\bomega\b"):
            theory.sample_conformity(wrong, 1.0)
    for wrong in ("a", None, -1.0, np.nan, np.inf, [1.0, 2.0], 1j):
        with pytest.raises((ValueError, TypeError), match="sum2 must"):
            theory.sample_conformity(omega, wrong)
    assert theory.sample_conformity(omega.tolist(), 1.0) == theory.sample_conformity(omega, 1.0)
    # Beyond the range of floats it is infinite, and nothing warns.
    assert theory.expected_conformity("iid", 1e6, n_projections=4, n_features=4) == np.inf


@pytest.mark.parametrize("d", [1, 2, 5, 40])
def test_the_conformity_of_a_sample_is_right_at_any_size_or_infinite(d):
    omega = np.random.default_rng(d).normal(size=(3, d))
    squares = [np.sum((omega[i] + omega[j]) ** 2) for i, j in ((0, 1), (0, 2), (1, 2))]
    for sum2 in (0.0, 1e-200, 1e-3, 1.0, 300.0):
        expected = np.mean([float(hyp0f1(d / 2, z * sum2 / 4)) for z in squares])
        assert_allclose(theory.sample_conformity(omega, sum2), expected, rtol=1e-10)
    for sum2, size in ((1e300, 1.0), (1.0, 1e200), (1e300, 1e300), (1e-300, 1e307)):
        assert theory.sample_conformity(size * omega, sum2) == np.inf


def test_comparisons_name_what_they_cannot_take():
    good = {"trigonometric": RFFSampler(4)}
    for params, said in (
        ({"feature_maps": [RFFSampler()]}, "feature_maps must be a dict"),
        ({"feature_maps": {"A": RFFSampler}}, "feature_maps.'A'. must be an instance"),
        ({"feature_maps": good, "criterion": ["log"]}, "criterion must be"),
        ({"feature_maps": good, "random_state": None}, "random_state must be an integer >= 0"),
        ({"feature_maps": good, "Y": "a"}, "Y: "),
        ({"n_components": 2.5}, "n_components must be an integer"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            theory.compare(X, **params)
    with pytest.raises(ValueError, match="X: Expected 2D array"):
        theory.compare(X[0])
    assert theory.compare(X > 0, feature_maps=good)[0].measured > 0
    with pytest.raises(TypeError, match="feature_map must be an instance"):
        theory.n_components_for(RFFSampler, X, rel_error=0.1)
    with pytest.raises(ValueError, match=r"\bY\b"):
        theory.n_components_for(RFFSampler(), X, "a", rel_error=0.1)


def test_comparison_predicts_what_it_measures():
    table = {row.name: row for row in theory.compare(X, Y, n_components=64, sigma=1.0)}
    assert set(table) == set(theory.default_feature_maps())
    for row in table.values():
        if row.source == "none":
            assert np.isnan(row.predicted) and 0 <= row.standard_error < row.measured
            # The simplex coupling of the first has no known bound, and the other no variance.
            assert row.name in ("adaptive", "cluster Nystroem")
        elif row.source == "bound":
            assert row.measured < 1.5 * row.predicted
        else:
            # Positive features seldom show their variance.
            assert 0.3 < row.measured / row.predicted < 1.6, row
            assert abs(row.measured - row.predicted) < 5 * row.standard_error or row.heavy_tail
    assert not table["trigonometric"].is_positive and table["adaptive"].is_positive
    assert table["trigonometric"].cost == 32 * 4 and table["positive"].cost == 64 * 4


class Counted(RFFSampler):
    """Remembers the seeds with which it is drawn again."""

    seeds = []

    def redraw(self, random_state):
        self.seeds.append(random_state)
        return super().redraw(random_state)


def test_enormous_feature_maps_are_compared_by_fewer_draws():
    """Those of 2^19 projections in all, two features each, but one draw at least."""
    for n_components, n_draws in ((128, 50), (2**20 // 10 - 1, 10), (2**19 + 2, 1)):
        Counted.seeds.clear()
        maps = {"": Counted(n_components, coupling="iid")}
        [row] = theory.compare(X[:5], feature_maps=maps, random_state=7)
        assert Counted.seeds == list(range(8, 7 + n_draws))  # that of fit is first
        assert 0 < row.measured < 1


def test_narrow_kernels_are_compared_by_their_logarithms():
    """Most pairs lie beyond exp(-745); positive maps know their logarithms, and are chosen."""
    rows = np.random.default_rng(0).normal(size=(40, 2))
    table = theory.compare(rows, feature_maps=theory.default_feature_maps(32, sigma=300.0))
    assert all(np.isfinite(row.log_error) for row in table if row.is_positive)
    assert table[0].is_positive
    mechanism = OptimalPositiveRF(32, sigma=300.0, random_state=0)
    [row] = theory.compare(rows, feature_maps={"": mechanism})
    expected = []
    for seed in range(50):
        fitted = clone(mechanism).set_params(random_state=0).fit(rows).redraw(seed)
        logs = logsumexp(
            fitted.log_transform(rows)[:, None] + fitted.log_transform_keys(rows), axis=2
        )
        expected.append(np.median(abs(logs - fitted.exact_kernel(rows, log=True))))
    assert_allclose(row.log_error, np.median(expected), rtol=1e-9)
