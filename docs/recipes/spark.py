"""Spark: mapInPandas turns tables into pickled models, and treeReduce merges them."""

import pickle

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from sklearn.frozen import FrozenEstimator

from skrf import ApproxKernelRidge, RFFSampler
from skrf.statistics import PairStatistics

MAP, COLUMNS = RFFSampler(64, sigma="scale", random_state=0), ["a", "b", "c"]


def total(table, of_table):
    """Merge what a function makes of the tables of Arrow that Spark sends to Python."""

    def pickled(tables):
        for own in tables:
            yield pd.DataFrame({"part": [pickle.dumps(of_table(own))]})

    parts = table.mapInPandas(pickled, "part binary").rdd.map(lambda row: pickle.loads(row.part))
    return parts.treeReduce(lambda one, other: one.merge(other))


rows = pd.DataFrame(np.random.default_rng(0).normal(size=(20_000, 3)), columns=COLUMNS)
rows["y"] = np.sin(2 * rows["a"]) + rows["b"]

spark = SparkSession.builder.master("local[2]").getOrCreate()
table = spark.createDataFrame(rows).repartition(4)  # elsewhere: spark.read.parquet(...)
statistics = total(table, lambda own: PairStatistics.of(own[COLUMNS].to_numpy()))
frozen = FrozenEstimator(MAP.fit_statistics(statistics))
model = total(table, lambda own: ApproxKernelRidge(frozen).fit(own[COLUMNS], own["y"]))
spark.stop()

expected = ApproxKernelRidge(MAP).fit(rows[COLUMNS], rows["y"])
assert abs(model.predict(rows[COLUMNS]) - expected.predict(rows[COLUMNS])).max() < 1e-9
