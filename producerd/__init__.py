"""producerd: one backpressured road from the Spark tasks of a node to Amazon Kinesis Data Streams.

This file and everything that the client side needs (``producerd.wire``, ``producerd.errors``, ``spark_client``) run on
Python 3.9 with the standard library alone; importing the package imports nothing else.
"""

__version__ = "0.2.0"
