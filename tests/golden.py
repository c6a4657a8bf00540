"""Results in digests, which `test_golden.py` compares with today's.

    python tests/golden.py     # writes golden.json anew: only where a change of results is meant

No draw may change unnoticed: every published figure rests on them. A digest of an array holds four
inner products with fixed random weights, in units of the array's root mean square.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from instances import MECHANISMS, accepts, couplings, make
from sklearn.kernel_approximation import Nystroem

import skrf
from skrf import KernelRegressionClassifier, KernelRegressor
from skrf.attention import ApproxKernelAttention, GeneralizedMap, ToeplitzMask, exact_attention
from skrf.graphical import ChainMRF, KernelHMM, TreeMRF
from skrf.projections import PROJECTIONS

PATH = Path(__file__).with_name("golden.json")


def digest(values):
    """Return the root mean square of an array and four inner products in units of it."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    size = float(np.sqrt(np.mean(flat**2)))
    weights = np.random.default_rng(len(flat)).standard_normal((4, len(flat)))
    products = weights @ (flat / (size or 1.0)) / np.sqrt(len(flat))
    return [size, *(float(product) for product in products)]


def rows(n, d, seed):
    """Return rows with a mean, some coordinates exactly 0."""
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(0.3, 0.5, (n, d)), 3) * (rng.random((n, d)) < 0.8)


# ------------------------------------------------------------------ features


def _maps():
    """Yield name, map, dtype, and whether all that it computes is kept, or its features alone."""
    for name in MECHANISMS:
        for dtype in ("float64", "float32"):
            yield f"{name} {dtype}", make(name, **PARAMS), dtype, True
        yield f"{name} softmax", make(name, **{**PARAMS, "kernel": "softmax"}), "float64", False
        for coupling in couplings(name):
            for projection in PROJECTIONS if accepts(name, "projection") else ():
                if projection == "hadamard" and coupling not in PROJECTIONS["hadamard"]:
                    continue
                draw = make(name, coupling, projection=projection, **PARAMS)
                yield f"{name} {coupling} {projection}", draw, "float64", False
    for asymmetric in (skrf.DenseExponentialRF, skrf.AdaptiveRF):
        feature_map = asymmetric(14, asymmetric=True, kernel="softmax", random_state=3)
        yield f"{asymmetric.__name__} asymmetric", feature_map, "float64", True
    for kernel in ("laplacian", "cauchy", "matern12", "matern32", "matern52"):
        feature_map = skrf.RFFSampler(14, kernel=kernel, sigma=1.0, random_state=3)
        yield f"RFFSampler {kernel}", feature_map, "float64", True
    for name in ("RFFSampler", "PositiveRF-hyperbolic", "GeneralizedExponentialRF"):
        yield f"{name} one column", make(name, n_components=1, random_state=3), "float64", False
    for sigma in ("scale", "median"):
        feature_map = skrf.OptimalPositiveRF(14, sigma=sigma, random_state=3)
        yield f"sigma {sigma}", feature_map, "float64", False
    for centers in ("kmeans", "random"):
        feature_map = skrf.AdaptiveRF(14, centers=centers, sigma=2.0, random_state=3)
        yield f"AdaptiveRF {centers}", feature_map, "float64", False


PARAMS = {"n_components": 14, "sigma": 0.8, "random_state": 3}


def _features():
    for name, feature_map, dtype, is_whole in _maps():
        width = 14 if getattr(feature_map, "projection", None) == "hadamard" else 4
        X, Y = (rows(n, width, seed).astype(dtype) for n, seed in ((20, 0), (9, 1)))
        feature_map.fit(X, keys=Y)
        yield f"{name}: queries", dtype, feature_map.transform(Y)
        yield f"{name}: keys", dtype, feature_map.transform_keys(X)
        if not is_whole:
            continue
        if dtype == "float64":
            yield f"{name}: kernel", dtype, feature_map.approximate_kernel(X, Y)
            try:
                variance = feature_map.kernel_variance(X[:4] / 2, Y[:4] / 2)
            except NotImplementedError:
                continue
            yield f"{name}: variance", dtype, variance
        yield f"{name}: one side", dtype, feature_map.fit(X).transform(Y)


# ------------------------------------------------------------------ estimators


X, Z = rows(60, 4, 0), rows(15, 4, 1)
y, weights = np.arange(60) % 3, np.arange(60) % 4 + 0.5


