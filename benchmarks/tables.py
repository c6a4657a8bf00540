"""Kernel machine and its peers on tables: accuracy, log loss, calibration, R2, seconds and size.

    python benchmarks/tables.py --rows 2000    # and 500, and 40000 for all
    python benchmarks/tables.py --sets wine_white car --methods kernel-machine --splits 1
    python benchmarks/tables.py --report       # the table and the picture of the docs

The sets are those bundled with scikit-learn and statsmodels and those of the folders SKRF_UCI_DIR
and SKRF_TABLES_DIR (CSV without a header, the label last; classes of fewer than 12 rows are left
out) and SKRF_MIXED_DIR (CSV with a header; its README.md says which columns are categories). Each
split draws at most `rows` rows, and at most 70 % of them all, for training, and up to 3,000 others
for the test. All methods get the same data frames and one thread. Tuned LightGBM is the best of ten
configurations on a fifth of the training rows, with up to 1,000 trees and early stopping, fitted
again to all; the best by accuracy gives the labels and the best by log loss the probabilities. The
files of chess are numbers, since they are ordered; `chess_strings` keeps the letters and counts
apart. A method whose package is not installed is skipped.

The cache gets a line per result and a file with the losses of all test rows, from which the report
takes paired standard errors; what is there is not run again.
"""

import argparse
import importlib.util
import json
import pickle
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from _tables import (
    METHODS,
    MOST_ROWS_OF,
    NAMES,
    NEEDS,
    OURS,
    PEER,
    all_sets,
    load,
    losses,
    parts,
    spread,
)
from threadpoolctl import threadpool_limits

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
MEASURES = ("accuracy", "log_loss", "calibration_error", "r2", "fit", "predict", "mb")
MOST_ROWS, N_TEST = 40_000, 3000


# --------------------------------------------------------------------------------------- measures
def calibration_error(P, codes, n_bins=15):
    """Return the mean gap of confidence and accuracy over bins of equal mass."""
    order = np.argsort(P.max(axis=1), kind="stable")
    gaps = P.max(axis=1) - (P.argmax(axis=1) == codes)
    return sum(abs(gaps[rows].sum()) for rows in np.array_split(order, n_bins)) / len(P)


def measure(method, name, n_rows, seed):
    """Return figures of one fit, and those of each test row."""
    X, y, is_number = load(name)
    n = min(n_rows, MOST_ROWS, int(0.7 * len(y)))
    sizes = {"train_size": n, "test_size": min(N_TEST, len(y) - n)}
    train, test = parts(y, is_number, seed, **sizes)
    X, y, Z, z = X.iloc[train], y[train], X.iloc[test], y[test]
    start = time.process_time()
    model = METHODS[method](is_number, seed).fit(X, y)
    fit, start = time.process_time() - start, time.process_time()
    predicted = model.predict(Z)
    predict = time.process_time() - start
    result = {"fit": fit, "predict": predict, "mb": len(pickle.dumps(model)) / 2**20}
    result |= {"n_train": len(y), "n_columns": X.shape[1], "n_classes": 0}
    if is_number:
        loss = (predicted - z) ** 2 / z.var()
        of_rows = {"loss": loss, "predicted": predicted, "target": z}
        result["r2"] = 1 - loss.mean()
        if method == OURS:
            of_rows["std"] = model.predict(Z, return_std=True)[1]
            result |= intervals(z, predicted, of_rows["std"])
    else:
        n_classes = int(max(y.max(), z.max())) + 1
        P = spread(model.predict_proba(Z), model.classes_, n_classes)
        of_rows = {"correct": predicted == z, "loss": losses(P, z)}
        result |= {"accuracy": np.mean(predicted == z), "log_loss": of_rows["loss"].mean()}
        result |= {"calibration_error": calibration_error(P, z), "n_classes": n_classes}
    return {key: float(value) for key, value in result.items()}, {"row": test, **of_rows}


def intervals(z, mean, std, level=1.645):
    """Return coverage, also by quarters of the predictions, and scores of 90 % intervals.

    Scores are in standard deviations of the target; the smaller, the better. The constant width is
    that of the root mean square of the standard deviations.
    """

    def score(width):
        return np.mean(2 * width + 20 * np.maximum(np.abs(z - mean) - width, 0)) / z.std()

    is_covered = np.abs(z - mean) <= level * std
    quarters = np.array_split(np.argsort(mean, kind="stable"), 4)
    constant = np.full(len(z), level * np.sqrt(np.mean(std**2)))
    return {
        "coverage": is_covered.mean(),
        **{f"coverage_{i + 1}": is_covered[rows].mean() for i, rows in enumerate(quarters)},
        "interval_score": score(level * std),
        "interval_score_constant": score(constant),
    }


