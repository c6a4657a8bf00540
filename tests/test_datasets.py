"""The UCI loaders: real files where they are at hand, small written ones and a faked OpenML."""

import builtins
import dataclasses
import os
import re
import urllib.error
import warnings

import numpy as np
import pytest
import sklearn.datasets
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import Bunch

from skrf.datasets import REGIMES, load_uci, make_regime, uci
from skrf.exceptions import FeatureCollapseWarning

pandas = pytest.importorskip("pandas")

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
NAMES = sorted(EXPECTED)
DOWNLOADABLE = [name for name in NAMES if name != "wifi"]

# Read before the fixture below hides the variable.
REAL_DIR = os.environ.get("SKRF_UCI_DIR")
needs_real_files = pytest.mark.skipif(
    not REAL_DIR, reason="SKRF_UCI_DIR is not set: the UCI files are not at hand"
)


@pytest.fixture(autouse=True)
def no_surprises(monkeypatch):
    """Hide the variable and refuse the network, unless a test says otherwise."""

    def refuse(**kwargs):
        raise AssertionError(f"fetch_openml was called with {kwargs}")

    monkeypatch.delenv("SKRF_UCI_DIR", raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", refuse)


def write(folder, name, *lines, end="\n"):
    path = folder / f"{name}.csv"
    path.write_bytes((end.join(lines) + end).encode())
    return path


def first_line(name):
    features, label = FIRST_ROWS[name]
    return ",".join(str(cell) for cell in [*features, label])


def assert_same(actual, expected):
    """Equality of two Bunches in values, types and order, arrays only."""
    assert set(actual) == set(expected)
    for key in ("data", "target", "target_names"):
        assert actual[key].dtype == expected[key].dtype, key
        np.testing.assert_array_equal(actual[key], expected[key], err_msg=key)
    for key in ("feature_names", "categorical_features", "DESCR"):
        assert actual[key] == expected[key], key


# ---- The real files


@needs_real_files
@pytest.mark.parametrize("name", NAMES)
def test_real_shape_and_classes(name):
    rows, columns, classes, categorical, _ = EXPECTED[name]
    bunch = load_uci(name, data_dir=REAL_DIR)
    assert bunch.data.shape == (rows, columns - 1)
    assert bunch.target.shape == (rows,)
    assert len(np.unique(bunch.target)) == classes
    assert bunch.categorical_features == categorical
    np.testing.assert_array_equal(bunch.target_names, np.unique(bunch.target))


@needs_real_files
@pytest.mark.parametrize("name", NAMES)
def test_real_cells_equal_the_text_of_the_file(name):
    with open(os.path.join(REAL_DIR, f"{name}.csv")) as file:
        cells = [line.rstrip("\n").split(",") for line in file]
    bunch = load_uci(name, data_dir=REAL_DIR)
    categorical = set(bunch.categorical_features)
    for j in range(bunch.data.shape[1]):
        text = [row[j] for row in cells]
        expected = text if j in categorical else [float(cell) for cell in text]
        assert bunch.data[:, j].tolist() == expected, bunch.feature_names[j]
    assert [str(label) for label in bunch.target] == [row[-1] for row in cells]


@needs_real_files
@pytest.mark.parametrize("name", NAMES)
def test_real_files_agree_with_the_constants_that_check_downloads(name):
    spec = uci._datasets()[name]
    bunch = load_uci(name, data_dir=REAL_DIR)
    labels, counts = np.unique(bunch.target, return_counts=True)
    assert dict(zip(labels.tolist(), counts.tolist(), strict=True)) == spec.class_counts
    columns = uci._read_csv(os.path.join(REAL_DIR, f"{name}.csv"), spec)
    assert uci._digest(columns) == spec.digest


@needs_real_files
@pytest.mark.parametrize("name", NAMES)
def test_real_one_hot_width_is_that_of_the_papers(name):
    bunch = load_uci(name, data_dir=REAL_DIR)
    categorical = bunch.categorical_features
    numeric = [j for j in range(bunch.data.shape[1]) if j not in categorical]
    encoder = ColumnTransformer(
        [
            ("one-hot", OneHotEncoder(sparse_output=False), categorical),
            ("standard", StandardScaler(), numeric),
        ]
    )
    encoded = encoder.fit_transform(bunch.data)
    assert encoded.shape == (EXPECTED[name][0], EXPECTED[name][4])
    assert np.isfinite(encoded.astype(np.float64)).all()


@needs_real_files
@pytest.mark.parametrize("name", NAMES)
def test_real_frame_equals_the_arrays(name):
    arrays = load_uci(name, data_dir=REAL_DIR)
    frames = load_uci(name, data_dir=REAL_DIR, as_frame=True)
    np.testing.assert_array_equal(frames.data.to_numpy(dtype=arrays.data.dtype), arrays.data)
    np.testing.assert_array_equal(frames.target.to_numpy(), arrays.target)
    assert list(frames.data.columns) == arrays.feature_names


# ---- Small written files


@pytest.mark.parametrize("name", NAMES)
def test_one_row_file(name, tmp_path):
    features, label = FIRST_ROWS[name]
    write(tmp_path, name, first_line(name))
    bunch = load_uci(name, data_dir=tmp_path)
    assert bunch.data.tolist() == [features]
    assert bunch.target.tolist() == [label]
    assert bunch.target_names.tolist() == [label]
    assert len(bunch.feature_names) == len(set(bunch.feature_names)) == EXPECTED[name][1] - 1
    numeric = not EXPECTED[name][3]
    assert bunch.data.dtype == (np.float64 if numeric else object)
    assert bunch.target.dtype.kind == ("U" if isinstance(label, str) else "i")


def test_object_array_holds_str_and_float(tmp_path):
    write(tmp_path, "abalone", first_line("abalone"))
    row = load_uci("abalone", data_dir=tmp_path).data[0]
    assert [type(cell) for cell in row] == [str] + 7 * [float]


def test_target_names_are_sorted_and_target_keeps_the_order(tmp_path):
    line = first_line("wifi")[:-1]
    write(tmp_path, "wifi", line + "3", line + "1", line + "3", line + "2")
    bunch = load_uci("wifi", data_dir=tmp_path)
    assert bunch.target.tolist() == [3, 1, 3, 2]
    assert bunch.target_names.tolist() == [1, 2, 3]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blank_lines_blanks_and_byte_order_mark_are_removed(end, tmp_path):
    line = "\ufeff" + first_line("car").replace(",", " , ")
    write(tmp_path, "car", line, "", "  ", end=end)
    assert load_uci("car", data_dir=tmp_path).data.tolist() == [FIRST_ROWS["car"][0]]


def test_return_X_y(tmp_path):
    write(tmp_path, "cmc", first_line("cmc"))
    bunch = load_uci("cmc", data_dir=tmp_path)
    X, y = load_uci("cmc", data_dir=tmp_path, return_X_y=True)
    np.testing.assert_array_equal(X, bunch.data)
    np.testing.assert_array_equal(y, bunch.target)


def test_as_frame(tmp_path):
    write(tmp_path, "abalone", first_line("abalone"))
    bunch = load_uci("abalone", data_dir=tmp_path, as_frame=True)
    X, y = load_uci("abalone", data_dir=tmp_path, as_frame=True, return_X_y=True)
    pandas.testing.assert_frame_equal(X, bunch.data)
    pandas.testing.assert_series_equal(y, bunch.target)
    assert list(X.columns) == bunch.feature_names
    assert X.columns[0] == "Sex" and X["Sex"].tolist() == ["M"]
    assert (X.dtypes.iloc[1:] == np.float64).all()
    assert y.name == "Rings" and y.dtype == np.int64


def test_as_frame_without_pandas(tmp_path, monkeypatch):
    write(tmp_path, "cmc", first_line("cmc"))
    forbid_pandas(monkeypatch)
    assert load_uci("cmc", data_dir=tmp_path).data.shape == (1, 9)
    with pytest.raises(ImportError, match="as_frame=True needs pandas"):
        load_uci("cmc", data_dir=tmp_path, as_frame=True)


def forbid_pandas(monkeypatch):
    real_import = builtins.__import__

    def without_pandas(name, *args, **kwargs):
        if name.partition(".")[0] == "pandas":
            raise ImportError("pandas is hidden by the test")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pandas)


