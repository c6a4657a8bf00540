"""SmoothClipScaler: quantiles, ranks, weights, and columns of every kind."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import rankdata
from sklearn.base import clone

from skrf import SmoothClipScaler
from skrf.features import scaling

RNG = np.random.default_rng(0)
X = np.column_stack(
    [
        RNG.normal(size=60),
        RNG.standard_cauchy(60) ** 3,
        RNG.integers(0, 4, 60),
        np.where(RNG.random(60) < 0.9, 0.0, RNG.exponential(1e4, 60)),  # no interquartile range
        np.full(60, -7.3),
    ]
)
WEIGHTS = RNG.integers(0, 4, 60)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def by_definition(rows):
    low, center, high = np.nanquantile(rows, [0.25, 0.5, 0.75], 0, method="averaged_inverted_cdf")
    scale = np.where(high > low, high - low, (np.nanmax(rows, 0) - np.nanmin(rows, 0)) / 2)
    z = (rows - center) / np.where(scale > 0, scale, 1.0)
    return center, scale, z / np.sqrt(1 + (z / 3) ** 2)


def mid_ranks(rows):
    return (rankdata(rows, axis=0) - 0.5) / len(rows)


# ------------------------------------------------------------------ what it computes


@pytest.mark.parametrize("n", [1, 2, 3, 59, 60])
def test_columns_are_centred_scaled_and_bent(n):
    center, scale, expected = by_definition(X[:n])
    scaler = SmoothClipScaler().fit(X[:n])
    assert_allclose(scaler.center_, center, rtol=1e-13)
    assert_array_equal(scaler.center_, np.median(X[:n], axis=0))
    assert_allclose(scaler.scale_, scale, rtol=1e-13)
    assert_allclose(scaler.transform(X[:n]), expected, rtol=1e-14, atol=1e-14)
    assert scaler.scale_[4] == 0 and (scaler.transform(X + 1)[:, 4] == 0).all()
    if n == 60:
        assert (X[:, 3] == 0).mean() > 0.75 and scaler.scale_[3] == X[:, 3].max() / 2


def test_ranks_stand_beside_the_columns():
    scaler = SmoothClipScaler(ranks=True).fit(X)
    values = scaler.transform(X)
    assert_array_equal(values[:, :5], SmoothClipScaler().fit_transform(X))
    assert_allclose(values[:, 5:], mid_ranks(X), rtol=1e-14)
    assert values[:, 5:].min() > 0 and values[:, 5:].max() < 1
    # New values lie between those of their neighbours, and beyond all at the ends.
    order = np.sort(X[:, 0])
    rows = np.zeros((4, 5))
    rows[:, 0] = order[0] - 1, order[-1] + 1, 0.25 * order[7] + 0.75 * order[8], order[8]
    ranks = scaler.transform(rows)[:, 5]
    assert_allclose(ranks, [0.5 / 60, 59.5 / 60, 8.25 / 60, 8.5 / 60], rtol=1e-12)
    assert (scaler.transform(rows)[:, 9] == 0.5).all()


@pytest.mark.parametrize("share", [0.0, 0.4, 1 / 5000])
def test_ranks_among_many_values(share, monkeypatch):
    """Few values are kept, but all whose weight makes ranks jump."""
    monkeypatch.setattr(scaling, "_PARTS", 100)
    values = np.random.default_rng(0).standard_cauchy(5000)
    values[: int(share * 5000)] = 0.1
    scaler = SmoothClipScaler(ranks=True).fit(values[:, None])
    ranks, expected = scaler.transform(values[:, None])[:, 1], mid_ranks(values)
    assert len(scaler._fitted[0][0]) <= 300
    assert np.abs(ranks - expected).max() < 1 / 99
    assert abs(ranks - expected)[values == 0.1].max(initial=0) < 1e-12 or share < 1e-3
    order = np.argsort(values)
    assert (np.diff(ranks[order]) >= 0).all()


# ------------------------------------------------------------------ weights


@pytest.mark.parametrize("ranks", [False, True])
def test_weights_are_repetitions(ranks):
    rows = X.copy()
    rows[::7, 0] = np.nan
    scaler = SmoothClipScaler(ranks).fit(rows, sample_weight=WEIGHTS)
    repeated = clone(scaler).fit(np.repeat(rows, WEIGHTS, axis=0))
    for name in ("center_", "scale_"):
        assert_array_equal(getattr(scaler, name), getattr(repeated, name))
    assert_array_equal(scaler.transform(rows), repeated.transform(rows))
    for factor in (0.3, 5e307, 1e-300):  # ratios count alone
        other = clone(scaler).fit(rows, sample_weight=factor * WEIGHTS)
        assert_array_equal(other.scale_, scaler.scale_)
        assert_allclose(other.transform(rows), scaler.transform(rows), rtol=1e-12)
    assert_array_equal(scaler.fit(rows, sample_weight=np.ones(60)).center_, np.nanmedian(rows, 0))


def test_a_column_may_be_known_in_light_rows_alone():
    rows = np.array([[np.nan], [1.0], [3.0]])
    scaler = SmoothClipScaler(ranks=True).fit(rows, sample_weight=[1e300, 1e-300, 1e-300])
    assert scaler.center_ == 2 and scaler.scale_ == 2
    assert_allclose(scaler.transform(rows)[1:, 1], [0.25, 0.75])


# ------------------------------------------------------------------ columns of every kind


def test_missing_values_pass_through():
    rows = X.copy()
    rows[RNG.random(X.shape) < 0.2] = np.nan
    rows[:, 4] = np.nan
    scaler = SmoothClipScaler(ranks=True).fit(rows)
    values = scaler.transform(rows)
    assert_array_equal(np.isnan(values), np.tile(np.isnan(rows), 2))
    with warnings.catch_warnings(action="ignore"):  # columns of NaN alone
        assert_allclose(values[:, :4], by_definition(rows)[2][:, :4], rtol=1e-14, atol=1e-14)
    for j in range(4):
        known = ~np.isnan(rows[:, j])
        assert_allclose(values[known, 5 + j], mid_ranks(rows[known, j]), rtol=1e-14)
    # A column without values says nothing about new ones.
    assert scaler.transform(np.ones((1, 5)))[0, [4, 9]].tolist() == [0, 0.5]


@pytest.mark.parametrize("size", [2.0**-500, 2.0**470])  # about 1e-150 and 1e141
def test_columns_of_any_size(size):
    scaler, far = SmoothClipScaler(ranks=True).fit(X), SmoothClipScaler(ranks=True).fit(size * X)
    assert_array_equal(far.scale_, size * scaler.scale_)
    assert_array_equal(far.transform(size * X), scaler.transform(X))
    single = scaler.transform(X.astype(np.float32))
    assert_allclose(single, scaler.transform(X), rtol=1e-5, atol=1e-5)


def test_no_entry_leaves_the_bounds():
    rows = np.array([[-1.7e308], [-1e100], [1.7e308], [5e-324], [np.nan]])
    for unit in (1e-320, 1e-150, 1.0, 1e149):
        scaler = SmoothClipScaler().fit(unit * X[:, :1])
        values = scaler.transform(rows)[:, 0]
        assert values[0] == -3 and values[2] == 3 and np.isnan(values[4])
        assert -3 <= values[1] < 0 and abs(values[3]) < 3
    single = np.array([[3e38], [-3e38]], dtype=np.float32)
    scaler = SmoothClipScaler().fit(1e-30 * X[:, :1].astype(np.float32))
    assert_array_equal(scaler.transform(single), [[3], [-3]])
    with pytest.raises(ValueError, match="X is too large for its statistics.* is 1e[+]160"):
        SmoothClipScaler().fit([[0.0], [-1e160]])


# ------------------------------------------------------------------ the way back


def test_the_inverse():
    rows = np.column_stack([X[:, 0], 1e3 * X[:, 2] - 5, X[:, 4]])
    rows[3, 0] = np.nan
    for dtype, rtol in ((np.float64, 1e-12), (np.float32, 1e-5)):
        scaler = SmoothClipScaler().fit(rows.astype(dtype))
        back = scaler.inverse_transform(scaler.transform(rows.astype(dtype)))
        assert back.dtype == dtype
        assert_allclose(back / [1, 1e3, 1], rows / [1, 1e3, 1], rtol=rtol, atol=rtol)
        # Entries whose transform is rounded to a bound come back large and finite.
        ends = scaler.inverse_transform(np.array([[3, -3, 0]], dtype))[0]
        assert np.isfinite(ends).all() and ends[0] > 1e3 * scaler.scale_[0] and ends[1] < -1e6
    for wrong in (3.1, -3.1):
        with pytest.raises(ValueError, match="X must be between -3 and 3 .* got -?3.1"):
            scaler.inverse_transform([[0, wrong, np.nan]])


def test_ranks_have_no_inverse():
    for scaler in (SmoothClipScaler(ranks=True), SmoothClipScaler(ranks=True).fit(X)):
        assert not hasattr(scaler, "inverse_transform")
        with pytest.raises(AttributeError, match="SmoothClipScaler has no inverse_transform here"):
            scaler.inverse_transform(X)
    assert not hasattr(scaler.set_params(ranks=False), "inverse_transform")  # those of the fit
    assert scaler.transform(X).shape == (60, 10)
    assert hasattr(scaler.fit(X), "inverse_transform") and scaler.transform(X).shape == (60, 5)


# ------------------------------------------------------------------ a transformer


def test_names_of_columns():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=list("abcde"))
    scaler = SmoothClipScaler().set_output(transform="pandas").fit(table)
    assert list(scaler.transform(table).columns) == list("abcde")
    scaler = clone(scaler).set_params(ranks=True).set_output(transform="pandas")
    names = [*"abcde", "a_rank", "b_rank", "c_rank", "d_rank", "e_rank"]
    assert list(scaler.fit_transform(table).columns) == names
    assert list(SmoothClipScaler(True).fit(X[:, :1]).get_feature_names_out()) == ["x0", "x0_rank"]
    with pytest.raises(ValueError, match="input_features"):
        scaler.get_feature_names_out(list("abcdf"))


def test_names_of_ranks_are_not_those_of_columns():
    table = pd.DataFrame(X[:, :2], columns=["a", "a_rank"])
    names = SmoothClipScaler(ranks=True).fit(table).get_feature_names_out()
    assert list(names) == ["a", "a_rank", "a_rank_", "a_rank_rank_"]


def test_what_it_refuses():
    scaler = SmoothClipScaler(ranks=True).fit(X)
    before = scaler.transform(X)
    for call in (scaler.fit, scaler.transform):
        with pytest.raises(TypeError, match="SmoothClipScaler needs dense rows.* sparse matrix"):
            call(sp.csr_array(X))
        with pytest.raises(ValueError, match="X contains infinity"):
            call(np.where(X == X[3, 0], np.inf, X))
        with pytest.raises(ValueError, match="X: Found array with 0 feature"):
            call(X[:, :0])
        assert_array_equal(scaler.transform(X), before)
    with pytest.raises(ValueError, match="sample_weight"):
        scaler.fit(X, sample_weight=-np.ones(60))
    with pytest.raises(ValueError, match="'ranks' parameter"):
        SmoothClipScaler(ranks="yes").fit(X)
    for array in (scaler.center_, scaler.scale_, scaler._fitted[0][1]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    dask = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match=r"X belongs to Dask \(Array\): pass X.compute\(\)"):
        scaler.fit(dask.from_array(X))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_array_libraries(library, dtype):
    rows = X.astype(dtype)
    rows[0, 0] = np.nan
    expected = SmoothClipScaler(ranks=True).fit(rows)
    scaler = SmoothClipScaler(ranks=True).fit(library.array(rows))
    assert_array_equal(scaler.scale_, expected.scale_)
    tolerance = {"rtol": 1e-6, "atol": 1e-7}
    values = scaler.transform(library.array(rows))
    library.assert_same(values, expected.transform(rows), library.array(rows), **tolerance)
    plain = SmoothClipScaler().fit(rows)
    back = plain.inverse_transform(plain.transform(library.array(rows[:, [0, 2, 2, 2, 4]])))
    assert library.host(back).dtype == dtype
    with pytest.raises(ValueError, match="X contains infinity"):
        scaler.transform(library.array(np.full((1, 5), np.inf)))


def test_gradients():
    torch = pytest.importorskip("torch")
    scaler = SmoothClipScaler(ranks=True).fit(X)
    rows = torch.tensor(X[:3] + 0.01, requires_grad=True)
    assert torch.autograd.gradcheck(scaler.transform, rows, fast_mode=True)
