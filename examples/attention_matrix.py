"""Look at attention matrices, exact and approximate, and at the error against the features.

    python examples/attention_matrix.py

Two pictures are saved to examples/output: the matrix of one head for several feature maps, and the
relative error of the output as the number of features grows, with the operator's own estimate of
it (`diagnose`, which does not look at exact attention).
"""

import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from skrf import AdaptiveRF, DenseExponentialRF, OptimalPositiveRF, PositiveRF, RFFSampler
from skrf.attention import ApproxKernelAttention, exact_attention
from skrf.exceptions import FeatureCollapseWarning

OUTPUT = Path(__file__).parent / "output"
LENGTH, WIDTH = 96, 16
SIZES = (16, 32, 64, 128, 256, 512)
N_SEEDS = 5
MAPS = {
    "positive (FAVOR+)": PositiveRF,
    "optimal positive (FAVOR++)": OptimalPositiveRF,
    "dense, asymmetric": lambda m, **params: DenseExponentialRF(m, asymmetric=True, **params),
    "adaptive, asymmetric": lambda m, **params: AdaptiveRF(m, asymmetric=True, **params),
    "trigonometric (unsafe)": RFFSampler,
}


def inputs():
    """Return queries and keys that walk on a circle, so that nearby positions attend."""
    rng = np.random.default_rng(0)
    angles = np.linspace(0, 3 * np.pi, LENGTH)
    walk = np.stack([np.cos(angles), np.sin(angles)], axis=1) @ rng.normal(size=(2, WIDTH))
    q = 1.5 * walk + 0.3 * rng.normal(size=(LENGTH, WIDTH)) + 0.5
    k = walk + 0.3 * rng.normal(size=(LENGTH, WIDTH)) - 0.5
    return q, k, rng.normal(size=(LENGTH, 8))


def draw_matrices(q, k):
    """Save the matrix of every map with 128 features beside the exact one."""
    matrices = {"exact": exact_attention(q, k, np.eye(LENGTH))}
    for name, make in MAPS.items():
        attention = ApproxKernelAttention(make(128, random_state=0))
        matrices[name] = attention.attention_matrix(q, k)
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    top = matrices["exact"].max()
    for axis, (name, matrix) in zip(figure.subplots(2, 3).flat, matrices.items(), strict=True):
        image = axis.imshow(matrix, vmin=-top, vmax=top, cmap="RdBu_r")
        axis.set(title=name, xlabel="key", ylabel="query")
    figure.colorbar(image, ax=figure.axes, label="attention weight", shrink=0.6)
    figure.suptitle("Attention weights, 128 features")
    figure.savefig(OUTPUT / "attention_matrices.png", dpi=110)


def draw_errors(q, k, v):
    """Save the error of the output against the number of features."""
    exact = exact_attention(q, k, v)
    figure = Figure(figsize=(7, 5), layout="constrained")
    axis = figure.subplots()
    for name, make in MAPS.items():
        errors, estimates = [], []
        for size in SIZES:
            attentions = [
                ApproxKernelAttention(make(size, random_state=seed)) for seed in range(N_SEEDS)
            ]
            errors.append(
                np.mean([np.linalg.norm(attention(q, k, v) - exact) for attention in attentions])
                / np.linalg.norm(exact)
            )
            estimates.append(attentions[0].diagnose(q, k, v).relative_error)
        (line,) = axis.loglog(SIZES, errors, marker="o", label=name)
        axis.loglog(SIZES, estimates, linestyle=":", color=line.get_color())
        print(f"{name:28s}" + "".join(f"{error:8.3f}" for error in errors))
    reference = np.array(SIZES)
    axis.loglog(reference, 3 * reference**-0.5, color="grey", linewidth=1, label="one over root")
    axis.set(xlabel="features", ylabel="relative error of the output", ylim=(None, 5))
    axis.set_xticks(SIZES, SIZES)
    axis.minorticks_off()
    axis.set_title("Error of the output; dotted: its estimate by diagnose")
    axis.legend(fontsize=8)
    figure.savefig(OUTPUT / "attention_errors.png", dpi=110)


def main():
    """Draw both pictures."""
    # The operator warns where features have collapsed; here the pictures show it.
    warnings.simplefilter("ignore", FeatureCollapseWarning)
    OUTPUT.mkdir(exist_ok=True)
    q, k, v = inputs()
    draw_matrices(q, k)
    print("Relative error of the output" + "".join(f"{size:8d}" for size in SIZES))
    draw_errors(q, k, v)
    print(f"Pictures are in {OUTPUT}")


if __name__ == "__main__":
    main()
