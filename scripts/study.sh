#!/usr/bin/env bash
# What each part of the method does, measured: every arm in two regimes of Countdown, with equal rollouts and updates.
#   scripts/study.sh              all arms, five seeds
#   SEEDS="0 1" ARMS="grpo oger" REGIMES=beyond_reach scripts/study.sh
#   scripts/study.sh steps        the arms of rewards for steps, in regimes of their own
#   scripts/study.sh rivals       what may do as well as teachers: block A of docs/study/registered.md
#   scripts/study.sh solutions    problems with several solutions: block B
#   scripts/study.sh confirm      the best of its arms, for longer and with two policies
#   scripts/study.sh fair         rewards for steps by a PRM that knows the policy's own: block E
#   scripts/study.sh text         word problems for a language model: block C. BASE names it or its folder
# Call it again to continue: what is in $STUDY_DIR/results.jsonl is not run again (docs/study/ has the runs so far:
# results.jsonl, and the files that are named after the others). Writes study.md and study.png there.
# A run takes 2 to 15 minutes of one core; several processes with other SEEDS or REGIMES may share a STUDY_DIR, each
# with its share of the cores (OMP_NUM_THREADS).
# A run that fails is a line of results.jsonl, too, with its exit status, and the others go on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

study="${1:-${STUDY:-parts}}"
BEYOND_ARMS="" WITHIN_ARMS="" # of ARMS those that a kind of regime has; empty: all
case "$study" in
parts)
    SEEDS="${SEEDS:-0 1 2 3 4}" start_seed=0
    STUDY_DIR="${STUDY_DIR:-runs/study}"
    report=oger_recipe.lab.study
    REGIMES="${REGIMES:-beyond_reach within_reach}"
    ARMS="${ARMS:-sft grpo luffy paper oger no_bonus no_entropy one_teacher random wrong_first clip}"
    WITHIN_ARMS="grpo luffy oger" # the regime that the method is not for
    ;;
rivals)
    SEEDS="${SEEDS:-10 11 12 13 14}" start_seed=10 # none of the first study's
    STUDY_DIR="${STUDY_DIR:-runs/study_rivals}"
    report=oger_recipe.lab.study_registered
    REGIMES="${REGIMES:-rivals_within_reach rivals_beyond_reach}"
    with_teachers="luffy oger chord hpt luffy_clip luffy_low oger_clip oger_low"
    BEYOND_ARMS="sft_grpo $with_teachers"
    WITHIN_ARMS="grpo grpo_kl grpo_entropy grpo_low grpo_unclipped $with_teachers"
    ARMS="${ARMS:-grpo grpo_kl grpo_entropy grpo_low grpo_unclipped sft_grpo $with_teachers}"
    ;;
solutions)
    SEEDS="${SEEDS:-20 21}" start_seed=20
    STUDY_DIR="${STUDY_DIR:-runs/study_solutions}"
    report=oger_recipe.lab.study_solutions
    REGIMES="${REGIMES:-many_solutions}"
    ARMS="${ARMS:-grpo grpo_low grpo_kl maxrl uniqueness darling luffy_same luffy oger oger_rank}"
    ;;
confirm)
    SEEDS="${SEEDS:-30 31 32 33 34 35 36 37 38 39}" start_seed=30
    STUDY_DIR="${STUDY_DIR:-runs/study_confirm}"
    report=oger_recipe.lab.study_solutions
    REGIMES="${REGIMES:-many_solutions many_solutions_other}"
    ARMS="${ARMS:-grpo_low luffy luffy_low}"
    longer="--oger.total_training_steps 100 --train.num_episodes 2 --eval.steps 20" # 60 steps see every problem once
    ;;
text)
    SEEDS="${SEEDS:-40 41 42 43}" start_seed=40
    STUDY_DIR="${STUDY_DIR:-runs/study_text}"
    report=oger_recipe.lab.study_registered
    REGIMES=word_problems
    ARMS="${ARMS:-grpo luffy luffy_one oger self_distillation}"
    BASE="${BASE:-HuggingFaceTB/SmolLM2-135M-Instruct}"
    ;;
fair)
    SEEDS="${SEEDS:-50 51 52 53 54}" start_seed=50
    STUDY_DIR="${STUDY_DIR:-runs/study_fair}"
    report=oger_recipe.lab.study_registered
    REGIMES="${REGIMES:-fair_steps_beyond_reach fair_steps_within_reach}"
    ARMS="${ARMS:-outcome min_outcome ahead_outcome sum_outcome appo_rule appo_outcome tppo_rule tppo_outcome}"
    # The base of the PRM has learnt problems of both kinds; registered.md has how its size is chosen.
    prm_base=(--oger.task.hidden_size 96 --oger.task.num_layers 3 --oger.task.warm_start_numbers "3=0.5" "4=0.5"
        --oger.task.max_number 20 --oger.task.warm_start_steps 2000 --oger.task.warm_start_problems 5000)
    prm_training=(--learning_rate 1e-3 --batch_size 64 --micro_batch_size 64 --max_length 256)
    ;;
