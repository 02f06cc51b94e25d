"""The bytes between a client and the daemon, as docs/protocol.md describes them.

Standard library only, no asyncio, no socket, no clock; runs on Python 3.9.  Both sides share it.
"""
