#!/bin/sh
# Unpack RabbitMQ 4 with its Erlang and C library from Debian's packages into a folder. Nothing is installed, and
# nothing needs root. tests/servers/rabbitmq4.py runs it from there, on any system with the same processor.
#
#   tests/servers/unpack.sh trixie .servers/rabbitmq-4.0    about 35 MB to fetch; does nothing if the folder is complete
#
# The packages come from the first Debian archive among the machine's apt sources that has the release.
set -eu

suite=$1
mkdir -p "$(dirname "$2")"
root="$(cd "$(dirname "$2")" && pwd)/$(basename "$2")"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf 'unpack.sh: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

[ -e "$root/.complete" ] && exit 0
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || fail "$tool is missing: run this on Debian or Ubuntu"
done
[ -e "$keyring" ] || fail "$keyring is missing: install debian-archive-keyring"

for left in "$root".part.*; do # of a run that was killed
    [ ! -d "$left" ] || kill -0 "${left##*.}" 2>/dev/null || rm -rf "$left"
done
part="$root.part.$$"
work="$part/apt"
trap 'rm -rf "$part"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/deb" "$part/root"
: >"$work/status"

# apt with an empty system of its own: what it resolves and fetches has nothing to do with this machine's packages.
own() {
    program=$1
    shift
    "$program" -q -o "Dir::State=$work" -o "Dir::State::lists=$work/lists" -o "Dir::State::status=$work/status" \
        -o "Dir::Cache=$work/cache" -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o APT::Install-Recommends=false -o APT::Sandbox::User= -o Acquire::Languages=none "$@"
}

found=""
# shellcheck disable=SC2016  # a format of apt's own
for archive in $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | sort -u); do
    printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$archive" "$suite" >"$work/sources.list"
    if own apt-get -o APT::Update::Error-Mode=any update >"$work/log" 2>&1; then
        found=$archive
        break
    fi
done
[ -n "$found" ] || fail "none of the apt sources of this machine has Debian $suite; add a Debian archive to them." \
    "The last one said: $(tail -n 3 "$work/log" 2>/dev/null | tr '\n' ' ')"

say "fetching RabbitMQ of Debian $suite from $found"
# The server, Erlang and the libraries they load. What only an installation needs is left out.
names=$(own apt-get --simulate install rabbitmq-server | awk '$1 == "Inst" && $2 ~ /^(rabbitmq-server|erlang-|lib)/ { print $2 }')
# shellcheck disable=SC2086  # a list of words
(cd "$work/deb" && own apt-get download $names >"$work/log" 2>&1) ||
    fail "the packages could not be fetched: $(tail -n 3 "$work/log" | tr '\n' ' ')"
for package in "$work"/deb/*.deb; do
    # Some packages have /lib and some /usr/lib: all of it goes below /usr.
    dpkg-deb --fsys-tarfile "$package" |
        tar -x --no-same-owner --transform 's,^\./\(bin\|sbin\|lib\|lib64\)/,./usr/\1/,S' -C "$part/root" -f -
done
rm -rf "$part/root/usr/share" "$part/root/etc"
basename "$part"/root/usr/lib/rabbitmq/lib/rabbitmq_server-* | sed 's/.*-//' >"$part/root/.complete"
rm -rf "$root"
mv "$part/root" "$root"
