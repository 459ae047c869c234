#!/usr/bin/env bash
# Installs what is missing, then runs every check of the project; stops at the first that fails.
# Options go to pytest. With paths, only these are tested: bash scripts/test.sh tests/unit -x
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
bin="${OGER_VENV:-.venv}/bin"

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
check "packages in setup.cfg" packages_are_listed
check "ruff check" "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check .
check "mypy" "$bin/mypy"

given=0
for argument in "$@"; do
    if [[ -e "${argument%%::*}" ]]; then given=1; fi
done
if ((given)); then
    check "pytest" "$bin/python" -m pytest --durations=15 "$@"
    exit
fi

# The runs of the whole pipeline take longest, and wait a lot: everything else is tested beside them.
beside="$(mktemp)"
set -m # a job of its own: without that it would ignore SIGINT, which some of the tests send
# Ray's workers are nice, too: with less of it they would wait for the other tests.
nice -n 15 "$bin/python" -m pytest tests/unit tests/integration --durations=15 "$@" >"$beside" 2>&1 &
set +m
trap 'kill -- -$! 2>/dev/null || true; rm -f "$beside"' EXIT
runs=0
printf '== pytest: tests/e2e and tests/walks, beside tests/unit and tests/integration, which are shown at the end\n'
"$bin/python" -m pytest tests/e2e tests/walks --durations=15 "$@" || runs=$?
others=0
wait $! || others=$?
cat "$beside"
if ((runs || others)); then
    printf '\nFAILED: pytest\n' >&2
    exit 1
fi
