#!/usr/bin/env bash
# Trains by a recipe file on this machine; further flags go to `oger train`:
#   scripts/train_oger.sh configs/oger_paper.yaml --oger.run_dir runs/first
#   MODEL=models/qwen DATA=teachers.parquet VAL=valid.parquet scripts/train_oger.sh configs/luffy.yaml
#   scripts/train_oger.sh configs/oger_paper_cpu.yaml          the same method on a machine without GPUs
set -euo pipefail

MODEL="${MODEL:-}" # policy to start from: folder or Hub name (default: the recipe's)
DATA="${DATA:-}"   # prompts and teacher trajectories: file, saved folder or Hub dataset (default: the recipe's)
VAL="${VAL:-}"     # evaluation set: the same, or benchmarks by name, aime24,math500 (default: the recipe's)

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ $# -eq 0 || "$1" == -* ]]; then
    sed -n 2,5p "${BASH_SOURCE[0]}" >&2
    exit 2
fi

bin="${OGER_VENV:-.venv}/bin"
[[ -x "$bin/oger" ]] || bash scripts/setup.sh

command=("$bin/oger" train --recipe "$1")
shift
[[ -z "$MODEL" ]] || command+=(--actor.model_name_or_path "$MODEL")
[[ -z "$DATA" ]] || command+=(--data.prompt_dataset "$DATA")
[[ -z "$VAL" ]] || command+=(--eval.dataset "$VAL")
command+=("$@") # last, so that they win
printf 'train_oger:%s\n' "$(printf ' %q' "${command[@]}")"
exec "${command[@]}"
