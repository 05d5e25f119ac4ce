#!/bin/sh
# Install the applications that tests/clients runs, each with its own dependencies: tests/clients/install.sh
set -eu

# shellcheck source=tests/tools.sh
. "$(dirname "$0")/../tools.sh"

venv celery "celery==5.5.3"
