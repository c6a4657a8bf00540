"""The data on which the papers report: eight UCI classification sets and four regimes of pairs."""

import csv
import hashlib
import math
import os
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import Bunch, check_random_state

__all__ = ["load_uci", "make_regime"]

REGIMES = ("normal", "sphere", "shifted", "digits")

_ENVIRONMENT_VARIABLE = "SKRF_UCI_DIR"


@dataclass(frozen=True)
class _Dataset:
    """What has to be known about one dataset to read, check and describe it."""

    title: str
    citation: str
    doi: str
    summary: str
    feature_names: tuple
    target_name: str
    categorical: tuple
    # Rows of each class in the complete dataset. The keys are the allowed labels, and their type
    # (int or str) is the type of the target.
    class_counts: dict
    # SHA-256 of the complete dataset in canonical spelling (see _digest); tells whether a
    # download holds the same rows in the same order as the UCI file.
    digest: str
    openml_id: int | None = None
    openml_target: str | None = None
    # OpenML's spelling of a label -> UCI's, where the two differ.
    openml_labels: dict = field(default_factory=dict)
    licence: str = "CC BY 4.0"

    @property
    def n_rows(self):
        return sum(self.class_counts.values())

    @property
    def n_columns(self):
        return len(self.feature_names) + 1


# Written several to a line, since one to a line would fill a page.
# fmt: off
_RING_COUNTS = {
    1: 1, 2: 1, 3: 15, 4: 57, 5: 115, 6: 259, 7: 391, 8: 568, 9: 689, 10: 634, 11: 487, 12: 267,
    13: 203, 14: 126, 15: 103, 16: 67, 17: 58, 18: 42, 19: 32, 20: 26, 21: 14, 22: 6, 23: 9, 24: 2,
    25: 1, 26: 1, 27: 2, 29: 1,
}
_DEPTH_COUNTS = {
    "draw": 2796, "zero": 27, "one": 78, "two": 246, "three": 81, "four": 198, "five": 471,
    "six": 592, "seven": 683, "eight": 1433, "nine": 1712, "ten": 1985, "eleven": 2854,
    "twelve": 3597, "thirteen": 4194, "fourteen": 4553, "fifteen": 2166, "sixteen": 390,
}
# fmt: on

