"""Tables of feature maps: what they say is what one measures."""

import numpy as np
import pytest
from sklearn.base import clone

from skrf import OptimalPositiveRF, PositiveRF, RFFSampler, theory

X = np.random.default_rng(0).normal(size=(60, 4)) / 2
Y = np.random.default_rng(1).normal(size=(40, 4)) / 2 + 0.3
FEW = {"trigonometric": RFFSampler(32), "optimal": OptimalPositiveRF(32)}


def test_a_table_prints_aligned_and_becomes_a_frame():
    table = theory.compare(X, feature_maps=FEW)
    lines = repr(table).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split()[:2] == ["name", "predicted"]
    assert [line.split()[0] for line in lines[1:]] == [row.name for row in table]
    assert isinstance(table, list) and len(table) == 2
    pandas = pytest.importorskip("pandas")
    frame = table.to_frame()
    assert list(frame.index) == [row.name for row in table]
    assert frame.loc["optimal", "log_error"] == next(
        row.log_error for row in table if row.name == "optimal"
    )
    assert isinstance(frame, pandas.DataFrame) and "feature_map" in frame
    assert theory.ComparisonTable().to_frame().empty
    assert repr(theory.ComparisonTable()).startswith("name")


@pytest.mark.parametrize("kernel", ["gaussian", "softmax"])
def test_default_feature_maps_take_sigma_and_kernel(kernel):
    table = theory.compare(X, Y, n_components=16, sigma=0.3, kernel=kernel)
    assert all(row.feature_map.sigma == 0.3 for row in table)
    assert all(row.feature_map.kernel == kernel for row in table)
    names = {row.name for row in table}
    assert ("cluster Nystroem" in names) == (kernel == "gaussian")
    assert ("dense, asymmetric" in names) == (kernel == "softmax")
    assert ("adaptive, asymmetric" in names) == (kernel == "softmax")


@pytest.mark.parametrize(
    "mechanism, Z", [(OptimalPositiveRF(64), None), (RFFSampler(64, sigma=2.0), Y)]
)
def test_sum_errors_are_those_of_row_sums(mechanism, Z):
    [row] = theory.compare(X, Z, feature_maps={"": mechanism})
    fitted = clone(mechanism).set_params(random_state=0).fit(X, keys=Z)
    others = 1 - np.eye(len(X)) if Z is None else 1.0
    exact = np.sum(fitted.exact_kernel(X, Z) * others, axis=1)
    errors = []
    for seed in range(50):
        sums = np.sum(fitted.redraw(seed).approximate_kernel(X, Z) * others, axis=1)
        ratios = np.where(sums > 0, np.maximum(sums, 1e-300) / exact, 0.0)
        with np.errstate(divide="ignore"):
            errors.append(np.median(np.abs(np.log(ratios))))
    assert row.sum_error == pytest.approx(np.median(errors), rel=1e-9)


def test_heavy_tails_are_named():
    """Of positive features of a narrow kernel most draws are far better than the mean square."""
    feature_maps = {"heavy": PositiveRF(32, sigma=4.0), "light": RFFSampler(32, sigma=4.0)}
    rows = {row.name: row for row in theory.compare(X, feature_maps=feature_maps)}
    assert rows["heavy"].heavy_tail and rows["heavy"].predicted > 3 * rows["heavy"].typical
    assert not rows["light"].heavy_tail
    light = rows["light"]
    assert abs(light.predicted - light.measured) < 4 * light.standard_error < 0.2 * light.measured


def test_a_row_without_others_has_no_sum_to_estimate():
    for row in theory.compare(X[:1], feature_maps=FEW):
        assert row.sum_error == np.inf and row.log_error < 1e-9


def test_sums_of_narrow_kernels_are_compared_by_their_logarithms():
    table = theory.compare(X, feature_maps={"": OptimalPositiveRF(16, sigma=100.0)})
    assert 1e3 < table[0].sum_error < np.inf
    ranked = theory.compare(X, feature_maps=FEW, criterion="sums")
    assert ranked[0].sum_error <= ranked[1].sum_error
