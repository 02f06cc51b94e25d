"""A whole stream in virtual time, and the laws that hold whatever happens to it: ``./dev simulate``.

Everything is real except threads, sockets and the clock: callers, gate, pipeline and the fake Kinesis.

- `laws`: what holds after every step, and for each frame that is acknowledged.  `at_the_end`: what holds then.  Start
  with these two.
- `story`: what one seed draws, and tells.  `rows`: what is sent in it.
- `callers`: the sessions that send, with the answers that they get.  `consumer`: what Amazon's library would hand over.
- `world`: the worker threads and the network.  `events`: the clock.  `shard_watch`: the task that reads the shards.
- `fleet`: many daemons that share one stream.
- `gate_machine`, `lane_machine`: any callers of the gate, and any rows, answers and maps for the lanes.
- `setting`: the stream that all of this, and the core's other tests, are about.
"""
