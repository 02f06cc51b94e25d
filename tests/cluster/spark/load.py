"""Write records as fast as a pause lets it: ``load.py STREAM NAME ROWS PAUSE_SECONDS``; SIGTERM ends it before.

Each line ``ACKNOWLEDGED NAME N`` says that the first N records are stored.
"""

import signal
import sys
import time

from spark_client import KinesisClient

stream, name = sys.argv[1:3]
rows, pause_seconds = int(sys.argv[3]), float(sys.argv[4])
going = True


def end(*_: object) -> None:
    global going
    going = False


signal.signal(signal.SIGTERM, end)
sent, told = 0, time.monotonic()
with KinesisClient(connect_timeout_seconds=120) as client:
    while going and sent < rows:
        for _ in range(500):
            client.put(f"{name}:{sent}:".encode() + b"x" * 200, str(sent % 1000), stream=stream)
            sent += 1
        if time.monotonic() - told > 1:
            client.flush()
            print(f"ACKNOWLEDGED {name} {sent}")
            told = time.monotonic()
        time.sleep(pause_seconds)
    client.flush()
    print(f"ACKNOWLEDGED {name} {sent}")
