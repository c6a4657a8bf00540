"""Parquet: files that are larger than memory, on one machine."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from skrf import KernelRegressor, OptimalPositiveRF

COLUMNS = ["a", "b", "c"]


def write(folder):
    """Write the files; elsewhere they are there."""
    for number in range(3):
        X = np.random.default_rng(number).normal(number, size=(20_000, 3))
        table = dict(zip(COLUMNS, X.T, strict=True)) | {"y": np.sin(X[:, 0]) + X[:, 1]}
        pq.write_table(pa.table(table), folder / f"{number}.parquet", row_group_size=10_000)


def batches(folder):
    """Return batches that are read when they are wanted, the same ones in every pass."""
    for path in sorted(folder.glob("*.parquet")):
        for rows in pq.ParquetFile(path).iter_batches(batch_size=5_000):
            table = pa.table(rows)
            yield table.select(COLUMNS), table["y"].to_numpy()


model = KernelRegressor(OptimalPositiveRF(64, sigma="scale", random_state=0))
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write(folder)
    model.fit_batches(lambda: batches(folder), verbose=1)
    table = pq.read_table(folder)  # which elsewhere does not fit

X, y = table.select(COLUMNS), table["y"].to_numpy()
predicted = model.predict(X)
assert abs(predicted - model.fit(X, y).predict(X)).max() < 1e-12
