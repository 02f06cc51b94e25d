"""Run moto's Kinesis with one request at a time, so that it keeps every record that it acknowledges.

When requests overlap, moto loses acknowledged records: it kept 84,817 of 90,000.  This Kinesis neither throttles nor
reshards.  It prints its port when the stream is ready::

    python -m producerd.demo.embedded_kinesis STREAM SHARDS
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from producerd.demo.stream import client, wait_until_active

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def one_at_a_time(app: WSGIApplication) -> WSGIApplication:
    """Return the application behind a lock."""
    lock = threading.Lock()

    def locked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with lock:
            return [b"".join(app(environ, start_response))]

    return locked


def main(stream: str, shards: int) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    app = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    kinesis = client(f"http://127.0.0.1:{server.server_port}")
    kinesis.create_stream(StreamName=stream, ShardCount=shards)
    wait_until_active(kinesis, stream)
    print(server.server_port, flush=True)
    serving.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
