#!/bin/sh
# Takes a fresh clone to a working `.venv/bin/armillary`.
#
# It asks for nothing but a POSIX shell and some Python 3 (3.8 or newer, pip not needed), because
# that is all a plain Debian has. Whatever else it needs it finds, or installs inside this folder;
# packages come only from the hash-locked lists in locks/. Only bubblewrap is a system package, and
# only where that takes no password. A run that finds everything in place ends in under a second.
#
#   scripts/setup.sh             all of the below, and mini-SWE-agent's own environment
#   scripts/setup.sh uv          print the path of uv, getting it first if needed
#   scripts/setup.sh python      print the path of a Python >= 3.12
#   scripts/setup.sh bubblewrap  install bubblewrap, or say how
#   scripts/setup.sh sandbox     fail where bubblewrap is missing
#   scripts/setup.sh venv        bring .venv to locks/dev.txt
#   scripts/setup.sh harness N   install the locked environment of agent program N
#
# Details of every command go to .cache/setup.log.
set -eu
cd "$(dirname "$0")/.."

ROOT=$(pwd)
VENV=$ROOT/.venv
TOOLS=$ROOT/.cache/tools
LOG=$ROOT/.cache/setup.log
STAMP=$VENV/.setup-stamp
APT='apt-get update && apt-get install -y --no-install-recommends'
# A user's habit of refusing installs outside a venv does not apply to a private folder.
export PIP_REQUIRE_VIRTUALENV=0 PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1
export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}"
# uv trusts its own list of authorities; a company's proxy is known to the system's list only.
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" UV_NATIVE_TLS="${UV_NATIVE_TLS:-1}"
fi

say() { printf 'setup: %s\n' "$*" >&2; }

# fail WHAT [COMMAND]: one line, with the one command that helps.
fail() {
    say "failed: $1${2:+. Run this, then the same make command again: $2}"
    exit 1
}

quietly() { "$@" >>"$LOG" 2>&1 </dev/null; }

# For minutes of downloading: progress bars where someone can see them.
visibly() { if [ -t 2 ]; then "$@" >&2 </dev/null; else quietly "$@"; fi; }

# The reason in a failed command's own words, for the one line of `fail`.
last_words() { grep -v '^[[:space:]]*$' "$LOG" | tail -n 1; }

# as_root COMMAND: succeeds only where that takes no password.
as_root() {
    command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" = 0 ]; then
        DEBIAN_FRONTEND=noninteractive quietly sh -c "$1"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        quietly sudo -n env DEBIAN_FRONTEND=noninteractive sh -c "$1"
    else
        return 1
    fi
}

# system_package NAME: how a person installs it.
system_package() {
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "(your system's package manager) install $1"
    elif [ "$(id -u)" = 0 ]; then
        echo "$APT $1"
    else
        echo "sudo sh -c '$APT $1'"
    fi
}

# on_path NAME: every program NAME on PATH, not only the first: a version manager's shim may come
# first and have nothing behind it.
on_path() {
    printf '%s\n' "$PATH" | tr : '\n' | while read -r folder; do
        if [ -x "$folder/$1" ]; then echo "$folder/$1"; fi
    done
}

# first_that TEST ARGUMENT...: the first line of standard input, a path, that passes.
first_that() {
    check=$1
    shift
    while read -r candidate; do
        if "$check" "$candidate" "$@"; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

pyenv_root() { echo "${PYENV_ROOT:-${HOME:-}/.pyenv}"; }

# ---------------------------------------------------------------- uv

# usable PATH: does it run, and is it new enough for what is asked of it below?
usable() { "$1" venv --help 2>/dev/null </dev/null | grep -q -e --clear; }

find_uv() {
    {
        on_path uv
        for folder in "$VENV" "$TOOLS" "${HOME:-}/.local" "${HOME:-}/.cargo"; do
            echo "$folder/bin/uv"
        done
    } | first_that usable
}

can_bootstrap() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null </dev/null; }

# Every Python that can run pip, one path a line, those on PATH first.
old_pythons() {
    {
        on_path python3
        ls -d "$(pyenv_root)"/versions/3.*/bin/python3 2>/dev/null || true
    } | while read -r candidate; do
        if can_bootstrap "$candidate"; then echo "$candidate"; fi
    done
}

# uv's own lines of the lock, so that even the first tool comes with its hashes.
uv_requirement() { awk '/^[^[:space:]#]/ { on = /^uv==/ } on' locks/dev.txt >"$TOOLS/uv.txt"; }

# pip_uv COMMAND...: let this pip install uv. `--target` is a private folder, which is why a
# system Python that is marked externally managed (PEP 668) does not object.
pip_uv() {
    quietly "$@" install --no-deps --require-hashes --upgrade --target "$TOOLS" \
        -r "$TOOLS/uv.txt" && usable "$TOOLS/bin/uv"
}

