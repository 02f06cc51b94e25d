"""A fake Kinesis for tests, producerd's own and its users'.

::

    from producerd.testing import FakeKinesis, Fault
    from producerd.testing.fake_kinesis import serve_in_thread

    kinesis = FakeKinesis()
    flights = kinesis.create_stream("flights", shards=4)
    kinesis.script(Fault("throttle", entries=10), Fault("lost"))
    with serve_in_thread(kinesis) as server:
        ...  # a producer whose endpoint_url is server.url
    assert flights.read().dropped_aggregates == 0

`rules` answers and fails, `streams` stores and reads, `aggregates` is what a consumer makes of a record: none of the
three knows a clock or a socket.  `fake_kinesis` puts them behind HTTP or HTTPS.  Needs the extra ``daemon``.
"""

from producerd.testing.aggregates import UserRecord, deaggregate, hash_of
from producerd.testing.rules import FakeKinesis, Fault, Reply
from producerd.testing.streams import Entry, Reading, ServiceError, Shard, Stream

__all__ = [
    "Entry",
    "FakeKinesis",
    "Fault",
    "Reading",
    "Reply",
    "ServiceError",
    "Shard",
    "Stream",
    "UserRecord",
    "deaggregate",
    "hash_of",
]
