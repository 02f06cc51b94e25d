"""What operators do about each event of the log and each error code.  The pages' tables are made from these texts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from producerd.errors import Code

RUNTIME: Final = Path(__file__).resolve().parent.parent / "producerd" / "runtime"
NOT_FOR_PEOPLE: Final = {Code.CANCELLED, Code.TOO_LARGE}
"""Codes that the client handles itself."""
REPORT: Final = "A fault of producerd: report it with the traceback, which has no data in it."

EVENTS: Final[Mapping[str, str]] = {
    "stream is refused by the service": "Callers fail. Fix the stream, the role or its key, as `message` says.",
    "stream cannot be reached": "Callers fail. Correct `region`, `endpoint_url`, DNS, the proxy or `AWS_CA_BUNDLE`.",
    "the stream cannot be aggregated for": 'Callers fail. Set `aggregation = "none"`, or the stream to '
    "USER_PARTITION_KEY.",
    "the same records had no answer, again and again; they are still sent": "Requests with these rows time out: look "
    "for a proxy that cuts large bodies, or raise `request_timeout_seconds`.",
    "settings are refused, the old ones stay": "Fix what `problems` names, and reload again.",
    "nobody can connect any more": "The socket's file is gone. Do what `do` says; open sessions go on.",
    "records were lost: their callers had gone": "Send them again from their source; see "
    "[ProducerdRecordsAbandoned](runbook-pages.md#producerdrecordsabandoned).",
    "a job could not be sorted": f"Its frame fails with INTERNAL. {REPORT}",
    "a request could not be made": f"Its rows fail with INTERNAL. {REPORT}",
    "a client's bytes could not be read": f"Its session ended. {REPORT}",
    "the daemon has failed": f"It ended with exit code 1 and is started again. {REPORT}",
    "a message could not be rendered": "One log line of the logger `of` is missing: report it.",
    "stream looks refused": "Callers wait for a minute. Look at `message`.",
    "stream is slow": "`why` names [the cause](slow-streams.md#what-to-do-about-each-cause).",
    "caller blocked": "`why` names [the cause](slow-streams.md#what-to-do-about-each-cause).",
    "ListShards failed": 'Allow `kinesis:ListShards`, or fix the way to the service. "ListShards works again" ends it.',
    "records go plain until the shards are known": "ListShards fails, so `kpl` sends plain records at one shard's "
    "pace. See `why`.",
    "a proxy refuses large requests; they are cut to the size that passes": "Nothing is lost. Raise the proxy's limit, "
    "or set `request_max_bytes`.",
    "the service refuses CBOR; requests go in JSON from now on": 'Nothing is lost. Set `wire_format = "json"` for '
    "the stream.",
    "DescribeStreamSummary failed": 'Allow `kinesis:DescribeStreamSummary`. "DescribeStreamSummary works again" '
    "ends it.",
    "credentials failed": "None came, or a renewal failed; valid ones still serve. `of` is the role, or the daemon. "
    "See [where they come from](aws-access.md#where-credentials-come-from).",
    "this machine's clock is off; signing by the service's": "Nothing is lost. Set the machine's clock.",
    "the socket's file was gone; it is bound again": "Nothing is lost. Find what deletes files there, and do what "
    "`do` says.",
    "client is late": "The client did not send a frame in time, connects again and repeats it. Look at its machine's "
    "CPU.",
    "client has not greeted": "A client sent no HELLO within 10 s. `client` has its user id and pid.",
    "clients flood the daemon": "One user's clients exceed their share and wait; others do not. See `uid`, `pid` and "
    "`ps -o args= -p PID`. A `pid` of 0 is in another container.",
    "client broke the protocol": "A foreign client, or another version. `client` has its user id and pid.",
    "a setting exposes something to others": "Do what `what` says.",
    "client is one too many": "It was sent away with CONNECTION_LIMIT and tries again. Raise the limit that `why` "
    "names, or end processes.",
    "client speaks other versions": "Install matching versions. `versions` are the client's.",
    "stream cannot have this name": "Kinesis has no such names. Correct the job.",
    "stream is one too many": "Raise `max_streams`, or end clients of one that `producerctl status` shows.",
    "stream is not allowed": "Correct the name, or add its table or the user to the settings, as `why` says.",
    "client is not allowed": "A user outside `allowed_uids` connected. Add the user id, or see what runs there.",
    "who may not administer tried to": "The daemon refused an order. See `uid` and `pid`.",
    "the deadline of draining has passed": "Rows go back to their callers. See what kept the stream slow, or raise "
    "`drain_timeout_seconds`.",
    "stopping at once": "A second signal cut the drain short; rows go back to their callers.",
    "log lines were dropped": "`lines` are missing before this one. Free the disk, or find the slow reader.",
}
"""By event, what an operator does about a WARNING or ERROR."""

CODES: Final[Mapping[str, tuple[str, str]]] = {
    Code.DAEMON_ABSENT: (
        "client",
        "No daemon answered within `connect_timeout_seconds`: start it, or name its socket.",
    ),
    Code.DAEMON_LOST: ("client", "It did not come back within `reconnect_timeout_seconds`: see its log."),
    Code.DRAINING: ("daemon", "The daemon stops, and `reconnect_timeout_seconds` is 0: Spark repeats the task."),
    Code.VERSION_MISMATCH: ("daemon", "Install the same release on all nodes."),
    Code.NOT_AUTHORIZED: ("client, daemon", "Check `socket_group`, `allowed_uids` and `streams_allowed`."),
    Code.CONNECTION_LIMIT: ("daemon", "Raise `max_connections`."),
    Code.TABLE_FULL: ("daemon", "An idle client made room for another. As CONNECTION_LIMIT."),
    Code.STREAM_LIMIT: ("daemon", "Raise `max_streams`, or list the stream."),
    Code.STREAM_NOT_FOUND: ("Kinesis", "Check the name, `region` and `stream_arn`."),
    Code.ACCESS_DENIED: (
        "Kinesis",
        "Give the daemon's role [the permissions](aws-access.md#what-the-daemon-must-be-allowed-to-do).",
    ),
    Code.CREDENTIALS: ("AWS", "Fix [the daemon's credentials](aws-access.md#where-credentials-come-from)."),
    Code.KMS: ("Kinesis", "Let the daemon's role use the stream's key: `kms:GenerateDataKey`."),
    Code.CONFIGURATION: ("client, daemon", "Correct the column, option or setting that the line names."),
    Code.UNREACHABLE: (
        "daemon",
        "Check region, endpoint, DNS, proxy and certificates. Callers wait, unless the endpoint is provably wrong.",
    ),
    Code.SHARD_MAP_MISSING: (
        "daemon",
        '`kpl` needs `kinesis:ListShards` and keys that decide the shard; or set `aggregation = "none"`.',
    ),
    Code.BACKPRESSURE_TIMEOUT: ("client", "No room within `put_timeout_seconds`: [why](slow-streams.md)."),
    Code.FLUSH_TIMEOUT: ("client", "Not all stored within `flush_timeout_seconds`: [why](slow-streams.md)."),
    Code.RECORD_INVALID: ("daemon, Kinesis", "Fix the row, or set `on_bad_record`."),
    Code.RECORD_TOO_LARGE: ("daemon, Kinesis", "Fix the row, or set `on_bad_record`."),
    Code.FRAME_REFUSED: ("daemon", "Good rows that came with bad ones: fix those."),
    Code.REQUEST_REFUSED: ("Kinesis", "It names no row: check the stream and its settings, such as `stream_arn`."),
    Code.PROXY_REFUSED: ("a proxy", "Raise its limit on a body, or change its rule. Rows may be stored."),
    Code.DIVERT_FAILED: ("client", "Let the executors write to `divert_to`."),
    Code.EXPIRED: ("daemon", "`record_ttl_seconds` passed: raise it, or fix [what is slow](slow-streams.md)."),
    Code.THROTTLED: ("Kinesis", 'The shards take less; callers see it only with `on_throttle = "fail"`.'),
    Code.PREDECESSOR_FAILED: ("daemon", 'With `ordering = "per_key"` an earlier row of the key failed: see that one.'),
    Code.RESULT_COUNT: ("daemon", "An answer does not fit its request. Rows may be stored."),
    Code.SERVICE_FAULT: ("Kinesis", "Wait, or ask AWS. Rows may be stored."),
    Code.BAD_COLUMN: ("client", "Correct the column that the line names."),
    Code.ARROW_MISSING: ("client", "Run the `pip install` where the line says."),
    Code.SPECULATION_ENABLED: ("client", "Set `spark.speculation=false`, or `allow_speculation`."),
    Code.PROTOCOL: ("client, daemon", "A fault of producerd: report it."),
    Code.INTERNAL: ("client, daemon", "Fix the call that the line names, or report it."),
}
"""By error code, who raises it, and what to do."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of a name, or of a name's attribute, in the runtime's source: ``name`` or ``name.attribute``."""
    for path in RUNTIME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                yield ast.unparse(node.func), node


