#!/usr/bin/env bash
# Bootstrap action for EMR 7 (Amazon Linux 2023; x86-64 and Graviton): a producerd daemon on each node, for Spark on YARN.
#
#   bootstrap.sh s3://BUCKET/producerd-VERSION-py3-none-any.whl REGION [SETTING=VALUE ...]
#
# The daemon runs on Python 3.11 in a folder of its own, as user producerd, with the instance profile's access to AWS.
# Spark's own Python (3.9) gets the same wheel without the daemon's packages. Executors run as yarn, so the socket is open
# to that group. The script creates it, because bootstrap actions run before EMR installs Hadoop.
set -euo pipefail
wheel=${1:?the wheel, as s3://...} region=${2:?the region of the streams}
shift 2
as_root() { if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi; }

as_root dnf install --quiet --assumeyes python3.11 python3.11-pip
folder=$(mktemp -d)
local_wheel=$folder/$(basename "$wheel")
aws s3 cp --only-show-errors "$wheel" "$local_wheel"
chmod 755 "$folder"

as_root python3.11 -m venv /opt/producerd
as_root /opt/producerd/bin/python -m pip install --quiet "producerd[daemon] @ file://$local_wheel"
as_root python3 -m pip install --quiet "producerd[spark] @ file://$local_wheel"

getent group yarn >/dev/null || as_root groupadd --system yarn
getent passwd producerd >/dev/null || as_root useradd --system --no-create-home --shell /sbin/nologin --user-group producerd
as_root usermod --append --groups yarn producerd

settings=""
for setting in "region=$region" "socket_group=yarn" "$@"; do settings+=" --set=$setting"; done
as_root tee /etc/systemd/system/producerd.service >/dev/null <<UNIT
[Unit]
Description=Kinesis producer for this node's Spark tasks
Wants=network-online.target
After=network-online.target

[Service]
User=producerd
RuntimeDirectory=producerd
ExecStart=/opt/producerd/bin/producerd serve$settings
Restart=always
RestartSec=1
RestartPreventExitStatus=78
TimeoutStopSec=90

[Install]
WantedBy=multi-user.target
UNIT
as_root systemctl daemon-reload
as_root systemctl enable --now producerd
