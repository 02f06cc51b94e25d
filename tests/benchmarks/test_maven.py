"""A Java project is built once for its sources; where it cannot be, one message says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import maven

MVN = """#!/bin/sh
echo "$@" >> "{log}"
for argument in "$@"; do case $argument in -Dbuild.folder=*) mkdir -p "${{argument#*=}}/classes" ;; esac; done
{end}
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with a JDK and a Maven that write down their arguments."""
    tools = tmp_path / "jdk" / "bin"
    tools.mkdir(parents=True)
    for name, text in {"java": "", "javac": "", "mvn": MVN.format(log=tmp_path / "log", end="")}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(maven, "BUILT", tmp_path / "built")
    return tools


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "judge"
    (project / "src").mkdir(parents=True)
    (project / "pom.xml").write_text("<project/>")
    (project / "src" / "Judge.java").write_text("class Judge {}")
    return project


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "log").read_text().splitlines())


def test_it_is_built_once_and_run_with_all_that_was_built(tools: Path, project: Path, tmp_path: Path) -> None:
    first = maven.command(project, "Judge", "-Xmx1g")
    assert maven.command(project, "Judge", "-Xmx1g") == first
    assert runs(tmp_path) == 1
    (built,) = maven.BUILT.iterdir()
    assert first == [str(tools / "java"), "-Xmx1g", "-cp", f"{built}/classes:{built}/lib/*", "Judge"]
    assert (built / "classes").is_dir()


@pytest.mark.parametrize("source", ["pom.xml", "src/Judge.java"])
def test_changed_sources_are_built_anew_and_the_old_classes_go(
    tools: Path, project: Path, tmp_path: Path, source: str
) -> None:
    before = maven.command(project, "Judge")
    (project / source).write_text("changed")
    assert maven.command(project, "Judge") != before
    assert runs(tmp_path) == 2
    assert len(list(maven.BUILT.iterdir())) == 1


def test_nothing_is_left_of_a_build_that_fails_and_mavens_errors_are_told(
    tools: Path, project: Path, tmp_path: Path
) -> None:
    end = "echo '[INFO] x'; echo '[ERROR] no such artifact'; exit 1"
    (tools / "mvn").write_text(MVN.format(log=tmp_path / "log", end=end))
    with pytest.raises(maven.Unavailable, match=r"^Maven could not build judge:\n\[ERROR\] no such artifact$"):
        maven.command(project, "Judge")
    assert list(maven.BUILT.iterdir()) == []


@pytest.mark.parametrize(("missing", "message"), [("javac", "no javac.*install a JDK 17"), ("mvn", "no mvn on PATH")])
def test_a_missing_tool_is_named(
    tools: Path, project: Path, monkeypatch: pytest.MonkeyPatch, missing: str, message: str
) -> None:
    (tools / missing).unlink()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(maven.Unavailable, match=message):
        maven.command(project, "Judge")
