#!/bin/sh
# Install what the tests on real servers and in a browser need: RabbitMQ 3.10, PostgreSQL, Java 17, Maven and Chromium as
# packages of the system;
# RabbitMQ 4.0 and 4.3, Apache Qpid Broker-J, the Java client of the tests and the jars of Delta Lake below .servers/.
# Safe to repeat, and quick when all is there. Nothing is unpacked for a RabbitMQ that GATEWAY_TEST_RABBITMQ_40 or
# GATEWAY_TEST_RABBITMQ_43 names.
set -eu

cd "$(dirname "$0")/../.."
servers="$PWD/.servers"

say() { printf 'install.sh: %s\n' "$*" >&2; }

# ------------------------------------------------------------------------------------------------- packages

missing=""
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing="$missing rabbitmq-server"
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || missing="$missing postgresql"
command -v javac >/dev/null || missing="$missing openjdk-17-jdk-headless"
command -v mvn >/dev/null || missing="$missing maven"
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$missing chromium fonts-liberation fonts-dejavu-core"

if [ -n "$missing" ]; then
    by_hand="install by hand, then run this again:$missing"
    command -v apt-get >/dev/null || { say "there is no apt-get here; $by_hand"; exit 1; }
    if [ "$(id -u)" = 0 ]; then
        as_root=""
    elif sudo -n true 2>/dev/null; then
        as_root="sudo"
    else
        say "neither root nor sudo without a password; $by_hand"
        exit 1
    fi
    say "installing$missing"
    apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends "$@" >/dev/null; }
    # shellcheck disable=SC2086  # a list of words
    apt install $missing 2>/dev/null || { apt update && apt install $missing; } || { say "apt-get failed; $by_hand"; exit 1; }
fi

java_version=$(javac -version 2>&1 | sed 's/^javac \([0-9]*\).*/\1/')
[ "$java_version" -ge 17 ] || { say "Java $java_version is too old: install openjdk-17-jdk-headless"; exit 1; }

# --------------------------------------------------------------------------------------------- RabbitMQ 4

[ -n "${GATEWAY_TEST_RABBITMQ_40:-}" ] || tests/servers/unpack.sh trixie "$servers/rabbitmq-4.0"
[ -n "${GATEWAY_TEST_RABBITMQ_43:-}" ] || tests/servers/unpack.sh sid "$servers/rabbitmq-4.3"

# ----------------------------------------------------------------------------------------------------- jars

# fetch POM FOLDER: the jars the pom names, once per content of the pom.
fetch() {
    sum=$(cksum <"$1")
    [ "$(cat "$2/.pom" 2>/dev/null || true)" = "$sum" ] && return
    say "fetching the jars of $1"
    rm -rf "$2"
    mkdir -p "$2"
    mvn -B -q -f "$1" dependency:copy-dependencies "-DoutputDirectory=$2" ||
        { say "Maven could not fetch the jars of $1: see its message above"; exit 1; }
    printf '%s\n' "$sum" >"$2/.pom"
}

fetch tests/servers/brokerj/pom.xml "$servers/brokerj"
fetch tests/java/pom.xml "$servers/java/lib"
deploy/spark/jars.sh "$servers/delta"

# ----------------------------------------------------------------------------------------------- Java client

sum=$(cat tests/java/*.java tests/java/pom.xml | cksum)
if [ "$(cat "$servers/java/.sources" 2>/dev/null || true)" != "$sum" ]; then
    say "compiling the Java client"
    rm -rf "$servers/java/classes"
    javac -nowarn -Xlint:-options -d "$servers/java/classes" -cp "$servers/java/lib/*" tests/java/*.java
    printf '%s\n' "$sum" >"$servers/java/.sources"
fi
