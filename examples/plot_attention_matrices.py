"""
What an attention matrix looks like with features
=================================================

Attention with random features never forms the matrix of weights, but you can still plot it. With
the same number of features, maps fitted to the queries and keys recover much more of the matrix.
"""

# %%
# Queries and keys follow a walk around a circle, so a position attends to others at the same place
# on it. As in trained models, queries and keys are shifted relative to each other.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone

from skrf import AdaptiveRF, PositiveRF
from skrf.attention import ApproxKernelAttention, exact_attention
from skrf.plotting import AttentionMatrixDisplay

length, width = 96, 16
rng = np.random.default_rng(0)
angles = np.linspace(0, 3 * np.pi, length)
walk = np.stack([np.cos(angles), np.sin(angles)], axis=1) @ rng.normal(size=(2, width))
q = 1.5 * walk + 0.3 * rng.normal(size=(length, width)) + 0.5
k = walk + 0.3 * rng.normal(size=(length, width)) - 0.5

# %%
# Compare 128 Performer features (FAVOR+) with 128 adaptive features, which balance queries against
# keys and are placed where the two meet. Half the sum of the absolute differences in a row is the
# share of its weight at wrong keys. The code below prints the mean share over rows and ten draws.

maps = {
    "Performer's features": PositiveRF(128),
    "adaptive features": AdaptiveRF(128, asymmetric=True),
}
exact = exact_attention(q, k, np.eye(length))
wrong = {}
for name, feature_map in maps.items():
    draws = [
        ApproxKernelAttention(clone(feature_map).set_params(random_state=s)) for s in range(10)
    ]
    differences = [attention.attention_matrix(q, k) - exact for attention in draws]
    wrong[name] = np.mean(np.abs(differences).sum(axis=2)) / 2
    print(f"{name:22s} {wrong[name]:.2f} of the weight at wrong keys")

# %%
# `skrf.plotting.AttentionMatrixDisplay` draws exact and approximate weights on the same scale. With
# adaptive features, the bands of the exact matrix come out more clearly.

figure, axes = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
for row, (name, feature_map) in zip(axes, maps.items(), strict=True):
    attention = ApproxKernelAttention(feature_map.set_params(random_state=0))
    AttentionMatrixDisplay.from_estimator(attention, q, k, ax=row)
    row[1].set_title(name)
plt.show()

assert wrong["adaptive features"] < 0.7 * wrong["Performer's features"]
