#!/bin/sh
# Install what the tests of deploy/ need: helm, built from its Go module; the schemas of Kubernetes and checkov, each in
# a virtual environment of its own; promtool, which comes with Debian's prometheus.
set -eu

# shellcheck source=tests/tools.sh
. "$(dirname "$0")/../tools.sh"

go_program helm helm.sh/helm/v3/cmd/helm v3.19.0
venv validate "kubernetes-validate==1.37.0"
venv checkov "checkov==3.3.30"
debian_program promtool prometheus ./usr/bin/promtool
command -v ip >/dev/null || packages iproute2 # network namespaces: tests/deploy/test_image.py

# Locked wheels for an environment with the command line alone, and hatchling, which builds it: tests/deploy/test_cli.py.
# Without the project's environment, as where CI tries the image in a cluster, only helm is wanted.
wheels="$tools/cli-wheels"
sum=$(cksum <uv.lock)
if [ -x .venv/bin/uv ] && [ "$(cat "$wheels/.lock" 2>/dev/null || true)" != "$sum" ]; then
    say "fetching the wheels of amqp-gateway-cli"
    rm -rf "${wheels:?}" && mkdir -p "$wheels"
    .venv/bin/uv export --quiet --frozen --no-dev --group build --no-emit-project --no-hashes --no-header \
        --output-file "$wheels/locked.txt"
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --constraint "$wheels/locked.txt" \
        --dest "$wheels" click httpx msgspec hatchling || { say "the wheels could not be fetched"; exit 1; }
    printf '%s\n' "$sum" >"$wheels/.lock"
fi
