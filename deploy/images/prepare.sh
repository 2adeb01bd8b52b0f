#!/bin/bash
# Makes a machine a GPU host that only has to be told where its schedulers are: user, agent, engine, service, weights.
# Run it as root from a checkout, on an image that has the driver (docs/images.md). It can be run again: what is there is
# kept. It starts nothing. Each stage with its seconds goes to standard output and to image-stages.tsv in the prefix.
set -euo pipefail

usage() {
  cat <<'END'
usage: prepare.sh [--prefix DIR] [--engine-env DIR] [--data-dir DIR] [--engine gpu|cpu|none] [--weights ORG/NAME[@REVISION]]...
                  [--also VERSION=LOCK]... [--without-system] [--seal]
  --prefix DIR       where the agent goes (/opt/penstock)
  --engine-env DIR   where the engine's environment goes (/opt/penstock-engine)
  --data-dir DIR     the agent's data directory (/var/lib/penstock)
  --engine KIND      gpu (default), cpu, or none
  --also VERSION=LOCK  also install another version of the engine for rollouts, by a lock of penstock engine lock
  --weights NAME     also download a model's weights into the data directory; HF_TOKEN is used where it is set
  --without-system   no packages, user or service: only the files
  --seal             last of all, remove what must differ between machines, for a snapshot
example: prepare.sh --weights meta-llama/Llama-3.3-70B-Instruct --seal
END
}

prefix=/opt/penstock engine_env=/opt/penstock-engine data_dir=/var/lib/penstock
engine=gpu system=yes seal=no weights=() engines=()
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=$2; shift 2 ;;
    --engine-env) engine_env=$2; shift 2 ;;
    --data-dir) data_dir=$2; shift 2 ;;
    --engine) engine=$2; shift 2 ;;
    --also) engines+=("$2"); shift 2 ;;
    --weights) weights+=("$2"); shift 2 ;;
    --without-system) system=no; shift ;;
    --seal) seal=yes; shift ;;
    --help | -h) usage; exit 0 ;;
    *) echo "prepare.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done
case $engine in
  gpu | cpu | none) ;;
  *) echo "prepare.sh: --engine is $engine; it must be gpu, cpu or none" >&2; exit 2 ;;
esac
source=$(cd "$(dirname "$0")/../.." && pwd)

stage() {  # NAME COMMAND...: run a stage and note its seconds
  local name=$1 began ended line
  shift
  began=$(date +%s.%N)
  "$@" >&2
  ended=$(date +%s.%N)
  line=$(awk -v n="$name" -v b="$began" -v e="$ended" 'BEGIN { printf "%s\t%.1f", n, e - b }')
  mkdir -p "$prefix"
  echo "$line" | tee -a "$prefix/image-stages.tsv"
}

packages() {
  if [ "$engine" = gpu ] && ! nvidia-smi -L; then
    echo "prepare.sh: the driver lists no GPU; use an image with the driver, or --engine none" >&2
    return 1
  fi
  # vLLM compiles kernels with the host's compiler, and Python's headers.
  dpkg -s python3-venv python3-dev gcc >/dev/null 2>&1 ||
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install python3-venv python3-dev gcc; }
}

user() {
  id penstock >/dev/null 2>&1 ||
    useradd --system --uid 10001 --no-create-home --home-dir "$data_dir" --shell /usr/sbin/nologin penstock
  install -d -o penstock -g penstock -m 0750 "$data_dir"
  install -d -m 0700 /etc/penstock
}

agent() (  # in a process of its own, so that relative paths of the arguments stay what they are
  mkdir -p "$prefix"
  if [ "$source" != "$(realpath "$prefix")" ]; then
    tar -C "$source" --exclude=.git --exclude=.venv --exclude=.engine '--exclude=.engine-*' --exclude=.tools --exclude=__pycache__ --exclude=./tests --exclude=./docs --exclude=./bench -cf - . |
      tar -C "$prefix" -xf -
  fi
  cd "$prefix"
  test -x .venv/bin/python || python3 -m venv .venv
  .venv/bin/pip install --quiet --require-hashes -r requirements/uv.txt
  .venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes --compile-bytecode requirements/runtime.txt
  .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --offline --editable .
)

engine() {
  local other  # VERSION=LOCK, of rollouts
  "$prefix/.venv/bin/penstock" engine install --kind "$engine" --engine-env "$engine_env"
  for other in "${engines[@]}"; do
    "$prefix/.venv/bin/penstock" engine install --kind "$engine" --engine-env "$engine_env" --version "${other%%=*}" --lock "${other#*=}"
  done
}

service() {
  install -m 0644 "$prefix/deploy/images/penstock-agent.service" /etc/systemd/system/penstock-agent.service
  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
  systemctl enable penstock-agent.service
}

fetch() {
  local model  # `name` is that of the stage
  for model in "${weights[@]}"; do
    HF_HOME=$data_dir/hub "$prefix/.venv/bin/python" -m workers.prefetch "$model"
  done
  if [ "$system" = yes ]; then chown -R penstock:penstock "$data_dir/hub"; fi
}

seal() {
  rm -rf "$data_dir/host-id" "$data_dir/join-token" "$data_dir"/host-credentials*.json "$data_dir/agent-state.json" "$data_dir/acceptance.json" "$data_dir/logs" /etc/penstock/agent.env
  if command -v cloud-init >/dev/null; then cloud-init clean --logs; fi
  rm -f /etc/ssh/ssh_host_*  # cloud-init makes new ones
  truncate -s 0 /etc/machine-id
  apt-get clean
  sync
}

if [ "$system" = yes ]; then
  stage packages packages
  stage user user
fi
stage agent agent
if [ "$engine" != none ]; then stage engine engine; fi
if [ "$system" = yes ]; then stage service service; fi
if [ ${#weights[@]} -gt 0 ]; then stage weights fetch; fi
if [ "$seal" = yes ]; then stage seal seal; fi
