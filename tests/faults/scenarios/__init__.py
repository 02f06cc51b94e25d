"""The scenarios by name.  Each module holds the scenarios of one kind, and `all_scenarios` has them all in order."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from tests.faults.stage import Scenario, Stage

_KNOWN: dict[str, Scenario] = {}


def scenario(injected: str, **options: Any) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Register a function as the scenario of its name.  ``options`` are fields of `Scenario`."""

    def register(act: Callable[[Stage], None]) -> Callable[[Stage], None]:
        assert act.__name__ not in _KNOWN, act.__name__
        _KNOWN[act.__name__] = Scenario(act.__name__, injected, act, **options)
        return act

    return register


def all_scenarios() -> dict[str, Scenario]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    # By module and not by time: another module may have imported one of them before.
    return dict(sorted(_KNOWN.items(), key=lambda known: known[1].act.__module__))
