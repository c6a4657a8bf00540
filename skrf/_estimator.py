"""The base of all estimators: constructors that explain themselves, links to the documentation."""

from functools import cache, update_wrapper, wraps
from importlib import metadata
from inspect import isfunction, signature
from types import MethodType
from typing import Any, Self

from sklearn.base import BaseEstimator

# What stands for the gamma of scikit-learn's kernels, and for values of it.
GAMMA = {"gamma": "Pass sigma = sqrt(2 gamma) instead."}
SIGMAS = {"gamma": "Pass sigmas, each sqrt(2 gamma), instead."}
# Parts whose classes docs/api.rst lists without a prefix.
_AT_THE_TOP = ("features", "regression", "sampling")


@cache
def address():
    """Return the address of the documentation in pyproject.toml, or "" if there is none."""
    try:
        urls = metadata.metadata("scikit-random-features").get_all("Project-URL", [])
    except metadata.PackageNotFoundError:  # running from a folder without installation
        urls = []
    named = dict(url.split(", ", 1) for url in urls)
    return named.get("Documentation", "").rstrip("/")


def naming_parameters(init):
    """Return a constructor that answers unknown parameters with those that it has."""
    parameters = signature(init).parameters
    known = list(parameters)[1:]
    takes = ", ".join(known)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return init  # it takes every name, and may pass it on

    @wraps(init)
    def checked(self, *args: Any, **params: Any) -> None:
        name = next((name for name in params if name not in known), None)
        if name is not None:
            hints = getattr(self, "_foreign_parameters", {})
            raise TypeError(
                f"{type(self).__name__} has no parameter {name!r}, got {name}="
                f"{params[name]!r:.60}. {hints.get(name, f'It takes {takes}.')}"
            )
        init(self, *args, **params)

    return checked


class Unless:
    """A method that exists unless there is an obstacle, which its error names.

    Parameters
    ----------
    obstacle : callable
        Takes the estimator, and returns what is in the way and what to do instead, or None.
    method : callable
        The method.
    """

    def __init__(self, obstacle, method):
        self.obstacle, self.fn = obstacle, method
        update_wrapper(self, method)

    def __get__(self, estimator, owner=None):
        if estimator is None:
            return self.fn
        obstacle = self.obstacle(estimator)
        if obstacle is not None:
            name = type(estimator).__name__
            raise AttributeError(f"{name} has no {self.fn.__name__} here: {obstacle}")
        return MethodType(self.fn, estimator)


class EstimatorBase(BaseEstimator):
    """Base of all estimators; their diagrams link to the page of their class, if it has an address.

    Subclasses may list parameters of other libraries in `_foreign_parameters`, with what to pass
    instead. `_default_map` is the map that ``feature_map=None`` stands for.
    """

    _foreign_parameters: dict[str, str] = {}
    _default_map: Any = None
    _doc_link_module = "skrf"

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if isfunction(cls.__init__) and not hasattr(cls.__init__, "__wrapped__"):
            cls.__init__ = naming_parameters(cls.__init__)

    def set_params(self, **params: Any) -> Self:
        """Set parameters, like every scikit-learn estimator.

        Parameters
        ----------
        **params : dict
            Values by name; those of a given feature map are ``feature_map__<name>``.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ValueError
            If the estimator has no such parameter, or one of its map is set and there is no map.
        """
        hints = self._foreign_parameters
        for name in (params.keys() & hints.keys()) - set(self._get_param_names()):
            raise ValueError(f"Invalid parameter {name!r} for estimator {self}. {hints[name]}")
        nested = [name for name in params if name.startswith("feature_map__")]
        feature_map = params.get("feature_map", getattr(self, "feature_map", None))
        if nested and self._default_map is not None and not hasattr(feature_map, "set_params"):
            raise ValueError(
                f"{nested[0]}={params[nested[0]]!r} cannot be set, because feature_map="
                f"{feature_map!r} has no parameters. Pass the map that None stands for, "
                f"feature_map={self._default_map!r}, or another one."
            )
        return super().set_params(**params)

    @property
    def _doc_link_template(self):
        return f"{address()}/generated/{{page}}.html" if address() else ""

    def _doc_link_url_param_generator(self):
        cls = type(self)
        package, module, *_ = cls.__module__.split(".")
        home = package if module in _AT_THE_TOP else f"{package}.{module}"
        return {"page": f"{home}.{cls.__name__}"}
