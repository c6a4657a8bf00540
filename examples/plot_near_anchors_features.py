"""
Near keys, anchors and features
===============================

Linear attention has three parts: exact nearby keys, a few exact anchors, and random features for
all other keys. Which of them pays off depends on how attention is spread.
"""

# %%
# Queries and keys of 768 positions combine a topic, which changes every 16 positions, the place in
# the sequence, and noise. If attention is spread, topics dominate, and a hundred keys share the
# weight of a query. If it is sharp, most of the weight lies on nearby keys and on six others that
# all queries attend to.

import matplotlib.pyplot as plt
import numpy as np

from skrf import DenseExponentialRF
from skrf.attention import ApproxKernelAttention, NearField, exact_attention

length, width = 768, 32
rng = np.random.default_rng(0)


def inputs(topic, place, sink):
    """Return queries, keys and values."""
    topics = np.repeat(rng.normal(size=(length // 16, 4)), 16, axis=0)
    phases = np.arange(length)[:, None] / np.array([3, 9, 27, 81])
    places = np.concatenate([np.sin(phases), np.cos(phases)], axis=1)
    seen_by_all = np.zeros((length, 2))
    seen_by_all[rng.choice(length, 6, replace=False)] = sink
    common = [topic * topics, place * places]
    q, k = (
        width**0.25 * np.concatenate([*common, 0.3 * rng.normal(size=(length, 18)), own], axis=1)
        for own in (np.full((length, 2), sink), seen_by_all)
    )
    known = np.concatenate([topics, places, seen_by_all], axis=1)
    v = known @ rng.normal(size=(14, 16)) + 0.5 * rng.normal(size=(length, 16))
    return q, k, v


# %%
# Costs are measured in keys. A feature costs as much as two exact keys, and a near field of blocks
# of 16 with 16 anchors as much as 64. The simple alternatives are the mean of all values, which
# costs nothing, and an exact window of the same cost (the first four keys and the nearest).

costs = [64, 128, 256, 512]
looks = {
    "mean of the values": ("0.6", ":"),
    "exact window": ("black", "s--"),
    "features alone": ("C1", "^-"),
    "near keys and anchors": ("C4", "v-"),
    "all three": ("C0", "o-"),
}


def outputs(name, cost, q, k, v):
    """Return what a method makes of the values, for every draw."""
    if name == "mean of the values":
        return [np.broadcast_to(v.mean(axis=0), v.shape)]
    if name == "exact window":
        place = np.arange(length)
        window = abs(place[:, None] - place) <= (cost - 4) // 2
        return [exact_attention(q, k, v, mask=window | (place < 4))]
    near, n_features = NearField(cost // 4, anchors=cost // 4), cost // 2
    if name == "near keys and anchors":
        return [ApproxKernelAttention("none", near=near).fit(q, k, v)(q, k, v)]
    if name == "all three":
        near, n_features = NearField(cost // 8, anchors=cost // 8), cost // 4
    else:
        near = None
    maps = [DenseExponentialRF(n_features, asymmetric=True, random_state=s) for s in range(3)]
    return [ApproxKernelAttention(each, near=near).fit(q, k, v)(q, k, v) for each in maps]


def errors(q, k, v):
    """Return the relative errors of the output by method: means over draws, one for every cost."""
    exact = exact_attention(q, k, v)

    def error(name, cost):
        differences = [out - exact for out in outputs(name, cost, q, k, v)]
        return np.mean(np.linalg.norm(differences, axis=(1, 2))) / np.linalg.norm(exact)

    return {name: np.array([error(name, cost) for cost in costs]) for name in looks}


cases = {
    "spread": errors(*inputs(topic=1.0, place=0.0, sink=0.0)),
    "sharp": errors(*inputs(topic=0.7, place=1.3, sink=1.8)),
}
for case, found in cases.items():
    print(f"{case:24s}" + "".join(f"{cost:7d}" for cost in costs))
    for name, values in found.items():
        print(f"  {name:22s}" + "".join(f"{value:7.3f}" for value in values))

# %%
# If attention is spread, features alone are better than an exact window of the same cost, and all
# three parts together are best at every cost. If it is sharp, features alone are worse than the
# window, anchors matter most, and features gain nothing on top of them. Trained models are closer
# to the second case: see :doc:`/guide/attention` for the errors on two of them.

figure, axes = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained", sharey=True)
for axis, (case, found) in zip(axes, cases.items(), strict=True):
    for name, (color, style) in looks.items():
        axis.loglog(costs, found[name], style, color=color, label=name)
    axis.set(title=f"{case} attention", xlabel="cost of a query, in keys")
    axis.set_xticks(costs, costs)
    axis.set_xticks([], minor=True)
axes[0].set_ylabel("relative error of the output")
axes[0].set_yticks([0.1, 0.2, 0.5, 1.0], ["0.1", "0.2", "0.5", "1"])
axes[0].set_yticks([], minor=True)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

spread, sharp = cases.values()
others = [values for name, values in spread.items() if name != "all three"]
assert (spread["all three"] < np.min(others, axis=0)).all()
assert (spread["features alone"] < spread["exact window"]).all()
assert (sharp["features alone"] > sharp["exact window"]).all()
assert (sharp["near keys and anchors"] < 1.1 * sharp["all three"]).all()
assert (sharp["near keys and anchors"] < 0.6 * sharp["exact window"]).all()
