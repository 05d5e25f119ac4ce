#!/bin/sh
# Pull messages, print them, and acknowledge them: consume.sh SUBSCRIPTION
set -eu
post() {
  curl --silent --show-error --fail-with-body ${GATEWAY_API_KEY:+-H "Authorization: Bearer $GATEWAY_API_KEY"} \
    -H 'Content-Type: application/json' --data-binary @- \
    "${GATEWAY_URL:-http://127.0.0.1:8080}/v1/subscriptions/$1"
  echo
}
pulled=$(echo '{"max_messages": 10, "wait_seconds": 20}' | post "$1:pull")
printf '%s\n' "$pulled"
ids=$(printf %s "$pulled" | grep -o '"ack_id":"[^"]*"' | cut -d : -f 2 | paste -sd , -)
[ -z "$ids" ] || echo "{\"ack_ids\": [$ids]}" | post "$1:acknowledge"
