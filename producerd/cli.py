"""The command ``producerd``, with one function for each subcommand, which returns the exit code.

Each subcommand imports only what it needs.  So ``--version``, the help and usage errors need only the standard library,
and ``check`` and ``config print`` need only the packages that read settings.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from producerd import __version__
from producerd.errors import ConfigurationError, PlaceTaken
from producerd.printing import complete, escape_unprintable, open_standard_descriptors, print_file

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_TAKEN: Final = 75
"""EX_TEMPFAIL of sysexits.h.  The unit waits before the next start, because systemd gives up after 20 in a minute."""
EXIT_CONFIGURATION: Final = 78
"""EX_CONFIG of sysexits.h.  Starting again would not help, so systemd must not (RestartPreventExitStatus=78)."""
EXIT_INTERRUPTED: Final = 130
OURS: Final = ("producerd", "spark_client")
EXIT_CODES: Final = """\
exit codes:
  0    serve: every row was settled or given back to its caller; other commands: done
  1    serve: stopped with rows undelivered that have no caller any more; check, demo: something did not hold
  2    wrong usage of the command line
  75   serve: another process has the socket or the port; starting again helps when that process has ended
  78   configuration: a setting, a missing package or too old a Python; starting again does not help
  130  interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    open_standard_descriptors()
    escape_unprintable()
    parser = build_parser()
    complete(parser)
    parsed, stray = parser.parse_known_args(arguments)
    if stray:
        parser.error(_what_is_stray(stray))
    if sys.version_info < (3, 11):  # noqa: UP036 - the wheel installs on 3.9, for the client's side
        return _refuse(f"producerd: needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    run: Callable[[argparse.Namespace], int] = parsed.run
    try:
        return run(parsed)
    except ConfigurationError as error:
        code = EXIT_TAKEN if isinstance(error, PlaceTaken) else EXIT_CONFIGURATION
        return _refuse(*(f"producerd: configuration: {problem}" for problem in error.problems), code=code)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in OURS:
            raise
        extra = "demo" if parsed.command == "demo" else "daemon"
        return _refuse(f'producerd: the package {error.name} is missing: pip install "producerd[{extra}]"')
    except BrokenPipeError:  # as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _what_is_stray(words: Sequence[str]) -> str:
    """Name options that do not exist, and only count other words: one of them may be a secret."""
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    others = len(words) - len(options)
    problems = [f"no such option: {' '.join(options)}"] if options else []
    if others:
        problems.append(
            f"words that belong to no option: {others} (a setting is one word, as in --set region=eu-west-1)"
        )
    return "; ".join(problems)


def _refuse(*lines: str, code: int = EXIT_CONFIGURATION) -> int:
    """Print the lines to stderr, for the journal with the priority of errors (sd-daemon(3)).  Return the code."""
    from producerd.runtime.journal import leads_to_journal

    # Not by the journal's socket, as the daemon's lines go: the journal looks up the unit of such a line when it reads
    # it, and this process may have ended by then.
    prefix = "<3>" if leads_to_journal(2) else ""
    print(*(f"{prefix}{line}" for line in lines), sep="\n", file=sys.stderr)
    return code


def build_parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="producerd",
        description="One backpressured road from the Spark tasks of a node to Amazon Kinesis Data Streams.",
        epilog=EXIT_CODES,
        formatter_class=form,
    )
    parser.add_argument("--version", action="version", version=f"producerd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    settings = _settings_options()

    serve = commands.add_parser(
        "serve", parents=[settings], help="run the daemon", epilog=EXIT_CODES, formatter_class=form
    )
    serve.add_argument(
        "--owner", type=_owner, metavar="PID:START", help=argparse.SUPPRESS
    )  # as `spark_client` starts it
    serve.add_argument("--sets-file", type=Path, metavar="FILE", help=argparse.SUPPRESS)  # a JSON array of KEY=VALUE
    serve.add_argument("--log", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    serve.set_defaults(run=_serve)
    check = commands.add_parser(
        "check",
        parents=[settings],
        help="read the settings and print what they mean",
        epilog=EXIT_CODES,
        formatter_class=form,
    )
    check.add_argument(
        "--online", action="store_true", help="also ask AWS about the credentials and each listed stream"
    )
    check.add_argument(
        "--stream",
        dest="streams",
        action="append",
        default=[],
        metavar="NAME",
        help="with --online: also ask about a stream that is not listed (may be repeated)",
    )
    check.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help='the memory limit of the place where the daemon will run, such as "1 GiB" (default: the limit here)',
    )
    check.add_argument("--deny-warnings", action="store_true", help="fail also if there is a warning")
    check.set_defaults(run=_check)
    config = commands.add_parser("config", help="settings as text").add_subparsers(metavar="WHAT", required=True)
    show = config.add_parser("print", parents=[settings], help="the settings in effect, as a configuration file")
    show.add_argument("--origin", action="store_true", help="name the source of each setting in a comment")
    show.set_defaults(run=_config_print)
    file = config.add_parser(
        "file", parents=[settings], help="a configuration file of the given settings alone, with secrets"
    )
    file.set_defaults(run=_config_file)
    schema = config.add_parser("schema", help="a JSON Schema of the configuration file, for editors")
    schema.set_defaults(run=_config_schema)
    demo = commands.add_parser(
        "demo", help="send real flights from Spark through a daemon into an embedded Kinesis, and compare"
    )
    if find_spec("producerd.demo") is None:
        demo.set_defaults(run=_no_demo)
    else:
        from producerd.demo import command

        command.add_options(demo)
    return parser


def _settings_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="TOML file (default: the one that PRODUCERD_CONFIG names)"
    )
    options.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help='set one setting, over file and environment; for one stream: streams."NAME".KEY=VALUE',
    )
    return options


