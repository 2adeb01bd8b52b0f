#!/bin/sh
# Prints a fresh .env for docker-compose.yml. Run once: a new PENSTOCK_KEY_PEPPER makes every API key invalid.
set -eu
secret() { head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n'; }
for name in POSTGRES_PASSWORD REDIS_PASSWORD PENSTOCK_INTERNAL_TOKEN PENSTOCK_KEY_PEPPER PENSTOCK_ENGINE_KEY PENSTOCK_CONSOLE_SECRET PENSTOCK_SIGNING_KEY GRAFANA_PASSWORD; do
  printf '%s=%s\n' "$name" "$(secret)"
done
printf 'PENSTOCK_DOMAIN=%s\n' "${1:-localhost}"
