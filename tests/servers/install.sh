#!/bin/sh
# Install what the tests on real servers and in a browser need: RabbitMQ 3.10, PostgreSQL, Java 17, Maven and Chromium as
# packages of the system;
# RabbitMQ 4.0 and 4.3, Apache Qpid Broker-J, the Java client of the tests and the jars of Delta Lake below .servers/.
# Safe to repeat, and quick when all is there. Nothing is unpacked for a RabbitMQ that GATEWAY_TEST_RABBITMQ_40 or
# GATEWAY_TEST_RABBITMQ_43 names.
set -eu

cd "$(dirname "$0")/../.."
servers="$PWD/.servers"

# shellcheck source=tests/tools.sh
. tests/tools.sh

# ------------------------------------------------------------------------------------------------- packages

missing=""
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing="$missing rabbitmq-server"
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || missing="$missing postgresql"
command -v javac >/dev/null || missing="$missing openjdk-17-jdk-headless"
command -v mvn >/dev/null || missing="$missing maven"
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$missing chromium fonts-liberation fonts-dejavu-core"

# shellcheck disable=SC2086  # a list of words
[ -z "$missing" ] || packages $missing

java_version=$(javac -version 2>&1 | sed 's/^javac \([0-9]*\).*/\1/')
[ "$java_version" -ge 17 ] || { say "Java $java_version is too old: install openjdk-17-jdk-headless"; exit 1; }

# --------------------------------------------------------------------------------------------- RabbitMQ 4

[ -n "${GATEWAY_TEST_RABBITMQ_40:-}" ] || tests/servers/unpack.sh trixie "$servers/rabbitmq-4.0"
[ -n "${GATEWAY_TEST_RABBITMQ_43:-}" ] || tests/servers/unpack.sh sid "$servers/rabbitmq-4.3"

# ----------------------------------------------------------------------------------------------------- jars

jars tests/servers/brokerj/pom.xml "$servers/brokerj"
jars tests/java/pom.xml "$servers/java/lib"
deploy/spark/jars.sh "$servers/delta"

# ----------------------------------------------------------------------------------------------- Java client

sum=$(cat tests/java/*.java tests/java/pom.xml | cksum)
if [ "$(cat "$servers/java/.sources" 2>/dev/null || true)" != "$sum" ]; then
    say "compiling the Java client"
    rm -rf "$servers/java/classes"
    javac -nowarn -Xlint:-options -d "$servers/java/classes" -cp "$servers/java/lib/*" tests/java/*.java
    printf '%s\n' "$sum" >"$servers/java/.sources"
fi
