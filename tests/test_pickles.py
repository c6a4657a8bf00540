"""Pickles of earlier versions and of this one, under the scikit-learn that wrote them and later."""

import pickle
import re

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from pickles import FOLDER

import skrf

PATHS = sorted(FOLDER.glob("*.pickle"))


def numbers(version):
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def test_this_version_has_its_pickle():
    assert any(path.name.startswith(f"skrf-{skrf.__version__}-") for path in PATHS)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_was_pickled_returns_what_it_did(path):
    writer = path.stem.partition("-sklearn-")[2]
    if numbers(sklearn.__version__) < numbers(writer):
        pytest.skip(f"written under scikit-learn {writer}")
    cases = pickle.loads(path.read_bytes())
    assert len(cases) >= 10
    for model, method, arguments, expected in cases:
        got = getattr(model, method)(*arguments)
        name = type(model).__name__
        if np.asarray(expected).dtype.kind == "f":
            assert_allclose(got, expected, rtol=1e-9, atol=1e-12, err_msg=name)
        else:
            assert_array_equal(got, expected, err_msg=name)
