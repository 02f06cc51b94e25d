"""producerd: one backpressured road from the Spark tasks of a node to Amazon Kinesis Data Streams.

The client's side (this file, ``producerd.wire``, ``producerd.errors`` and ``spark_client``) runs on Python 3.9 and
needs only the standard library.  Importing the package imports no other module.
"""

__version__ = "0.2.0"
