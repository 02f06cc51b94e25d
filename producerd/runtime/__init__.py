"""The daemon's tasks, sockets and timers: the only package of producerd that waits for anything."""
