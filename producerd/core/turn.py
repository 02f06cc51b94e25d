"""Turn: what the daemon does for one stream each time that it looks at it.

The dispatcher and the simulation call these two functions in the same order.  They settle, take until no work is left,
and settle again, because rows may end while they look for work.
"""

from __future__ import annotations

from producerd.core.filling import SortJob
from producerd.core.gate import AdmissionGate
from producerd.core.pipeline import Pipeline
from producerd.core.sending.requests import Request


def settle(pipeline: Pipeline, gate: AdmissionGate, now: float) -> bool:
    """Acknowledge finished frames, hand their room to callers that wait, and send early what a caller waits for.

    Return whether there may be new work.
    """
    finished = pipeline.take_finished()
    for frame in finished:
        frame.owner.finished(frame)
    gate.pump(now)
    # Rows must not linger while a caller waits for room, or for the acknowledgement of what it sent.
    if gate.wants_room():
        pressed = pipeline.press(now)
    else:
        pressed = bool(gate.withholding) and pipeline.press(now, gate.withholding)
    return pressed or bool(finished)


def take(pipeline: Pipeline, now: float) -> Request | SortJob | None:
    """Return the stream's next piece of work.

    Requests come before jobs, because their rows are nearer to their end.
    """
    return pipeline.take_request(now) or pipeline.take_job(now)
