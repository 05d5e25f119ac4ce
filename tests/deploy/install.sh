#!/bin/sh
# Install what the tests of deploy/ need: helm, built from its Go module; the schemas of Kubernetes and checkov, each in
# a virtual environment of its own; promtool, which comes with Debian's prometheus.
set -eu

# shellcheck source=tests/tools.sh
. "$(dirname "$0")/../tools.sh"

go_program helm helm.sh/helm/v3/cmd/helm v3.19.0
venv validate "kubernetes-validate==1.37.0"
venv checkov "checkov==3.3.30"

if [ ! -x "$tools/bin/promtool" ]; then
    say "fetching promtool"
    rm -rf "$tools/prometheus" && mkdir -p "$tools/prometheus" "$tools/bin"
    (cd "$tools/prometheus" && apt-get -qq download prometheus 2>/dev/null &&
        dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && mv usr/bin/promtool "$tools/bin/") ||
        { say "there is no package prometheus: put promtool into $tools/bin"; exit 1; }
    rm -rf "$tools/prometheus"
fi
