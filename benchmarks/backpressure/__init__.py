"""Measure what a queue limit does to a job's throughput: ``./dev bench backpressure``.

The benchmark repeats the graphs of FLINK-9374.  It writes the same Spark query through two daemons.  The limits of one
have room for more than a whole micro-batch, so that no caller ever waits.  The other has ``queue_limit`` 100,000.
Kinesis is the fake, with the limits of real shards.

``run`` makes both runs, ``curves`` computes their figures, ``record`` keeps them and ``picture`` draws them.
``spark_job`` and ``kinesis`` are processes of their own.
"""
