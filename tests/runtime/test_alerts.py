"""A page is for a twentieth of the nodes or more, and a ticket for one: in each case something happens to a fleet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from producerd.runtime.metrics import NEVER_STORED
from tests.runtime.alert_fleet import DEAD_STS, NODES, OUTAGE, STEADY, Fired, Fleet, alerts

GONE: Final = "1x90 _x300"
IDLE: Final = {
    "queue_records": f"0{STEADY}",
    "queue_oldest_record_age_seconds": f"0{STEADY}",
    "ingest_records_total": f"5{STEADY}",
    "delivered_records_total": f"5{STEADY}",
    "delivery_latency_seconds_count": f"5{STEADY}",
    "delivery_latency_seconds_bucket": f"5{STEADY}",
}
"""What a node shows of a stream that it does not use."""
SICK: Final = {
    "down": {"up": f"0{STEADY}"},
    "restarts": {"process_start_time_seconds": f"0+240{STEADY}"},
    "memory": {"process_resident_memory_bytes": f"99{STEADY}"},
    "socket": {"ready": f"0{STEADY}"},
    "refused": {"stream_up": f"0{STEADY}"},
    "stuck": {"queue_oldest_record_age_seconds": f"0+60{STEADY}"},
    "credentials": {"credentials_expiry_timestamp_seconds": f"4000{STEADY}"},
    "failing": {"failed_records_total": f"0+600{STEADY}", "delivered_records_total": f"5{STEADY}"},
}
"""What a node shows that has a trouble for hours."""
PAGES: Final = {
    "down": ["ProducerdDaemonsDown a"],
    "restarts": ["ProducerdRestarts a"],
    "memory": ["ProducerdMemoryNearLimit a"],
    "socket": ["ProducerdNobodyCanConnect a"],
    "refused": ["ProducerdStreamRefused a flights"],
    "stuck": ["ProducerdRecordsStuck a flights"],
    "credentials": ["ProducerdCredentialsExpire a flights"],
    "failing": ["ProducerdFailedBurn a flights", "ProducerdRecordsFailed a flights"],
}

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed"),
]


def test_a_healthy_fleet_is_silent(tmp_path: Path) -> None:
    assert alerts(tmp_path, Fleet()) == Fired([], [])


@pytest.mark.promise("typing-error-user-node")
def test_a_typing_error_of_a_user_on_one_node_pages_nobody(tmp_path: Path) -> None:
    fleet = (
        Fleet()
        .also(f'producerd_stream_up{{stream="{NEVER_STORED}"}}', f"0{STEADY}")
        .also(f'producerd_queue_records{{stream="{NEVER_STORED}"}}', f"7{STEADY}")
        .also(f'producerd_ingest_records_total{{stream="{NEVER_STORED}"}}', f"0+9{STEADY}")
        .also(f'producerd_delivered_records_total{{stream="{NEVER_STORED}"}}', f"0{STEADY}")
        .also(f'producerd_failed_records_total{{stream="{NEVER_STORED}", reason="STREAM_NOT_FOUND"}}', f"0+9{STEADY}")
    )
    assert alerts(tmp_path, fleet) == Fired([], ["ProducerdNodesInTrouble a refused"])


@pytest.mark.promise("streams-settings-page")
@pytest.mark.parametrize(("trouble", "page"), [("refused", "StreamRefused"), ("stuck", "RecordsStuck")])
def test_streams_without_settings_page_from_a_quarter_of_all_nodes_on(tmp_path: Path, trouble: str, page: str) -> None:
    """A misspelt name is on fewer; an outage that begins before anything is stored is on all."""
    for share in (0.225, 0.25, 1.0):
        fleet = Fleet(stream=NEVER_STORED).on(1.0, **IDLE)
        fleet.on(share, **dict.fromkeys(IDLE, f"200{STEADY}") | SICK[trouble])
        ticket = Fired([], [f"ProducerdNodesInTrouble a {trouble}"])
        assert alerts(tmp_path, fleet) == (
            Fired([f"Producerd{page} a {NEVER_STORED}"], []) if share >= 0.25 else ticket
        )


@pytest.mark.promise("streams-settings-page")
def test_a_misspelt_name_on_one_node_of_two_pages_nobody(tmp_path: Path) -> None:
    fleet = Fleet(nodes=2, stream=NEVER_STORED).on(0.5, **SICK["refused"])
    assert alerts(tmp_path, fleet) == Fired([], ["ProducerdNodesInTrouble a refused"])


@pytest.mark.promise("typing-error-user-node")
def test_a_rolling_restart_pages_nobody(tmp_path: Path) -> None:
    """A batch of a tenth after the other, each of which is gone for 400 seconds."""
    fleet = Fleet()
    for node in range(NODES):
        down = 60 + 7 * (node // 4)
        fleet.changed["up", node] = f"1x{down - 1} 0x6 1x200"
        fleet.changed["ready", node] = f"1x{down - 1} 0x6 1x200"
        fleet.changed["delivered_records_total", node] = f"0+600x{down} 0+600x200"
        fleet.changed["ingest_records_total", node] = f"0+600x{down} 0+600x200"
    assert alerts(tmp_path, fleet, at=("65m", "80m", "100m", "120m")).pages == []


@pytest.mark.promise("targets-gone-noticed")
def test_a_nightly_scale_in_pages_nobody(tmp_path: Path) -> None:
    """Most nodes of a cluster go while its jobs write, and all of an idle one.  They answer no scrape for 6 minutes."""
    goes = "1x83 0x6 stale"
    idle = {"ingest_records_total": "0+600x70 42000x20 stale", "queue_records": "9x70 0x20 stale"}
    most, all_of_them = Fleet().on(0.75, up=goes), Fleet("b").on(1.0, up=goes, **idle)
    fired = alerts(tmp_path, most, all_of_them, at=("85m", "90m", "95m", "100m", "120m"))
    assert fired == Fired([], ["ProducerdDaemonsFewer a", "ProducerdDaemonsFewer b"])


@pytest.mark.promise("pods-live-minutes-cannot")
def test_pods_that_live_for_minutes_and_cannot_be_scraped_page(tmp_path: Path) -> None:
    """Two at a time, for five minutes each: all are targets, or in b only kube-state-metrics sees them."""
    pods, targets, seen = Fleet(nodes=56), Fleet("b", nodes=1), Fleet("c", nodes=2)
    for pod in range(pods.nodes):
        lives = f"_x{pod // 2 * 5} " * (pod > 1)
        pods.changed["up", pod] = f"{lives}0x4 stale"
        running = f'{{container="producerd", pod="{pod}"}}'
        targets.also(f"kube_pod_init_container_status_running{running}", f"{lives}1x4 stale")
    seen.also('kube_pod_container_status_running{container="producerd", pod="0"}', f"1{STEADY}")
    assert alerts(tmp_path, pods, targets, seen).pages == ["ProducerdDaemonsUnseen a", "ProducerdDaemonsUnseen b"]


@pytest.mark.promise("typing-error-user-node")
def test_a_record_that_is_too_large_pages_nobody(tmp_path: Path) -> None:
    reason = 'stream="flights", reason="RECORD_TOO_LARGE"'
    fleet = (
        Fleet()
        .also(f"producerd_failed_records_total{{{reason}}}", "0x115 1x200")
        .also(f"producerd_ingest_rejected_records_total{{{reason}}}", "0x115 1x200")
    )
    assert alerts(tmp_path, fleet).pages == []


@pytest.mark.promise("typing-error-user-node")
def test_a_paused_stream_that_was_refused_pages_nobody(tmp_path: Path) -> None:
    """On every node, and for hours."""
    fleet = Fleet().on(
        1.0,
        stream_paused=f"1{STEADY}",
        stream_up=f"0{STEADY}",
        queue_oldest_record_age_seconds=f"0+60{STEADY}",
        delivered_records_total=f"0{STEADY}",
        ingest_records_total="0+600x10 6000x130",
        delivery_latency_seconds_count=f"0{STEADY}",
        delivery_latency_seconds_bucket=f"0{STEADY}",
    )
    assert alerts(tmp_path, fleet) == Fired([], ["ProducerdStreamPaused a flights"])


def test_a_lost_node_pages_nobody(tmp_path: Path) -> None:
    gone = dict.fromkeys(("stream_up", "queue_records", "ready"), "1x60 _x300")
    fleet = Fleet().on(0.025, up="1x60 0x300", **gone)
    assert alerts(tmp_path, fleet) == Fired([], ["ProducerdNodesInTrouble a down"])


@pytest.mark.promise("targets-gone-noticed")
@pytest.mark.parametrize("clusters", [1, 2])
def test_all_targets_gone_is_noticed(tmp_path: Path, clusters: int) -> None:
    """For an hour: a cluster that was meant to go does not page all night."""
    gone = Fleet("a").on(1.0, up=GONE)
    stays = [Fleet("b").on(1.0, up="1x300")] if clusters == 2 else []
    fired = alerts(tmp_path, gone, *stays)
    assert "ProducerdDaemonsAbsent a" in fired.pages
    assert not [name for name in fired.pages if name.endswith((" b", " b flights"))]
    hours_later = alerts(tmp_path, gone, *stays, at=("160m",)).pages
    assert not [name for name in hours_later if "Absent" in name]


@pytest.mark.promise("targets-gone-noticed")
def test_rules_without_any_daemon_are_silent(tmp_path: Path) -> None:
    assert alerts(tmp_path, Fleet(nodes=0)) == Fired([], [])


@pytest.mark.promise("targets-gone-noticed")
def test_a_cluster_that_gets_another_name_pages_nobody(tmp_path: Path) -> None:
    """A quarter of its nodes has gone meanwhile."""
    before, after = Fleet("").on(1.0, up=GONE), Fleet("named", nodes=30).on(1.0, up="_x90 1x300")
    fired = alerts(tmp_path, before, after, at=("100m", "120m", "145m"))
    assert [name for name in fired.pages if "Absent" in name] == []


@pytest.mark.promise("targets-gone-noticed")
def test_a_cluster_that_vanishes_is_noticed_though_a_small_one_comes(tmp_path: Path) -> None:
    """Three of its 40 instances have names that the lost ones had."""
    gone, job = Fleet("a").on(1.0, up=GONE), Fleet("job", nodes=3).on(1.0, up="_x85 1x300")
    assert alerts(tmp_path, gone, job, at=("100m", "120m", "145m")).pages[0] == "ProducerdDaemonsAbsent a"


@pytest.mark.promise("targets-gone-noticed")
def test_a_cluster_that_vanishes_soon_after_it_came_is_noticed(tmp_path: Path) -> None:
    """It was there for 20 minutes."""
    assert "ProducerdDaemonsAbsent a" in alerts(tmp_path, Fleet().on(1.0, up="_x60 1x20 _x300"), at=("100m",)).pages


@pytest.mark.promise("tenth-targets-gone-ticket")
def test_more_than_a_tenth_of_the_targets_gone_is_a_ticket(tmp_path: Path) -> None:
    assert alerts(tmp_path, Fleet().on(0.125, up=GONE)).tickets == ["ProducerdDaemonsFewer a"]
    assert alerts(tmp_path, Fleet().on(0.1, up=GONE)).tickets == []


def test_a_stream_that_most_nodes_are_refused_is_noticed(tmp_path: Path) -> None:
    fleet = Fleet().on(0.9, stream_up="1x90 0x300")
    assert alerts(tmp_path, fleet).pages == ["ProducerdStreamRefused a flights"]


def test_a_stream_that_refuses_each_frame_stays_noticed_though_none_is_taken(tmp_path: Path) -> None:
    """As where ListShards is denied: no record is taken, and none fails."""
    refusing = {"ingest_records_total": f"0{STEADY}", "queue_records": f"0{STEADY}"}
    fleet = Fleet().on(0.9, stream_up=f"0{STEADY}", refused_records_total=f"0+600{STEADY}", **refusing)
    assert alerts(tmp_path, fleet).pages == ["ProducerdStreamRefused a flights"]


@pytest.mark.promise("stream-settings-lost")
def test_a_stream_that_the_settings_lost_pages_and_one_job_s_mistake_does_not(tmp_path: Path) -> None:
    many, few = (
        Fleet().on(0.1, refused_opens_total=f"0+1{STEADY}"),
        Fleet("b").on(0.075, refused_opens_total=f"0+1{STEADY}"),
    )
    fired = alerts(tmp_path, many, few)
    assert fired.pages == ["ProducerdStreamsNotOpened a"]
    assert "ProducerdNodesInTrouble b not_opened" in fired.tickets


def test_nothing_delivered_is_noticed_where_nobody_has_paused(tmp_path: Path) -> None:
    fleet = Fleet().on(1.0, delivered_records_total="0+600x90 54000x300")
    assert alerts(tmp_path, fleet).pages == ["ProducerdNothingDelivered a flights"]


@pytest.mark.promise("trouble-pages-twentieth")
@pytest.mark.parametrize("trouble", SICK)
def test_a_trouble_pages_from_a_twentieth_of_the_nodes_on(tmp_path: Path, trouble: str) -> None:
    assert alerts(tmp_path, Fleet().on(0.05, **SICK[trouble])).pages == PAGES[trouble]


@pytest.mark.promise("trouble-pages-twentieth")
@pytest.mark.parametrize("trouble", SICK)
def test_a_node_in_trouble_is_a_ticket_and_pages_nobody(tmp_path: Path, trouble: str) -> None:
    """One of 40, and one of 40 where only four nodes use the stream.  It fails one record in a hundred."""
    few = (
        Fleet()
        .on(1.0, **IDLE)
        .on(0.1, **dict.fromkeys(IDLE, f"0+600{STEADY}") | {"queue_oldest_record_age_seconds": f"1{STEADY}"})
    )
    sick = {**SICK, "failing": {"failed_records_total": f"0+6{STEADY}"}}[trouble]
    for fleet in (Fleet(), few):
        fleet.on(0.025, **sick)
        fired = alerts(tmp_path, fleet)
        assert fired.pages == []
        assert [name for name in fired.tickets if "Slowly" not in name] == [f"ProducerdNodesInTrouble a {trouble}"]


def test_records_that_are_abandoned_are_noticed(tmp_path: Path) -> None:
    fleet = Fleet().on(0.025, discarded_records_total="0x115 40x200")
    assert alerts(tmp_path, fleet).pages == ["ProducerdRecordsAbandoned a flights"]


def test_records_that_fail_are_noticed_by_their_share(tmp_path: Path) -> None:
    burning = ["ProducerdFailedBurn a flights", "ProducerdRecordsFailed a flights"]
    assert alerts(tmp_path, Fleet().on(1.0, failed_records_total=f"0+30{STEADY}")).pages == burning
    assert alerts(tmp_path, Fleet().on(0.025, failed_records_total="0+1x10 10x130")).pages == []


@pytest.mark.promise("quiet-nodes-fail-noticed")
@pytest.mark.parametrize("share", [0.04, 0.05, 0.4])
def test_quiet_nodes_that_fail_are_noticed_next_to_busy_ones(tmp_path: Path, share: float) -> None:
    """All of their records fail, and the others store 6,000 times as many."""
    quiet = {"ingest_records_total": f"0+10{STEADY}", "delivered_records_total": f"5{STEADY}"}
    fleet = (
        Fleet(nodes=100)
        .on(1.0, **dict.fromkeys(quiet, f"0+60000{STEADY}"))
        .on(share, **quiet, failed_records_total=f"0+10{STEADY}")
    )
    ticket, page = Fired([], ["ProducerdNodesInTrouble a failing"]), Fired(["ProducerdRecordsFailed a flights"], [])
    assert alerts(tmp_path, fleet) == (page if share >= 0.05 else ticket)


@pytest.mark.promise("failure-4-percent-pages")
def test_a_failure_of_4_percent_pages_unless_the_rows_themselves_were_judged(tmp_path: Path) -> None:
    """For 110 minutes 2 of 50 nodes fail all their records, in a second cluster one of 50 a fifth, and others judge."""
    failing = {"delivered_records_total": f"5{STEADY}", "failed_records_total": f"0x10 0+600{STEADY}"}
    few, fewer, judged = Fleet(nodes=50).on(0.04, **failing), Fleet("b", nodes=50), Fleet("c", nodes=50)
    fewer.on(0.02, failed_records_total=f"0x10 0+120{STEADY}")
    for reason in ("RECORD_TOO_LARGE", "RECORD_INVALID"):
        judged.also(f'producerd_failed_records_total{{stream="flights", reason="{reason}"}}', f"0+15000{STEADY}")
    assert alerts(tmp_path, few, fewer, judged).pages == ["ProducerdFailedBurn a flights"]


@pytest.mark.promise("quiet-nodes-fail-noticed")
def test_a_record_that_fails_now_and_then_is_a_ticket_in_a_small_fleet(tmp_path: Path) -> None:
    """One in 14 minutes, on one node of four."""
    fleet = Fleet(nodes=4).on(1.0, delivered_records_total=f"0+10{STEADY}")
    fleet.on(0.25, failed_records_total=" ".join(f"{minute // 14}" for minute in range(140)))
    fired = alerts(tmp_path, fleet)
    assert (fired.pages, fired.tickets[-1]) == ([], "ProducerdNodesInTrouble a failing")


@pytest.mark.promise("typing-error-user-node")
def test_a_failed_record_of_a_quiet_stream_pages_nobody(tmp_path: Path) -> None:
    """The fleet stores 20 records in 10 minutes."""
    quiet = dict.fromkeys(("ingest_records_total", "delivered_records_total"), f"0+0.1{STEADY}")
    fleet = Fleet(nodes=20).on(1.0, **quiet).on(0.05, failed_records_total="0x110 1x300")
    assert alerts(tmp_path, fleet, at=("115m", "120m")).pages == []


def test_two_late_records_of_a_quiet_batch_page_nobody(tmp_path: Path) -> None:
    """A node of five sends ten records, once."""
    late = {"delivery_latency_seconds_count": "0x110 5x4 10x9", "delivery_latency_seconds_bucket": "0x110 4x4 8x9"}
    assert alerts(tmp_path, Fleet(nodes=5).on(1.0, **IDLE).on(0.2, **late)).pages == []


@pytest.mark.promise("failure-4-percent-pages")
def test_a_stream_of_one_node_of_many_that_was_deleted_pages_once(tmp_path: Path) -> None:
    """It is refused, and nothing of it is stored: all its records fail, and none for its own fault."""
    fleet = Fleet(nodes=100)
    for name, values in {
        "stream_up": "1x60 0x300",
        "stream_paused": "0x300",
        "queue_records": "10x300",
        "queue_oldest_record_age_seconds": "0+60x300",
        "ingest_records_total": "0+600x300",
        "delivered_records_total": "0+600x60 36000x300",
    }.items():
        fleet.also(f'producerd_{name}{{stream="tried"}}', values)
    fleet.also('producerd_failed_records_total{stream="tried", reason="STREAM_NOT_FOUND"}', "0x60 0+600x300")
    assert alerts(tmp_path, fleet).pages == ["ProducerdFailedBurn a tried"]


@pytest.mark.promise("nodes-use-stream-hide")
def test_nodes_that_do_not_use_a_stream_do_not_hide_those_that_do(tmp_path: Path) -> None:
    """Four of 100 nodes write; three of them cannot reach Kinesis, and their callers wait."""
    writes = {"queue_records": "9", "queue_oldest_record_age_seconds": "1"}
    fleet = (
        Fleet(nodes=100)
        .on(1.0, **IDLE)
        .on(0.04, **{name: f"{writes.get(name, '0+600')}{STEADY}" for name in IDLE})
        .on(0.03, **IDLE)
        .on(
            0.03,
            stream_up=f"0{STEADY}",
            queue_records=f"9000{STEADY}",
            queue_oldest_record_age_seconds=f"0+60{STEADY}",
            backpressure_active_seconds_total=f"0+60{STEADY}",
        )
    )
    assert alerts(tmp_path, fleet) == Fired(
        ["ProducerdRecordsStuck a flights", "ProducerdStreamRefused a flights"], ["ProducerdBackpressure a flights"]
    )


def test_records_that_fail_long_after_they_were_accepted_are_noticed(tmp_path: Path) -> None:
    """Nothing was accepted for an hour, and what was queued fails."""
    failed = {**IDLE, "queue_records": "9000x110 0x300", "failed_records_total": "0x110 9000x300"}
    assert "ProducerdRecordsFailed a flights" in alerts(tmp_path, Fleet().on(1.0, **failed)).pages


@pytest.mark.promise("daemons-down-most-time")
@pytest.mark.parametrize("stays", ["0 1 1 1 1 ", "1 0 0 0 0 "])
def test_daemons_that_are_down_most_of_the_time_are_noticed(tmp_path: Path, stays: str) -> None:
    """All nodes, in step, so that the rules always find them in the first of the five minutes."""
    fired = alerts(tmp_path, Fleet().on(1.0, up=stays * 30))
    assert fired.pages == (["ProducerdDaemonsDown a"] if stays.count("0") > 1 else [])


@pytest.mark.promise("nodes-come-go-trouble")
def test_a_node_that_is_up_for_a_minute_in_twenty_is_a_ticket(tmp_path: Path) -> None:
    fleet = Fleet().on(0.025, up=("1 " + "0 " * 19) * 7)
    for at in ("90m", "100m"):  # it is up at the second
        assert alerts(tmp_path, fleet, at=(at,)) == Fired([], ["ProducerdNodesInTrouble a down"])


@pytest.mark.promise("memory-beyond-settings")
def test_memory_beyond_what_the_settings_need_pages_where_no_limit_is_set(tmp_path: Path) -> None:
    """It grows from 0.2 to 14 GB."""
    grows = {"process_resident_memory_bytes": f"2e8+1e8{STEADY}", "memory_limit_bytes": f"1e18{STEADY}"}
    fleet = Fleet().on(1.0, **grows, memory_needed_bytes=f"1e9{STEADY}")
    assert alerts(tmp_path, fleet).pages == ["ProducerdMemoryNearLimit a"]


@pytest.mark.promise("nodes-come-go-trouble")
def test_what_still_works_but_not_forever_is_a_ticket_on_however_many_nodes(tmp_path: Path) -> None:
    """A clock an hour off, lines of the log lost once, hardly a file left to open, and no renewal that succeeds."""
    fleet = Fleet(nodes=4).on(
        0.5,
        clock_offset_seconds=f"-3600{STEADY}",
        log_lines_lost_total=f"0x80 7{STEADY}",
        process_open_fds=f"930{STEADY}",
        credential_refreshes_total=f"0+12{STEADY}",
    )
    troubles = ("clock", "files", "log", "renewals")
    assert alerts(tmp_path, fleet) == Fired([], [f"ProducerdNodesInTrouble a {trouble}" for trouble in troubles])


def test_loops_that_hang_are_a_ticket_however_many_they_are(tmp_path: Path) -> None:
    """Most of the time they do not come to their work, for five seconds each time."""
    for share in (0.025, 0.05, 0.5):
        fleet = Fleet().on(share, event_loop_lag_seconds_sum=f"0+57{STEADY}")
        assert alerts(tmp_path, fleet) == Fired([], ["ProducerdNodesInTrouble a busy"])


@pytest.mark.promise("daemons-restart-16-minutes")
@pytest.mark.parametrize("share", [0.025, 1.0])
def test_daemons_that_restart_every_16_minutes_are_a_ticket(tmp_path: Path, share: float) -> None:
    """That is too seldom for the page."""
    fleet = Fleet().on(share, process_start_time_seconds=" ".join(str(minute // 16) for minute in range(140)))
    assert alerts(tmp_path, fleet, at=("135m",)) == Fired([], ["ProducerdNodesInTrouble a restarts_slowly"])


@pytest.mark.promise("daemons-restart-16-minutes")
def test_restarts_that_have_ended_an_hour_ago_are_no_trouble(tmp_path: Path) -> None:
    fleet = Fleet().on(1.0, process_start_time_seconds=f"0+240x40 9999{STEADY}")
    assert alerts(tmp_path, fleet, at=("135m",)) == Fired([], [])


def test_a_page_is_not_a_ticket_too(tmp_path: Path) -> None:
    fleet = Fleet().on(0.9, stream_up=f"0{STEADY}")
    assert alerts(tmp_path, fleet).tickets == []


@pytest.mark.promise("paused-stream-node-ticket")
def test_a_paused_stream_on_one_node_is_a_ticket_and_no_trouble(tmp_path: Path) -> None:
    """It was refused when somebody paused it, and no caller tries it again.  None waits for room either."""
    fleet = Fleet().on(0.025, stream_paused=f"1{STEADY}", **SICK["stuck"], **SICK["refused"])
    assert alerts(tmp_path, fleet) == Fired([], ["ProducerdStreamPaused a flights"])


def test_a_refusal_that_nobody_has_tried_again_is_no_trouble(tmp_path: Path) -> None:
    """A nightly job was refused on some nodes; they know no better until the next one."""
    fleet = Fleet().on(1.0, **IDLE).on(0.1, **SICK["refused"])
    assert alerts(tmp_path, fleet) == Fired([], [])


def test_records_that_are_late_are_noticed(tmp_path: Path) -> None:
    fleet = Fleet().on(1.0, delivery_latency_seconds_bucket=f"0+480{STEADY}")
    assert alerts(tmp_path, fleet).pages == ["ProducerdLateBurn a flights"]


FULL: Final = {
    "queue_oldest_record_age_seconds": "700x80 1x60",
    "delivery_latency_seconds_bucket": "0x80 600+600x60",
}
"""What a node shows whose queue is full and holds 700 seconds of its part of the shards, until it is empty."""


@pytest.mark.promise("fleet-writes-fast-shards")
def test_a_fleet_that_writes_as_fast_as_the_shards_store_pages_nobody(tmp_path: Path) -> None:
    fleet = Fleet().on(1.0, **FULL, backpressure_cause_seconds_total="0+60x60 3600x80")
    assert alerts(tmp_path, fleet, at=("60m", "80m", "90m", "110m", "120m")).pages == []


BATCHES: Final = {
    "slow_seconds_total": " ".join(f"{(minute // 10) * 120 + min(120, minute % 10 * 60)}" for minute in range(140)),
    "delivery_latency_seconds_bucket": f"0+300{STEADY}",
}
"""What a node shows that drains a batch in two and a half minutes, every ten minutes, while no caller waits."""


@pytest.mark.promise("batch-larger-minute")
@pytest.mark.parametrize(
    ("held_by", "nodes", "use", "pages"),
    [
        ("quota", 1, 1.0, False),
        ("quota", NODES, 0.3, False),
        ("throttles", NODES, 0.025, False),
        ("throttles", 3, 0.1, True),
        ("other", NODES, 1.0, True),
    ],
)
def test_a_batch_that_is_larger_than_a_minute_of_the_shards_quota_pages_nobody(
    tmp_path: Path, held_by: str, nodes: int, use: float, pages: bool
) -> None:
    """Shards that store less than their quota page: others write to them, or answers are late."""
    fleet = Fleet(nodes=nodes, held_by=held_by).on(1.0, **BATCHES, shard_utilization_max_ratio=f"{use}{STEADY}")
    late = ["ProducerdLateBurn a flights"]
    assert alerts(tmp_path, fleet, at=("75m", "90m", "120m")).pages == (late if pages else [])


@pytest.mark.promise("outage-dead-sts-lost")
def test_an_outage_pages_by_its_cause_and_not_again_after_it(tmp_path: Path) -> None:
    """For 30 minutes after it the windows see records that were late, or failed."""
    fleet = Fleet().on(1.0, **OUTAGE)
    streams = ("NothingDelivered", "RecordsStuck", "StreamRefused")
    during = alerts(tmp_path, fleet, at=("40m", "50m", "60m", "68m")).pages
    assert during == [f"Producerd{name} a flights" for name in streams]
    assert alerts(tmp_path, fleet, at=tuple(f"{minute}m" for minute in range(75, 120, 5))).pages == []


@pytest.mark.promise("outage-dead-sts-lost")
def test_credentials_page_before_they_end_and_then_nothing_else_says_why(tmp_path: Path) -> None:
    fleet, credentials = Fleet().on(1.0, **DEAD_STS), "ProducerdCredentialsExpire a flights"
    assert alerts(tmp_path, fleet, at=("55m",)).pages == [credentials]
    assert alerts(tmp_path, fleet, at=("65m", "75m", "90m", "110m")).pages == [
        credentials,
        "ProducerdNothingDelivered a flights",
        "ProducerdRecordsStuck a flights",
    ]


def test_credentials_that_are_renewed_at_the_last_minutes_page_nobody(tmp_path: Path) -> None:
    """AWS promises new ones five minutes before the old ones end."""
    fleet = Fleet().on(1.0, credentials_expiry_timestamp_seconds="3600x54 99999x90")
    assert alerts(tmp_path, fleet, at=("50m", "54m", "60m")).pages == []


def test_credentials_of_a_fleet_page_though_a_few_nodes_are_refused(tmp_path: Path) -> None:
    """They are refused an hour before."""
    fleet = Fleet().on(1.0, **SICK["credentials"]).on(0.1, **SICK["refused"])
    assert alerts(tmp_path, fleet).pages == ["ProducerdCredentialsExpire a flights"]


@pytest.mark.promise("batch-larger-minute")
def test_a_single_batch_that_is_larger_than_a_minute_of_the_quota_pages_nobody(tmp_path: Path) -> None:
    """It takes two and a half minutes."""
    batch = {
        "ingest_records_total": "0x60 9000x80",
        "delivered_records_total": "0x60 3600 7200 9000x80",
        "delivery_latency_seconds_count": "0x60 3600 7200 9000x80",
        "delivery_latency_seconds_bucket": "0x60 3600x82",
    }
    shards, service = Fleet(nodes=2), Fleet("b", nodes=2, held_by="other")
    for fleet in (shards, service):
        fleet.on(1.0, **IDLE).on(0.5, **batch, slow_seconds_total="0x60 30 90 120x80")
    at = tuple(f"{minute}m" for minute in (61, 62, 63, 64, 65, 70))
    assert alerts(tmp_path, shards, service, at=at).pages == ["ProducerdLateBurn b flights"]


@pytest.mark.promise("fleet-writes-fast-shards")
def test_records_that_are_late_for_another_reason_are_noticed(tmp_path: Path) -> None:
    waits = 'producerd_backpressure_cause_seconds_total{stream="flights", cause="service"}'
    fleet = Fleet().on(1.0, **FULL).also(waits, "0+60x60 3600x80")
    assert alerts(tmp_path, fleet, at=("60m",)).pages == ["ProducerdLateBurn a flights"]


@pytest.mark.promise("nodes-store-nothing")
def test_nodes_that_store_nothing_are_noticed_in_a_fleet_with_full_queues(tmp_path: Path) -> None:
    fleet = Fleet().on(1.0, **FULL, backpressure_cause_seconds_total="0+60x60 3600x80")
    fleet.on(0.05, delivered_records_total=f"5{STEADY}")
    assert alerts(tmp_path, fleet, at=("60m",)).pages == ["ProducerdRecordsStuck a flights"]


HUNG: Final = {"shards_silent": "0x60 1x80", "queue_oldest_record_age_seconds": "1x59 0+60x80"}
"""What a node shows of a stream with a shard that answers nothing any more, and others that do."""


@pytest.mark.promise("shard-answer-ticket")
@pytest.mark.parametrize("share", [0.025, 1.0])
def test_a_shard_that_does_not_answer_is_a_ticket_after_ten_minutes(tmp_path: Path, share: float) -> None:
    fleet = Fleet().on(share, **HUNG)
    assert alerts(tmp_path, fleet, at=("65m",)) == Fired([], [])
    assert alerts(tmp_path, fleet, at=("80m",)) == Fired([], ["ProducerdShardSilent a flights"])


@pytest.mark.promise("shard-answer-ticket")
def test_a_hot_shard_at_its_quota_is_not_silent(tmp_path: Path) -> None:
    """Its queue holds more than ten minutes of its quota, and now and then an answer of another shard is late."""
    fleet = Fleet().on(1.0, queue_oldest_record_age_seconds=f"700{STEADY}", shards_silent="0 0 0 1 " * 35)
    assert alerts(tmp_path, fleet, at=("75m", "79m", "80m", "90m", "120m")) == Fired([], [])


def test_an_outage_of_all_shards_is_not_a_silent_shard(tmp_path: Path) -> None:
    """When it ends after 40 minutes, one shard answers first."""
    answers = HUNG | {"shards_silent": "0x60 8x39 3 0x40"}
    fleet = Fleet().on(1.0, **answers, stream_up="1x60 0x38 1x41")
    told = alerts(tmp_path, fleet, at=("80m", "99m", "100m", "101m", "102m", "105m"))
    assert "ProducerdShardSilent a flights" not in told.tickets


def test_two_clusters_with_a_stream_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    """The sick one is an eighth of the other, which would hide it."""
    sick = Fleet("b", nodes=5).on(1.0, stream_up="1x90 0x300", delivered_records_total="0+600x90 54000x300")
    assert alerts(tmp_path, Fleet("a"), sick).pages == [
        "ProducerdNothingDelivered b flights",
        "ProducerdStreamRefused b flights",
    ]


def test_credentials_that_end_while_a_stream_is_idle_page_nobody(tmp_path: Path) -> None:
    """They end at 118 minutes of promtool's clock."""
    ends = {"credentials_expiry_timestamp_seconds": f"7100{STEADY}"}
    assert alerts(tmp_path, Fleet().on(1.0, **ends)).pages == ["ProducerdCredentialsExpire a flights"]
    assert alerts(tmp_path, Fleet().on(1.0, **ends, **IDLE)).pages == []


