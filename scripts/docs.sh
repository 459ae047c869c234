#!/usr/bin/env bash
# Builds the documentation site into build/site and checks every link and anchor: a warning is an error.
#   bash scripts/docs.sh [FOLDER]    then open build/site/index.html; no server is needed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh --cpu
exec "${OGER_VENV:-.venv}/bin/python" -m sphinx -E -q -W --keep-going -j auto -c scripts/site . "${1:-build/site}"
