"""A daemon starts only where all that its settings let it hold fits the memory limit; if not, it says what would."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from producerd.config import Config, load
from producerd.config.cgroup import MemoryLimit
from producerd.config.memory import IDLE_BYTES, check_fits, in_words, lowered, needed_bytes
from producerd.config.settings import LEAST_REQUEST_BYTES, NodeSettings
from producerd.config.values import KIB, MIB
from producerd.errors import ConfigurationError

FILE = "/sys/fs/cgroup/memory.max"


def settings(*sets: str) -> Config:
    return load(None, sets, {})


def refusal(config: Config, limit_bytes: int) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check_fits(config, MemoryLimit(limit_bytes, FILE))
    (line,) = caught.value.problems
    return line


def test_the_sum_is_the_law_of_the_process_term_by_term() -> None:
    config = settings(
        "node_queue_limit_bytes=300 MiB",
        "node_max_in_flight_bytes=20 MiB",
        "queue_limit_bytes=32 MiB",
        "streams.large.queue_limit_bytes=40 MiB",
        "max_connections=100",
        "max_streams=10",
    )
    assert {term.name: term.bytes for term in needed_bytes(config).terms} == {
        "idle": IDLE_BYTES,
        "queues": 360 * MIB,
        "requests": int(2.2 * (20 + 10) * MIB),
        "jobs": 8 * (10 + 1) * MIB,
        "connections": 100 * (32 * KIB + int(1.1 * KIB * 64)),
        "lanes": 10 * 64 * 4 * KIB,
    }
    assert needed_bytes(config).bytes == sum(term.bytes for term in needed_bytes(config).terms)


def test_a_job_is_no_larger_than_all_queues_and_of_streams_that_may_be_opened() -> None:
    def jobs(*sets: str) -> int:
        return next(term.bytes for term in needed_bytes(settings(*sets)).terms if term.name == "jobs")

    listed = ("streams_allowed=listed", "streams.a.queue_limit_bytes=4 MiB")
    assert jobs(*listed) == 8 * (1 + 1) * MIB
    assert jobs(listed[1]) == 8 * (16 + 1) * MIB, "any other stream has the defaults"
    small = ("max_streams=1", "node_queue_limit_bytes=2 MiB")
    assert jobs(*small) == 8 * 2 * MIB


def test_what_fits_to_the_byte_fits_and_one_byte_less_does_not() -> None:
    need = needed_bytes(Config()).bytes
    check_fits(Config(), MemoryLimit(need, FILE))
    refusal(Config(), need - 1)


def test_without_a_limit_everything_fits() -> None:
    check_fits(settings("node_queue_limit_bytes=1024 GiB"), MemoryLimit())
    check_fits(settings("node_queue_limit_bytes=1024 GiB"), MemoryLimit(problem="unreadable"))


def test_the_refusal_names_limit_need_and_each_term() -> None:
    line = refusal(Config(), 512 * MIB)
    assert line.startswith(f"memory: up to 850 MiB may be needed, and the limit of this cgroup is 512 MiB ({FILE}): ")
    assert ", or raise the limit to 850 MiB. " in line
    for term in (
        "idle 176 MiB",
        "queues 307 MiB (1.2 x node_queue_limit_bytes = 256 MiB)",
        "requests 163 MiB (2.2 x (10 MiB for one larger record + node_max_in_flight_bytes = 64 MiB))",
        "jobs 136 MiB (8 x 17 MiB",
        "connections 51 MiB (max_connections = 512 x (32 KiB + 1.1 KiB x 64 frames))",
        "lanes 16 MiB (4 KiB x max_streams = 64 x 64 open shards, assumed)",
    ):
        assert term in line


@pytest.mark.promise("daemon-outgrow-cgroup")
@pytest.mark.parametrize("limit_mib", [300, 384, 512, 640, 768, 800])
@pytest.mark.parametrize("sets", [(), ("streams.a.queue_limit_bytes=200 MiB", "max_streams=4"), ("log_level=debug",)])
def test_the_settings_that_it_proposes_hold_and_fit(limit_mib: int, sets: tuple[str, ...]) -> None:
    config = settings(*sets)
    line = refusal(config, limit_mib * MIB)
    proposed = dict(re.findall(r'(\w+) = "?([\d ]+(?:[KM]iB)?)"?(?: where a stream has more)?(?=,)', line))
    streams = {"streams.a.queue_limit_bytes": proposed["queue_limit_bytes"]} if "queue_limit_bytes" in proposed else {}
    again = settings(*sets, *(f"{key}={value}" for key, value in (proposed | streams).items()))
    check_fits(again, MemoryLimit(limit_mib * MIB, FILE))
    assert needed_bytes(again).bytes > 0.9 * limit_mib * MIB, "and use what there is"


def test_streams_follow_the_node_where_it_gets_less_than_they_have() -> None:
    line = refusal(Config(), 300 * MIB)
    assert (
        'set memory = "300 MiB", by which max_streams = 8, node_queue_limit_bytes = "17 MiB", '
        'node_max_in_flight_bytes = "4 MiB", max_connections = 256, queue_limit_bytes = "17 MiB" where a stream has '
        "more, or raise"
    ) in line
    assert "where a stream has more" not in refusal(Config(), 768 * MIB)


@pytest.mark.parametrize("in_flight_bytes", [8 * MIB, 64 * MIB])
def test_each_stream_has_room_for_two_frames_and_for_two_requests(in_flight_bytes: int) -> None:
    lower = lowered(settings(f"node_max_in_flight_bytes={in_flight_bytes}"), 300 * MIB)
    assert lower is not None
    node = lower.node
    by_requests = node.node_max_in_flight_bytes // (2 * LEAST_REQUEST_BYTES)
    by_frames = node.node_queue_limit_bytes // (2 * MIB)
    assert node.max_streams == min(by_requests, by_frames) < 64
    assert (by_requests < by_frames) is (in_flight_bytes == 8 * MIB)


def test_all_limits_get_the_same_share() -> None:
    config = settings("max_connections=10000", "node_queue_limit_bytes=1000 MiB", "node_max_in_flight_bytes=100 MiB")
    lower = lowered(config, 800 * MIB)
    assert lower is not None
    percent = lower.node.node_max_in_flight_bytes // MIB
    assert 0 < percent < 100
    assert lower.node.node_queue_limit_bytes == percent * 10 * MIB
    assert lower.node.max_connections == percent * 100


def test_a_memory_is_used_to_the_byte() -> None:
    config = settings("streams.a.queue_limit=5")
    need = needed_bytes(config).bytes
    assert needed_bytes(settings(f"memory={need}", "streams.a.queue_limit=5")).bytes == need
    lower = lowered(config, need - 1)
    assert lower is not None
    assert lowered(config, needed_bytes(lower).bytes) == lower


def test_settings_within_a_memory_hold_fit_and_say_why_they_are_lower() -> None:
    config = settings("memory=320 MiB", "streams.a.aggregation=kpl", "queue_limit_bytes=1 MiB")
    assert 0.9 * 320 * MIB < needed_bytes(config).bytes <= 320 * MIB
    assert (config.defaults.queue_limit_bytes, config.node.node_queue_limit_bytes) == (MIB, 46 * MIB)
    assert config.origins["node_queue_limit_bytes"] == 'lowered for memory = "320 MiB"'
    assert config.origins["defaults.queue_limit_bytes"] == "--set", "as it was low enough"
    assert settings("memory=1 GiB").node.node_queue_limit_bytes == NodeSettings().node_queue_limit_bytes
    origins = settings("memory=320 MiB", "streams.a.queue_limit=5").origins
    assert origins["defaults.queue_limit_bytes"].startswith("lowered")
    assert origins['streams."a".queue_limit_bytes'].startswith("lowered")


@pytest.mark.parametrize("given", ["10 MiB", "239 MiB"])
def test_a_memory_that_is_too_small_is_refused_with_the_least_one(given: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf'memory = "{given}" \(--set\): no limits are low enough; at least 240 MiB'
    ):
        settings(f"memory={given}")
    assert settings("memory=240 MiB").node.max_streams == 1


def test_where_the_streams_leave_no_lower_limits_it_says_so_too() -> None:
    many = [f"streams.s{number}.queue_limit=10" for number in range(64)]
    with pytest.raises(
        ConfigurationError, match=r'memory = "400 MiB" \(--set\): no limits are low enough; at least 696 MiB'
    ):
        settings("memory=400 MiB", "node_queue_limit_bytes=128 MiB", *many)
    assert len(settings("memory=696 MiB", "node_queue_limit_bytes=128 MiB", *many).streams) == 64


def test_where_no_lower_limits_help_it_says_so() -> None:
    line = refusal(Config(), 200 * MIB)
    assert "no lower limits of queues and requests are enough: raise the limit to 850 MiB" in line
    many = {f"s{number}": Config().defaults for number in range(64)}
    assert lowered(replace(Config(), streams=many), 512 * MIB) is None, "each listed stream has its floor"
    assert lowered(replace(Config(), streams=many), 768 * MIB) is not None


def test_in_words() -> None:
    assert in_words(Config(), MemoryLimit(1024 * MIB, FILE)) == (
        "needs at most 850 MiB; the limit of this cgroup is 1,024 MiB"
    )
    assert in_words(Config(), MemoryLimit()) == "needs at most 850 MiB; no limit is set"
    assert in_words(Config(), MemoryLimit(problem="denied")).endswith("no limit is set, as far as is known: denied")
