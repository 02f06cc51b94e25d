"""What a row costs Spark's Python workers on each way into Kinesis, and a tiny micro-batch: ``./dev bench spark``.

All ways begin with the same rows, made by the JVM, and end in the same raw sink, which answers PutRecords at once:
`foreachPartition` with boto3 as people write it by hand, and producerd's.

What is measured is in `benchmarks.spark.cost`.
"""
