"""The internals of aiobotocore and botocore that the daemon uses exist, and it reports any that is missing."""

from __future__ import annotations

import aiobotocore
import pytest
from aiobotocore.httpsession import AIOHTTPSession
from botocore.credentials import RefreshableCredentials

from producerd.errors import ConfigurationError
from producerd.runtime.aws import internals
from producerd.runtime.aws.clients import open_clients


def test_the_installed_libraries_have_what_is_reached_for() -> None:
    internals.check()


async def test_a_library_without_it_ends_the_start_and_is_named_with_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(AIOHTTPSession, "_build_ssl_contexts")
    monkeypatch.setattr(RefreshableCredentials, "__init__", lambda self: None)
    with pytest.raises(ConfigurationError) as caught:
        async with open_clients([]):
            pass
    problems = caught.value.problems
    assert len(problems) == 4
    assert problems[0].startswith(
        f"aiobotocore {aiobotocore.__version__} has no _build_ssl_contexts in AIOHTTPSession, which producerd needs"
    )
    assert "_time_fetcher" in problems[1]
