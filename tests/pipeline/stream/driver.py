"""A stream from the log to an exchange, as a process that may be killed at any moment and started again.

``python -m tests.pipeline.stream.driver URL FOLDER BATCH``: it ends when it has read what there is, and prints where
its cursor is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gateway.config import PipelineSettings
from gateway.pipeline import session as sessions
from gateway.pipeline import source
from gateway.pipeline.settings import Pipeline
from gateway.pipeline.source.helpers import write_options

CURSOR = "torture"
SPARK = {
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
}
COLUMNS = ("shard", "sequence", "body", "routing_key", "properties")


def main(url: str, folder: Path, batch: int) -> None:
    """Run it."""
    settings = PipelineSettings(memory="1g", scratch=str(folder / "scratch"), rows_max=max(1, batch // 3))
    pipeline = Pipeline(settings, url=url)
    spark = sessions.spark_session(pipeline, "local[2,4]", "torture", extra=SPARK)
    try:
        checkpoint = folder / "checkpoint"
        stream = source.Stream(
            spark, pipeline, "messages", COLUMNS, cursor=CURSOR, max_rows=batch, owner=f"torture/{checkpoint.name}"
        )
        query = (
            stream.frame.drop("shard", "sequence")
            .writeStream.format("gateway")
            .options(**write_options(pipeline, "orders", "x", chunk_rows="100"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(json.dumps(stream.finish(query)), flush=True)
    finally:
        sessions.close_session(spark)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