def test_descr_names_source_citation_licence_and_columns(tmp_path):
    for name in NAMES:
        write(tmp_path, name, first_line(name))
        bunch = load_uci(name, data_dir=tmp_path)
        spec = uci._datasets()[name]
        for part in (spec.citation, spec.doi, "Licence: CC BY 4.0", *bunch.feature_names):
            assert part in bunch.DESCR


# ---- Where the file comes from


def test_data_dir_comes_before_the_variable(tmp_path, monkeypatch):
    for folder, label in (("given", 1), ("variable", 2)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "wifi", first_line("wifi")[:-1] + str(label))
    monkeypatch.setenv("SKRF_UCI_DIR", str(tmp_path / "variable"))
    assert load_uci("wifi").target.tolist() == [2]
    assert load_uci("wifi", data_dir=str(tmp_path / "given")).target.tolist() == [1]
    assert load_uci("wifi", data_dir=tmp_path / "missing").target.tolist() == [2]


def test_a_file_comes_before_a_download(tmp_path):
    write(tmp_path, "car", first_line("car"))
    # The fixture lets any call of fetch_openml fail.
    assert load_uci("car", data_dir=tmp_path, download=True).data.shape == (1, 6)


@pytest.mark.parametrize("variable", [None, ""])
@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_the_three_ways(name, variable, tmp_path, monkeypatch):
    if variable is not None:
        monkeypatch.setenv("SKRF_UCI_DIR", variable)
    with pytest.raises(FileNotFoundError) as error:
        load_uci(name, data_dir=tmp_path)
    message = str(error.value)
    for part in (f"name='{name}'", "data_dir", "SKRF_UCI_DIR", "download=True", f"{name}.csv"):
        assert part in message
    assert repr(str(tmp_path / f"{name}.csv")) in message
    assert ("not for 'wifi'" in message) == (name == "wifi")


