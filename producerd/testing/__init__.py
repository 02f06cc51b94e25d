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

`rules` answer, once `validation` has checked; `faults` fail; `streams` store, and `reading` reads; `aggregates` is what
a consumer makes of a record; `access` judges headers.  None of these knows a clock or a socket.  `fake_kinesis` puts
them behind HTTP or HTTPS, with an `uplink` as slow as asked for, and `control` for other languages and processes.
docs/testing.md shows how to use it all.  Needs the extra ``daemon``.
"""

from producerd.testing.aggregates import UserRecord, deaggregate, hash_of
from producerd.testing.faults import Fault
from producerd.testing.rules import FakeKinesis, Reply
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
