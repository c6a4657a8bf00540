"""Eight UCI classification sets, from local files or from OpenML."""

import csv
import hashlib
import math
import os
import tomllib
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.utils import Bunch

__all__ = ["load_uci"]

_VARIABLE = "SKRF_UCI_DIR"


@dataclass(frozen=True)
class _Dataset:
    """The facts needed to read, check and describe one dataset; see uci.toml."""

    name: str
    title: str
    citation: str
    doi: str
    summary: str
    feature_names: list
    target_name: str
    categorical: list
    # Label -> rows of it in the complete dataset. The type of the labels, int or str, is the type
    # of the target.
    class_counts: dict
    digest: str
    openml_id: int | None = None
    openml_target: str | None = None
    openml_labels: dict = field(default_factory=dict)

    @property
    def n_columns(self):
        return len(self.feature_names) + 1

    @property
    def file_format(self):
        return (
            f"{self.name}.csv is comma-separated without a header line and has {self.n_columns} "
            f"columns: {', '.join(self.feature_names)}, and last the label {self.target_name}."
        )


@cache
def _datasets():
    """Return {name: _Dataset}, in the order of the file."""
    tables = tomllib.loads((resources.files(__package__) / "uci.toml").read_text(encoding="utf-8"))
    for table in tables.values():
        # Pairs in the file, since the keys of a TOML table cannot be integers.
        table["class_counts"] = dict(table["class_counts"])
    return {name: _Dataset(name, **table) for name, table in tables.items()}


