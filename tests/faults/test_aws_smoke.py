"""`./dev aws-smoke` runs against the fake under the name of AWS's host, so only AWS itself is untested.

The fake serves TLS on port 443.  Both live in a network of their own, from which nothing reaches AWS.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from tests.daemon import CREDENTIALS, ROOT, until
from tests.faults import aws_smoke

HOST: Final = "kinesis.us-east-1.amazonaws.com"
ALONE: Final = 'ip link set lo up && mount --bind "$0" /etc/hosts && exec "$@"'
ASK: Final = """\
import ssl, sys, urllib.request
url, certificate, body = sys.argv[1:]
trust = ssl.create_default_context(cafile=certificate)
print(urllib.request.urlopen(url, body.encode() or None, context=trust, timeout=30).read().decode())
"""
SMOKE: Final = [sys.executable, "-m", "tests.faults.aws_smoke", "--region", "us-east-1"]
RUN_SECONDS: Final = 300


class Aws:
    """The fake under AWS's name, in a network of its own that other commands can be run in."""

    def __init__(self, process: subprocess.Popen[str], url: str, certificate: str) -> None:
        self._inside = ["nsenter", f"--target={process.pid}", "--mount", "--net", f"--wd={ROOT}", "--"]
        self._url = url
        self._certificate = certificate
        plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.environ = {**plain, **CREDENTIALS, "AWS_CA_BUNDLE": certificate}

    def control(self, path: str, **body: Any) -> Any:
        command = [
            sys.executable,
            "-c",
            ASK,
            f"{self._url}/_fake/{path}",
            self._certificate,
            json.dumps(body) if body else "",
        ]
        return json.loads(subprocess.run([*self._inside, *command], capture_output=True, text=True, check=True).stdout)

    @property
    def streams(self) -> set[str]:
        return set(self.control("settings")["streams"])

    def start(self, *command: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = (*self._inside, *command)
        return subprocess.Popen(
            command, env=self.environ, text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("needs root, and the commands unshare, nsenter and ip")
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.0.1 {HOST}\n")
    alone = ["unshare", "--mount", "--net", "bash", "-c", ALONE, str(hosts)]
    serve = [sys.executable, "-m", "producerd.testing.fake_kinesis", f"--host={HOST}", "--port=443", "--tls"]
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(
            [*alone, *serve, "--enforce-limits", "--stream=another"],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url, certificate = process.stdout.readline().strip(), process.stdout.readline().strip()
            if not url and "not permitted" in (said := Path(log.name).read_text()):
                pytest.skip(f"no network of its own can be made: {said.strip()}")
            made = Aws(process, url, certificate)
            made.control("settings", accepted_access_keys=[CREDENTIALS["AWS_ACCESS_KEY_ID"]], checks_clock=True)
            yield made
        finally:
            process.kill()


@pytest.mark.promise("smoke-test-passes-under")
@pytest.mark.slow
def test_the_smoke_test_passes_under_the_name_of_awss_host_and_leaves_no_stream(aws: Aws) -> None:
    with aws.start(*SMOKE, "--yes", "--json") as smoke:
        rows, told = smoke.communicate(timeout=RUN_SECONDS)
    assert smoke.returncode == 0, told + rows
    (row,) = json.loads(rows)
    assert row["broken"] == []
    assert row["sent"] == row["acknowledged"] == row["readable"] > 1_000
    assert told.index("US dollars") < told.index("making the stream")
    results = aws.control("counters")["results"]
    assert results["ProvisionedThroughputExceededException"] > 0
    assert aws.streams == {"another"}


@pytest.mark.promise("smoke-test-deletes-stream")
@pytest.mark.slow
def test_the_smoke_test_deletes_its_stream_when_it_is_interrupted(aws: Aws) -> None:
    with aws.start(*SMOKE, "--yes") as smoke:
        until(lambda: aws.streams != {"another"}, "the stream is made", 60)
        smoke.send_signal(signal.SIGTERM)
        _, told = smoke.communicate(timeout=RUN_SECONDS)
    assert smoke.returncode == 128 + signal.SIGTERM, told
    assert "deleted the stream" in told
    assert aws.streams == {"another"}


def test_the_smoke_test_makes_nothing_where_nobody_can_agree_to_the_cost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        assert aws_smoke.main(["--region", "us-east-1"]) == 2
    told = capsys.readouterr().err
    assert "US dollars" in told
    assert "--yes" in told
    assert "making" not in told


def test_the_smoke_test_names_no_stream_to_delete_where_it_has_no_credentials(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [*SMOKE, "--yes"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "no stream can be made in us-east-1: Unable to locate credentials" in done.stderr
    assert "delete" not in done.stderr.partition("making the stream")[2]


@pytest.mark.parametrize(
    ("code", "status", "refused"),
    [("AccessDeniedException", 400, True), ("ResourceInUseException", 400, False), ("InternalFailure", 500, False)],
)
def test_only_a_refusal_of_aws_says_that_no_stream_was_made(code: str, status: int, refused: bool) -> None:
    told: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert aws_smoke.is_refusal(ClientError(told, "CreateStream")) is refused


def test_a_call_that_got_no_answer_may_have_made_the_stream() -> None:
    assert not aws_smoke.is_refusal(ReadTimeoutError(endpoint_url=HOST))