# ---- Errors


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name must be one of 'abalone', .*got 'iris'") as error:
        load_uci("iris")
    assert all(repr(name) in str(error.value) for name in NAMES)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"name": 3}, "name must be a str, one of 'abalone'.*got 3"),
        ({"name": "car", "data_dir": 3}, "data_dir must be a str.*got 3"),
        ({"name": "car", "return_X_y": "yes"}, "return_X_y must be True or False; got 'yes'"),
        ({"name": "car", "as_frame": None}, "as_frame must be True or False; got None"),
        ({"name": "car", "download": 1}, "download must be True or False; got 1"),
    ],
)
def test_wrong_types(kwargs, message):
    with pytest.raises(TypeError, match=message):
        load_uci(**kwargs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", ["one more", "one less", "tabs"])
def test_wrong_number_of_columns(name, change, tmp_path):
    good = first_line(name)
    bad = {
        "one more": "x," + good,
        "one less": good.partition(",")[2],
        "tabs": good.replace(",", "\t"),
    }[change]
    path = write(tmp_path, name, good, bad)
    columns = EXPECTED[name][1]
    found = {"one more": columns + 1, "one less": columns - 1, "tabs": 1}[change]
    message = f"{str(path)!r}: row 2 has {found} columns, {columns} are expected for name='{name}'"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_uci(name, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "position", "cell", "message"),
    [
        ("banknote", 1, "x", "column 'skewness', row 2 must be a finite number; got 'x'"),
        ("banknote", 1, "", "column 'skewness', row 2 must be a finite number; got ''"),
        ("banknote", 1, "nan", "column 'skewness', row 2 must be a finite number; got 'nan'"),
        ("banknote", 1, "inf", "column 'skewness', row 2 must be a finite number; got 'inf'"),
        ("car", 2, "", "column 'doors', row 2 must be a non-empty string; got ''"),
        ("banknote", 4, "2", "column 'class', row 2 must be one of 0, 1; got '2'"),
        ("car", 6, "class", "row 2 must be one of acc, good, unacc, vgood; got 'class'"),
        ("abalone", 8, "28", "column 'Rings', row 2 must be one of 1, 2, .*, 29; got '28'"),
    ],
)
def test_cells_that_are_not_allowed(name, position, cell, message, tmp_path):
    cells = first_line(name).split(",")
    cells[position] = cell
    write(tmp_path, name, first_line(name), ",".join(cells))
    with pytest.raises(ValueError, match=message):
        load_uci(name, data_dir=tmp_path)


def test_empty_file(tmp_path):
    write(tmp_path, "car", "")
    with pytest.raises(ValueError, match="has no rows. car.csv is comma-separated"):
        load_uci("car", data_dir=tmp_path)


# ---- OpenML. The frames are built as OpenML's are: label column under another name, nominal
# columns as pandas categories, other spellings where OpenML has them.

