"""A daemon that counts its objects when it is asked.

::

    python -m tests.soak.census SOCKET LEAKS PYTHON -m producerd serve ...

runs the daemon in the same process.  It answers each connection to SOCKET with one line of JSON, a `Census`.  LEAKS are
names of `LEAKS`, separated by commas, which it plants first.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import gc
import json
import os
import re
import socket
import ssl
import sys
import tempfile
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

SIZED: Final = (dict, list, set, collections.deque, bytearray)
OURS: Final = ("producerd.", "spark_client.")
DEEPEST: Final = 6
"""Collections around a collection, at most, whose contents are told apart."""
ANSWER_SECONDS: Final = 60.0
LARGEST_PIECE_BYTES: Final = 128 << 10
"""More than a connection writes or reads at once."""


class Census(NamedTuple):
    """What a process holds at one moment, except in deques that have a greatest length.

    ``bytes_in_use`` are what its allocators have handed out, without two caches that fill for hours.  Resident memory
    in addition has what the allocators keep for later.
    ``objects`` counts the instances of our own classes, and tasks of asyncio, by class.  ``elements`` sums the lengths
    of collections by their owner: a class with an attribute, a module with a name, or a coroutine.
    """

    bytes_in_use: int
    objects: dict[str, int]
    elements: dict[str, int]


def take() -> Census:
    """Count what this process holds, by a walk over every object that the garbage collector knows."""
    gc.unfreeze()  # the daemon has frozen what it made at its start, also the collections that fill later
    gc.collect()
    bytes_in_use = _bytes_in_use()
    known = gc.get_objects()
    bounded = {id(item) for each in known if _is_bounded(each) for item in each}
    objects = Counter(_name(type(each)) for each in known if _is_counted(type(each)) and id(each) not in bounded)
    elements = Counter[str]()
    for child, place in _places(known, {id(known), id(bounded)}):
        if not _is_bounded(child) and id(child) not in bounded:
            elements[place] += len(child)
    return Census(bytes_in_use, dict(objects), dict(elements))


def _bytes_in_use() -> int:
    """Return what the allocators have handed out, and empty two caches before.

    The interpreter keeps 4,096 names of attributes, which C code makes for each look-up: up to 256 KiB.  Numpy keeps up
    to 7 freed blocks of each size below 1,024 bytes, 3.6 MB, and these arrays take them all.
    """
    sys._clear_type_cache()
    pymalloc_bytes = _pymalloc_bytes()
    arrays = [np.empty(size, np.uint8) for size in range(1, 1024) for _ in range(7)]
    return pymalloc_bytes + malloc_bytes() - sum(_chunk_bytes(array.nbytes) for array in arrays)


def _fill_buffers() -> None:
    """Let all buffers of TLS be alike: OpenSSL keeps each as large as the largest piece that its connection carried."""
    owned = (child for each in gc.get_objects() for child in gc.get_referents(each))
    for buffer in {id(child): child for child in owned if isinstance(child, ssl.MemoryBIO)}.values():
        buffer.write(bytes(LARGEST_PIECE_BYTES))


def _chunk_bytes(size: int) -> int:
    """Return what malloc uses for a block of this size: glibc adds 8 bytes, and rounds up to 16 and to 32 or more."""
    return max(32, (size + 8 + 15) & ~15)


class _MallInfo(ctypes.Structure):
    """The struct mallinfo2 of glibc's malloc.h.  ``uordblks`` are the bytes in use, ``hblkhd`` those in maps."""

    _fields_ = (
        ("_before", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("_between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("_after", ctypes.c_size_t * 2),
    )


def malloc_bytes() -> int:
    """Return what malloc has handed out of its heaps and in maps of their own."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def _pymalloc_bytes() -> int:
    """Return what the interpreter's allocator of small objects has handed out, which only its report says."""
    with tempfile.TemporaryFile("w+") as report:
        stderr = os.dup(2)
        os.dup2(report.fileno(), 2)
        sys._debugmallocstats()
        ctypes.CDLL(None).fflush(None)
        os.dup2(stderr, 2)
        os.close(stderr)
        report.seek(0)
        found = re.search(r"bytes in allocated blocks += +([0-9,]+)", report.read())
    assert found is not None
    return int(found[1].replace(",", ""))


def _is_counted(kind: type) -> bool:
    return _name(kind).startswith(OURS) or kind is asyncio.Task


def _is_bounded(each: Any) -> bool:
    return isinstance(each, collections.deque) and each.maxlen is not None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _places(known: list[Any], own: set[int]) -> list[tuple[Any, str]]:
    """Return each collection, except this walk's own, with its place in words.

    A collection that several objects share has the same place in each walk: the one that is the fewest steps away from
    an object, and of these one of our classes or a module, if there is one.
    """
    found: list[tuple[Any, str]] = []
    seen = set(own)

    def new(children: Iterable[Any]) -> Iterator[Any]:
        for child in children:
            if isinstance(child, SIZED) and id(child) not in seen:
                seen.add(id(child))
                yield child

    for owner in sorted((each for each in known if not isinstance(each, (*SIZED, types.FrameType))), key=_rank):
        children = gc.get_referents(owner)
        attributes = _dict_of(owner)
        if any(child is attributes for child in children):
            children += gc.get_referents(attributes)
        found += [(child, _place(child, owner)) for child in new(children)]
    for child, place in found:  # which grows meanwhile
        if place.count("[]") < DEEPEST:
            found += [(inner, f"{place}[]") for inner in new(gc.get_referents(child))]
    return [*found, *((each, "(no owner)") for each in new(known))]


def _rank(owner: Any) -> tuple[bool, bool, str]:
    return not _is_counted(type(owner)), not isinstance(owner, types.ModuleType), _name(type(owner))


def _place(child: Any, owner: Any) -> str:
    if isinstance(owner, types.CoroutineType | types.GeneratorType | types.AsyncGeneratorType):
        return f"{owner.__qualname__}()"
    place = owner.__name__ if isinstance(owner, types.ModuleType) else _name(type(owner))
    attribute = next((name for name, value in _attributes(owner) if value is child), "*")
    return f"{place}.{attribute}"


def _dict_of(owner: Any) -> Mapping[str, Any]:
    with contextlib.suppress(AttributeError):
        return object.__getattribute__(owner, "__dict__")  # type: ignore[no-any-return]  # whatever its class makes of it
    return {}


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    yield from _dict_of(owner).items()
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            found = kind.__dict__.get(name)
            if isinstance(found, types.MemberDescriptorType):
                yield name, getattr(owner, name, None)


def ask(path: Path) -> Census:
    """Return the census of the daemon that answers at a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_SECONDS)
        client.connect(str(path))
        with client.makefile() as answer:
            return Census(*json.load(answer))


def _answer(listener: socket.socket) -> None:
    """Answer each connection in a process of its own, because the walk leaves traces in the memory of its process."""
    while True:
        asking, _ = listener.accept()
        with asking:
            if not (pid := os.fork()):
                _fill_buffers()
                asking.sendall(json.dumps(take()).encode())
                os._exit(0)
            os.waitpid(pid, 0)


# ---- what a soak must find


LEAKS: Final[dict[str, Callable[[], None]]] = {}
KEPT: Final[list[Any]] = []


def leak(plant: Callable[[], None]) -> Callable[[], None]:
    LEAKS[plant.__name__] = plant
    return plant


def _at_each_end(keep: Callable[[], object]) -> None:
    """Do something more whenever a client leaves a stream, as each task does at the end of a micro-batch."""
    from producerd.runtime.stream import Stream

    leave = Stream.leave

    def leaking(*given: Any, **named: Any) -> None:
        keep()
        leave(*given, **named)

    Stream.leave = leaking  # type: ignore[method-assign]


@leak
def hundred_bytes() -> None:
    _at_each_end(lambda: KEPT.append(bytes(100)))


@leak
def thread() -> None:
    never = threading.Event()
    _at_each_end(lambda: threading.Thread(target=never.wait, daemon=True).start())


@leak
def descriptor() -> None:
    _at_each_end(lambda: os.dup(0))


if __name__ == "__main__":
    path, leaks, _python, _m, _producerd, *arguments = sys.argv[1:]
    from producerd import cli

    for name in filter(None, leaks.split(",")):
        LEAKS[name]()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    threading.Thread(target=_answer, args=[listening], name="census", daemon=True).start()
    sys.exit(cli.main(arguments))
