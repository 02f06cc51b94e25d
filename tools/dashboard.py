"""The dashboard for Grafana: ``python -m tools.dashboard`` writes deploy/grafana/producerd.json.

Edit this file and not the JSON.  The panels are data here: a title, what to do about it, a unit and expressions.  What
all panels of a kind share is written once.

An expression names its selectors ``<fleet>``, ``<node>`` and ``<stream>``, which `SELECTORS` spells out.  A fleet has
up to 2,000 nodes, so a graph either aggregates over the nodes or shows the ten worst of them (`worst`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from tools import ROOT

FILE: Final = ROOT / "deploy/grafana/producerd.json"
UID: Final = "producerd"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION: Final = 39
"""Version of the JSON's form: Grafana 10.4 has it, and later ones migrate it when they load it."""
COLUMNS: Final = 24
"""Width of Grafana's grid."""
MOST_POINTS: Final = 200
"""Points of a graph at most: Prometheus reads the series of all nodes for each."""
FLEET: Final = 'cluster=~"$cluster", region=~"$region"'
SELECTORS: Final = {
    "<fleet>": FLEET,
    "<node>": f'{FLEET}, instance=~"$instance"',
    "<stream>": f'{FLEET}, instance=~"$instance", stream=~"$stream"',
}
A_NODE: Final = "cluster, region, job, instance"
"""Labels that name one daemon."""
BY_INSTANCE: Final = "cluster, region, instance"
QUANTILES: Final = {"median": 0.5, "90 %": 0.9, "99 %": 0.99}
PAGE_SHARE: Final = 0.05
"""Share of the nodes from which on the alerts page."""

Level = tuple[float, Literal["orange", "red", "green"]]
"""A value from which on a panel has this colour."""


class DashboardPanel(NamedTuple):
    """A panel: ``does`` says what it shows and what to do about it, ``queries`` has an expression for each legend.

    ``help`` is the page of docs/operate, and its heading, that helps.  ``none`` stands in place of "No data".  Below
    its first level a panel is green, or red if ``is_worst_low``.
    """

    title: str
    does: str
    unit: str
    queries: Mapping[str, str]
    help: str
    width: int = 8
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    levels: Sequence[Level] = ()
    is_worst_low: bool = False
    is_stacked: bool = False
    is_of_nodes: bool = False
    none: str = ""


def worst(expression: str, by: str, *, function: str = "topk") -> str:
    """Return the expression for the ten series that have the highest values at the end of the graph."""
    at_end = re.sub(r"(\{[^}]*\}(\[[^]]*\])?)", r"\1 @ end()", expression)
    return f"{expression} and on ({by}) {function}(10, {at_end})"


def quantiles(metric: str, selector: str) -> dict[str, str]:
    """Return quantiles of a histogram over all nodes."""
    rates = f"sum by (le) (rate({metric}_bucket{{{selector}}}[$__rate_interval]))"
    return {legend: f"histogram_quantile({quantile}, {rates})" for legend, quantile in QUANTILES.items()}


def means(histogram: str, selector: str) -> dict[str, str]:
    """Return the mean of a histogram over all nodes, and the highest of a node: a usual scrape has no more of it."""
    of_each = f"rate({histogram}_sum{{{selector}}}[$__rate_interval])"
    worst_node = f"max({of_each} / {of_each.replace('_sum{', '_count{')})"
    return {"mean": mean(histogram, selector), "mean of the worst node": worst_node}


def over_nodes(expression: str) -> dict[str, str]:
    """Return the median, the worst tenth and the highest of the nodes, each by the worst of its streams."""
    of_each = f"max by ({BY_INSTANCE}) ({expression})"
    return {
        "worst node": f"max({expression})",
        "worst tenth of the nodes": f"quantile(0.9, {of_each})",
        "median node": f"quantile(0.5, {of_each})",
    }


def rate(metric: str, selector: str, by: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({metric}{{{selector}}}[$__rate_interval]))"


def mean(histogram: str, selector: str) -> str:
    return f"{rate(f'{histogram}_sum', selector)} / {rate(f'{histogram}_count', selector)}"


LATE: Final = "producerd:acknowledged_late:ratio_rate1h{<fleet>}"
FAILED: Final = "producerd:failed:ratio_rate1h{<fleet>}"
NAMED: Final = 'stream!="(never stored)"'
FIRING: Final = 'ALERTS{alertname=~"Producerd.+", alertstate="firing", <fleet>'
FOR_QUANTILES: Final = "These are means: for quantiles, scrape with collect=all, and ask for histogram_quantile."
NO_TRAFFIC: Final = "no traffic, or alerts.yml is not loaded"