steps)
    SEEDS="${SEEDS:-1 2 3 4 5}" start_seed=1 # sizes were chosen on seed 0
    STUDY_DIR="${STUDY_DIR:-runs/study_steps}"
    report=oger_recipe.lab.study_steps
    REGIMES="${REGIMES:-steps_beyond_reach steps_within_reach}"
    ARMS="${ARMS:-outcome min_outcome ahead_outcome min sum appo tppo \
        min_outcome_exact ahead_outcome_exact sum_exact ahead_outcome_bad sum_bad}"
    ;;
*)
    echo "study: $study is none of parts, steps, rivals, solutions, confirm, text and fair" >&2
    exit 2
    ;;
esac

bash scripts/setup.sh --cpu
python="${OGER_VENV:-.venv}/bin/python"
mkdir -p "$STUDY_DIR"
rule='--oger.reward.sources=[{"name":"rule","kind":"verifier"}]' # alone
prm=countdown-prm
[[ $study != fair ]] || prm="$STUDY_DIR/prm/model"

arm_flags() {
    local alone="--oger.max_replace_num 0" clipped="--no-oger.loss_remove_clip"
    local grpo="$alone --oger.bonus_weight 0"
    local teachers="--oger.replace_mode random --oger.advantage_baseline group" bonus=""
    if [[ $study == solutions || $study == confirm || $study == text ]]; then # all arms are clipped: block A shows why
        teachers+=" $clipped" bonus="$clipped"
    fi
    # As many trajectories as 40 steps let in.
    local sft="--oger.sft.epochs 1 --oger.sft.max_samples 1280 --oger.sft.batch_size 8 --oger.sft.micro_batch_size 8"
    case "$1" in
    start) # the policy that all arms start from
        [[ $study != text ]] || grpo+=" --actor.model_name_or_path $BASE --oger.sft.epochs 1 --oger.sft.max_samples 1000 \
            --oger.sft.lr 1e-4 --oger.sft.batch_size 16 --oger.sft.micro_batch_size 16"
        [[ $study != fair ]] || grpo+=" $rule" # asks no PRM
        echo "$grpo --oger.total_training_steps 0"
        ;;
    sft) echo "$grpo $sft --oger.sft.lr 1e-3 --oger.total_training_steps 0" ;;
    grpo) [[ $study == parts ]] && echo "$grpo" || echo "$grpo $clipped" ;; # the first study's is not clipped
    grpo_unclipped) echo "$grpo" ;;
    grpo_kl) echo "$grpo $clipped --algo.kl.use_loss --algo.kl.init_coef 0.04 --algo.kl.estimator k3" ;;
    grpo_entropy) echo "$grpo $clipped --actor.entropy_coef 0.01" ;;
    grpo_low) echo "$grpo $clipped --actor.adam.lr 1e-4" ;;
    grpo_lower) echo "$grpo $clipped --actor.adam.lr 7e-5" ;; # of block B, continued: ask for it with ARMS
    sft_grpo) echo "$grpo $clipped $sft --oger.sft.lr 1e-3" ;;
    chord) # configs/chord.yaml, its schedule shortened to 40 steps
        echo "--oger.bonus_weight 0 --oger.replace_mode random --oger.off_policy_loss sft $clipped" \
            "--oger.sft_token_weight p_times_1mp --oger.sft_loss_mixture --oger.sft_loss_coef 0.5" \
            "--oger.sft_loss_schedule cosine --oger.sft_loss_coef_end 0.02 --oger.sft_loss_warmup_steps 7" \
            "--oger.sft_loss_schedule_steps 27 --oger.loss_aggregation token_mean --algo.advantage.estimator group_norm"
        ;;
    hpt) # configs/hpt.yaml
        echo "--oger.bonus_weight 0 --oger.replace_mode random --oger.teacher_gate 0 --oger.taught_group teachers" \
            "--oger.off_policy_reshape logp --oger.off_policy_reshape_weight 1 --oger.use_sft_prefix_reward" \
            "--oger.sft_prefix_reward_weight 8 --oger.advantage_baseline group"
        ;;
    luffy) echo "--oger.bonus_weight 0 $teachers" ;;
    luffy_clip) echo "--oger.bonus_weight 0 $teachers $clipped" ;;
    luffy_low) echo "--oger.bonus_weight 0 $teachers $clipped --actor.adam.lr 1e-4" ;;
    oger_clip) echo "$clipped" ;;
    oger_low) echo "$clipped --actor.adam.lr 1e-4" ;;
    luffy_one) echo "--oger.bonus_weight 0 $teachers --oger.teacher_sources forward" ;;
    self_distillation) # configs/self_distillation.yaml without its adapter
        echo "$grpo $clipped --oger.grader initial --oger.prefix_reward_weight_beta 0 --oger.advantage_baseline group" \
            "--oger.loss_aggregation token_mean --algo.advantage.estimator reinforce"
        ;;
    luffy_same) echo "--oger.bonus_weight 0 $teachers --oger.task.teacher_solutions same" ;;
    maxrl) echo "$grpo $clipped --algo.advantage.estimator max_rl" ;;
    uniqueness) echo "$alone $clipped $(rare '"weight":0.25')" ;; # configs/uniqueness.yaml
    darling) echo "$alone $clipped $(rare '"form":"distinct","combine":"mul"')" ;;
    oger_rank) echo "$bonus --oger.similarity_shaping group_rank --oger.last_token_enp_reward none" ;;
    paper) echo "--oger.advantage_baseline group" ;;
    oger) echo "$bonus" ;;
    no_bonus) echo "--oger.bonus_weight 0" ;;
    no_entropy) echo "--oger.last_token_enp_reward none" ;;
    one_teacher) echo "--oger.teacher_sources forward" ;;
    random) echo "--oger.replace_mode random" ;;
    wrong_first) echo "--oger.replace_mode wrong_first_similarity_mean_des" ;;
    clip) echo "--oger.all_correct_group clip" ;;
    outcome) of_steps 0 "$prm" sum 1 ;;
    min_outcome) of_steps 1 "$prm" min 1 ;;
    ahead_outcome) of_steps 1 "$prm" min_ahead 1 ;;
    sum_outcome) of_steps 1 "$prm" sum 1 ;;
    min) of_steps 1 "$prm" min 0 ;;
    sum) of_steps 1 "$prm" sum 0 ;;
    appo) valued_steps appo step 1 0 ;;
    tppo) valued_steps tppo token 1 0 ;;
    appo_rule) valued_steps appo step 0 1 ;;
    appo_outcome) valued_steps appo step 1 1 ;;
    tppo_rule) valued_steps tppo token 0 1 ;;
    tppo_outcome) valued_steps tppo token 1 1 ;;
    min_outcome_exact) of_steps 1 exact min 1 ;;
    ahead_outcome_exact) of_steps 1 exact min_ahead 1 ;;
    sum_exact) of_steps 1 exact sum 0 ;;
    ahead_outcome_bad) of_steps 1 countdown-prm-bad min_ahead 1 ;;
    sum_bad) of_steps 1 countdown-prm-bad sum 0 ;;
    *)
        echo "study: unknown arm $1" >&2
        return 2
        ;;
    esac
}

