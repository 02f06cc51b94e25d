"""Draw the dashboard's row Stream from a real Prometheus: ``./dev bench dashboard``.

Two daemons write to the fake Kinesis, which has the limits of real shards and then fails in several ways.  Prometheus
scrapes the daemons and evaluates deploy/prometheus/alerts.yml.  It answers the dashboard's expressions as it would
answer Grafana.  Grafana itself does not run.

``grafana`` asks what Grafana would ask, ``run`` makes the run, ``record`` keeps the answers and ``picture`` draws them.
"""
