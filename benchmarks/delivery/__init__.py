"""Measure what arrives, how often and how soon, while Kinesis misbehaves: ``./dev bench delivery``.

Each scenario runs against the fake Kinesis over TLS, with a daemon in a process of its own and sessions of the Spark
client.  Every figure is counted: the acknowledgements that sessions receive, the records that the fake stores and when,
and the records that a consumer receives.
"""
