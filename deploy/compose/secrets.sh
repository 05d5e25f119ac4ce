#!/bin/sh
# Make the passwords and keys of compose.yaml: deploy/compose/secrets/, and .env for PostgreSQL's. What is there stays as
# it is.
set -eu

cd "$(dirname "$0")"
umask 077
mkdir -p secrets

random() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

for name in api-key cluster rabbitmq broker-j; do
    [ -s "secrets/$name" ] || random >"secrets/$name"
done
[ -s secrets/seal ] || head -c 32 /dev/urandom | base64 >secrets/seal
[ -s .env ] || printf 'POSTGRES_PASSWORD=%s\n' "$(random)" >.env
printf 'default_user = gateway\ndefault_pass = %s\n' "$(cat secrets/rabbitmq)" >secrets/rabbitmq.conf
chmod 0444 secrets/* # the user in the containers is another one; the folder itself is closed
