"""Show on which step of its way through the daemon a record's CPU time goes: ``./dev bench profile``.

The daemon, its client and its endpoint are those of ``./dev bench daemon``.
"""
