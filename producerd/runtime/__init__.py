"""The daemon's tasks, sockets and time: the only part of producerd that waits."""
