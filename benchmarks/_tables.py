"""The sets and the methods that tables.py compares."""

import importlib.util
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import special
from sklearn import datasets
from sklearn.base import BaseEstimator, clone
from sklearn.compose import (
    TransformedTargetRegressor,
    make_column_selector,
    make_column_transformer,
)
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

import skrf

OURS, PEER = "kernel-machine", "lightgbm-tuned"
NAMES = {  # of METHODS, in pictures and tables
    OURS: "kernel machine",
    PEER: "tuned LightGBM",
    "lightgbm": "LightGBM",
    "hist-gradient-boosting": "HistGradientBoosting",
    "catboost": "CatBoost",
    "xrfm": "xRFM",
    "svc-tuned": "tuned SVC",
    "random-forest": "random forest",
    "linear": "logistic regression",
    "ridge-search": "ridge on landmarks",
}
FEWEST_OF_A_CLASS = 12
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
    known = files("SKRF_MIXED_DIR")
    if not known:
        return {}
    lines = (Path(os.environ["SKRF_MIXED_DIR"]) / "README.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
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

    def machine(self, **options):
        scaled = TransformedTargetRegressor(SVR(**options), transformer=StandardScaler())
        return scaled if self.is_number else SVC(**options)

    def fit(self, X, y):
        self.encoder = encoder()
        X = self.encoder.fit_transform(X)
        train, valid = parts(y, self.is_number, 0, test_size=0.2)
        scale = 1 / (X.shape[1] * X.var())
        models = [
            self.machine(C=C, gamma=step * scale).fit(X[train], y[train])
            for C in (1, 10, 100)
            for step in (0.1, 0.3, 1, 3)
        ]
        best = max(models, key=lambda model: model.score(X[valid], y[valid]))
        self.model = clone(best).fit(X, y)
        if not self.is_number:
            self.classes_, D = self.model.classes_, best.decision_function(X[valid])

            def loss(t):
                P = spread(softmax(t * D), best.classes_, int(y.max()) + 1)
                return losses(P, y[valid]).mean()

            self.temperature = min(np.geomspace(0.2, 50, 40), key=loss)
        return self

    def predict(self, X):
        return self.model.predict(self.encoder.transform(X))

    def predict_proba(self, X):
        return softmax(self.temperature * self.model.decision_function(self.encoder.transform(X)))


def softmax(D):
    D = np.column_stack([-D, D]) if D.ndim == 1 else D
    return special.softmax(D, axis=1)


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


class XRFM(BaseEstimator):
    """Defaults on the processor, with a fifth of the training rows for its own choices."""

    def __init__(self, is_number=False):
        self.is_number = is_number

    def fit(self, X, y):
        import xrfm

        X = X.astype(np.float32)
        train, valid = parts(y, self.is_number, 0, test_size=0.2)
        self.classes_, codes = np.unique(y, return_inverse=True)
        y = y.astype(np.float32) if self.is_number else codes
        self.model = xrfm.xRFM(device="cpu", n_threads=1, random_state=0, verbose=False)
        self.model.fit(X[train], y[train], X[valid], y[valid])
        return self

    def predict(self, X):
        if self.is_number:
            return np.ravel(self.model.predict(X.astype(np.float32)))
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X):
        return np.asarray(self.model.predict_proba(X.astype(np.float32)))


def choice(classifier, regressor, is_encoded=True):
    """Return a function that makes one of two estimators."""

    def make(is_number, seed):
        model = (regressor if is_number else classifier)()
        if "random_state" in model.get_params():
            model.set_params(random_state=seed)
        return make_pipeline(encoder(), model) if is_encoded else model

    return make


METHODS = {
    OURS: choice(
        lambda: skrf.KernelMachineClassifier(), lambda: skrf.KernelMachineRegressor(), False
    ),
    PEER: TunedLightGBM,
    "lightgbm": lambda is_number, seed: boosted(is_number),
    "hist-gradient-boosting": choice(
        HistGradientBoostingClassifier, HistGradientBoostingRegressor, False
    ),
    "catboost": CatBoost,
    "xrfm": choice(
        XRFM, lambda: TransformedTargetRegressor(XRFM(True), transformer=StandardScaler())
    ),
    "svc-tuned": TunedSVC,
    "random-forest": choice(
        lambda: RandomForestClassifier(300), lambda: RandomForestRegressor(300)
    ),
    "linear": choice(
        lambda: LogisticRegression(max_iter=2000), lambda: RidgeCV(np.logspace(-2, 4, 13))
    ),
    "ridge-search": choice(skrf.ApproxKernelRidgeClassifierCV, skrf.ApproxKernelRidgeCV),
}
NEEDS = {PEER: "lightgbm", "lightgbm": "lightgbm", "catboost": "catboost", "xrfm": "xrfm"}
MOST_ROWS_OF = {"svc-tuned": 10_000}
