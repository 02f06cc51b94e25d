"""Answers of a broken service, or of one that is not Kinesis: good answers in which some values are replaced."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from hypothesis import strategies
from hypothesis.strategies import SearchStrategy

ODD: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, float("inf"), 10**400, "", "x", "²", "-1", " 1", "9" * 5_000, [], [None], ["1"], [[[]]], {},
    {"Shards": None}, {"a": [{}]},
)  # fmt: skip
"""Values of every kind that JSON has."""


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every value in the document, as its container and its key or index there."""
    keys = document.keys() if isinstance(document, dict) else range(len(document))
    for key in list(keys):
        yield document, key
        if isinstance(document[key], dict | list):
            yield from places(document[key])


def mutated(good: Any, random: Random) -> Any:
    """Return a copy in which one to three values are odd, or are missing."""
    document = copy.deepcopy({"": good})
    for _ in range(random.randint(1, 3)):
        holder, key = random.choice(list(places(document)))
        if key and isinstance(holder, dict) and random.random() < 0.1:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(random.choice(ODD))
    return document[""]


def variants(good: Any) -> SearchStrategy[Any]:
    """Draw such copies."""
    return strategies.randoms(use_true_random=False).map(lambda random: mutated(good, random))
