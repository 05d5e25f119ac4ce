#!/bin/sh
# Make the passwords and keys of compose.yaml, in deploy/compose/secrets/. What is there stays as it is.
set -eu

cd "$(dirname "$0")"
umask 077
mkdir -p secrets

random() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

for name in api-key cluster postgresql rabbitmq broker-j; do
    [ -s "secrets/$name" ] || random >"secrets/$name"
done
[ -s secrets/seal ] || head -c 32 /dev/urandom | base64 >secrets/seal
printf 'postgresql://gateway:%s@postgresql/gateway\n' "$(cat secrets/postgresql)" >secrets/ledger-url
printf 'default_user = gateway\ndefault_pass = %s\n' "$(cat secrets/rabbitmq)" >secrets/rabbitmq.conf
chmod 0444 secrets/* # the user in the containers is another one; the folder itself is closed
