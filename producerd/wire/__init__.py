"""The protocol between a client and the daemon, as docs/build/protocol.md specifies it.

Both sides share these modules.  They run on Python 3.9, need only the standard library, and use no socket and no clock.
"""
