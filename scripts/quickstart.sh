#!/usr/bin/env bash
# From a fresh checkout to a trained policy on one CPU machine: installs what is missing, then runs the default recipe.
# Further flags go to `oger train`, for example: bash scripts/quickstart.sh --oger.total_training_steps 5
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh --cpu
exec "${OGER_VENV:-.venv}/bin/oger" train --recipe configs/countdown_cpu.yaml "$@"