FLEET_PANELS: Final = (
    DashboardPanel(
        "Pages",
        "Alerts that page and fire now; the table below names them. At 0 there is nothing to do, if Prometheus has "
        "the rules of alerts.yml: without them the shares on the right have no data.",
        "short",
        {"": f'count({FIRING}, severity="page"}}) or vector(0)'},
        "metrics.md#alerts",
        4,
        "stat",
        [(1, "red")],
    ),
    DashboardPanel(
        "Tickets",
        "Alerts that do not page and fire now: delivery works, but not forever, or not on each node.",
        "short",
        {"": f'count({FIRING}, severity="ticket"}}) or vector(0)'},
        "metrics.md#alerts",
        4,
        "stat",
        [(1, "orange")],
    ),
    DashboardPanel(
        "Nodes ready",
        "Share of the nodes that serve clients. Below 100 %, the row Node lists the others. A drain counts, too.",
        "percentunit",
        {"": '(sum(producerd_ready{<fleet>}) or vector(0)) / count(up{job="producerd", <fleet>})'},
        "runbook-pages.md#producerddaemonsdown",
        4,
        "stat",
        [(1 - PAGE_SHARE, "orange"), (1, "green")],
        is_worst_low=True,
        none="Prometheus knows of no daemon",
    ),
    DashboardPanel(
        "Acknowledged within 60 s",
        "The worst stream in the last hour; the objective is 99 %. Below 85.6 % the alert ProducerdLateBurn pages, "
        "unless callers wait for the shards. See the row Stream for what holds the stream.",
        "percentunit",
        {"": f"1 - max({LATE.replace('}', f', {NAMED}}}')})"},
        "runbook-pages.md#producerdlateburn",
        4,
        "stat",
        [(0.856, "orange"), (0.99, "green")],
        is_worst_low=True,
        none=NO_TRAFFIC,
    ),
    DashboardPanel(
        "Not failed",
        "The worst stream in the last hour; the objective is 99.9 %. Below 98.56 % the alert ProducerdFailedBurn "
        "pages. The panel Failed, rejected and given up has the reasons.",
        "percentunit",
        {"": f"1 - max({FAILED.replace('}', f', {NAMED}}}')})"},
        "runbook-pages.md#producerdfailedburn",
        4,
        "stat",
        [(0.9856, "orange"), (0.999, "green")],
        is_worst_low=True,
        none=NO_TRAFFIC,
    ),
    DashboardPanel(
        "Callers blocked",
        "Callers that wait now, on all nodes and for all streams. That slows jobs down and loses nothing. "
        "If it lasts, see Why callers wait.",
        "short",
        {"": "sum(producerd_backpressure_blocked_clients{<fleet>})"},
        "slow-streams.md",
        4,
        "stat",
        none="Prometheus knows of no daemon",
    ),
    DashboardPanel(
        "Alerts",
        "Alerts that fire, and those that are about to (pending). Each name has a card in "
        "docs/operate/runbook-pages.md or runbook-tickets.md. Click a stream to see its row.",
        "short",
        {"": 'ALERTS{alertname=~"Producerd.+", <fleet>}'},
        "metrics.md#alerts",
        12,
        "table",
        none="No alert fires or is pending",
    ),
    DashboardPanel(
        "Nodes in trouble",
        "Share of the nodes that have a trouble, in the worst cluster, or of those that use the worst stream. Each "
        "trouble that stops delivery pages from 5 % of the nodes on. Misspelt names are left out. "
        "The row Node lists the nodes.",
        "percentunit",
        {"{{trouble}}": f"max by (trouble) (producerd:trouble:ratio{{<fleet>, {NAMED}}})"},
        "runbook-tickets.md#producerdnodesintrouble",
        12,
        levels=[(PAGE_SHARE, "red")],
        none="No node is in trouble, or alerts.yml is not loaded",
    ),
    DashboardPanel(
        "Acknowledged late",
        "Share of the records of the last hour that were acknowledged later than after 60 s, for the ten worst "
        "streams. 1 % is the objective; 14.4 % pages, unless callers wait for the shards. Why callers wait says what "
        "holds the stream.",
        "percentunit",
        {"{{stream}} {{cluster}} {{region}}": worst(LATE, "cluster, region, stream")},
        "runbook-pages.md#producerdlateburn",
        levels=[(0.01, "orange"), (0.144, "red")],
        none=NO_TRAFFIC,
    ),
    DashboardPanel(
        "Failed",
        "Share of the records of the last hour that failed for a reason that is not in the record, for the ten worst "
        "streams. 0.1 % is the objective; 1.44 % pages. Fix the reason that the row Stream names.",
        "percentunit",
        {"{{stream}} {{cluster}} {{region}}": worst(FAILED, "cluster, region, stream")},
        "runbook-pages.md#producerdfailedburn",
        levels=[(0.001, "orange"), (0.0144, "red")],
        none=NO_TRAFFIC,
    ),
    DashboardPanel(
        "Nodes",
        "Nodes that Prometheus knows, that answer it, that serve clients, and that drain. Where the lines part, see "
        "Nodes in trouble.",
        "short",
        {
            "known": 'count(up{job="producerd", <fleet>})',
            "answer": 'sum(up{job="producerd", <fleet>})',
            "ready": "sum(producerd_ready{<fleet>})",
            "draining": 'sum(producerd_state{<fleet>, state="draining"})',
        },
        "runbook-pages.md#producerddaemonsdown",
    ),
    DashboardPanel(
        "Throughput",
        "Records per second of all streams. Where accepted stays above stored, queues grow and callers will wait.",
        "recps",
        {
            "accepted": rate("producerd_ingest_records_total", "<fleet>"),
            "stored": rate("producerd_delivered_records_total", "<fleet>"),
            "failed": rate("producerd_failed_records_total", "<fleet>"),
        },
        "slow-streams.md",
    ),
    DashboardPanel(
        "Queues",
        "Bytes that wait on all nodes, for the ten streams that hold the most. Choose the stream above to see why.",
        "bytes",
        {
            "{{stream}} {{cluster}} {{region}}": worst(
                "sum by (cluster, region, stream) (producerd_queue_bytes{<fleet>})", "cluster, region, stream"
            )
        },
        "slow-streams.md",
    ),
    DashboardPanel(
        "Versions and settings",
        "Nodes by version and by settings. More than one of each is a roll-out, or one that stopped halfway. A node "
        "that refused its settings would not start again: run producerd check there.",
        "short",
        {
            "version {{version}}": "count by (version) (producerd_build_info{<fleet>})",
            "settings {{hash}}": "count by (hash) (producerd_config_info{<fleet>})",
            "refused their settings": ("count(producerd_config_last_reload_successful{<fleet>} == 0) or vector(0)"),
        },
        "runbook-tickets.md#producerdsettingsdiffer",
    ),
)

