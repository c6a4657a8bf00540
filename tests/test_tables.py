"""The benchmark of tables: its sets, its measures and its report."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("matplotlib")
pd = pytest.importorskip("pandas")

FOLDER = Path(__file__).parents[1] / "benchmarks"
if not FOLDER.is_dir():
    pytest.skip("an installed package has no benchmarks", allow_module_level=True)


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("tables")


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """Set the folders to small ones: one clean set, and one mixed set with its facts."""
    for name in ("SKRF_UCI_DIR", "SKRF_TABLES_DIR"):
        monkeypatch.delenv(name, raising=False)
    text = "\n".join(f"{'ab'[i % 2]},{i},{'xyz'[i % 3 if i < 45 else 2]}" for i in range(50))
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "car.csv").write_text(text + "\nb,1,rare\n")
    monkeypatch.setenv("SKRF_UCI_DIR", str(tmp_path / "uci"))
    (tmp_path / "mixed").mkdir()
    facts = "| name | job | rows | numbers | categories |\n|---|---|---|---|---|\n"
    facts += "| wages | regression | 3 | 1 | code |\n"
    (tmp_path / "mixed" / "README.md").write_text(facts)
    (tmp_path / "mixed" / "wages.csv").write_text("code,age,target\n7,30,1.5\n,31,2\n8,,3\n")
    monkeypatch.setenv("SKRF_MIXED_DIR", str(tmp_path / "mixed"))


def test_sets_have_categories_gaps_and_no_rare_classes(tables, folders):
    groups = tables.all_sets()
    assert groups["car"] == "clean" and groups["wages"] == "mixed"
    assert "wine_white" not in groups and "wine_white_quality" not in groups
    X, y, is_number = tables.load("car")
    assert not is_number and len(X) == 50 and set(y) == {0, 1, 2}
    assert [str(dtype) for dtype in X.dtypes] == ["category", "float64"]
    X, y, is_number = tables.load("wages")  # a category that looks like a number
    assert is_number and list(X["code"].cat.categories) == ["7", "8"]
    assert X.isna().to_numpy().tolist() == [[False, False], [True, False], [False, True]]
    assert_allclose(y, [1.5, 2, 3])


def test_measures(tables):
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 30_000)
    P, codes = np.column_stack([p, 1 - p]), (rng.uniform(size=len(p)) > p).astype(int)
    assert tables.calibration_error(P, codes) < 0.015  # 15 bins of standard error .01
    sure = np.column_stack([np.ones(10), np.zeros(10)])
    assert_allclose(tables.calibration_error(sure, np.arange(10) % 2), 0.5)
    shy = np.column_stack([np.repeat([0.6, 0.9], 10), np.repeat([0.4, 0.1], 10)])
    codes = np.repeat([0, 1, 0], [10, 5, 5])  # all right at .6 and half of them at .9
    assert_allclose(tables.calibration_error(shy, codes, n_bins=2), 0.4)
    std = np.where(np.arange(len(p)) % 2, 1.0, 0.1)
    mean = rng.normal(size=len(p))
    found = tables.intervals(mean + std * rng.normal(size=len(p)), mean, std)
    coverages = [found["coverage"], *(found[f"coverage_{i}"] for i in (1, 2, 3, 4))]
    assert_allclose(coverages, 0.9, atol=0.015)  # four standard errors of a quarter
    assert found["interval_score"] < 0.8 * found["interval_score_constant"]
    z, width = np.array([0, 0, 0, 2.0]), 1.645 * np.array([1, 2, 1, 1])
    scores = [
        np.mean(2 * w + [0, 0, 0, 20 * (2 - last)]) / z.std()
        for w, last in ((width, width[-1]), (np.full(4, 1.645 * np.sqrt(7 / 4)), 2.0))
    ]
    found = tables.intervals(z, np.zeros(4), width / 1.645)
    assert_allclose([found["interval_score"], found["interval_score_constant"]], scores)


def test_a_row_that_two_splits_test_counts_once(tables, tmp_path):
    """Errors of equal splits are those of one; errors of disjoint splits shrink."""
    rng, rows = np.random.default_rng(0), np.arange(100)
    correct = {tables.PEER: rng.uniform(size=100) < 0.5, "other": rng.uniform(size=100) < 0.8}
    for name, shift in (("same", 0), ("disjoint", 100)):
        for split in (0, 1):
            for method, values in correct.items():
                path = tmp_path / f"{name}_10_{split}_{method}.npz"
                np.savez(path, row=rows + split * shift, correct=values, loss=~values * 1.0)
    difference = correct["other"].astype(float) - correct[tables.PEER]
    error = difference.std() / np.sqrt(100)
    for name, factor in (("same", 1), ("disjoint", np.sqrt(0.5))):
        found = tables.gains(tmp_path, name, 10, [0, 1], "other")
        assert_allclose(found["gain"], difference.mean())
        assert_allclose([found["gain_se"], found["loss_gain_se"]], factor * error)
        assert_allclose(found["loss_gain"], -found["gain"])


def test_results_are_stored_once_and_reported(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "PEER", "linear")
    monkeypatch.setattr(tables, "FOLDER", tmp_path / "docs")
    common = ["tables.py", "--rows", "60", "--cache", str(tmp_path / "cache")]
    run = ["--splits", "2", "--sets", "iris", "diabetes", "--methods", "linear", "ridge-search"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", common + run)
        tables.main()
    assert len((tmp_path / "cache" / "results.jsonl").read_text().splitlines()) == 8
    monkeypatch.setattr(sys, "argv", [*common, "--report", "ridge-search"])
    tables.main()
    text = capsys.readouterr().out
    assert "bundled, 1 sets: accuracy" in text and "regression, 1 sets: R2" in text
    table = pd.read_csv(tmp_path / "docs" / "tables.csv")
    assert len(table) == 4 and (table["splits"] == 2).all() and table["gain_se"].notna().sum() == 2
    assert (tmp_path / "docs" / "tables.png").stat().st_size > 5000
