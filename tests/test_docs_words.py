"""What people wrote for readers is counted, and nothing else; a page above its limit is named."""

from __future__ import annotations

import argparse

import pytest

from tools.docs import words


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("# A title\n\nThree words - here.\n", 5),
        ("See [this page](../a/b.md#c-d) <img src='x y'>\n", 3),
        ("| a | `b c` |\n|---|---|\n", 3),
        ("One.\n\n```python\nnot these\n```\n\n  ```text\n  nor these\n  ```\n", 1),
        ("One<!-- not\nthese -->.\n", 1),
        ("<!-- metrics: written by x -->\n| a |\n<!-- end of metrics -->\nOne.\n", 1),
        ("<!-- service errors: written by x -->\n| a |\n<!-- end of service errors -->\nOne.\n", 2),
        (f"{words.GENERATED}# A title\n", 0),
    ],
)
def test_words_are_counted_where_people_write_them(page: str, count: int) -> None:
    assert words.count(page) == count


def test_the_help_of_a_command_is_counted_with_that_of_the_commands_below_it() -> None:
    parser = argparse.ArgumentParser(description="one", add_help=False)
    below = parser.add_subparsers(help="two").add_parser("x", help="three", epilog="four", add_help=False)
    below.add_argument("--hidden", help=argparse.SUPPRESS)
    assert sorted(words.helps(parser)) == ["four", "one", "three", "two"]


def test_each_limit_that_is_passed_is_named() -> None:
    most = {"readme": 2, "page": 3, "total": 9, "decision": 10**6, "first_new_decision": 17}
    assert list(words.problems({"README.md": 2, "a.md": 3}, most)) == []
    found = list(words.problems({"README.md": 3, "a.md": 4, "b.md": 3}, most | {"decision": 0}))
    assert [problem.partition(":")[0] for problem in found[:3]] == ["README.md", "a.md", "all pages"]
    assert found[3].startswith("docs/decisions/0017-")
