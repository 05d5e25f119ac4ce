#!/bin/sh
# Install the applications that tests/clients runs, each with its own dependencies, and the test suites of client
# libraries: tests/clients/install.sh
set -eu

cd "$(dirname "$0")"
# shellcheck source=tests/tools.sh
. ../tools.sh

venv celery "celery==5.5.3"

# ------------------------------------------------------------------------------------------- suites of libraries

suites="$tools/client-suites"
go_module="github.com/rabbitmq/amqp091-go"
go_version="v1.16.0"
go_sum="h1:1O8oQqnj9hLACoo6CVMgn57z2pLWXvgemhh4GsquV+Y="

sum=$(cat suites/*.* suites/node/* install.sh | cksum)
if [ "$(cat "$suites/.installed" 2>/dev/null || true)" != "$sum" ]; then
    command -v go >/dev/null || { say "there is no Go: install it (Debian: apt-get install golang)"; exit 1; }
    say "installing the test suites of client libraries"
    rm -rf "${suites:?}"
    mkdir -p "$suites/sdists"
    "${PYTHON:-python3}" -m venv "$suites/venv"
    pip() { "$suites/venv/bin/pip" "$@" || { say "pip failed: see its message above"; exit 1; }; }
    pip install --quiet --disable-pip-version-check --require-hashes --requirement suites/requirements.txt
    names=$(sed -n 's/^\([a-z-]*\)==.*/\1/p' suites/sdists.txt | paste -sd, -)
    pip download --quiet --disable-pip-version-check --no-deps --no-binary "$names" --require-hashes \
        --requirement suites/sdists.txt --dest "$suites/sdists"
    for sdist in "$suites"/sdists/*.tar.gz; do
        folder=$(basename "$sdist" .tar.gz)
        mkdir "$suites/${folder%-*}"
        tar -xzf "$sdist" -C "$suites/${folder%-*}" --strip-components=1
    done
    for library in aiormq aio_pika; do
        cp suites/docker_client.py "$suites/$library/tests/"
    done
    cp suites/aiormq_conftest.py "$suites/aiormq/conftest.py"
    command -v npm >/dev/null || { say "there is no npm: install it (Debian: apt-get install npm)"; exit 1; }
    cp -r suites/node "$suites/node"
    npm ci --loglevel=error --no-audit --no-fund --prefix "$suites/node" ||
        { say "npm could not install amqplib: see its message above"; exit 1; }
    found=$(go mod download -json "$go_module@$go_version")
    [ "$(printf '%s' "$found" | sed -n 's/.*"Sum": "\(.*\)".*/\1/p')" = "$go_sum" ] ||
        { say "$go_module $go_version is not what it was: $found"; exit 1; }
    cp -r "$(printf '%s' "$found" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" "$suites/amqp091-go"
    chmod -R u+w "$suites/amqp091-go"
    (cd "$suites/amqp091-go" && nice -n 19 go test -c -tags integration -o suite.test .)
    printf '%s\n' "$sum" >"$suites/.installed"
fi
