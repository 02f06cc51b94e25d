"""App: the process around the daemon, with its threads, sockets, signals and exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Final

from producerd.config import Config
from producerd.config.dangers import dangers
from producerd.config.tuning import TUNING, Tuning
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import sort_rows
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import ConfigurationError
from producerd.runtime import admin, allocator, logs, systemd
from producerd.runtime.aws.clients import accesses_of, open_clients
from producerd.runtime.commands import Commands
from producerd.runtime.daemon import Daemon
from producerd.runtime.event_loop import EventLoop
from producerd.runtime.leaving import OwnerProcess
from producerd.runtime.listener import Listener, Passed
from producerd.runtime.page.page import Page
from producerd.wire.columns import lay_out, parse_body

log = logs.get_logger("producerd")

TWO_SHARDS: Final = ShardMap([Shard("a", 0, MAX_HASH_KEY // 2), Shard("b", MAX_HASH_KEY // 2 + 1, MAX_HASH_KEY)])
SWITCH_INTERVAL_SECONDS: Final = 0.0005
"""Time after which a worker thread releases the interpreter.  With it the loop is late by 0.8 ms, instead of 2.1 ms."""


def run(
    config: Config,
    load: Callable[[], Config],
    owner: tuple[int, int] | None = None,
    log_file: Path | None = None,
    tuning: Tuning = TUNING,
) -> int:
    """Run the daemon until a signal ends it, and return the exit code.  Raise ConfigurationError before SERVING.

    ``load`` reads the settings again.  ``owner`` is the process with which the daemon ends, as `OwnerProcess` names it.
    ``log_file`` is the file that stderr is, if its size must stay bounded.
    """
    with logs.running(config.node.log_level, config.node.log_format, log_file):
        for danger in dangers(config):
            log.warning("a setting exposes something to others", what=danger)
        try:
            return _run(config, load, owner, tuning)
        except ConfigurationError:
            raise
        except Exception:
            # An owner of state has failed.  Log it while `running` lasts: later, a log without a reader would block.
            log.exception("the daemon has failed")
            return 1  # as an uncaught exception does


def _run(config: Config, load: Callable[[], Config], owner: tuple[int, int] | None, tuning: Tuning) -> int:
    allocator.configure()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            exit_code = runner.run(live(config, load, OwnerProcess(*owner) if owner else None, tuning))
    except BaseExceptionGroup as group:  # not `except*`: Python before 3.11.4 puts what it raises into another group
        problems, others = group.split(ConfigurationError)
        if problems is None or others is not None:
            raise
        errors = _leaves(problems)
        raise type(errors[0])([problem for error in errors for problem in error.problems]) from None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # all is done, and a late signal must not change the exit code
    return exit_code


async def live(
    config: Config, load: Callable[[], Config], owner: OwnerProcess | None = None, tuning: Tuning = TUNING
) -> int:
    """Open what a daemon needs, let it serve, and close everything.  Return the exit code."""
    loop, node = asyncio.get_running_loop(), config.node
    passed = systemd.take_sockets()
    async with AsyncExitStack() as stack:
        notifier = stack.enter_context(closing(systemd.Notifier()))
        executor = ThreadPoolExecutor(tuning.worker_threads, thread_name_prefix="producerd-worker")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        await loop.run_in_executor(executor, _sort_two_rows)
        clients = await stack.enter_async_context(open_clients(accesses_of(config), tuning))
        clients.look_for_credentials(accesses_of(config))
        listener = (
            Passed(passed.records, node.socket_mode, node.socket_group, unit=passed.unit)
            if passed.records is not None
            else Listener(node.socket, node.socket_mode, node.socket_group)
        )
        stack.callback(listener.close)
        daemon = Daemon(
            config,
            load,
            clients=clients,
            executor=executor,
            notifier=notifier,
            listener=listener,
            owner=owner,
            tuning=tuning,
        )
        stack.callback(daemon.stop_watching)
        daemon.watch()
        commands = Commands(daemon, daemon.streams)
        if node.metrics_address is not None:
            page = Page(commands.status)
            page.watch(loop)
            stack.callback(page.stop)
            bound = await stack.enter_async_context(
                admin.serve(
                    node.metrics_address,
                    render_metrics=daemon.render_metrics,
                    render_page=page.html,
                    unready=lambda: daemon.unready,
                )
            )
            log.info("metrics", address=f"http://{bound[0]}:{bound[1]}/metrics")
        admin_listener = (
            Passed(passed.admin, 0o600, unit="the socket unit with FileDescriptorName=admin")
            if passed.admin is not None
            else Listener(node.admin_path, 0o600, setting="admin_socket")
        )
        stack.callback(admin_listener.close)
        admin_acceptor = await stack.enter_async_context(admin.serve_socket(admin_listener, commands))
        return await daemon.serve(admin_acceptor)


def _leaves(group: BaseExceptionGroup[ConfigurationError]) -> list[ConfigurationError]:
    leaves: list[ConfigurationError] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


def _sort_two_rows() -> None:
    """Load what sorting imports when it is needed: Arrow's compute functions, and random numbers for a row without key.

    They belong to an idle daemon's memory, and a file that is missing later would fail rows.
    """
    columns = lay_out([b"key", b""], [b"data"] * 2)
    body = parse_body(columns.body_prefix(1) + b"".join(map(bytes, columns.parts)), columns.layout.flags)
    sort_rows([Frame(None, 0, intake.check(body, 1024), 0)], TWO_SHARDS, 0)
