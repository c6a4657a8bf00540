"""Where the documentation of an estimator is, for scikit-learn's diagrams in notebooks."""

from functools import cache
from importlib import metadata

_AT_THE_TOP = ("features", "regression")  # what docs/api.rst lists without the part


@cache
def address():
    """Return the address of the documentation that pyproject.toml gives, "" where it gives none."""
    try:
        urls = metadata.metadata("scikit-random-features").get_all("Project-URL", [])
    except metadata.PackageNotFoundError:  # run from a folder, not installed
        urls = []
    named = dict(url.split(", ", 1) for url in urls)
    return named.get("Documentation", "").rstrip("/")


class Documented:
    """Mixin of estimators: their diagrams link to the page of the class, where there is an address.

    It stands before BaseEstimator, whose link leads to scikit-learn.
    """

    _doc_link_module = "skrf"

    @property
    def _doc_link_template(self):
        return f"{address()}/generated/{{page}}.html" if address() else ""

    def _doc_link_url_param_generator(self):
        cls = type(self)
        package, part, *_ = cls.__module__.split(".")
        home = package if part in _AT_THE_TOP else f"{package}.{part}"
        return {"page": f"{home}.{cls.__name__}"}
