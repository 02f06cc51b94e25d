"""Show what waits in a producer while Kinesis hangs for two minutes: ``./dev bench backlog``.

The benchmark repeats the graphs of FLINK-9374.  A Spark query is faster than its shards.  In the middle, the endpoint
answers no request.  Each case writes the same query: ``kpl`` through the official KPL, ``without_limit`` through a
daemon whose limits have room for two micro-batches, ``with_limit`` through one with a ``queue_limit``.  Kinesis is
the fake, with the limits of real shards.

``run`` makes the runs, ``curves`` computes their figures, ``record`` keeps them and ``picture`` draws them.
``spark_job`` and ``kinesis`` are processes of their own.
"""
