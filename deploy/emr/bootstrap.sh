#!/usr/bin/env bash
# Bootstrap action for EMR 7 (Amazon Linux 2023): the daemon as deploy/systemd has it, and its client for Spark on YARN.
#
#   bootstrap.sh s3://BUCKET/producerd-VERSION-emr-MACHINE.tar SHA256 REGION [SETTING=VALUE ...]
#   bootstrap.sh --uninstall
#
# Run the first form again for another bundle or other settings. It succeeds only if the daemon is ready. See docs/use/emr.md.
set -euo pipefail
umask 022

home=/opt/producerd # where the units look: a link to the environment of one bundle, /opt/producerd-HASH
settings=/etc/producerd/producerd.toml
ready_seconds=120
client=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/producerd.pth # of Spark's own Python

fail() {
    echo "producerd: $1" >&2
    exit 1
}

remove_unused() { # what this script has made and needs no more: environments, and work of runs that were killed
    local made
    find "${home%/*}" -maxdepth 1 -type d -regextype posix-extended -regex "$home-([0-9a-f]{16}|work\.[[:alnum:]]{6})" |
        while read -r made; do
            [[ $made -ef $home || $made == "${work-}" ]] || rm -rf "$made"
        done
}

unpack() { # the bundle $1 with the hash $2 to the environment $3
    local pex
    remove_unused # the environment in use stays after this run, too: jobs that run have its client
    aws s3 cp --only-show-errors "$1" "$work/bundle.tar"
    echo "$2  $work/bundle.tar" | sha256sum --check --quiet >&2 || fail "$1 is not the file with the SHA-256 $2"
    tar --extract --no-same-owner --file "$work/bundle.tar" --directory "$work"
    pex=$(find "$work" -name "producerd-*-cp311-$(uname -m).pex")
    [[ -n $pex ]] || fail "$1 is for another machine than $(uname -m)"
    command -v python3.11 >/dev/null || dnf install --quiet --assumeyes python3.11
    PEX_TOOLS=1 PEX_ROOT=$work/root python3.11 "$pex" venv --compile "$3"
    mv "$work"/producerd-client-*.zip "$3/client.zip"
    mv "$work/etc" "$3/etc"
}

configure() { # by the daemon's own code, which knows how to quote: with the commands in $1, the region and settings
    local bin=$1 region=$2 listed=() setting
    shift 2
    for setting in "$@"; do
        [[ $setting != streams.* ]] || listed=(--set=streams_allowed=listed)
    done
    (umask 077 && "$bin/producerd" config file --set="region=$region" "${listed[@]}" "${@/#/--set=}" >"$work/settings")
    "$bin/producerd" check -c "$work/settings"
}

place() { # the units, the client and the link of the environment $1, and the settings in the file $2
    cp --recursive "$1/etc/." /etc
    systemd-sysusers producerd.conf
    systemd-tmpfiles --create producerd.conf
    install -D --mode=400 --owner=producerd "$2" "$settings"
    ln --symbolic --force --no-target-directory "$1" "$home"
    mkdir -p "${client%/*}"
    echo "$1/client.zip" >"$client"
    python3 -c "import spark_client"
}

start() {
    systemctl daemon-reload
    systemctl reset-failed 'producerd.*'
    systemctl enable --quiet producerd.socket producerd.service
    systemctl stop producerd.service # apart from the start, because it drains for as long as its settings and systemd allow
    if ! timeout "$ready_seconds" systemctl start producerd.service; then # Type=notify: it returns when it is ready
        journalctl --unit=producerd.service --no-pager --lines=30 >&2
        fail "the daemon is not ready after $ready_seconds s, or ended: its log stands above"
    fi
}

go_back() { # to the environment and the settings before
    echo "producerd: back to $before" >&2
    place "$before" "$work/before"
    start
}

install_bundle() {
    local bundle=$1 sha256=${2,,} region=$3 environment
    environment=$home-${sha256:0:16}
    shift 3
    work=$(mktemp -d "$home-work.XXXXXX") # not in /tmp, which may be memory
    trap 'rm -rf "$work"' EXIT
    [[ $environment -ef $home ]] || unpack "$bundle" "$sha256" "$environment"
    configure "$environment/bin" "$region" "$@"

    getent group yarn >/dev/null || groupadd --system yarn # EMR installs Hadoop later
    if before=$(readlink "$home"); then
        cp "$settings" "$work/before"
        trap '(go_back) || true; rm -rf "$work"' EXIT # in a shell of its own, which may fail
    fi
    place "$environment" "$work/settings"
    start
    trap 'rm -rf "$work"' EXIT
    "$home/bin/producerd" --version
}

uninstall() {
    systemctl disable --quiet --now producerd.socket producerd.service || true # there may be none
    rm -rf "$home" /etc/producerd /run/producerd /etc/systemd/system/producerd.{service,socket}{,.d} "$client"
    remove_unused
    rm -f /etc/sysusers.d/producerd.conf /etc/tmpfiles.d/producerd.conf
    systemctl daemon-reload
    ! getent passwd producerd >/dev/null || userdel producerd
}

if [[ ${1-} != --uninstall && $# -lt 3 ]]; then
    fail "wanted: s3://BUCKET/producerd-VERSION-emr-MACHINE.tar SHA256 REGION [SETTING=VALUE ...], or --uninstall"
fi
[[ $EUID == 0 ]] || exec sudo -- "$BASH" "$0" "$@" # EMR runs it as hadoop
exec {lock}</root # only root can open it, so only root can lock it
flock "$lock"     # two runs would remove each other's work
if [[ $1 == --uninstall ]]; then uninstall; else install_bundle "$@"; fi