rare() { # the keys of a second source, which pays right rollouts for a class that few of their group have
    echo "--oger.reward.sources=[{\"name\":\"rule\",\"kind\":\"verifier\"},{\"name\":\"rare\",\"kind\":\"uniqueness\",$1}]"
}

train() { # its flags; a signal that ends this script ends the run, too
    setpriv --pdeathsig TERM "$python" -m oger_recipe.cli.train "$@"
}

make_prm() { # for block E, of rollouts that arithmetic labels: seed 4 evaluates what seeds 0 to 3 teach
    local regime seed folder recipe made
    for regime in fair_steps_beyond_reach fair_steps_within_reach; do
        recipe="configs/study/$regime.yaml"
        for seed in 0 1 2 3 4; do
            folder="$STUDY_DIR/prm/$regime/$seed"
            [[ ! -f $folder.labels.jsonl ]] || continue
            train --recipe "$recipe" --oger.run_dir "$folder" --train.seed "$seed" --overwrite \
                --algo.advantage.estimator rloo "$rule" --no-oger.val_after_train --eval.steps -1
            cat "$folder"/samples/*.jsonl >"$folder.rollouts.jsonl"
            "$python" -m oger_recipe.cli.main prm label --by countdown --recipe "$recipe" \
                --responses "$folder.rollouts.jsonl" --out "$folder.labels.jsonl"
        done
    done
    [[ -d $STUDY_DIR/prm/base/model ]] || train --recipe configs/study/fair_steps_beyond_reach.yaml \
        --oger.run_dir "$STUDY_DIR/prm/base" --overwrite "${prm_base[@]}" --oger.total_training_steps 0 --ckpt.save_hf "$rule"
    [[ -d $prm ]] || "$python" -m oger_recipe.cli.main prm train --model "$STUDY_DIR/prm/base/model" --format trl --out "$prm" \
        --data "$STUDY_DIR"/prm/*/[0-3].labels.jsonl "${prm_training[@]}"
    for regime in fair_steps_beyond_reach fair_steps_within_reach; do
        made="$STUDY_DIR/prm/$regime.json"
        [[ -f $made ]] || "$python" -m oger_recipe.cli.main prm eval --prm "{model: $prm, format: trl, place: in_process}" \
            --data "$STUDY_DIR/prm/$regime/4.labels.jsonl" --out "$made"
    done
}

