#!/bin/bash
# What Spark runs before it ends an executor: SIGPWR lets the executor decommission itself, and this waits for its end.
executor=$(pgrep --oldest java) || exit 0
kill -s PWR "$executor"
timeout 60 tail --pid="$executor" -f /dev/null
