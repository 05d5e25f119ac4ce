"""What operators may write, and what they may not."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from gateway.errors import BadFilter
from gateway.pipeline.expressions import LENGTH_MAX, checked_filter, checked_transform
from gateway.pipeline.schema import MESSAGES, ddl

SCHEMA = ddl(MESSAGES)

GOOD = (
    "routing_key = 'a'",
    "true",
    "exists(array(1, 2), each -> each = size)",
    "get_json_object(properties, '$.properties.type') = 'x' AND size BETWEEN 1 AND 3",
    "accepted_at >= TIMESTAMP '2026-11-01 00:00:00Z' -- since then",
    "unix_timestamp(accepted_at) > 1",
)
BAD = {
    "": "is empty",
    " " * (LENGTH_MAX + 1) + "true": "may have 20,000",
    "routing_key =": "is no expression",
    "SELECT 1": "is no expression",
    "true; DROP TABLE x": "is no expression",
    "1": "does not fit",
    "routing_key": "is not a boolean",
    "nope = 1": "cannot be resolved",
    "count(1) > 1": "does not fit",
    "row_number() OVER (ORDER BY size) = 1": "does not fit",
    "size = :x": "does not fit",
    "EXISTS (SELECT 1)": "has a subquery",
    "size IN (SELECT 1)": "has a subquery",
    "(SELECT max(1)) = 1": "has a subquery",
    "no_such(1) = 1": "no function of Spark's own",
    "my.function(1) = 1": "no function of Spark's own",
    "java_method('java.lang.System', 'exit', 0) = 1": "calls into Java",
    "rand() < 0.5": "rand says something else each time",
    "current_timestamp > accepted_at": "current_timestamp says something else each time",
    "upper(uuid()) = 'X'": "uuid says something else each time",
    "current_user = 'x'": "current_user says something else each time",
}
"""Filter -> what is said of it."""
GOOD_QUERIES = (
    "SELECT * FROM messages;",
    "WITH large AS (SELECT * FROM messages WHERE size > 9) SELECT * FROM large -- all of them",
    "SELECT * FROM (SELECT * FROM messages) each",
)
BAD_QUERIES = {
    "SELEC * FROM messages": "is no query",
    "SELECT * FROM messages; DROP TABLE x": "is no query",
    "SELECT * FROM messages) UNION (SELECT * FROM messages": "is no query",
    "DROP TABLE x": "but a command",
    "SELECT * FROM parquet.`/etc`": "reads the table messages and nothing else",
    "SELECT * FROM gateway_messages": "reads the table messages and nothing else",
    "WITH a AS (SELECT * FROM other) SELECT * FROM a": "reads the table messages and nothing else",
    "SELECT * FROM range(10)": "reads the table messages and nothing else",
    "SELECT TRANSFORM(size) USING 'cat' AS (x) FROM messages": "reads the table messages and nothing else",
    "INSERT INTO x SELECT * FROM messages": "",
    "SELECT (SELECT 1) AS a FROM messages": "has a subquery",
    "SELECT reflect('java.lang.System', 'exit', 0) FROM messages": "calls into Java",
    "SELECT rand() AS a FROM messages": "rand says something else each time",
    "SELECT nope FROM messages": "cannot be resolved",
}
"""Query -> what is said of it."""


def test_filters(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    for text in GOOD:
        assert checked_filter(spark, text, SCHEMA) == text
    for text, said in BAD.items():
        with pytest.raises(BadFilter) as caught:
            checked_filter(spark, text, SCHEMA)
        assert said in str(caught.value), text
        assert len(str(caught.value)) < 700
    assert capfd.readouterr().err == "", "what is refused is said in a sentence, and not in the log"


def test_transforms(spark: SparkSession) -> None:
    for text in GOOD_QUERIES:
        assert [name for name, _ in checked_transform(spark, text, SCHEMA)][:2] == ["shard", "sequence"]
    for text, said in BAD_QUERIES.items():
        with pytest.raises(BadFilter) as caught:
            checked_transform(spark, text, SCHEMA)
        assert said in str(caught.value), text