# OpenML keeps several versions of some of these sets under one name, with other rows or classes;
# a number names one version for good. For wifi no number could be verified, so it has none: a
# guessed one might load another dataset.
_DATASETS = {
    "abalone": _Dataset(
        title="Abalone",
        citation=(
            "Nash, W., Sellers, S., Talbot, S., Cawthorn, A. and Ford, W. (1994). Abalone "
            "[Dataset]. UCI Machine Learning Repository."
        ),
        doi="10.24432/C55C7W",
        summary=(
            "Shell rings of abalones, to be told from seven measurements and the sex "
            "(M male, F female, I infant). UCI poses it as regression; here each count of rings "
            "is a class, and five of the 28 classes have one row."
        ),
        feature_names=(
            "Sex",
            "Length",
            "Diameter",
            "Height",
            "Whole_weight",
            "Shucked_weight",
            "Viscera_weight",
            "Shell_weight",
        ),
        target_name="Rings",
        categorical=(0,),
        class_counts=_RING_COUNTS,
        digest="f43c3cce31dfbe0915033e1ec04c3c9a7093cd32c964bdc25d7b3540dba17b67",
        openml_id=183,
        openml_target="Class_number_of_rings",
    ),
    "banknote": _Dataset(
        title="Banknote Authentication",
        citation=(
            "Lohweg, V. (2012). Banknote Authentication [Dataset]. UCI Machine Learning Repository."
        ),
        doi="10.24432/C55P57",
        summary=(
            "Genuine and forged banknotes (usually read as 0 genuine, 1 forged), to be told apart "
            "from four statistics of the wavelet-transformed image."
        ),
        feature_names=("variance", "skewness", "curtosis", "entropy"),
        target_name="class",
        categorical=(),
        class_counts={0: 762, 1: 610},
        digest="935c78bcdb0ffa90245729633dd5ad3ef6978c1f59980a9c084085764231827b",
        openml_id=1462,
        openml_target="Class",
        openml_labels={"1": "0", "2": "1"},
    ),
    "car": _Dataset(
        title="Car Evaluation",
        citation=("Bohanec, M. (1988). Car Evaluation [Dataset]. UCI Machine Learning Repository."),
        doi="10.24432/C5JP48",
        summary=(
            "Acceptability of cars by six properties in words; all combinations of their values, "
            "each once."
        ),
        feature_names=("buying", "maint", "doors", "persons", "lug_boot", "safety"),
        target_name="class",
        categorical=(0, 1, 2, 3, 4, 5),
        class_counts={"acc": 384, "good": 69, "unacc": 1210, "vgood": 65},
        digest="37d5dd05913297f0f247cd1c1f732f85e869f26279a69a1ad73823f1a7e0bb1e",
        openml_id=21,
        openml_target="class",
    ),
    "yeast": _Dataset(
        title="Yeast",
        citation="Nakai, K. (1991). Yeast [Dataset]. UCI Machine Learning Repository.",
        doi="10.24432/C5KG68",
        summary=(
            "Sites to which proteins of yeast are localised, to be told from eight scores. The "
            "sequence name, UCI's first column, identifies the row and is left out."
        ),
        feature_names=("mcg", "gvh", "alm", "mit", "erl", "pox", "vac", "nuc"),
        target_name="localization_site",
        categorical=(),
        class_counts={
            "CYT": 463,
            "ERL": 5,
            "EXC": 35,
            "ME1": 44,
            "ME2": 51,
            "ME3": 163,
            "MIT": 244,
            "NUC": 429,
            "POX": 20,
            "VAC": 30,
        },
        digest="3519afcb5a16fe7284a1007273bc1abadbdf28d6a0e2a3d84d62cc41bcf0fd6e",
        openml_id=181,
        openml_target="class_protein_localization",
    ),
    "cmc": _Dataset(
        title="Contraceptive Method Choice",
        citation=(
            "Lim, T.-S. (1997). Contraceptive Method Choice [Dataset]. "
            "UCI Machine Learning Repository."
        ),
        doi="10.24432/C59W2D",
        summary=(
            "Contraceptive method (1 none, 2 long-term, 3 short-term) of married women. All nine "
            "columns are integer codes and are treated as numbers, as in the papers; to one-hot "
            "encode the coded ones as well, name columns 1, 2, 6 and 7 yourself (columns 4, 5 "
            "and 8 are binary, so it changes nothing for them)."
        ),
        feature_names=(
            "wife_age",
            "wife_edu",
            "husband_edu",
            "num_children",
            "wife_religion",
            "wife_working",
            "husband_occupation",
            "standard_of_living_index",
            "media_exposure",
        ),
        target_name="contraceptive_method",
        categorical=(),
        class_counts={1: 629, 2: 333, 3: 511},
        digest="d15b67e7233173b40c062eb4ba3f07305aca6b10e2c846739bf59ba70a7c7076",
        openml_id=23,
        openml_target="Contraceptive_method_used",
    ),
    "nursery": _Dataset(
        title="Nursery",
        citation=(
            "Rajkovic, V. and others (1989). Nursery [Dataset]. UCI Machine Learning Repository."
        ),
        doi="10.24432/C5P88W",
        summary=(
            "Ranks of applications for nursery schools by eight properties in words; all "
            "combinations of their values, each once. The class 'recommend' has two rows only, "
            "so a stratified split into three or more folds warns."
        ),
        feature_names=(
            "parents",
            "has_nurs",
            "form",
            "children",
            "housing",
            "finance",
            "social",
            "health",
        ),
        target_name="class",
        categorical=(0, 1, 2, 3, 4, 5, 6, 7),
        class_counts={
            "not_recom": 4320,
            "priority": 4266,
            "recommend": 2,
            "spec_prior": 4044,
            "very_recom": 328,
        },
        digest="5194aee165227e6fa91a9c9b48027f3e8a0942c6f6aa438c6d2b65adba039b0c",
        openml_id=26,
        openml_target="class",
    ),
    "wifi": _Dataset(
        title="Wireless Indoor Localization",
        citation=(
            "Bhatt, R. (2017). Wireless Indoor Localization [Dataset]. "
            "UCI Machine Learning Repository."
        ),
        doi="10.24432/C51880",
        summary=(
            "The room, 1 to 4, in which a phone is, to be told from the signal strengths of seven "
            "wireless networks in dBm. UCI gives the columns no names; these are ours."
        ),
        feature_names=tuple(f"signal_{i}" for i in range(1, 8)),
        target_name="room",
        categorical=(),
        class_counts={1: 500, 2: 500, 3: 500, 4: 500},
        digest="1f44985f6b363c92821733cb8ba99c5e1985daa97217f90106403d9bf73ecc4d",
    ),
    "chess": _Dataset(
        title="Chess (King-Rook vs. King)",
        citation=(
            "Bain, M. and van Hoff, A. (1994). Chess (King-Rook vs. King) [Dataset]. "
            "UCI Machine Learning Repository."
        ),
        doi="10.24432/C57W2S",
        summary=(
            "Moves that White, with king and rook, needs to beat the black king with Black to "
            "move, or 'draw'; file krkopt.data. Files are the letters a to h and ranks the "
            "digits 1 to 8; both are treated as categories, as in the papers."
        ),
        feature_names=(
            "white_king_file",
            "white_king_rank",
            "white_rook_file",
            "white_rook_rank",
            "black_king_file",
            "black_king_rank",
        ),
        target_name="depth_of_win",
        categorical=(0, 1, 2, 3, 4, 5),
        class_counts=_DEPTH_COUNTS,
        digest="a76856ea1cd5e9f0f988274e0821a91df07f867bf2d5cd11ca39923c4875d3d7",
        openml_id=184,
        openml_target="game",
    ),
}