def _no_demo(_parsed: argparse.Namespace) -> int:
    raise ConfigurationError([f"the demo is in a wheel of its own: install producerd_demo-{__version__}"])


def _owner(text: str) -> tuple[int, int]:
    try:
        pid, started_at = map(int, text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: PID:START, numbers of /proc/PID/stat") from None
    return pid, started_at


def _serve(parsed: argparse.Namespace) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it would end the daemon, which reads the settings now anyway
    # As a container's first process it would not get a SIGTERM that has no handler, and would serve on.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # no client is connected yet; the daemon sets its own handler
    from producerd.config import load
    from producerd.config.dangers import check_possible
    from producerd.config.memory import check_fits
    from producerd.config.process_limits import check_limits, use_limits
    from producerd.runtime.secrecy import keep_memory_private

    keep_memory_private()
    if parsed.sets_file is not None:
        parsed.sets += _sets_of(parsed.sets_file)
    config = load(parsed.config, parsed.sets)
    check_possible(config)
    check_fits(config)
    check_limits(config)
    use_limits()
    gc.disable()  # until the daemon serves: collecting garbage during the imports took a fifth of the start
    from producerd.runtime.app import run  # after the settings: a wrong one is reported before 0.5 s of imports

    return run(config, partial(load, parsed.config, parsed.sets), parsed.owner, parsed.log)


def _sets_of(file: Path) -> list[str]:
    """Return the settings of a task's daemon, which must not stand among its arguments: `ps` shows these to all."""
    try:
        sets: list[str] = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigurationError([f"{file}: {error.strerror}"]) from None
    return sets


def _check(parsed: argparse.Namespace) -> int:
    from producerd.config import load
    from producerd.config.dangers import check_possible, dangers
    from producerd.config.memory import check_fits, given_limit
    from producerd.config.process_limits import check_limits
    from producerd.config.summary import summary

    if parsed.streams and not parsed.online:
        print("producerd check: error: --stream is for --online", file=sys.stderr)
        return EXIT_USAGE
    limit = None if parsed.memory_limit is None else given_limit(parsed.memory_limit)
    config = load(parsed.config, parsed.sets)
    check_possible(config)
    check_fits(config, limit)
    check_limits(config)
    lines = [*summary(config, limit), *(f"WARNING {danger}" for danger in dangers(config))]
    print(*lines, sep="\n", flush=True)
    nothing_failed = not (parsed.deny_warnings and any(line.startswith("WARNING") for line in lines))
    if not parsed.online:
        return 0 if nothing_failed else EXIT_FAILED
    from producerd.runtime.online import run

    nothing_failed &= run(config, parsed.streams, deny_warnings=parsed.deny_warnings)
    print("OK: nothing failed" if nothing_failed else "FAILED: see above")
    return 0 if nothing_failed else EXIT_FAILED


def _config_print(parsed: argparse.Namespace) -> int:
    from producerd.config import load
    from producerd.config.text import as_toml

    print_file(as_toml(load(parsed.config, parsed.sets), origins=parsed.origin))
    return 0


def _config_file(parsed: argparse.Namespace) -> int:
    from producerd.config.sources import as_file

    print_file(as_file(parsed.config, parsed.sets))
    return 0


def _config_schema(_parsed: argparse.Namespace) -> int:
    from producerd.config.text import schema

    print_file(json.dumps(schema(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