def stored(folder):
    """Return {(set, rows, split, method): figures}."""
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {(r["set"], r["rows"], r["split"], r["method"]): r for r in records}


def store(folder, key, result, of_rows):
    """Append a line and write the figures of its rows."""
    name, n_rows, seed, method = key
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{name}_{n_rows}_{seed}_{method}.npz", **of_rows)
    record = {"set": name, "rows": n_rows, "split": seed, "method": method, **result}
    with open(folder / "results.jsonl", "a") as file:
        file.write(json.dumps(record) + "\n")


def run(options):
    done, groups, warm = stored(options.cache), all_sets(), set()
    for seed in range(options.splits):
        for name in options.sets or groups:
            for method in options.methods:
                key = (name, options.rows, seed, method)
                is_missing = method in NEEDS and not importlib.util.find_spec(NEEDS[method])
                too_large = options.rows > MOST_ROWS_OF.get(method, MOST_ROWS)
                if key in done or is_missing or too_large:
                    continue
                if method not in warm:  # imports and compilation are not counted
                    warm.add(method)
                    for small in ("wine", "breast_cancer", "diabetes"):
                        measure(method, small, 100, 0)
                result, of_rows = measure(method, name, options.rows, seed)
                store(options.cache, key, {"group": groups[name], **result}, of_rows)
                figures = " ".join(f"{key} {result[key]:.3f}" for key in MEASURES if key in result)
                print(f"{name} {seed} {method}: {figures}", flush=True)


# ----------------------------------------------------------------------------------------- report
def gains(folder, name, n_rows, splits, method):
    """Return means and standard errors of the difference to the peer.

    The score is the accuracy, or R2. Errors are those over the test rows, where one of several
    splits counts once.
    """
    frames = []
    for seed in splits:
        mine, theirs = (
            np.load(folder / f"{name}_{n_rows}_{seed}_{by}.npz") for by in (method, PEER)
        )
        loss = mine["loss"] - theirs["loss"]
        score = mine["correct"].astype(float) - theirs["correct"] if "correct" in mine else -loss
        frames.append(pd.DataFrame({"gain": score, "loss_gain": loss}, index=mine["row"]))
    means = pd.DataFrame([frame.mean() for frame in frames])
    centred = pd.concat([(frame - frame.mean()) / len(frame) / len(means) for frame in frames])
    errors = np.sqrt(np.square(centred.groupby(level=0).sum()).sum())
    return {**means.mean(), **errors.add_suffix("_se")}


def compared(folder):
    """Return means over splits for each limit of rows, set and method, and gains over the peer."""
    keys = ["rows", "group", "set", "method"]
    groups = pd.DataFrame(stored(folder).values()).groupby(keys)
    splits = groups["split"].agg(set).to_dict()
    differences = {}
    for key in splits:
        n_rows, group, name, method = key
        common = splits[key] & splits.get((n_rows, group, name, PEER), set())
        if common and method != PEER:
            differences[key] = gains(folder, name, n_rows, sorted(common), method)
    table = groups.mean(numeric_only=True).rename(columns={"split": "splits"})
    table["splits"] = groups.size()
    return table.join(pd.DataFrame(differences).T.rename_axis(keys)).reset_index()


