"""A whole stream in virtual time, and the laws that hold whatever happens to it: ``./dev simulate``.

Everything is real but threads, sockets and the clock: callers, gate and pipeline here, the fake Kinesis there.

- `laws`: what holds after every step, and for each frame that is acknowledged; `at_the_end`: what holds then.  Start
  there.
- `story`: what one seed draws, and tells; `rows`: what is sent in it.
- `callers`: who sends, and what they are told; `consumer`: what is handed to who reads the stream as Amazon's library.
- `world`: the clock, the worker threads and the network; `shard_watch`: the task that reads the shards.
- `setting`: the stream that all of this, and the core's other tests, are about.
"""
