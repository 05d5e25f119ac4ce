#!/bin/sh
# Install what checks the supply chain: tests/supply/install.sh [sbom | audit | lint]. All three unless named.
#
#   sbom    cyclonedx-bom, which lists what is installed in an environment
#   audit   pip-audit, which asks for known weaknesses
#   lint    zizmor, check-jsonschema and actionlint, which read workflows; shellcheck, which reads scripts
set -eu

# shellcheck source=tests/tools.sh
. "$(dirname "$0")/../tools.sh"

wanted="${1:-all}"
case "$wanted" in all | sbom) venv sbom "cyclonedx-bom==7.5.0" ;; esac
case "$wanted" in all | audit) venv audit "pip-audit==2.10.1" ;; esac
case "$wanted" in
all | lint)
    venv zizmor "zizmor==1.32.0"
    venv schemas "check-jsonschema==0.39.0"
    go_program actionlint github.com/rhysd/actionlint/cmd/actionlint v1.7.12
    debian_program shellcheck shellcheck ./usr/bin/shellcheck
    ;;
esac
