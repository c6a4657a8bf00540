"""The diagrams of estimators in notebooks link to the documentation, where it has an address."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from skrf import AdaptiveRF, KernelRegressionClassifier, _estimator

ADDRESS = "https://features.example/stable"
REFERENCE = Path(__file__).parents[1] / "docs" / "api.rst"


def estimators():
    """Yield (listed name, class) of all estimators of the reference."""
    text = REFERENCE.read_text(encoding="utf-8")
    for name in re.findall(r"^   ([A-Za-z_.]+)$", text, re.MULTILINE):
        if not name.startswith(("dask.", "torch.", "features.")):  # base classes have no instances
            home, _, own = f"skrf.{name}".rpartition(".")
            value = getattr(import_module(home), own)
            if isinstance(value, type) and issubclass(value, BaseEstimator):
                yield name, value


@pytest.fixture
def urls(monkeypatch):
    """Return the list that stands for the addresses under [project.urls]."""
    given = []

    class Metadata:
        def get_all(self, key, failobj=None):
            return given if key == "Project-URL" and given else failobj

    monkeypatch.setattr(_estimator.metadata, "metadata", {"scikit-random-features": Metadata()}.get)
    _estimator.address.cache_clear()
    yield given
    _estimator.address.cache_clear()


def links(estimator):
    return re.findall(r'href="([^"#]+)', estimator._repr_html_())


def test_an_address_gives_links(urls):
    urls += ["Homepage, https://elsewhere.example", f"Documentation, {ADDRESS}/"]
    assert f"{ADDRESS}/generated/skrf.AdaptiveRF.html" in links(AdaptiveRF())
    assert f"{ADDRESS}/generated/skrf.AdaptiveRF.html" in links(make_pipeline(AdaptiveRF()))
    found = {name: cls.__new__(cls)._get_doc_link() for name, cls in estimators()}
    assert found == {name: f"{ADDRESS}/generated/skrf.{name}.html" for name in found}
    assert len(found) >= 27 and {"graphical.KernelHMM", "attention.GeneralizedMap"} <= {*found}


@pytest.mark.parametrize("given", [[], ["Homepage, https://elsewhere.example"]])
def test_without_an_address_there_are_no_links(urls, given):
    urls += given
    for _, cls in estimators():
        assert cls.__new__(cls)._get_doc_link() == ""
    for estimator in (AdaptiveRF(), KernelRegressionClassifier(AdaptiveRF())):
        assert links(estimator) == []


def test_a_package_that_is_not_installed_has_no_address(monkeypatch):
    def missing(name):
        raise _estimator.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_estimator.metadata, "metadata", missing)
    _estimator.address.cache_clear()
    assert _estimator.address() == ""
    _estimator.address.cache_clear()


def test_classes_of_users_do_not_link_here(urls):
    urls.append(f"Documentation, {ADDRESS}")

    class Own(AdaptiveRF):
        pass

    assert Own()._get_doc_link() == ""
