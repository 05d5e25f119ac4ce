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
