"""The softmax matrix of a word model, estimated: figure 3 of the hybrid slides, on other words.

    SKRF_EWT_DIR=... python benchmarks/reproduce/word_softmax.py            about five minutes
    SKRF_EWT_DIR=... python benchmarks/reproduce/word_softmax.py --quick    less than a minute

Choromanski et al., Hybrid random features (2022), experiment 1, measure on words how well features
estimate the softmax matrix of a language model (Penn Treebank; the slides show no numbers). Here a
log-bilinear model of the next word, that of benchmarks/sampled_softmax.py, learns the treebank of
English web texts; queries are contexts of its development part and keys are all words, of length 3
each, or shrunk to 1.5, which makes the matrix flatter. Maps are fitted to training contexts. Hybrid
features have as many columns as the operations of the others allow, as in the slides.

For every number of random projections, over three seeds: the share of negative estimates, the
total variation between the rows of the softmax (negative estimates count as 0) and the true rows,
and the perplexity of the next words where no estimate is negative. The trivial answer beside them
gives every context the frequencies of words.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from _common import COLOURS, markdown, parser, publish, set_ticks

from skrf import AdaptiveRF, HybridRF, OptimalPositiveRF, PositiveRF, RFFSampler

sys.path.append(str(Path(__file__).parents[1]))
from sampled_softmax import SCALE, WIDTH, examples, learned
from text import numbered, treebank

SIZES, SEEDS, N_CONTEXTS, N_COEFFICIENTS = (64, 128, 256, 512), 3, 1000, 8
LENGTHS = (1.5, SCALE)
COMMON = {"kernel": "softmax", "center": False}


def hybrid(m):
    """Return angular hybrid features of at most the operations of m projections."""
    values = 3  # of a projection: an exponential, a cosine and a sine
    n = (m - N_COEFFICIENTS) * WIDTH // (WIDTH + values * (1 + N_COEFFICIENTS))
    return HybridRF(
        n * values * (1 + N_COEFFICIENTS),
        base=("positive", "trigonometric"),
        coefficients="angular",
        n_coefficients=N_COEFFICIENTS,
        **COMMON,
    )


MAPS = {
    "trigonometric": lambda m: RFFSampler(2 * m, kernel="softmax"),
    "positive": lambda m: PositiveRF(m, **COMMON),
    "hybrid, angular": hybrid,
    "optimal positive": lambda m: OptimalPositiveRF(m, kernel="softmax"),
    "adaptive": lambda m: AdaptiveRF(m, kernel="softmax"),
}


def measured(make, m, seed, data):
    """Return the share of negative estimates, the total variation, and the perplexity or NaN."""
    known, queries, keys, truth, words = data
    fitted = make(m).set_params(random_state=seed).fit(known, keys=keys)
    estimates = fitted.transform(queries) @ fitted.transform_keys(keys).T
    is_negative = estimates < 0
    shares = np.where(is_negative, 0.0, estimates)
    shares = shares / shares.sum(axis=1, keepdims=True)
    perplexity = np.nan
    if fitted.is_positive:
        perplexity = np.exp(-np.mean(np.log(shares[np.arange(len(words)), words])))
    return is_negative.mean(), np.abs(shares - truth).sum(axis=1).mean() / 2, perplexity


def learned_rows(quick):
    """Return rows of training contexts, contexts and words, the next words, and frequencies."""
    train, held, n_symbols = numbered(treebank("train"), treebank("dev"))
    contexts, words = examples(train, n_symbols)
    seconds = 5 if quick else 60
    model, _ = learned("log-uniform", (contexts, words), n_symbols, 16, seconds, 0)
    rng = np.random.default_rng(0)
    known = model.queries(contexts[rng.choice(len(contexts), 4 * N_CONTEXTS, replace=False)])
    tests, next_words = examples(held, n_symbols)
    chosen = rng.choice(len(tests), 200 if quick else N_CONTEXTS, replace=False)
    counts = np.bincount(words, minlength=n_symbols) + 1
    parts = known, model.queries(tests[chosen]), model.keys
    return parts, next_words[chosen], counts / counts.sum()


def shrunk(parts, next_words, frequencies, length):
    """Return what `measured` needs, and the results of the model and of the frequencies."""
    known, queries, keys = (length / SCALE * rows for rows in parts)
    logits = queries @ keys.T
    truth = np.exp(logits - logits.max(axis=1, keepdims=True))
    truth /= truth.sum(axis=1, keepdims=True)
    exact = 0.0, 0.0, np.exp(-np.mean(np.log(truth[np.arange(len(next_words)), next_words])))
    gap = np.abs(frequencies - truth).sum(axis=1).mean() / 2
    trivial = 0.0, gap, np.exp(-np.mean(np.log(frequencies[next_words])))
    return (known, queries, keys, truth, next_words), {"exact": exact, "frequencies": trivial}


def plot(found):
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), dpi=80, layout="constrained")
    labels = "share of negative estimates", "total variation of the rows"
    for place, (length, (rows, references)) in enumerate(found.items()):
        for number, label in enumerate(labels):
            axis = axes[2 * place + number]
            for (name, by_size), colour in zip(rows.items(), COLOURS, strict=False):
                values = [by_size[m][number] for m in SIZES]
                if number or max(values) > 0:
                    axis.plot(SIZES, values, "o-", ms=3, color=colour, label=name)
            if number:
                trivial = references["frequencies"][1]
                axis.axhline(trivial, color="k", linestyle=":", label="frequencies of words")
            axis.set(xscale="log", xlabel="projections", ylabel=label, title=f"length {length:g}")
            axis.set_ylim(0, None if number else 0.6)
            set_ticks(axis, SIZES)
    axes[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1))
    return figure


def report(found, n_contexts):
    texts = "negative estimates", "total variation", "perplexity"
    parts = [f"# The softmax matrix of words, {n_contexts} contexts\n"]
    for length, (rows, references) in found.items():
        for number, text in enumerate(texts):
            table = [(f"length {length:g}, {text}", *map(str, SIZES))]
            for name, by_size in rows.items():
                values = (by_size[m][number] for m in SIZES)
                table.append((name, *("-" if np.isnan(v) else f"{v:.3g}" for v in values)))
            for name, values in references.items():
                table.append((name, *(f"{values[number]:.3g}",) * len(SIZES)))
            parts.append(markdown(table) + "\n")
    return "\n".join(parts)


def main():
    options = parser(__doc__).parse_args()
    learned_parts = learned_rows(options.quick)
    seeds = 1 if options.quick else SEEDS
    found = {}
    for length in LENGTHS:
        data, references = shrunk(*learned_parts, length)
        found[length] = {name: {} for name in MAPS}, references
        for name, make in MAPS.items():
            for m in SIZES:
                results = [measured(make, m, seed, data) for seed in range(seeds)]
                found[length][0][name][m] = np.mean(results, axis=0)
    publish(options, "word_softmax", report(found, len(learned_parts[1])), figure=plot(found))


if __name__ == "__main__":
    main()