FILL_RECORDS: Final = "producerd_queue_records{<stream>} / producerd_queue_limit_records{<stream>}"
FILL_BYTES: Final = "producerd_queue_bytes{<stream>} / producerd_queue_limit_bytes{<stream>}"
OPEN_SHARDS: Final = "(max by (cluster, region, stream) (producerd_shards_open{<stream>}) > 0)"
BY_STREAM: Final = "cluster, region, stream"

STREAM_PANELS: Final = (
    DashboardPanel(
        "Records",
        "Records per second of the chosen streams. Where accepted stays above stored, the queue grows. Failed and "
        "given up are explained by Failed, rejected and given up.",
        "recps",
        {
            "accepted": rate("producerd_ingest_records_total", "<stream>"),
            "stored": rate("producerd_delivered_records_total", "<stream>"),
            "failed": rate("producerd_failed_records_total", "<stream>"),
            "given up": rate("producerd_discarded_records_total", "<stream>"),
        },
        "slow-streams.md",
    ),
    DashboardPanel(
        "Bytes",
        "Bytes per second of the chosen streams. Accepted counts 32 bytes more for each record than stored does.",
        "binBps",
        {
            "accepted": rate("producerd_ingest_bytes_total", "<stream>"),
            "stored": rate("producerd_delivered_bytes_total", "<stream>"),
        },
        "slow-streams.md",
    ),
    DashboardPanel(
        "Use of all shards",
        "Records that all nodes together send, of 1,000/s for each open shard, and bytes that they store, of 1 MiB/s. "
        'Near 100 %, add shards; if only records are near it, set aggregation = "kpl". Far below while shards '
        "throttle, a key is hot or another program writes to the stream.",
        "percentunit",
        {
            "bytes, {{stream}} {{cluster}} {{region}}": worst(
                f"{rate('producerd_delivered_bytes_total', '<stream>', BY_STREAM)} / ({OPEN_SHARDS} * 1048576)",
                BY_STREAM,
            ),
            "records, {{stream}} {{cluster}} {{region}}": worst(
                f"{rate('producerd_aggregation_user_records_count', '<stream>', BY_STREAM)} / ({OPEN_SHARDS} * 1000)",
                BY_STREAM,
            ),
        },
        "runbook-tickets.md#producerdthrottled",
        levels=[(1, "red")],
        none="No node has read the list of shards",
    ),
    DashboardPanel(
        "Fill of the queues",
        "How full the queues of the nodes are, by each of their two limits. From seven eighths on callers may be "
        "blocked, which is how the daemon slows jobs to the pace of the stream. Why callers wait says what to do.",
        "percentunit",
        {
            "bytes, worst node": f"max({FILL_BYTES})",
            "records, worst node": f"max({FILL_RECORDS})",
            "bytes, median node": f"quantile(0.5, max by ({BY_INSTANCE}) ({FILL_BYTES}))",
            "records, median node": f"quantile(0.5, max by ({BY_INSTANCE}) ({FILL_RECORDS}))",
        },
        "slow-streams.md",
        levels=[(0.875, "orange")],
    ),
    DashboardPanel(
        "Age of the oldest record",
        "How long the oldest record that a node holds has waited. Records that wait for more than 60 s miss the "
        "objective; ten minutes on 5 % of the nodes page.",
        "s",
        over_nodes("producerd_queue_oldest_record_age_seconds{<stream>}"),
        "runbook-pages.md#producerdrecordsstuck",
        levels=[(60, "orange"), (600, "red")],
    ),
    DashboardPanel(
        "Delivery latency",
        "Time from accepting a record to the answer that it is stored, over all nodes. The objective is 99 % within "
        "60 s. A high one with full queues is the stream's pace; with empty queues it is the way to Kinesis.",
        "s",
        quantiles("producerd_delivery_latency_seconds", "<stream>"),
        "runbook-pages.md#producerdlateburn",
        levels=[(60, "red")],
        none="Nothing was stored",
    ),
    DashboardPanel(
        "Callers that wait",
        "Callers that wait for room in the queue or in their own window, on all nodes.",
        "short",
        {"callers": "sum(producerd_backpressure_blocked_clients{<stream>})"},
        "runbook-tickets.md#producerdbackpressure",
    ),
    DashboardPanel(
        "Why callers wait",
        "Nodes on which some caller waits, by what holds the queue. Each cause has a line in "
        "docs/operate/slow-streams.md that says what to do: hot_shard: spread the keys; shard_rate: add shards or "
        "aggregate; service: see Errors of the service; paused: producerctl resume.",
        "short",
        {"{{cause}}": f"{rate('producerd_backpressure_cause_seconds_total', '<stream>', 'cause')} > 0"},
        "slow-streams.md",
        is_stacked=True,
        none="No caller waits",
    ),
    DashboardPanel(
        "Time spent waiting",
        "Share of the time in which a node has a caller that waits. Above half on 10 % of the nodes makes a ticket. "
        "Held by records/s: shards would take more bytes, so aggregation helps.",
        "percentunit",
        {
            **over_nodes("rate(producerd_backpressure_active_seconds_total{<stream>}[$__rate_interval])"),
            "held by records/s, worst node": (
                "max(rate(producerd_record_rate_bound_seconds_total{<stream>}[$__rate_interval]))"
            ),
        },
        "runbook-tickets.md#producerdbackpressure",
        levels=[(0.5, "orange")],
    ),
    DashboardPanel(
        "Waits for room",
        "How long frames waited for room, if they had to. A wait near the job's own time-out may fail its batch. "
        f"{FOR_QUANTILES}",
        "s",
        means("producerd_backpressure_wait_seconds", "<stream>"),
        "runbook-tickets.md#producerdbackpressure",
        none="No frame had to wait",
    ),
    DashboardPanel(
        "PutRecords",
        "Requests per second by result. partial: shards refused some entries, mostly by throttling. failed: no answer "
        "says what was stored; see Errors of the service.",
        "reqps",
        {"{{result}}": rate("producerd_put_requests_total", "<stream>", "result")},
        "error-codes.md",
    ),
    DashboardPanel(
        "Duration of PutRecords",
        "Time from sending a request to its answer or failure. If it rises without throttling, look at the way to "
        f"Kinesis: the network, a proxy, the endpoint. {FOR_QUANTILES}",
        "s",
        means("producerd_put_request_duration_seconds", "<stream>"),
        "aws-access.md#hosts",
        none="Nothing was sent",
    ),
    DashboardPanel(
        "Errors of the service",
        "Failed sends of a record, by the service's error. THROTTLED: the shards take less than is sent. UNREACHABLE: "
        "the network. The others have a line in docs/operate/error-codes.md.",
        "recps",
        {"{{code}}": f"{rate('producerd_record_errors_total', '<stream>', 'code')} > 0"},
        "error-codes.md",
        is_stacked=True,
        none="No send failed",
    ),
    DashboardPanel(
        "Throttled",
        "Records that shards refused, for each record that they stored, in the ten worst streams. Above 20 % for a "
        "quarter of an hour makes a ticket: add shards, or spread hot keys.",
        "percentunit",
        {
            "{{stream}} {{cluster}} {{region}}": worst(
                rate("producerd_record_errors_total", '<stream>, code="THROTTLED"', BY_STREAM)
                + f" / ({rate('producerd_delivered_records_total', '<stream>', BY_STREAM)} > 0)",
                BY_STREAM,
            )
        },
        "runbook-tickets.md#producerdthrottled",
        levels=[(0.2, "orange")],
        none="Nothing was stored",
    ),
    DashboardPanel(
        "Shards of a node",
        "What the busiest shard stored of one node's records, of 1 MiB/s or 1,000 records/s. A single node near 100 % "
        "has a hot shard: producerctl shards on that node names it.",
        "percentunit",
        over_nodes("producerd_shard_utilization_max_ratio{<stream>}"),
        "runbook-tickets.md#producerdthrottled",
        levels=[(1, "orange")],
    ),
    DashboardPanel(
        "Shards",
        "Open shards, the most that one node sends less to because they throttled, and the most that did not answer it "
        "in time. If most shards are backed off, add shards. Few of many: spread hot keys.",
        "short",
        {
            "open, largest stream": "max(producerd_shards_open{<stream>})",
            "backed off, worst node": "max(producerd_shards_backing_off{<stream>})",
            "silent, worst node": "max(producerd_shards_silent{<stream>})",
        },
        "runbook-tickets.md#producerdthrottled",
    ),
    DashboardPanel(
        "Refused and paused",
        "Nodes on which nothing of a stream gets through, and nodes on which an operator has paused one. It pages "
        "when 5 % of the nodes are refused for five minutes. producerctl status on such a node has the last error.",
        "short",
        {
            "refused": f"count(max by ({BY_INSTANCE}) (producerd_stream_up{{<stream>}} == 0)) or vector(0)",
            "paused": f"sum(max by ({BY_INSTANCE}) (producerd_stream_paused{{<stream>}}))",
        },
        "runbook-pages.md#producerdstreamrefused",
    ),
    DashboardPanel(
        "Requests in flight",
        "PutRecords of a node that wait for their answer. Level at max_in_flight_requests: answers are late, so look "
        "at Duration of PutRecords.",
        "short",
        over_nodes("producerd_inflight_requests{<stream>}"),
        "slow-streams.md",
    ),
    DashboardPanel(
        "Size of requests and aggregates",
        "Kinesis records in a PutRecords, and records in a Kinesis record, which is 1 without aggregation. Small "
        "requests on a busy stream cost CPU: see linger_seconds.",
        "short",
        {
            "Kinesis records in a request": (
                rate("producerd_aggregation_user_records_count", "<stream>")
                + f" / {rate('producerd_put_requests_total', '<stream>')}"
            ),
            "records in a Kinesis record": mean("producerd_aggregation_user_records", "<stream>"),
        },
        "runbook-tickets.md#producerdaggregationwouldhelp",
        none="Nothing was sent",
    ),
    DashboardPanel(
        "Possible copies",
        "Copies of records that may be in the stream beyond one of each, by cause. More than one for each 100 stored "
        "records make a ticket.",
        "recps",
        {"{{cause}}": f"{rate('producerd_possible_duplicate_records_total', '<stream>', 'cause')} > 0"},
        "runbook-tickets.md#producerdpossibleduplicates",
        none="No answer was lost",
    ),
    DashboardPanel(
        "Failed, rejected and given up",
        "Records that were not stored, by reason. Failed and rejected: the caller knows it, and Spark repeats its "
        "batch. abandoned: lost at a stop. returned: the caller has them again. See docs/operate/error-codes.md.",
        "recps",
        {
            "failed, {{reason}}": f"{rate('producerd_failed_records_total', '<stream>', 'reason')} > 0",
            "rejected, {{reason}}": f"{rate('producerd_ingest_rejected_records_total', '<stream>', 'reason')} > 0",
            "given up, {{reason}}": f"{rate('producerd_discarded_records_total', '<stream>', 'reason')} > 0",
        },
        "runbook-pages.md#producerdrecordsfailed",
        none="Every record was stored",
    ),
)

