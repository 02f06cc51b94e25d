"""An admin socket whose answers a test writes down, for what no daemon of this version would say."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import parse_headers
from pathlib import Path
from threading import Thread
from typing import Any

HEAD = "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n"


@contextmanager
def admin_socket(path: Path, answers: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Answer these targets with these objects, and any other with a 404 in text, as a daemon without the command."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        serving = Thread(target=_serve, args=(listening, answers))
        serving.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # `accept` fails
            serving.join()


def _serve(listening: socket.socket, answers: Mapping[str, Mapping[str, Any]]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as request:
            target = request.readline().split()[1].decode()
            request.read(int(parse_headers(request)["Content-Length"] or 0))
            status, text = (200, json.dumps(answers[target])) if target in answers else (404, "404: Not Found")
            connection.sendall((HEAD.format(status=status, length=len(text)) + text).encode())
