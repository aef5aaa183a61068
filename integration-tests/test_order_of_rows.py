"""Which operators may see their rows in any order: one query with an operator for each case."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cec_it.decisions import decide, events

ORDER = "is not known to be independent of the order of rows"
ROUNDED = "adds floating-point numbers, whose rounding depends on the order of rows"
DEFERRED = ""

FUNCTIONS = {
    # aggregate function: words of the reason why it is eager; none if it is deferred
    "count(*)": DEFERRED,
    "count(seq, amount)": DEFERRED,
    "count_if(amount > 5)": DEFERRED,
    "sum(amount)": DEFERRED,
    "sum(amount) FILTER (WHERE seq > 5)": DEFERRED,
    "sum(x)": f"sum of double {ROUNDED}",
    "sum(CAST(amount AS DECIMAL(28, 3)))": DEFERRED,
    "sum(CAST(amount AS DECIMAL(7, 3)))": DEFERRED,
    "sum(CAST(amount AS DECIMAL(29, 3)))": "sum of decimal(29,3) may overflow",
    "try_sum(amount)": "try_sum is null after an overflow",
    "try_sum(x)": f"try_sum of double {ROUNDED}",
    "avg(amount)": f"avg of bigint {ROUNDED}; cast to int",
    "avg(x)": f"avg of double {ROUNDED}",
    "avg(CAST(amount AS TINYINT))": DEFERRED,
    "avg(CAST(amount AS SMALLINT))": DEFERRED,
    "avg(CAST(amount AS INT))": DEFERRED,
    "avg(CAST(amount AS FLOAT))": f"avg of float {ROUNDED}",
    "avg(CAST(amount AS DECIMAL(11, 2)))": f"avg of decimal(11,2) {ROUNDED}; cast to decimal(12,2)",
    "avg(CAST(amount AS DECIMAL(12, 2)))": DEFERRED,
    "avg(make_dt_interval(0, 0, 0, amount))": DEFERRED,
    "avg(CAST(amount AS DECIMAL(38, 18)))": "avg of decimal(38,18) may overflow",
    "min(ts)": DEFERRED,
    "max(word)": DEFERRED,
    "max(x)": DEFERRED,
    "max(struct(amount, word))": DEFERRED,
    "max(struct(amount, x))": "0.0 and -0.0 are equal",
    "max(array(x))": "0.0 and -0.0 are equal",
    "max(word COLLATE UTF8_LCASE)": "values may be equal with other bytes",
    "min(struct(word COLLATE UNICODE_CI))": "values may be equal with other bytes",
    "max(word COLLATE UTF8_BINARY)": DEFERRED,
    "bit_and(amount)": DEFERRED,
    "bit_or(amount)": DEFERRED,
    "bit_xor(amount)": DEFERRED,
    "bool_and(amount > 1)": DEFERRED,
    "some(amount > 1)": DEFERRED,
    "stddev(amount)": f"stddev {ORDER}",
    "stddev_pop(amount)": f"stddev_pop {ORDER}",
    "variance(amount)": f"variance {ORDER}",
    "var_pop(amount)": f"var_pop {ORDER}",
    "skewness(amount)": f"skewness {ORDER}",
    "kurtosis(amount)": f"kurtosis {ORDER}",
    "corr(amount, seq)": f"corr {ORDER}",
    "covar_pop(amount, seq)": f"covar_pop {ORDER}",
    "covar_samp(amount, seq)": f"covar_samp {ORDER}",
    "regr_count(amount, seq)": DEFERRED,
    "regr_avgx(amount, seq)": f"regr_avgx: avg of bigint {ROUNDED}",
    "regr_sxx(amount, seq)": f"regr_sxx: regrreplacement {ORDER}",
    "regr_sxy(amount, seq)": f"regr_sxy {ORDER}",
    "regr_r2(amount, seq)": f"regr_r2 {ORDER}",
    "regr_slope(amount, seq)": f"regr_slope {ORDER}",
    "regr_intercept(amount, seq)": f"regr_intercept {ORDER}",
    "approx_count_distinct(amount)": DEFERRED,
    "first(seq)": f"first {ORDER}",
    "any_value(seq)": f"any_value: first {ORDER}",
    "last_value(seq)": f"last_value {ORDER}",
    "max_by(seq, amount)": f"max_by {ORDER}",
    "min_by(seq, amount)": f"min_by {ORDER}",
    "collect_list(seq)": f"collect_list {ORDER}",
    "collect_set(seq)": f"collect_set {ORDER}",
    "listagg(word)": f"listagg {ORDER}",
    "mode(seq)": f"mode {ORDER}",
    "percentile(amount, 0.5)": f"percentile {ORDER}",
    "median(amount)": f"median: percentile {ORDER}",
    "approx_percentile(amount, 0.5)": f"approx_percentile {ORDER}",
    "histogram_numeric(x, 5)": f"histogram_numeric {ORDER}",
    "count_min_sketch(amount, 0.5D, 0.5D, 1)": f"count_min_sketch {ORDER}",
    "hll_sketch_agg(amount)": f"hll_sketch_agg {ORDER}",
    "theta_sketch_agg(amount)": f"theta_sketch_agg {ORDER}",
    "bitmap_construct_agg(amount)": f"bitmap_construct_agg {ORDER}",
    "approx_top_k(amount)": f"approx_top_k {ORDER}",
    "product(x)": f"product {ORDER}",
}


def typed(spark: SparkSession, root: Path) -> DataFrame:
    rows = events(spark, root).withWatermark("ts", "10 seconds")
    return rows.withColumns({"x": f.expr("CAST(amount AS DOUBLE)"), "word": f.expr("CAST(seq AS STRING)")})


def windows(rows: DataFrame, function: str = "count(*)") -> DataFrame:
    result = f.product("x") if function == "product(x)" else f.expr(function)
    grouped = rows.groupBy(f.window("ts", "10 seconds"), "key").agg(result.alias("result"))
    return grouped.select("key", f.expr("CAST(result IS NULL AS STRING)").alias("result"))


def all_of(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames)


def reasons(decided: dict[str, object]) -> list[tuple[bool, str]]:
    operators = decided["operators"]
    assert isinstance(operators, list)
    return [(each["deferred"], each["reason"]) for each in operators]


def compare(cases: dict[str, str], decided: dict[str, object]) -> None:
    """Every case must be as the table has it: by the order of the operators."""
    found = reasons(decided)
    assert len(found) == len(cases)
    wrong = {
        case: (wanted, got)
        for (case, wanted), got in zip(cases.items(), found, strict=True)
        if got[0] != (wanted == DEFERRED) or wanted not in got[1]
    }
    assert not wrong


def test_aggregate_functions(spark: SparkSession, tmp_path: Path) -> None:
    def build(own: SparkSession, root: Path) -> DataFrame:
        return all_of([windows(typed(own, root), function) for function in FUNCTIONS])

    compare(FUNCTIONS, decide(spark, tmp_path, build, "append", {}))


def pass_on(chunks: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from chunks


def pass_on_arrow(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from chunks


def fed_by(rows: DataFrame) -> dict[str, tuple[DataFrame, str]]:
    """Nodes below an aggregation, and why it is then eager."""
    schema = rows.schema
    other = "which is not known to give the same rows"
    arrays = rows.withColumn("pair", f.array("amount", "seq"))
    return {
        "union": (rows.unionByName(rows), DEFERRED),
        "explode": (arrays.withColumn("one", f.explode("pair")), DEFERRED),
        "posexplode outer": (arrays.select("*", f.posexplode_outer("pair")), DEFERRED),
        "inline": (rows.selectExpr("*", "inline(array(struct(amount, seq)))"), DEFERRED),
        "stack": (rows.selectExpr("*", "stack(2, amount, seq)"), DEFERRED),
        "repartition": (rows.repartition(3), DEFERRED),
        "repartition by": (rows.repartition(3, "key"), DEFERRED),
        "hint": (rows.hint("rebalance"), DEFERRED),
        "fixed table": (rows.join(rows.sparkSession.range(50).toDF("key"), "key", "left"), DEFERRED),
        "mapInPandas": (rows.mapInPandas(pass_on, schema), f"it is fed by MapInPandas, {other}"),
        "mapInArrow": (rows.mapInArrow(pass_on_arrow, schema), f"it is fed by MapInArrow, {other}"),
        "applyInPandas": (
            rows.groupBy("key").applyInPandas(lambda group: group, schema),
            f"it is fed by FlatMapGroupsInPandas, {other}",
        ),
        "fixed table, cut": (
            rows.join(rows.sparkSession.range(50).toDF("key").limit(3), "key"),
            f"Limit, {other}",
        ),
        "fixed table, sampled": (
            rows.join(rows.sparkSession.range(50).toDF("key").sample(0.5, seed=1), "key"),
            f"it is fed by Sample, {other}",
        ),
    }


def test_nodes_below_an_operator(spark: SparkSession, tmp_path: Path) -> None:
    cases: dict[str, str] = {}

    def build(own: SparkSession, root: Path) -> DataFrame:
        fed = fed_by(events(own, root).withWatermark("ts", "10 seconds"))
        cases.update({name: reason for name, (_, reason) in fed.items()})
        return all_of([windows(rows) for rows, _ in fed.values()])

    compare(cases, decide(spark, tmp_path, build, "append", {}))


KEYS = {
    "key": DEFERRED,
    "x": DEFERRED,
    "word": DEFERRED,
    "word COLLATE UTF8_LCASE": "may be equal with other bytes",
    "struct(key, word COLLATE UNICODE_CI)": "may be equal with other bytes",
    "map(key, amount)": "it has a map in its key",
}


@pytest.mark.parametrize("operator", ["groupBy", "dropDuplicates", "distinct"])
def test_keys(spark: SparkSession, tmp_path: Path, operator: str) -> None:
    cases = {key: reason for key, reason in KEYS.items() if operator == "groupBy" or "map" not in key}

    def build(own: SparkSession, root: Path) -> DataFrame:
        rows = typed(own, root)
        keyed = [rows.select(f.expr(key).alias("k"), f.window("ts", "10 seconds").alias("w")) for key in cases]
        if operator == "groupBy":
            done = [each.groupBy("k", "w").count() for each in keyed]
        elif operator == "distinct":
            rest = [rows.select(f.expr(key).alias("k"), "ts") for key in cases]
            own_sql = []
            for number, each in enumerate(rest):
                each.createOrReplaceTempView(f"keyed{number}")
                own_sql.append(own.sql(f"SELECT DISTINCT k, ts FROM keyed{number}"))
            done = own_sql
        else:
            done = [each.dropDuplicates() for each in keyed]
        return all_of([each.select(f.lit(1).alias("one")) for each in done])

    compare(cases, decide(spark, tmp_path, build, "append", {}))
