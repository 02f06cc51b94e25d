"""Run a soak for a time, sample everything that could grow, and judge it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from producerd.runtime.aws.connection import IDLE_SECONDS
from tests.soak.ground import ground
from tests.soak.growth import BLOCKS, WARM_UP, Growth, growth
from tests.soak.soaks import Soak

SAMPLES: Final = 120
"""Samples of a run, if there is time for them."""
LEAST_SAMPLES: Final = round(BLOCKS / (1 - WARM_UP)) + 1
"""Samples that a run waits for, also beyond its time."""
LEAST_PERIOD_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 0.3
"""Time between the last answer and a sample, in which sessions end and connections close."""
REST_SECONDS: Final = IDLE_SECONDS + 5
"""Time before a sample of a long run's memory, in which the daemon closes all connections to Kinesis."""
SAMPLES_A_REST: Final = 3
"""Of this many samples in a long run, one follows a rest.  In a run of two hours each block has such a sample, which is
its lowest.  In one of an hour some blocks have none."""
MONTH_HOURS: Final = 30 * 24
BYTES_HOURS: Final = 0.9
"""Shortest run whose memory is judged, up to its last sample: in a shorter one what comes and goes hides a slope."""
BYTES_A_MONTH: Final = 10 << 20
ALLOWED: Final = 8.0
ALLOWED_SHARE: Final = 0.01
"""A figure is level if it certainly rises by no more than this many, and this share of itself, within a run."""
SAY_SECONDS: Final = 30.0
POINTS: Final = 120
"""Points of a picture's curve."""


class Sample(NamedTuple):
    """Every figure of one moment.  ``done`` counts what was repeated until then."""

    hours: float
    done: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figures:
    """A run.  ``figures`` counts what was judged: threads, descriptors, objects by class, elements by collection.

    ``rss_mib`` is the daemon's anonymous resident memory at the end, ``in_use_mib`` what its allocators have handed out
    of it, and ``in_use_mib_a_month`` the upper bound of the slope of that.  ``grows`` counts the figures that grow, and
    ``unclear`` those that may grow or not.
    """

    soak: str
    hours: float
    done: int
    unit: str
    rss_mib: float
    in_use_mib: float
    in_use_mib_a_month: float
    figures: int
    grows: int
    unclear: int


class Run(NamedTuple):
    """A run with its samples.  ``told`` names each figure that grows or is unclear."""

    figures: Figures
    samples: Sequence[Sample]
    told: Sequence[str]

    def curves(self) -> dict[str, object]:
        """Return the figures with what a picture shows, at most `POINTS` samples."""
        shown = self.samples[:: -(-len(self.samples) // POINTS)]
        return {
            **asdict(self.figures),
            "at_hours": [round(sample.hours, 4) for sample in shown],
            **{
                name: [sample.values[f"daemon {name}"] for sample in shown]
                for name in ("rss_bytes", "bytes_in_use", "threads", "descriptors")
            },
            "objects": [
                sum(v for name, v in sample.values.items() if name.startswith("daemon objects")) for sample in shown
            ],
        }


def run(name: str, soak: Soak, hours: float, say: Callable[[str], None], leaks: Sequence[str] = ()) -> Run:
    """Repeat a soak for this time, or until there are enough samples."""
    samples: list[Sample] = []
    with ground(soak.shards, leaks) as held, soak.hold(held) as repeat:
        done = repeat()
        began = said_at = time.monotonic()
        period, next_at = max(LEAST_PERIOD_SECONDS, hours * 3_600 / SAMPLES), began
        while (now := time.monotonic()) < began + hours * 3_600 or len(samples) < LEAST_SAMPLES:
            if now >= next_at:
                rests = hours >= BYTES_HOURS and len(samples) % SAMPLES_A_REST == 0
                time.sleep(REST_SECONDS if rests else SETTLE_SECONDS)
                samples.append(Sample((time.monotonic() - began) / 3_600, done, held.sample()))
                next_at = now + period
            if now >= said_at + SAY_SECONDS:
                said_at = now
                in_use = samples[-1].values["daemon bytes_in_use"] / 2**20
                say(f"{name}: {now - began:.0f} s, {done:,} {soak.unit}, {in_use:.2f} MiB in use")
            done += repeat()
    return judge(name, soak.unit, samples)


def judge(name: str, unit: str, samples: Sequence[Sample]) -> Run:
    """Judge the samples after the warm-up.  What is missing from a sample counts as 0."""
    judged = [sample for sample in samples if sample.hours >= WARM_UP * samples[-1].hours]
    hours = [sample.hours for sample in judged]
    verdicts, told = Counter[str](), []

    def look(figure: str, found: Growth, allowed: float) -> None:
        verdict = "level" if found.upper <= allowed else "GROWS" if found.lower > allowed else "unclear"
        verdicts[verdict] += 1
        if verdict != "level":
            told.append(f"{verdict}: {figure}: {found.level:,.1f}, and {found.lower:+,.1f} to {found.upper:+,.1f}")

    for figure in sorted({name for sample in judged for name in sample.values if not is_told_only(name)}):
        found = growth(hours, [sample.values.get(figure, 0.0) for sample in judged])
        look(figure, found, ALLOWED + ALLOWED_SHARE * found.level)
    in_use = growth(hours, [sample.values["daemon bytes_in_use"] for sample in judged])
    months = (hours[-1] - hours[0]) / MONTH_HOURS
    if samples[-1].hours >= BYTES_HOURS:
        look("daemon bytes_in_use", in_use, BYTES_A_MONTH * months)
    figures = Figures(
        name,
        round(samples[-1].hours, 2),
        samples[-1].done,
        unit,
        round(samples[-1].values["daemon rss_bytes"] / 2**20, 1),
        round(samples[-1].values["daemon bytes_in_use"] / 2**20, 1),
        round(in_use.upper / months / 2**20, 1),
        verdicts.total(),
        verdicts["GROWS"],
        verdicts["unclear"],
    )
    return Run(figures, samples, told)


def is_told_only(name: str) -> bool:
    """Return whether a figure is not judged as a count.

    These are memory, what this program holds in addition to clients, and the JVM's descriptors: PySpark keeps a socket
    of Py4J for each query that was started.
    """
    of, _, what = name.partition(" ")
    kind, _, owner = what.partition(" ")
    is_ours = of != "client" or kind in ("threads", "descriptors") or owner.startswith(("producerd.", "spark_client."))
    return what in ("rss_bytes", "bytes_in_use", "JVM descriptors") or not is_ours
