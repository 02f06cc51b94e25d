"""Measure how soon a daemon serves, and what it uses while it sends nothing: ``./dev bench idle``.

The benchmark starts a daemon as a service manager does, a few times.  Then it watches one daemon that is left alone,
scraped, and connected to idle clients.
"""