LAG: Final = "producerd_event_loop_lag_seconds"
CREDENTIALS: Final = (
    "min by (cluster, region, instance, stream) ((producerd_credentials_expiry_timestamp_seconds{<stream>} > 0)"
    " - time())"
)


def _trouble(name: str, expression: str) -> str:
    return f'label_replace({expression}, "trouble", "{name}", "", "")'


TROUBLES: Final = " or ".join(
    (
        "producerd:trouble{<node>}",
        _trouble("draining", 'producerd_state{<node>, state="draining"} == 1'),
        _trouble("settings", "producerd_config_last_reload_successful{<node>} == 0"),
    )
)
"""The troubles of the alerts, and two of nodes that are not ready, or would not start again."""


def _of_nodes(title: str, does: str, unit: str, expression: str, section: str, *levels: Level) -> DashboardPanel:
    """Return a panel of the ten worst nodes."""
    queries = {"{{instance}} {{cluster}}": worst(expression, BY_INSTANCE)}
    return DashboardPanel(
        title, f"{does} Click a line to see only its node.", unit, queries, section, levels=levels, is_of_nodes=True
    )


NODE_PANELS: Final = (
    DashboardPanel(
        "Nodes with a trouble now",
        "Nodes, and streams on nodes, in a trouble of the alerts, at most 50 for each. draining: the daemon ends. "
        "settings: it refused them. Click a node to see only its numbers. Then run producerctl status there, or open "
        "its page.",
        "short",
        {"": f"topk(50, {TROUBLES}) by (trouble)"},
        "runbook-tickets.md#producerdnodesintrouble",
        COLUMNS,
        "table",
        none="No node is in trouble, or alerts.yml is not loaded",
    ),
    DashboardPanel(
        "Ended connections",
        "Connections a second that ended, by reason. closed: a task's normal end. lost: it ended before an answer, as "
        "a killed task does. For the others see ProducerdClientsRefused.",
        "cps",
        {"{{reason}}": f"{rate('producerd_client_disconnects_total', '<node>', 'reason')} > 0"},
        "runbook-tickets.md#producerdclientsrefused",
        none="No connection has ended",
    ),
    _of_nodes(
        "Queues of the fullest nodes",
        "Bytes that wait, of the chosen streams.",
        "bytes",
        f"sum by ({BY_INSTANCE}) (producerd_queue_bytes{{<stream>}})",
        "slow-streams.md",
    ),
    _of_nodes(
        "Oldest records",
        "Age of the oldest record that waits. If few nodes stand out, look at their way to Kinesis.",
        "s",
        f"max by ({BY_INSTANCE}) (producerd_queue_oldest_record_age_seconds{{<stream>}})",
        "runbook-pages.md#producerdrecordsstuck",
        (60, "orange"),
        (600, "red"),
    ),
    _of_nodes(
        "Connections",
        "Open connections of clients. At max_connections an idle client makes place for the next one, if there is one.",
        "short",
        "producerd_client_connections{<node>}",
        "runbook-tickets.md#producerdclientsrefused",
    ),
    DashboardPanel(
        "Event loops",
        "Delay with which timers of the event loops fired, over the chosen nodes. A few milliseconds are normal. Above "
        "a quarter of a second a daemon has too little CPU, or its machine swaps.",
        "s",
        quantiles(LAG, "<node>"),
        "runbook-tickets.md#producerddaemonbusy",
        levels=[(0.25, "orange")],
    ),
    _of_nodes(
        "Busiest event loops",
        "Mean delay of the event loop's timers. Give these nodes CPU, or find what else runs there.",
        "s",
        f"rate({LAG}_sum{{<node>}}[$__rate_interval]) / rate({LAG}_count{{<node>}}[$__rate_interval])",
        "runbook-tickets.md#producerddaemonbusy",
        (0.25, "orange"),
    ),
    _of_nodes(
        "CPU",
        "Processor time of the daemon, in cores. Its event loop has one core.",
        "short",
        'rate(process_cpu_seconds_total{job="producerd", <node>}[$__rate_interval])',
        "runbook-tickets.md#producerddaemonbusy",
    ),
    _of_nodes(
        "Memory",
        "Resident memory of the daemon. It follows the queues, up to their limits.",
        "bytes",
        'process_resident_memory_bytes{job="producerd", <node>}',
        "runbook-pages.md#producerdmemorynearlimit",
    ),
    _of_nodes(
        "Memory of its limit",
        "Resident memory, of the limit of the daemon's cgroup; 0 without a limit. Above 97 % the kernel may soon kill "
        "the daemon: raise the limit, or lower node_queue_limit_bytes.",
        "percentunit",
        'process_resident_memory_bytes{job="producerd", <node>} / producerd_memory_limit_bytes{<node>}',
        "runbook-pages.md#producerdmemorynearlimit",
        (0.97, "red"),
    ),
    _of_nodes(
        "Open files",
        "Open files of the daemon, of those that it may have. Each connection is one.",
        "percentunit",
        'process_open_fds{job="producerd", <node>} / process_max_fds{job="producerd", <node>}',
        "systemd.md",
        (0.9, "red"),
    ),
    DashboardPanel(
        "Credentials end in",
        "Time until credentials end, for the ten soonest. The daemon renews them 15 minutes before. Below that on a "
        "stream in use, the role or the metadata service fails. Click a line to see only its node.",
        "s",
        {"{{instance}} {{stream}}": worst(CREDENTIALS, "cluster, region, instance, stream", function="bottomk")},
        "runbook-pages.md#producerdcredentialsexpire",
        levels=[(720, "orange"), (900, "green")],
        is_worst_low=True,
        is_of_nodes=True,
        none="No credentials have an end",
    ),
    DashboardPanel(
        "Restarts",
        "How often daemons started in the last hour, for the ten worst. Systemd and Kubernetes start one again that "
        "died; its log has the reason. Click a line to see only its node.",
        "short",
        {
            "{{instance}} {{cluster}}": worst(
                'changes(process_start_time_seconds{job="producerd", <node>}[1h]) > 0', BY_INSTANCE
            )
        },
        "systemd.md",
        is_of_nodes=True,
        none="No daemon was restarted",
    ),
)

