#!/usr/bin/env bash
# Kills, stops and interrupts the parts of a small run again and again, and checks that every attempt ends with one
# sentence, leaves nothing behind, and that the next attempt resumes the same run.
#   bash scripts/chaos.sh                      every trial: more than a hundred, each about 45 seconds of two cores
#   bash scripts/chaos.sh --minutes 20         as many as fit; call it again to continue; --minutes 0 makes one
#   bash scripts/chaos.sh --trial 37           one trial again, in a run of its own; with the --seed that drew it
#   bash scripts/chaos.sh --minutes 20 --twice   as .ci/run does: each trial with a miss again, alone. It fails on what
#                                              misses twice; at once on what is left behind or resumed inexactly
#   bash scripts/chaos.sh --table docs/survival.md   write the table of all trials so far
# Results go to runs/chaos/trials.jsonl (--out chooses another folder). The exit code is 1 if a trial went wrong.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${OGER_VENV:-.venv}/bin/python" scripts/chaos/chaos.py "$@"
