"""Answers of a broken service, or of one that is not Kinesis: good answers in which some values are replaced."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

from hypothesis import strategies

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


@strategies.composite
def mutated(draw: Callable[[Any], Any], good: Any) -> Any:
    """Draw a copy in which one to three values are odd, or are missing."""
    document = copy.deepcopy({"": good})
    for _ in range(draw(strategies.integers(1, 3))):
        container, key = draw(strategies.sampled_from(list(places(document))))
        if key and isinstance(container, dict) and draw(strategies.integers(0, 9)) == 0:
            del container[key]
        else:
            container[key] = copy.deepcopy(draw(strategies.sampled_from(ODD)))
    return document[""]
