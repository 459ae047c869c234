#!/usr/bin/env bash
# Creates the Python environment of this checkout: .venv, or the directory that OGER_VENV names (absolute, or relative to the
# checkout).
#   bash scripts/setup.sh              for GPUs where nvidia-smi lists one, else for CPUs; an environment stays what it is
#   bash scripts/setup.sh --gpu        for GPUs (requirements-gpu.lock), whatever this machine has
#   bash scripts/setup.sh --cpu        for CPUs (requirements.lock), whatever this machine has
#   bash scripts/setup.sh --dry-run    says what it would do and why, and changes nothing; exit 1 where something is missing
# Run it again at any time: it returns at once when nothing changed and takes up an interrupted installation.
set -euo pipefail

TORCH="torch==2.13.0+cpu"
TORCH_INDEX="https://download.pytorch.org/whl/cpu" # asked for torch only, and only when pip's own indexes lack it
CUDA=13.0                                          # the GPU build's torch; DeepSpeed compiles with no other toolkit
DRIVER=580                                         # the oldest for it
FLASH_ATTN_WHEEL="${FLASH_ATTN_WHEEL:-}"           # one for that torch and CUDA, file or URL, instead of compiling

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}

asked="" dry=""
for word in "$@"; do
    case "$word" in
    --gpu | --cpu) asked="${word#--}" ;;
    --dry-run) dry=yes ;;
    *) die "unknown option $word; there are --gpu, --cpu and --dry-run" ;;
    esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$(pwd -P)"
venv="$(realpath -m -- "${OGER_VENV:-.venv}")"
py="$venv/bin/python"
site="$venv/lib/python3.11/site-packages"
log="$venv/setup.log"
made="$venv/.oger-venv" # in an environment that this script has made, which alone it may empty

there="" # what the environment is for
if compgen -G "$venv/.oger-lock-*" >/dev/null; then there=cpu; fi
if compgen -G "$venv/.oger-gpu-lock-*" >/dev/null; then there=gpu; fi
gpus="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)" && [[ "$gpus" == *,* ]] || gpus=""
gpu="${gpus%%,*}"
if [[ -n "$asked" ]]; then
    build="$asked" why="--$asked was given"
elif [[ -n "$there" ]]; then
    build="$there" why="that is what it was made for"
elif [[ -n "$gpus" ]]; then
    build=gpu why="nvidia-smi lists $gpu"
else
    build=cpu why="no nvidia-smi lists a GPU"
fi
[[ "${there:-$build}" == "$build" ]] || die "$venv is for ${there^^}s. Both builds have files of the same names, so that one
    cannot become the other: remove it, or make another beside it: OGER_VENV=.venv-$build bash scripts/setup.sh --$build"
if [[ "$build" == cpu && -n "$gpus" ]]; then
    say "note: nvidia-smi lists $gpu, and $venv is for CPUs, because $why. One for GPUs beside it:"
    say "  OGER_VENV=.venv-gpu bash scripts/setup.sh --gpu"
fi

# What the environment was made from. Its name changes with the build and the inputs, its content with the folder they lie in;
# while the installation is not done there is none.
case "$build" in
cpu) lock=requirements.lock stamp="$venv/.oger-lock" ;;
gpu) lock=requirements-gpu.lock stamp="$venv/.oger-gpu-lock" ;;
esac
stamp="$stamp-$(cat "$lock" setup.cfg | sha256sum | cut -d' ' -f1)"

up_to_date() { [[ -f "$stamp" && "$(<"$stamp")" == "$root" && -x "$py" ]] && at_home; }
# False when the directory was copied from elsewhere: its scripts would start another environment's Python.
at_home() { [[ "$(grep '^command = ' "$venv/pyvenv.cfg" || echo "$venv")" == *"$venv" ]]; }

if up_to_date; then
    [[ -z "$dry" ]] || say "nothing to do: $venv is up to date, and for ${build^^}s"
    exit 0
fi

[[ "$(uname -s) $(uname -m)" == "Linux x86_64" ]] ||
    die "$lock is for Linux on x86-64, this is $(uname -s) on $(uname -m). Use a container or another machine."

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

