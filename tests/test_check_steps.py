"""Each step of `./dev check` that is ours finds what it is for, on its line, and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.import_arrows import violations
from tools import ROOT, voice
from tools.docs import site, words
from tools.docs.promises import Proof, marked, problems

if TYPE_CHECKING:
    from pathlib import Path

# ---- arrows: no import against docs/build/laws.md


def imports_of(folder: Path, place: str, source: str) -> list[str]:
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return list(violations(folder))


@pytest.mark.promise("tree-clean")
def test_this_tree_has_no_import_against_an_arrow() -> None:
    assert list(violations(ROOT)) == []


@pytest.mark.promise("tree-clean")
@pytest.mark.parametrize(
    ("place", "source", "reason"),
    [
        ("spark_client/writer.py", "import producerd.core.lanes", "no arrow to producerd.core.lanes"),
        ("spark_client/writer.py", "def put():\n    import producerd.runtime", "no arrow to producerd.runtime"),
        ("spark_client/writer.py", "import pyarrow", "may import pyarrow only where it is used"),
        ("spark_client/writer.py", "class A:\n    import pyarrow", "may import pyarrow only where it is used"),
        ("spark_client/writer.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import pyarrow", "may import pyarrow only"),
        ("spark_client/writer.py", "def put():\n    import numpy", "must do without the third party numpy"),
        ("producerd/wire/messages.py", "import socket", "must do without socket"),
        ("producerd/wire/messages.py", "from time import monotonic", "must do without time.monotonic"),
        ("producerd/wire/messages.py", "from ..core import lanes", "no arrow to producerd.core.lanes"),
        ("producerd/wire/messages.py", "from .. import config", "no arrow to producerd.config"),
        ("producerd/core/budget.py", "import producerd.wire.columns_of_old", "no arrow to producerd.wire.columns_of"),
        ("producerd/core/budget.py", "import time", "must do without time"),
        ("producerd/runtime/gate.py", "import aiobotocore.session", "only producerd/runtime/aws/ may import"),
        ("producerd/runtime/app.py", "import prometheus_client", "only producerd/runtime/metrics.py may import"),
        ("producerd/runtime/app.py", "import spark_client", "no arrow to spark_client"),
        ("producerd/errors.py", "from producerd import wire", "no arrow to producerd.wire"),
        ("producerd/__init__.py", "from producerd.errors import ProducerdError", "no arrow to producerd.errors"),
        ("producerd/cli.py", "from producerd.runtime.app import App", "may import producerd.runtime.app.App only"),
        ("producerd/testing/fake.py", "import botocore", "only producerd/runtime/aws/ may import botocore"),
        ("tools/java.py", "from producerd.errors import Code", "no arrow to producerd.errors.Code"),
    ],
)
def test_an_import_against_an_arrow_is_found(tmp_path: Path, place: str, source: str, reason: str) -> None:
    (violation,) = imports_of(tmp_path, place, source)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "import " in text)
    assert violation.startswith(f"{place}:{line}: {reason}")


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("spark_client/writer.py", "from producerd.wire import messages\nfrom producerd.errors import ProducerdError"),
        ("spark_client/writer.py", "from producerd import __version__\nfrom spark_client.client import KinesisClient"),
        ("spark_client/writer.py", "def put():\n    import pyarrow\n    from pyspark import TaskContext"),
        ("spark_client/writer.py", "async def put():\n    import pyarrow"),
        ("spark_client/writer.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow"),
        ("spark_client/connection.py", "import socket, time"),
        ("producerd/wire/messages.py", "import struct\nfrom . import columns\nfrom ..errors import ProtocolError"),
        ("producerd/core/budget.py", "from producerd.wire import columns\nfrom producerd.wire.columns import Columns"),
        (
            "producerd/core/budget.py",
            "import numpy, pyarrow, orjson, pybase64\nfrom producerd.core.rows.buffers import Span",
        ),
        ("producerd/runtime/aws/clients.py", "import aiobotocore, botocore.awsrequest"),
        ("producerd/runtime/metrics.py", "import prometheus_client\nfrom producerd.core import stats"),
        ("producerd/cli.py", "def serve():\n    from producerd.runtime.app import App"),
        ("producerd/testing/fake.py", "import spark_client, producerd.core, producerd.runtime, aiohttp"),
        ("pyspark_producerd.py", "from pyspark.sql.datasource import DataSource\nimport spark_client"),
    ],
)
def test_an_import_along_an_arrow_passes(tmp_path: Path, place: str, source: str) -> None:
    assert imports_of(tmp_path, place, source) == []


# ---- voice: no banned phrase in what people read

BANNED = [
    {"find": r"grand (duke|duchess)\b", "instead": "ruler"},
    {"find": r"zounds\b", "instead": "nothing", "but": ["b."]},
]
QUOTATION = [{"path": "a.md", "text": "the Grand Duke of York", "reason": "a song"}]


def phrases(folder: Path, name: str, text: str, **more: Any) -> list[str]:
    (folder / name).write_text(text)
    return list(voice.problems(folder, {"banned": BANNED, "clean": [name], **more}))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.py", "# Of a grand\n# duke.\n", 1),
        ("a.py", 'x = 1\n\n\ndef f():\n    """Begin.\n\n    Then a grand\n    duke.\n    """\n', 7),
        ("a.py", 'x = (\n    f"{1} of"\n    f" the grand duke {2}"\n)\n', 3),
        ("a.md", "# Title\n\nOf a Grand\nDuchess.\n", 3),
        ("a.service", "[Unit]\n# The grand duke.\n", 2),
    ],
)
def test_a_banned_phrase_is_found_on_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    (problem,) = phrases(tmp_path, name, text)
    assert re.fullmatch(rf'{name}:{line}: "grand (duke|duchess)": write ruler', problem, re.IGNORECASE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def test_zounds_is_a_grand_duke():\n    zounds = 1\n"),
        ("a.py", '"""The option ``grand duke``."""\n'),
        ("a.md", "The test `test_zounds` shows `zounds`.\n"),
        ("a.md", "Here.<!-- promise: zounds-here -->\n"),
        ("b.md", "Zounds!\n"),
    ],
)
def test_names_and_code_may_have_any_word(tmp_path: Path, name: str, text: str) -> None:
    assert phrases(tmp_path, name, text) == []


def test_a_quotation_is_allowed_in_its_file_and_must_be_there(tmp_path: Path) -> None:
    text = "He sang of the\nGrand Duke of York.\n"
    assert phrases(tmp_path, "a.md", text, quotation=QUOTATION) == []
    assert len(phrases(tmp_path, "b.md", text, quotation=QUOTATION)) == 2
    (problem,) = phrases(tmp_path, "a.md", "Nothing here.\n", quotation=QUOTATION)
    assert problem.startswith('a.md: no longer has the quotation "the Grand Duke of York"')


# ---- docs: promises and their tests, the menu of the site, and lengths

PROOF = Proof("tests/test_x.py", "test_x")
MODULE = """\
class TestX:
    @pytest.mark.promise("a", "b")
    async def test_x(self) -> None: ...