def summary(table, ours):
    """Print how a method compares with the peer, and how often others are more accurate than it."""
    both = table[(table["method"] == ours) & table["gain"].notna()]
    peers = table[table["method"] == PEER]
    both = both.merge(peers, on=["rows", "group", "set"], suffixes=("", "_peer"))
    print(f"{ours} minus {PEER}, means over sets (in brackets, how many it wins)")
    for (n_rows, group, is_number), sets in both.groupby(["rows", "group", both["n_classes"] == 0]):
        gain, worst = sets["gain"], sets.loc[sets["gain"].idxmin()]
        text = f"{'R2' if is_number else 'accuracy'} {gain.mean():+.4f} ({(gain > 0).sum()})"
        if not is_number:
            loss, errors = sets["loss_gain"], sets[["calibration_error", "calibration_error_peer"]]
            text += f", log loss {loss.mean():+.4f} ({(loss < 0).sum()}), calibration error "
            text += "{:.4f} against {:.4f}".format(*errors.mean())
        text += f"; worst {worst['set']} {worst['gain']:+.4f} +- {worst['gain_se']:.4f}"
        print(f"{n_rows:6,} rows, {group}, {len(sets)} sets: {text}")
    scores = table["gain"].mask(table["method"] == PEER, 0.0)
    used = table.assign(gain=scores)[table["group"] != "apart"]
    for n_rows, rows in used.groupby("rows"):
        wide = rows.pivot(index="set", columns="method", values="gain").dropna(subset=[ours])
        counts = wide.drop(columns=ours).gt(wide[ours], axis=0).sum()
        text = ", ".join(f"{name} {count}" for name, count in counts.items())
        print(f"{n_rows:6,} rows: more accurate on sets of {len(wide)}: {text}")
    for n_rows, sets in both.groupby("rows"):
        behind = sets["set"][sets["gain"] + 0.015 + 2 * sets["gain_se"] < 0]
        text = ", ".join(behind) or "none"
        print(f"{n_rows:6,} rows: more than 1.5 points and two standard errors behind: {text}")
        for group, some in sets.groupby(sets["n_classes"] > 10):
            mine, theirs = some["fit"].sum(), some["fit_peer"].sum()
            text = "more than ten classes" if group else "others"
            print(f"        CPU s, {text}: {mine:.1f} / {theirs:.1f} = {mine / theirs:.2f}")
        if "coverage" in sets and sets["coverage"].notna().any():
            means = sets.filter(regex="^(coverage|interval_score)[a-z_1-4]*$").mean()
            means = means[[name for name in means.index if not name.endswith("_peer")]]
            text = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
            print(f"        90 % intervals: {text}")


def plot(table, n_rows):
    """Draw the accuracies relative to that of the peer, a line for each method."""
    is_shown = (table["rows"] == n_rows) & (table["n_classes"] > 0) & (table["group"] != "apart")
    table = table[is_shown & table["method"].isin(METHODS)]
    peers = table[table["method"] == PEER].set_index("set")
    table = table[table["set"].isin(peers.index)].fillna({"gain": 0.0})
    of_methods = dict(list(table.groupby("method")))
    # Means over fewer sets do not compare.
    of_methods = {name: rows for name, rows in of_methods.items() if len(rows) == len(peers)}
    names = sorted(of_methods, key=lambda name: of_methods[name]["gain"].mean())
    # Small, with large letters, to be read on a phone.
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for i, name in enumerate(names):
        rows = of_methods[name]
        ratio = rows["fit"].sum() / peers["fit"][rows["set"]].sum()
        gain, error = 100 * rows["gain"].mean(), 100 * rows["gain"].sem()
        marker, colour = ("D", "#D55E00") if name == OURS else ("o", "#0072B2")
        axis.errorbar(gain, i, xerr=error, fmt=marker, color=colour, capsize=3)
        place = {"xycoords": axis.get_yaxis_transform(), "va": "center", "annotation_clip": False}
        axis.annotate(f"{ratio:.2g}", (1.03, i), color=colour, **place)
    axis.annotate("CPU\ntime", (1.03, len(names) - 0.4), **place | {"va": "bottom"})
    axis.axvline(0, color="0.7", lw=1, zorder=0)
    axis.set_yticks(range(len(names)), [NAMES[name] for name in names])
    axis.tick_params("y", length=0)
    axis.set_xlabel(f"accuracy, points above {NAMES[PEER]}")
    axis.set_title(f"{len(peers)} sets, at most {n_rows:,} training rows", fontsize=11)
    axis.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(FOLDER / "tables.png", dpi=160)


def report(options):
    table = compared(options.cache)
    FOLDER.mkdir(parents=True, exist_ok=True)
    of_docs = table[table["method"].isin(METHODS)].dropna(axis=1, how="all")
    of_docs.to_csv(FOLDER / "tables.csv", index=False, float_format="%.4g")
    summary(table, options.report)
    plot(table, options.rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", help="all by default")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "skrf_tables")
    parser.add_argument("--report", nargs="?", const=OURS, help="of this method; runs nothing")
    options = parser.parse_args()
    if options.report:
        return report(options)
    # The folds of a search are more than the rows of some classes of small sets.
    warnings.filterwarnings("ignore", "The least populated class in y", UserWarning)
    with threadpool_limits(1):
        run(options)


if __name__ == "__main__":
    main()