say "$venv is to be for ${build^^}s, because $why"
lacks=()
if [[ "$build" == gpu ]]; then
    driver="$(sed -n '1s/.*, *//p' <<<"$gpus")"
    say "driver ${driver:-not seen}; CUDA $CUDA needs $DRIVER or newer"
    if [[ -n "$driver" && "${driver%%.*}" -lt $DRIVER && -z "$asked" ]]; then
        lacks+=("The driver $driver is too old: update it. Where CUDA's forward compatibility makes up for it, give --gpu.")
    fi

    # flash-attn is compiled now, DeepSpeed's Adam and Triton's launchers at the start of a run.
    toolkit="${CUDA_HOME:-/usr/local/cuda}" # as torch looks for it
    if [[ -z "${CUDA_HOME:-}" ]] && nvcc="$(command -v nvcc)"; then
        toolkit="$(dirname "$(dirname "$(realpath "$nvcc")")")"
    fi
    release="$("$toolkit/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')" || release=""
    say "CUDA toolkit ${release:-not found} in $toolkit; $CUDA is needed, in runs as well"
    usual="$(compgen -G "/usr/local/cuda-$CUDA")" || usual="" # where a command nvcc elsewhere may come from
    [[ "$release" == "$CUDA" && -f "$toolkit/include/cuda_runtime.h" ]] ||
        lacks+=("No whole CUDA toolkit $CUDA in $toolkit: install or load one, and set CUDA_HOME to its folder${usual:+, as $usual}.")
    command -v c++ >/dev/null || lacks+=("No C++ compiler, which nvcc needs: install one (Debian, Ubuntu: g++; Fedora: gcc-c++).")
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        lacks+=("No Python.h, which they compile with: install it (Debian, Ubuntu: python3.11-dev; Fedora: python3.11-devel).")

    flash_attn="$(grep '^flash-attn' "$lock")"
    if compgen -G "$site/flash_attn-${flash_attn#*==}[.+]*" >/dev/null; then
        flash_attn=""
    elif [[ -n "$FLASH_ATTN_WHEEL" ]]; then
        flash_attn="$FLASH_ATTN_WHEEL"
    fi
    # flash-attn's own rule, a job to two cores and 9 GB of free memory, knows nothing of a container's limits.
    : "${MAX_JOBS:=$("$python" -Bc 'from oger_recipe.base.cpu import CORES, free_memory
print(max(1, min(CORES // 2, free_memory() // (9 * 2**30))))')}"
    # Its setup.py would take a wheel for CUDA 12 where it finds one.
    export CUDA_HOME="$toolkit" MAX_JOBS FLASH_ATTENTION_FORCE_BUILD=TRUE
fi
say "1. $(grep '^[a-z]' "$lock" | grep -vc '^flash-attn') packages from $lock"
case "$build" in
cpu) say "   (about 2 minutes where nothing is cached; 0.9 GB to load, 2.6 GB on disk)" ;;
gpu)
    say "   (4.3 GB to load, 9.2 GB on disk)"
    say "2. ${flash_attn:-flash-attn is there}"
    [[ "$flash_attn" != flash-attn* ]] ||
        say "   (compiled by MAX_JOBS=$MAX_JOBS jobs of up to 9 GB each; its README says 3 to 5 minutes on 64 cores)"
    ;;
esac
say "then the project itself"
if [[ -n "$dry" ]]; then
    for lack in "${lacks[@]}"; do say "it would stop here: $lack"; done
    exit $((${#lacks[@]} > 0))
fi
[[ ${#lacks[@]} -eq 0 ]] || die "$(printf '%s\n' "${lacks[@]}")"

# One installation at a time. (Where the file system has no locks, the first one wins anyway.)
exec 9<requirements.lock
if command -v flock >/dev/null && ! flock -n 9; then
    say "waiting for another setup of this checkout"
    flock 9 || true
    if up_to_date; then
        exit 0
    fi
fi

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
rm -f "$venv"/.oger-lock-* "$venv"/.oger-gpu-lock-*
: >"$stamp" # without content: not done, but from now on for this build
: >"$log"
# A package whose installation was interrupted has no RECORD yet: pip would take it for complete. Other tools write none.
if [[ -f "$made" ]]; then
    find "$site" -maxdepth 1 -name '*.dist-info' ! -exec test -e '{}/RECORD' \; -exec rm -r '{}' +
fi

pip_finds_torch() {
    "$py" -m pip index versions torch --timeout 15 --retries 1 2>>"$log" | tr -d ',' | tr ' ' '\n' |
        grep -qxF "${TORCH#torch==}"
}
if [[ "$venv" == *" "* ]]; then
    say "note: vLLM cannot preload its libraries from a path with a space and runs slower; OGER_VENV=<path> avoids that"
fi
if [[ "$build" == cpu && ! -d "$site/${TORCH/==/-}.dist-info" ]] && ! pip_finds_torch; then
    say "pip's indexes have no $TORCH: taking it from $TORCH_INDEX"
    install --extra-index-url "$TORCH_INDEX" "$TORCH"
fi
# What source distributions are built with is pinned as well; newer pip has its own name for that. The path is relative because
# pip splits the values of these variables at spaces.
PIP_CONSTRAINT="$lock" PIP_BUILD_CONSTRAINT="$lock" install -r <(grep -v '^flash-attn' "$lock")
if [[ -n "${flash_attn:-}" ]]; then
    say "installing $flash_attn"
    # Compiled against the torch that is there by now. pip's cache may have it for another torch.
    install --no-build-isolation --no-cache-dir "$flash_attn"
fi
[[ "$build" == cpu ]] || "$py" -c 'import torch, flash_attn_2_cuda' >>"$log" 2>&1 ||
    die "flash-attn cannot be imported: was it compiled for another torch? $log has the reason. Remove it
    ($py -m pip uninstall flash-attn), and run this again."
say "installing the project itself"
install --no-build-isolation -e .

printf '%s' "$root" >"$stamp"
say "done in $SECONDS s: $venv"
