"""What the scripts of this folder share: tables, verdicts and figures."""

import argparse
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parents[2] / "docs" / "_figures"
LARGEST_FIGURE = 150_000  # bytes in the documentation

# Colours that most colour-blind readers tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")


def summarize(values):
    """Return mean and standard error (NaN of a single value)."""
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), float(error)


def describe(mean, error=math.nan, digits=1):
    """Return mean and standard error as text."""
    text = f"{mean:.{digits}f}"
    return text if math.isnan(error) else f"{text} ± {error:.{digits}f}"


def verdict(own, published, digits=1):
    """Say whether two (mean, standard error) agree within two combined standard errors."""
    difference, error = own[0] - published[0], math.hypot(own[1], published[1])
    if abs(difference) <= 2 * error:
        return "met within two combined standard errors"
    return f"differs by {difference:+.{digits}f} ({difference / error:+.1f} standard errors)"


def markdown(rows, left=1):
    """Return a Markdown table whose first row is the head; so many columns stand on the left."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = [
        ":" + "-" * (width - 1) if i < left else "-" * (width - 1) + ":"
        for i, width in enumerate(widths)
    ]
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in (rows[0], rule, *rows[1:])
    )


def names(allowed):
    """Return an argparse type: names between commas, each one of those allowed."""

    def parse(text):
        chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        unknown = [name for name in chosen if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown} not among {', '.join(allowed)}")
        return chosen

    return parse


def parser(description):
    """Return a parser of the options that all scripts have."""
    made = argparse.ArgumentParser(description=description.split("\n")[0])
    made.add_argument("--quick", action="store_true", help="a small part of it, under a minute")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder of table and plot")
    made.add_argument("--docs", action="store_true", help="save the plots in docs/_figures")
    return made


def set_ticks(axis, values):
    """Mark these values on the horizontal axis and no others, and draw a light grid."""
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.set_xticks([], minor=True)
    axis.grid(alpha=0.3)


def publish(options, name, text, **figures):
    """Print and save a report, and save its figures; those of a quick run have other names.

    A figure is called as the report, with its keyword after it: "errors" of "simplex" is
    simplex_errors. The keyword "figure" adds nothing.
    """
    stem = f"{name}_quick" if options.quick else name
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{stem}.md").write_text(text, encoding="utf-8")
    print(text)
    folder = FIGURES if options.docs and not options.quick else options.results
    for kind, figure in figures.items():
        save_figure(figure, folder / f"{stem}{'' if kind == 'figure' else f'_{kind}'}.png")


def save_figure(figure, path):
    """Save a figure as a PNG that is small enough for the documentation."""
    figure.savefig(path)
    plt.close(figure)
    # A palette is enough for lines on white and makes the file several times smaller.
    with Image.open(path) as image:
        method = Image.Quantize.MAXCOVERAGE
        small = image.convert("RGB").quantize(
            256, method=method, kmeans=4, dither=Image.Dither.NONE
        )
    small.save(path, optimize=True)
    if path.stat().st_size > LARGEST_FIGURE:
        raise ValueError(f"{path} has more than {LARGEST_FIGURE} bytes: draw a smaller figure")
