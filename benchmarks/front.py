"""The tables and figures of README and of the first page, from those that benchmarks have written.

    python benchmarks/front.py

Reads docs/benchmarks/door_*.csv (by doors.py) and tables.csv (by tables.py); writes the tables and
sentences of README in their places, and what docs/index.rst and docs/guide/tables.rst include. Run
it again whenever a table has changed. A sentence has the figures of its table, and a comparison is
called won where the table says so.
"""

import re
from pathlib import Path

import pandas as pd
from _tables import NAMES, OURS, PEER

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "benchmarks"
README = ROOT / "README.md"
ROWS = 2000
SHOWN = (OURS, "svc-tuned", PEER, "lightgbm", "hist-gradient-boosting", "linear")
LINEAR = "logistic, given both distances"
MAPS = {  # and when to choose each of them
    "ClusterNystroem": "accuracy for few components",
    "ClusterQuantizer": "probabilities, no negative sums",
    "AdaptiveRF": "unbiased, no negative sums",
    "OptimalPositiveRF": "no negative sums, rows in batches",
    "RFFSampler": "bounds of the error",
    "Nystroem": "",
    "RBFSampler": "",
}


def door(name):
    """Return a table that doors.py has written."""
    return pd.read_csv(FOLDER / f"door_{name}.csv")


def votes():
    """Return lines about voters and cars, and sentences about them."""
    table = door("votes").sort_values("log loss")
    lines = [["model", "log loss", "behind by", "accuracy, %", "CPU s"]]
    for _, row in table.iterrows():
        gap = f"{row['gap']:.3f} ± {row['gap_se']:.3f}" if row["gap_se"] else ""
        cells = [row["model"], f"{row['log loss']:.3f}", gap, f"{row['accuracy']:.1f}"]
        lines.append([*cells, f"{row['seconds']:.2f}"])
    cars = door("cars").set_index("model")
    name = "KernelMachineRegressor"
    others = cars.drop(name).sort_values("R2", ascending=False)
    r2, coverage = cars["R2"][name], cars["coverage"][name]
    peers = "; ".join(f"{other} {value:.3f}" for other, value in others["R2"].items())
    text = f"""\
Five shuffled folds, repeated three times; ± is one standard error; CPU seconds are those of a fit;
accuracy is a tie with LightGBM. People vote for the nearer candidate: the kernel finds this out,
and logistic regression is better once it is given both distances. On cars with text and gaps
(`vega_datasets`), R2 is
{r2:.3f} ({peers}), and {coverage:.0f} % of new cars lie inside intervals of 90 %."""
    text = text.replace("\n", " ")
    return lines, text


def rows():
    """Return no lines, and sentences about where the kernel machine stops to be better."""
    table = door("rows").pivot_table(["error", "seconds"], "rows", "model")
    errors, seconds, machine = table["error"], table["seconds"], "kernel machine"
    best = errors.idxmin(axis=1)
    leads, last = best.index[best == machine], best.index[-1]
    late = best.index[best != machine]
    theirs, ours = (
        " and ".join(f"{errors[name][n]:.3f}" for n in late) for name in (best[last], machine)
    )
    text = f"""\
**Where it stops.** On diamond prices the kernel machine has the smallest error (of
the logarithm) up to {leads[-1]:,} rows.
At {" and ".join(f"{n:,}" for n in late)} {best[last]} is ahead ({theirs}; the
kernel machine {ours}), and fitting {last:,} rows takes {seconds[machine][last]:.0f} CPU seconds,
against {seconds[best[last]][last]:.0f} for {best[last]} ({other_seconds(seconds, last)})."""
    text = text.replace("\n", " ")
    sets, _, wins = tables()[1].partition(" classification sets")
    wins = wins.partition("CPU time of search and fit. ")[2]
    return [], f"{text} On {sets.split()[-1]} sets of at most {ROWS:,} rows, t{wins[1:]}"


def other_seconds(seconds, last):
    """Return the seconds of the fastest model as text."""
    return f"{seconds.loc[last].idxmin()}: {seconds.loc[last].min():.1f}"


def transport():
    """Return lines about optimal transport, and a sentence."""
    table = door("transport")
    lines = [["features", "breaks down in round", "error of colours", "CPU s"]]
    exact, features = table[table["seed"].isna()].iloc[0], table[table["seed"].notna()]
    for name, draws in features.groupby("features", sort=False):
        rounds = sorted({int(number) for number in draws["broke in round"].dropna()})
        broke = "–".join(map(str, sorted({rounds[0], rounds[-1]}))) if rounds else "never"
        error = "" if rounds else f"{draws['error'].mean():.4f}"
        lines.append([name, broke, error, f"{draws['seconds'].mean():.1f}"])
    lines.append(["exact kernel", "never", "0", f"{exact['seconds']:.1f}"])
    size = int(features["components"].iloc[0])
    text = f"{size:,} components, three draws. The outcome depends on the kernel and the size: with"
    text += " half this gamma, `Nystroem` does not break down and does better. For all"
    text += " 273,280 pixels the exact kernel does not fit into memory."
    return lines, text


