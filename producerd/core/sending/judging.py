"""Judge each entry of an answered request: delivered, strayed, unsure or failed.

A plain record that was stored is delivered, in whichever shard.  An aggregate is delivered only if the range of the
shard that stored it contains every hash key in it.  Otherwise Amazon's consumer silently drops all of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.rows.columns import Bool
from producerd.core.sending.answers import Answer
from producerd.core.sending.requests import Request
from producerd.core.shards.hash_keys import I32
from producerd.core.shards.knowledge import KnownShards
from producerd.core.shards.shard_map import Shard

STORED: Final = 0
"""The verdict on an entry that is delivered."""
STRAYED: Final = -1
"""The verdict on an aggregate in a shard where a consumer drops it."""
UNSURE: Final = -2
"""The verdict on an aggregate in a shard whose range is not known or in doubt."""


class Judgement(NamedTuple):
    """The verdicts on the entries of a request.

    - ``classes``: for each entry STORED, STRAYED, UNSURE, or 1 + its error's index in the answer's table.
    - ``elsewhere``: a mask of the entries that another shard stored than their lane's.
    - ``partly``: the first entry of each given aggregate of which some fragments were stored and others failed.
    """

    classes: I32
    elsewhere: Bool
    partly: list[int]


def judge(request: Request, answer: Answer, known: KnownShards) -> Judgement:
    """Judge the entries of an answered request by the ranges of the shards that stored them."""
    encoded = request.encoded
    assert encoded is not None
    places = {shard_id: place for place, shard_id in enumerate(answer.shard_table)}
    shards = [lane.shard for lane in request.lanes]
    # A lane whose shard id has another range by now expects no shard, because the answer may mean either range.
    expected = [places.get(shard.shard_id, -2) if known.get(shard.shard_id) == shard else -2 for shard in shards]
    predicted = [bool(shard.shard_id) for shard in shards]  # the nameless lane sends only plain records
    elsewhere = answer.shards != np.array(expected)[encoded.lanes]
    # An entry with an error is always elsewhere.  For few entries `any` takes longer than a look at their bytes.
    if not (known.doubted or encoded.fragments or True in elsewhere.tobytes()):
        return Judgement(np.zeros(encoded.entries, np.int32), elsewhere, [])
    classes = answer.errors + 1
    stored = answer.errors < 0
    elsewhere &= np.array(predicted)[encoded.lanes] & stored
    doubtful = elsewhere | stored if known.doubted else elsewhere
    if doubtful.any():
        starts = np.concatenate(([0], encoded.ends))
        for entry in np.flatnonzero(doubtful & (np.diff(starts) > 1)).tolist():
            shard = None if known.doubted else known.get(answer.shard_table[answer.shards[entry]])
            classes[entry] = _verdict(request, int(starts[entry]), int(starts[entry + 1]), shard)
    partly = _judge_fragments(encoded, answer, known, classes) if encoded.fragments else []
    elsewhere[list(encoded.fragments)] = False
    return Judgement(classes, elsewhere, partly)


def _judge_fragments(encoded: EncodedRequest, answer: Answer, known: KnownShards, classes: I32) -> list[int]:
    """Judge given aggregates, whose fragments all get one verdict.  Returns ``partly`` as in `Judgement`.

    A given aggregate is delivered only if all its fragments are; otherwise all of them are sent again.
    """
    rows: dict[int, list[int]] = {}  # by the row's end the entries of its fragments
    for entry, hash_keys in encoded.fragments.items():
        rows.setdefault(int(encoded.ends[entry]), []).append(entry)
        if answer.errors[entry] < 0 and hash_keys is not None:
            shard = None if known.doubted else known.get(answer.shard_table[answer.shards[entry]])
            if shard is None:
                classes[entry] = UNSURE
            elif not shard.covers(*hash_keys):
                classes[entry] = STRAYED
    partly = []
    for entries in rows.values():
        found = set(classes[entries].tolist())
        verdict = max(found) if max(found) > STORED else next(v for v in (STRAYED, UNSURE, STORED) if v in found)
        classes[entries] = verdict
        if verdict > STORED and (answer.errors[entries] < 0).any():
            partly.append(entries[0])
    return partly


def _verdict(request: Request, first: int, last: int, shard: Shard | None) -> int:
    """Judge an aggregate of the request's rows from ``first`` up to ``last`` that a shard, if it is known, stored."""
    if shard is None:
        return UNSURE
    return STORED if all(piece.span.lies_in(shard) for piece in request.pieces_of(first, last)) else STRAYED
