"""Links to the documentation of estimators for scikit-learn's diagrams in notebooks."""

from functools import cache
from importlib import metadata

_AT_THE_TOP = ("features", "regression")  # parts whose classes docs/api.rst lists without a prefix


@cache
def address():
    """Return the address of the documentation in pyproject.toml, or "" if there is none."""
    try:
        urls = metadata.metadata("scikit-random-features").get_all("Project-URL", [])
    except metadata.PackageNotFoundError:  # running from a folder without installation
        urls = []
    named = dict(url.split(", ", 1) for url in urls)
    return named.get("Documentation", "").rstrip("/")


class Documented:
    """Mixin of estimators whose diagrams link to the page of their class, if there is an address.

    It must come before BaseEstimator, whose link leads to scikit-learn.
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
