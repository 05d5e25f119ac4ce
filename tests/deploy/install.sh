#!/bin/sh
# Install what the tests of deploy/ need: helm, built from its Go module; the schemas of Kubernetes and checkov, each in
# a virtual environment of its own. All of it is kept outside the tree, in GATEWAY_TOOLS. Safe to repeat, and quick when
# all is there.
set -eu

tools="${GATEWAY_TOOLS:-$HOME/.cache/gateway-tools}"
helm=v3.19.0
schemas=1.37.0
checkov=3.3.30

say() { printf 'install.sh: %s\n' "$*" >&2; }

mkdir -p "$tools"

if [ ! -x "$tools/bin/helm" ]; then
    command -v go >/dev/null || { say "there is no Go: install it, or put helm $helm into $tools/bin"; exit 1; }
    say "building helm $helm, which takes some minutes"
    GOBIN="$tools/bin" nice -n 19 go install "helm.sh/helm/v3/cmd/helm@$helm" || { say "helm could not be built"; exit 1; }
fi

# venv FOLDER PACKAGE: a virtual environment with that package.
venv() {
    [ "$(cat "$tools/$1/.package" 2>/dev/null || true)" = "$2" ] && return
    say "installing $2"
    rm -rf "${tools:?}/$1"
    "${PYTHON:-python3}" -m venv "$tools/$1"
    "$tools/$1/bin/pip" install --quiet --disable-pip-version-check "$2" || { say "$2 could not be installed"; exit 1; }
    printf '%s\n' "$2" >"$tools/$1/.package"
}

venv validate "kubernetes-validate==$schemas"
venv checkov "checkov==$checkov"
