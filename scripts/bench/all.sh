#!/usr/bin/env bash
# Measures the table of docs/costs.md and writes it there. Two to three hours on two cores, which nothing else should use.
#   bash scripts/bench/all.sh --data DIR    DIR: see scripts/bench/README.md; without it, what needs it is left out
#   bash scripts/bench/all.sh --only step startup
# Call it again to continue: what is in runs/bench/NAME.json is not measured again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python="${OGER_VENV:-.venv}/bin/python"
trl=runs/bench/trl
[ -d "$trl" ] || "$python" -m pip install --quiet --no-deps --target "$trl" trl==1.16.0 # as throughput.py says
exec "$python" scripts/bench/costs.py --trl "$trl" "$@"
