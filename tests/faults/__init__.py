"""Fault scenarios against real processes, judged by one oracle: ``./dev faults``.

A scenario starts a fake Kinesis, a daemon and senders, each in a process or thread of its own, and breaks something.
The oracle then reads the stream back and decides from the outside alone whether a promise was broken.

``records`` makes each record a function of its id.  ``senders`` send them and keep what was acknowledged.  ``watch``
samples the daemon.  ``reader`` reads the stream as Amazon's consumer library does.  ``oracle`` compares all of this.
``stage`` owns the processes, ``network`` the wire between the daemon and the service, and ``scenarios`` says what goes
wrong.

The oracle shares no code with the fake Kinesis that it judges.
"""
