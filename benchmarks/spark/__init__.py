"""Measure the CPU time of Spark's Python workers per row on each way into Kinesis: ``./dev bench spark``.

All ways begin with the same rows, which the JVM makes, and end in the same sink, which answers PutRecords at once.  One
way is `foreachPartition` with boto3 as people write it by hand; the others use producerd.  The benchmark also measures
the time for a tiny micro-batch.  `benchmarks.spark.cost` says what CPU time includes.
"""