def maps():
    """Return lines about features in pipelines, and a sentence."""
    table = door("maps").set_index("map")
    lines = [
        [
            "map, 32 components",
            "accuracy, %",
            "log loss",
            "the same in kernel regression",
            "CPU s",
            "choose it for",
        ]
    ]
    for name, reason in MAPS.items():
        row = table.loc[name]
        cells = [f"{row['logistic accuracy']:.1f}", f"{row['logistic loss']:.3f}"]
        cells += [f"{row['regression accuracy']:.1f}, {row['regression loss']:.3f}"]
        lines.append([name, *cells, f"{row['seconds']:.1f}", reason])
    text = "Means over five UCI sets, at most 1,000 training rows and three splits: each map before"
    text += " logistic regression, with a search over sigma and C, and in kernel regression."
    return lines, text


def tables():
    """Return the lines of the table of tables, and sentences about it.

    The classification sets of at most 2,000 training rows that all methods shown have run; those
    apart are left out. Accuracy and log loss of a method are those of the peer plus the mean
    difference to it on the splits that both have run.
    """
    table = pd.read_csv(FOLDER / "tables.csv")
    is_used = (table["rows"] == ROWS) & (table["n_classes"] > 0) & (table["group"] != "apart")
    table = table[is_used & table["method"].isin(SHOWN)]
    by_set = {name: rows for name, rows in table.groupby("set") if len(rows) == len(SHOWN)}
    table = pd.concat(by_set.values()).fillna({"gain": 0.0, "loss_gain": 0.0})
    groups = {method: rows.set_index("set") for method, rows in table.groupby("method")}
    peer, lines = groups[PEER], [["model", "accuracy, %", "log loss", "CPU s"]]
    for method in SHOWN:
        rows = groups[method]
        accuracy = 100 * (peer["accuracy"] + rows["gain"]).mean()
        loss = (peer["log_loss"] + rows["loss_gain"]).mean()
        lines.append([NAMES[method], f"{accuracy:.1f}", f"{loss:.3f}", f"{rows['fit'].mean():.2f}"])
    ours = groups[OURS]
    is_behind = ours["gain"] + 0.015 + 2 * ours["gain_se"] < 0
    text = f"Means over {len(by_set)} classification sets of at most {ROWS:,} training rows; CPU"
    text += f" time of search and fit. The {NAMES[OURS]} is ahead of {NAMES[PEER]} in accuracy on"
    text += f" {(ours['gain'] > 0).sum()} sets and in log loss on {(ours['loss_gain'] < 0).sum()}"
    names = sorted(ours.index[is_behind])
    losses = [f"{name} ({100 * ours['gain'][name]:.1f} points)" for name in names]
    text += ", and clearly behind (by more than 1.5 points and two standard errors) on "
    return lines, text + (", ".join(losses) or "none") + "."


def markdown(lines, text):
    """Return a table and its caption for README."""
    if not lines:
        return f"{text}\n"
    head, *rest = lines
    lines = [head, ["---"] * len(head), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{text}\n"


def restructured(lines, text):
    """Return a table and its caption for the documentation."""
    table = "\n".join("   " + ",".join(f'"{cell}"' for cell in line) for line in lines)
    table = f".. csv-table::\n   :header-rows: 1\n   :class: wide\n\n{table}\n\n" if lines else ""
    text = re.sub(r"(?<!`)`(?!`)", "``", text)
    return table + re.sub(r"\[(.*?)\]\(docs/(.*?)\.rst\)", r":doc:`\1 </\2>`", text) + "\n"


DOORS = {"votes": votes, "rows": rows, "transport": transport, "maps": maps}


def files():
    """Return {path: text} of what this writes."""
    texts = {FOLDER / "_front_tables.txt": restructured(*tables())}
    readme = README.read_text("utf-8")
    for name, of_door in DOORS.items():
        lines, text = of_door()
        texts[FOLDER / f"_front_{name}.txt"] = restructured(lines, text)
        if lines:  # the lines of the table, whose head is known, an empty line, and its caption
            place = rf"^\| {lines[0][0]} \|(?:.*\n)(?:\|.*\n)*\n.*\n"
        else:
            place = rf"^{re.escape(text[:20])}.*\n"
        before, *after = re.split(place, readme, flags=re.MULTILINE)
        if len(after) != 1:
            raise ValueError(f"README.md has {len(after)} places for {name}, not one.")
        readme = before + markdown(lines, text) + after[0]
    return texts | {README: readme}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
        print(f"Wrote {path.relative_to(ROOT)}")