# Every arm asks, so that all can be compared in what is said; a weight of 0 counts for nothing.
sources() { # weight, who scores steps, scale, credit, weight of the rule
    local prm='"name":"prm"'
    prm+=",\"scale\":\"$3\",\"credit\":\"$4\",\"weight\":$1"
    if [[ $2 == exact ]]; then
        prm+=',"kind":"oger_recipe.lab.exact_steps:ExactSteps"'
    else
        prm+=",\"kind\":\"process\",\"place\":\"process\",\"format\":\"trl\",\"model\":\"$2\""
    fi
    echo "--oger.reward.sources=[{$prm},{\"name\":\"rule\",\"kind\":\"verifier\",\"weight\":$5}]"
}

of_steps() { # PURE: weight, who scores steps, credit, weight of the rule
    echo "--algo.advantage.estimator process_rloo $(sources "$1" "$2" difference "$3" "$4")"
}

valued_steps() { # OpenR: estimator, what has a ratio, weight of the PRM and of the rule
    echo "--algo.advantage.estimator $1 --oger.ratio_level $2 --algo.advantage.gamma 0.95 --algo.advantage.lambd 0.95" \
        "--oger.loss_aggregation token_mean --oger.critic.hidden_sizes 64 --oger.critic.huber_delta 10" \
        "$(sources "$3" "$prm" probability sum "$4")"
}

run_arm() { # regime arm seed
    local folder="$STUDY_DIR/$1/$2/$3" flags code=0 began
    began=$(date +%s)
    flags=$(arm_flags "$2")
    if [[ $study == text ]]; then
        flags="--data.prompt_dataset $STUDY_DIR/data/train.jsonl --eval.dataset $STUDY_DIR/data/held_out.jsonl $flags"
        [[ $2 == start ]] || flags+=" --actor.model_name_or_path $STUDY_DIR/$1/start/$start_seed/supervised_model"
    fi
    [[ $study != confirm || $2 == start ]] || flags="$longer $flags"
    echo "study: $1, $2, seed $3"
    # With --overwrite a run that was interrupted begins anew, once it is clear that it can.
    # shellcheck disable=SC2086 # several flags
    train --recipe "configs/study/$1.yaml" --oger.run_dir "$folder" --train.seed "$3" \
        --overwrite $flags || code=$?
    if ((code == 0)); then
        "$python" -m "$report" has "$STUDY_DIR" "$@" || "$python" -m "$report" add "$STUDY_DIR" "$@"
    elif ((code == 1)) && [[ $(find "$folder" -maxdepth 1 -name metrics.jsonl -newermt "@$began") ]]; then
        "$python" -m "$report" failed "$STUDY_DIR" "$@" "$code"
    else
        exit "$code" # it was stopped, or could not begin
    fi
}

is_there() { # regime arm seed: its line, and of block C's start the policy, which another machine's line lacks
    "$python" -m "$report" has "$STUDY_DIR" "$@" &&
        [[ $study != text || $2 != start || -d "$STUDY_DIR/$1/start/$3/supervised_model" ]]
}

planned=()
for seed in $SEEDS; do
    for regime in $REGIMES; do
        arms="${BEYOND_ARMS:-$ARMS}"
        [[ $regime != *within_reach ]] || arms="${WITHIN_ARMS:-$ARMS}"
        [[ $seed != "$start_seed" ]] || planned+=("$regime start $seed")
        for arm in $ARMS; do
            [[ " $arms " != *" $arm "* ]] || planned+=("$regime $arm $seed")
        done
    done
done
[[ $study != fair ]] || make_prm
[[ $study != text || -d "$STUDY_DIR/data" ]] || "$python" -m oger_recipe.lab.word_problems "$STUDY_DIR/data"
made=0 left=${#planned[@]}
for each in "${planned[@]}"; do
    read -r -a run <<<"$each"
    left=$((left - 1))
    ! is_there "${run[@]}" || continue
    run_arm "${run[@]}"
    made=$((made + 1))
    minutes=$((SECONDS * left / made / 60))
    echo "study: $left runs are left, at most $((minutes / 60)) h $((minutes % 60)) min"
done
"$python" -m "$report" table "$STUDY_DIR"
