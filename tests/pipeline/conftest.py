"""One Spark for all tests of the pipeline: a session takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.config import PipelineSettings
from gateway.pipeline import session as sessions
from gateway.pipeline.settings import Pipeline

SPARK = {
    # Less than a minute of work is not worth compiling twice, nor the jars a look at each of their instructions: a
    # fifth of what the JVM costs.
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two threads, with Delta; a task that fails is tried four times."""
    folder: Path = tmp_path_factory.mktemp("spark")
    settings = PipelineSettings(memory="1g", scratch=str(folder))
    pipeline = Pipeline(settings, storage=str(folder / "storage"))
    found = sessions.spark_session(
        pipeline, "local[2,4]", "tests", delta=True, extra={**SPARK, "spark.hadoop.hadoop.tmp.dir": str(folder)}
    )
    yield found
    sessions.close_session(found)
