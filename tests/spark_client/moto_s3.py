"""moto's S3, and what it is to refuse."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_client.diverting import Place


class Faults:
    """What moto's S3 refuses: ``part`` is the number of a part of an upload, or 0.  Nothing is answered without
    ``answers``."""

    def __init__(self) -> None:
        self.part = 0
        self.answers = threading.Event()
        self.answers.set()


@contextmanager
def moto_s3(faults: Faults) -> Iterator[str]:
    """moto's S3 with a bucket ``kept``; the parameters of a URI that reach it."""
    app = pytest.importorskip("moto.moto_server.werkzeug_app", reason="needs moto, which Spark's other Pythons lack")
    from werkzeug.serving import make_server

    moto = app.DomainDispatcherApplication(app.create_backend_app)

    def wsgi(environ: Any, start_response: Any) -> Any:
        faults.answers.wait(60)
        if faults.part and f"partNumber={faults.part}&" in environ["QUERY_STRING"] + "&":
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            start_response("403 Forbidden", [("Content-Length", "0")])
            return []
        return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, wsgi, threaded=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        reset = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/moto-api/reset", method="POST")
        with urllib.request.urlopen(reset):  # what other tests of this process have left
            pass
        parameters = f"?scheme=http&endpoint_override=127.0.0.1:{server.server_port}"
        files(parameters).create_dir("kept")
        yield parameters
    finally:
        faults.answers.set()
        server.shutdown()
        serving.join()
        server.server_close()


def files(parameters: str) -> Any:
    """Return Arrow's file system of a bucket there."""
    from pyarrow import fs

    return fs.S3FileSystem(**Place.of(f"s3://any/{parameters}").parameters, allow_bucket_creation=True)
