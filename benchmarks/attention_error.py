"""Measure the error of approximate attention against the number of features.

python benchmarks/attention.py --error [--quick] [--std S]

Relative error |out - exact| / |exact| (Frobenius) of bidirectional attention, one head, on five
kinds of inputs. A seed sets both inputs and draw; what is printed is the mean over seeds and its
standard error. Beside the features stands the plain mean of the values, which looks at no query:
an error above its own says that the features have collapsed. With --std 1 they do on most of
these inputs, whose logits have standard deviations of 1 and more in 32 dimensions; --std 0.5 is
the size of the inputs of the speed benchmark.
"""

import json
import sys
import time
import warnings
from functools import partial

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from skrf import AdaptiveRF, DenseExponentialRF, OptimalPositiveRF, PositiveRF
from skrf.attention import ApproxKernelAttention, exact_attention
from skrf.exceptions import FeatureCollapseWarning

LENGTH, WIDTH = 1024, 32
COMPONENTS, COMPONENTS_QUICK = (16, 32, 64, 128, 256, 512, 1024), (16, 64, 256)
N_SEEDS, N_SEEDS_QUICK = 10, 3
SHOWN = 256  # number of features that the targets are about

# The maps of the papers do not centre; the library's do by default.
MAPS = {
    "FAVOR+ (PositiveRF, center=False)": partial(PositiveRF, center=False),
    "FAVOR++ (OptimalPositiveRF, center=False)": partial(OptimalPositiveRF, center=False),
    "OptimalPositiveRF": OptimalPositiveRF,
    "DenseExponentialRF, asymmetric": partial(
        DenseExponentialRF, asymmetric=True, kernel="softmax"
    ),
    "AdaptiveRF, asymmetric": partial(AdaptiveRF, asymmetric=True, kernel="softmax"),
}
PLAIN, PUBLISHED, CENTRED, *FITTED = MAPS
MEAN = "mean of the values"


# ---------------------------------------------------------------- inputs


def isotropic(rng):
    """Standard normal queries and keys (here and below before the factor --std)."""
    return rng.normal(size=(2, LENGTH, WIDTH))


def anisotropic(rng):
    """Singular values that decay as 1/sqrt(l) along random axes; the mean square is 1."""
    stds = 1 / np.sqrt(np.arange(1, WIDTH + 1))
    stds *= np.sqrt(WIDTH / np.sum(stds**2))
    axes = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
    return isotropic(rng) * stds @ axes


def shifted(rng):
    """A common vector of standard normal entries added to all queries, and another to all keys."""
    return isotropic(rng) + rng.normal(size=(2, 1, WIDTH))


def unbalanced(rng):
    """Queries times 2 to 4 and keys divided by it in even columns, the reverse in odd ones."""
    factors = np.linspace(2, 4, WIDTH) ** np.where(np.arange(WIDTH) % 2, -1, 1)
    q, k = isotropic(rng)
    return q * factors, k / factors


def clustered(rng):
    """Queries and keys around the same eight standard normal centres, 0.3 away in each column."""
    centers = rng.normal(size=(8, WIDTH))
    return centers[rng.integers(8, size=(2, LENGTH))] + 0.3 * isotropic(rng)


KINDS = {f.__name__: f for f in (isotropic, anisotropic, shifted, unbalanced, clustered)}


# ---------------------------------------------------------------- measuring


