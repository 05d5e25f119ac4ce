#!/bin/sh
# The chart in a real cluster, on this machine: tests/deploy/kind.sh IMAGE. Needs docker, kind, kubectl, helm and openssl.
#
# A cluster is made and removed again. Its namespace for the gateway admits restricted pods only. The chart is installed
# with its migration job, tested by `helm test` (a message published, pulled and acknowledged), upgraded with another
# configuration, tested, set back a revision, tested, and tested once more after a pod of each role was deleted.
set -eu

image="${1:?name an image: tests/deploy/kind.sh amqp-gateway:ci}"
here=$(cd "$(dirname "$0")" && pwd)
chart="$here/../../deploy/helm/amqp-gateway"
cluster=amqp-gateway-test
namespace=messaging

say() { printf 'kind.sh: %s\n' "$*" >&2; }

for program in docker kind kubectl helm openssl; do
    command -v "$program" >/dev/null || { say "there is no $program"; exit 1; }
done

# At the end, well or badly: what a person would ask for, then everything goes.
finish() {
    status=$?
    if [ "$status" -ne 0 ]; then
        say "failed; what the cluster says:"
        kubectl -n "$namespace" get all,events || true
        kubectl -n "$namespace" logs --all-containers --prefix --tail=100 --selector app.kubernetes.io/part-of=amqp-gateway || true
    fi
    kind delete cluster --name "$cluster" || true
    exit "$status"
}
trap finish EXIT

release() { helm --namespace "$namespace" "$@"; }

# roll: until every pod is a new one, and ready.
roll() {
    for role in api worker; do
        kubectl -n "$namespace" rollout status "deployment/gateway-amqp-gateway-$role" --timeout 180s
    done
}

# secret NAMESPACE NAME KEY VALUE...
secret() {
    of=$1 name=$2
    shift 2
    set -- "$@" ""
    literals=""
    while [ -n "$1" ]; do
        literals="$literals --from-literal=$1=$2"
        shift 2
    done
    # shellcheck disable=SC2086  # a list of words
    kubectl -n "$of" create secret generic "$name" $literals
}

kind create cluster --name "$cluster" --wait 180s
kind load docker-image --name "$cluster" "$image"

kubectl create namespace servers
kubectl create namespace "$namespace"
kubectl label namespace "$namespace" pod-security.kubernetes.io/enforce=restricted

database=$(openssl rand -hex 16)
rabbitmq=$(openssl rand -hex 16)
secret servers servers postgresql "$database" rabbitmq "$rabbitmq"
kubectl -n servers apply -f "$here/kind/servers.yaml"
secret "$namespace" gateway-db url "postgresql://gateway:$database@postgresql.servers.svc.cluster.local/gateway"
secret "$namespace" gateway-cluster secret "$(openssl rand -hex 32)"
secret "$namespace" gateway-seal key "$(openssl rand -base64 32)"
secret "$namespace" gateway-rabbitmq password "$rabbitmq"
secret "$namespace" gateway-keys key "$(openssl rand -hex 24)"
for server in postgresql rabbitmq; do
    kubectl -n servers rollout status "deployment/$server" --timeout 300s
done

repository=${image%:*} tag=${image##*:}
install() {
    release upgrade --install gateway "$chart" --values "$here/kind/values.yaml" --wait --timeout 10m \
        --set "image.repository=$repository" --set "image.tag=$tag" --set image.pullPolicy=Never "$@"
}

say "install"
install
roll
release test gateway --timeout 5m

say "upgrade"
install --set config.log_level=debug
roll
release test gateway --timeout 5m

say "roll back"
release rollback gateway 1 --wait --timeout 10m
roll
release test gateway --timeout 5m

say "a pod of each role goes"
for role in api worker; do
    pod=$(kubectl -n "$namespace" get pods --selector "app.kubernetes.io/component=$role" --output name | head -n 1)
    kubectl -n "$namespace" delete "$pod" --wait
done
roll
release test gateway --timeout 5m

say "remove"
release uninstall gateway --wait --timeout 5m
left=$(kubectl -n "$namespace" get pods --selector app.kubernetes.io/component=api --output name)
[ -z "$left" ] || { say "left behind: $left"; exit 1; }
say "all of it went well"
