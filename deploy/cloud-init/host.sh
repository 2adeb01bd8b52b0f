#!/bin/sh
# First start of a GPU host: joins the platform. Penstock fills in what stands between at signs at the create.
# What an operator's own script leaves in /etc/penstock/local.env overrides what is written here.
set -eu
umask 077
root="${PENSTOCK_ROOT:-}"
data="$root/var/lib/penstock"
etc="$root/etc/penstock"
command="${PENSTOCK_COMMAND:-/opt/penstock/.venv/bin/penstock}"

metadata() {
    curl -fsS --retry 60 --retry-delay 1 --retry-all-errors --max-time 5 "http://169.254.169.254/metadata/v1/$1"
}

name="$(metadata hostname)"
address="$(metadata interfaces/private/0/ipv4/address)"
mkdir -p "$data" "$etc"
printf '%s\n' "$name" >"$data/host-id"
printf '%s\n' @join_token@ >"$data/join-token"
# Weights go to the scratch disk where one is mounted, unless the image brings them.
hub="$data/hub"
if [ ! -d "$hub" ] && mountpoint -q "$root/mnt/scratch"; then
    hub="$root/mnt/scratch/penstock-hub"
fi
mkdir -p "$hub"
cat >"$etc/agent.env" <<EOF
PENSTOCK_DATA_DIR="$data"
PENSTOCK_HOST="$address"
PENSTOCK_SCHEDULERS="@schedulers@"
PENSTOCK_REGION="@region@"
PENSTOCK_HOST_KIND="@kind@"
PENSTOCK_MODEL="@model@"
PENSTOCK_PROFILE="@profile@"
PENSTOCK_REPLICAS="@replicas@"
HF_HOME="$hub"
EOF

if [ -f "$etc/local.env" ]; then
    cat "$etc/local.env" >>"$etc/agent.env"
fi
# Of an image that was baked by deploy/images/prepare.sh, whose agent is not root.
if [ -z "$root" ] && id penstock >/dev/null 2>&1; then
    chown penstock: "$data" "$data/host-id" "$data/join-token" "$hub"
fi

unit=/etc/systemd/system/penstock-agent.service
if [ ! -d /run/systemd/system ]; then
    set -a
    . "$etc/agent.env"
    set +a
    setsid "$command" agent >>"$data/agent.log" 2>&1 </dev/null &
    exit 0
fi
if [ ! -f "$unit" ]; then
    cat >"$unit" <<EOF
[Unit]
Description=Penstock agent
Wants=network-online.target
After=network-online.target

[Service]
EnvironmentFile=$etc/agent.env
ExecStart=$command agent
Restart=always
RestartSec=2
# Engines outlive their agent, which finds them again: loading weights takes minutes.
KillMode=process
TimeoutStopSec=120

[Install]
WantedBy=multi-user.target
EOF
fi
systemctl daemon-reload
systemctl enable penstock-agent.service
systemctl restart penstock-agent.service
