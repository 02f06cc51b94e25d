"""`producerd check` says in words what the settings mean, and warns of a queue that does not suit its stream's rate."""

from __future__ import annotations

import pytest

from producerd.config import StreamSettings
from producerd.config.summary import queue_warning


@pytest.mark.parametrize(
    ("sets", "shards", "warning"),
    [
        ({"queue_limit_bytes": "100 MiB"}, 1, ""),
        ({"queue_limit_bytes": "101 MiB"}, None, "a full queue is 101 s of one shard, "),
        ({"queue_limit_bytes": "101 MiB"}, 2, ""),
        ({"queue_limit_bytes": "202 MiB"}, 2, "a full queue is 101 s of its 2 shards: "),
        ({"queue_limit": 1_000}, 1, ""),
        ({"queue_limit": 1_000}, 4, "a full queue is 0.25 s of its 4 shards: "),
    ],
)
def test_a_queue_lasts_from_a_second_to_a_hundred_with_all_shards(
    sets: dict[str, object], shards: int | None, warning: str
) -> None:
    said = queue_warning(StreamSettings.model_validate(sets), shards)
    assert said.startswith(warning)
    assert bool(said) is bool(warning)


@pytest.mark.parametrize("rate", [0.5, 10])
@pytest.mark.parametrize(("records", "mib", "key"), [(2, 1, "queue_limit_bytes"), (1, 2, "queue_limit")])
def test_the_warning_names_the_limit_that_is_reached_first(rate: float, records: int, mib: int, key: str) -> None:
    """Whatever the rate is: it is the same part of both limits."""
    settings = StreamSettings(
        queue_limit=int(records * 200 * rate), queue_limit_bytes=int(mib * 200 * rate) << 10, shard_rate_fraction=rate
    )
    assert queue_warning(settings).endswith(f"raise {key}")
