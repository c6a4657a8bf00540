"""The loaders: real files where they are at hand, small written ones and a faked OpenML."""

import os
from urllib.error import URLError

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.utils import Bunch

from skrf.datasets import REGIMES, load_uci, make_cells, make_regime, uci

# name: rows, columns with the label, classes, categorical columns, width after one-hot encoding.
# The first three are from the list that comes with the files, the last from the papers' code.
EXPECTED = {
    "abalone": (4177, 9, 28, [0], 10),
    "banknote": (1372, 5, 2, [], 4),
    "car": (1728, 7, 4, [0, 1, 2, 3, 4, 5], 21),
    "yeast": (1484, 9, 10, [], 8),
    "cmc": (1473, 10, 3, [], 9),
    "nursery": (12960, 9, 5, [0, 1, 2, 3, 4, 5, 6, 7], 27),
    "wifi": (2000, 8, 4, [], 7),
    "chess": (28056, 7, 18, [0, 1, 2, 3, 4, 5], 40),
}
# First data row and label of each file, typed out from the files.
FIRST_ROWS = {
    "abalone": (["M", 0.455, 0.365, 0.095, 0.514, 0.2245, 0.101, 0.15], 15),
    "banknote": ([3.6216, 8.6661, -2.8073, -0.44699], 0),
    "car": (["vhigh", "vhigh", "2", "2", "small", "low"], "unacc"),
    "yeast": ([0.58, 0.61, 0.47, 0.13, 0.50, 0.00, 0.48, 0.22], "MIT"),
    "cmc": ([24, 2, 3, 3, 1, 1, 2, 3, 0], 1),
    "nursery": (
        ["usual", "proper", "complete", "1", "convenient", "convenient", "nonprob", "recommended"],
        "recommend",
    ),
    "wifi": ([-64, -56, -61, -66, -71, -82, -81], 1),
    "chess": (["a", "1", "b", "3", "c", "2"], "draw"),
}

# Read before the fixture below hides the variable.
REAL_DIR = os.environ.get("SKRF_UCI_DIR")


@pytest.fixture(autouse=True)
def openml(monkeypatch):
    """Hide the variable and the network; return what OpenML answers, by number."""
    answers = {}

    def fetch(*, data_id, **kwargs):
        assert data_id in answers, f"fetch_openml was called with {data_id} and {kwargs}"
        return answers.pop(data_id)

    monkeypatch.delenv("SKRF_UCI_DIR", raising=False)
    monkeypatch.setattr(uci, "fetch_openml", fetch)
    return answers


def write(folder, name, *rows, end="\n"):
    lines = [",".join(map(str, [*features, label])) for features, label in rows]
    (folder / f"{name}.csv").write_bytes((end.join(lines) + end).encode())


@pytest.mark.skipif(not REAL_DIR, reason="SKRF_UCI_DIR is not set: no UCI files are at hand")
def test_real_files():
    for name, (rows, n_columns, n_classes, categorical, width) in EXPECTED.items():
        bunch = load_uci(name, data_dir=REAL_DIR)
        assert bunch.data.shape == (rows, n_columns - 1), name
        assert len(np.unique(bunch.target)) == n_classes, name
        assert bunch.categorical_features == categorical, name
        levels = sum(len(np.unique(bunch.data[:, j].astype(str))) for j in categorical)
        assert levels + n_columns - 1 - len(categorical) == width, name
        features, label = FIRST_ROWS[name]
        assert bunch.data[0].tolist() == features and bunch.target[0] == label, name


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_is_read_as_it_is(end, tmp_path, monkeypatch):
    monkeypatch.setenv("SKRF_UCI_DIR", str(tmp_path))
    for name, (features, label) in FIRST_ROWS.items():
        _, n_columns, _, categorical, _ = EXPECTED[name]
        write(tmp_path, name, ([f" {cell} " for cell in features], f" {label}"), end=end)
        path = tmp_path / f"{name}.csv"
        path.write_bytes("\ufeff\n \n".encode() + path.read_bytes())
        bunch = load_uci(name)
        assert bunch.data.tolist() == [features] and bunch.target.tolist() == [label]
        assert bunch.data.dtype == (object if categorical else np.float64)
        assert len(bunch.feature_names) == n_columns - 1
        X, y = load_uci(name, return_X_y=True, download=True)  # a file comes before a download
        assert_array_equal(X, bunch.data)
        assert_array_equal(y, bunch.target)
    # A folder that is given comes before the variable.
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", "banknote", ([1, 2, 3, 4], 1))
    assert load_uci("banknote", data_dir=tmp_path / "other").data.tolist() == [[1, 2, 3, 4]]
    monkeypatch.delenv("SKRF_UCI_DIR")
    with pytest.raises(FileNotFoundError, match=r"car\.csv in data_dir=.*SKRF_UCI_DIR.*download=T"):
        load_uci("car", data_dir=tmp_path / "other")
    with pytest.raises(ValueError, match="name must be one of 'abalone', .* got 'iris'"):
        load_uci("iris")


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("banknote", "1,2,3,0", "rows must have 5 columns .* got 4"),
        ("banknote", "1,2,3,4,0\n1,2,3", "entropy in row 2 must be a finite number, got ''"),
        ("banknote", "1,2,3,4,0\n1,2,3,4,5,0", "Expected 5 fields in line 2"),
        ("banknote", "1,2,inf,4,0", "curtosis in row 1 must be a finite number, got 'inf'"),
        ("banknote", "a,2,3,4,0", "variance in row 1 must be a finite number, got 'a'"),
        ("banknote", "1,2,nan,4,0", "curtosis in row 1 must be a finite number, got 'nan'"),
        ("banknote", "1,2,3,4,7", "label in row 1 must be one of 0, 1, got '7'"),
        ("car", "a,b,,d,e,f,acc", "doors in row 1 must be text, got ''"),
        ("car", "", "No columns"),
    ],
)
def test_cells_that_are_not_allowed(name, line, said, tmp_path):
    (tmp_path / f"{name}.csv").write_text(line + "\n")
    with pytest.raises(ValueError, match=rf"{name}\.csv.*: .*{said}"):
        load_uci(name, data_dir=tmp_path)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "wifi"])
