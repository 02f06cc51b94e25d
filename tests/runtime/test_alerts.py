"""A page is for a twentieth of the nodes or more, and a ticket for one: in each case something happens to a fleet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from producerd.runtime.metrics import NEVER_STORED
from tests.runtime.alert_fleet import DEAD_STS, NODES, OUTAGE, STEADY, Fleet, fired_at, together

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed"),
]


class Case(NamedTuple):
    """Fleets, and what fires: "MINUTES: page NAME, ticket NAME; ...", with each name without "Producerd".

    Tickets are compared where there is one, or "no ticket" or "nothing".
    """

    expected: str
    fleets: tuple[Fleet, ...]


def case(expected: str, *fleets: Fleet) -> Case:
    return Case(expected, fleets)


def cases(given: dict[str, Case]) -> Callable[..., Any]:
    return pytest.mark.parametrize("case", given.values(), ids=given)


def check(tmp_path: Path, case: Case) -> None:
    expected = {minutes: words for minutes, _, words in (each.partition(": ") for each in case.expected.split("; "))}
    fired = fired_at(tmp_path, *case.fleets, at=[f"{minute}m" for minute in " ".join(expected).split()])
    for minutes, words in expected.items():
        told = together(fired, [f"{minute}m" for minute in minutes.split()])
        named = [word.partition(" ")[::2] for word in words.split(", ")]
        assert told.pages == [f"Producerd{name}" for kind, name in named if kind == "page"]
        if "ticket" in words or words == "nothing":
            assert told.tickets == [f"Producerd{name}" for kind, name in named if kind == "ticket"]


def steady(**values: object) -> dict[str, str]:
    return {name: f"{value}{STEADY}" for name, value in values.items()}


GONE: Final = "1x90 _x300"
IDLE: Final = steady(
    queue_records=0,
    queue_oldest_record_age_seconds=0,
    ingest_records_total=5,
    delivered_records_total=5,
    delivery_latency_seconds_count=5,
    delivery_latency_seconds_bucket=5,
)
"""What a node shows of a stream that it does not use."""
SICK: Final = {
    "down": steady(up=0),
    "restarts": steady(process_start_time_seconds="0+240"),
    "memory": steady(process_resident_memory_bytes=99),
    "socket": steady(ready=0),
    "refused": steady(stream_up=0),
    "stuck": steady(queue_oldest_record_age_seconds="0+60"),
    "credentials": steady(credentials_expiry_timestamp_seconds=4000),
    "failing": steady(failed_records_total="0+600", delivered_records_total=5),
}
"""What a node shows that has a trouble for hours."""
PAGES: Final = {
    "down": ["DaemonsDown a"],
    "restarts": ["Restarts a"],
    "memory": ["MemoryNearLimit a"],
    "socket": ["NobodyCanConnect a"],
    "refused": ["StreamRefused a flights"],
    "stuck": ["RecordsStuck a flights"],
    "credentials": ["CredentialsExpire a flights"],
    "failing": ["FailedBurn a flights", "RecordsFailed a flights"],
}


@pytest.mark.promise("trouble-pages-twentieth")
@pytest.mark.parametrize("trouble", SICK)
def test_a_trouble_pages_from_a_twentieth_of_the_nodes_on_and_is_a_ticket_of_one(tmp_path: Path, trouble: str) -> None:
    """In b of one node of 40, and in c only four of 40 use the stream.  That node fails one record in a hundred."""
    uses = {**dict.fromkeys(IDLE, f"0+600{STEADY}"), **steady(queue_oldest_record_age_seconds=1)}
    one = {**SICK, "failing": steady(failed_records_total="0+6")}[trouble]
    fleets = [
        Fleet().on(0.05, **SICK[trouble]),
        Fleet("b", nodes=40).on(0.025, **one),
        Fleet("c", nodes=40).on(1.0, **IDLE).on(0.1, **uses).on(0.025, **one),
    ]
    told = together(fired_at(tmp_path, *fleets, at=["120m"]), ["120m"])
    assert told.pages == [f"Producerd{name}" for name in PAGES[trouble]]
    expected = [f"ProducerdNodesInTrouble {cluster} {trouble}" for cluster in "bc"]
    assert [name for name in told.tickets if "Slowly" not in name] == expected


# ---- ordinary days


def misspelt() -> Fleet:
    fleet = Fleet()
    for name, values in {
        "stream_up": "0",
        "queue_records": "7",
        "ingest_records_total": "0+9",
        "delivered_records_total": "0",
    }.items():
        fleet.also(f'producerd_{name}{{stream="{NEVER_STORED}"}}', values + STEADY)
    failed = f'producerd_failed_records_total{{stream="{NEVER_STORED}", reason="STREAM_NOT_FOUND"}}'
    return fleet.also(failed, f"0+9{STEADY}")


def restarted() -> Fleet:
    """A batch of a tenth after the other, each of which is gone for 400 seconds."""
    fleet = Fleet()
    for node in range(NODES):
        down = 60 + 7 * (node // 2)
        for name in ("up", "ready"):
            fleet.changed[name, node] = f"1x{down - 1} 0x6 1x200"
        for name in ("delivered_records_total", "ingest_records_total"):
            fleet.changed[name, node] = f"0+600x{down} 0+600x200"
    return fleet


def too_large() -> Fleet:
    reason = 'stream="flights", reason="RECORD_TOO_LARGE"'
    fleet = Fleet()
    for name in ("failed_records_total", "ingest_rejected_records_total"):
        fleet.also(f"producerd_{name}{{{reason}}}", "0x115 1x200")
    return fleet


PAUSED: Final = steady(
    stream_paused=1,
    stream_up=0,
    queue_oldest_record_age_seconds="0+60",
    delivered_records_total=0,
    delivery_latency_seconds_count=0,
    delivery_latency_seconds_bucket=0,
) | {"ingest_records_total": "0+600x10 6000x130"}
QUIET: Final = steady(ingest_records_total="0+0.1", delivered_records_total="0+0.1")
LATE_TWICE: Final = {
    "delivery_latency_seconds_count": "0x110 5x4 10x9",
    "delivery_latency_seconds_bucket": "0x110 4x4 8x9",
}


@pytest.mark.promise("typing-error-user-node", "paused-stream-node-ticket")
@cases(
    {
        "a healthy fleet": case("120: nothing", Fleet()),
        "a typing error of a user on one node": case("120: ticket NodesInTrouble a refused", misspelt()),
        "a rolling restart": case("65 80 100 120: no page", restarted()),
        "a record that is too large": case("120: no page", too_large()),
        "a refused stream that is paused on every node": case(
            "120: ticket StreamPaused a flights", Fleet().on(1.0, **PAUSED)
        ),
        "a refused stream with old records that is paused on one node": case(
            "120: ticket StreamPaused a flights",
            Fleet(nodes=40).on(0.025, **steady(stream_paused=1), **SICK["stuck"], **SICK["refused"]),
        ),
        "a failed record of a stream that stores 20 records in 10 minutes": case(
            "115 120: no page", Fleet().on(1.0, **QUIET).on(0.05, failed_records_total="0x110 1x300")
        ),
        "two late records of the ten that a node of five sends once": case(
            "120: no page", Fleet(nodes=5).on(1.0, **IDLE).on(0.2, **LATE_TWICE)
        ),
        "a refusal of last night that nothing has tried again": case(
            "120: nothing", Fleet().on(1.0, **IDLE).on(0.1, **SICK["refused"])
        ),
        "a lost node": case(
            "120: ticket NodesInTrouble a down",
            Fleet(nodes=40).on(
                0.025, up="1x60 0x300", **dict.fromkeys(("stream_up", "queue_records", "ready"), "1x60 _x300")
            ),
        ),
    }
)
def test_an_ordinary_day_pages_nobody(tmp_path: Path, case: Case) -> None:
    check(tmp_path, case)


# ---- daemons and nodes


def come_and_go() -> Fleet:
    fleet = Fleet(nodes=40)
    for node in range(11):
        fleet.changed["up", node] = f"1x{10 + 10 * node} 0x10 1x200"
    return fleet


def short_lived() -> list[Fleet]:
    """Two pods at a time, for five minutes each: all are targets, or in b only kube-state-metrics sees them."""
    pods, targets, seen = Fleet(nodes=56), Fleet("b", nodes=1), Fleet("c", nodes=2)
    for pod in range(pods.nodes):
        lives = f"_x{pod // 2 * 5} " * (pod > 1)
        pods.changed["up", pod] = f"{lives}0x4 stale"
        running = f'{{container="producerd", pod="{pod}"}}'
        targets.also(f"kube_pod_init_container_status_running{running}", f"{lives}1x4 stale")
    seen.also('kube_pod_container_status_running{container="producerd", pod="0"}', f"1{STEADY}")
    return [pods, targets, seen]


SCALED_IN: Final = "1x83 0x6 stale"
"""It answers no scrape for 6 minutes, and then it is not a target any more."""
IDLE_CLUSTER: Final = {"ingest_records_total": "0+600x70 42000x20 stale", "queue_records": "9x70 0x20 stale"}


@pytest.mark.promise("targets-gone-noticed", "tenth-targets-gone-ticket", "pods-live-minutes-cannot")
@cases(
    {
        "a nightly scale-in of most nodes, and in b of all, is a ticket": case(
            "85 90 95 100 120: ticket DaemonsFewer a, ticket DaemonsFewer b",
            Fleet().on(0.75, up=SCALED_IN),
            Fleet("b").on(1.0, up=SCALED_IN, **IDLE_CLUSTER),
        ),
        "all targets are gone": case("120: page DaemonsAbsent a; 160: no page", Fleet().on(1.0, up=GONE)),
        "all targets of one cluster are gone, and another stays": case(
            "120: page DaemonsAbsent a; 160: no page", Fleet().on(1.0, up=GONE), Fleet("b").on(1.0, up="1x300")
        ),
        "rules without any daemon are silent": case("120: nothing", Fleet(nodes=0)),
        "a cluster that gets another name and loses a quarter of its nodes is not absent": case(
            "100 120 145: no page", Fleet("").on(1.0, up=GONE), Fleet("named", nodes=15).on(1.0, up="_x90 1x300")
        ),
        "a cluster vanishes and a small one with three of its names comes": case(
            "100 120 145: page DaemonsAbsent a",
            Fleet().on(1.0, up=GONE),
            Fleet("job", nodes=3).on(1.0, up="_x85 1x300"),
        ),
        "a cluster vanishes 20 minutes after it came": case(
            "100: page DaemonsAbsent a", Fleet().on(1.0, up="_x60 1x20 _x300")
        ),
        "more than a tenth gone is a ticket": case(
            "120: ticket DaemonsFewer a", Fleet(nodes=40).on(0.125, up=GONE), Fleet("b").on(0.1, up=GONE)
        ),
        "pods that live for minutes and cannot be scraped page": case(
            "120: page DaemonsUnseen a, page DaemonsUnseen b", *short_lived()
        ),
    }
)
def test_targets_that_are_gone_or_never_seen_are_noticed(tmp_path: Path, case: Case) -> None:
    check(tmp_path, case)


NOT_FOREVER: Final = steady(clock_offset_seconds=-3600, process_open_fds=930, credential_refreshes_total="0+12") | {
    "log_lines_lost_total": f"0x80 7{STEADY}"
}
EVERY_16_MINUTES: Final = " ".join(str(minute // 16) for minute in range(140))
GROWS: Final = steady(process_resident_memory_bytes="2e8+1e8", memory_limit_bytes="1e18", memory_needed_bytes="1e9")


@pytest.mark.promise(
    "daemons-down-most-time", "daemons-restart-16-minutes", "memory-beyond-settings", "nodes-come-go-trouble"
)
@cases(
    {
        "all are down for four minutes of five, in step, and up when the rules look": case(
            "120: page DaemonsDown a", Fleet().on(1.0, up="1 0 0 0 0 " * 30)
        ),
        "all are up for four minutes of five, and down when the rules look": case(
            "120: no page", Fleet().on(1.0, up="0 1 1 1 1 " * 30)
        ),
        "two nodes that have come answer after four minutes, and two in b never": case(
            "65 70: no page; 80: page DaemonsDown b",
            Fleet().on(0.1, up="_x60 0x4 1x200"),
            Fleet("b").on(0.1, up="_x60 0x200"),
        ),
        "a node is up for a minute in twenty, which the second look meets": case(
            "90: ticket NodesInTrouble a down; 100: ticket NodesInTrouble a down",
            Fleet(nodes=40).on(0.025, up=("1 " + "0 " * 19) * 7),
        ),
        "nodes come and go, and always another one is down for ten minutes": case("60 90 120: nothing", come_and_go()),
        "restarts every 16 minutes are a ticket, of one node and in b of all": case(
            "135: ticket NodesInTrouble a restarts_slowly, ticket NodesInTrouble b restarts_slowly",
            Fleet(nodes=40).on(0.025, process_start_time_seconds=EVERY_16_MINUTES),
            Fleet("b").on(1.0, process_start_time_seconds=EVERY_16_MINUTES),
        ),
        "restarts that ended an hour ago are over": case(
            "135: nothing", Fleet().on(1.0, process_start_time_seconds=f"0+240x40 9999{STEADY}")
        ),
        "memory grows from 0.2 to 14 GB where no limit is set": case(
            "120: page MemoryNearLimit a", Fleet().on(1.0, **GROWS)
        ),
        "a clock an hour off, lost lines, few files left and failing renewals of half the nodes are tickets": case(
            "120: ticket NodesInTrouble a clock, ticket NodesInTrouble a files, "
            "ticket NodesInTrouble a log, ticket NodesInTrouble a renewals",
            Fleet(nodes=4).on(0.5, **NOT_FOREVER),
        ),
        "loops that hang most of the time are a ticket, however many they are": case(
            "120: ticket NodesInTrouble a busy, ticket NodesInTrouble b busy, ticket NodesInTrouble c busy",
            *[
                Fleet(cluster, nodes=40 if share < 0.05 else NODES).on(
                    share, **steady(event_loop_lag_seconds_sum="0+57")
                )
                for cluster, share in {"a": 0.025, "b": 0.05, "c": 0.5}.items()
            ],
        ),
    }
)
def test_daemons_that_are_down_or_will_not_last_are_noticed(tmp_path: Path, case: Case) -> None:
    check(tmp_path, case)


# ---- streams


def unlisted(trouble: str, cluster: str, share: float) -> Fleet:
    fleet = Fleet(cluster, nodes=40 if cluster == "a" else NODES, stream=NEVER_STORED).on(1.0, **IDLE)
    return fleet.on(share, **dict.fromkeys(IDLE, f"200{STEADY}") | SICK[trouble])


@pytest.mark.promise("streams-settings-page")
@pytest.mark.parametrize(("trouble", "page"), [("refused", "StreamRefused"), ("stuck", "RecordsStuck")])
def test_streams_without_settings_page_from_a_quarter_of_all_nodes_on(tmp_path: Path, trouble: str, page: str) -> None:
    """A misspelt name is on fewer; an outage that begins before anything is stored is on all."""
    fleets = [unlisted(trouble, cluster, share) for cluster, share in {"a": 0.225, "b": 0.25, "c": 1.0}.items()]
    paging = [f"page {page} {cluster} {NEVER_STORED}" for cluster in "bc"]
    check(tmp_path, case(f"120: {', '.join(paging)}, ticket NodesInTrouble a {trouble}", *fleets))


REFUSES_EACH_FRAME: Final = steady(ingest_records_total=0, queue_records=0, stream_up=0, refused_records_total="0+600")
CANNOT_REACH: Final = steady(
    stream_up=0,
    queue_records=9000,
    queue_oldest_record_age_seconds="0+60",
    backpressure_active_seconds_total="0+60",
)
WRITES: Final = dict.fromkeys(IDLE, f"0+600{STEADY}") | steady(queue_records=9, queue_oldest_record_age_seconds=1)
STOPS: Final = {"delivered_records_total": "0+600x90 54000x300"}
STORES: Final = Fleet(release="t/a")
STUCK_TOO: Final = Fleet(release="t/b").on(1.0, **SICK["stuck"], delivered_records_total="9x200")


@pytest.mark.promise(
    "streams-settings-page", "stream-settings-lost", "nodes-use-stream-hide", "two-releases-node-stream"
)
@cases(
    {
        "a misspelt name on one node of two is a ticket": case(
            "120: ticket NodesInTrouble a refused", Fleet(nodes=2, stream=NEVER_STORED).on(0.5, **SICK["refused"])
        ),
        "most nodes are refused, without a ticket": case(
            "120: page StreamRefused a flights, no ticket", Fleet().on(0.9, stream_up="1x90 0x300")
        ),
        "no frame is taken where ListShards is denied, and none fails": case(
            "120: page StreamRefused a flights", Fleet().on(0.9, **REFUSES_EACH_FRAME)
        ),
        "the settings lost a stream, and in b one job's name is wrong": case(
            "120: page StreamsNotOpened a, ticket NodesInTrouble a not_opened, ticket NodesInTrouble b not_opened",
            Fleet(nodes=40).on(0.1, **steady(refused_opens_total="0+1")),
            Fleet("b", nodes=40).on(0.075, **steady(refused_opens_total="0+1")),
        ),
        "nothing is delivered where no stream is paused": case(
            "120: page NothingDelivered a flights", Fleet().on(1.0, **STOPS)
        ),
        "records are abandoned on one node": case(
            "120: page RecordsAbandoned a flights", Fleet(nodes=40).on(0.025, discarded_records_total="0x115 40x200")
        ),
        "three of the four nodes of 80 that write cannot reach Kinesis": case(
            "120: page RecordsStuck a flights, page StreamRefused a flights, ticket Backpressure a flights",
            Fleet(nodes=80).on(1.0, **IDLE).on(0.05, **WRITES).on(0.0375, **IDLE).on(0.0375, **CANNOT_REACH),
        ),
        "a small cluster next to a large one with a stream of the same name": case(
            "120: page NothingDelivered b flights, page StreamRefused b flights",
            Fleet("a"),
            Fleet("b", nodes=5).on(1.0, stream_up="1x90 0x300", **STOPS),
        ),
        "one of two releases on each node stores, and the other one's stream has stopped": case(
            "120: page RecordsStuck a flights", STORES, STUCK_TOO
        ),
        "one of two releases on each node is paused, and the other one's stream has stopped": case(
            "120: page RecordsStuck a flights",
            Fleet(release="t/a").on(1.0, **steady(stream_paused=1)),
            STUCK_TOO,
        ),
    }
)
def test_a_stream_that_stops_is_noticed_wherever_it_is(tmp_path: Path, case: Case) -> None:
    check(tmp_path, case)


# ---- records that fail


def deleted() -> Fleet:
    """A stream of one node is refused: all its records fail, and none for its own fault."""
    fleet = Fleet(nodes=40)
    for name, values in {
        "stream_up": "1x60 0x300",
        "stream_paused": "0x300",
        "queue_records": "10x300",
        "queue_oldest_record_age_seconds": "0+60x300",
        "ingest_records_total": "0+600x300",
        "delivered_records_total": "0+600x60 36000x300",
    }.items():
        fleet.also(f'producerd_{name}{{stream="tried"}}', values)
    return fleet.also('producerd_failed_records_total{stream="tried", reason="STREAM_NOT_FOUND"}', "0x60 0+600x300")


def judged() -> Fleet:
    fleet = Fleet("c")
    for reason in ("RECORD_TOO_LARGE", "RECORD_INVALID"):
        fleet.also(f'producerd_failed_records_total{{stream="flights", reason="{reason}"}}', f"0+15000{STEADY}")
    return fleet


def quiet_next_to_busy(cluster: str, nodes: int, share: float) -> Fleet:
    """All records of quiet nodes fail, and the others store 6,000 times as many."""
    quiet = steady(ingest_records_total="0+10", delivered_records_total=5)
    fleet = Fleet(cluster, nodes=nodes).on(1.0, **dict.fromkeys(quiet, f"0+60000{STEADY}"))
    return fleet.on(share, **quiet, **steady(failed_records_total="0+10"))


ALL_FAIL: Final = {"delivered_records_total": f"5{STEADY}", "failed_records_total": f"0x10 0+600{STEADY}"}
ONE_IN_14_MINUTES: Final = " ".join(f"{minute // 14}" for minute in range(140))
FAIL_LATER: Final = {**IDLE, "queue_records": "9000x110 0x300", "failed_records_total": "0x110 9000x300"}


@pytest.mark.promise("failure-4-percent-pages", "quiet-nodes-fail-noticed")
@cases(
    {
        "5 % of all records fail": case(
            "120: page FailedBurn a flights, page RecordsFailed a flights",
            Fleet().on(1.0, **steady(failed_records_total="0+30")),
        ),
        "ten records of one node fail": case(
            "120: no page", Fleet(nodes=40).on(0.025, failed_records_total="0+1x10 10x130")
        ),
        "all records of 4 % of the nodes fail for 110 minutes, in b a fifth of one, and in c rows are judged": case(
            "120: page FailedBurn a flights",
            Fleet(nodes=25).on(0.04, **ALL_FAIL),
            Fleet("b", nodes=50).on(0.02, failed_records_total=f"0x10 0+120{STEADY}"),
            judged(),
        ),
        "a stream of one node was deleted": case("120: page FailedBurn a tried", deleted()),
        "quiet nodes fail next to busy ones: 4 %, in b 5 %, in c 40 %": case(
            "120: page RecordsFailed b flights, page RecordsFailed c flights, ticket NodesInTrouble a failing",
            quiet_next_to_busy("a", 25, 0.04),
            quiet_next_to_busy("b", 20, 0.05),
            quiet_next_to_busy("c", 20, 0.4),
        ),
        "one record in 14 minutes fails on one node of four": case(
            "120: ticket NodesInTrouble a failing",
            Fleet(nodes=4)
            .on(1.0, **steady(delivered_records_total="0+10"))
            .on(0.25, failed_records_total=ONE_IN_14_MINUTES),
        ),
        "what was queued fails an hour after it was accepted": case(
            "120 125: page FailedBurn a flights, page RecordsFailed a flights", Fleet().on(1.0, **FAIL_LATER)
        ),
    }
)
def test_records_that_fail_are_noticed_by_their_share(tmp_path: Path, case: Case) -> None:
    check(tmp_path, case)


# ---- records that are late


FULL: Final = {
    "queue_oldest_record_age_seconds": "700x80 1x60",
    "delivery_latency_seconds_bucket": "0x80 600+600x60",
}
"""What a node shows whose queue is full and holds 700 seconds of its part of the shards, until it is empty."""
BLOCKED: Final = {"backpressure_cause_seconds_total": "0+60x60 3600x80"}
"""Its callers wait for the shards for the first hour."""
WAITS: Final = 'producerd_backpressure_cause_seconds_total{stream="flights", cause="service"}'
BATCHES: Final = {
    "slow_seconds_total": " ".join(f"{(minute // 10) * 120 + min(120, minute % 10 * 60)}" for minute in range(140)),
    "delivery_latency_seconds_bucket": f"0+300{STEADY}",
}
"""What a node shows that drains a batch in two and a half minutes, every ten minutes, while no caller waits."""
AFTER_A_PAUSE: Final = {
    "stream_paused": "0x60 1x9 0x100",
    "delivered_records_total": "0+600x60 36000x9 36000+3300x2 43200+600x60",
    "delivery_latency_seconds_count": "0+600x60 36000x9 36000+3300x2 43200+600x60",
    "delivery_latency_seconds_bucket": "0+600x60 36000x9 36000+600x100",
}
"""The pause takes ten minutes, and what waited meanwhile is stored within two."""
ONE_BATCH: Final = {
    "ingest_records_total": "0x60 9000x80",
    "delivered_records_total": "0x60 3600 7200 9000x80",
    "delivery_latency_seconds_count": "0x60 3600 7200 9000x80",
    "delivery_latency_seconds_bucket": "0x60 3600x82",
    "slow_seconds_total": "0x60 30 90 120x80",
}
"""It takes two and a half minutes."""


def batches(held_by: str, nodes: int, use: float, late: str = "no page") -> Case:
    fleet = Fleet(nodes=nodes, held_by=held_by).on(1.0, **BATCHES, **steady(shard_utilization_max_ratio=use))
    return case(f"75 90 120: {late}", fleet)


@pytest.mark.promise("fleet-writes-fast-shards", "batch-larger-minute", "nodes-store-nothing")
@cases(
    {
        "a fifth of the records are late": case(
            "120: page LateBurn a flights", Fleet().on(1.0, **steady(delivery_latency_seconds_bucket="0+480"))
        ),
        "a fleet that writes as fast as the shards store pages nobody": case(
            "60 80 90 110 120: no page", Fleet().on(1.0, **FULL, **BLOCKED)
        ),
        "callers wait for the service, and not for the shards": case(
            "60: page LateBurn a flights",
            Fleet().on(1.0, **FULL).also(WAITS, BLOCKED["backpressure_cause_seconds_total"]),
        ),
        "one node waits for a shard, and all are late": case(
            "110: page LateBurn a flights",
            Fleet(nodes=10)
            .on(1.0, **steady(delivery_latency_seconds_bucket=0))
            .on(0.1, backpressure_cause_seconds_total="0x90 0+60x30"),
        ),
        "some nodes store nothing in a fleet with full queues": case(
            "60: page RecordsStuck a flights",
            Fleet().on(1.0, **FULL, **BLOCKED).on(0.05, **steady(delivered_records_total=5)),
        ),
        "records that are late after a pause page nobody": case(
            "75 80: no page", Fleet(nodes=10).on(1.0, **AFTER_A_PAUSE)
        ),
        "batches of a node that has all of the quota": batches("quota", 1, 1.0),
        "batches of a fleet that uses a third of the quota": batches("quota", NODES, 0.3),
        "batches of a fleet that shards throttle below its part": batches("throttles", 40, 0.025),
        "batches that shards throttle at a tenth of their quota: others write to them": batches(
            "throttles", 3, 0.1, "page LateBurn a flights"
        ),
        "batches whose answers are late": batches("other", NODES, 1.0, "page LateBurn a flights"),
        "a single batch that is larger than a minute of the quota, and in b waits for the service": case(
            "61 62 63 64 65 70: page LateBurn b flights",
            *[
                Fleet(cluster, nodes=2, held_by=held_by).on(1.0, **IDLE).on(0.5, **ONE_BATCH)
                for cluster, held_by in {"a": "quota", "b": "other"}.items()
            ],
        ),
    }
)
def test_records_that_are_late_page_unless_the_shards_quota_holds_them(tmp_path: Path, case: Case) -> None:
    check(tmp_path, case)


# ---- outages, credentials and shards


ENDS_AT_118: Final = steady(credentials_expiry_timestamp_seconds=7100)


@pytest.mark.promise("outage-dead-sts-lost")
@cases(
    {
        "an outage pages by its cause, and not for half an hour in which records are late or fail after it": case(
            "40 50 60 68: page NothingDelivered a flights, page RecordsStuck a flights, page StreamRefused a flights; "
            "75 80 85 90 95 100 105 110 115: no page",
            Fleet().on(1.0, **OUTAGE),
        ),
        "credentials page before they end, and after that with what follows": case(
            "55: page CredentialsExpire a flights; "
            "65 75 90 110: page CredentialsExpire a flights, page NothingDelivered a flights, "
            "page RecordsStuck a flights",
            Fleet().on(1.0, **DEAD_STS),
        ),
        "credentials that AWS renews in the last five minutes page nobody": case(
            "50 54 60: no page", Fleet().on(1.0, credentials_expiry_timestamp_seconds="3600x54 99999x90")
        ),
        "credentials page though a few nodes are refused an hour before": case(
            "120: page CredentialsExpire a flights", Fleet().on(1.0, **SICK["credentials"]).on(0.1, **SICK["refused"])
        ),
        "credentials that end while b's stream is idle page for a's": case(
            "120: page CredentialsExpire a flights",
            Fleet().on(1.0, **ENDS_AT_118),
            Fleet("b").on(1.0, **ENDS_AT_118, **IDLE),
        ),
    }
)
def test_an_outage_and_the_end_of_credentials_page_by_their_cause(tmp_path: Path, case: Case) -> None:
    check(tmp_path, case)


HUNG: Final = {"shards_silent": "0x60 1x80", "queue_oldest_record_age_seconds": "1x59 0+60x80"}
"""What a node shows of a stream with a shard that answers nothing any more, and others that do."""
HOT: Final = {"queue_oldest_record_age_seconds": f"700{STEADY}", "shards_silent": "0 0 0 1 " * 35}
"""Its queue holds more than ten minutes of its quota, and now and then an answer of another shard is late."""
ONE_ANSWERS_FIRST: Final = HUNG | {"shards_silent": "0x60 8x39 3 0x40", "stream_up": "1x60 0x38 1x41"}


@pytest.mark.promise("shard-answer-ticket")
@cases(
    {
        "a shard that does not answer is a ticket after ten minutes, on one node and in b on all": case(
            "65: nothing; 80: ticket ShardSilent a flights, ticket ShardSilent b flights",
            Fleet(nodes=40).on(0.025, **HUNG),
            Fleet("b").on(1.0, **HUNG),
        ),
        "a hot shard at its quota is not silent": case("75 79 80 90 120: nothing", Fleet().on(1.0, **HOT)),
        "an outage of all shards, of which one answers first after 40 minutes, is not a silent shard": case(
            "80 99 100 101 102 105: page StreamRefused a flights, no ticket",
            Fleet().on(1.0, **ONE_ANSWERS_FIRST),
        ),
    }
)
def test_a_silent_shard_is_a_ticket(tmp_path: Path, case: Case) -> None:
    check(tmp_path, case)
