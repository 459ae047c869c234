#!/usr/bin/env bash
# Looks for keys and passwords in the files of the checkout, with detect-secrets; sends nothing anywhere.
#   bash scripts/secret_scan.sh              every file; half a minute
#   bash scripts/secret_scan.sh --changed    what is not committed yet, and the last commit; seconds
# .secrets.baseline lists what was found and is no secret (hashes, made-up keys of tests). To add to it, read what this prints
# and then run: .venv/bin/detect-secrets scan --no-verify --baseline .secrets.baseline
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$(realpath -s "${OGER_VENV:-.venv}")/bin/python"

if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    echo "secret scan: skipped, as this is no git checkout"
    exit
fi
files() {
    if [[ "${1:-}" == --changed ]]; then
        git diff -z --name-only --diff-filter=d --relative HEAD
        git diff-tree -z --root --name-only --no-commit-id --diff-filter=d --relative -r HEAD
        git ls-files -z --others --exclude-standard
    else
        git ls-files -z
    fi
}
# The hook ends with 3 where a known find has only moved, and writes that into the baseline: into a copy of it.
# shellcheck disable=SC2016 # the inner bash expands it
scan='copy="$(mktemp)"; trap "rm -f $copy" EXIT; cp .secrets.baseline "$copy"; code=0
    found="$("$0" -m detect_secrets.pre_commit_hook --no-verify --baseline "$copy" "$@" 2>&1)" || code=$?
    ((code == 0 || code == 3)) || { echo "$found"; exit 1; }'
files "$@" | sort -zu | xargs -0 -r -n 50 -P "$(nproc)" bash -c "$scan" "$python"