def load_uci(
    name: Literal["abalone", "banknote", "car", "yeast", "cmc", "nursery", "wifi", "chess"],
    *,
    data_dir: str | PathLike[str] | None = None,
    return_X_y: bool = False,
    as_frame: bool = False,
    download: bool = False,
) -> Any:
    r"""Load one of the eight UCI classification sets of the random-feature papers.

    The function looks for the file ``<name>.csv`` (comma-separated, no header line, the label in
    the last column) in `data_dir`, then in the folder named by the environment variable
    ``SKRF_UCI_DIR``. If neither has it and `download` is True, it fetches the set from OpenML. The
    library ships no data, and downloads nothing unless asked to.

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
        Folder to look in first. None means only the folder in ``SKRF_UCI_DIR``.
    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of a Bunch.
    as_frame : bool, default=False
        If True, `data` is a pandas DataFrame and `target` a pandas Series. Requires pandas.
    download : bool, default=False
        If True, fetch the set from OpenML if no file is found. scikit-learn keeps the download in
        its own data folder, so it happens only once. Requires pandas. Not possible for ``"wifi"``,
        for which no OpenML number could be verified.

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
            Names of the columns of `data`, from the UCI documentation if it has any.
        target_names : ndarray of shape (n_classes,)
            The labels that occur, sorted, as in the ``classes_`` of a classifier.
        categorical_features : list of int
            Indices of the columns of `data` to be one-hot encoded, as in the papers.
        DESCR : str
            Source, citation, licence and columns.
    (data, target) : tuple
        If `return_X_y` is True: the first two of these.

    Raises
    ------
    ValueError
        If `name` is unknown; if a file has the wrong number of columns, or a cell that its column
        does not allow; or if `download` is True, no file is found and `name` is ``"wifi"``.
    TypeError
        If a parameter has the wrong type.
    FileNotFoundError
        If no file is found and `download` is False.
    ImportError
        If pandas is required but not installed.
    ConnectionError
        If OpenML cannot be reached.
    RuntimeError
        If the data from OpenML has other columns or other numbers of rows per class.

    Warns
    -----
    UserWarning
        If the data from OpenML has the right shape but differs from the UCI file in the value of a
        cell or the order of the rows.

    See Also
    --------
    make_regime : Synthetic pairs.
    sklearn.datasets.fetch_openml : The function that downloads.

    Notes
    -----
    A file is used as it is, and may hold only some of the rows. Blank lines are skipped and blanks
    around cells are removed; missing values do not occur in these sets and are rejected.

    All three sources should give the same rows, columns, spelling and labels: a download is
    converted to UCI's spelling (OpenML labels banknote 1 and 2, for instance) and compared with a
    checksum of the UCI file, so that no difference goes unnoticed.

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
        pandas = _import_pandas("as_frame=True")  # before any reading or download

    path, places = _find_file(name, data_dir)
    if path is not None:
        *columns, labels = _read_csv(path, spec)
    elif download:
        *columns, labels = _fetch(spec)
    else:
        raise FileNotFoundError(_not_found_message(spec, places))

    if as_frame:
        data = pandas.DataFrame(dict(zip(spec.feature_names, columns, strict=True)))
        target = pandas.Series(labels, name=spec.target_name)
    else:
        # Copied, so that each row is contiguous.
        data = np.array(columns, dtype=object if spec.categorical else np.float64).T.copy()
        target = np.array(labels)
    if return_X_y:
        return data, target
    return Bunch(
        data=data,
        target=target,
        feature_names=list(spec.feature_names),
        target_names=np.unique(labels),
        categorical_features=list(spec.categorical),
        DESCR=_description(spec),
    )


def _check_parameters(name, data_dir, **flags):
    allowed = ", ".join(map(repr, _datasets()))
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, one of {allowed}; got {name!r}")
    if name not in _datasets():
        raise ValueError(f"name must be one of {allowed}; got {name!r}")
    if not (data_dir is None or isinstance(data_dir, str | os.PathLike)):
        raise TypeError(f"data_dir must be a str, a path-like object or None; got {data_dir!r}")
    for flag, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{flag} must be True or False; got {value!r}")
    return _datasets()[name]


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
    """Return the path of the first file found, or None, and a description of where it looked."""
    folders = {"data_dir": data_dir, f"the variable {_VARIABLE}": os.environ.get(_VARIABLE)}
    places = []
    for origin, folder in folders.items():
        if not folder:
            places.append(f"{origin} is not set")
            continue
        path = Path(folder).expanduser() / f"{name}.csv"
        if path.is_file():
            return path, places
        places.append(f"{origin} gives {str(path)!r}, which is not a file")
    return None, places


def _not_found_message(spec, places):
    if spec.openml_id is None:
        download = f"download=True, which works for other names, but not for {spec.name!r}"
    else:
        download = f"pass download=True to fetch OpenML dataset {spec.openml_id}"
    return (
        f"No file for name={spec.name!r}: {'; '.join(places)}. There are three ways to give it: "
        f"(1) pass data_dir, a folder that holds {spec.name}.csv; "
        f"(2) set the environment variable {_VARIABLE} to such a folder; "
        f"(3) {download}. {spec.file_format} The original is at https://doi.org/{spec.doi}."
    )


def _description(spec):
    categorical = [spec.feature_names[j] for j in spec.categorical]
    numeric = [column for column in spec.feature_names if column not in categorical]
    return (
        f"{spec.title} ({spec.name})\n\n{spec.summary}\n\n"
        f"Complete set: {sum(spec.class_counts.values())} rows, {len(spec.feature_names)} "
        f"features, {len(spec.class_counts)} classes\n"
        f"Numeric columns: {', '.join(numeric) or 'none'}\n"
        f"Categorical columns: {', '.join(categorical) or 'none'}\n"
        f"Label: {spec.target_name}\n"
        f"Source: UCI Machine Learning Repository, https://doi.org/{spec.doi}\n"
        f"Citation: {spec.citation}\n"
        "Licence: CC BY 4.0\n"
    )


# ---- Reading: both ways return a list of columns, label last, which _parse brings into one form


def _read_csv(path, spec):
    source = repr(str(path))
    # utf-8-sig: files saved by a spreadsheet may begin with a byte order mark.
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    if not rows:
        raise ValueError(f"{source} has no rows. {spec.file_format}")
    for i, row in enumerate(rows, start=1):
        if len(row) != spec.n_columns:
            raise ValueError(
                f"{source}: row {i} has {len(row)} columns, {spec.n_columns} are expected "
                f"for name={spec.name!r}. {spec.file_format}"
            )
    return _parse(zip(*rows, strict=True), spec, source)


def _fetch(spec):
    if spec.openml_id is None:
        raise ValueError(
            f"download=True is not possible for name={spec.name!r}: no OpenML dataset is verified "
            f"to hold it. Download the file from https://doi.org/{spec.doi}, save it as "
            f"{spec.name}.csv, and pass its folder as data_dir or set the environment variable "
            f"{_VARIABLE}. {spec.file_format}"
        )
    # Without pandas, fetch_openml replaces nominal values by their codes and loses the spelling.
    _import_pandas("download=True")
    from sklearn.datasets import fetch_openml

    source = f"OpenML dataset {spec.openml_id}"
    try:
        # target_column=None keeps the label in the frame, where it is then read by name. Of the
        # two parsers this one keeps nominal values as the strings in the file; the other turns
        # nominal digits into numbers, and then fails on them with pandas 3.
        frame = fetch_openml(
            data_id=spec.openml_id, target_column=None, as_frame=True, parser="liac-arff"
        ).frame
    except OSError as error:
        raise ConnectionError(
            f"download=True could not fetch {source} for name={spec.name!r}: {error}. Without a "
            f"connection, pass data_dir or set the environment variable {_VARIABLE} to a folder "
            f"that holds {spec.name}.csv."
        ) from error

    found = [str(column) for column in frame.columns]
    if spec.openml_target not in found or len(found) != spec.n_columns:
        raise RuntimeError(
            f"{source} for name={spec.name!r} must have {spec.n_columns} columns with the label "
            f"in {spec.openml_target!r}; it has {found}."
        )
    # Features are read by position: OpenML renames columns but keeps UCI's order, and the digest
    # below detects if it ever does not.
    columns = [frame.iloc[:, j].tolist() for j in range(len(found))]
    labels = [_text(label) for label in columns.pop(found.index(spec.openml_target))]
    columns.append([spec.openml_labels.get(label, label) for label in labels])
    try:
        columns = _parse(columns, spec, source)
    except ValueError as error:
        raise RuntimeError(f"{source} is not what name={spec.name!r} expects: {error}") from error

    counts = Counter(columns[-1])
    if counts != spec.class_counts:
        raise RuntimeError(
            f"{source} for name={spec.name!r} must have {sum(spec.class_counts.values())} rows "
            f"with the classes {spec.class_counts}; it has {counts.total()} rows with "
            f"{dict(sorted(counts.items()))}."
        )
    if _digest(columns) != spec.digest:
        warnings.warn(
            f"{source} for name={spec.name!r} has the expected shape and classes, but differs "
            "from the UCI file in values or in the order of the rows; results may differ from "
            "those on a file.",
            stacklevel=3,  # the caller of load_uci
        )
    return columns


def _parse(columns, spec, source):
    """Return the columns as lists of float, of str or, the last one, of labels."""
    # A label outside the known classes means a header line, a column too few at the front, or
    # another dataset; reading on would only make the mistake harder to find.
    label_of = {str(label): label for label in spec.class_counts}
    # For each column: what reads a cell, giving None for one not allowed, and what is allowed.
    kinds = [(_number, "a finite number")] * len(spec.feature_names)
    for j in spec.categorical:
        kinds[j] = (lambda cell: _text(cell) or None, "a non-empty string")
    kinds.append((lambda cell: label_of.get(_text(cell)), f"one of {', '.join(label_of)}"))

    names = [*spec.feature_names, spec.target_name]
    parsed = []
    for column, name, (parse, allowed) in zip(columns, names, kinds, strict=True):
        values = [parse(cell) for cell in column]
        if None in values:
            i = values.index(None)
            raise ValueError(
                f"{source}: column {name!r}, row {i + 1} must be {allowed}; got {column[i]!r}. "
                "The data have no header line and no missing values."
            )
        parsed.append(values)
    return parsed


def _number(cell):
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _text(cell):
    """Spell a cell as the UCI file does, whatever type a reader made of it."""
    if isinstance(cell, str):
        return cell.strip().strip("'\"")
    if cell is None or cell != cell:  # a missing value: None or NaN
        return ""
    # A column of digits may arrive as 1.0 instead of "1".
    return str(int(cell)) if float(cell).is_integer() else str(cell)


def _digest(columns):
    """Return the SHA-256 of the rows, each cell spelt as Python spells it."""
    lines = [",".join(map(repr, row)) + "\n" for row in zip(*columns, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
