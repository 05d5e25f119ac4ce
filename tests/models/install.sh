#!/bin/sh
# Install what tests/models needs: Java of the system, and Alloy below .servers/, whose digest is checked. Safe to repeat,
# and quick when all is there.
set -eu

cd "$(dirname "$0")/../.."
folder="$PWD/.servers/alloy"

# shellcheck source=tests/tools.sh
. tests/tools.sh

whole() { (cd "$folder" 2>/dev/null && sha256sum --check --status "$1" 2>/dev/null); }

if ! { command -v java && command -v mvn; } >/dev/null; then
    packages openjdk-17-jdk-headless maven
fi
sums="$PWD/tests/models/SHA256SUMS"
whole "$sums" && exit 0
rm -rf "$folder"
jars tests/models/pom.xml "$folder"
whole "$sums" || { say "what came is not what $sums says"; rm -rf "$folder"; exit 1; }
