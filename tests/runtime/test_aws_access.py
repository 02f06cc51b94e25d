"""A real daemon reaches streams of several accounts with keys that rotate, and asks no more of AWS than documented."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from producerd.ctl.daemon import AdminClient
from producerd.errors import Outcome
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer
from tests.daemon import ROOT, conserved, daemon, data_of, one, rows, session, until
from tests.runtime.aws.leaky import EXTERNAL_ID, KEY, OF_STS, TOKEN, lines_with_secrets, service
from tests.runtime.aws.local_aws import local_aws, secret_of
from tests.runtime.serving import in_thread

ROLE = "arn:aws:iam::210987654321:role/producer"


def write_keys(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret_of(key)}\n")


@pytest.mark.promise("daemon-credentials-says")
def test_a_daemon_without_credentials_says_so_before_the_first_client(server: FakeServer) -> None:
    with daemon(server.url, environ={"AWS_EC2_METADATA_DISABLED": "true"}) as running:
        until(lambda: "credentials failed" in running.log, "it warns")
        assert "Unable to locate credentials" in running.log


@pytest.mark.promise("keys-rotated-restart")
@pytest.mark.slow
def test_keys_are_rotated_without_a_restart_and_everything_is_delivered(kinesis: FakeKinesis, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", "A")
    with in_thread(lambda: local_aws(kinesis)) as aws:
        aws.keys = {"A"}
        environ = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys")}
        with daemon(aws.url, environ=environ) as running, session(running) as client:
            client.put(rows(100, name="before"))
            assert client.acks()[0].stored == 100
            aws.keys = {"B"}
            client.put(rows(100, name="between"))
            until(lambda: aws.refused.total() >= 2, "A is refused")
            write_keys(tmp_path / "keys", "B")
            client.put(rows(100, name="after"))
            assert [(ack.stored, ack.possible_duplicates) for ack in client.acks(2)] == [(100, 0)] * 2
            assert conserved(running.metrics())
        assert aws.used["B"] >= 1
    stored = {entry.data for entry in kinesis.streams["flights"].entries()}
    assert stored == {data for name in ("before", "between", "after") for data in data_of(rows(100, name=name))}


def test_one_daemon_sends_to_streams_of_two_accounts(kinesis: FakeKinesis, tmp_path: Path) -> None:
    theirs = FakeKinesis()
    theirs.create_stream("flights")
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": secret_of("testing")}
    with in_thread(lambda: local_aws(kinesis)) as here, in_thread(lambda: local_aws(theirs)) as there:
        there.role, there.external_id = ROLE, "42"
        sets: dict[str, Any] = {
            "region": "eu-west-1",
            "streams.mine.stream_name": "flights",
            "streams.theirs.stream_arn": theirs.streams["flights"].arn,
            "streams.theirs.endpoint_url": there.url,
            "streams.theirs.role_arn": ROLE,
            "streams.theirs.external_id": "42",
        }
        with (
            daemon(here.url, environ=keys | {"AWS_ENDPOINT_URL_STS": there.url}, **sets) as running,
            session(running, "mine") as mine,
            session(running, "theirs") as other,
            session(running, "flights") as named,
        ):
            for client, name in ((mine, "mine"), (other, "theirs"), (named, "named")):
                client.put(rows(10, name=name))
                (ack,) = client.acks()
                assert ack.stored == 10, ack
    assert set(here.used) == {"testing"}
    assert set(there.used) == {"ROLE1"}
    assert (here.regions, there.regions) == ({"eu-west-1"}, {"us-east-1"}), "the region of the ARN"
    names = [{entry.data.split(b"-")[0] for entry in fake.streams["flights"].entries()} for fake in (kinesis, theirs)]
    assert names == [{b"mine", b"named"}, {b"theirs"}]


@pytest.mark.promise("nothing-service-answers")
def test_what_a_role_s_source_says_is_at_no_door_of_the_daemon(server: FakeServer, tmp_path: Path) -> None:
    """Each stream has another role, and STS another answer to it, with secrets in it."""
    cut = next(answer for answer in OF_STS if answer[0] == 200)
    answers = {"cut": cut, "whole": OF_STS[0], "odd": OF_STS[-2]}
    tables = [
        f'[streams.{name}]\nrole_arn = "arn:aws:iam::210987654321:role/{name}"\nexternal_id = "{EXTERNAL_ID}"\n'
        for name in answers
    ]
    (tmp_path / "producerd.toml").write_text("".join(tables))
    keys = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": KEY, "AWS_SESSION_TOKEN": TOKEN}
    shown = []
    with in_thread(lambda: service(answers)) as leaky, contextlib.ExitStack() as stack:
        environ, options = keys | {"AWS_ENDPOINT_URL_STS": leaky.url}, ["-c", str(tmp_path / "producerd.toml")]
        sets: dict[str, Any] = {"log_level": "debug", "drain_timeout_seconds": 0}
        running = stack.enter_context(daemon(server.url, environ=environ, options=options, exit_code=None, **sets))
        clients = [stack.enter_context(session(running, name)) for name in answers]
        for client in clients:
            client.put(one())
        until(lambda: running.log.count("WARNING producerd: credentials failed") == len(answers), "all have failed")
        shown += [code.message for code in clients[0].acks()[0].codes]
        assert "assume-role: an answer that cannot be read" in shown[0]
        admin = AdminClient(str(running.socket.with_suffix(".admin.sock")))
        shown += [json.dumps(admin.get(target)) for target in ("/status", "/dump", "/bundle")]
        shown += [running.get("/")[1], running.get("/metrics")[1], running.log]
        shown.append(Path(f"/proc/{running.process.pid}/cmdline").read_bytes().decode())
    assert lines_with_secrets("\n".join(shown)) == []


# ---- what the daemon asks of AWS, and what docs/operate/aws-access.md says that it needs

POLICY = re.compile(r"```json\n(\{\n  \"Version\".*?)```", re.DOTALL)


def allowed_by_the_policy() -> set[str]:
    """The actions of the least policy in the document."""
    (text,) = POLICY.findall((ROOT / "docs/operate/aws-access.md").read_text())
    statements = json.loads(text)["Statement"]
    assert all(statement["Effect"] == "Allow" for statement in statements)
    return {action for statement in statements for action in statement["Action"]}


def test_a_full_run_asks_for_nothing_but_what_the_least_policy_allows_and_for_all_of_it(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    packed = kinesis.create_stream("packed", shards=2)
    sets: dict[str, Any] = {"streams.packed.aggregation": "kpl"}
    with (
        daemon(server.url, **sets) as running,
        session(running) as plain,
        session(running, "packed") as client,
    ):
        for turn in range(3):
            for each in (plain, client):
                each.put(rows(200, name=f"turn{turn}"))
            assert [each.acks()[0].stored for each in (plain, client)] == [200, 200]
            if turn == 0:
                packed.split_shard("shardId-000000000000")
                assert kinesis.requests["DescribeStreamSummary"] >= 1
        assert conserved(running.metrics())
    delivered = {user.data for user in packed.read().records}
    assert delivered == {data for turn in range(3) for data in data_of(rows(200, name=f"turn{turn}"))}
    asked = {f"kinesis:{action}" for action in kinesis.requests}
    assert asked == allowed_by_the_policy()


def test_what_the_policy_calls_dispensable_is(kinesis: FakeKinesis, server: FakeServer) -> None:
    kinesis.denied = {action.removeprefix("kinesis:") for action in allowed_by_the_policy()} - {"PutRecords"}
    with daemon(server.url) as running, session(running) as client:
        client.put(rows(100))
        (ack,) = client.acks()
        assert ack.stored == 100
        assert not any(line.outcome == Outcome.NOT_STORED for line in ack.codes)
        until(lambda: "ListShards failed" in running.log)
        assert "WARNING producerd: ListShards failed" in running.log
