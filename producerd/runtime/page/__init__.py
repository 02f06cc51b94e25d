"""The status page: ``/`` of `metrics_listen` shows at a glance why a stream is slow.

For each stream it shows pictures of the last ten minutes: records accepted and stored, how full the queue was, and how
long callers were blocked.  Then it says what holds the stream, and what to do about that.  Streams in trouble come
first.

The page loads nothing from elsewhere.  It refreshes itself every few seconds, even without scripts.  Every text in it
is escaped, and `page.HEADERS` make browsers refuse any script and any source that is not part of it.
"""
