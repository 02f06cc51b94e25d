"""Each promise has a test and each mark a promise, and nothing is lost when footnotes become promises."""

from __future__ import annotations

import pytest

from tools.docs import footnotes
from tools.docs.promises import Proof, marked, problems

PROOF = Proof("tests/test_x.py", "test_x")
MODULE = """\
from __future__ import annotations

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
        ([("a", "docs/a.md")] * 2, {"a": [PROOF]}, ["docs/a.md: the promise a stands twice"] * 2),
    ],
)
def test_a_promise_and_its_tests_go_together(
    made: list[tuple[str, str]], shown: dict[str, list[Proof]], names: list[str]
) -> None:
    assert list(problems(made, shown)) == names


def test_a_footnote_becomes_a_promise_and_what_it_says_of_no_test_stays() -> None:
    page = "One.[^1] Two.[^2]\n\n[^1]: `test_the_first_thing`,\n    `test_y`.\n[^2]: No test.\n\n## End\n"
    promised = "One.<!-- promise: first-thing --> Two.[^2]\n\n[^2]: No test.\n\n## End\n"
    assert footnotes.carry(page, set()) == (promised, {"first-thing": ["test_the_first_thing", "test_y"]})
    assert footnotes.carry(promised, set()) == (promised, {})


def test_a_mark_is_added_to_those_that_a_test_has() -> None:
    changed = footnotes.with_marks(MODULE, {"test_x": ["b", "c"], "test_y": ["c"]})
    assert list(marked(changed)) == [("c", "test_y"), ("a", "test_x"), ("b", "test_x"), ("c", "test_x")]
    assert changed.count("import pytest\n") == 1
