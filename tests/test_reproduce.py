"""The scripts that reproduce the papers: their verdicts and their core functions."""

import gzip
import importlib
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

pytest.importorskip("matplotlib")

FOLDER = Path(__file__).parents[1] / "benchmarks" / "reproduce"
if not FOLDER.is_dir():
    pytest.skip("an installed package has no benchmarks", allow_module_level=True)


@pytest.fixture
def script(monkeypatch):
    """Return a function that imports a script by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_verdicts_and_tables(script):
    common = script("_common")
    # Both standard errors count.
    assert common.verdict((1.0, 0.3), (1.9, 0.4)).startswith("met")
    assert common.verdict((1.0, 0.3), (2.1, 0.4)) == "differs by -1.1 (-2.2 standard errors)"
    lines = common.markdown([("name", "a"), ("x", "1.0")]).splitlines()
    assert lines == ["| name |   a |", "| :--- | --: |", "| x    | 1.0 |"]


def test_optimised_directions_have_the_least_conformity(script):
    simplex = script("simplex")
    values = np.array(simplex.conformities(0))
    assert values.shape == (len(simplex.CONFORMITY_V), 3)
    assert (values[:, 2] < values[:, 1]).all()  # its first start is simplex+
    assert (values[:, 1] < values[:, 0]).all()


def test_measured_errors_of_the_gram_matrix_are_about_the_predicted_ones(script):
    """Mean of 40 squares; within 4 standard errors, so a factor 2 would be seen."""
    errors, known = script("simplex").gram_errors("iid", 256, range(40))
    assert np.shape(errors) == (40,)
    assert abs(np.mean(errors) - known) < 4 * np.std(errors) / np.sqrt(40) < known / 2


def test_moments_leave_equal_rows_out(script):
    study = script("log_variance")
    X = np.random.default_rng(0).normal(size=(5, 64)) / 8
    feature_map = study.FEATURE_MAPS["trigonometric"]
    n, total, squares = study.moments(feature_map, X, X, 4)
    fitted = clone(feature_map).set_params(random_state=0).fit(X)
    logs = fitted.kernel_variance(X[:4], log=True)[~np.eye(4, dtype=bool)]
    assert n == 12
    assert_allclose([total, squares], [logs.sum(), np.square(logs).sum()])


def test_images_are_resized_in_three_ways(script, tmp_path, monkeypatch):
    study = script("log_variance")
    ramp = np.add.outer(np.arange(28), 2 * np.arange(28)).astype(np.uint8)
    header = np.array([2051, 3, 28, 28], ">i4").tobytes()
    path = tmp_path / f"mnist-{study.IMAGES}"
    path.write_bytes(gzip.compress(header + np.stack([ramp] * 3).tobytes()))
    monkeypatch.setattr(study, "FOLDER", str(tmp_path))
    index = np.arange(8) * 7 // 2
    halves = ramp.repeat(2, axis=0).repeat(2, axis=1).reshape(8, 7, 8, 7)
    for resizing, expected in (
        ("index", ramp[np.ix_(index, index)]),
        ("bilinear", 3.5 * np.add.outer(np.arange(8), 2 * np.arange(8)) + 3 * 1.25),
        ("area", halves.mean(axis=(1, 3))),
    ):
        X, Y = study.mnist(1, 2.0, 0, resizing)
        assert_allclose(X, 2 * expected.reshape(1, -1) / 255)
        assert_allclose(Y, X)
    path.write_bytes(gzip.compress(b"something else" * 9))
    study.read_images.cache_clear()
    with pytest.raises(ValueError, match="holds no images"):
        study.mnist(1, 2.0, 0)


@pytest.mark.skipif("SKRF_MNIST_DIR" not in os.environ, reason="SKRF_MNIST_DIR is not set")
def test_gains_on_mnist_depend_on_how_it_was_resized(script):
    study = script("log_variance")
    head, _, *rows = study.gains_of_resizings(96, 1)
    assert head[1:] == ("optimal positive", "geometric+", "generalized", "trigonometric")
    gains = {name: [float(value) for value in values] for name, *values in rows}
    assert gains["index"] == [7.1, 8.2, 12.8, 12.8]
    assert gains["bilinear"][0] == 6.0 and gains["area"][0] == 4.2
    assert "MNIST" in study.regimes_at_hand() and "digits" not in study.regimes_at_hand()


def test_accuracy_is_read_off_at_the_published_share(script):
    published = script("_uci_published")
    rng = np.random.default_rng(0)
    shares = rng.normal(60, 5, size=4000)
    accuracies = 50 + 0.8 * (shares - 60) + rng.normal(0, 3, size=4000)
    mean, error = published.at_share(accuracies, shares, 70.0, 1.0, n_test=10_000)
    assert_allclose(mean, 58.0, atol=0.5)
    # What is left about the line less the spread of draws, and the mean of 50 draws.
    assert_allclose(error, np.sqrt(9 - 1 + 1 / 50), rtol=0.05)
    # A few test rows alone give more: p (1 - p) / 30 less the part of the line.
    _, error = published.at_share(accuracies, shares, 60.0, 3.0, n_test=30)
    assert_allclose(error, np.sqrt(2500 / 30 * 9 / 25 + 9 / 50), rtol=0.05)


def test_utilities_are_those_of_the_closed_form(script):
    """The figure's: optimal positive features have e^61 times less variance at d = 64 and 100."""
    study = script("variance_angles")
    logs = study.utility(64)
    assert study.SUMS[99] == 100.0
    assert_allclose(logs[99], -61.2, atol=0.05)
    assert (np.diff(logs) < 0).all() and (logs < 0).all()
    # No variance of sines between equal points, none of positive features between opposite ones.
    assert study.log_variances("trigonometric", 1.0)[0] < study.ROUNDING
    assert study.log_variances("positive", 1.0)[-1] < study.ROUNDING
    assert study.log_variances("trigonometric", 1.0)[90] > study.ROUNDING


def test_many_features_estimate_the_softmax_of_words(script):
    study = script("word_softmax")
    rng = np.random.default_rng(0)
    parts = [0.5 * rng.normal(size=(n, 4)) for n in (60, 20, 9)]
    words, frequencies = rng.integers(9, size=20), np.full(9, 1 / 9)
    data, references = study.shrunk(parts, words, frequencies, study.SCALE / 2)
    assert references["exact"][1] == 0
    assert_allclose(references["frequencies"][2], 9)
    assert_allclose(data[3].sum(axis=1), 1)
    negative, gap, perplexity = study.measured(study.MAPS["optimal positive"], 4096, 0, data)
    assert negative == 0 and gap < 0.05
    assert_allclose(perplexity, references["exact"][2], rtol=0.02)
    assert study.measured(study.MAPS["trigonometric"], 8, 0, data)[1] > gap


@pytest.mark.filterwarnings("ignore::skrf.exceptions.FeatureCollapseWarning")
def test_a_model_with_exact_attention_has_no_error(script, monkeypatch):
    pytest.importorskip("torch")
    study = script("transformer")
    monkeypatch.setattr(study, "ERRORS", {"exact": study.METHODS["exact"], **study.ERRORS})
    for errors in study.measure_errors(quick=True).values():
        assert max(errors["exact"]) == 0
        assert min(errors["positive, 256 components"]) > 0
