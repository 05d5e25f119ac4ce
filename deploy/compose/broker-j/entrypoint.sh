#!/bin/sh
# The broker, with the password of its one user from a file.
set -eu
exec java -Xmx512m -cp '/opt/broker-j/*' org.apache.qpid.server.Main -icp /opt/config.json -st JSON \
    -prop "gateway.password=$(cat "$QPID_PASSWORD_FILE")"
