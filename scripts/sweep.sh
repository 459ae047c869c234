#!/usr/bin/env bash
# Trains once for each value of one flag and draws the held-out curves in one figure, e.g. OAT's temperature ablation:
#   scripts/sweep.sh --rollout.temperature 0.6 0.8 1.0 1.2 --recipe configs/oat_gsm8k_ppo.yaml
# What follows the values goes to every run. Call it again to continue: finished runs are kept.
# SWEEP_DIR: folder of the runs and of sweep.png (default: runs/sweep-<flag>).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ $# -lt 2 || "$1" != --* ]]; then
    sed -n 2,5p "${BASH_SOURCE[0]}" >&2
    exit 2
fi
flag="$1"
shift
values=()
while [[ $# -gt 0 && "$1" != --* ]]; do
    values+=("$1")
    shift
done
if [[ ${#values[@]} -eq 0 ]]; then
    echo "sweep: $flag has no values" >&2
    exit 2
fi

bash scripts/setup.sh
python="${OGER_VENV:-.venv}/bin/python"
folder="${SWEEP_DIR:-runs/sweep-${flag#--}}"
for value in "${values[@]}"; do
    run="$folder/$value"
    if grep -qs '"finished": true' "$run/summary.json"; then
        echo "sweep: $flag $value is done: $run"
        continue
    fi
    rm -rf "$run" # of a run that was interrupted
    echo "sweep: $flag $value"
    "$python" -m oger_recipe.cli.train "$@" "$flag" "$value" --oger.run_dir "$run"
done
"$python" -m oger_recipe.report.sweep "$folder" "${flag#--}"