@pytest.mark.promise("daemons-down-most-time")
def test_a_node_that_has_just_come_is_not_down_yet(tmp_path: Path) -> None:
    """It is a target before its daemon answers, which takes two nodes four minutes, and two others forever."""
    at_first, forever = "_x60 0x4 1x200", "_x60 0x200"
    coming, broken = Fleet().on(0.05, up=at_first), Fleet("b").on(0.05, up=forever)
    assert alerts(tmp_path, coming, broken, at=("65m", "70m")).pages == []
    assert alerts(tmp_path, coming, broken, at=("80m",)).pages == ["ProducerdDaemonsDown b"]


@pytest.mark.promise("nodes-come-go-trouble")
def test_nodes_that_come_and_go_are_no_trouble(tmp_path: Path) -> None:
    """At every time another one is down, for ten minutes."""
    fleet = Fleet()
    for node in range(11):
        fleet.changed["up", node] = f"1x{10 + 10 * node} 0x10 1x200"
    assert alerts(tmp_path, fleet, at=("60m", "90m", "120m")).tickets == []


@pytest.mark.promise("two-releases-node-stream")
def test_two_releases_on_a_node_with_a_stream_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    """One of them stores.  The other one's stream has stopped, or one of them is paused."""
    stores, stops = Fleet(release="t/a"), Fleet(release="t/b").on(1.0, **SICK["stuck"], delivered_records_total="9x200")
    assert alerts(tmp_path, stores, stops).pages == ["ProducerdRecordsStuck a flights"]
    stores.on(1.0, stream_paused=f"1{STEADY}")
    assert "ProducerdRecordsStuck a flights" in alerts(tmp_path, stores, stops).pages


@pytest.mark.promise("fleet-writes-fast-shards")
def test_a_node_that_waits_for_a_shard_does_not_hide_late_records_of_others(tmp_path: Path) -> None:
    late = {"delivery_latency_seconds_bucket": f"0{STEADY}"}
    fleet = Fleet(nodes=10).on(1.0, **late).on(0.1, backpressure_cause_seconds_total="0x90 0+60x30")
    assert alerts(tmp_path, fleet, at=("110m",)).pages == ["ProducerdLateBurn a flights"]


@pytest.mark.promise("fleet-writes-fast-shards")
def test_records_that_are_late_after_a_pause_page_nobody(tmp_path: Path) -> None:
    """It takes ten minutes, and what waited meanwhile is stored within two."""
    paused = {
        "stream_paused": "0x60 1x9 0x100",
        "delivered_records_total": "0+600x60 36000x9 36000+3300x2 43200+600x60",
        "delivery_latency_seconds_count": "0+600x60 36000x9 36000+3300x2 43200+600x60",
        "delivery_latency_seconds_bucket": "0+600x60 36000x9 36000+600x100",
    }
    fleet = Fleet(nodes=10).on(1.0, **paused)
    assert alerts(tmp_path, fleet, at=("75m", "80m")).pages == []
