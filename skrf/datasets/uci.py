"""Eight UCI classification sets, from local files or from OpenML."""

import os
import tomllib
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError

import numpy as np
from sklearn.datasets import fetch_openml
from sklearn.utils import Bunch

__all__ = ["load_uci"]

_VARIABLE = "SKRF_UCI_DIR"


@cache
def _facts():
    """Return {name: what uci.toml says of it}."""
    return tomllib.loads((resources.files(__package__) / "uci.toml").read_text(encoding="utf-8"))


def load_uci(
    name: Literal["abalone", "banknote", "car", "yeast", "cmc", "nursery", "wifi", "chess"],
    *,
    data_dir: str | PathLike[str] | None = None,
    return_X_y: bool = False,
    download: bool = False,
) -> Any:
    r"""Load one of the eight UCI classification sets used in the random-feature papers.

    The function looks for the file ``<name>.csv`` (comma-separated, no header line, the label in
    the last column) in `data_dir`, then in the folder named by the environment variable
    ``SKRF_UCI_DIR``. If neither has it and `download` is True, it fetches the set from OpenML. The
    library ships no data, and downloads nothing unless asked to. It reads the rows with pandas.

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
    download : bool, default=False
        If True, fetch the set from OpenML if no file is found. scikit-learn keeps the download in
        its own data folder, so it happens only once. Not possible for ``"wifi"``, for which no
        OpenML dataset could be verified.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        data : ndarray of shape (n_samples, n_features)
            A float64 array if all columns are numeric, otherwise an object array whose
            categorical columns hold strings and whose other columns hold floats.
        target : ndarray of shape (n_samples,)
            The labels: integers or strings, as in the table above.
        feature_names : list of str
            Names of the columns of `data`, from the UCI documentation if it has any.
        categorical_features : list of int
            Indices of the columns of `data` to be one-hot encoded, as in the papers.
    (data, target) : tuple
        Returned if `return_X_y` is True: the first two of these.

    Raises
    ------
    ValueError
        If `name` is unknown; if a file or download has no rows, the wrong number of columns, or a
        value that its column does not allow; or if ``"wifi"`` is to be downloaded.
    FileNotFoundError
        If no file is found and `download` is False.
    ImportError
        If pandas is not installed.
    ConnectionError
        If the download fails.

    See Also
    --------
    make_regime : Synthetic pairs.
    sklearn.datasets.fetch_openml : The function that downloads.

    Notes
    -----
    A file is used as it is, and may hold only some of the rows. Blank lines are skipped, and
    whitespace around values is stripped. Downloads are converted to UCI's spelling.

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
    if name not in _facts():
        raise ValueError(f"name must be one of {', '.join(map(repr, _facts()))}, got {name!r}.")
    facts, path = _facts()[name], None
    for folder in (data_dir, os.environ.get(_VARIABLE)):
        if path is None and folder and (Path(folder).expanduser() / f"{name}.csv").is_file():
            path = Path(folder).expanduser() / f"{name}.csv"
    if path is not None:
        source, frame = repr(str(path)), _read_file(path)
    elif download:
        source, frame = "OpenML", _fetch(name, facts)
    else:
        raise FileNotFoundError(
            f"No file {name}.csv in data_dir={data_dir!r}, nor in the folder that the environment "
            f"variable {_VARIABLE} names, {os.environ.get(_VARIABLE)!r}. Put it into either, or "
            f"pass download=True. The original is at https://doi.org/{facts['doi']}."
        )
    *columns, target = _columns(frame, facts, f"{source}, name={name!r}")
    # Copied, so that each row is contiguous.
    data = np.array(columns, dtype=object if facts["categorical"] else np.float64).T.copy()
    if return_X_y:
        return data, np.array(target)
    return Bunch(
        data=data,
        target=np.array(target),
        feature_names=list(facts["feature_names"]),
        categorical_features=list(facts["categorical"]),
    )


def _read_file(path):
    """Return the rows of a file as text."""
    from pandas import read_csv

    # utf-8-sig: files saved by a spreadsheet may begin with a byte order mark.
    text = {"dtype": str, "keep_default_na": False, "encoding": "utf-8-sig"}
    try:
        return read_csv(path, header=None, skipinitialspace=True, **text)
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {error}") from error


def _fetch(name, facts):
    """Return the rows from OpenML, with labels in the spelling of UCI."""
    if "openml_id" not in facts:
        raise ValueError(
            f"download=True is not possible for name={name!r}: no OpenML dataset is verified to "
            f"hold it. Save the file from https://doi.org/{facts['doi']} as {name}.csv."
        )
    # The label stays in the frame, where it is read by name. The other parser turns nominal digits
    # into numbers.
    options = {"target_column": None, "as_frame": True, "parser": "liac-arff"}
    try:
        frame = fetch_openml(data_id=facts["openml_id"], **options).frame
    except URLError as error:
        raise ConnectionError(
            f"{name!r} could not be downloaded from OpenML: {error}. Without a network, save the "
            f"file from https://doi.org/{facts['doi']} as {name}.csv in data_dir."
        ) from error
    labels = _text(frame.pop(facts["openml_target"]))
    return frame.assign(label=labels.replace(facts.get("openml_labels", {})))


def _columns(frame, facts, source):
    """Return columns of floats, of strings and of labels, or raise and name a wrong cell."""
    from pandas import to_numeric

    names = [*facts["feature_names"], "label"]
    if frame.shape[1] != len(names):
        raise ValueError(
            f"{source}: rows must have {len(names)} columns without a header line, "
            f"{', '.join(names)}; got {frame.shape[1]}."
        )
    label_of, columns = {str(label): label for label in facts["classes"]}, []
    for j, (name, (_, cells)) in enumerate(zip(names, frame.items(), strict=True)):
        if name == "label":
            values, allowed = _text(cells).map(label_of), f"one of {', '.join(label_of)}"
        elif j in facts["categorical"]:
            values, allowed = _text(cells).replace("", None), "text"
        else:
            values, allowed = to_numeric(cells, errors="coerce"), "a finite number"
            values = values.where(np.isfinite(values))
        if values.isna().any():
            row = int(values.isna().argmax())
            raise ValueError(
                f"{source}: {name} in row {row + 1} must be {allowed}, got {cells.iloc[row]!r}."
            )
        columns.append(values.tolist())
    return columns


def _text(cells):
    """Return cells as the UCI file spells them; a column of digits may arrive as 1.0."""
    return cells.convert_dtypes().astype(str).str.strip(" '\"")