def load_uci(name, *, data_dir=None, return_X_y=False, as_frame=False, download=False):
    r"""Load one of the eight UCI classification sets of the random-feature papers.

    The file ``<name>.csv`` (comma-separated, no header line, the label in the last column) is
    looked for in `data_dir`, then in the folder that the environment variable ``SKRF_UCI_DIR``
    names. Where neither has it and `download` is True, the set is fetched from OpenML. No data
    come with this library, and nothing is downloaded unless asked for.

    ========  ======  ==========================  =======  ==================
    name      rows    features                    classes  labels
    ========  ======  ==========================  =======  ==================
    abalone    4,177  7 numeric, 1 categorical         28  rings, 1-27 and 29
    banknote   1,372  4 numeric                         2  0, 1
    car        1,728  6 categorical                     4  strings
    yeast      1,484  8 numeric                        10  strings
    cmc        1,473  9 numeric (integer codes)         3  1, 2, 3
    nursery   12,960  8 categorical                     5  strings
    wifi       2,000  7 numeric                         4  1, 2, 3, 4
    chess     28,056  6 categorical                    18  strings
    ========  ======  ==========================  =======  ==================

    Parameters
    ----------
    name : {"abalone", "banknote", "car", "yeast", "cmc", "nursery", "wifi", "chess"}
        The dataset.
    data_dir : str or path-like, default=None
        Folder to look in first. None means the folder in ``SKRF_UCI_DIR`` alone.
    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.
    as_frame : bool, default=False
        If True, `data` is a pandas DataFrame and `target` a pandas Series. Needs pandas.
    download : bool, default=False
        If True, fetch the set from OpenML where no file is found. scikit-learn keeps the
        download in its own data folder, so that it is made once. Needs pandas. Not possible for
        ``"wifi"``, for which no OpenML number could be verified.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        data : ndarray or DataFrame of shape (n_samples, n_features)
            A float64 array if all columns are numeric, otherwise an object array whose
            categorical columns hold strings and whose other columns hold floats.
        target : ndarray or Series of shape (n_samples,)
            The labels: integers or strings, as in the table above.
        feature_names : list of str
            Names of the columns of `data`: those of the UCI documentation where it has any.
        target_names : ndarray of shape (n_classes,)
            The labels that occur, sorted, as in the ``classes_`` of a classifier.
        categorical_features : list of int
            Indices of the columns of `data` to be one-hot encoded. These are the columns that
            the papers encode.
        DESCR : str
            Source, citation, licence and columns.
    (data, target) : tuple
        If `return_X_y` is True: the first two of these.

    Raises
    ------
    ValueError
        If `name` is unknown; if a file has another number of columns, or a cell that its column
        does not allow; if `download` is True, no file is found and `name` is ``"wifi"``.
    TypeError
        If a parameter has the wrong type.
    FileNotFoundError
        If no file is found and `download` is False.
    ImportError
        If pandas is needed and not installed.
    ConnectionError
        If OpenML cannot be reached.
    RuntimeError
        If what OpenML sends has other columns or other numbers of rows per class.

    Warns
    -----
    UserWarning
        If what OpenML sends has the right shape but differs from the UCI file in the value of a
        cell or the order of the rows.

    Notes
    -----
    A file is taken as it is: it may hold some of the rows only. Blank lines are skipped and
    blanks around cells are removed; missing values do not occur in these sets and are refused.

    The three ways are meant to give the same rows, columns, spelling and labels: a download is
    brought to UCI's spelling (banknote is labelled 1 and 2 at OpenML, for instance) and compared
    with a checksum of the UCI file, so that no difference passes unnoticed.

    References
    ----------
    .. [1] Kelly, M., Longjohn, R. and Nottingham, K. The UCI Machine Learning Repository.
    .. [2] Vanschoren, J., van Rijn, J. N., Bischl, B. and Torgo, L. (2013). OpenML: networked
       science in machine learning. SIGKDD Explorations 15(2), 49-60.

    Examples
    --------
    The first two rows of a set, written to a folder and read from there:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from skrf.datasets import load_uci
    >>> rows = "M,0.455,0.365,0.095,0.514,0.2245,0.101,0.15,15\n"
    >>> rows += "M,0.35,0.265,0.09,0.2255,0.0995,0.0485,0.07,7\n"
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "abalone.csv").write_text(rows)
    ...     abalone = load_uci("abalone", data_dir=folder)
    >>> abalone.data.shape, abalone.feature_names[:2], abalone.categorical_features
    ((2, 8), ['Sex', 'Length'], [0])
    >>> abalone.target
    array([15,  7])
    """
    spec = _check_parameters(
        name, data_dir, return_X_y=return_X_y, as_frame=as_frame, download=download
    )
    if as_frame:
        _import_pandas("as_frame=True")  # before the work of reading, or a download

    path, places = _find_file(name, data_dir)
    if path is not None:
        columns, labels = _read_csv(path, name, spec)
    elif download:
        columns, labels = _fetch(name, spec)
    else:
        raise FileNotFoundError(_not_found_message(name, spec, places))

    data, target = (_to_frame if as_frame else _to_arrays)(columns, labels, spec)
    if return_X_y:
        return data, target
    return Bunch(
        data=data,
        target=target,
        feature_names=list(spec.feature_names),
        target_names=np.unique(labels),
        categorical_features=list(spec.categorical),
        DESCR=_description(name, spec),
    )


