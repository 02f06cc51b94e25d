"""Turn: what one stream does each time that it is looked at.

The dispatcher and the simulation run these two functions in the same order: settle, take until nothing is left to take,
and settle once more, as rows may end while work is looked for.
"""

from __future__ import annotations

from producerd.core.filling import SortJob
from producerd.core.gate import AdmissionGate
from producerd.core.pipeline import Pipeline
from producerd.core.sending.requests import Request


def settle(pipeline: Pipeline, gate: AdmissionGate, now: float) -> bool:
    """Acknowledge finished frames, hand their room to callers that wait, and send early what a caller waits for.

    Returns whether there may be work that was not there before.
    """
    finished = pipeline.take_finished()
    for frame in finished:
        frame.owner.finished(frame)
    gate.pump(now)
    # Rows must not linger while a caller waits, be it for room or for the acknowledgement of what it sent.
    if gate.wants_room():
        pressed = pipeline.press(now)
    else:
        pressed = bool(gate.withholding) and pipeline.press(now, gate.withholding)
    return pressed or bool(finished)


def take(pipeline: Pipeline, now: float) -> Request | SortJob | None:
    """Return the stream's next piece of work: a request before a job, so that what is nearest its end goes first."""
    return pipeline.take_request(now) or pipeline.take_job(now)
