"""What arrives, how often and how soon, while the service misbehaves: ``./dev bench delivery``.

Each scenario runs against the fake Kinesis over TLS, with a daemon in a process of its own and sessions of the Spark
client.  Every figure is counted: what the sessions were told, what the fake stored and when, and what a consumer is
handed of it.
"""