ROWS: Final = {"Fleet": FLEET_PANELS, "Stream: $stream": STREAM_PANELS, "Node: $instance": NODE_PANELS}


# ---- the JSON of a panel


def _link(title: str, url: str) -> dict[str, Any]:
    return {"title": title, "url": url, "targetBlank": True}


def _choose(variable: str, value: str) -> dict[str, Any]:
    """Return the link that shows the dashboard with another value of a variable."""
    others = [name for name in ("datasource", "cluster", "region", "stream", "instance") if name != variable]
    kept = "&".join(["${__url_time_range}", *(f"${{{name}:queryparam}}" for name in others)])
    what = "node" if variable == "instance" else variable
    return {"title": f"Only this {what}", "url": f"/d/{UID}?{kept}&var-{variable}=${{{value}:percentencode}}"}


def _thresholds(panel: DashboardPanel) -> dict[str, Any]:
    base = "red" if panel.is_worst_low else "green"
    steps: list[dict[str, Any]] = [{"color": base, "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.levels]
    return {"mode": "absolute", "steps": steps}


def _defaults(panel: DashboardPanel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": _thresholds(panel)}
    if panel.none:
        defaults["noValue"] = panel.none
    if panel.kind == "timeseries":
        defaults |= {
            "color": {"mode": "palette-classic"},
            "custom": {
                "drawStyle": "line",
                "fillOpacity": 30 if panel.is_stacked else 0,
                "lineWidth": 1,
                "showPoints": "auto",
                "stacking": {"group": "A", "mode": "normal" if panel.is_stacked else "none"},
                "thresholdsStyle": {"mode": "dashed" if panel.levels else "off"},
            },
        }
        if not panel.is_worst_low:
            defaults["min"] = 0
    elif panel.kind == "stat":
        defaults["color"] = {"mode": "thresholds"}
    if panel.is_of_nodes:
        defaults["links"] = [_choose("instance", "__field.labels.instance")]
    return defaults


def _overrides(panel: DashboardPanel) -> list[dict[str, Any]]:
    """In a table, a click on a stream or a node chooses it."""
    if panel.kind != "table":
        return []
    return [
        {
            "matcher": {"id": "byName", "options": variable},
            "properties": [{"id": "links", "value": [_choose(variable, "__value.raw")]}],
        }
        for variable in ("stream", "instance")
    ]


def _options(panel: DashboardPanel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "colorMode": "background" if panel.levels else "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value",
        }
    if panel.kind == "table":
        return {"cellHeight": "sm", "showHeader": True}
    shown = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": list[str]()}
    if panel.is_of_nodes:
        shown |= {"displayMode": "table", "calcs": ["lastNotNull", "max"], "sortBy": "Last *", "sortDesc": True}
    return {"legend": shown, "tooltip": {"mode": "multi", "sort": "desc"}}


def _target(panel: DashboardPanel, number: int, legend: str, expression: str) -> dict[str, Any]:
    is_now = panel.kind != "timeseries"
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": spelled_out(expression),
        "format": "table" if panel.kind == "table" else "time_series",
        "instant": is_now,
        "legendFormat": legend or "__auto",
        "range": not is_now,
        "refId": chr(ord("A") + number),
    }


def spelled_out(expression: str) -> str:
    """Return the expression as Grafana gets it."""
    for name, matchers in SELECTORS.items():
        expression = expression.replace(name, matchers)
    return expression


def _panel(panel: DashboardPanel, number: int, x: int, y: int, height: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.does,
        "gridPos": {"h": height, "w": panel.width, "x": x, "y": y},
        "datasource": DATASOURCE,
        "maxDataPoints": MOST_POINTS,
        "links": [_link("What to do", f"${{docs}}/{panel.help}")],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        "targets": [_target(panel, i, legend, expr) for i, (legend, expr) in enumerate(panel.queries.items())],
    }
    if panel.kind == "table":
        hidden = dict.fromkeys(("Time", "Value", "__name__", "job", "state"), True)
        order = ("severity", "alertstate", "alertname", "trouble", "cluster", "region", "instance", "stream", "reason")
        options = {
            "excludeByName": hidden,
            "indexByName": {name: i for i, name in enumerate(order)},
            "renameByName": {},
        }
        document["transformations"] = [{"id": "organize", "options": options}]
    return document


def _panels() -> Iterable[dict[str, Any]]:
    """Lay the panels out, from left to right, below the title of their row."""
    number, y = 0, 0
    for title, panels in ROWS.items():
        number += 1
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        x, y = 0, y + 1
        for panel in panels:
            number += 1
            height = 4 if panel.kind == "stat" else 8
            yield _panel(panel, number, x, y, height)
            x += panel.width
            if x == COLUMNS:
                x, y = 0, y + height
        assert x == 0, f"the last line of {title} is not full"


# ---- variables and annotations


def _variable(name: str, label: str, metric: str, does: str) -> dict[str, Any]:
    """Return a variable with the values of a label.  All is every value, and also the lack of the label."""
    query = f"label_values({metric}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": label,
        "description": does,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "regex": "",
    }


VARIABLES: Final = (
    {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "description": "The data source that scrapes the daemons.",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "current": {},
        "options": [],
        "multi": False,
        "includeAll": False,
    },
    _variable(
        "cluster", "Cluster", "producerd_build_info", "Empty where neither the scrape nor external_labels set it: All."
    ),
    _variable(
        "region",
        "Region",
        'producerd_build_info{cluster=~"$cluster"}',
        "Empty where neither the scrape nor external_labels set it: All.",
    ),
    _variable(
        "stream",
        "Stream",
        f"producerd_stream_up{{{FLEET}}}",
        'For the rows Stream and Node. "(never stored)" is all streams together that stored no record and are not in '
        "the settings: mostly misspelt names.",
    ),
    _variable("instance", "Node", f"producerd_build_info{{{FLEET}}}", "For the rows Stream and Node."),
    {
        "type": "constant",
        "name": "docs",
        "label": "Address of docs/operate",
        "description": "All links lead there. Set it to the address of your copy.",
        "hide": 2,
        "query": "docs/operate",
        "skipUrlSync": True,
    },
)


def _annotation(name: str, colour: str, expression: str, title: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": colour,
        "expr": spelled_out(expression),
        "step": "60s",
        "titleFormat": title,
        "textFormat": text,
    }


RELOADED: Final = "producerd_config_last_reload_success_timestamp_seconds{<node>}"
STARTED: Final = 'process_start_time_seconds{job="producerd", <node>}'
ANNOTATIONS: Final = (
    _annotation(
        "Pages",
        "red",
        f'group by (alertname, cluster, region, stream) ({FIRING}, severity="page"}})',
        "{{alertname}}",
        "{{stream}} {{cluster}} {{region}}",
    ),
    _annotation(
        "Restarts",
        "blue",
        f"count by (cluster, region) (time() - {STARTED} < 120)",
        "Daemons started",
        "{{cluster}} {{region}}",
    ),
    _annotation(
        "Reloads",
        "purple",
        f"count by (cluster, region) (time() - {RELOADED} < 120"
        f" and on ({A_NODE}) {RELOADED} - on ({A_NODE}) {STARTED} > 10)",
        "Settings reloaded",
        "{{cluster}} {{region}}",
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": UID,
        "title": "producerd",
        "description": "Kinesis producers of a fleet: what pages, why a stream is slow, and which nodes stand out.",
        "tags": ["kinesis", "producerd"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "utc",
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "1m",
        "links": [
            {
                **_link("Operations", "${docs}/metrics.md"),
                "type": "link",
                "icon": "doc",
                "tooltip": "Metrics, alerts and this dashboard",
                "tags": [],
                "asDropdown": False,
                "includeVars": False,
                "keepTime": False,
            }
        ],
        "templating": {"list": list(VARIABLES)},
        "annotations": {"list": list(ANNOTATIONS)},
        "panels": list(_panels()),
    }


def text() -> str:
    """Return the content of the file."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