def test_downloads_are_files_of_uci(name, openml):
    pandas = pytest.importorskip("pandas")
    (features, label), facts = FIRST_ROWS[name], uci._facts()[name]
    labels = {ours: theirs for theirs, ours in facts.get("openml_labels", {}).items()}
    frame = pandas.DataFrame({f"V{j}": [cell] for j, cell in enumerate(features)})
    if name == "chess":
        frame["V1"] = [1.0]  # ranks are numbers there
    frame.insert(1, facts["openml_target"], [labels.get(str(label), str(label))])
    openml[facts["openml_id"]] = Bunch(frame=frame)
    bunch = load_uci(name, download=True)
    assert openml == {}  # asked for once
    assert bunch.data.tolist() == [features] and bunch.target.tolist() == [label]


def test_a_download_that_fails_says_what_to_do(openml, monkeypatch):
    def fetch(**kwargs):
        raise URLError("Name or service not known")

    monkeypatch.setattr(uci, "fetch_openml", fetch)
    with pytest.raises(
        ConnectionError, match=r"'car' could not be downloaded .*as car\.csv in data_"
    ):
        load_uci("car", download=True)


def test_wifi_cannot_be_downloaded():
    with pytest.raises(ValueError, match="download=True is not possible for name='wifi'"):
        load_uci("wifi", download=True)


# ------------------------------------------------------------------ warnings and regimes


def test_regimes_are_what_they_say():
    pairs = {name: make_regime(name, 2000, sigma=0.5, random_state=0) for name in REGIMES}
    for X, Y in pairs.values():
        assert X.shape == Y.shape == (2000, 64) and not np.array_equal(X, Y)
    # Standard errors of means and variances over 128,000 entries are below 0.0025.
    for name, means in (("normal", (0.0, 0.0)), ("shifted", (0.0, 0.5))):
        for Z, mean in zip(pairs[name], means, strict=True):
            assert abs(Z.mean() - mean) < 0.01 and abs(Z.var() - 0.25) < 0.01
    for Z in pairs["sphere"]:
        assert_allclose(np.linalg.norm(Z, axis=1), 0.5)
    for Z in pairs["digits"]:
        assert Z.min() == 0 and Z.max() == 0.5
    again = make_regime("digits", 2000, sigma=0.5, random_state=0)
    assert_array_equal(again, pairs["digits"])


@pytest.mark.parametrize(
    ("error", "parameter", "values"),
    [
        (ValueError, "n_samples", (0, -1, 2.5, "a", None, True, [3])),
        (ValueError, "sigma", (np.nan, 0, -1, np.inf, 10**400)),
        (TypeError, "sigma", ("a", None, True, 1j, [1.0])),
        (ValueError, "regime", ("mnist", 3, ["normal"], np.zeros((2, 2)))),
    ],
)
def test_regimes_name_what_they_cannot_take(error, parameter, values):
    for value in values:
        given = {"regime": "normal", "n_samples": 3, parameter: value}
        with pytest.raises(error, match=f"^{parameter} must be .*got ") as caught:
            make_regime(**given)
        assert repr(value) in str(caught.value)
    with pytest.raises(ValueError, match="random_state"):
        make_regime("normal", 3, random_state=np.random.default_rng())


def test_cells_are_labelled_by_the_nearest_of_their_points():
    X, y = make_cells(300, n_features=3, n_classes=4, n_cells=9, random_state=0)
    more, labels = make_cells(500_000, n_features=3, n_classes=4, n_cells=9, random_state=0)
    points = np.random.RandomState(0).normal(size=(9, 3))
    gaps = np.linalg.norm(X[:, None] - points, axis=2)
    assert_array_equal(y, gaps.argmin(axis=1) % 4)
    assert X.shape == (300, 3) and y.dtype == np.int64
    # Also in blocks, with the same cells.
    gaps = np.linalg.norm(more[-50:, None] - points, axis=2)
    assert_array_equal(labels[-50:], gaps.argmin(axis=1) % 4)
    assert_array_equal(make_cells(5, random_state=np.random.RandomState(1))[0].shape, (5, 8))


def test_cells_refuse_what_is_not_a_number_of_them():
    for name in ("n_samples", "n_features", "n_classes", "n_cells"):
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(ValueError, match=f"^{name} must be an integer"):
                make_cells(**{name: wrong})
    with pytest.raises(ValueError, match="n_classes must be at most n_cells=3, got 4"):
        make_cells(n_classes=4, n_cells=3)
    for wrong in ("seed", -1):
        with pytest.raises(ValueError, match=f"random_state must be an int .* got {wrong!r}"):
            make_cells(random_state=wrong)
