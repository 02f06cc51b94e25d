"""A fake Kinesis, for the tests of producerd and of its users.

::

    from producerd.testing import FakeKinesis, Fault
    from producerd.testing.fake_kinesis import serve_in_thread

    kinesis = FakeKinesis()
    flights = kinesis.create_stream("flights", shards=4)
    kinesis.script(Fault("throttle", entries=10), Fault("lost"))
    with serve_in_thread(kinesis) as server:
        ...  # a producer whose endpoint_url is server.url
    assert flights.read().dropped_aggregates == 0

`rules` answers requests, after `access` has checked their headers and `validation` their bodies.  `faults` has the ways
to fail.  `streams` stores records, `reading` returns them, and `aggregates` takes them apart as a consumer does.  None
of these uses a clock or a socket.  `fake_kinesis` serves them over HTTP or HTTPS, with an `uplink` of any speed, and
`control` serves tests in other languages and processes.  docs/use/testing.md shows how to use them.  The package needs
the extra ``daemon``.
"""

from producerd.testing.aggregates import UserRecord, deaggregate, hash_of
from producerd.testing.faults import Fault
from producerd.testing.rules import FakeKinesis, Reply
from producerd.testing.streams import Entry, FakeShard, FakeStream, Reading, ServiceError

__all__ = [
    "Entry",
    "FakeKinesis",
    "FakeShard",
    "FakeStream",
    "Fault",
    "Reading",
    "Reply",
    "ServiceError",
    "UserRecord",
    "deaggregate",
    "hash_of",
]
