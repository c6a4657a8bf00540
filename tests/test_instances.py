"""The list of mechanisms is complete, and its parts are what they say."""

import pytest
from instances import MECHANISMS, accepts, couplings, exported_mechanisms, make
from sklearn.utils._param_validation import StrOptions

from skrf.features import BaseRandomFeatures
from skrf.projections import COUPLINGS


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


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_listed_mechanism_is_unfitted_and_takes_parameters(name):
    mechanism = make(name, n_components=6, random_state=0)
    assert isinstance(mechanism, BaseRandomFeatures)
    assert not hasattr(mechanism, "statistics_")
    assert mechanism.get_params()["n_components"] == 6
    for coupling in couplings(name):
        assert coupling is None or make(name, coupling).coupling == coupling
    assert couplings(name) in ((None,), tuple(COUPLINGS))