def make_regime(regime, n_samples=256, *, sigma=1.0, random_state=None):
    """Return queries and keys of 64 columns, drawn as in the papers' study of variances.

    Parameters
    ----------
    regime : {"normal", "sphere", "shifted", "digits"}
        Standard normal rows; rows uniform on the unit sphere; normal rows whose keys have mean 1 in
        every column (called heterogen in the source); images of handwritten digits, 8 x 8, with
        grey values in [0, 1].
    n_samples : int, default=256
        Number of queries, and of keys.
    sigma : float, default=1.0
        All rows are multiplied by it.
    random_state : int, RandomState instance or None, default=None
        Source of the rows.

    Returns
    -------
    X, Y : ndarray of shape (n_samples, 64)
        Queries and keys.

    Raises
    ------
    ValueError
        If the regime is not one of the four.

    References
    ----------
    Likhosherstov et al., Chefs' random tables (2022), section 5.1. Digits stand in for MNIST.

    Examples
    --------
    >>> from skrf.datasets import make_regime
    >>> X, Y = make_regime("shifted", 1000, random_state=0)
    >>> X.shape, round(float(Y.mean() - X.mean()), 1)
    ((1000, 64), 1.0)
    """
    if regime not in REGIMES:
        raise ValueError(f"regime must be one of {', '.join(map(repr, REGIMES))}; got {regime!r}")
    rng = check_random_state(random_state)
    if regime == "digits":
        images = load_digits().data / 16
        X, Y = (images[rng.randint(len(images), size=n_samples)] for _ in range(2))
    else:
        X, Y = rng.normal(size=(2, n_samples, 64))
        if regime == "sphere":
            X, Y = (Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in (X, Y))
        elif regime == "shifted":
            Y = Y + 1
    return sigma * X, sigma * Y


def _check_parameters(name, data_dir, **flags):
    allowed = ", ".join(repr(known) for known in _DATASETS)
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, one of {allowed}; got {name!r}")
    if name not in _DATASETS:
        raise ValueError(f"name must be one of {allowed}; got {name!r}")
    if not (data_dir is None or isinstance(data_dir, str | os.PathLike)):
        raise TypeError(f"data_dir must be a str, a path-like object or None; got {data_dir!r}")
    for flag, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{flag} must be True or False; got {value!r}")
    return _DATASETS[name]


