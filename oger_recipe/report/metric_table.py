"""What each metric of a run is: unit, meaning, rows, healthy range, and what to do outside of it.

A name may have variable parts: ``reward/{source}/failed`` is the row of ``reward/judge/failed``. docs/metrics.md
(metric_page.py), the page of a run and ``oger watch`` read this table; tests hold it against what runs write.

The limits marked "rule of thumb" come from practice and depend on the task. Every other limit is one that the recipe
itself checks, or follows from what the number is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

LEARNING, HEALTH, TEACHERS = "learning", "health", "teachers and bonus"
REWARDS, STEPS, CRITIC, TIME, DATA = "rewards", "steps of reasoning", "critic", "time", "data"
GROUPS = (LEARNING, HEALTH, TEACHERS, REWARDS, STEPS, CRITIC, TIME, DATA)

# Over which rows or tokens a metric is taken.
_ROLLOUTS = "the policy's own rollouts as sampled, before bonus and replacement"
_OWN = "trained rows without a teacher's tokens"
_TAUGHT = "trained rows with a teacher's tokens"
_TRAINED = "all trained rows, teachers' included"
_OWN_TOKENS = "tokens of rollouts that are trained (steps of reasoning under oger.ratio_level step)"
_SAMPLED_TOKENS = "tokens that the policy itself sampled, in trained rows"
_TEACHER_TOKENS = "teachers' tokens"
_TRAINED_TOKENS = "response tokens of all trained rows, teachers' included"
_VALUED = "response tokens (first tokens of steps where steps are valued)"
_ANSWERS = "all answers of the evaluation"
_STEP = "the training step"


@dataclass(frozen=True)
class Metric:
    """A row of the table. title: heading of a chart; healthy: lowest and highest value, None: open to that side;
    advice: what to do outside of it."""

    name: str
    group: str
    title: str
    unit: str
    rows: str
    meaning: str
    healthy: tuple[float | None, float | None] | None = None
    healthy_text: str = ""
    advice: str = ""


_M = Metric

TABLE: tuple[Metric, ...] = (
    # ---- learning
    _M("eval_{benchmark}_avg_at_{n}", LEARNING, "avg@n, held out", "share", _ANSWERS,
       "Share of right answers among n samples of each problem, averaged over the problems. Of one benchmark; "
       "benchmark average is the mean over all of them.",
       advice="No rise while rollout/solve_rate rises: the policy learns what does not generalize. Look for a reward "
       "that pays for something else (oger/held_out_fall)."),
    _M("eval_{benchmark}_pass_at_{k}", LEARNING, "pass@k, held out", "share", _ANSWERS,
       "Unbiased estimate of the chance that at least one of k samples is right. For k = n it shows what the policy "
       "can reach at all.",
       advice="A fall while avg@n rises means that the policy gets narrower: a lower actor.adam.lr, PPO's "
       "clipping (--no-oger.loss_remove_clip) or a KL term (algo.kl) keeps more, docs/study/README.md."),
    _M("eval_{benchmark}_maj_at_{k}", LEARNING, "maj@k, held out", "share", _ANSWERS,
       "Share of problems whose most frequent answer among k samples is right; ties count in parts. Missing where "
       "right answers come without an extracted form."),
    _M("eval_{benchmark}_distinct_at_{k}", LEARNING, "distinct@k, held out", "solutions", _ANSWERS,
       "Unbiased estimate of how many different right solutions k samples of a problem have. Only where the verifier "
       "says the class of every right answer, as Countdown's does, and at least one is right.",
       advice="A fall while avg@n rises means that the policy keeps one solution of each problem: the source "
       "uniqueness pays for others."),
    _M("eval_{benchmark}_problems", LEARNING, "problems evaluated", "problems", _ANSWERS,
       "Number of problems of the benchmark; the average has their sum."),
    _M("eval_{benchmark}_n", LEARNING, "samples a problem", "samples", _ANSWERS,
       "Answers sampled for each problem."),
    _M("eval_{benchmark}_response_length", LEARNING, "answer length, held out", "tokens", _ANSWERS,
       "Mean length of the answers."),
    _M("eval_{benchmark}_truncated", LEARNING, "truncated, held out", "share", _ANSWERS,
       "Share of answers that were cut at the longest allowed length.", (None, 0.1), "rule of thumb: below 0.1",
       "Raise oger.eval.max_new_tokens: a truncated answer counts as wrong."),
    _M("eval_{benchmark}_format", LEARNING, "answer found, held out", "share", _ANSWERS,
       "Share of answers in which the verifier finds an answer in the form that it reads.", (0.9, None),
       "rule of thumb: above 0.9", "Read eval/: a wrong prompt template is the usual reason."),
    _M("eval_{benchmark}_ungraded", LEARNING, "not graded, held out", "answers", _ANSWERS,
       "Answers whose grader failed; they count as wrong.", (None, 0.0), "0",
       "Read the reasons in eval/ and in reward_errors.jsonl."),
    _M("eval_{benchmark}_no_room", LEARNING, "prompts without room, held out", "problems", _ANSWERS,
       "Problems whose prompt leaves no room for an answer; they count as wrong.", (None, 0.0), "0",
       "Raise data.max_len, or leave these problems out."),
    _M("rollout/solve_rate", LEARNING, "solved", "share", _ROLLOUTS,
       "Share of rollouts that are right.", (0.05, 0.95),
       "rule of thumb: 0.05 to 0.95; outside hardly any group holds right and wrong rollouts, and there is little to "
       "compare",
       "Too low: easier problems, a warm start (oger.sft.epochs), teachers. Too high: harder problems. A fall far "
       "below its best is a collapse (solve_rate_lost): the newest checkpoint from before it is kept; "
       "resume from that with a lower actor.adam.lr."),
    _M("rollout/solve_all", LEARNING, "groups all right", "share", "prompts",
       "Share of groups whose own rollouts are all right. Without a bonus or another source that tells them apart "
       "these groups teach nothing.", (None, 0.8), "rule of thumb: below 0.8", "Harder problems, or leave solved "
       "ones out."),
    _M("rollout/solve_none", LEARNING, "groups all wrong", "share", "prompts",
       "Share of groups without a right rollout of their own. Only a teacher, or a source that tells wrong answers "
       "apart, gives these groups something to learn.", (None, 0.8), "rule of thumb: below 0.8",
       "Easier problems, more rollouts a prompt, teachers, or a warm start."),
    _M("rollout/reward", LEARNING, "verified reward", "reward", _ROLLOUTS,
       "Mean reward by the verifier alone: no bonus, no judges."),
    _M("oger/on_reward", LEARNING, "trained reward", "reward", _OWN,
       "Mean reward that is trained on, with bonus and all sources.",
       advice="A rise while held-out scores fall means that the policy pleases a source: see oger/held_out_fall."),
    _M("oger/on_score", LEARNING, "solved, trained rows", "share", _OWN,
       "Share of right rows. It differs from rollout/solve_rate by the rollouts that made room for a teacher."),
    _M("oger/equal_groups", LEARNING, "groups without variance", "share", "groups as they are trained",
       "Share of groups whose rows, teachers' included, all have the same trained reward, charges for length "
       "included: they have no advantage and teach nothing. Missing where such groups teach (a critic, reinforce, "
       "flash_reinforce, estimators of steps, oger.rollout_advantage), and where a group is one row.", (None, 0.8),
       "up to 0.8; above over a window of steps the run warns (equal_groups)",
       "Problems of another difficulty, more rollouts a prompt, teachers, or algo.dynamic_filtering_enable."),
    _M("oger/held_out_fall", LEARNING, "fall of held-out accuracy", "share", "evaluations so far",
       "avg@n of the best evaluation less that of the newest, averaged over benchmarks. Missing before the second "
       "evaluation.", (None, 0.05),
       "up to 0.05; above, with a reward that rose, the run warns (reward_without_accuracy)",
       "Compare reward/* of both steps: the source that rose is the one to weigh less or to gate."),
    _M("oger/reward_rise", LEARNING, "rise of the trained reward", "reward", "the last oger.alarms.window steps",
       "oger/on_reward at the newest evaluation less that at the best one, each a mean over steps. Missing before "
       "the second evaluation."),
    _M("policy_loss", LEARNING, "policy loss", "", _TRAINED_TOKENS,
       "The hybrid loss of rollouts and teachers; without KL and entropy terms. OpenRLHF's name; its sign and size "
       "follow oger.loss_aggregation and the advantages, and it is no measure of progress."),
    _M("on_policy_loss", LEARNING, "loss of rollouts", "", _OWN_TOKENS,
       "Mean PPO loss of a token, whatever the aggregation. Near 0 for a first update, whose ratios are 1 and whose "
       "advantages sum to about 0."),
    _M("actor_lr", LEARNING, "learning rate", "", _STEP,
       "The policy's learning rate after the last update of the step, which is that of the next one. OpenRLHF's."),
    _M("updates", LEARNING, "updates", "updates", _STEP,
       "Optimizer steps of the policy in this training step, skipped ones included."),
    _M("hybrid_batch/score", LEARNING, "solved, trained batch", "share", _TRAINED,
       "Share of right rows. Teachers are in it: read rollout/solve_rate for the policy. OpenRLHF's score."),
    _M("hybrid_batch/reward", LEARNING, "reward, trained batch", "reward", _TRAINED,
       "Mean reward that is trained on, length penalties included. Teachers are in it: read oger/on_reward for the "
       "policy. OpenRLHF's reward."),
    _M("hybrid_batch/return", LEARNING, "sum of token rewards", "reward", _TRAINED,
       "Mean sum of a row's rewards by token, after the baseline was taken off and less a KL in the reward. With a "
       "baseline of the group it is about 0 whatever is learnt: it is no return in the usual sense. OpenRLHF's."),
    _M("hybrid_batch/group_reward_std", LEARNING, "spread of rewards in groups", "reward", _TRAINED,
       "Mean standard deviation of the trained rewards of a group, teachers included. Written for estimators of "
       "OpenRLHF alone. 0 leaves nothing to compare."),
    # ---- health
    _M("alarms/raised", HEALTH, "alarms raised", "alarms", "the run so far",
       "Alarms that were found in this step or in the window of steps before it (docs/alarms.md).",
       (None, 0.0), "0", "Read the alarms' sentences on the screen, in events.jsonl or on the page of the run."),
    _M("rollout/entropy", HEALTH, "entropy", "nats a token", "tokens of the policy's own rollouts that are trained",
       "How unsure the policy is about each token, on average. Missing where teachers begin every rollout. With "
       "oger.old_log_probs of_update it is of one rollout of each group.",
       healthy_text="no fixed range: compare with step 1. A fall to a third, or a steady rise, calls for a look; "
       "the run warns below a tenth and above twice the first steps (entropy_gone, entropy_growing)",
       advice="A fall: a lower actor.adam.lr, a KL term (algo.kl), a higher actor.eps_clip_low_high, or a little "
       "actor.entropy_coef. A steady rise: a lower learning rate or entropy coefficient; read samples/."),
    _M("entropy_loss", HEALTH, "entropy, trained rows", "nats a token", _TRAINED_TOKENS,
       "Mean entropy of the tokens, teachers' included; written where actor.entropy_coef is set. OpenRLHF's name: it "
       "is the entropy itself, which the loss takes off times the coefficient, and no loss."),
    _M("rollout/response_length", HEALTH, "response length", "tokens", _ROLLOUTS, "Mean length of a response.",
       healthy_text="no fixed range; the run warns of growth by half while fewer rollouts are right, and of a fall to "
       "a third (length_growing, length_collapsing)",
       advice="Growth without more right answers: look at reward/{source}/length_correlation. A fall to a few "
       "tokens: the policy stops before it reasons."),
    _M("rollout/response_length_max", HEALTH, "longest response", "tokens", _ROLLOUTS,
       "Longest response of the step."),
    _M("rollout/response_length_min", HEALTH, "shortest response", "tokens", _ROLLOUTS,
       "Shortest response of the step."),
    _M("rollout/truncated", HEALTH, "truncated", "share", _ROLLOUTS,
       "Share of responses that were cut at the longest allowed length (or by a cap of steps of reasoning).",
       (None, 0.1), "rule of thumb: below 0.1; above 0.25 the run warns (truncation)",
       "Raise rollout.max_new_tokens, or charge for length."),
    _M("rollout/format", HEALTH, "answer found", "share", _ROLLOUTS,
       "Share of responses in which the verifier finds an answer in the form that it reads: by its component format, "
       "else by whether it extracted one. Responses of a task whose verifier gave neither all step are left out; "
       "missing where all are.", (0.9, None),
       "rule of thumb: above 0.9; below 0.1 the run warns (never_verified)",
       "Read samples/: a wrong prompt template is the usual reason."),
    _M("rollout/repetitive", HEALTH, "repetitive", "share", _ROLLOUTS,
       "Share of responses that repeat themselves; 0 unless oger.repeating_check is on.", (None, 0.05),
       "rule of thumb: below 0.05", "A lower learning rate; read samples/."),
    _M("rollout/reward_error", HEALTH, "rollouts not graded", "rollouts", "all rollouts of the step",
       "Rollouts whose verifier failed; they earn 0.", (None, 0.0),
       "0; above oger.max_reward_error_rate the run stops",
       "Read reward_errors.jsonl."),
    _M("rollout/reward_timeout", HEALTH, "grading timeouts", "rollouts", "all rollouts of the step",
       "Rollouts whose verifier ran into the time limit; part of rollout/reward_error.", (None, 0.0), "0",
       "Read reward_errors.jsonl; raise oger.grading_time_limit where the answers are fine."),
    _M("actor_grad_norm", HEALTH, "gradient norm", "", "the last update of the step",
       "Norm of the policy's gradient before clipping. OpenRLHF's.",
       healthy_text="no fixed range: steady. Above actor.max_norm it is clipped to that; ten times its median "
       "is a spike, of which the run warns (gradient_norm)",
       advice="Many spikes: a lower actor.adam.lr; read the samples of that step."),
    _M("skipped_updates", HEALTH, "updates skipped", "updates", _STEP,
       "Updates that were left out because a loss or a gradient was not finite. Weights, Adam's moments and the "
       "schedule of the learning rate stay as they were.", (None, 0.0),
       "0; oger.max_skipped_updates in a row stop the run",
       "Read the step's note and its rows in skipped/; if nonfinite/* are 0, a lower actor.adam.lr."),
    _M("skipped_in_a_row", HEALTH, "updates skipped in a row", "updates", "this step and those before it",
       "Longest series of skipped updates that reaches into this step; 0 in float16, where DeepSpeed looks for the "
       "scale of the loss by skipping.", (None, 0.0), "0; the run stops at oger.max_skipped_updates",
       "As for skipped_updates."),
    _M("nonfinite_losses", HEALTH, "broken losses", "micro-batches", "the rank with the most",
       "Micro-batches of the policy whose loss is not finite.", (None, 0.0), "0; their updates are skipped",
       "As for skipped_updates."),
    _M("nonfinite/log_probs", HEALTH, "broken log-probabilities", "rows", _TRAINED,
       "Rows with a log-probability of the policy or the reference that is not finite before the update. The updates "
       "that they are in are skipped.", (None, 0.0), "0",
       "Read these rows in skipped/: very long ones point to a kernel or a precision, all of them to the weights."),
    _M("nonfinite/engine_log_probs", HEALTH, "engine's broken log-probabilities", "rows", _TRAINED,
       "Rows with a token of the policy's of which the engine's log-probability is not finite. They are not compared "
       "with the policy (vllm_*), and their tokens have weight 1 where the loss is corrected for the engine.",
       (None, 0.0), "0; the run stops where no row is left to compare",
       "Look at the engine's log; its dtype or kernels may overflow."),
    _M("nonfinite/entropies", HEALTH, "broken entropies", "rows", _TRAINED,
       "Rows whose entropy at oger.entropy_position is not finite. They earn no bonus.", (None, 0.0), "0",
       "As for nonfinite/log_probs."),
    _M("nonfinite_parameters", HEALTH, "broken parameters", "tensors", "the policy, on the rank with the most",
       "Parameter tensors with a number that is not finite.", (None, 0.0), "0; otherwise the run stops",
       "Resume from the last checkpoint with a lower actor.adam.lr."),
    _M("vllm_kl", HEALTH, "engine against policy", "nats a token", "tokens of the policy's own rollouts",
       "Mean log-probability of the sampled tokens by the engine less that by the policy: an estimate of the KL of "
       "the two on equal weights. It is rounding, and may be below 0. In OpenRLHF the name belongs to a correction "
       "and is only there with it; it is not the KL to the reference.", (-0.005, 0.005),
       "within 0.005 of 0; clearly above oger.max_engine_kl (0.02) the run stops. With rollout.top_p below 1 it may "
       "be as high as -log(top_p)",
       "The engine samples with other weights than those that are trained: see docs/known_faults.md."),
    _M("vllm_logprob_difference", HEALTH, "engine against policy, by token", "nats a token",
       "tokens that the policy sampled, also behind a teacher's",
       "Mean absolute difference of the log-probabilities by engine and policy. Rounding: 0.004 for a tiny policy, "
       "0.04 in bfloat16 with a large vocabulary.",
       healthy_text="below vllm_logprob_limit; at three quarters of it the run warns (engine_parted), above it the "
       "run stops",
       advice="As for vllm_kl."),
    _M("vllm_logprob_limit", HEALTH, "limit of the difference", "nats a token", "the first step",
       "The limit of vllm_logprob_difference: oger.max_logprob_difference, else three times the first step's value "
       "and 0.002. A step in which teachers wrote every token has neither."),
    _M("vllm_ratio", HEALTH, "policy over engine", "ratio", _SAMPLED_TOKENS,
       "Mean of p(policy) / p(engine) of the sampled tokens, before the correction clips or leaves out any. "
       "Only with algo.advantage.is_correction_level.", (0.99, 1.01), "rule of thumb: within 0.01 of 1",
       "As for vllm_kl; the correction hides it from the loss, not from the reward."),
    _M("vllm_ratio_max", HEALTH, "policy over engine, highest", "ratio", _SAMPLED_TOKENS,
       "The highest p(policy) / p(engine) of a token, before the correction. Above the upper bound of "
       "algo.advantage.is_correction_threshold it is clipped or left out."),
    _M("vllm_filtered_tokens", HEALTH, "tokens corrected", "share", _SAMPLED_TOKENS,
       "Share of tokens that the correction clips (is_correction_mode clip) or leaves out (mask); with "
       "is_correction_level seq, all tokens of a response that is left out. OpenRLHF's is_filter_ratio.",
       (None, 0.05), "rule of thumb: below 0.05",
       "Read vllm_logprob_difference first: if it is no higher than usual, the bounds are too narrow."),
    _M("vllm_filtered_rows", HEALTH, "responses corrected", "share", "trained rows with such a token",
       "Share of responses with at least one token that the correction clips or leaves out; with is_correction_level "
       "seq the responses that are left out, which is OpenRLHF's is_filter_ratio there."),
    _M("ppo_kl", HEALTH, "distance from the sampling policy", "nats a token", _OWN_TOKENS,
       "Mean of log p(old) - log p(new): how far the updates of this step moved the policy from the one that "
       "sampled. May be below 0; exactly 0 with one update a step. It is not the KL to the reference.",
       (-0.05, 0.05), "rule of thumb: within 0.05 of 0", "As for approx_kl."),
    _M("approx_kl", HEALTH, "distance from the sampling policy (k3)", "nats a token", _OWN_TOKENS,
       "The same as ppo_kl by the estimator k3, which is never below 0. Mean over the updates of the step.",
       (None, 0.05), "rule of thumb: below 0.05",
       "Fewer updates a batch, a lower actor.adam.lr, or a limit (oger.kl_stop)."),
    _M("approx_kl_last", HEALTH, "distance at the last update", "nats a token", _OWN_TOKENS,
       "approx_kl of the last update that was made, which oger.kl_stop compares with its limit."),
    _M("kl_stopped_updates", HEALTH, "updates left out by kl_stop", "updates", _STEP,
       "Updates of the step that were left out because the KL was above oger.kl_stop.",
       healthy_text="some are what the limit is for; most of them are wasted rollouts",
       advice="Fewer epochs a batch, or a lower actor.adam.lr."),
    _M("clip_fraction", HEALTH, "clipped tokens", "share", _OWN_TOKENS,
       "Share of tokens whose loss PPO's clipping or actor.dual_clip decided; 0 with one update a step.", (None, 0.3),
       "rule of thumb: below 0.3", "Fewer updates a batch, or a lower actor.adam.lr."),
    _M("all_clip_fraction", HEALTH, "tokens left out as certain", "share", _TRAINED_TOKENS,
       "Share of tokens that oger.all_max_clip leaves out because the policy is surer of them."),
    _M("on_policy_ratio", HEALTH, "ratio of rollout tokens", "", _OWN_TOKENS,
       "Mean of p(new)/p(old), after oger.on_policy_reshape; exactly 1 with one update a step.", (0.9, 1.1),
       "rule of thumb: 0.9 to 1.1 (without oger.on_policy_reshape)", "As for approx_kl."),
    _M("on_policy_prob", HEALTH, "probability of rollout tokens", "share", _OWN_TOKENS,
       "Mean probability that the policy gave to the tokens it sampled. A rise towards 1 is a loss of variety."),
    _M("kl_coefficient", HEALTH, "KL coefficient", "", _STEP,
       "Coefficient of the KL in this step, written where it adapts (algo.kl.target)."),
    _M("hybrid_batch/kl", HEALTH, "KL to the reference", "nats a token", _TRAINED,
       "KL of the policy to the reference model, by algo.kl.estimator: a mean over rows, over tokens where it is a "
       "part of the loss. 0 where no reference is loaded. OpenRLHF's kl.",
       healthy_text="no fixed range; a jump is a policy that runs away",
       advice="Raise algo.kl.init_coef, or lower actor.adam.lr."),
    _M("hybrid_batch/logprobs_diff", HEALTH, "policy less reference", "nats a token", _TRAINED,
       "Mean log-probability of the tokens by the policy less that by the reference model. OpenRLHF's name says "
       "neither: it has nothing to do with the engine. 0 where no reference is loaded."),
    _M("hybrid_batch/response_length", HEALTH, "response length, trained batch", "tokens", _TRAINED,
       "Mean length of a row's response. Teachers are in it: read rollout/response_length. OpenRLHF's."),
    _M("hybrid_batch/total_length", HEALTH, "total length, trained batch", "tokens", _TRAINED,
       "Mean length of prompt and response. OpenRLHF's."),
    _M("hybrid_batch/truncated", HEALTH, "truncated, trained batch", "share", _TRAINED,
       "As rollout/truncated, with teachers, which never count as truncated. OpenRLHF's."),
    _M("hybrid_batch/response_clip_ratio", HEALTH, "rows at data.max_len", "share", _TRAINED,
       "Share of rows whose prompt and response together reach data.max_len. OpenRLHF's name: it has nothing to do "
       "with PPO's clipping (clip_fraction), nor with responses cut at rollout.max_new_tokens (rollout/truncated).",
       (None, 0.0), "0", "Raise data.max_len, or lower rollout.max_new_tokens."),
    _M("hybrid_batch/reward_error", HEALTH, "not graded, trained batch", "share", _TRAINED,
       "rollout/reward_error as a share of the rows that are left after replacement. OpenRLHF's form.",
       (None, 0.0), "0", "Read reward_errors.jsonl."),
    _M("hybrid_batch/reward_timeout", HEALTH, "grading timeouts, trained batch", "share", _TRAINED,
       "rollout/reward_timeout as a share of the rows that are left after replacement.", (None, 0.0), "0",
       "Read reward_errors.jsonl."),
    # ---- teachers and bonus
    _M("oger/replaced", TEACHERS, "rows replaced", "rows", _STEP,
       "Rollouts that made room for a teacher's trajectory."),
    _M("oger/replaced_correct", TEACHERS, "right rollouts replaced", "rows", _STEP,
       "Right rollouts among them.",
       advice="A large share of oger/replaced in hard groups: oger.replace_mode with wrong rollouts first."),
    _M("oger/replaced_wrong", TEACHERS, "wrong rollouts replaced", "rows", _STEP, "Wrong rollouts among them."),
    _M("oger/taught_groups", TEACHERS, "taught groups", "share", _STEP,
       "Share of groups with a teacher's tokens. Under oger.teacher_gate it falls as the policy solves more."),
    _M("oger/prompts_without_teacher", TEACHERS, "prompts without a teacher", "prompts", _STEP,
       "Prompts for which no teacher may enter; they train as plain GRPO.",
       advice="More than expected: see data/teachers_wrong and data/teachers_too_long."),
    _M("oger/prefix_ratio", TEACHERS, "teachers' share of a response", "share", _TRAINED,
       "Mean share of a row's response tokens that came from a teacher."),
    _M("oger/off_on_ratio", TEACHERS, "teachers' rows a rollout", "rows a row", _TRAINED,
       "Rows with a teacher's tokens for each row without any: 1/7 for one teacher in a group of eight."),
    _M("oger/on_response_length", TEACHERS, "length of rollouts", "tokens", _OWN, "Mean length of a response."),
    _M("oger/off_response_length", TEACHERS, "length of teachers", "tokens", _TAUGHT,
       "Mean length of a response; with oger/on_response_length it shows whom the policy comes to resemble."),
    _M("oger/off_score", TEACHERS, "teachers right", "share", _TAUGHT, "Share of right rows.", (0.9, None),
       "rule of thumb for whole trajectories: above 0.9; prefixes are as right as what the policy makes of them",
       "Check the teachers' answers and oger.task_name; leave wrong teachers out."),
    _M("oger/teacher_reward", TEACHERS, "reward of teachers", "reward", _TAUGHT, "Mean verified reward."),
    _M("oger/teacher_advantage", TEACHERS, "advantage of teachers", "reward", _TAUGHT,
       "Mean advantage of the first token. It falls as the policy gets better: then the teacher teaches less.",
       healthy_text="above 0; below, the policy is pushed away from its teachers",
       healthy=(0.0, None), advice="oger.all_correct_group says what a group does that needs no teacher."),
    _M("oger/rollout_advantage_abs", TEACHERS, "size of rollouts' advantages", "reward", _OWN,
       "Mean absolute advantage of the first token. 0: there is nothing to learn from the policy's own rollouts."),
    _M("oger/advantage_max", TEACHERS, "largest advantage", "reward", _TRAINED, "Of the first tokens."),
    _M("oger/advantage_min", TEACHERS, "smallest advantage", "reward", _TRAINED, "Of the first tokens."),
    _M("hybrid_batch/off_policy_tokens", TEACHERS, "teachers' tokens a row", "tokens", _TRAINED,
       "Mean number of a teacher's tokens in a row, over all rows: most have none."),
    _M("off_policy_token_share", TEACHERS, "teachers' share of tokens", "share", _TRAINED_TOKENS,
       "Share of response tokens that came from a teacher."),
    _M("off_policy_loss", TEACHERS, "loss of teachers", "", _TEACHER_TOKENS,
       "Mean loss of a teacher's token: -A f(p) by oger.off_policy_reshape, which is below 0 while the advantage is "
       "above; -log p where teachers are learnt supervised."),
    _M("sft_loss_coef", TEACHERS, "weight of the supervised loss", "", _STEP,
       "oger.sft_loss_coef by its schedule; missing where it has none."),
    _M("off_policy_prob", TEACHERS, "probability of teachers' tokens", "share", _TEACHER_TOKENS,
       "Mean probability that the policy gives to a teacher's token: its rise is imitation.",
       advice="No rise over many steps: the teachers are too far from the policy; train supervised first "
       "(oger.sft.epochs)."),
    _M("off_policy_ratio", TEACHERS, "reshaped probability", "", _TEACHER_TOKENS,
       "Mean of what stands for the importance ratio: f(p), PPO's ratio where oger.off_policy_loss is ppo; unused "
       "where it is sft."),
    _M("off_policy_ratio_max_clip_fraction", TEACHERS, "teachers' ratio clipped above", "share", _TEACHER_TOKENS,
       "Share of tokens above oger.off_policy_max_clip."),
    _M("off_policy_ratio_min_clip_fraction", TEACHERS, "teachers' ratio clipped below", "share", _TEACHER_TOKENS,
       "Share of tokens below oger.off_policy_min_clip."),
    _M("oger/similarity", TEACHERS, "similarity to teachers", "cosine", _OWN,
       "Mean similarity of a rollout to its prompt's references; rows without a reference do not count."),
    _M("nonfinite/similarities", TEACHERS, "unknown similarities", "rows", _TRAINED,
       "Rows of prompts with teachers whose text could not be embedded. They earn no bonus, and have the mean of "
       "their group where rollouts make room.", (None, 0.0), "0; above oger.max_embedding_error_rate the run stops",
       "Look at the encoder's log."),
    _M("oger/similarity_std", TEACHERS, "spread of the similarity", "cosine", _OWN,
       "Standard deviation over all rows, of all prompts together."),
    _M("oger/divergence", TEACHERS, "divergence from teachers", "1 - cosine", _OWN,
       "1 less the similarity; 0 is equal."),
    _M("oger/divergence_std", TEACHERS, "spread of the divergence", "1 - cosine", _OWN,
       "Standard deviation over all rows, of all prompts together."),
    _M("oger/entropy", TEACHERS, "entropy in the bonus", "nats", _OWN,
       "Mean entropy at oger.entropy_position, where it weighs the bonus. At the last token, an end of sequence, it "
       "is near 0 by nature: read rollout/entropy for the policy's. With oger.old_log_probs of_update it is of the "
       "rollouts that pass through the policy before the update, most of them right ones."),
    _M("oger/entropy_p90", TEACHERS, "entropy in the bonus, 90 %", "nats", _OWN,
       "90th percentile of oger/entropy's rows."),
    _M("oger/entropy_weight", TEACHERS, "entropy weight", "", _OWN,
       "Mean weight exp(-H) of the bonus, by oger.last_token_enp_reward.",
       advice="Always 1: the weight does nothing; oger.entropy_position mean or top makes it differ."),
    _M("oger/entropy_weight_std", TEACHERS, "spread of the entropy weight", "", _OWN, "Standard deviation over rows."),
    _M("oger/bonus", TEACHERS, "bonus", "reward", _OWN, "Mean bonus, with its weight."),
    _M("oger/bonus_of_correct", TEACHERS, "bonus of right rollouts", "reward", "right rows without a teacher's tokens",
       "Mean bonus, with its weight."),
    _M("oger/bonus_of_correct_std", TEACHERS, "spread of the bonus", "reward", "right rows without a teacher's tokens",
       "Standard deviation over the rows of all prompts; most of it lies between prompts, which teaches nothing."),
    _M("oger/bonus_of_correct_std_in_group", TEACHERS, "spread of the bonus in a group", "reward",
       "right rows without a teacher's tokens, in groups with two or more",
       "How far the bonus tells the right rollouts of one prompt apart: the part of it that can teach exploration.",
       advice="Near 0: the encoder sees no difference. oger.similarity_shaping, oger.similarity_centred, "
       "oger.embedding_part or another encoder may."),
    _M("oger/bonus_weight", TEACHERS, "weight of the bonus", "", _STEP, "oger.bonus_weight by its schedule."),
    _M("oger/hint_share", TEACHERS, "share in the hints", "share", _STEP, "Share of a teacher trajectory that prompts "
       "show, by its schedule. Solve rates of the step are with these hints; evaluation has none."),
    _M("oger/grade", TEACHERS, "grade of a token", "nats", "graded tokens",
       "How much likelier the grader finds a token than the policy did: mean difference of their log-probabilities. "
       "Minus it is an estimate of KL(policy || grader) for a token. Only with oger.grader.", (None, 0.1),
       "rises towards 0",
       advice="A fall means that the policy leaves its grader: raise oger.grade_weight, or lower the learning rate."),
    _M("oger/grade_weight", TEACHERS, "weight of grades", "", _STEP, "oger.grade_weight by its schedule."),
    _M("oger/grade_share", TEACHERS, "share of grades in advantages", "share", "graded tokens",
       "Size of the weighted grades, in that of grades and the estimator's advantages together: 1 where grades are "
       "all that is learnt from."),
    _M("oger/grade_clamped", TEACHERS, "clamped grades", "share", "graded tokens",
       "Grades beyond oger.grade_max, to which they were cut.", (None, 0.05), "below 0.05 (rule of thumb)",
       advice="Grader and policy are far apart: raise oger.grade_max, or begin with a policy or a grader that is "
       "closer."),
    _M("oger/graded_rollouts", TEACHERS, "graded rollouts", "rows", _STEP,
       "Rollouts with grades: not those of prompts without a teacher to show, nor those that are left out."),
    _M("oger/graded_tokens", TEACHERS, "graded tokens", "tokens", _STEP, "Their tokens."),
    _M("nonfinite/grades", TEACHERS, "grades not finite", "rows", _TRAINED,
       "Rows of which the grader's log-probability of a token is not finite: they have no grades.", (None, 0.0), "0",
       advice="Check the grader: its weights may overflow in their dtype."),
    _M("oger/grade_failed", TEACHERS, "rollouts without their grades", "rows", _STEP,
       "Rollouts that the grader was asked about in vain: too long for it, a number that is not finite, or its engine "
       "was lost. A step in which all are ends the run.", (None, 0), "0"),
    _M("oger/grade_untaught", TEACHERS, "prompts without a teacher to show", "prompts", _STEP,
       "Prompts whose rollouts have no grades, since they have no teacher, or none that fits. Only with oger.grader "
       "self."),
    _M("oger/grade_too_long", TEACHERS, "teachers too long to show", "teachers", _STEP,
       "Teachers of the step's prompts that do not fit the policy's window together with the longest rollout. Only "
       "with oger.grader self, initial or average.",
       advice="Lower rollout.max_new_tokens or oger.max_prefix_len."),
    _M("oger/answer_likelihood", TEACHERS, "likelihood of teachers' answers", "", "teachers that were compared",
       "Mean probability that the policy gives a token of a teacher's answer, after the teacher's reasoning. Only "
       "with oger.teacher_draw likeliest_answer, in steps with a group that has more teachers than places."),
    _M("oger/embedding_share_read", TEACHERS, "share of texts embedded", "share", "a sample of rollouts and teachers",
       "Share of the tokens that the encoder reads; similarity and bonus speak of that part alone. Missing where "
       "nothing is compared.", (0.995, None), "above 0.995; below the run says so once",
       "oger.embedding_long_texts chunks, or a larger oger.embedding_max_tokens."),
    # ---- rewards
    _M("reward/{source}", REWARDS, "what a source says", "", _OWN,
       "Mean of what the source says, before its weight and normalization. Rows behind its gate and rows that it "
       "failed on do not count; missing where it said nothing of any row."),
    _M("reward/{source}/failed", REWARDS, "rows a source failed on", "rows", "rows that the source was asked about",
       "Rows without a value because the source failed; oger.reward.on_error says what they cost.", (None, 0.0),
       "0; above oger.reward.max_error_rate the run stops",
       "Read source_errors.jsonl, and the log of the judge's server."),
    _M("nonfinite/rewards", REWARDS, "rewards out of range", "rows", _TRAINED,
       "Rows whose total is not finite, or beyond 1e12 in size, though each source's value is not. Their groups have "
       "no advantage in this step. A value of a source that is out of range is a failure of that source.", (None, 0.0),
       "0", "The note of the step names the source and the value: lower its weight, or bound what it gives."),
    _M("reward/{source}/length_correlation", REWARDS, "pays for length", "Pearson's r", _OWN,
       "Correlation within groups of what the source says with the response's length, over the last "
       "oger.alarms.window steps. Missing below 100 rows.", (-0.5, 0.5),
       "within 0.5 of 0; outside the run warns, unless the source is a rule or a price for length",
       "A lower weight, gate rule_equals_1 behind a verifier, or telling the judge that length does not count."),
    _M("reward/{source}/format_correlation", REWARDS, "pays for form", "Pearson's r", _OWN,
       "Correlation within groups of what the source says with whether an answer was found, over the last "
       "oger.alarms.window steps. Missing below 100 rows, and where the verifier does not say whether there is one.",
       (-0.9, 0.9),
       "within 0.9 of 0; outside the run warns, unless the source is a rule", "Gate rule_equals_1 leaves the form to "
       "the rule."),
    _M("reward/{source}/rule_disagreement", REWARDS, "orders against the rule", "share of pairs",
       "pairs of rows in a group that source and rule both order",
       "Share of pairs that the source orders the other way than the rule: 0 the rule's order, 0.5 none of it. "
       "Missing below 100 pairs.", (None, 0.6), "up to 0.6; above the run warns",
       "Gate rule_equals_1: then the source decides between right answers alone."),
    _M("reward/{source}/cached", REWARDS, "replies from the cache", "share", "replies of the source's model",
       "Share of replies that came without asking again: equal texts are asked about once.",
       advice="Near 1: the policy writes the same texts again and again."),
    _M("reward/{source}/cut", REWARDS, "replies cut", "share", "replies of the judge",
       "Share of a judge's replies that were cut at their longest.", (None, 0.05), "rule of thumb: below 0.05",
       "Raise max_new_tokens of the source."),
    _M("reward/{source}/unparsed", REWARDS, "replies without a verdict", "share", "replies of the judge",
       "Share of a judge's replies in which no verdict could be read; such a row is worth the worst verdict.",
       (None, 0.05), "rule of thumb: below 0.05",
       "Read replies in samples/: the prompt, the plugin, or an answer that talks the judge out of a verdict."),
    _M("reward/{source}/overflow", REWARDS, "texts too long", "share", "rows that the source was asked about",
       "Share of rows that are longer than the source's model reads; on_overflow says what that costs.",
       (None, 0.0), "0", "A model with a longer window, or shorter responses."),
    _M("reward/{source}/seconds", REWARDS, "time of a source", "seconds", _STEP,
       "Time from asking the source's model to its last reply; sources at servers are asked beside one another."),
    _M("reward/{source}/order_changes", REWARDS, "verdicts that depend on the order", "share",
       "pairs that were compared", "Share of pairs on which a pairwise judge changes its mind when the two answers "
       "change places; these count as ties.", (None, 0.3), "rule of thumb: below 0.3", "A stronger judge."),
    _M("reward/{source}/met", REWARDS, "criteria met", "share", "criteria of a weight above 0 with a verdict",
       "How far the criteria of rubrics are met, on average."),
    _M("reward/{source}/pitfalls", REWARDS, "pitfalls", "share", "criteria of a weight below 0 with a verdict",
       "How far the criteria that cost something are met, on average."),
    _M("reward/{source}/unread", REWARDS, "criteria without a verdict", "share", "criteria of all rubrics",
       "Share of criteria on which the reply says nothing.", (None, 0.05), "rule of thumb: below 0.05",
       "Fewer criteria at once, or a stronger judge."),
    _M("reward/{source}/learnt_rows", REWARDS, "rows a PRM learnt from", "rows", _OWN,
       "Rows that an implicit PRM with update learnt from in this step."),
    _M("reward/{source}/loss", REWARDS, "loss of a PRM that learns", "nats a row", _OWN,
       "Cross entropy of the implicit PRM's verdicts against the verifier's, before its update."),
    _M("reward/{source}/grad_norm", REWARDS, "gradient norm of a PRM that learns", "", _OWN,
       "Norm of its gradient before clipping."),
    _M("reward/{source}/updates", REWARDS, "updates of a PRM that learns", "updates", _STEP,
       "Optimizer steps, skipped ones included."),
    _M("reward/{source}/skipped_updates", REWARDS, "updates skipped of a PRM that learns", "updates", _STEP,
       "Updates that were left out because a gradient was not finite.", (None, 0.0),
       "0; oger.max_skipped_updates in a row stop the run",
       "Read the step's note and its rows in skipped/; a lower learning_rate or beta of the source."),
    _M("reward/{source}/skipped_in_a_row", REWARDS, "updates skipped in a row of a PRM that learns", "updates",
       "this step and those before it", "Longest series of skipped updates that reaches into this step.",
       (None, 0.0), "0; the run stops at oger.max_skipped_updates", "As for its skipped updates."),
    _M("reward/{source}/accuracy", REWARDS, "accuracy of a PRM that learns", "share", _OWN,
       "Share of rows that it calls right or wrong as the verifier does.", (0.5, None), "above 0.5, which is chance",
       "More data before it pays: a lower weight, or update before."),
    _M("reward/{source}/pair_accuracy", REWARDS, "pairs a PRM orders rightly", "share",
       "pairs of a right and a wrong row of one prompt",
       "Share of pairs of which the implicit PRM puts the right row above. Missing where no prompt has both.",
       (0.5, None), "above 0.5, which is chance", "As for the accuracy."),
    _M("reward/{source}/{component}", REWARDS, "a component of a source", "", _OWN,
       "Mean of a component that the source names, or a number of its own: the verifier's correct or format, the "
       "cosine of a similarity."),
    _M("hybrid_batch/reward_format", REWARDS, "answer found, trained batch", "share", _TRAINED,
       "Share of rows in which the verifier found an answer. Teachers count as 0: with one in eight rows it is at "
       "most 0.875. Read reward/{source}/format of the verifier for the policy."),
    # ---- steps of reasoning
    _M("rollout/steps", STEPS, "steps of reasoning", "steps", _ROLLOUTS, "Mean number of steps in a response.",
       healthy_text="no fixed range; growth by a fifth while fewer rollouts are right is warned of",
       advice="credit min_ahead, a lower weight, a verifier beside the PRM, or oger.steps.max_steps."),
    _M("rollout/steps_max", STEPS, "most steps of reasoning", "steps", _ROLLOUTS, "Of any response of the step."),
    _M("rollout/steps_min", STEPS, "fewest steps of reasoning", "steps", _ROLLOUTS, "Of any response of the step."),
    _M("rollout/step_length", STEPS, "length of a step of reasoning", "tokens", _ROLLOUTS,
       "Mean over responses of their tokens a step."),
    _M("rollout/ended_by_max_steps", STEPS, "ended by the cap of steps", "share", _ROLLOUTS,
       "Share of responses that oger.steps.max_steps ended; they count as truncated.", (None, 0.1),
       "rule of thumb: below 0.1", "Raise oger.steps.max_steps."),
    _M("reward/{source}/steps", STEPS, "steps scored", "steps", "rows that were scored",
       "Mean number of steps of a row that the process reward model scored."),
    _M("reward/{source}/step_mean", STEPS, "score of a step", "", "steps of rows that were scored",
       "Mean score of a step, before credit."),
    _M("reward/{source}/step_min", STEPS, "lowest score of a row", "", "rows that were scored",
       "Mean over rows of their lowest step."),
    _M("reward/{source}/last_is_lowest", STEPS, "last step is the lowest", "share", "rows that were scored",
       "Share of rows that end with their lowest step.",
       advice="A rise towards 1 with a wrong answer each time: the PRM sees only the end. A fall while rollout/steps "
       "rises: steps are added behind a mistake."),
    # ---- critic
    _M("critic_loss", CRITIC, "critic loss", "", _VALUED,
       "Loss of the critic's values, half the squared error or Huber's, mean over the updates of the step."),
    _M("values", CRITIC, "values", "reward", _VALUED,
       "Mean value that the critic gives, during its updates."),
    _M("explained_variance", CRITIC, "explained variance", "", _VALUED,
       "Share of the returns' variance that the values explained before the update: 1 knows every return, 0 is a "
       "constant. Missing where all returns are equal.", (0.0, 1.0), "0 to 1, and rising",
       "Below 0 the critic is worse than a constant: train it first (critic.freezing_steps), or lower "
       "critic.adam.lr."),
    _M("value_clip_share", CRITIC, "clipped values", "share", _VALUED,
       "Share of tokens whose loss is the clipped value's: they give the critic no gradient.", (None, 0.3),
       "rule of thumb: below 0.3", "Raise critic.value_clip, or lower critic.adam.lr."),
    _M("critic_grad_norm", CRITIC, "gradient norm of the critic", "", "the last update of the step",
       "Norm of the critic's gradient before clipping.", healthy_text="no fixed range: steady",
       advice="Spikes: a lower critic.adam.lr, or oger.critic.huber_delta."),
    _M("critic_lr", CRITIC, "learning rate of the critic", "", _STEP, "Mean over the micro-batches of the step."),
    _M("critic_updates", CRITIC, "updates of the critic", "updates", _STEP, "Optimizer steps, skipped ones included."),
    _M("critic_skipped_updates", CRITIC, "critic's updates skipped", "updates", _STEP,
       "Updates that were left out because a loss or a gradient was not finite.", (None, 0.0),
       "0; oger.max_skipped_updates in a row stop the run",
       "Read the step's note; if nonfinite/values is 0, a lower critic.adam.lr."),
    _M("critic_skipped_in_a_row", CRITIC, "critic's updates skipped in a row", "updates",
       "this step and those before it", "Longest series of skipped updates that reaches into this step.",
       (None, 0.0), "0; the run stops at oger.max_skipped_updates", "As for critic_skipped_updates."),
    _M("critic_nonfinite_losses", CRITIC, "broken losses of the critic", "micro-batches", "the rank with the most",
       "Micro-batches whose loss of the values is not finite.", (None, 0.0), "0; their updates are skipped",
       "As for critic_skipped_updates."),
    _M("nonfinite/values", CRITIC, "broken values", "rows", _TRAINED,
       "Rows with a value of the critic that is not finite. The updates that they are in are skipped, of policy and "
       "critic; 0 without a critic.", (None, 0.0), "0", "Start the critic anew, with a lower critic.adam.lr."),
    _M("critic_nonfinite_parameters", CRITIC, "broken parameters of the critic", "tensors",
       "the critic, on the rank with the most", "Parameter tensors with a number that is not finite.", (None, 0.0),
       "0; otherwise the run stops", "Resume from the last checkpoint with a lower critic.adam.lr."),
    # ---- time
    _M("timing/step_total", TIME, "time of a step", "seconds", _STEP,
       "Sum of the four phases below. Evaluations and checkpoints are not in it. OpenRLHF's."),
    _M("timing/generation", TIME, "time of generation", "seconds", _STEP,
       "Sampling the rollouts, grading and filtering included. OpenRLHF's."),
    _M("timing/make_experience", TIME, "time of experience", "seconds", _STEP,
       "From rollouts to advantages: encoder, judges, the forward passes of policy, reference and critic. "
       "OpenRLHF's."),
    _M("timing/forward", TIME, "time of forward passes", "seconds", _STEP,
       "Forward passes of policy, critic and reference over the rows that are trained, within timing/make_experience. "
       "Only with oger.grader."),
    _M("timing/grades", TIME, "time of grading", "seconds", _STEP,
       "Asking the grader, within timing/make_experience: beside timing/forward its cost. Only with oger.grader."),
    _M("timing/answer_likelihoods", TIME, "time of comparing teachers", "seconds", _STEP,
       "Forward passes over teachers' trajectories, within timing/make_experience. Only with oger.teacher_draw "
       "likeliest_answer."),
    _M("timing/ppo_train", TIME, "time of training", "seconds", _STEP,
       "All updates of policy and critic. OpenRLHF's."),
    _M("timing/broadcast", TIME, "time of weight sync", "seconds", _STEP,
       "Sending the policy's weights to the engines. OpenRLHF's."),
    _M("tokens_per_second", TIME, "tokens a second", "tokens/s", _ROLLOUTS,
       "rollout/response_tokens over timing/step_total: throughput of the whole step, not of the engine."),
    # ---- data
    _M("step", DATA, "step", "steps", "the run", "Training step, from 1."),
    _M("rollout/response_tokens", DATA, "tokens of rollouts", "tokens", _ROLLOUTS, "Response tokens of the step."),
    _M("rollout/prompt_length", DATA, "prompt length", "tokens", "all rollouts of the step",
       "Mean length of a prompt."),
    _M("rollout/prompt_length_max", DATA, "longest prompt", "tokens", "all rollouts of the step",
       "Longest prompt of the step."),
    _M("rollout/prompt_length_min", DATA, "shortest prompt", "tokens", "all rollouts of the step",
       "Shortest prompt of the step."),
    _M("data/teachers_too_long", DATA, "teachers too long", "trajectories", "the data as it was read",
       "Teachers' trajectories that were left out because they do not fit; the same in every step.",
       advice="Raise rollout.max_new_tokens with data.max_len."),
    _M("data/teachers_wrong", DATA, "teachers wrong", "trajectories", "the data as it was read",
       "Teachers' trajectories that were left out because the verifier rejects them; the same in every step.",
       advice="More than a few: check oger.task_name, oger.math_rule and oger.math_extract."),
    _M("dynamic_filtering_pass_rate", DATA, "prompts kept by filtering", "percent", "prompts that were sampled",
       "Percentage of sampled prompts whose group was not left out. Left out are groups whose rows are certain to "
       "earn the same (teachers that enter and a bonus count), and those whose solve rate is outside of "
       "algo.dynamic_filtering_range; written where algo.dynamic_filtering_enable is set. OpenRLHF's name."),
    _M("rollout/filtered_groups", DATA, "groups filtered", "groups", "prompts that were sampled",
       "Groups that were left out, and for which others were sampled."),
    _M("rollout/filling_groups", DATA, "groups filled up", "groups", "the training step",
       "Groups left out that are trained after all, as the data or oger.dynamic_filtering_max_batches ended before "
       "the step was full.", (None, 0.0), "0",
       "Harder or easier problems, more rollouts a prompt, teachers, or a higher oger.dynamic_filtering_max_batches."),
)  # fmt: skip

# What to look at first, in this order.
FIRST = (
    "eval_{benchmark}_avg_at_{n}", "rollout/solve_rate", "oger/on_reward", "rollout/solve_none", "rollout/entropy",
    "rollout/response_length", "rollout/truncated", "actor_grad_norm", "vllm_kl", "reward/{source}/failed",
)  # fmt: skip

# What a part of a name may be: benchmarks and components are named by the user.
_PARTS = {"source": r"[\w.-]+", "component": r".+", "benchmark": r".+", "n": r"(?:\d+|n)", "k": r"\d+"}


@cache
def lookup(name: str) -> Metric | None:
    """Return the row of a written metric: of several that fit, the one that spells out most of the name.

    Names of one evaluation, ``avg_at_8``, are read as those of the average.
    """
    name = f"eval_average_{name}" if re.match("(avg|pass|maj)_at_", name) else name
    fitting = [each for each in TABLE if _pattern(each.name).fullmatch(name)]
    return max(fitting, key=lambda each: len(re.sub(r"\{\w+\}", "", each.name)), default=None)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", name)
    return re.compile("".join(_PARTS[part] if at % 2 else re.escape(part) for at, part in enumerate(parts)))
