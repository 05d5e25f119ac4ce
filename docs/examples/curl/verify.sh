#!/bin/sh
# Verify a webhook with OpenSSL: the body is stdin, and KEY (whsec_…), ID, TIMESTAMP and SIGNATURE are variables.
set -eu
age=$(($(date +%s) - TIMESTAMP))
[ "${age#-}" -le 300 ] || { echo "too old" >&2; exit 1; }
key=$(printf %s "${KEY#whsec_}" | openssl base64 -d -A | od -An -v -tx1 | tr -d ' \n')
wanted=$({ printf '%s.%s.' "$ID" "$TIMESTAMP"; cat; } |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | openssl base64 -A)
for each in $SIGNATURE; do
  [ "$each" = "v1,$wanted" ] && exit 0
done
echo "wrong signature" >&2
exit 1