def _import_pandas(reason):
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            f"{reason} needs pandas, which is not installed. Install pandas, or read a file into "
            "arrays with as_frame=False and download=False."
        ) from error
    return pandas


def _find_file(name, data_dir):
    """Return the path of the first file found, or None, and the places looked at, in words."""
    variable = os.environ.get(_ENVIRONMENT_VARIABLE)
    candidates = [("data_dir", data_dir), (f"the variable {_ENVIRONMENT_VARIABLE}", variable)]
    places = []
    for origin, folder in candidates:
        if not folder:
            places.append(f"{origin} is not set")
            continue
        path = Path(folder).expanduser() / f"{name}.csv"
        if path.is_file():
            return path, places
        places.append(f"{origin} gives {str(path)!r}, which is no file")
    return None, places


def _not_found_message(name, spec, places):
    download = (
        f"(3) pass download=True to fetch OpenML dataset {spec.openml_id}"
        if spec.openml_id is not None
        else f"(3) download=True, which works for other names, but not for {name!r}"
    )
    return (
        f"No file for name={name!r}: {'; '.join(places)}. There are three ways to give it: "
        f"(1) pass data_dir, a folder that holds {name}.csv; "
        f"(2) set the environment variable {_ENVIRONMENT_VARIABLE} to such a folder; {download}. "
        f"{_file_format(name, spec)} The original is at https://doi.org/{spec.doi}."
    )


def _file_format(name, spec):
    return (
        f"{name}.csv is comma-separated without a header line and has {spec.n_columns} columns: "
        f"{', '.join(spec.feature_names)}, and last the label {spec.target_name}."
    )


# ---- Reading: both ways end in lists of columns that _parse brings to one form


def _read_csv(path, name, spec):
    # utf-8-sig: files saved by a spreadsheet may begin with a byte order mark.
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    if not rows:
        raise ValueError(f"{str(path)!r} has no rows. {_file_format(name, spec)}")
    for i, row in enumerate(rows, start=1):
        if len(row) != spec.n_columns:
            raise ValueError(
                f"{str(path)!r}: row {i} has {len(row)} columns, {spec.n_columns} are expected "
                f"for name={name!r}. {_file_format(name, spec)}"
            )
    *columns, labels = zip(*rows, strict=True)
    return _parse(columns, labels, spec, repr(str(path)))


def _fetch(name, spec):
    if spec.openml_id is None:
        raise ValueError(
            f"download=True is not possible for name={name!r}: no OpenML dataset is verified to "
            f"hold it. Take the file from https://doi.org/{spec.doi}, save it as {name}.csv, and "
            f"pass its folder as data_dir or set the environment variable "
            f"{_ENVIRONMENT_VARIABLE}. {_file_format(name, spec)}"
        )
    # Without pandas, fetch_openml replaces nominal values by their codes and loses the spelling.
    _import_pandas("download=True")
    from sklearn.datasets import fetch_openml

    source = f"OpenML dataset {spec.openml_id}"
    try:
        # target_column=None keeps the label in the frame, where it is then taken by name. Of the
        # two parsers this one leaves nominal values the strings that they are in the file; the
        # other makes numbers of nominal digits, and with pandas 3 it then fails on them.
        frame = fetch_openml(
            data_id=spec.openml_id, target_column=None, as_frame=True, parser="liac-arff"
        ).frame
    except OSError as error:
        raise ConnectionError(
            f"download=True could not fetch {source} for name={name!r}: {error}. Without a "
            f"connection, pass data_dir or set the environment variable {_ENVIRONMENT_VARIABLE} "
            f"to a folder that holds {name}.csv."
        ) from error

    found = [str(column) for column in frame.columns]
    if spec.openml_target not in found or len(found) != spec.n_columns:
        raise RuntimeError(
            f"{source} for name={name!r} must have {spec.n_columns} columns with the label in "
            f"{spec.openml_target!r}; it has {found}."
        )
    # The features are taken by position: OpenML renames columns but keeps UCI's order, and the
    # digest below notices if it ever does not.
    columns = [frame.iloc[:, j].tolist() for j in range(len(found))]
    labels = [_text(label) for label in columns.pop(found.index(spec.openml_target))]
    labels = [spec.openml_labels.get(label, label) for label in labels]
    try:
        columns, labels = _parse(columns, labels, spec, source)
    except ValueError as error:
        raise RuntimeError(f"{source} is not what name={name!r} expects: {error}") from error

    counts = Counter(labels.tolist())
    if counts != spec.class_counts:
        raise RuntimeError(
            f"{source} for name={name!r} must have {spec.n_rows} rows with the classes "
            f"{spec.class_counts}; it has {len(labels)} rows with {dict(sorted(counts.items()))}."
        )
    if _digest(columns, labels) != spec.digest:
        warnings.warn(
            f"{source} for name={name!r} has the expected shape and classes, but differs from "
            "the UCI file in values or in the order of the rows; results may differ from those "
            "on a file.",
            UserWarning,
            stacklevel=3,  # the caller of load_uci
        )
    return columns, labels


