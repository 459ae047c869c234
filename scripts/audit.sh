#!/usr/bin/env bash
# Asks PyPI for known vulnerabilities of every package in the locks, with pip-audit.
#   bash scripts/audit.sh
# Exit code 1: there are some. 2: not everything could be asked, as when pip-audit cannot be installed. 0: there are none, or PyPI
# does not answer as it should, which is said.
# pip-audit is in an environment of its own, .cache/audit: what it needs is not what a run needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin="${OGER_VENV:-.venv}/bin"

# A mirror may answer without a word of vulnerabilities, and everything would look well: this version has some.
"$bin/python" - "${AUDIT_SERVICE:-https://pypi.org/pypi}/jinja2/2.10/json" <<'END' || exit 0
import json
import sys
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1], timeout=15) as answer:
        known = json.load(answer).get("vulnerabilities")
    why = None if known else "it lists no vulnerabilities"
except (OSError, ValueError) as error:
    why = str(error)
if why:
    sys.exit(f"audit: skipped, as {sys.argv[1]} does not answer as PyPI does: {why}")
END
[[ -x .cache/audit/bin/python ]] || "$bin/python" -m venv .cache/audit || exit 2
.cache/audit/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/audit_requirements.txt || exit 2
failed=0
for lock in requirements.lock requirements-gpu.lock; do
    pins="$(mktemp --suffix .txt)"
    # Builds such as torch 2.13.0+cpu, and ===, are not in the service: it knows 2.13.0.
    grep -E '^[A-Za-z0-9]' "$lock" | sed -E 's/ *[;#].*//; s/===/==/; s/\+[a-z0-9.]+$//' >"$pins"
    printf 'audit: %s\n' "$lock"
    # It exits with 1 for vulnerabilities and for everything else; only those are a table on stdout.
    if found="$(.cache/audit/bin/python -m pip_audit --no-deps --disable-pip --progress-spinner off -r "$pins")"; then
        :
    elif [[ -n "$found" ]]; then
        failed=1
    else
        ((failed)) || failed=2
    fi
    printf '%s' "${found:+$found$'\n'}"
    rm -f "$pins"
done
exit "$failed"
