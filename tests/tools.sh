# shellcheck shell=sh
# Read by the install.sh of those suites that need tools from outside the project's environment. They are kept in
# GATEWAY_TOOLS, in fixed versions, outside the tree. Safe to repeat, and quick when all is there.

tools="${GATEWAY_TOOLS:-$HOME/.cache/gateway-tools}"
mkdir -p "$tools"

say() { printf 'install.sh: %s\n' "$*" >&2; }

# packages NAME...: packages of the system.
packages() {
    by_hand="install by hand, then run this again: $*"
    command -v apt-get >/dev/null || { say "there is no apt-get here; $by_hand"; exit 1; }
    if [ "$(id -u)" = 0 ]; then
        as_root=""
    elif sudo -n true 2>/dev/null; then
        as_root="sudo"
    else
        say "neither root nor sudo without a password; $by_hand"
        exit 1
    fi
    say "installing $*"
    apt install "$@" 2>/dev/null || { apt update && apt install "$@"; } || { say "apt-get failed; $by_hand"; exit 1; }
}

apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends "$@" >/dev/null; }

# jars POM FOLDER: the jars that a pom names, once for each content of the pom.
jars() {
    sum=$(cksum <"$1")
    [ "$(cat "$2/.pom" 2>/dev/null || true)" = "$sum" ] && return
    say "fetching the jars of $1"
    rm -rf "${2:?}"
    mkdir -p "$2"
    mvn -B -q -f "$1" dependency:copy-dependencies "-DoutputDirectory=$2" ||
        { say "Maven could not fetch the jars of $1: see its message above"; exit 1; }
    printf '%s\n' "$sum" >"$2/.pom"
}

# venv FOLDER PACKAGE: a virtual environment with that package.
venv() {
    [ "$(cat "$tools/$1/.package" 2>/dev/null || true)" = "$2" ] && return
    say "installing $2"
    rm -rf "${tools:?}/$1"
    "${PYTHON:-python3}" -m venv "$tools/$1"
    "$tools/$1/bin/pip" install --quiet --disable-pip-version-check "$2" || { say "$2 could not be installed"; exit 1; }
    printf '%s\n' "$2" >"$tools/$1/.package"
}

# go_program NAME PACKAGE VERSION: a program built from its Go module, whose content Go checks against the public list
# of digests. One built by hand and put there is left alone.
go_program() {
    if [ -x "$tools/bin/$1" ] && [ "$(cat "$tools/bin/.$1" 2>/dev/null || printf '%s' "$3")" = "$3" ]; then
        return
    fi
    command -v go >/dev/null || { say "there is no Go: install it, or put $1 $3 into $tools/bin"; exit 1; }
    say "building $1 $3, which takes some minutes"
    GOBIN="$tools/bin" nice -n 19 go install "$2@$3" || { say "$1 could not be built"; exit 1; }
    printf '%s' "$3" >"$tools/bin/.$1"
}

# debian_program NAME PACKAGE PATH: one program out of a package of Debian, which is not installed. Another
# one that was put there is left alone.
debian_program() {
    [ -x "$tools/bin/$1" ] && return
    say "fetching $1"
    rm -rf "${tools:?}/$2" && mkdir -p "$tools/$2" "$tools/bin"
    (cd "$tools/$2" && { apt-get -qq download "$2" 2>/dev/null || { apt-get -qq update && apt-get -qq download "$2"; }; } &&
        dpkg-deb --fsys-tarfile "$2"_*.deb | tar -x "$3" && mv "$3" "$tools/bin/") ||
        { say "there is no package $2: put $1 into $tools/bin"; exit 1; }
    rm -rf "${tools:?}/$2"
}
