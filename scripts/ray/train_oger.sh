#!/usr/bin/env bash
# Trains by a recipe file over several nodes, where a launcher starts the same command on each (a PyTorchJob, say) and sets
# NODE_RANK, NNODES and MASTER_ADDR:
#   NODE_RANK=0 NNODES=2 MASTER_ADDR=10.0.0.1 scripts/ray/train_oger.sh configs/oger_paper.yaml [flags of oger train]
# Node 0 starts Ray, waits for the others and runs `oger train`; the others join, and exit with its code when it has ended.
# Python environment, models, data and run folder have to lie where every node sees them, at the same paths.
# Ray asks for a token: RAY_AUTH_TOKEN where every node has the same one, else node 0 makes one in TOKEN_FILE.
# The first SIGTERM of node 0 goes to the run; the other nodes wait for its end, and leave at once at a second one.
set -euo pipefail

NODE_RANK="${NODE_RANK:-${PET_NODE_RANK:-0}}"
NNODES="${NNODES:-${NODE_COUNT:-${PET_NNODES:-1}}}"
gpus_are_said="${GPUS_PER_NODE:-}${TENSOR_PARALLEL:-}"
GPUS_PER_NODE="${GPUS_PER_NODE:-8}"
CPUS_PER_NODE="${CPUS_PER_NODE:-$(nproc)}"       # what Ray may hand out on a node
TENSOR_PARALLEL="${TENSOR_PARALLEL:-}"           # GPUs of one vLLM engine, where not as in the recipe
RAY_PORT="${RAY_PORT:-${MASTER_PORT:-6379}}"     # free on node 0
HEAD_ADDRESS="${HEAD_ADDRESS:-}"                 # of node 0, where MASTER_ADDR is another
NODE_ADDRESS="${NODE_ADDRESS:-}"                 # of this node, where Ray finds another
JOIN_SECONDS="${JOIN_SECONDS:-600}"              # longest wait for all nodes
export OGER_WORKING_DIR="${OGER_WORKING_DIR:-}"  # node 0's folder of own modules, for nodes that do not see it; Ray copies it
export OGER_EXCLUDES="${OGER_EXCLUDES:-}"        # what Ray leaves out of it: patterns as in .gitignore, apart by commas

usage="usage: NODE_RANK=0 NNODES=2 MASTER_ADDR=10.0.0.1 scripts/ray/train_oger.sh RECIPE.yaml [flags of oger train]"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ $# -eq 0 || "$1" == -* ]]; then
    echo "$usage" >&2
    exit 2
fi
die() {
    echo "train_oger: node $NODE_RANK: $*" >&2
    exit 1
}
[[ "$NNODES" =~ ^[1-9][0-9]*$ ]] || die "NNODES is $NNODES, not a number of nodes"
[[ "$NODE_RANK" =~ ^[0-9]+$ && "$NODE_RANK" -lt "$NNODES" ]] ||
    die "NODE_RANK is $NODE_RANK; the $NNODES nodes are 0 to $((NNODES - 1))"
recipe="$1"
shift
recipe_name="$(basename "$recipe")"
RUN_DIR="${RUN_DIR:-$PWD/runs/${recipe_name%.*}}"
export OGER_VENV="${OGER_VENV:-$PWD/.venv}"
python="$OGER_VENV/bin/python"
machine=(--oger.run_dir "$RUN_DIR")
spread() { # flags of oger train...; puts the recipe onto the nodes' GPUs
    local shape
    shape="$("$python" scripts/machine_flags.py "$NNODES" "$GPUS_PER_NODE" "$TENSOR_PARALLEL" "$recipe" "$@")"
    [[ -z "$shape" ]] || mapfile -t -O 2 machine <<<"$shape"
}
if ((NNODES == 1)); then # a Ray of its own, on loopback
    [[ -z "$gpus_are_said" ]] || spread "$@"
    exec bash scripts/train_oger.sh "$recipe" "${machine[@]}" "$@"
fi

[[ -n "${HEAD_ADDRESS:=${MASTER_ADDR:-}}" ]] || die "MASTER_ADDR, the address of node 0, is not set"
if ((NODE_RANK == 0)) && [[ "$HEAD_ADDRESS" == localhost || "$HEAD_ADDRESS" == 127.0.0.1 ]]; then
    HEAD_ADDRESS="$(hostname --ip-address)" # some launchers call node 0 so on itself
fi
HEAD_ADDRESS="$(getent ahosts "${HEAD_ADDRESS%% *}" | awk '{ print $1; exit }')"
[[ -n "$HEAD_ADDRESS" ]] || die "MASTER_ADDR ${MASTER_ADDR:-} has no address"
# They are the launcher's. Libraries in Ray's workers must not take them for theirs.
unset MASTER_ADDR MASTER_PORT RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE

export RAY_ADDRESS="$HEAD_ADDRESS:$RAY_PORT" RAY_USAGE_STATS_ENABLED=0
export RAY_process_group_cleanup_enabled=true # what a worker has started ends with it
# Whoever reaches Ray's ports could run anything as this user. Command lines, which other users see, have no token.
TOKEN_FILE="${TOKEN_FILE:-$RUN_DIR.ray-token}"
export RAY_AUTH_MODE=token
mkdir -p "$(dirname "$TOKEN_FILE")" "${RAY_TMPDIR:-/tmp}"
temporary="$(mktemp -d "${RAY_TMPDIR:-/tmp}/oger-XXXXXX")" # Ray's sockets and logs; a short path
resources=(--num-gpus="$GPUS_PER_NODE" --num-cpus="$CPUS_PER_NODE" --node-name="rank-$NODE_RANK" --temp-dir="$temporary")
[[ -z "$NODE_ADDRESS" ]] || resources+=(--node-ip-address="$NODE_ADDRESS")

set -m # each child in a process group of its own: Ctrl-C reaches this script alone
ray="" other=""
clean_up() {
    local code=$?
    trap - EXIT
    trap '' INT TERM USR1
    if ((NODE_RANK == 0)) && [[ -n "$ray" ]]; then
        timeout 60 "$python" -m oger_recipe.pipeline.driver.nodes ended "$code" 2>/dev/null || true # to the other nodes
        [[ -z "$made_token" ]] || rm -f "$TOKEN_FILE"
    fi
    for child in $other $ray; do kill "$child" 2>/dev/null || true; done
    wait 2>/dev/null
    # Ends what is left of Ray, and keeps the logs of the actors that ran here; those of node 0 the run itself keeps.
    logs=()
    if ((NODE_RANK > 0)) && [[ -d "$RUN_DIR/logs" ]]; then
        logs=("$RUN_DIR/logs/rank-$NODE_RANK")
        mkdir -p "${logs[@]}"
    fi
    "$python" -m oger_recipe.pipeline.driver.watcher "$temporary" "${logs[@]}" </dev/null || true
    exit "$code"
}
trap clean_up EXIT
# wait_for child...: until one of them has ended, whatever signals come (their traps set heard); returns its code
wait_for() {
    local code
    while heard="" code=0; wait -n "$@" 2>/dev/null || code=$?; [[ -n "$heard" ]]; do :; done
    return "$code"
}

if ((NODE_RANK > 0)); then
    trap 'exit 143' INT TERM
    trap heard=yes USR1 # it is for node 0
    until timeout 5 bash -c "</dev/tcp/$HEAD_ADDRESS/$RAY_PORT" 2>/dev/null; do
        ((SECONDS < JOIN_SECONDS)) || die "nobody answers at node 0, $RAY_ADDRESS, within $JOIN_SECONDS s"
        sleep "${POLL_SECONDS:-2}"
    done
    until [[ -n "${RAY_AUTH_TOKEN:-}" ]]; do
        ((SECONDS < JOIN_SECONDS)) || die "no token within $JOIN_SECONDS s: set RAY_AUTH_TOKEN to the same secret on" \
            "every node, or TOKEN_FILE (now $TOKEN_FILE) to a path that all of them see"
        RAY_AUTH_TOKEN="$(cat "$TOKEN_FILE" 2>/dev/null)" || sleep "${POLL_SECONDS:-2}"
    done
    export RAY_AUTH_TOKEN
    "$OGER_VENV/bin/ray" start --address="$RAY_ADDRESS" "${resources[@]}" --block &
    ray=$!
    "$python" -m oger_recipe.pipeline.driver.nodes follow &
    other=$!
    again=""
    trap '[[ -z "$again" ]] || exit 143
        heard=yes again=yes
        echo "train_oger: node $NODE_RANK: leaves when the run has ended; a second signal ends it at once" >&2' INT TERM
    code=0
    wait_for "$ray" "$other" || code=$?
    kill -0 "$ray" 2>/dev/null || die "Ray ended before the run did; its messages are above"
    exit "$code"
fi

spread "$@"
made_token=""
if [[ -z "${RAY_AUTH_TOKEN:-}" ]]; then
    RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
    export RAY_AUTH_TOKEN
    made_token="$(umask 077 && mktemp "$TOKEN_FILE.XXXXXX")"
    printf '%s' "$RAY_AUTH_TOKEN" >"$made_token"
    mv -f "$made_token" "$TOKEN_FILE"
fi
echo "train_oger: Ray at $RAY_ADDRESS waits for $NNODES nodes"
[[ -n "$NODE_ADDRESS" ]] || resources+=(--node-ip-address="$HEAD_ADDRESS")
"$OGER_VENV/bin/ray" start --head --port="$RAY_PORT" --include-dashboard=false "${resources[@]}" --block &
ray=$!
trap 'exit 143' INT TERM
trap 'echo "train_oger: SIGUSR1, and nothing is trained yet" >&2; exit 138' USR1
"$python" -m oger_recipe.pipeline.driver.nodes joined "$NNODES" "$JOIN_SECONDS" &
other=$!
wait_for "$ray" "$other" || die "not every node joined; the messages are above"
kill -0 "$ray" 2>/dev/null || die "Ray ended; its messages are above"
echo "train_oger: $NNODES nodes joined"

bash scripts/train_oger.sh "$recipe" "${machine[@]}" "$@" &
other=$!
for name in INT TERM USR1; do
    # shellcheck disable=SC2064 # the name of now
    trap "heard=yes; kill -$name $other 2>/dev/null || true" "$name"
done
wait_for "$other"