def _parse(columns, labels, spec, source):
    """Return columns as float64 arrays or lists of str, and labels as an int or str array."""
    parsed = [
        _parse_column(column, name, _category if j in spec.categorical else _number, source)
        for j, (column, name) in enumerate(zip(columns, spec.feature_names, strict=True))
    ]
    # A label outside the known classes means a header line, a column too few at the front, or
    # another dataset; reading on would only make the mistake harder to find.
    label_of = {str(label): label for label in spec.class_counts}

    def known_label(cell):
        try:
            return label_of[_text(cell)]
        except KeyError:
            raise ValueError(f"one of {', '.join(label_of)}") from None

    labels = np.asarray(_parse_column(labels, spec.target_name, known_label, source))
    numeric = [
        column if j in spec.categorical else np.asarray(column, dtype=np.float64)
        for j, column in enumerate(parsed)
    ]
    return numeric, labels


def _parse_column(column, name, parse, source):
    values = []
    for i, cell in enumerate(column, start=1):
        try:
            values.append(parse(cell))
        except ValueError as allowed:
            raise ValueError(
                f"{source}: column {name!r}, row {i} must be {allowed}; got {cell!r}. The data "
                "have no header line and no missing values."
            ) from None
    return values


# Each of the parsers below names, in its ValueError, what it allows.


def _number(cell):
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a finite number")
    return value


def _category(cell):
    text = _text(cell)
    if not text:
        raise ValueError("a non-empty string")
    return text


def _text(cell):
    """Spell a cell as the UCI file does, whatever type a reader made of it."""
    if isinstance(cell, str):
        return cell.strip().strip("'\"")
    if cell is None or cell != cell:  # a missing value: None or NaN
        return ""
    # A column of digits may arrive as 1.0 instead of "1".
    return str(int(cell)) if float(cell).is_integer() else str(cell)


def _digest(columns, labels):
    cells = [[repr(cell) for cell in _as_list(column)] for column in (*columns, labels)]
    digest = hashlib.sha256()
    for row in zip(*cells, strict=True):
        digest.update(",".join(row).encode() + b"\n")
    return digest.hexdigest()


def _as_list(column):
    # tolist turns NumPy scalars into Python ones, whose repr is the same in every NumPy version.
    return column.tolist() if isinstance(column, np.ndarray) else column


# ---- What the user gets


def _to_arrays(columns, labels, spec):
    if not spec.categorical:
        return np.column_stack(columns), labels
    data = np.empty((len(labels), len(columns)), dtype=object)
    for j, column in enumerate(columns):
        data[:, j] = column
    return data, labels


def _to_frame(columns, labels, spec):
    pandas = _import_pandas("as_frame=True")
    data = pandas.DataFrame(dict(zip(spec.feature_names, columns, strict=True)))
    return data, pandas.Series(_as_list(labels), name=spec.target_name)


def _description(name, spec):
    categorical = [spec.feature_names[j] for j in spec.categorical]
    numeric = [column for column in spec.feature_names if column not in categorical]
    lines = [
        f"{spec.title} ({name})",
        "",
        spec.summary,
        "",
        f"Complete set: {spec.n_rows} rows, {len(spec.feature_names)} features, "
        f"{len(spec.class_counts)} classes",
        f"Numeric columns: {', '.join(numeric) or 'none'}",
        f"Categorical columns: {', '.join(categorical) or 'none'}",
        f"Label: {spec.target_name}",
        f"Source: UCI Machine Learning Repository, https://doi.org/{spec.doi}",
        f"Citation: {spec.citation}",
        f"Licence: {spec.licence}",
    ]
    return "\n".join(lines) + "\n"
