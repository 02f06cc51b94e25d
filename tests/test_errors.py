"""Every error keeps what it carries across a pickle, and has a code."""

from __future__ import annotations

import pickle

import pytest

from producerd import errors
from producerd.errors import Code, RowFailure

SAMPLES = [
    errors.ProducerdError("text", code=Code.KMS),
    errors.ConfigurationError(["one", "two"]),
    errors.ProtocolError("text"),
    errors.ConnectionFailed("text", code=Code.DAEMON_LOST),
    errors.Refused("text", code=Code.TOO_LARGE, max_frame_bytes=7, max_frame_records=3),
    errors.BackpressureTimeout("text"),
    errors.FlushTimeout("text"),
    errors.BadColumn("text"),
    errors.RecordsFailed("text", [RowFailure(Code.KMS, "why", 2, True, (1, 2))]),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_a_pickle(error: errors.ProducerdError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.code == error.code
    assert vars(copy) == vars(error)


def test_every_kind_of_error_is_sampled_and_stands_in_the_tree_of_the_docstring() -> None:
    kinds: set[type] = {errors.ProducerdError, *errors.ProducerdError.__subclasses__()}
    assert {type(error) for error in SAMPLES} == kinds
    assert errors.__doc__ is not None
    for kind in kinds:
        assert kind.__name__ in errors.__doc__


def test_a_code_is_its_own_name() -> None:
    codes = {name: value for name, value in vars(Code).items() if not name.startswith("_")}
    assert codes == {name: name for name in codes}
