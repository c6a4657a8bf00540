"""The list of mechanisms is complete, and its parts are what they say."""

from instances import MECHANISMS, accepts, exported_mechanisms
from sklearn.utils._param_validation import StrOptions


def test_every_exported_mechanism_is_listed():
    listed = {type(build()).__name__ for build in MECHANISMS.values()}
    assert listed == exported_mechanisms()


def test_every_variant_is_listed():
    listed = {}
    for name, build in MECHANISMS.items():
        if accepts(name, "variant"):
            mechanism = build()
            listed.setdefault(type(mechanism), set()).add(mechanism.variant)
    for kind, variants in listed.items():
        (options,) = kind._parameter_constraints["variant"]
        assert isinstance(options, StrOptions)
        # Simplex maps are PositiveRF with a preset coupling: their variants are listed there.
        if accepts(kind.__name__, "coupling"):
            assert variants == options.options
