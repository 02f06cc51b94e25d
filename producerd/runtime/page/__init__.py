"""The status page: ``/`` of `metrics_listen` shows at a glance why a stream is slow.

For each stream it has pictures of the last ten minutes: what was accepted and stored, how full the queue was, how long
callers were blocked; then what holds the stream, and what to do about that.  Streams in trouble come first.

The page needs nothing but itself.  It renews itself every few seconds, also without scripts.  Every text in it is
escaped, and with `page.HEADERS` a browser runs and loads nothing that is not in here.
"""
