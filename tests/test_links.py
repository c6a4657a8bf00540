"""The diagrams of estimators in notebooks link to the documentation, where it has an address."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from skrf import AdaptiveRF, KernelRegressionClassifier, _estimator

ADDRESS = "https://features.example/stable"
REFERENCE = Path(__file__).parents[1] / "docs" / "api"


def estimators():
    """Yield (listed name, class) of all estimators of the reference."""
    text = "\n".join(page.read_text("utf-8") for page in sorted(REFERENCE.glob("*.rst")))
    for name in re.findall(r"^   ([A-Za-z_.]+)$", text, re.MULTILINE):
        if not name.startswith(("dask.", "torch.", "features.")):  # base classes have no instances
            home, _, own = f"skrf.{name}".rpartition(".")
            value = getattr(import_module(home), own)
            if isinstance(value, type) and issubclass(value, BaseEstimator):
                yield name, value


@pytest.fixture
def urls(tmp_path, monkeypatch):
    """Return what installs the package with addresses under [project.urls]; None: not at all."""

    def install(addresses):
        if addresses is None:
            monkeypatch.setattr(sys, "path", [])
        else:
            folder = tmp_path / "scikit_random_features-0.dist-info"
            folder.mkdir()
            lines = ["Metadata-Version: 2.1", "Name: scikit-random-features", "Version: 0"]
            lines += [f"Project-URL: {address}" for address in addresses]
            (folder / "METADATA").write_text("\n".join(lines) + "\n", "utf-8")
            monkeypatch.syspath_prepend(tmp_path)
        _estimator.address.cache_clear()
        _estimator.address()  # is kept

    yield install
    _estimator.address.cache_clear()


def links(estimator):
    return re.findall(r'href="([^"#]+)', estimator._repr_html_())


class Own(AdaptiveRF):
    pass


def test_an_address_gives_links(urls):
    urls(["Homepage, https://elsewhere.example", f"Documentation, {ADDRESS}/"])
    assert f"{ADDRESS}/generated/skrf.AdaptiveRF.html" in links(AdaptiveRF())
    assert f"{ADDRESS}/generated/skrf.AdaptiveRF.html" in links(make_pipeline(AdaptiveRF()))
    addresses = {name: cls.__new__(cls)._get_doc_link() for name, cls in estimators()}
    assert addresses == {name: f"{ADDRESS}/generated/skrf.{name}.html" for name in addresses}
    assert len(addresses) >= 27 and {"graphical.KernelHMM", "attention.GeneralizedMap"} <= {
        *addresses
    }
    assert Own()._get_doc_link() == ""  # a class of a user


@pytest.mark.parametrize("given", [[], ["Homepage, https://elsewhere.example"], None])
def test_without_an_address_there_are_no_links(urls, given):
    urls(given)
    assert _estimator.address() == ""
    for estimator in (AdaptiveRF(), KernelRegressionClassifier(AdaptiveRF())):
        assert estimator._get_doc_link() == "" and links(estimator) == []
