"""What a queue limit does to a job's throughput: ``./dev bench backpressure``.

The graphs of FLINK-9374 once more.  The same Spark query is written through a daemon whose limits have room for more
than a whole micro-batch, so that nothing ever blocks, and through one with ``queue_limit`` 100,000; Kinesis is the
fake, with the limits of real shards.  ``run`` has both runs, ``curves`` what they come to, ``record`` keeps and
``picture`` draws it; ``spark_job`` and ``kinesis`` are processes of their own.
"""
