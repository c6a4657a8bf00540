"""The function 0F1(; a; z) = Gamma(a) z^((1 - a)/2) I_(a-1)(2 sqrt z), at a fixed cost."""

from functools import lru_cache

import numpy as np
from numpy.polynomial import polynomial

_LEAST_ORDER, _N_TERMS = 24, 8  # 1e-13 of the logarithm


def log_hyp0f1(a, z):
    """Return log 0F1(; a; z) - 2 sqrt z, without its growth, for a >= 1/2 and z >= 0.

    Debye's expansion at two large orders, then downwards by a recurrence of positive terms,
    0F1(; a; z) = 0F1(; a+1; z) + z / (a (a+1)) 0F1(; a+2; z).
    """
    n_steps = max(0, int(np.ceil(_LEAST_ORDER + 1 - a)))
    out = _of_large_order(a + n_steps, z)
    if n_steps == 0:
        return out
    ratio = np.exp(_of_large_order(a + n_steps + 1, z) - out)
    # Quotients of neighbours are about 1 + sqrt(z) / b; in this unit their product stays in range.
    unit, product = 1 + np.sqrt(z), 1.0
    for b in a + np.arange(n_steps)[::-1]:
        quotient = 1 + z / (b * (b + 1)) * ratio
        product = product * (quotient / unit)
        ratio = 1 / quotient
    return out + np.log(product) + n_steps * np.log(unit)


def _of_large_order(a, z):
    """Return log 0F1(; a; z) - 2 sqrt z, with all other terms as differences from z = 0."""
    order = a - 1
    grown = 2 * np.sqrt(z)
    root = np.hypot(order, grown)
    step = 4 * z / (root + order)
    terms = order ** -np.arange(1.0, _N_TERMS + 1) @ _debye_terms()
    terms[0] = -terms.sum()
    logs = order * np.log1p(step / (2 * order)) + np.log1p(step / order) / 2
    return order**2 / (root + grown) - order - logs + polynomial.polyval(order / root, terms)


@lru_cache(maxsize=1)
def _debye_terms():
    """Return coefficients of polynomials D_k(p), one per row; the constant ones are 0.

    I_nu is its leading term times exp(sum_k D_k(p) / nu^k), k from 1; their derivatives follow from
    Bessel's equation for the logarithm.
    """
    q = np.polynomial.Polynomial([0, 0, 0.5, 0, -0.5])
    slopes = [np.polynomial.Polynomial([0.125, 0, -0.625])]
    for k in range(1, _N_TERMS):
        squares = sum((slopes[i] * slopes[k - 2 - i] for i in range(k - 1)), 0 * q)
        slopes.append((q * slopes[-1]).deriv() + q * squares)
    out = np.zeros((_N_TERMS, 3 * _N_TERMS + 1))
    for row, slope in zip(out, slopes, strict=True):
        row[: len(slope) + 1] = slope.integ().coef
    return out
