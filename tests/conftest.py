"""Fixtures that several files share."""

from dataclasses import dataclass
from functools import partial
from importlib import import_module

import array_api_compat
import numpy as np
import pytest

from skrf._arrays import to_host


@dataclass(frozen=True)
class Library:
    """The array-API namespace of a library other than NumPy, and a device of it."""

    xp: object
    device: object

    def array(self, values):
        """Return host values as an array on the device."""
        return self.xp.asarray(values, device=self.device)

    def host(self, array):
        """Return a NumPy array of one that must be of this library and on this device."""
        assert type(array) is type(self.array(0.0))
        assert array_api_compat.device(array) == self.device
        return to_host(array)

    def assert_same(self, array, expected, like, **tolerance):
        """Check library, device, values, and the dtype of `like`."""
        assert array.dtype == like.dtype
        np.testing.assert_allclose(self.host(array), expected, **tolerance)


def _strict():
    xp = pytest.importorskip("array_api_strict")
    # Not the default device: arrays that are made without a word about devices are found out.
    return Library(xp, xp.Device("device1"))


def _torch(device):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    return Library(import_module("array_api_compat.torch"), torch.device(device))


def _cupy():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.is_available():
        pytest.skip("CuPy finds no CUDA device")
    return Library(import_module("array_api_compat.cupy"), cupy.cuda.Device(0))


LIBRARIES = {
    "array_api_strict": _strict,
    "torch": lambda: _torch("cpu"),
    "torch-cuda": lambda: _torch("cuda:0"),
    "cupy": _cupy,
}
ON_GPU = ("torch-cuda", "cupy")


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.gpu] if name in ON_GPU else []) for name in LIBRARIES
    ]
)
def library(request):
    """Every array library that skrf serves beside NumPy."""
    return LIBRARIES[request.param]()


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Return what makes tensors count as on a GPU, where rows come in other blocks."""
    return partial(monkeypatch.setattr, "skrf._arrays.is_on_gpu", array_api_compat.is_torch_array)