# pip in a wheel: Debian disables ensurepip but ships the wheel it would use, and a wheel runs
# without being installed.
bundled_pip() {
    "$1" -c '
import glob, os
try:
    import ensurepip
    folders = [os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")]
except ImportError:
    folders = []
for folder in folders + ["/usr/share/python-wheels"]:
    for wheel in sorted(glob.glob(os.path.join(folder, "pip-*.whl"))):
        print(os.path.join(wheel, "pip"))
' 2>/dev/null | head -n 1
}

uv_by_python() {
    old_pythons | while read -r python; do
        say "getting uv with $python"
        if pip_uv "$python" -m pip; then echo done; break; fi
        wheel=$(bundled_pip "$python")
        if [ -n "$wheel" ] && pip_uv "$python" "$wheel"; then echo done; break; fi
        if quietly "$python" -m venv --clear "$TOOLS/pip" && pip_uv "$TOOLS/pip/bin/python" -m pip
        then echo done; break; fi
    done | grep -q done
}

uv_by_installer() {
    version=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' locks/dev.txt)
    url=https://astral.sh/uv/$version/install.sh
    if command -v curl >/dev/null 2>&1; then
        quietly curl -fsSL --max-time 60 -o "$TOOLS/install-uv.sh" "$url" || return 1
    elif command -v wget >/dev/null 2>&1; then
        quietly wget -q -T 60 -O "$TOOLS/install-uv.sh" "$url" || return 1
    else
        return 1
    fi
    UV_UNMANAGED_INSTALL=$TOOLS/bin quietly sh "$TOOLS/install-uv.sh" && usable "$TOOLS/bin/uv"
}

get_uv() {
    mkdir -p "$TOOLS"
    uv_requirement
    if uv_by_python; then :; elif uv_by_installer; then :; else
        say "no pip here; trying the system package python3-pip"
        as_root "$APT python3-pip" && uv_by_python ||
            fail "uv could not be installed (details: $LOG)" "$(system_package python3-pip)"
    fi
    echo "$TOOLS/bin/uv"
}

uv_path() { find_uv || get_uv; }

# ---------------------------------------------------------------- Python

# fits PATH MINOR: is it Python 3.MINOR, and built with what we import?
fits() {
    "$1" -c "import ctypes, sqlite3, ssl, sys
sys.exit(sys.version_info[:2] != (3, $2))" >/dev/null 2>&1 </dev/null
}

find_python() {
    for minor in 12 13 14; do
        python=$(
            {
                on_path "python3.$minor"
                on_path python3
                ls -d "$(pyenv_root)"/versions/3.$minor.*/bin/python3.$minor \
                    "${HOME:-}"/.pyenv/versions/3.$minor.*/bin/python3.$minor 2>/dev/null || true
            } | first_that fits $minor
        ) || continue
        # A shim is only a name for it; the environment must point at the real file.
        "$python" -c 'import sys; print(sys.executable)'
        return 0
    done
    return 1
}

python_path() {
    if find_python; then return 0; fi
    uv=$1
    if "$uv" python find --system --no-python-downloads '>=3.12,<3.15' 2>>"$LOG"; then return 0; fi
    say "no Python 3.12 or newer here; getting one with uv"
    quietly "$uv" python install 3.12 && "$uv" python find --system 3.12 2>>"$LOG" ||
        fail "no Python 3.12 or newer, and uv could not get one: $(last_words)" \
            "$uv python install 3.12"
}

# ---------------------------------------------------------------- bubblewrap

setup_bubblewrap() {
    if command -v bwrap >/dev/null 2>&1; then return 0; fi
    say 'bubblewrap is not here; trying the system package'
    if as_root "$APT bubblewrap" && command -v bwrap >/dev/null 2>&1; then return 0; fi
    say "bubblewrap is missing, so no sandbox can start yet. To install it: $(system_package bubblewrap)"
}

require_sandbox() {
    command -v bwrap >/dev/null 2>&1 || fail 'bubblewrap is missing' "$(system_package bubblewrap)"
}

# ---------------------------------------------------------------- packages

# What the environment was made from; the folder counts because scripts hold its absolute path.
wanted_stamp() { printf '%s %s\n' "$(cat locks/dev.txt pyproject.toml | cksum)" "$ROOT"; }

venv_works() {
    "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null
}

up_to_date() { [ "$(cat "$STAMP" 2>/dev/null)" = "$(wanted_stamp)" ] && venv_works; }

# Downloads are large; a broken connection is tried again, and what arrived is kept.
sync_packages() {
    for _ in 1 2 3; do
        if visibly "$1" pip sync --python "$VENV/bin/python" --require-hashes --compile-bytecode \
            locks/dev.txt; then return 0; fi
        say 'the packages did not all arrive; trying again'
    done
    fail "the packages of locks/dev.txt could not be installed (details: $LOG)"
}

setup_venv() {
    if up_to_date; then return 0; fi
    uv=$(uv_path)
    rm -f "$STAMP"
    if ! venv_works; then
        python=$(python_path "$uv")
        say "making .venv with $python"
        quietly "$uv" venv --clear --python "$python" "$VENV" ||
            fail "no virtual environment with $python: $(last_words)"
    fi
    say "installing $(grep -c '^[a-z].*==' locks/dev.txt) locked packages, PyTorch among them: \
some minutes the first time"
    sync_packages "$uv"
    # The build backend is in the lock, so nothing unlocked is fetched for the package itself.
    quietly "$uv" pip install --python "$VENV/bin/python" --no-deps --no-build-isolation \
        --editable . || fail "armillary itself could not be installed: $(last_words)"
    wanted_stamp >"$STAMP"
}

setup_harness() {
    "$VENV/bin/python" -m armillary.harness.install "$1" "locks/$1.txt" >>"$LOG" ||
        fail "the environment of $1 could not be installed (details above and in $LOG)"
}

mkdir -p "$ROOT/.cache"
case ${1:-all} in
all)
    began=$(date +%s)
    setup_venv
    setup_bubblewrap
    setup_harness mini-swe-agent
    say "ready after $(($(date +%s) - began)) s: .venv/bin/armillary"
    ;;
uv) uv_path ;;
python) python_path "$(uv_path)" ;;
bubblewrap) setup_bubblewrap ;;
sandbox) require_sandbox ;;
venv) setup_venv ;;
harness) setup_harness "${2:?name of an agent program}" ;;
*) fail "unknown step $1; the steps are at the top of scripts/setup.sh" ;;
esac
