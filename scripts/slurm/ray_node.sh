#!/usr/bin/env bash
# Ray on one node of a SLURM job, for train_oger.sbatch:
#   scripts/slurm/ray_node.sh FOLDER LOGS [words of ray start]
# Ray keeps its files in FOLDER. SIGUSR2 ends it: then its processes and FOLDER are gone, and its workers' logs are in LOGS, unless
# that is empty. SIGTERM does not end it: before SLURM preempts a job, it sends SIGTERM to the job's steps and not to its script,
# and the run needs Ray for its last checkpoint. The first node's step tells the script, whose process BATCH_PID is.
# shellcheck disable=SC2329 # a trap calls the function
set -u
folder="$1" logs="$2"
shift 2
ray="" is_over=""
# What `ray start` has started ends with it.
end_ray() {
    is_over=yes
    [[ -z "$ray" ]] || kill -KILL "$ray" 2>/dev/null
}
trap end_ray USR2
trap '[[ -z "${BATCH_PID:-}" ]] || kill -TERM "$BATCH_PID"' TERM

rm -rf "$folder" # an earlier start of this job was killed
mkdir -m 700 "$folder" || exit 1
export TMPDIR="$folder" # for vLLM's sockets
# Depending on the site, SLURM signals this script alone or Ray's processes as well. They would end themselves.
without_term='import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.execv(sys.argv[1], sys.argv[1:])'
"$OGER_VENV/bin/python" -c "$without_term" "$OGER_VENV/bin/ray" start "$@" --temp-dir="$folder" --block &
ray=$!
[[ -z "$is_over" ]] || end_ray
while code=0; wait "$ray" || code=$?; kill -0 "$ray" 2>/dev/null; do :; done # a signal ends the waiting
[[ -z "$logs" ]] || mkdir "$logs" 2>/dev/null
[[ -d "$logs" ]] || logs="" # the run has no folder
"$OGER_VENV/bin/python" -m oger_recipe.pipeline.driver.watcher "$folder" ${logs:+"$logs"} </dev/null
[[ -n "$is_over" ]] || exit "$code"
