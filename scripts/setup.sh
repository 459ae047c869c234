#!/usr/bin/env bash
# Creates the Python environment of this checkout: .venv, or the directory that OGER_VENV names (absolute, or relative to the
# checkout).
# Run it again at any time: it returns at once when nothing changed and takes up an interrupted installation.
set -euo pipefail

TORCH="torch==2.13.0+cpu"
TORCH_INDEX="https://download.pytorch.org/whl/cpu" # asked for torch only, and only when pip's own indexes lack it

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$(pwd -P)"
venv="$(realpath -m -- "${OGER_VENV:-.venv}")"
py="$venv/bin/python"
log="$venv/setup.log"
made="$venv/.oger-venv" # in an environment that this script has made, which alone it may empty
# What the environment was made from. Its name changes with the inputs, its content with the folder they lie in.
stamp="$venv/.oger-lock-$(cat requirements.lock setup.cfg | sha256sum | cut -d' ' -f1)"

up_to_date() { [[ -f "$stamp" && "$(<"$stamp")" == "$root" && -x "$py" ]] && at_home; }
# False when the directory was copied from elsewhere: its scripts would start another environment's Python.
at_home() { [[ "$(grep '^command = ' "$venv/pyvenv.cfg" || echo "$venv")" == *"$venv" ]]; }

if up_to_date; then
    exit 0
fi

# One installation at a time. (Where the file system has no locks, the first one wins anyway.)
exec 9<requirements.lock
if command -v flock >/dev/null && ! flock -n 9; then
    say "waiting for another setup of this checkout"
    flock 9 || true
    if up_to_date; then
        exit 0
    fi
fi

[[ "$(uname -s) $(uname -m)" == "Linux x86_64" ]] ||
    die "requirements.lock is for Linux on x86-64, this is $(uname -s) on $(uname -m). Use a container or another machine."

python=""
for candidate in python3.11 python3 python; do
    # The interpreter itself, not an environment's copy of it that may be about to go.
    python="$("$candidate" -c 'import sys; print(sys._base_executable if sys.version_info[:2] == (3, 11) else "")' \
        2>/dev/null)" || python=""
    [[ -z "$python" ]] || break
done
[[ -n "$python" ]] || die "Python 3.11 not found. Install it (Debian, Ubuntu: python3.11 and python3.11-venv;
    Fedora: python3.11; or pyenv, conda, uv) so that the command python3.11 exists."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python cannot create environments. Install its venv module (Debian, Ubuntu: python3.11-venv)."
"$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
    die "vLLM needs the library libnuma.so.1. Install it (Debian, Ubuntu: libnuma1; Fedora: numactl-libs)."

# Settings of the caller that would send the installation elsewhere.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_CONSTRAINT PIP_BUILD_CONSTRAINT
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PYTHONUNBUFFERED=1

# Runs pip: everything into the log, the few lines that show progress to the terminal.
install() {
    local from
    from="$(wc -l <"$log")"
    if ! "$py" -m pip install --no-deps --use-pep517 "$@" 2>&1 | tee -a "$log" | progress; then
        tail -n "+$((from + 1))" "$log" | tail -n 25 >&2
        die "pip failed; the whole output is in $log. Running this script again continues where it stopped."
    fi
}
progress() {
    sed -unE -e '/^ *(Downloading|Processing|Using cached) .*\([0-9]{2,}(\.[0-9]+)? MB\)/{s/^ */  /p}' \
        -e 's/^ *(Building wheel for [^ ]+).*started$/  \1/p' -e 's/^(Installing) collected packages: .*,.*/  \1/p'
}

usable() {
    [[ -e "$venv/pyvenv.cfg" ]] && at_home && "$py" -m pip --version &&
        "$py" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'
}
if ! usable >/dev/null 2>&1; then
    mkdir -p "$venv"
    [[ -f "$made" || -z "$(ls -A "$venv")" ]] ||
        die "$venv is not a working Python 3.11 environment with pip, nor made by this script. Remove it, or set OGER_VENV."
    say "creating $venv with $("$python" --version)"
    find "$venv" -mindepth 1 ! -path "$log" ! -path "$made" -delete
    : >"$made"
    : >"$log"
    "$python" -m venv "$venv"
fi
rm -f "$venv"/.oger-lock-*
: >"$log"
# A package whose installation was interrupted has no RECORD yet: pip would take it for complete. Other tools write none.
if [[ -f "$made" ]]; then
    find "$venv"/lib/python3.11/site-packages -maxdepth 1 -name '*.dist-info' ! -exec test -e '{}/RECORD' \; \
        -exec rm -r '{}' +
fi

pip_finds_torch() {
    "$py" -m pip index versions torch --timeout 15 --retries 1 2>>"$log" | tr -d ',' | tr ' ' '\n' |
        grep -qxF "${TORCH#torch==}"
}
say "installing $(grep -c '^[a-z]' requirements.lock) packages from requirements.lock"
say "(about 2 minutes where nothing is cached; 0.9 GB to load, 2.6 GB on disk)"
if [[ "$venv" == *" "* ]]; then
    say "note: vLLM cannot preload its libraries from a path with a space and runs slower; OGER_VENV=<path> avoids that"
fi
if [[ ! -d "$venv/lib/python3.11/site-packages/${TORCH/==/-}.dist-info" ]] && ! pip_finds_torch; then
    say "pip's indexes have no $TORCH: taking it from $TORCH_INDEX"
    install --extra-index-url "$TORCH_INDEX" "$TORCH"
fi
# What source distributions are built with is pinned as well; newer pip has its own name for that. The path is relative because
# pip splits the values of these variables at spaces.
PIP_CONSTRAINT=requirements.lock PIP_BUILD_CONSTRAINT=requirements.lock install -r requirements.lock
say "installing the project itself"
install --no-build-isolation -e .

printf '%s' "$root" >"$stamp"
say "done in $SECONDS s: $venv"
