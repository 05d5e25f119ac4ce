#!/bin/sh
# Install what tests/generated needs: openapi-generator with its Java; the compiler of TypeScript; the jars that a Java
# client needs; PHP with an HTTP client. Go fetches the modules of a Go client when it builds it.
set -eu

cd "$(dirname "$0")"
# shellcheck source=tests/tools.sh
. ../tools.sh

venv openapi-generator "openapi-generator-cli==7.16.0"
if ! { command -v javac && command -v mvn; } >/dev/null; then
    packages openjdk-17-jdk-headless maven
fi
jars java/pom.xml "$tools/generated-java"
command -v npm >/dev/null || packages npm
if [ ! -x "$tools/typescript/node_modules/.bin/tsc" ]; then
    say "installing typescript"
    npm install --silent --no-save --prefix "$tools/typescript" typescript@5.9.3
fi
command -v go >/dev/null || { say "there is no Go: install it"; exit 1; }
if ! command -v php >/dev/null || [ ! -e /usr/share/php/GuzzleHttp/autoload.php ]; then
    packages php-cli php-curl php-mbstring php-guzzlehttp-guzzle
fi
