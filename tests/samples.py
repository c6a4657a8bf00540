"""Rows with keys of their own, mechanisms fitted to both, and functions of such rows."""

import numpy as np
from array_api_compat import array_namespace
from instances import make


def data(n=30, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(0.3, 0.5, (n, d)), 3) * (rng.random((n, d)) < 0.7)


X, Y = data(), data(20, seed=1) + 0.2


def fitted(name, rows=X, keys=Y, **params):
    return make(name, **{"n_components": 24, "random_state": 0, **params}).fit(rows, keys=keys)


# ------------------------------------------------------------------ functions of rows


def of_queries(X):
    xp = array_namespace(X)
    return xp.concat([xp.exp(X), 1 + X * X], axis=1)


def of_keys(X):
    xp = array_namespace(X)
    return xp.concat([xp.exp(-X / 2), 2 + xp.sin(X)], axis=1)


FUNCTIONS = {"functions": (of_queries, of_keys)}
