"""A release is of the tree that its tag names.  The workflows run what is here, with the rights they need."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from producerd import __version__
from tools import ROOT, packaging, release
from tools.commands import COMMANDS

WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAY_WRITE: Final = {
    "docs.yml publish": {"id-token", "pages"},
    "locks.yml locks": {"actions", "contents", "pull-requests"},
    "release.yml image": {"attestations", "id-token", "packages"},
    "release.yml publish": {"attestations", "contents", "id-token"},
}
"""What each job may write: every other job may only read the repository."""


class Job(NamedTuple):
    """One job of a workflow, as its file has it."""

    name: str
    content: dict[str, Any]


def jobs() -> Iterator[Job]:
    for path in WORKFLOWS:
        for name, content in yaml.safe_load(path.read_text())["jobs"].items():
            yield Job(f"{path.name} {name}", content)


def steps() -> list[dict[str, Any]]:
    return [step for job in jobs() for step in job.content.get("steps", ())]


def commands() -> list[str]:
    """Every line of every `run:`."""
    return [line for step in steps() for line in step.get("run", "").splitlines()]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the release of this version looks at, and all of it is right."""
    files = {
        "producerd/__init__.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n\n- New.\n\n## [1.2.2] - 2026-01-30\n",
        release.CHART: 'apiVersion: v2\nappVersion: "1.2.3"\n# 1.2.3\nversion: 1.2.3\n',
        "tests/wire/golden/1.2/session.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.promise("tag-version-released")
def test_the_tag_of_the_version_may_be_released_with_the_changelogs_lines(tree: Path) -> None:
    assert list(release.problems("v1.2.3", tree)) == []
    assert release.notes("1.2.3", tree) == "- New."


@pytest.mark.promise("tag-version-released")
@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.4", "v1.2.3rc1", "v1.2.30"])
def test_no_other_tag_may_be_released(tree: Path, tag: str) -> None:
    (problem,) = release.problems(tag, tree)
    assert problem.startswith("producerd.__version__ is 1.2.3: the tag must be v1.2.3")


@pytest.mark.promise("tag-version-released")
@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("CHANGELOG.md", "## [1.2.3] - 2026-01-31", "## [1.2.3]", "has no lines under a heading like: ## [1.2.3] - 2"),
        ("CHANGELOG.md", "- New.\n", "", "has no lines under a heading like: ## [1.2.3] - 2"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- Newer.\n", "move them under [1.2.3]"),
        (release.CHART, 'appVersion: "1.2.3"', 'appVersion: "1.2.2"', "must have 1.2.3 as version and as appVersion"),
        (release.CHART, "version: 1.2.3", "version: 1.2.30", "must have 1.2.3 as version and as appVersion"),
        ("tests/wire/golden/1.2/session.txt", "", "", "tests/wire/golden/1.2 is missing"),
    ],
)
def test_what_a_release_lacks_is_named(tree: Path, name: str, old: str, new: str, says: str) -> None:
    if old:
        text = (tree / name).read_text()
        assert old in text
        (tree / name).write_text(text.replace(old, new))
    else:
        shutil.rmtree((tree / name).parent)
    (problem,) = release.problems("v1.2.3", tree)
    assert says in problem


@pytest.mark.promise("pages-name-files-version")
def test_the_pages_name_the_files_of_this_version() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        found
        for page in pages
        for found in re.findall(r"producerd[-_](?:client-|demo-)?(\d+\.\d+\.\d+)[-.]\w", page.read_text())
    }
    assert named == {__version__}


@pytest.mark.promise("page-releases-names")
def test_the_page_of_releases_names_each_file_that_is_built(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def write(target: Path | Iterable[Path], *_others: object) -> None:
        built.extend([target] if isinstance(target, Path) else target)
        for path in built:
            path.touch()

    def write_wheels(dist: Path, _tree: Path) -> None:
        dist.mkdir()
        write([dist / f"{name}-1.2.3-py3-none-any.whl" for name in ("producerd", "producerd_demo")])

    monkeypatch.setattr(packaging, "write_wheels", write_wheels)
    monkeypatch.setattr(packaging, "write_pexes", lambda _wheel, targets: write(targets))
    for name in ("write_client_zip", "write_sbom_of_daemon", "write_emr_bundle"):
        monkeypatch.setattr(packaging, name, write)
    packaging.build(tree, packaging.PEXES, sbom=True)
    generic = {re.sub("cp3[0-9]+", "cp3MM", re.sub("x86_64|aarch64", "MACHINE", path.name)) for path in built}
    page = (ROOT / "docs/build/releasing.md").read_text().replace(__version__, "1.2.3")
    assert len(generic) == 6
    assert generic <= set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE))


def test_the_page_of_support_has_a_row_for_each_version_that_the_wire_knows() -> None:
    rows = re.findall(r"^\| (\d+\.\d+) \| ", (ROOT / "docs/understand/support.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in (ROOT / "tests/wire/golden").glob("[0-9]*"))


@pytest.mark.promise("job-needs")
@pytest.mark.parametrize("job", list(jobs()), ids=lambda job: job.name)
def test_each_job_may_do_what_it_needs_and_no_more(job: Job) -> None:
    """A workflow grants all its jobs reading at most."""
    workflow = yaml.safe_load((ROOT / ".github/workflows" / job.name.split()[0]).read_text())
    assert workflow["permissions"] in ({}, {"contents": "read"})
    granted = job.content.get("permissions", workflow["permissions"])
    assert set(granted.values()) <= {"read", "write"}
    assert {name for name, right in granted.items() if right == "write"} == MAY_WRITE.get(job.name, set())
    assert {name for name, right in granted.items() if right == "read"} <= {"contents"}


@pytest.mark.promise("job-needs")
def test_each_action_is_pinned_to_a_major_version_or_a_digest() -> None:
    used = {step["uses"] for step in steps() if "uses" in step}
    assert len(used) > 5
    assert [name for name in used if not re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", name)] == []


@pytest.mark.promise("actionlint-finds-nothing")
def test_each_command_of_a_workflow_runs_what_is_here() -> None:
    words = [word.strip(";()") for line in commands() for word in shlex.split(line, comments=True)]
    paths = {word for word in words if re.match(r"(\./|\.ci/|deploy/|docs/|tests/|tools/)", word)}
    assert {"./dev", ".ci/run", "deploy/container/Dockerfile", "deploy/kubernetes/chart"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert {after for word, after in pairwise(words) if word == "./dev"} <= COMMANDS.keys()
    modules = {after for word, after in pairwise(words) if word == "-m" and "." in after}
    assert modules == {"tools.release"}


@pytest.mark.promise("actionlint-finds-nothing")
def test_the_release_job_finds_the_image_s_one_base_and_its_arguments() -> None:
    (find,) = (line for line in commands() if "ARG BASE" in line)
    found = subprocess.run(
        ["bash", "-ec", f'{find}; echo "$base"'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"[\w./-]+:[\w.-]+\n", found.stdout)
    (build,) = (step["with"] for step in steps() if "build-args" in step.get("with", {}))
    arguments = re.findall(r"^(\w+)=", build["build-args"], re.MULTILINE)
    assert set(arguments) == set(re.findall(r"^ARG (\w+)=", (ROOT / build["file"]).read_text(), re.MULTILINE))


@pytest.mark.promise("actionlint-finds-nothing")
def test_actionlint_finds_nothing_in_the_workflows() -> None:
    actionlint = shutil.which("actionlint")
    if not actionlint:
        pytest.skip("actionlint is not on PATH: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12")
    done = subprocess.run([actionlint, *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
