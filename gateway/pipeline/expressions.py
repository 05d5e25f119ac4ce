"""What operators write in SQL: a filter, which is one expression, and a transform, which is one query.

Both are taken apart by Spark's own parser before anything is read, and every node of the tree is looked at. What a
message is published or left out for must depend on that message alone, and be the same when the job goes on after it
was killed. So functions are Spark's own, none of them calls Java or looks at the clock, the dice or who is asking, and
a filter has no subquery. A transform reads the one table it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import BadFilter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LENGTH_MAX: Final = 20_000
"""Longest filter or transform, in characters."""
TABLE: Final = "messages"
"""The table that a transform reads."""
JAVA: Final = frozenset({"java_method", "reflect", "try_reflect"})
"""Functions that call any method of the JVM."""
CHANGING: Final = ("Current", "LocalTimestamp", "Now")
"""How nodes of a tree are named that say something else the next time, beside those that Spark itself calls random."""
CATALYST: Final = "org.apache.spark.sql.catalyst"
SUBQUERY: Final = f"{CATALYST}.expressions.PlanExpression"
COMMAND: Final = f"{CATALYST}.plans.logical.Command"
ELSEWHERE: Final = frozenset({"UnresolvedTableValuedFunction", "UnresolvedTVFAliases", "ScriptTransformation"})
"""Nodes that get rows from elsewhere, or send them there."""
NAMED_MAX: Final = 80
"""Most characters of the input that are repeated."""


def checked_filter(spark: SparkSession, text: str, schema: str) -> str:
    """A filter over rows of this schema (DDL), as it was given.

    Raises:
        BadFilter: it is no expression, is not true or false, names a column that there is not, or uses what it may not.
    """
    parser = _parser(spark, text, "filter")
    try:
        tree = parser.parseExpression(text)
    except Exception as error:
        raise BadFilter(f"the filter {_shown(text)} is no expression: {_reason(error)}") from None
    _check(spark, tree, "filter")
    from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it

    try:
        with _silence():
            found = _empty(spark, schema).where(F.expr(text))
    except Exception as error:
        raise BadFilter(f"the filter {_shown(text)} does not fit: {_reason(error)}") from None
    _check_steady(spark, found, "filter")
    return text


def checked_transform(spark: SparkSession, text: str, schema: str) -> list[tuple[str, str]]:
    """The columns, name and type, of what a transform makes of messages of this schema (DDL).

    Raises:
        BadFilter: it is no query, or not over the table :data:`TABLE` alone, or uses what it may not.
    """
    parser = _parser(spark, text, "transform")
    try:
        tree = parser.parsePlan(text)
    except Exception as error:
        raise BadFilter(f"the transform is no query: {_reason(error)}") from None
    _check(spark, tree, "transform")
    try:
        with _silence():
            found = transformed(spark, text, _empty(spark, schema))
    except Exception as error:
        raise BadFilter(f"the transform does not fit: {_reason(error)}") from None
    _check_steady(spark, found, "transform")
    return found.dtypes


def transformed(spark: SparkSession, text: str, messages: DataFrame) -> DataFrame:
    """What a transform, which was checked, makes of messages."""
    view = "gateway_messages"
    messages.createOrReplaceTempView(view)
    query = f"WITH {TABLE} AS (SELECT * FROM {view}) SELECT * FROM (\n{text.strip().rstrip(';')}\n)"  # noqa: S608
    return spark.sql(query)  # what was written was taken apart before


def _parser(spark: SparkSession, text: str, what: str) -> Any:
    if not text.strip():
        raise BadFilter(f"the {what} is empty")
    if len(text) > LENGTH_MAX:
        raise BadFilter(f"the {what} has {len(text):,} characters, and may have {LENGTH_MAX:,}")
    return spark._jsparkSession.sessionState().sqlParser()


def _check(spark: SparkSession, tree: Any, what: str) -> None:
    """Look at every node."""
    jvm_is = _instance(spark)
    own = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    tables = {TABLE}
    nodes = list(_nodes(tree, jvm_is))
    for node, name in nodes:
        if name == "SubqueryAlias" and what == "transform":
            tables.add(node.alias())
    for node, name in nodes:
        if jvm_is(node, SUBQUERY):
            raise BadFilter(f"the {what} has a subquery, which is not allowed in one")
        if jvm_is(node, COMMAND):
            raise BadFilter(f"the {what} is no query but a command ({name})")
        if name == "UnresolvedFunction":
            _check_function([str(node.nameParts().apply(i)) for i in range(node.nameParts().size())], own, what)
        elif name == "UnresolvedRelation":
            parts = [str(node.multipartIdentifier().apply(i)) for i in range(node.multipartIdentifier().size())]
            if len(parts) != 1 or parts[0] not in tables:
                raise BadFilter(f"a {what} reads the table {TABLE} and nothing else, not {_shown('.'.join(parts))}")
        elif name in ELSEWHERE:
            raise BadFilter(f"a {what} reads the table {TABLE} and nothing else, and has no {name}")


def _check_function(parts: list[str], own: set[str], what: str) -> None:
    name = parts[-1].lower()
    if len(parts) > 1 or name not in own:
        raise BadFilter(f"{_shown('.'.join(parts))} is no function of Spark's own, and a {what} uses no others")
    if name in JAVA:
        raise BadFilter(f"the function {name} calls into Java, and a {what} may not")


def _check_steady(spark: SparkSession, frame: DataFrame, what: str) -> None:
    """Refuse what would say something else the next time: the tree with all names resolved shows it."""
    jvm_is = _instance(spark)
    for node, name in _nodes(frame._jdf.queryExecution().analyzed(), jvm_is):
        if not jvm_is(node, f"{CATALYST}.expressions.Expression"):
            continue
        below = node.children()
        steady = node.deterministic() or not all(below.apply(place).deterministic() for place in range(below.size()))
        if not steady or name.startswith(CHANGING):
            raise BadFilter(
                f"{node.prettyName()} says something else each time, and a {what} must not: the same job may run again"
            )


def _nodes(tree: Any, jvm_is: Any) -> Iterator[tuple[Any, str]]:
    """All nodes of a tree of Spark's parser: plans, their expressions, and what is under names of their own."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node, node.getClass().getSimpleName()
        below = [node.children()]
        if jvm_is(node, f"{CATALYST}.plans.QueryPlan"):
            below += [node.expressions(), node.innerChildren()]
        for each in below:
            for place in range(each.size()):
                child = each.apply(place)
                if jvm_is(child, f"{CATALYST}.trees.TreeNode"):
                    waiting.append(child)


def _instance(spark: SparkSession) -> Any:
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # it has no types

    gateway = spark.sparkContext._gateway
    return lambda node, kind: is_instance_of(gateway, node, kind)


@contextmanager
def _silence() -> Iterator[None]:
    """Spark writes what it refuses to the log, with all of its stack; we say it in a sentence."""
    logger = logging.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _empty(spark: SparkSession, schema: str) -> DataFrame:
    return spark.createDataFrame([], schema)


def _reason(error: Exception) -> str:
    """The sentence of an error of Spark's."""
    text = str(error).strip().splitlines()
    return next((line for line in text if line.strip()), type(error).__name__)[:500]


def _shown(text: str) -> str:
    short = text if len(text) <= NAMED_MAX else f"{text[:NAMED_MAX]}..."
    return repr(short)