def test_y() -> None: ...
"""


@pytest.mark.parametrize(
    ("made", "shown", "names"),
    [
        ([("a", "docs/a.md")], {"a": [PROOF]}, []),
        ([("a", "docs/a.md")], {}, ["docs/a.md: no test is marked with the promise a"]),
        ([], {"a": [PROOF]}, ["tests/test_x.py: no page makes the promise a"]),
        ([("a", "docs/a.md"), ("a", "docs/b.md")], {"a": [PROOF]}, ["docs/a.md: the promise a stands twice"]),
    ],
)
def test_a_promise_and_its_tests_go_together(
    made: list[tuple[str, str]], shown: dict[str, list[Proof]], names: list[str]
) -> None:
    assert list(problems(made, shown)) == names


def test_the_marks_of_a_module_are_found_on_functions_and_methods() -> None:
    assert list(marked(MODULE)) == [("a", "test_x"), ("b", "test_x")]


def test_a_link_that_leaves_the_pages_leads_to_the_repository_and_one_to_nothing_is_refused() -> None:
    places = {
        "docs/a/b.md": "a/b.md",
        "docs/c.md": "c.md",
        "docs/c.svg": "c.svg",
        "CONTRIBUTING.md": "build/contributing.md",
    }
    text = "[c](../c.md#d) [build](../../CONTRIBUTING.md#run) ![x](../../LICENSE) [w](https://w.org/a.md)"
    text += '<img src="../c.svg">'
    assert site.for_site("docs/a/b.md", text, places, "https://forge/us") == (
        "[c](../c.md#d) [build](../build/contributing.md#run) ![x](https://forge/us/blob/HEAD/LICENSE) "
        '[w](https://w.org/a.md)<img src="../c.svg">'
    )
    with pytest.raises(FileNotFoundError, match=r"docs/a/b\.md: there is no deploy/nothing"):
        site.for_site("docs/a/b.md", "[x](../../deploy/nothing)", places, "https://forge/us")


def test_a_page_without_an_entry_in_the_menu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {**site.published(), "docs/new.md": "new.md"}
    monkeypatch.setattr(site, "published", lambda: places)
    monkeypatch.setattr(site, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"entry in `nav` go together: new\.md$"):
        site.prepare()


def test_words_are_counted_where_people_write_them_and_each_limit_that_is_passed_is_named() -> None:
    page = "# A title\n\nSee [this page](../a/b.md#c-d).\n\n```python\nnot these\n```\n| a | `b c` |\n|---|---|\n"
    assert words.count(page) == 8
    assert words.count(f"{words.GENERATED}{page}") == 0
    most = {"readme": 2, "page": 3, "total": 9, "decision": 10**6, "first_new_decision": 17}
    assert list(words.problems({"README.md": 2, "a.md": 3}, most)) == []
    found = list(words.problems({"README.md": 3, "a.md": 4, "b.md": 3}, most | {"decision": 0}))
    assert [problem.partition(":")[0] for problem in found[:3]] == ["README.md", "a.md", "all pages"]
