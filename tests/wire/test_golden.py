"""What earlier minor versions wrote is read, and answered, as it was: the golden frames of `tests.wire.golden`.

A daemon takes clients of its own and of the previous minor version (docs/operate/install.md).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire import messages
from producerd.wire.machine import frame_id_of
from producerd.wire.messages import MessageType
from tests.daemon import WireClient, daemon, directory, until
from tests.spark_client.fake_daemon import Session, fake_daemon
from tests.wire import golden
from tests.wire.golden import DAEMON, FOLDER, LATER, MINOR, Golden, Rows

VERSIONS = sorted(path.name for path in FOLDER.iterdir() if (path / "messages.txt").exists())
MESSAGES = [
    pytest.param(each, id=f"{version}: {each.name}")
    for version in VERSIONS
    for each in golden.read(FOLDER / version / "messages.txt")
]


def test_this_minor_version_and_the_one_before_it_have_golden_frames() -> None:
    """``python -m tests.wire.golden`` writes the frames of a new version."""
    major, minor = map(int, MINOR.split("."))
    first = 1 if major == 0 else 0
    assert {f"{major}.{number}" for number in range(max(first, minor - 1), minor + 1)} <= set(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_type_of_message_is_among_them(version: str) -> None:
    seen = {each.data[0] for each in golden.read(FOLDER / version / "messages.txt")}
    later = {MessageType.FIGURES} if version in ("0.1", "0.2") else set()
    assert seen == set(MessageType) - later


@pytest.mark.promise("earlier-version-wrote")
@pytest.mark.law("wire")
@pytest.mark.parametrize("each", MESSAGES)
def test_what_an_earlier_version_wrote_is_read_as_it_was_meant(each: Golden) -> None:
    assert golden.decoded(each.data) == each.message


@pytest.mark.promise("earlier-version-wrote")
@pytest.mark.law("wire")
@pytest.mark.parametrize("each", [each for each in MESSAGES if LATER not in str(each.id)])
def test_the_same_message_is_written_in_the_same_bytes(each: Golden) -> None:
    assert golden.encoded(each.message).hex() == each.data.hex()


@pytest.mark.promise("earlier-version-wrote", "release-acknowledges-another-stored")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_daemon_serves_a_client_of_an_earlier_version(version: str) -> None:
    """Send the recorded bytes of that client.  The answers must still say the same of its rows."""
    kinesis = FakeKinesis()
    flights = kinesis.create_stream("flights", shards=1)
    session = golden.read(FOLDER / version / "session.txt")
    with serve_in_thread(kinesis) as server, daemon(server.url) as running:
        with WireClient(running.socket) as client:
            for said in session:
                if not said.name.startswith(DAEMON):
                    client.send(said.data)
                    continue
                answer = client.read()
                assert type(answer) is type(said.message)
                if isinstance(answer, messages.Ack):
                    assert replace(answer, judged=b"") == said.message
            assert client.read_to_end() == []
        until(lambda: running.metrics()["client_disconnects_total[closed]"] == 1)
    sent = [row for said in session if isinstance(said.message, Rows) for row in said.message.rows]
    assert sorted(record.data.decode() for record in flights.read().records) == sorted(
        data for _, data, _ in sent if data is not None
    )


@pytest.mark.promise("earlier-version-wrote", "release-acknowledges-another-stored")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_understands_a_daemon_of_an_earlier_version(version: str) -> None:
    """Byte for byte what that daemon said, to the client of today in the same session."""
    kept = golden.read(FOLDER / version / "session.txt")

    def script(session: Session) -> None:
        for said in kept:
            if not said.name.startswith(DAEMON):
                heard = session.read()
                assert isinstance(said.message, Rows) or type(heard) is type(said.message)
                continue
            assert not isinstance(said.message, Rows)
            session.machine.sent(MessageType(said.data[0]), frame_id_of(said.message))
            session.socket.sendall(said.data)

    with directory() as folder, fake_daemon(folder / "s") as old:
        old.runs(script)
        tally, reason = golden.talk(str(folder / "s"))
    acks = [said.message for said in kept if isinstance(said.message, messages.Ack)]
    (blocked,) = (said.message for said in kept if isinstance(said.message, messages.Blocked))
    assert tally.records == sum(ack.records for ack in acks)
    assert tally.stored == sum(ack.stored for ack in acks) == tally.records - 1
    (failure,) = tally.failures
    assert failure.rows == (tally.records - 1,)
    assert failure.code == next(code.code for ack in acks for code in ack.codes)
    assert blocked.reason in reason