OPENML = {
    "abalone": (183, "Class_number_of_rings"),
    "banknote": (1462, "Class"),
    "car": (21, "class"),
    "yeast": (181, "class_protein_localization"),
    "cmc": (23, "Contraceptive_method_used"),
    "nursery": (26, "class"),
    "chess": (184, "game"),
}


def openml_frame(name, rows, labels):
    columns = {}
    for j, column in enumerate(zip(*rows, strict=True)):
        text = isinstance(column[0], str)
        if name == "chess" and j % 2 == 1:  # ranks are numbers there
            columns[f"col{j}"] = np.array(column, dtype=np.float64)
        elif text or name == "cmc" and j not in (0, 3):
            columns[f"col{j}"] = pandas.Categorical([f"{cell}" for cell in column])
        else:
            columns[f"col{j}"] = np.array(column, dtype=np.float64)
    labels = [str(label) for label in labels]
    if name == "banknote":
        labels = [{"0": "1", "1": "2"}[label] for label in labels]
    columns[OPENML[name][1]] = pandas.Categorical(labels)
    return pandas.DataFrame(columns)


def serve(monkeypatch, frame):
    calls = []

    def fetch_openml(**kwargs):
        calls.append(kwargs)
        return Bunch(frame=frame)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
    return calls


def shrink(monkeypatch, name, bunch):
    """Let the rows of `bunch` be the complete dataset, so that a download of them is accepted."""
    labels, counts = np.unique(bunch.target, return_counts=True)
    spec = uci._datasets()[name]
    spec = dataclasses.replace(
        spec,
        class_counts=dict(zip(labels.tolist(), counts.tolist(), strict=True)),
        digest=uci._digest([*bunch.data.T.tolist(), bunch.target.tolist()]),
    )
    monkeypatch.setitem(uci._datasets(), name, spec)


@pytest.fixture(params=DOWNLOADABLE)
def small(request, tmp_path, monkeypatch):
    """A dataset of three rows as a file gives it, and the frame that OpenML would give."""
    name = request.param
    other_label = list(uci._datasets()[name].class_counts)[-1]
    other = f"{first_line(name).rpartition(',')[0]},{other_label}"
    write(tmp_path, name, first_line(name), other, first_line(name))
    bunch = load_uci(name, data_dir=tmp_path)
    shrink(monkeypatch, name, bunch)
    bunch = load_uci(name, data_dir=tmp_path)  # DESCR tells the number of rows
    rows = bunch.data.tolist()
    return name, bunch, openml_frame(name, rows, bunch.target.tolist())


