#!/usr/bin/env bash
# The first hour on a GPU, in about ten minutes: whether it computes, samples and trains what a CPU does. One line a check, and
# gpu_check.json to attach to an issue. Flags go to `oger doctor --gpu`, for example: bash scripts/gpu_check.sh --only packing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

exec "${OGER_VENV:-.venv}/bin/oger" doctor --gpu "$@"
