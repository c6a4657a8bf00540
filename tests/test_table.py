"""Tables as people have them: nothing is misread without a word, and words come only where due."""

import datetime
import re
import warnings
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from skrf import KernelMachineClassifier, KernelMachineRegressor

N = 80
rng = np.random.default_rng(0)
Z, NUMBER, CODE = rng.normal(size=N), rng.integers(100, 200, N), rng.integers(0, 4, N)
Y = NUMBER / 30 + np.array([0.0, 3.0, -1.0, 2.0])[CODE]
QUICK = partial(KernelMachineRegressor, kernels=["laplacian"], relevance=None, random_state=0)


def table(**columns):
    return pd.DataFrame({"z": Z, **columns})


def words_of(call, *arguments):
    """Return the text of all warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    return [str(one.message) for one in caught]


def text_of(values):
    return pd.Series([str(value) for value in values])


# ---------------------------------------------------------------- numbers and dates as text


@pytest.mark.parametrize(
    "write, obstacle",
    [
        (str, "such as '101'"),
        (lambda number: "?" if number < 105 else str(number), "'?' is not a number"),
        (lambda number: "n/a" if number < 105 else f"{number}.5", "'n/a' is not a number"),
        (lambda number: f"{number / 8:.3f}".replace(".", ","), "'12,625' is not a number"),
        (lambda number: "-" if number < 105 else number, "'-' is not a number"),
        (lambda number: f"$ {number},000.50", "is not a number"),
        (lambda number: f"{number / 10}\u202f%", "is not a number"),
        (lambda number: f"\u2212{number}", "is not a number"),
        (lambda number: f"1 {number}", "is not a number"),
    ],
)
def test_numbers_as_text_are_told_once(write, obstacle):
    X = table(price=[write(number) for number in np.sort(NUMBER)])
    model = QUICK()
    (words,) = words_of(model.fit, X, Y)
    n_levels = X["price"].nunique()
    assert f"numbers as text in column 'price' ({n_levels} levels; " in words
    assert obstacle in words
    assert "NaN for gaps" in words and "categorical_features" in words
    assert words_of(model.predict, X) == []
    for declared in (X.astype({"price": "category"}), X):
        model = QUICK(categorical_features="from_dtype" if declared is not X else ["price"])
        assert words_of(model.fit, declared, Y) == []


def test_text_beside_numbers_in_an_array_is_told_by_its_place():
    X = np.column_stack([NUMBER, CODE, NUMBER / 7, np.array(list("abcd"))[CODE]])
    (words,) = words_of(QUICK().fit, X, Y)
    assert (
        "columns 0 (" in words and ", 2 (" in words and " 1 (" not in words and "3 (" not in words
    )
    many = np.column_stack([NUMBER + k for k in range(9)]).astype(str)
    (words,) = words_of(QUICK().fit, many, Y)
    assert " and 4 more. " in words


@pytest.mark.parametrize(
    "write",
    [
        lambda number: f"0{number}",  # codes
        lambda number: f"{number % 12}",  # few levels
        lambda number: f"{number} km",
        lambda number: f"{number}-{number + 5}",
        lambda number: f"{number}" if number < 150 else f"level {number}",
    ],
)
def test_names_that_hold_digits_are_categories(write):
    assert words_of(QUICK().fit, table(name=[write(number) for number in NUMBER]), Y) == []


@pytest.mark.parametrize("write", ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y", "%m/%d/%Y %H:%M"])
def test_dates_as_text_have_words_of_their_own(write):
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(NUMBER, "D")
    (words,) = words_of(QUICK().fit, table(joined=days.strftime(write)), Y)
    assert "dates as text in column 'joined'" in words and "pd.to_datetime(column)" in words


# ---------------------------------------------------------------- identifiers


def test_identifiers_are_left_out_with_a_word():
    rows, y = np.arange(N), np.sin(2 * Z)
    X = table(id=[f"row {k}" for k in rows])
    for form in (X, X.astype({"id": "category"}), pd.concat([X, X])):
        model, targets = QUICK(relevance="auto"), np.resize(y, len(form))
        (words,) = words_of(model.fit, form, targets)
        assert "column 'id' (80 levels)" in words and "drop" in words
        assert model.feature_importances_.tolist() == [1, 0]
        assert_allclose(
            model.predict(form), QUICK(relevance="auto").fit(X[["z"]], y).predict(form[["z"]])
        )
        assert words_of(model.predict, form.assign(id="new")) == []
    nearly = table(id=[f"row {max(k, 5)}" for k in rows])
    assert "column 'id' (75 levels)" in words_of(QUICK().fit, nearly, y)[0]
    assert words_of(QUICK().fit, table(town=[f"town {k // 2}" for k in rows]), y) == []


def test_identifiers_alone_fit_a_constant():
    X = pd.DataFrame({"id": [f"row {k}" for k in range(N)]})
    with pytest.warns(UserWarning, match="drop the column"):
        model = KernelMachineRegressor(random_state=0).fit(X, Y)
    assert_allclose(model.predict(X), Y.mean())
    with pytest.warns(UserWarning, match="drop the column"):
        model = KernelMachineClassifier(random_state=0).fit(X, CODE)
    assert np.ptp(model.predict_proba(X), axis=0).max() < 1e-6


# ---------------------------------------------------------------- rows that are predicted


def forms(values):
    """Return a column of small integers in the forms that mean the same."""
    column = pd.Series(values)
    return {
        "integers": column,
        "floats": column.astype(float),
        "nullable": column.astype("Int64"),
        "objects": column.astype(object),
        "categories": column.astype("category"),
        "categories of floats": column.astype(float).astype("category"),
    }


@pytest.mark.parametrize("n_levels", [2, 4])
def test_categories_and_numbers_that_mean_the_same_are_the_same(n_levels):
    values = CODE % n_levels
    ways = forms(values)
    if n_levels == 2:
        ways |= {"booleans": ways["integers"] == 1}
        ways |= {"nullable booleans": ways["booleans"].astype("boolean")}
        ways |= {"objects of booleans": ways["booleans"].astype(object)}
    for fitted in ways.values():
        model = QUICK().fit(table(code=fitted), Y)
        expected = model.predict(table(code=fitted))
        for name, other in ways.items():
            found = model.predict(table(code=other))
            assert_allclose(found, expected, err_msg=f"{fitted.dtype} then {name}")


@pytest.mark.parametrize(
    "fitted, other, words",
    [
        (text_of(CODE), CODE, "must hold text in column 'code', as in fit (such as '{}'), got "),
        (text_of(CODE), CODE > 0, "must hold text in column 'code'"),
        (CODE, text_of(CODE), "must hold numbers in column 'code', as in fit, got text (such as '"),
        (CODE, text_of(CODE).where(CODE > 1, "?"), "got text (such as "),
        (pd.Series(CODE).astype("category"), text_of(CODE), "must hold numbers in column 'code'"),
        (CODE > 1, text_of(CODE > 1), "must hold numbers in column 'code'"),
    ],
)
def test_a_category_of_another_type_is_refused(fitted, other, words):
    model = QUICK().fit(table(code=fitted), Y)
    with pytest.raises(TypeError) as error:
        model.predict(table(code=other))
    most = text_of(CODE).mode()[0]
    assert words.format(most) in str(error.value) and "convert the column" in str(error.value)
    gaps = table(code=pd.Series([None] * N, dtype=object))
    assert np.isfinite(model.predict(gaps)).all()


def test_text_of_which_no_level_is_known_is_told():
    names = pd.Series(np.array(["ash", "oak", "elm", "fir"])[CODE])
    model = QUICK().fit(table(tree=names), Y)
    for form in (
        " " + names,
        names.str.upper(),
        names.astype("category").cat.rename_categories(str.title),
    ):
        (words,) = words_of(model.predict, table(tree=form))
        assert "no level in column 'tree'" in words and repr(form[0]) in words
    for form in (names, names.where(Z > 0, "new"), names.where(Z > 9, None)):
        assert words_of(model.predict, table(tree=form)) == []
    assert words_of(model.predict, table(tree="new")[:3]) == []  # a few new ones are no surprise
    rare = "name " + text_of(np.where(np.arange(N) < 12, 0, np.arange(N) // 2))
    model = QUICK().fit(table(name=rare), Y)
    assert words_of(model.predict, table(name="new " + rare)[:20]) == []


def test_a_column_that_was_empty_in_fit_says_nothing():
    for gaps in (np.full(N, np.nan), pd.Series([None] * N, dtype=object)):
        model = QUICK().fit(table(note=gaps), Y)
        expected = model.predict(table(note=gaps))
        for later in (text_of(CODE), CODE, CODE > 0):
            assert_allclose(model.predict(table(note=later)), expected)


# ---------------------------------------------------------------- what is no table


@pytest.mark.parametrize(
    "value",
    [
        pd.Timestamp("2024-05-01"),
        datetime.date(2024, 5, 1),
        datetime.datetime(2024, 5, 1, 12),
        np.datetime64("2024-05-01"),
        datetime.timedelta(1),
        pd.Timedelta("1D"),
    ],
)
def test_dates_in_arrays_of_objects_are_refused(value):
    X = np.empty((N, 3), dtype=object)
    X[:, 0], X[:, 1] = Z, "text"
    X[:, 2] = [value] * N
    for given in (X, X.tolist()):
        with pytest.raises(TypeError, match="dates or times in column 2 .*pass the time since"):
            QUICK().fit(given, Y)
    model = QUICK().fit(X[:, :2], Y)
    with pytest.raises(TypeError, match="dates or times in column 1"):
        model.predict(X[:, [0, 2]])


def test_masked_entries_are_refused():
    X = np.ma.MaskedArray(np.array([["a", 1.0]] * N, dtype=object), mask=False)
    X[3, 1] = np.ma.masked
    with pytest.raises(ValueError, match="X has 1 masked entries of 160"):
        QUICK().fit(X, Y)


def test_missing_values_and_decimals_of_objects_are_gaps_and_numbers():
    floats = table(amount=np.where(CODE == 1, np.nan, NUMBER / 4), kind=np.where(Z > 0, "a", "b"))
    expected = QUICK().fit(floats, Y).predict(floats)
    decimals = [Decimal(number) / 4 for number in NUMBER.tolist()]
    for gap in (pd.NA, None, np.nan, pd.NaT, Decimal("NaN")):
        column = [gap if code == 1 else one for code, one in zip(CODE, decimals, strict=True)]
        X = floats.assign(amount=pd.Series(column, dtype=object)).to_numpy(dtype=object)
        assert_allclose(QUICK().fit(X, Y).predict(X), expected)
        X[:, 2] = np.where(Z > 1, gap, X[:, 2])
        assert np.isfinite(QUICK().fit(X.tolist(), Y).predict(X)).all()


def test_columns_of_one_name_are_refused():
    X = table(a=Z).rename(columns={"a": "z"})
    with pytest.raises(ValueError, match="X must have columns of different names, got 'z' more"):
        QUICK().fit(X, Y)
    model = QUICK().fit(table(a=Z), Y)
    with pytest.raises(ValueError, match="different names, got 'z'"):
        model.predict(X)


def test_a_single_column_is_no_table():
    text = np.array(list("abcd"))[CODE]
    for X in (text, text.astype(object), text.tolist(), pd.Series(text), Z, pd.Series(Z)):
        with pytest.raises(ValueError, match=re.escape("2D array")) as error:
            QUICK().fit(X, Y)
        assert "encoder" not in str(error.value) and "reshape(-1, 1)" in str(error.value)


# ---------------------------------------------------------------- from a file to a model


def test_from_a_file_to_a_model(tmp_path):
    """A question mark, an identifier, a date and copies: a word about each, and then none."""
    rows = table(
        customer=[f"C-{k:04}" for k in range(N)],
        income=["?" if k % 20 == 0 else str(number) for k, number in enumerate(NUMBER)],
        joined=(pd.Timestamp("2024-01-01") + pd.to_timedelta(NUMBER, "D")).strftime("%Y-%m-%d"),
        plan=np.array(["basic", "plus", "pro", "team"])[CODE],
        spent=Y,
    )
    path = tmp_path / "customers.csv"
    pd.concat([rows, rows[:30]]).to_csv(path, index=False)

    X = pd.read_csv(path)
    words = words_of(QUICK().fit, X.drop(columns="spent"), X["spent"])
    assert len(words) == 3
    assert "numbers as text in column 'income'" in words[0] and "'?' is not a number" in words[0]
    assert "dates as text in column 'joined'" in words[1]
    assert "column 'customer' (80 levels)" in words[2]

    X = pd.read_csv(path, na_values="?", parse_dates=["joined"]).drop(columns="customer")
    y = X.pop("spent")
    with pytest.raises(
        TypeError, match=r"dates or times in column 'joined'.* - t0\) / pd.Timedelta"
    ):
        QUICK().fit(X, y)
    X["joined"] = (X["joined"] - pd.Timestamp("2024-01-01")) / pd.Timedelta("1D")
    model = QUICK()
    assert words_of(model.fit, X, y) == [] and words_of(model.predict, X) == []
    again = QUICK().fit(X[:N], y[:N])
    assert_allclose(model.best_score_, again.best_score_, atol=0.02)  # copies are not memorised