def _regression():
    former = skrf.OptimalPositiveRF(sigma="scale", random_state=1)
    maps = {
        "default": former,  # of version 0.1
        "trigonometric": skrf.RFFSampler(20, sigma=1.0, random_state=1),
        "adaptive": skrf.AdaptiveRF(20, sigma=2.0, random_state=1),
        "generalized": skrf.GeneralizedExponentialRF(20, sigma=1.0, random_state=1),
        "poisson": skrf.PoissonRF(20, sigma=1.0, random_state=1),
        "hybrid": skrf.HybridRF(40, sigma=1.0, random_state=1),
        "hadamard": skrf.OptimalPositiveRF(20, sigma=1.0, projection="hadamard", random_state=1),
        "Nystroem": Nystroem(n_components=10, random_state=1),
    }
    for name, feature_map in maps.items():
        A, B = (rows(60, 14, 2), rows(15, 14, 3)) if name == "hadamard" else (X, Z)
        for dtype in ("float64", "float32"):
            A, B = A.astype(dtype), B.astype(dtype)
            model = KernelRegressionClassifier(feature_map).fit(A, y, weights)
            yield f"classifier {name} {dtype}: proba", dtype, model.predict_proba(B)
            yield f"classifier {name} {dtype}: decision", dtype, model.decision_function(B)
            yield f"classifier {name} {dtype}: labels", "float64", model.predict(B)
            targets = np.column_stack([A[:, 0] ** 2, 1000 * A[:, 1]])
            model = KernelRegressor(feature_map).fit(A, targets, weights)
            yield f"regressor {name} {dtype}", dtype, model.predict(B)
    model = KernelRegressionClassifier(former)
    for some in np.array_split(np.arange(60), 3):
        model.partial_fit(X[some], y[some], classes=[0, 1, 2])
    yield "classifier partial_fit", "float64", model.predict_proba(Z)
    model = KernelRegressionClassifier(former).fit(sp.csr_array(X), y)
    yield "classifier sparse", "float64", model.predict_proba(sp.csr_array(Z))
    model = KernelRegressor("exact", sigma=0.8).fit(X, X[:, 0] ** 2, weights)
    yield "regressor exact", "float64", model.predict(Z)


def _ridge():
    targets = np.column_stack([X[:, 0] ** 2, 1000 * X[:, 1]])
    for name in ("RFFSampler", "OptimalPositiveRF", "ClusterNystroem"):
        for dtype in ("float64", "float32"):
            A, B = X.astype(dtype), Z.astype(dtype)
            feature_map = getattr(skrf, name)(20, sigma=0.8, random_state=1)
            model = skrf.ApproxKernelRidge(feature_map, alpha=0.1).fit(A, targets, weights)
            yield f"regressor {name} {dtype}", dtype, model.predict(B)
            if dtype == "float64":
                _, deviations = model.predict(B, return_std=True)
                yield f"regressor {name}: deviations", dtype, deviations
            for decision in ("argmax", "discriminants", "one-vs-one"):
                model = skrf.ApproxKernelRidgeClassifier(feature_map, alpha=0.1, decision=decision)
                model.fit(A, y, weights)
                yield f"classifier {name} {dtype} {decision}", dtype, model.decision_function(B)
    model = skrf.ApproxKernelRidgeCV(skrf.RFFSampler(20, random_state=1), sigmas=3, cv=3)
    model.fit(X, targets, weights)
    yield "search: scores", "float64", model.cv_results_["mean_test_score"]
    model = skrf.ApproxKernelRidgeCV(skrf.RFFSampler(20, sigma=0.8, random_state=1), sigmas=None)
    model.fit_batches([(X, targets, weights)])
    yield "generalised cross-validation: scores", "float64", model.cv_results_["mean_test_score"]


# ------------------------------------------------------------------ attention


OF_ATTENTION = {
    "default": skrf.OptimalPositiveRF(24, random_state=1),
    "trigonometric": skrf.RFFSampler(24, random_state=1),
    "relu": GeneralizedMap(24, random_state=1),
    "hyperbolic": skrf.PositiveRF(24, variant="hyperbolic", random_state=1),
}


def _attention_inputs(dtype):
    rng = np.random.default_rng(5)
    q = rng.normal(size=(2, 4, 70, 6)) + 0.2
    k = rng.normal(size=(2, 2, 70, 6))
    v = rng.normal(size=(2, 2, 70, 3))
    padding = rng.random((2, 70)) < 0.2
    return *(array.astype(dtype) for array in (q, k, v)), padding


def _attention():
    maps = {
        **OF_ATTENTION,
        "dense asymmetric": skrf.DenseExponentialRF(24, asymmetric=True, random_state=1),
        "adaptive asymmetric": skrf.AdaptiveRF(24, asymmetric=True, random_state=1),
        "generalized": skrf.GeneralizedExponentialRF(24, random_state=1),
        "poisson": skrf.PoissonRF(24, random_state=1),
        "hybrid": skrf.HybridRF(40, random_state=1),
        "elu": GeneralizedMap(nonlinearity="elu", projection="identity"),
    }
    for dtype in ("float64", "float32"):
        q, k, v, padding = _attention_inputs(dtype)
        for name, feature_map in maps.items():
            case = f"attention {name} {dtype}"
            both = ApproxKernelAttention(feature_map)
            yield f"{case}: bidirectional", dtype, both(q, k, v, key_padding_mask=padding)
            both.fit(q, k, key_padding_mask=padding)
            yield f"{case}: fitted", dtype, both(q / 2, k, v)
            if name == "adaptive asymmetric":
                fitted = ApproxKernelAttention(feature_map, causal=True).fit(q, k)
                yield f"{case}: causal", dtype, fitted(q, k, v)
                continue
            causal = ApproxKernelAttention(feature_map, causal=True)
            yield f"{case}: causal", dtype, causal(q, k, v, key_padding_mask=padding)
            if dtype == "float64":
                state = causal.init_state()
                for chunk in (slice(9), slice(9, 30)):
                    out, state = causal.step(*(array[..., chunk, :] for array in (q, k, v)), state)
                yield f"{case}: stream", dtype, out
    q, k, v, padding = _attention_inputs("float64")
    rng = np.random.default_rng(6)
    masks = {
        "array": rng.random((70, 70)),
        "booleans": rng.random((70, 70)) < 0.3,
        "sparse": sp.random_array((70, 70), density=0.1, rng=rng, format="csr"),
        "Toeplitz": ToeplitzMask(rng.random((13, 19))),
    }
    for name, mask in masks.items():
        for map_name in ("default", "trigonometric"):
            for causal in (False, True):
                operator = ApproxKernelAttention(maps[map_name], mask=mask, causal=causal)
                case = f"attention {map_name} under {name} {'causal' if causal else ''}"
                yield case, "float64", operator(q, k, v, key_padding_mask=padding)


