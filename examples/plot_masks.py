"""
Attention that knows positions
==============================

Masks multiply the attention weights: recent positions count more, texts are kept apart, and pixels
look at their neighbours. Decays and gates keep time linear in the length.
"""

# %%
# A decay weighs every earlier position by its distance, at a rate of its own for every head. Gates
# forget at chosen positions; here, a new text begins at position 40.

import matplotlib.pyplot as plt
import numpy as np

from skrf.attention import ApproxKernelAttention, ToeplitzMask

length = 80
rng = np.random.default_rng(0)
q, k = rng.normal(size=(2, 2, length, 8)) / 2  # two heads
values = np.broadcast_to(np.eye(length), (2, length, length))  # the output is the matrix of weights
decay = ToeplitzMask.decay([0.2, 0.02])
attention = ApproxKernelAttention(causal=True, mask=decay, random_state=0)
fast, slow = attention(q, k, values)

gates = np.zeros((2, length))
gates[:, 40] = -np.inf  # nothing before position 40 counts from here on
apart = attention(q, k, values, log_gates=gates)[1]

# %%
# On a grid, the weight is a function of the offset between two pixels.

side = 15


def closeness(y, x):
    return np.exp(-(y**2 + x**2) / 8)


grid = ToeplitzMask.from_function(closeness, shape=(side, side))
pixels = rng.normal(size=(2, side**2, 8)) / 2
image = ApproxKernelAttention(mask=grid, random_state=0).fit(*pixels)
seen = image(*pixels, np.eye(side**2))[4 * side + 9].reshape(side, side)

# %%
# The first three panels show which keys (columns) every query (row) attends to, the last one what
# the pixel at the cross sees.

figure, axes = plt.subplots(2, 2, figsize=(6.6, 6.8), layout="constrained")
panels = {
    "decay, 0.2 a position": fast,
    "decay, 0.02 a position": slow,
    "the same, and a new text": apart,
    "pixels near one pixel": seen,
}
for axis, (title, weights) in zip(axes.flat, panels.items(), strict=True):
    axis.imshow(np.sqrt(weights), cmap="Blues")  # roots, so that small weights show
    axis.set(title=title, xticks=[], yticks=[])
for axis in axes.flat[:3]:
    axis.set(xlabel="key", ylabel="query")
axes.flat[3].plot(9, 4, "+", color="C1", markersize=12, markeredgewidth=2)
plt.show()

far = np.subtract.outer(np.arange(length), np.arange(length)) > 20
assert fast[far].sum() < 0.05 * fast.sum() and slow[far].sum() > 0.3 * slow.sum()
assert not apart[40:, :40].any() and np.allclose(apart[:40], slow[:40])
assert seen[2:7, 7:12].sum() > 0.5