def measure(components, n_seeds, std):
    """Return {kind: {map: errors of shape (numbers of features, seeds)}}."""
    errors = {}
    for kind, make in KINDS.items():
        began = time.perf_counter()
        own = {name: np.empty((len(components), n_seeds)) for name in (*MAPS, MEAN)}
        for seed in range(n_seeds):
            rng = np.random.default_rng(seed)
            q, k = std * np.asarray(make(rng))
            v = rng.normal(size=(LENGTH, WIDTH))
            exact = exact_attention(q, k, v)
            own[MEAN][:, seed] = relative_error(v.mean(axis=0), exact)
            for name, make_map in MAPS.items():
                for i, m in enumerate(components):
                    attend = ApproxKernelAttention(make_map(m, random_state=seed))
                    own[name][i, seed] = relative_error(attend(q, k, v), exact)
        errors[kind] = own
        print(f"{kind}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return errors


def diagnosed(std):
    """Return a line for every kind of inputs: how far `diagnose` is from the true error."""
    lines = []
    for kind, make in KINDS.items():
        ratios = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            q, k = std * np.asarray(make(rng))
            v = rng.normal(size=(LENGTH, WIDTH))
            exact = exact_attention(q, k, v)
            for name in (CENTRED, *FITTED):
                attend = ApproxKernelAttention(MAPS[name](SHOWN, random_state=seed))
                estimate = attend.diagnose(q, k, v).relative_error
                ratios.append(estimate / relative_error(attend(q, k, v), exact))
        word = "MET" if 1 / 1.5 <= min(ratios) and max(ratios) <= 1.5 else "MISSED"
        lines.append(
            f"- {word}: the error that diagnose estimates at M = {SHOWN}, over the true one, "
            f"{kind}: {min(ratios):.2f} to {max(ratios):.2f}"
        )
    return lines


def relative_error(out, exact):
    """Return |out - exact| / |exact|."""
    return np.linalg.norm(out - exact) / np.linalg.norm(exact)


def standard_error(values):
    """Return the standard error of the mean along the last axis."""
    return np.std(values, axis=-1, ddof=1) / np.sqrt(np.shape(values)[-1])


def slope(components, errors):
    """Return the slope of log mean error against log M."""
    return np.polyfit(np.log(components), np.log(errors.mean(axis=1)), 1)[0]


# ---------------------------------------------------------------- report


def table(components, errors):
    """Return the Markdown table of mean errors and their standard errors."""
    lines = [
        f"| inputs | features | {' | '.join(f'M = {m}' for m in components)} | slope |",
        "|---" * (len(components) + 3) + "|",
    ]
    for kind, own in errors.items():
        for name, values in own.items():
            cells = [
                f"{mean:.3f} +- {error:.3f}"
                for mean, error in zip(values.mean(axis=1), standard_error(values), strict=True)
            ]
            cells.append(f"{slope(components, values):.2f}")
            lines.append(f"| {kind} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdicts(components, errors):
    """Return a line for every target."""
    # One number a seed, so that the standard error is that over seeds.
    gains = np.mean(
        [np.log(own[PUBLISHED] / own[PLAIN]).mean(axis=0) for own in errors.values()], axis=0
    )
    word = "MET" if gains.mean() <= 0 else "MISSED"
    lines = [
        f"- {word}: FAVOR++ is not worse than FAVOR+ on average: its error is "
        f"{np.exp(gains.mean()):.3f} times as large (geometric mean over inputs and M; standard "
        f"error {standard_error(gains):.3f})"
    ]
    at = components.index(SHOWN)
    for kind in ("anisotropic", "shifted", "unbalanced"):
        means = {name: values[at].mean() for name, values in errors[kind].items()}
        best = min(FITTED, key=means.get)
        ratio = means[best] / means[PUBLISHED]
        lines.append(
            f"- {'MET' if ratio <= 0.75 else 'MISSED'}: dense or adaptive at least 25 % better "
            f"than FAVOR++ at M = {SHOWN}, {kind}: {best} has {ratio:.2f} of its error "
            f"({means[best] / means[CENTRED]:.2f} of that with centring)"
        )
    return lines


def plot(components, errors, path):
    """Draw mean errors against the number of features, one panel for every kind of inputs."""
    figure, axes = plt.subplots(1, len(errors), figsize=(16, 4.2), sharey=True)
    for axis, (kind, own) in zip(axes, errors.items(), strict=True):
        for name, values in own.items():
            label = name if name == MEAN else f"{name}: {slope(components, values):.2f}"
            means = values.mean(axis=1)
            style = {"color": "0.6"} if name == MEAN else {"marker": "."}
            axis.errorbar(components, means, standard_error(values), label=label, **style)
        # For the eye, through the first point of the default map.
        reference = own[CENTRED][0].mean() * np.sqrt(components[0] / np.array(components))
        axis.plot(components, reference, color="0.6", linestyle=":", label="slope -0.50")
        axis.set(title=kind, xlabel="M", xscale="log", yscale="log")
        axis.set_xticks(components, components)
        axis.minorticks_off()
        axis.legend(fontsize=6)
    axes[0].set_ylabel("relative error of the output")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(folder, *, std, quick):
    """Measure, print what was seen and write it down."""
    components = COMPONENTS_QUICK if quick else COMPONENTS
    n_seeds = N_SEEDS_QUICK if quick else N_SEEDS
    with warnings.catch_warnings():
        # The table says so itself, where errors are above that of the mean of the values.
        warnings.simplefilter("ignore", FeatureCollapseWarning)
        errors = measure(components, n_seeds, std)
    about = (
        f"L = {LENGTH}, d = {WIDTH}, one head, float64, seeds 0 to {n_seeds - 1}, queries and "
        f"keys times {std:g}."
    )
    targets = verdicts(components, errors) + diagnosed(std)
    print(about, "", table(components, errors), "", *targets, sep="\n")
    folder.mkdir(exist_ok=True)
    summary = {
        "about": about,
        "verdicts": targets,
        "components": components,
        "errors": {
            kind: {name: values.tolist() for name, values in own.items()}
            for kind, own in errors.items()
        },
    }
    path = folder / f"attention_error_std{std:g}.json"
    path.write_text(json.dumps(summary, indent=1), encoding="utf-8")
    plot(components, errors, path.with_suffix(".png"))
