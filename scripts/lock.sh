#!/bin/sh
# Writes locks/*.txt from pyproject.toml and locks/*.in: every package, its version and the hashes
# of its files, for all platforms, and no address, so that whatever index a machine uses serves it.
#
#   scripts/lock.sh             bring the locks up to date, keeping each version that still fits
#   scripts/lock.sh --upgrade   take the newest versions that fit
#   scripts/lock.sh --check     change nothing; fail where a lock is out of date
#
# Existing versions are kept by default because a lock that moves by itself is no lock.
set -eu
cd "$(dirname "$0")/.."

uv=.venv/bin/uv
[ -x "$uv" ] || uv=uv

mode=${1:-}
case $mode in
'' | --upgrade | --check) ;;
*)
    echo "lock: unknown option $mode; options are --check and --upgrade" >&2
    exit 2
    ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# compile NAME SOURCE...: resolve into a copy beside the old lock, then compare or replace.
compile() {
    name=$1
    shift
    new=$scratch/$name.txt
    if [ -f "locks/$name.txt" ]; then cp "locks/$name.txt" "$new"; fi
    upgrade=
    if [ "$mode" = --upgrade ]; then upgrade=--upgrade; fi
    # shellcheck disable=SC2086  # empty means no option
    "$uv" pip compile "$@" --universal --python-version 3.12 --generate-hashes \
        --no-emit-index-url --no-header --quiet $upgrade --output-file "$new" >/dev/null
    if cmp -s "$new" "locks/$name.txt"; then
        echo "lock: locks/$name.txt is up to date"
    elif [ "$mode" = --check ]; then
        echo "lock: locks/$name.txt is out of date; run: make lock" >&2
        stale=1
    else
        cp "$new" "locks/$name.txt"
        echo "lock: locks/$name.txt written"
    fi
}

stale=0
compile dev pyproject.toml --extra learn --group dev
compile mini-swe-agent locks/mini-swe-agent.in
compile harbor locks/harbor.in
exit "$stale"
