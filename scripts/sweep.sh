#!/usr/bin/env bash
# Trains once for each value of one flag and compares the runs on one page, e.g. OAT's temperature ablation:
#   scripts/sweep.sh --rollout.temperature 0.6 0.8 1.0 1.2 --recipe configs/oat_gsm8k_ppo.yaml
# What follows the values goes to every run. All values are checked before the first one is trained; one whose run fails
# does not keep the others from theirs. Call it again to continue: finished runs are kept, others go on from their last
# checkpoint. One that was trained and has none is removed only with --overwrite among the flags; finished ones stay.
# SWEEP_DIR: folder of the runs and of their page, report.html (default: runs/sweep-<flag>).
set -euo pipefail

if [[ $# -lt 2 || "$1" != --* ]]; then
    sed -n 2,7p "${BASH_SOURCE[0]}" >&2
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
overwrite=""
for word in "$@"; do
    [[ "$word" != --overwrite ]] || overwrite=yes
done

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bash "$root/scripts/setup.sh"
python="$(cd "$root" && realpath -ms -- "${OGER_VENV:-.venv}")/bin/python"
folder="$(realpath -ms -- "${SWEEP_DIR:-runs/sweep-${flag#--}}")"

run_of() { # value; its folder, in which no value leads out of the sweep's: / is %2F, and . in front is %2E
    local name="${1//%/%25}"
    name="${name//\//%2F}"
    printf '%s/%s' "$folder" "${name/#./%2E}"
}
train() { # value, flags...; a signal that ends this script ends the run, too
    local value="$1" run more=()
    shift
    run="$(run_of "$value")"
    if [[ -z "$overwrite" ]] && grep -qs '"facts"' "$run"/checkpoints/global_step*.json; then # a whole manifest
        more+=(--ckpt.load_enable)
    fi
    setpriv --pdeathsig TERM "$python" -m oger_recipe.cli.train "$@" "$flag=$value" --oger.run_dir "$run" ${more[@]+"${more[@]}"}
}

left=()
refused=""
for value in "${values[@]}"; do
    run="$(run_of "$value")"
    if [[ -z "$value" ]]; then
        echo "sweep: a value of $flag is empty" >&2
        refused=yes
    elif grep -qs '"finished": true' "$run/summary.json"; then
        echo "sweep: $flag $value is done: $run"
    elif said="$(train "$value" "$@" --dry-run 2>&1)"; then
        left+=("$value")
    else
        printf '%s\nsweep: %s %s is refused\n' "$said" "$flag" "$value" >&2
        refused=yes
    fi
done
if [[ -n "$refused" ]]; then
    echo "sweep: nothing was started" >&2
    exit 1
fi

failed=()
for value in ${left[@]+"${left[@]}"}; do
    echo "sweep: $flag $value"
    code=0
    train "$value" "$@" || code=$?
    if [[ $code =~ ^(130|143|138|75)$ ]]; then # stopped by a signal, 138 and 75 as it was asked: so is the sweep
        exit "$code"
    elif [[ $code -ne 0 ]]; then
        failed+=("$value")
    fi
done
mkdir -p "$folder"
runs=()
while IFS= read -r run; do
    if grep -qs '"finished": true' "$folder/${run}summary.json"; then
        runs+=("$folder/${run%/}")
    fi
done < <(cd "$folder" && printf '%s\n' */ | LC_ALL=C sort -g) # numbers by size
if [[ ${#runs[@]} -gt 0 ]]; then
    "$python" -m oger_recipe.cli.report "${runs[@]}" --out "$folder/report.html"
fi
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "sweep: failed: $flag ${failed[*]}; their messages are above" >&2
    exit 1
fi
