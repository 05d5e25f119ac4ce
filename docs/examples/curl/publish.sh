#!/bin/sh
# Publish one message, once: publish.sh BROKER EXCHANGE ROUTING_KEY PAYLOAD KEY
set -eu
curl --silent --show-error --fail-with-body \
  ${GATEWAY_API_KEY:+-H "Authorization: Bearer $GATEWAY_API_KEY"} \
  -H "Idempotency-Key: $5" -H "Amqp-Routing-Key: $3" -H 'Content-Type: text/plain' \
  --data-binary "$4" \
  "${GATEWAY_URL:-http://127.0.0.1:8080}/v1/brokers/$1/exchanges/$2:publish"
echo