def test_download_equals_the_file(small, monkeypatch):
    name, bunch, frame = small
    calls = serve(monkeypatch, frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(load_uci(name, download=True), bunch)
    assert [(call["data_id"], call["parser"]) for call in calls] == [(OPENML[name][0], "liac-arff")]


def test_download_finds_the_label_by_name(small, monkeypatch):
    name, bunch, frame = small
    serve(monkeypatch, frame[[frame.columns[-1], *frame.columns[:-1]]])
    assert_same(load_uci(name, download=True), bunch)


def test_download_as_frame_and_X_y(small, monkeypatch):
    name, bunch, frame = small
    serve(monkeypatch, frame)
    X, y = load_uci(name, download=True, return_X_y=True, as_frame=True)
    np.testing.assert_array_equal(X.to_numpy(dtype=bunch.data.dtype), bunch.data)
    np.testing.assert_array_equal(y.to_numpy(), bunch.target)
    assert list(X.columns) == bunch.feature_names


def test_download_in_another_order_warns(small, monkeypatch):
    name, bunch, frame = small
    serve(monkeypatch, frame.iloc[[1, 0, 2]])
    with pytest.warns(UserWarning, match="differs from the UCI file in values or in the order"):
        reordered = load_uci(name, download=True)
    np.testing.assert_array_equal(reordered.target, bunch.target[[1, 0, 2]])


def test_download_with_another_value_warns(small, monkeypatch):
    name, _, frame = small
    column = frame.columns[0]
    frame[column] = frame[column].astype(object)
    frame.loc[2, column] = "b" if frame[column].map(type).eq(str).all() else 99.5
    serve(monkeypatch, frame)
    with pytest.warns(UserWarning, match="differs from the UCI file in values or in the order"):
        load_uci(name, download=True)


def test_download_of_other_rows_is_refused(small, monkeypatch):
    name, _, frame = small
    serve(monkeypatch, frame.iloc[:2])
    with pytest.raises(RuntimeError, match=f"OpenML dataset {OPENML[name][0]}.*must have 3 rows"):
        load_uci(name, download=True)


def test_download_of_other_columns_is_refused(small, monkeypatch):
    name, _, frame = small
    for wrong in (frame.iloc[:, 1:], frame.rename(columns={OPENML[name][1]: "other"})):
        serve(monkeypatch, wrong)
        with pytest.raises(RuntimeError, match="columns with the label in"):
            load_uci(name, download=True)


def test_download_of_missing_values_is_refused(small, monkeypatch):
    name, _, frame = small
    frame.loc[1, frame.columns[0]] = np.nan
    serve(monkeypatch, frame)
    with pytest.raises(RuntimeError, match="row 2 must be a .*; got nan"):
        load_uci(name, download=True)


def test_download_without_a_connection(monkeypatch):
    def unreachable(**kwargs):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", unreachable)
    with pytest.raises(ConnectionError, match="OpenML dataset 21.*no route.*SKRF_UCI_DIR"):
        load_uci("car", download=True)


def test_download_without_pandas(monkeypatch):
    forbid_pandas(monkeypatch)
    with pytest.raises(ImportError, match="download=True needs pandas"):
        load_uci("car", download=True)


def test_wifi_cannot_be_downloaded():
    with pytest.raises(ValueError, match="download=True is not possible for name='wifi'") as error:
        load_uci("wifi", download=True)
    assert "data_dir" in str(error.value) and "SKRF_UCI_DIR" in str(error.value)


@needs_real_files
@pytest.mark.parametrize("name", DOWNLOADABLE)
def test_download_of_the_real_rows_equals_the_real_file(name, monkeypatch):
    bunch = load_uci(name, data_dir=REAL_DIR)
    serve(monkeypatch, openml_frame(name, bunch.data.tolist(), bunch.target.tolist()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(load_uci(name, download=True), bunch)


# ---- The warning class that lives beside the loaders


def test_feature_collapse_warning_can_be_caught_as_a_user_warning():
    with pytest.warns(UserWarning) as caught:
        warnings.warn("collapsed", FeatureCollapseWarning, stacklevel=1)
    assert caught[0].category is FeatureCollapseWarning


def test_regimes_are_what_they_say():
    pairs = {name: make_regime(name, 2000, sigma=0.5, random_state=0) for name in REGIMES}
    for X, Y in pairs.values():
        assert X.shape == Y.shape == (2000, 64) and not np.array_equal(X, Y)
    # Standard errors of means and variances over 128,000 entries are below 0.0025.
    for name, means in (("normal", (0.0, 0.0)), ("shifted", (0.0, 0.5))):
        for Z, mean in zip(pairs[name], means, strict=True):
            assert abs(Z.mean() - mean) < 0.01 and abs(Z.var() - 0.25) < 0.01
    for Z in pairs["sphere"]:
        np.testing.assert_allclose(np.linalg.norm(Z, axis=1), 0.5)
    for Z in pairs["digits"]:
        assert Z.min() == 0 and Z.max() == 0.5
    again = make_regime("digits", 2000, sigma=0.5, random_state=0)
    np.testing.assert_array_equal(again, pairs["digits"])
    for wrong in ("mnist", 3, ["normal"], np.zeros((2, 2))):
        with pytest.raises(ValueError, match="regime must be one of 'normal', 'sphere'"):
            make_regime(wrong)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    ("parameter", "value", "error"),
    [("n_samples", value, ValueError) for value in (0, -1)]
    + [("n_samples", value, TypeError) for value in (2.5, "a", None, True, [3])]
    + [("sigma", value, ValueError) for value in (np.nan, 0, -1, np.inf, 10**400)]
    + [("sigma", value, TypeError) for value in ("a", None, True, 1j, [1.0])]
    + [("random_state", value, ValueError) for value in ("a", -1, 2.5, np.random.default_rng())],
)
def test_regimes_name_what_they_cannot_take(regime, parameter, value, error):
    with pytest.raises(error, match=f"^{parameter} must be .*got ") as caught:
        make_regime(regime, **{"n_samples": 3, parameter: value})
    assert repr(value) in str(caught.value)


def test_regimes_take_numbers_of_any_library():
    X, _ = make_regime("normal", np.int64(3), sigma=np.float32(0.5), random_state=np.int64(0))
    assert X.shape == (3, 64)
