"""The tables of README and of the first page, from those that benchmarks have written.

    python benchmarks/front.py

Reads docs/benchmarks/tables.csv (by tables.py) and pipelines.csv (by pipelines.py); writes the
tables of README in their places, and what docs/index.rst includes. Run it again whenever a table
has changed.

Tables: the classification sets of at most 2,000 training rows that all methods shown have run;
those apart are left out. Accuracy and log loss of a method are those of the peer plus the mean
difference to it on the splits that both have run.
"""

import csv
import re
from pathlib import Path

import pandas as pd
from _tables import NAMES, OURS, PEER

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "benchmarks"
README = ROOT / "README.md"
ROWS = 2000
SHOWN = (OURS, "svc-tuned", PEER, "lightgbm", "hist-gradient-boosting", "linear")
SCALED = ", scalers in front"
MAPS = {  # and when to choose each of them
    "OptimalPositiveRF": "no estimate may be negative",
    "RFFSampler": "you want to know the error",
    "RBFSampler": "errors do not matter",
    "Nystroem": "accuracy matters more than time",
}


def of_tables():
    """Return the lines of the table of tables, and sentences about it."""
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


def of_pipelines():
    """Return the lines of the table of pipelines, and a sentence about it."""
    with (FOLDER / "pipelines.csv").open(newline="") as file:
        rows = {row["set"]: row for row in csv.DictReader(file)}
    means, seconds = rows.pop("mean"), rows.pop("CPU seconds")
    lines = [["map", "accuracy, %", "CPU s", "best on", "choose it when"]]
    for name, text in MAPS.items():
        wins = sum(row[name] == max((row[own] for own in MAPS), key=float) for row in rows.values())
        lines.append([name, f"{float(means[name]):.1f}", seconds[name], str(wins), text])
    scaled = [f"{float(means[name + SCALED]):.1f} for `{name}`" for name in list(MAPS)[:2]]
    text = f"Means over {len(rows)} tables of at most {ROWS:,} training rows: 256 components, then"
    text += " ridge regression of the classes ([more](docs/guide/pipeline.rst)). With"
    text += f" `SmoothClipScaler` and `RelevanceScaler` in front: {' and '.join(scaled)}."
    return lines, text + f" Tuned `SVC`: {float(means['SVC']):.1f}."


def markdown(lines, text):
    """Return a table and its caption for README."""
    head, *rows = lines
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{text}\n"


def rest(lines, text):
    """Return a table and its caption for the documentation."""
    rows = "\n".join("   " + ",".join(f'"{cell}"' for cell in line) for line in lines)
    both = f".. csv-table::\n   :header-rows: 1\n   :class: wide\n\n{rows}\n\n{text}\n"
    return re.sub(r"\[(.*?)\]\(docs/(.*?)\.rst\)", r":doc:`\1 </\2>`", both.replace("`", "``"))


def files():
    """Return {path: text} of what this writes."""
    texts, readme = {}, README.read_text("utf-8")
    for name, (lines, text) in (("tables", of_tables()), ("pipelines", of_pipelines())):
        texts[FOLDER / f"_front_{name}.txt"] = rest(lines, text)
        # The lines of the table, whose head is known, an empty line, and that of the caption.
        place = re.compile(rf"^\| {lines[0][0]} \|(?:.*\n)(?:\|.*\n)*\n.*\n", re.MULTILINE)
        before, *after = place.split(readme)
        if len(after) != 1:
            raise ValueError(f"README.md has {len(after)} places for {name}, not one.")
        readme = before + markdown(lines, text) + after[0]
    return texts | {README: readme}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
        print(f"Wrote {path.relative_to(ROOT)}")
