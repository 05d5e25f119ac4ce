#!/bin/sh
# Pull messages, print them, and acknowledge them: consume.sh SUBSCRIPTION (needs jq)
set -eu
post() {
  curl --silent --show-error --fail-with-body ${GATEWAY_API_KEY:+-H "Authorization: Bearer $GATEWAY_API_KEY"} \
    -H 'Content-Type: application/json' --data-binary @- \
    "${GATEWAY_URL:-http://127.0.0.1:8080}/v1/subscriptions/$1"
}
pulled=$(echo '{"max_messages": 10, "wait_seconds": 5}' | post "$1:pull")
printf %s "$pulled" | jq -r '.messages[].message.payload'
printf %s "$pulled" | jq '{ack_ids: [.messages[].ack_id]} | select(.ack_ids != [])' | {
  body=$(cat)
  [ -z "$body" ] || printf %s "$body" | post "$1:acknowledge" | jq -r '.results[].status'
}
