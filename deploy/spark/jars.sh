#!/bin/sh
# Fetch the jars of Delta Lake by Maven and check their digests: deploy/spark/jars.sh [FOLDER], .servers/delta unless
# named. Safe to repeat, and quick when all is there. The image is built with it, and so are the tests; a job never
# fetches anything when it starts.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../../.servers/delta}

say() { printf 'jars.sh: %s\n' "$*" >&2; }

whole() { (cd "$1" 2>/dev/null && sha256sum --check --status "$here/delta/SHA256SUMS" 2>/dev/null); }

whole "$folder" && exit 0

command -v mvn >/dev/null || { say "Maven is needed: install maven"; exit 1; }
say "fetching the jars of Delta Lake"
mkdir -p "$(dirname "$folder")"
fetched=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
mvn -B -q -f "$here/delta/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$fetched" ||
    { say "Maven could not fetch them: see its message above"; exit 1; }
whole "$fetched" || { say "what came is not what $here/delta/SHA256SUMS says:"
    (cd "$fetched" && sha256sum --check --quiet "$here/delta/SHA256SUMS" >&2) || exit 1; }
rm -rf "$folder"
chmod 755 "$fetched"
mv "$fetched" "$folder"
