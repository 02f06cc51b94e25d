"""Show on which step of its way through the daemon a record's CPU time goes: ``./dev bench profile``.

It measures the daemon as ``./dev bench daemon`` does, with the same client and endpoint.
"""
