"""Kernel machine and its peers on tables: accuracy, log loss, calibration, R2, seconds and size.

    python benchmarks/tables.py --rows 2000 --cache /tmp/tables
    python benchmarks/tables.py --sets wine_white car --methods kernel-machine --splits 1
    python benchmarks/tables.py --report                 # the table and the picture of the docs

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
import os
import pickle
import re
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from threadpoolctl import threadpool_limits

import skrf

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
OURS, PEER = "kernel-machine", "lightgbm-tuned"
MOST_ROWS, N_TEST, FEWEST_OF_A_CLASS = 40_000, 3000, 12
BUNDLED = ("breast_cancer", "digits", "iris", "wine")
REGRESSIONS = {  # a column of a set of the folders, or a set that is bundled or generated
    **{"wine_white_quality": ("wine_white", 11), "abalone_rings": ("abalone", 8)},
    **{"dry_bean_extent": ("dry_bean", 9), "magic04_distance": ("magic04", 9)},
    **dict.fromkeys(("diabetes", "friedman1", "friedman2", "friedman3")),
}
OF_STATSMODELS = {  # targets; those of two names are the first and what is left out
    **{"randhie": ["mdvis"], "fair": ["affairs"], "anes96": ["PID", "vote"]},
    **{"star98": ["NABOVE", "NBELOW"], "grunfeld": ["invest"], "engel": ["foodexp"]},
}


# ------------------------------------------------------------------------------------------- sets
def files(variable):
    """Return {name: path} of the tables of a folder."""
    paths = sorted(Path(os.environ[variable]).glob("*.csv*")) if variable in os.environ else []
    return {path.name.split(".")[0]: path for path in paths}


def facts_of_mixed():
    """Return {name: (is a regression, names of the categories)} as the folder's README says."""
    if not files("SKRF_MIXED_DIR"):
        return {}
    lines = (Path(os.environ["SKRF_MIXED_DIR"]) / "README.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    known = files("SKRF_MIXED_DIR")
    return {
        row[0]: (row[1] == "regression", [name for name in row[4].split(", ") if name != "-"])
        for row in rows
        if row[0] in known
    }


def all_sets():
    """Return {name: group}, of what the folders and the installed packages offer."""
    of_folders = [*files("SKRF_UCI_DIR"), *files("SKRF_TABLES_DIR")]
    groups = dict.fromkeys(of_folders, "clean")
    groups |= {"chess_strings": "apart"} if "chess" in groups else {}
    groups |= dict.fromkeys(facts_of_mixed(), "mixed") | dict.fromkeys(BUNDLED, "bundled")
    for name, of in REGRESSIONS.items():
        groups |= {name: "regression"} if of is None or of[0] in of_folders else {}
    if importlib.util.find_spec("statsmodels"):
        groups |= {name: "bundled" if name == "anes96" else "regression" for name in OF_STATSMODELS}
    return groups


def load(name):
    """Return a frame of numbers and categories, a target, and whether it is a number."""
    of_folders = files("SKRF_UCI_DIR") | files("SKRF_TABLES_DIR")
    is_number, mixed = name in REGRESSIONS or name in OF_STATSMODELS, facts_of_mixed()
    if name in mixed:
        is_number, categories = mixed[name]
        types = dict.fromkeys(categories, "str")
        X = pd.read_csv(files("SKRF_MIXED_DIR")[name], dtype=types)
        y = X.pop("target").to_numpy()
    elif name in OF_STATSMODELS:
        import statsmodels.datasets

        X = getattr(statsmodels.datasets, name).load_pandas().data
        columns = [X.pop(column).to_numpy(float) for column in OF_STATSMODELS[name]]
        y, is_number = columns[0], name != "anes96"
        if name in ("randhie", "fair"):  # many zeros and a long tail
            y = np.log1p(y)
        elif name == "star98":  # the share above the median
            y = y / (columns[0] + columns[1])
    elif name in BUNDLED or name == "diabetes":
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
        y = y.to_numpy()
    elif name.startswith("friedman"):
        X, y = getattr(datasets, f"make_{name}")(30_000, random_state=0)
        y = y + np.random.default_rng(7).normal(size=len(y)) * 0.3 * y.std()
    else:
        of, column = REGRESSIONS.get(name, (name.removesuffix("_strings"), None))
        X = pd.read_csv(of_folders[of], header=None)
        label = X.pop(X.columns[-1])
        if is_number:
            y = (label if column == X.shape[1] else X.pop(column)).to_numpy(float)
        else:
            y = label.astype(str).to_numpy()
    X = pd.DataFrame(X)
    for column in X.columns:
        is_text = not pd.api.types.is_numeric_dtype(X[column])
        X[column] = X[column].astype("category" if is_text else float)
        if is_text and name == "chess":
            X[column] = X[column].cat.codes.astype(float)
    X.columns = [re.sub(r"\W", "_", f"c{c}" if isinstance(c, int) else c) for c in X.columns]
    if not is_number:
        _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        is_kept = counts[codes] >= FEWEST_OF_A_CLASS
        X, y = X[is_kept].reset_index(drop=True), np.unique(codes[is_kept], return_inverse=True)[1]
    return X, y, is_number


def parts(y, is_number, seed, **sizes):
    """Return row numbers of two parts, stratified where each class has rows enough."""
    rows = np.arange(len(y))
    try:
        labels = None if is_number else y
        return train_test_split(rows, random_state=seed, stratify=labels, **sizes)
    except ValueError:
        return train_test_split(rows, random_state=seed, **sizes)


# ---------------------------------------------------------------------------------------- methods
def losses(P, codes):
    """Return the log loss of each row."""
    P = np.clip(P, 1e-6, None)
    return -np.log(P[np.arange(len(P)), codes] / P.sum(axis=1))


def spread(P, classes, n_classes):
    """Return probabilities with a column for each class, also for those without training rows."""
    out = np.zeros((len(P), n_classes))
    out[:, np.asarray(classes, int)] = P
    return out


def encoder():
    """Return scaled numbers, indicators of gaps, and categories as 0 and 1."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    return make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (
            OneHotEncoder(handle_unknown="ignore", sparse_output=False),
            make_column_selector(dtype_include="category"),
        ),
    )


class TunedLightGBM:
    """The best of ten configurations, by accuracy (or squared error) and by log loss."""

    def __init__(self, is_number, seed):
        self.is_number, self.seed = is_number, seed

    def configurations(self):
        rng = np.random.default_rng(self.seed)

        def log_uniform(low, high):
            return float(np.exp(rng.uniform(np.log(low), np.log(high))))

        yield {"learning_rate": 0.1, "num_leaves": 31, "min_child_samples": 20}
        for _ in range(9):
            yield {
                "learning_rate": log_uniform(0.03, 0.2),
                "num_leaves": int(log_uniform(6, 100)),
                "min_child_samples": int(log_uniform(2, 60)),
                "colsample_bytree": float(rng.uniform(0.4, 1)),
                "subsample": float(rng.uniform(0.6, 1)),
                "subsample_freq": 1,
                "reg_lambda": log_uniform(1e-3, 10),
                "min_split_gain": float(rng.choice([0, 0, 0.05])),
            }

    def fit(self, X, y):
        import lightgbm

        results, n_classes = [], int(y.max()) + 1
        train, valid = parts(y, self.is_number, 0, test_size=0.2)
        for options in self.configurations():
            model = boosted(self.is_number, n_estimators=1000, **options).fit(
                X.iloc[train],
                y[train],
                eval_set=[(X.iloc[valid], y[valid])],
                callbacks=[lightgbm.early_stopping(25, verbose=False)],
            )
            n_trees = int(1.1 * max(model.best_iteration_ or 1000, 5))
            if self.is_number:
                error = loss = np.mean((model.predict(X.iloc[valid]) - y[valid]) ** 2)
            else:
                P = spread(model.predict_proba(X.iloc[valid]), model.classes_, n_classes)
                loss = losses(P, y[valid]).mean()
                error = np.mean(P.argmax(axis=1) != y[valid]) + 1e-3 * loss
            results.append((error, loss, options | {"n_estimators": n_trees}))
        best = [min(results, key=lambda result: result[which])[2] for which in (0, 1)]
        self.of_labels = boosted(self.is_number, **best[0]).fit(X, y)
        self.of_probabilities = self.of_labels
        if best[1] != best[0]:
            self.of_probabilities = boosted(self.is_number, **best[1]).fit(X, y)
        self.classes_ = getattr(self.of_labels, "classes_", None)
        return self

    def predict(self, X):
        return self.of_labels.predict(X)

    def predict_proba(self, X):
        return self.of_probabilities.predict_proba(X)


def boosted(is_number, **options):
    import lightgbm

    kind = lightgbm.LGBMRegressor if is_number else lightgbm.LGBMClassifier
    return kind(n_jobs=1, verbose=-1, random_state=0, **options)


class TunedSVC:
    """C and gamma by a fifth of the training rows; a temperature makes probabilities of scores."""

    def __init__(self, is_number, seed):
        self.is_number = is_number

    def fit(self, X, y):
        self.encoder = encoder()
        X = self.encoder.fit_transform(X)
        self.shift, self.factor = (y.mean(), y.std()) if self.is_number else (0, 1)
        y, kind = (y - self.shift) / self.factor if self.is_number else y, SVR
        kind = SVR if self.is_number else SVC
        train, valid = parts(y, self.is_number, 0, test_size=0.2)
        grid = [(C, g / (X.shape[1] * X.var())) for C in (1, 10, 100) for g in (0.1, 0.3, 1, 3)]
        models = [kind(C=C, gamma=gamma).fit(X[train], y[train]) for C, gamma in grid]
        best = max(models, key=lambda model: model.score(X[valid], y[valid]))
        self.model = kind(C=best.C, gamma=best.gamma).fit(X, y)
        if not self.is_number:
            self.classes_, n_classes = self.model.classes_, int(y.max()) + 1
            D = best.decision_function(X[valid])
            self.temperature = min(
                np.geomspace(0.2, 50, 40),
                key=lambda t: losses(
                    spread(softmax(t * D), best.classes_, n_classes), y[valid]
                ).mean(),
            )
        return self

    def predict(self, X):
        out = self.model.predict(self.encoder.transform(X))
        return out * self.factor + self.shift if self.is_number else out

    def predict_proba(self, X):
        return softmax(self.temperature * self.model.decision_function(self.encoder.transform(X)))


def softmax(D):
    D = np.column_stack([-D, D]) if D.ndim == 1 else D
    E = np.exp(D - D.max(axis=1, keepdims=True))
    return E / E.sum(axis=1, keepdims=True)


class CatBoost:
    """Defaults; gaps in categories are a level."""

    def __init__(self, is_number, seed):
        import catboost

        kind = catboost.CatBoostRegressor if is_number else catboost.CatBoostClassifier
        options = {"thread_count": 1, "allow_writing_files": False, "random_seed": 0}
        self.model = kind(verbose=0, **options)

    def frame(self, X):
        texts = {name: X[name].astype(object).fillna("gap") for name in X.select_dtypes("category")}
        return X.assign(**texts)

    def fit(self, X, y):
        self.model.fit(self.frame(X), y, cat_features=list(X.select_dtypes("category")))
        self.classes_ = getattr(self.model, "classes_", None)
        return self

    def predict(self, X):
        return np.ravel(self.model.predict(self.frame(X)))

    def predict_proba(self, X):
        return self.model.predict_proba(self.frame(X))


class XRFM:
    """Defaults on the processor, with a fifth of the training rows for its own choices."""

    def __init__(self, is_number, seed):
        import xrfm

        self.is_number, self.encoder = is_number, encoder()
        self.model = xrfm.xRFM(device="cpu", n_threads=1, random_state=0, verbose=False)

    def fit(self, X, y):
        X = self.encoder.fit_transform(X).astype(np.float32)
        train, valid = parts(y, self.is_number, 0, test_size=0.2)
        self.classes_, y = (None, y) if self.is_number else np.unique(y, return_inverse=True)
        self.shift, self.factor = (y.mean(), y.std()) if self.is_number else (0, 1)
        y = ((y - self.shift) / self.factor).astype(np.float32) if self.is_number else y
        self.model.fit(X[train], y[train], X[valid], y[valid])
        return self

    def predict(self, X):
        if not self.is_number:
            return self.classes_[self.predict_proba(X).argmax(axis=1)]
        out = self.model.predict(self.encoder.transform(X).astype(np.float32))
        return np.ravel(out) * self.factor + self.shift

    def predict_proba(self, X):
        return np.asarray(self.model.predict_proba(self.encoder.transform(X).astype(np.float32)))


def choice(classifier, regressor, is_encoded=False, **options):
    """Return a method that makes one of two estimators."""

    def make(is_number, seed):
        model = (regressor if is_number else classifier)(**options)
        if "random_state" in model.get_params():
            model.set_params(random_state=seed)
        return make_pipeline(encoder(), model) if is_encoded else model

    return make


def linear(is_number, seed):
    model = RidgeCV(np.logspace(-2, 4, 13)) if is_number else LogisticRegression(max_iter=2000)
    return make_pipeline(encoder(), model)


METHODS = {
    OURS: lambda is_number, seed: (
        skrf.KernelMachineRegressor if is_number else skrf.KernelMachineClassifier
    )(random_state=seed),
    PEER: TunedLightGBM,
    "lightgbm": lambda is_number, seed: boosted(is_number),
    "hist-gradient-boosting": choice(HistGradientBoostingClassifier, HistGradientBoostingRegressor),
    "catboost": CatBoost,
    "xrfm": XRFM,
    "svc-tuned": TunedSVC,
    "random-forest": choice(RandomForestClassifier, RandomForestRegressor, True, n_estimators=300),
    "linear": linear,
    "ridge-search": choice(skrf.ApproxKernelRidgeClassifierCV, skrf.ApproxKernelRidgeCV, True),
}
NEEDS = {PEER: "lightgbm", "lightgbm": "lightgbm", "catboost": "catboost", "xrfm": "xrfm"}
MOST_ROWS_OF = {"svc-tuned": 10_000}


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
    """Return coverage and scores of 90 % intervals; those of constant width have the same mean."""

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


MEASURES = ("accuracy", "log_loss", "calibration_error", "r2", "fit", "predict", "mb")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", help="all by default")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "skrf_tables")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of peers
    with threadpool_limits(1):
        run(options)


if __name__ == "__main__":
    main()