def _exact_attention():
    rng = np.random.default_rng(8)
    for dtype in ("float64", "float32"):
        q, k, v, padding = _attention_inputs(dtype)
        for causal in (False, True):
            output = exact_attention(q, k, v, causal=causal, key_padding_mask=padding)
            yield f"softmax {'causal' if causal else ''} {dtype}", dtype, output
    q, k, v, _ = _attention_inputs("float64")
    yield "mask", "float64", exact_attention(q, k, v, mask=rng.random((70, 70)))


def _torch_gradients():
    """Yield gradients of a loss with respect to queries, keys and values."""
    import torch

    from skrf.torch import RandomFeatureAttention

    for name, feature_map in OF_ATTENTION.items():
        for dtype in ("float64", "float32"):
            for causal in (False, True):
                *heads, _ = _attention_inputs(dtype)
                tensors = [torch.tensor(array, requires_grad=True) for array in heads]
                attention = RandomFeatureAttention(feature_map, is_causal=causal)
                output = attention(*tensors)
                weights = torch.cos(torch.arange(output.numel(), dtype=output.dtype))
                (output.ravel() @ weights).backward()
                for side, tensor in zip("qkv", tensors, strict=True):
                    case = f"{name} {dtype}{' causal' if causal else ''}: {side}"
                    yield case, dtype, tensor.grad.numpy()


# ------------------------------------------------------------------ graphical models


def _graphical():
    rng = np.random.default_rng(7)
    E, L, S = (rng.normal(size=(n, 3)) / 2 for n in (12, 12, 5))
    maps = {
        "default": None,
        "exact": "exact",
        "adaptive": skrf.AdaptiveRF(20),
        "poisson": skrf.PoissonRF(20, positive=True),
    }
    edges = [(0, 1), (0, 2), (2, 3), (2, 4)]
    symbols = rng.integers(0, 5, 40)
    for name, feature_map in maps.items():
        chain = ChainMRF(E, L, feature_map=feature_map, random_state=2)
        values = [chain.log_partition(length) for length in (1, 2, 9, 500)]
        yield f"chain {name}: log_partition", "float64", values
        yield f"chain {name}: marginals", "float64", chain.marginals(6)
        yield f"chain {name}: sample", "float64", chain.sample(8, 3, random_state=0)
        tree = TreeMRF(edges, E, rng.normal(size=(5, 12)), feature_map=feature_map, random_state=2)
        yield f"tree {name}: log_partition", "float64", tree.log_partition()
        yield f"tree {name}: marginals", "float64", tree.marginals()
        for kind in ("local", "global"):
            params = {"targets": L, "start_embedding": E[0], "normalization": kind}
            model = KernelHMM(E, S, feature_map=feature_map, random_state=2, **params)
            yield f"hmm {name} {kind}: score", "float64", model.score(symbols, [30, 10])
            yield f"hmm {name} {kind}: posteriors", "float64", model.predict_proba(symbols)
            path = model.predict(symbols, algorithm="viterbi")
            yield f"hmm {name} {kind}: path", "float64", path
        if name != "poisson":
            model = KernelHMM(E, S, feature_map=feature_map, random_state=2, max_iter=4)
            yield f"hmm {name}: fit", "float64", model.fit(symbols).history_


SUBJECTS = {
    "features": _features,
    "regression": _regression,
    "ridge": _ridge,
    "attention": _attention,
    "exact attention": _exact_attention,
    "torch gradients": _torch_gradients,
    "graphical": _graphical,
}


def digests(subject):
    """Return {name: [dtype, digest...]} of a subject."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: [dtype, *digest(values)] for name, dtype, values in SUBJECTS[subject]()}


def main():
    """Write the digests of all subjects, one a line."""
    lines = []
    for subject in SUBJECTS:
        for name, (dtype, *numbers) in digests(subject).items():
            row = [dtype, *(float(f"{number:.14g}") for number in numbers)]
            lines.append(f"{json.dumps(f'{subject}: {name}')}: {json.dumps(row)}")
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(lines)} digests in {PATH.name}")


if __name__ == "__main__":
    main()
