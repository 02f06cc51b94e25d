"""Drivers with a replay guard are killed, and their checkpoints lose entries."""

from __future__ import annotations

from producerd.demo.children import Children
from tests.faults import spark_job
from tests.faults.oracle import Law
from tests.faults.scenarios import scenario
from tests.faults.stage import Stage


@scenario(
    "the driver of a query with a replay guard is killed 20 times, and its checkpoint loses entries",
    exempt={
        Law.COPIES: "Spark stores what the guard has not recorded again, and no daemon knows of it",
        Law.ORDER: "a repeated batch comes after the batch",
    },
    resends=False,
    recovers_within=60,
    lacks=spark_job.lacks,
)
def replay(stage: Stage) -> None:
    stage.book.shapes[spark_job.SENDER] = spark_job.SHAPE
    with Children(stage.folder, spark_job.environment()) as children:
        guard = (stage.folder / "guard").as_uri()
        job = spark_job.SparkJob(children, stage.folder / "spark", stage.socket, stage.seed, guard)
        for turn in stage.times(20, 3):
            if turn % 2:
                job.wait_for(job.ended + 1)
                stage.wait_a_while(0.0, 1.5)
            else:  # the batch is repeated whole
                job.hold()
            forgets = ("offsets", "commits") if turn % 4 == 3 else ()
            job.kill_and_start_again((2, 4, 4, 2)[turn % 4], forgets=forgets)
        job.wait_for(job.ended + 2)
        job.stop()
    stage.also_sent.append(job.sent)
    written = f"{job.ended:,} batches of {spark_job.ROWS_OF_A_BATCH:,} records"
    stage.notes.append(f"Spark wrote {written}, and left {job.left_out:,} out")
    stage.must(Law.ENDS, not job.failure, f"the query failed: {job.failure}")
    stage.must(Law.ENDS, job.left_out, "no row of a repeated batch was left out")
