"""Options of the JVMs that tests start, each of which lives for seconds."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

SHORT_JVM: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Without a second compiler, and without verifying Spark's classes, a JVM that lives for seconds needs little more than
half of the CPU time."""
QUIET: Final = "-Xlog:cds*=off"
"""A JVM with another class path, such as Spark's launcher, goes without the archive and need not say so."""


@cache
def short_jvm() -> str:
    """Return `SHORT_JVM` and the archive of Spark's classes, with which a JVM needs a third less CPU time again.

    The first caller in an environment makes it, in half a minute.  A Java that can make none goes without.
    """
    try:
        archive = Path(sys.prefix, f"spark-classes-{_java()}.jsa")
        with archive.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                _make(archive)
    except (OSError, subprocess.SubprocessError):  # such as no Java at all, which is the concern of each test of Spark
        return SHORT_JVM
    return f"{SHORT_JVM} {QUIET} -XX:SharedArchiveFile={archive}" if archive.stat().st_size else SHORT_JVM


def _java() -> str:
    """Return a digest of the Java that Spark runs on.  Another Java cannot read the archive."""
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    version = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    return hashlib.sha256(version).hexdigest()[:8]


def _make(archive: Path) -> None:
    new = archive.with_suffix(".new")
    env = dict(
        os.environ,
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_SUBMIT_OPTS=f"{SHORT_JVM} -XX:ArchiveClassesAtExit={new}",
    )
    subprocess.run([sys.executable, "-c", JOB], env=env, capture_output=True, check=True, timeout=300)
    if not new.exists():  # Java cannot, and need not try again
        new.touch()
    new.replace(archive)


JOB: Final = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
rows = spark.range(10).selectExpr("id", "cast(id as string) as name", "array(id) as ids", "struct(id) as it")
rows.foreachPartition(list)
rows.mapInArrow(lambda batches: batches, rows.schema).repartition(2, "id").groupBy("name").count().toPandas()
stream = spark.readStream.format("rate").load().writeStream.foreachBatch(lambda batch, _: batch.collect())
stream.trigger(once=True).start().awaitTermination()
spark.stop()
"""
"""What most tests have Spark do: the classes that it loads are those in the archive."""
