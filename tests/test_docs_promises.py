"""Each promise has a test, and each mark a promise."""

from __future__ import annotations

import pytest

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


def test_the_marks_of_a_module_are_found_on_functions_and_methods() -> None:
    assert list(marked(MODULE)) == [("a", "test_x"), ("b", "test_x")]