def events() -> Iterator[tuple[str, str]]:
    """Level and event of each WARNING and ERROR."""
    for called, call in calls():
        if called in ("log.warning", "log.error", "log.exception"):
            yield "WARNING" if called == "log.warning" else "ERROR", ast.literal_eval(call.args[0])
        elif called == "Outage":
            yield "WARNING", f"{ast.literal_eval(call.args[0])} failed"
        elif (
            called == "self.note"
            and isinstance(call.args[1], ast.Attribute)
            and call.args[1].attr in ("WARNING", "ERROR")
        ):
            yield ast.unparse(call.args[1]).removeprefix("logging."), ast.literal_eval(call.args[0])


def event_table() -> str:
    """One line an event of the log at WARNING or ERROR: what to do."""
    found = set(events())
    assert set(EVENTS) == {event for _, event in found}, "EVENTS says what to do about each WARNING and ERROR"
    order = {event: place for place, event in enumerate(EVENTS)}
    lines = [f"| {level} | `{event}` | {EVENTS[event]} |" for level, event in sorted(found, key=lambda e: order[e[1]])]
    return "\n".join(["| level | event | what to do |", "|---|---|---|", *lines])


def code_table() -> str:
    """One line an error code: who raises it, and what to do."""
    assert set(CODES) == {value for name, value in vars(Code).items() if name.isupper()} - NOT_FOR_PEOPLE
    lines = [f"| {code} | {raised_by} | {remedy} |" for code, (raised_by, remedy) in CODES.items()]
    return "\n".join(["| code | raised by | what to do |", "|---|---|---|", *lines])
