"""Long fits print a line for every stage where they are asked to, and nothing else."""

import re

import numpy as np
import pytest

from skrf import (
    AdaptiveRF,
    ApproxKernelRidgeClassifierCV,
    ApproxKernelRidgeCV,
    OptimalPositiveRF,
)
from skrf.graphical import KernelHMM

X = np.random.default_rng(0).normal(size=(60, 2))


@pytest.mark.parametrize("search", [ApproxKernelRidgeCV, ApproxKernelRidgeClassifierCV])
@pytest.mark.parametrize("feature_map", [OptimalPositiveRF(16), AdaptiveRF(16)], ids=str)
def test_a_search_prints_a_line_for_every_sigma(search, feature_map, capsys):
    y = X[:, 0] > 0 if search is ApproxKernelRidgeClassifierCV else 1e3 * X[:, 0]
    model = search(feature_map, sigmas=[0.5, 1, 2], cv=3, random_state=0)
    silent = model.fit(X, y).best_score_
    assert capsys.readouterr().out == ""
    assert model.set_params(verbose=1).fit(X, y).best_score_ == silent
    lines = capsys.readouterr().out.splitlines()
    pattern = r"\[fit\] sigma (\d) of 3 \((.+)\): score (\S+), \d+\.\d s"
    lines = [re.fullmatch(pattern, line).groups() for line in lines]
    assert [line[:2] for line in lines] == [("1", "0.5"), ("2", "1"), ("3", "2")]
    means = model.cv_results_["mean_test_score"].reshape(3, -1).max(axis=1)
    np.testing.assert_allclose([float(line[2]) for line in lines], means, rtol=1e-3)


def test_a_search_of_alphas_alone_has_no_stages(capsys):
    ApproxKernelRidgeCV(OptimalPositiveRF(16), sigmas=None, verbose=1).fit(X, X[:, 0])
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_starts_of_learning_are_told_apart(capsys):
    model = KernelHMM.from_random(3, 4, 2, random_state=0, max_iter=2, n_init=2, verbose=True)
    model.fit(model.sample(30, random_state=0)[0])
    starts = [
        line.partition(": log likelihood")[0] for line in capsys.readouterr().out.splitlines()
    ]
    assert starts == [
        f"[fit, start {start} of 2] iteration {number}" for start in (1, 2) for number in (1, 2)
    ]
