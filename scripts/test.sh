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

# Two workers: the runs, which take longest, in one (tests/conftest.py), and everything else in the other.
everything=(-n 2 --dist loadgroup --no-loadscope-reorder tests/e2e tests/walks tests/integration tests/unit)
for argument in "$@"; do
    if [[ -e "${argument%%::*}" ]]; then everything=(); fi
done
check "pytest" "$bin/python" -m pytest "${everything[@]}" --durations=15 "$@"
