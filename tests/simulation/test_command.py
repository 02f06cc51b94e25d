"""``./dev simulate`` reports what it checked and what it met, and runs only the stories that it is asked for."""

from __future__ import annotations

import json

import pytest

from producerd.core.lanes.lanes import Lanes
from tests.simulation.__main__ import laws_looked_at, main
from tests.simulation.laws import LawBroken
from tests.simulation.story import Story


def test_it_tells_the_laws_that_were_looked_at_and_what_was_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--from", "3"]) == 0
    held, looked_at, met = capsys.readouterr().out.splitlines()
    assert held.startswith("5 stories in ")
    assert held.endswith("and every law held")
    assert looked_at == f"laws looked at: {', '.join(laws_looked_at())}"
    assert met.startswith("met: steps ")
    assert main(["--seeds", "5", "--from", "3", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["stories"], told["first_seed"], told["laws"]) == (5, 3, laws_looked_at())
    assert met == f"met: {', '.join(f'{what} {count:,}' for what, count in told['met'].items())}"
    assert told["met"]["steps"] > 500
    assert sum(told["met"].values()) > told["met"]["steps"], "something was met"


def test_every_law_is_named_as_it_is_broken() -> None:
    assert {"QueueBudget", "Row", "Frame", "Lane", "Pipeline", "acknowledgement", "per_key", "copies", "flush"} <= set(
        laws_looked_at()
    )


def test_a_broken_law_is_told_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(story: Story) -> None:
        if story.seed == 5:
            raise LawBroken("Row", "a row is gone")

    monkeypatch.setattr(Story, "tell", tell)
    assert main(["--seeds", "9"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "broken law: Row",
        "Row: a row is gone",
        "seed 5; to see it alone: ./dev simulate --seeds 1 --from 5",
    ]


def test_machines_run_as_many_examples_as_are_asked_for_until_one_breaks_a_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--machines", "--examples", "2"]) == 0
    assert [line.partition(" in ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "gate: 2 examples",
        "lanes: 2 examples",
    ]
    monkeypatch.setattr(Lanes, "line_up", lambda self, lane: None)
    assert main(["--machines", "--examples", "40"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("gate: 40 examples")
    assert "rows wait forever" in err
    assert err.endswith("the machine of the lanes broke a rule, see above\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "5"], "unrecognized arguments: --seed 5"),
        (["--seeds", "0"], "argument --seeds: '0' is not a whole number from 1 on"),
        (["--from", "-1"], "argument --from: '-1' is not a whole number from 0 on"),
    ],
)
def test_what_names_no_stories_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
