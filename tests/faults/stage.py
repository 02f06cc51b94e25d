"""One scenario's processes (the service, the daemon's lives, the senders and the watch), and its run with the verdict.

A run has the same parts in every scenario.  All is well for a moment.  The scenario breaks something and puts it right
again.  Then fresh records must pass, and every record that was handed over must end.  At last the stage reads the
stream back, and the oracle judges.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from producerd.config import Config, load
from producerd.config.memory import needed_bytes
from producerd.config.values import MIB
from producerd.errors import FlushTimeout, ProducerdError
from tests.daemon import CREDENTIALS, QUICK, DaemonProcess, WireClient, until
from tests.faults import oracle
from tests.faults.network import Proxy
from tests.faults.oracle import Broken, Law, Reading
from tests.faults.reader import Entry, entries_of, handed_by_kcl, handed_by_rule
from tests.faults.records import Book, Shape
from tests.faults.senders import PAUSE_SECONDS, Sender
from tests.faults.service import Service, serving
from tests.faults.tasks import FIRST, Task
from tests.faults.watch import SAMPLES_PER_SCRAPE, Life, Process, Watch, look

STREAMS: Final = {
    "plain": {"aggregation": "none"},
    "packed": {"aggregation": "kpl"},
    "ordered": {"ordering": "per_key"},
}
"""Every scenario sends to all three.  The seed decides on the aggregation of ``ordered``, and on the wire format."""
FRESH: Final = 999
"""The senders from this number on put one call each, after the faults."""
SETTINGS: Final[dict[str, Any]] = {
    **QUICK,
    "drain_timeout_seconds": 30,
    "shard_rate_fraction": 1.0,
    "request_timeout_seconds": 2,
    "queue_limit_bytes": 8 * MIB,
    "node_queue_limit_bytes": 32 * MIB,
    "node_max_in_flight_bytes": 8 * MIB,
    "max_streams": 16,
}
"""The limits are low, so that the memory law is near to what a daemon in calm has."""
ORDERED_KEYS: Final = 10
"""Of each sender to ``ordered`` at most: a call has two records of a key, and any fault hits many of one key."""
ORDERED_SHARE: Final = 0.3
"""Of a scenario's load, what a sender to ``ordered`` has: plain, a key has one record on its way at a time."""
END_SECONDS: Final = 60.0
"""How long after the faults everything may take to end."""
SETTLE_SECONDS: Final = 10.0
"""How long after the last answer the queues may take to be empty: some rows may have lost their callers."""
LOOK_SECONDS: Final = 0.05
WARM_SECONDS: Final = 60.0
QUEUE_RECORDS: Final = 2_000
SHORT_QUEUE_RECORDS: Final = 500
"""A stream's limit.  Its senders fill it in some seconds."""
SHORT_RATE: Final = 0.5
"""How much of its load a scenario has in its short form."""
CALM_SECONDS: Final = 1.0
FULL_SHARE: Final = 0.8
"""Of its limit, what a full queue holds at least: the last eighth is kept for callers that have little in it."""
LEAST_SCRAPES: Final = 20 * SAMPLES_PER_SCRAPE
"""One scrape in this many samples must succeed: a daemon that is frozen for a minute answers none meanwhile."""
SPARE: Final = Process(0, 3 * 24, 8)
"""How far descriptors and threads may rise above calm: 24 requests of each stream may be on their way."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``injected`` says in words what goes wrong.  ``exempt``: laws that it cannot judge, each with the reason."""

    name: str
    injected: str
    act: Callable[[Stage], None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    exempt: Mapping[Law, str] = field(default_factory=dict)
    shards: int = 4
    records_per_second: float = 300.0
    shape: Shape = field(default_factory=Shape)
    tls: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    connections: int = 0
    """How many clients more than the senders may be connected at once."""
    prefix: Sequence[str] = ()
    """Words in front of the daemon's command, which start it."""
    host: str = "127.0.0.1"
    """Host by which the daemon knows the service."""
    senders: int = 2
    """Number of senders of each stream."""
    patient: bool = False
    """Whether what goes wrong passes before any caller may get an error."""
    resends: bool = True
    """Whether its faults make the daemon send records again.  A run in which it need not has met none of them."""
    recovers_within: float = END_SECONDS
    around: Callable[[Stage], AbstractContextManager[object]] = contextlib.nullcontext
    """What must be there from before the first daemon starts until the last one has ended; it becomes ``given``."""
    lacks: Callable[[], str] = str
    """Return what this machine lacks, in words, or nothing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run did, in numbers.

    ``sent`` counts the records that senders handed over, ``acknowledged`` the records with an acknowledgement, and
    ``readable`` the acknowledged ones that a consumer receives.  ``duplicates`` counts the copies beyond the first, and
    ``counted_duplicates`` is what the daemon's metric says of them.  ``errors_told`` counts the records whose callers
    got an error.  ``peak_queue`` is the most
    records that one stream's queue held.  ``seconds_to_recover`` pass from the last fault's end until fresh records are
    acknowledged on every stream; None: they were not.
    """

    scenario: str
    seed: int
    sent: int
    acknowledged: int
    readable: int
    duplicates: int
    counted_duplicates: int
    errors_told: int
    order_violations: int
    peak_queue: int
    peak_rss_bytes: int
    seconds_to_recover: float | None


class Row(NamedTuple):
    """One run.  ``broken``: the laws that did not hold, in words.  ``notes``: what else is worth knowing of it."""

    figures: Figures
    broken: tuple[str, ...]
    notes: tuple[str, ...]


class Stage:
    """What a scenario's ``act`` works on.

    ``short`` asks for the form that tests run.  ``chance`` is seeded: a scenario draws from nothing else.
    ``notes`` are figures of the scenario's own, for its row.  ``prefix``, ``sets`` and ``log_folder`` are for the
    daemons that start from now on; ``streams`` are read at the end; ``also_sent`` is what others than senders sent.
    ``ending`` closes at the run's end what a scenario opened under way.
    """

    def __init__(self, scenario: Scenario, seed: int, service: Service, proxy: Proxy, folder: Path, *, short: bool):
        self.scenario = scenario
        self.seed = seed
        self.short = short
        self.chance = random.Random(seed)
        self.service = service
        self.proxy = proxy
        self.folder = folder
        self.log_folder = folder
        self.prefix = scenario.prefix
        self.streams = list(STREAMS)
        self.given: Any = None
        self.also_sent: list[oracle.Sent] = []
        self.socket = folder / "s" / "daemon.sock"
        self.watch = Watch()
        self.senders: list[Sender] = []
        self.fresh: list[Sender] = []
        self.tasks: list[Task] = []
        self.notes: list[str] = []
        self.broken: list[Broken] = []
        self.refused_seconds = 0.0
        """How long after the faults fresh records may be refused: a refused stream is tried every few seconds only."""
        self.daemon: DaemonProcess
        self.environ: dict[str, str] = {**CREDENTIALS, **scenario.environ}
        if service.certificate is not None:
            self.environ["AWS_CA_BUNDLE"] = str(service.certificate)
        self.ending = contextlib.ExitStack()
        numbers = (*range(scenario.senders * len(STREAMS)), *range(FRESH, FRESH + len(STREAMS)))
        self.book = Book(seed, {number: self._shape_of(number) for number in numbers})
        self.sets = self._settings()
        self._started: list[DaemonProcess] = []

    def _settings(self) -> dict[str, Any]:
        settings = {**SETTINGS, "socket": self.socket, "endpoint_url": self.endpoint}
        settings["queue_limit"] = int(self.of(QUEUE_RECORDS, SHORT_QUEUE_RECORDS))
        settings |= self.scenario.settings
        for name, own in STREAMS.items():
            settings |= {f'streams."{name}".{key}': value for key, value in own.items()}
        settings.setdefault('streams."ordered".aggregation', ("none", "kpl")[self.seed % 2])
        settings.setdefault("wire_format", ("cbor", "json")[self.seed // 2 % 2])
        return settings

    def _shape_of(self, sender: int) -> Shape:
        shape = self.scenario.shape
        return shape._replace(keys=min(ORDERED_KEYS, shape.keys)) if stream_of(sender) == "ordered" else shape

    @property
    def endpoint(self) -> str:
        scheme = "https" if self.service.certificate else "http"
        return f"{scheme}://{self.scenario.host}:{self.proxy.port}"

    # ---- for scenarios

    def of(self, full: float, short: float) -> float:
        """Return the length in seconds, or the number of times, for the full form or for the short one."""
        return short if self.short else full

    def times(self, full: int, short: int) -> range:
        return range(short if self.short else full)

    def wait(self, full: float, short: float | None = None) -> None:
        """Let everything run on for so long."""
        time.sleep(full if short is None else self.of(full, short))

    def wait_a_while(self, least: float, most: float) -> None:
        """Let everything run on for a time that the seed draws."""
        time.sleep(self.chance.uniform(least, most))

    def start_daemon(self, **environ: str) -> None:
        """Start the daemon, or its next life.  Returns when it serves."""
        self.begin_daemon(**environ)
        self.daemon.wait_ready()
        self.watch.begin(self.daemon.process.pid, self.daemon.url)

    def begin_daemon(self, **environ: str) -> None:
        """Start the daemon, and do not wait until it serves."""
        self.daemon = DaemonProcess(
            self.log_folder,
            self.sets,
            {**self.environ, **environ},
            socket_path=self.socket,
            prefix=self.prefix,
            forked=self.short,  # a start takes a second of CPU time otherwise, and the short forms have a hundred
            program="unchanged_daemon",
            tuning=self.scenario.tuning,
        )
        self._started.append(self.daemon)

    def _must_run(self) -> None:
        code = self.daemon.process.poll()
        self.must(Law.CALM, code is None, f"the daemon ended by itself with exit code {code}: {self.daemon.log[-500:]}")

    def kill_daemon(self) -> None:
        """End the daemon by SIGKILL."""
        self._must_run()
        self.daemon.process.kill()
        self.daemon.process.wait()

    def stop_daemon(self) -> None:
        """End the daemon by SIGTERM."""
        self._must_run()
        self.daemon.signal(signal.SIGTERM)
        code = self.daemon.wait(END_SECONDS)
        self.must(Law.CALM, code == 0, f"exit code {code}: {self.daemon.log[-500:]}")

    def connects(self) -> bool:
        """Return whether the daemon greets a new client."""
        try:
            with WireClient(self.socket) as client:
                client.hello()
        except OSError:  # there is no path, or nobody listens yet
            return False
        return True

    def add_sender(self, stream: str, records_per_second: float, shape: Shape) -> Sender:
        """Start one more sender, also to a stream of the scenario's own that is in ``streams``."""
        number = len(self.senders)
        self.book.shapes[number] = shape
        self.senders.append(Sender(number, stream, self.book, self.socket, records_per_second))
        self.senders[-1].start()
        return self.senders[-1]

    def add_task(self, stream: str, shape: Shape, *, diverts: bool = False) -> Task:
        """Make a task that writes to a stream, with skip or with divert.  It writes when it is started or asked to."""
        number = FIRST + len(self.tasks)
        self.book.shapes[number] = shape
        folder = self.folder / f"diverted-{number}" if diverts else None
        self.tasks.append(Task(number, stream, self.book, self.socket, folder))
        return self.tasks[-1]

    def must(self, law: Law, holds: object, what: str) -> None:
        """Note a law that is broken unless ``holds``."""
        if not holds:
            self.broken.append(Broken(law, what))

    def forgive(self) -> None:
        """Only what is sent from now on obliges: the streams that held the records so far are gone."""
        for sender in self.senders:
            sender.forgive()
        gone = sum(sender.sent for sender in self.senders)
        self.notes.append(f"{gone:,} records had been sent to streams that were then deleted: they count as sent only")

    @property
    def _callers(self) -> list[Sender | Task]:
        return [*self.senders, *self.tasks]

    @property
    def told(self) -> Counter[str]:
        """Return how many records' callers got an error so far, by its code."""
        return sum((each.errors_told for each in self._callers), Counter[str]())

    @contextlib.contextmanager
    def spares_callers(self) -> Iterator[None]:
        """A block whose faults the daemon promises to wait out."""
        before = self.told
        yield
        told = self.told - before
        self.must(Law.PATIENT, not told, ", ".join(f"{count:,} records got {code}" for code, count in told.items()))

    # ---- the run

    def play(self) -> float | None:
        """Run the scenario.  Returns the seconds to recover, or None where fresh records did not pass."""
        self.socket.parent.mkdir()
        self.start_daemon()
        with self.watch.running():
            try:
                level = self._warm_up()
                self.scenario.act(self)
                recovered = self._recovers()
                self._all_ends()
                self._stays_level(level)
                return recovered
            finally:
                for each in self._callers:
                    each.stop()

    def _warm_up(self) -> Process:
        """Start the senders; wait until each has been acknowledged.  Returns what the daemon has in calm."""
        for number in range(self.scenario.senders * len(STREAMS)):
            stream = stream_of(number)
            rate = self.of(1.0, SHORT_RATE) * self.scenario.records_per_second
            rate *= ORDERED_SHARE if stream == "ordered" else 1.0
            self.senders.append(Sender(number, stream, self.book, self.socket, rate))
        for sender in self.senders:
            sender.start()
        until(lambda: all(sender.acknowledged for sender in self.senders), "each sender is acknowledged", WARM_SECONDS)
        time.sleep(CALM_SECONDS / 2)
        level = look(self.daemon.process.pid)
        assert level is not None, self.daemon.log
        return level

    def _recovers(self) -> float | None:
        """End what faults are left, and put fresh records to every stream."""
        self.service.calm()
        self.proxy.calm()
        began = time.monotonic()
        self.fresh = []
        try:
            for number in range(FRESH, FRESH + len(STREAMS)):
                self.fresh.append(Sender(number, stream_of(number), self.book, self.socket, 1.0))
            for sender in self.fresh:
                self._passes(sender, began)
        except (ProducerdError, concurrent.futures.TimeoutError) as error:
            after = f"{time.monotonic() - began:.1f} s after the faults"
            self.broken.append(Broken(Law.RECOVERS, f"{type(error).__name__} {after}: {error}"))
            return None
        took = time.monotonic() - began
        within = self.scenario.recovers_within
        self.must(Law.RECOVERS, took <= within, f"after {took:.1f} s; within {within:g} s is promised")
        self._senders_go_on(began)
        return took

    def _senders_go_on(self, began: float) -> None:
        """Sessions that were there before the faults work too, except where a caller has got an error."""
        left = {sender: sender.sent for sender in self.senders if not sender.errors_told}
        while left and time.monotonic() < began + END_SECONDS:
            left = {sender: sent for sender, sent in left.items() if max(sender.acknowledged, default=-1) < sent}
            time.sleep(LOOK_SECONDS)
        names = ", ".join(sender.name for sender in left)
        self.must(Law.RECOVERS, not left, f"nothing that {names} sent afterwards is acknowledged")

    def _passes(self, sender: Sender, began: float) -> None:
        while True:
            try:
                return sender.put(END_SECONDS).result(max(0.1, began + END_SECONDS - time.monotonic()))
            except ProducerdError:
                if time.monotonic() > began + self.refused_seconds:
                    raise
                time.sleep(PAUSE_SECONDS)

    def _all_ends(self) -> None:
        """Stop the senders, and wait until what they handed over has ended."""
        for each in self._callers:
            each.stop()
        ends = time.monotonic() + END_SECONDS
        for each in self._callers:
            if each.ident is not None:  # else it was never started
                each.join(max(0.0, ends - time.monotonic()))
            self.must(Law.ENDS, not each.is_alive(), f"{each.name} still waits after {END_SECONDS:g} s")
            self.must(Law.ENDS, not each.failure, f"{each.name} ended by {each.failure}")
        for task in self.tasks:
            what = f"{task.name}: {task.sent:,} records were sent, {task.ended:,} have ended"
            self.must(Law.ENDS, task.ended == task.sent, what)
            wrongly = sorted(task.left_out.keys() - task.bad)
            some = {number: task.left_out[number] for number in wrongly[: oracle.EXAMPLES]}
            self.must(Law.REFUSED, not wrongly, f"{task.name} left out {len(wrongly):,} good records: {some}")
        for sender in chain(self.senders, self.fresh):
            try:
                sender.flush(max(0.1, ends - time.monotonic()))
            except FlushTimeout as error:
                self.broken.append(Broken(Law.ENDS, f"{sender.name}: {error}"))
            except ProducerdError:
                pass  # counted when the call ended
            self._has_every_answer(sender)
            with contextlib.suppress(ProducerdError):
                sender.close()
        self._queues_are_empty()

    def _has_every_answer(self, sender: Sender) -> None:
        """Each call has ended, and each record of it is acknowledged or its caller got an error."""
        deadline = time.monotonic() + CALM_SECONDS  # `flush` returns before the callbacks of the last futures have run
        while sender.open_calls and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self.must(Law.ENDS, not sender.open_calls, f"{sender.name}: {sender.open_calls} calls have not ended")
        ended = len(sender.acknowledged) + sender.errors_told.total()
        counted = sender in self.fresh or sender.is_forgiven or ended == sender.sent
        self.must(Law.ENDS, counted, f"{sender.name}: {sender.sent:,} records were sent, {ended:,} have ended")

    def _queues_are_empty(self) -> None:
        """Room that stays charged after the last answer is lost."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.watch.look_now() is not None and (left := self.watch.lives[-1].queued_bytes):
            if time.monotonic() > deadline:
                what = f"{left:,.0f} bytes are charged {SETTLE_SECONDS:g} s after the last answer"
                self.broken.append(Broken(Law.QUEUE, what))
                return
            time.sleep(LOOK_SECONDS)

    def _stays_level(self, level: Process) -> None:
        at_most = Process(
            0, level.descriptors + SPARE.descriptors + self.scenario.connections, level.threads + SPARE.threads
        )
        for life in self.watch.lives:
            for kind in ("descriptors", "threads"):
                peak, most = getattr(life, f"peak_{kind}"), getattr(at_most, kind)
                self.must(Law.LEVEL, peak <= most, f"{peak} {kind}, {getattr(level, kind)} in calm, {most} at most")

    def end_daemon(self) -> None:
        """End the last life and look at every life's log."""
        self.stop_daemon()
        for place, life in enumerate(self._started):
            log = life.log
            for bad in ("Traceback", "never awaited"):
                where = log.find(bad)
                self.must(Law.CALM, where < 0, f"life {place}: {log[max(0, where - 200) : where + 600]}")

    def kill_what_is_left(self) -> None:
        for life in self._started:
            if life.process.poll() is None:
                life.process.kill()
                life.process.wait()

    # ---- the judgement

    def read(self) -> list[Entry]:
        return [entry for stream in self.streams for entry in entries_of(self.service.client, stream)]

    @property
    def _config(self) -> Config:
        return load(None, [f"{name}={value}" for name, value in self.sets.items() if value is not None], {})

    @property
    def law_bytes(self) -> int:
        """What the memory law allows with the settings of the daemon that would start now."""
        return needed_bytes(self._config).bytes

    @property
    def queue_limit(self) -> int:
        """Return the limit of each stream's queue, in records."""
        return self._config.defaults.queue_limit

    def must_have_filled_a_queue(self) -> None:
        """Fail a run whose fault does not do what it is for.  A busy machine's senders may need longer for it."""
        life, least = self.watch.lives[-1], FULL_SHARE * self.queue_limit
        until(lambda: life.peak_queue_records >= least, f"a queue holds {least:,.0f} records")

    def _judge_queues(self, lives: Sequence[Life]) -> None:
        node = self._config.node.node_queue_limit_bytes
        for life in lives:
            self.must(Law.QUEUE, not life.beyond_limit, "; ".join(life.beyond_limit[:3]))
            records, held = life.peak_queue_records, life.peak_node_bytes
            self.must(Law.QUEUE, records <= self.queue_limit, f"{records:,.0f} records of {self.queue_limit:,}")
            self.must(Law.QUEUE, held <= node, f"{held:,.0f} bytes of the node's {node:,}")
        samples, scrapes = sum(life.samples for life in lives), sum(life.scrapes for life in lives)
        assert not self.watch.failure, self.watch.failure
        assert scrapes * LEAST_SCRAPES >= samples, f"{scrapes} scrapes in {samples} samples"

    def row(self, recovered: float | None, reading: Reading) -> Row:
        lives, scenario = self.watch.lives, self.scenario
        counted = sum(life.counted_duplicates for life in lives)
        assert not scenario.resends or any(life.retries for life in lives), "nothing was sent again: no fault was met"
        told = self.told
        peak_rss = max(life.peak_rss_bytes for life in lives)
        self.must(Law.MEMORY, peak_rss <= self.law_bytes, f"{peak_rss:,} bytes of {self.law_bytes:,}")
        self._judge_queues(lives)
        self.must(Law.PATIENT, not (scenario.patient and told), f"records by code: {dict(told)}")
        self.broken += oracle.copies_within(reading.duplicates, counted) + reading.broken
        figures = Figures(
            scenario.name,
            self.seed,
            sent=sum(one.count for one in sent_by(self)),
            acknowledged=sum(len(one.acknowledged) for one in sent_by(self)),
            readable=reading.readable,
            duplicates=reading.duplicates,
            counted_duplicates=int(counted),
            errors_told=told.total(),
            order_violations=reading.order_violations,
            peak_queue=int(max(life.peak_queue_records for life in lives)),
            peak_rss_bytes=peak_rss,
            seconds_to_recover=None if recovered is None else round(recovered, 2),
        )
        broken = tuple(str(broken) for broken in self.broken if broken.law not in scenario.exempt)
        codes = (f"{count:,} records got the error {code}" for code, count in sorted(told.items()))
        unjudged = (f"not judged: {law}, because {reason}" for law, reason in scenario.exempt.items())
        return Row(figures, broken, (*self.notes, *codes, *unjudged))


def run(scenario: Scenario, seed: int, *, short: bool = False, kcl: Sequence[str] | None = None) -> Row:
    """Run a scenario and judge it; with ``kcl``, the command of Amazon's library, that says what is readable."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="f-")))
        service = stack.enter_context(serving(list(STREAMS), scenario.shards, seed, folder, tls=scenario.tls))
        proxy = stack.enter_context(Proxy("127.0.0.1", service.port).running())
        stage = Stage(scenario, seed, service, proxy, folder, short=short)
        stack.enter_context(stage.ending)
        with contextlib.ExitStack() as lives:
            stage.given = lives.enter_context(scenario.around(stage))
            lives.callback(stage.kill_what_is_left)
            recovered = stage.play()
            entries = stage.read()
            stage.end_daemon()
        by_rule = [handed_by_rule(entry) for entry in entries]
        handed = by_rule if kcl is None else handed_by_kcl(kcl, entries)
        differ = sum(ours != theirs for ours, theirs in zip(by_rule, handed, strict=True))
        stage.must(Law.READABLE, not differ, f"this reader and Amazon's differ in {differ:,} entries")
        stage.notes.append("judged without Amazon's library" if kcl is None else "judged by Amazon's library too")
        reading = oracle.judge(stage.book, sent_by(stage), chain.from_iterable(handed))
        return stage.row(recovered, reading)


def wait_for(happens: Callable[[], object]) -> None:
    """Wait for it, but not for long on a busy machine: a law judges whether it did."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not happens() and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def stream_of(sender: int) -> str:
    """Return the stream of one of the senders that every scenario has."""
    return list(STREAMS)[sender % len(STREAMS)]


def sent_by(stage: Stage) -> list[oracle.Sent]:
    by_senders = [
        oracle.Sent(sender.number, sender.sent, sender.acknowledged, sender.stream == "ordered")
        for sender in chain(stage.senders, stage.fresh)
    ]
    return [*by_senders, *(task.account for task in stage.tasks), *stage.also_sent]
