"""The smoke recipe through every real part, judged by its run folder."""

import json
import math
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import yaml
from hang import HANG_S
from runs import ROOT, SMOKE, lines, samples

from oger_recipe.cli import show, watch
from oger_recipe.report.groups import read_groups
from oger_recipe.report.run_state import read_state
from oger_recipe.run_folder import own_files
from oger_recipe.run_folder.attempt import begin_anew

STEPS, PROMPTS, GROUP = 4, 16, 8
# Of what is equal for all rows there is no correlation, and of a single evaluation no fall.
MAY_LACK = ("_correlation", "/rule_disagreement", "/held_out_fall", "/reward_rise")


def groups(run_dir: Path, step: int) -> dict[str, list[dict]]:
    """The rows that were trained on, by prompt."""
    by_uid = defaultdict(list)
    for sample in samples(run_dir, step):
        if not sample.get("replaced"):
            by_uid[sample["uid"]].append(sample)
    return by_uid


def test_summary_says_what_was_reached_and_what_took_how_long(smoke_run):
    summary = json.loads((smoke_run / "summary.json").read_text())
    for when in ("before", "after"):
        assert summary[when]["n_problems"] == summary[when]["benchmarks"]["countdown"]["problems"] == 16
        assert 0 <= summary[when]["avg_at_8"] <= summary[when]["pass_at_8"] <= 1
    assert summary["steps"] == STEPS
    assert summary["data"] == {"prompts": 64, "prompts_without_teacher": 0, "teachers": 192}
    parts = ("task", "data", "until_ready", "evaluate_before", "training", "evaluate_after")
    assert all(summary["seconds"][part] > 0 for part in parts)
    assert summary["seconds"]["total"] >= sum(summary["seconds"][part] for part in parts[2:])


def test_a_newcomer_sees_problems_solved_and_earning_a_bonus(smoke_run):
    for record in lines(smoke_run / "metrics.jsonl"):
        assert 0.05 < record["rollout/solve_rate"] < 0.6  # the warm start reaches 0.2
        assert record["oger/bonus"] > 0


def test_evaluation_counts_scores_of_held_out_answers(smoke_run):
    summary = json.loads((smoke_run / "summary.json").read_text())
    trained_on = {sample["uid"].rsplit("-", 1)[0] for step in range(1, 5) for sample in samples(smoke_run, step)}
    for when, step in (("before", 0), ("after", STEPS)):
        answers = lines(smoke_run / "eval" / f"step_{step:05d}.jsonl")
        assert len(answers) == 16 * GROUP
        assert {answer["score"] for answer in answers} <= {0.0, 1.0}
        assert summary[when]["avg_at_8"] == pytest.approx(sum(answer["score"] for answer in answers) / len(answers))
        assert not trained_on & {answer["uid"].rsplit("-", 1)[0] for answer in answers}


def test_every_step_is_recorded_once_with_the_same_keys(smoke_run):
    steps = lines(smoke_run / "metrics.jsonl")
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    assert all(record.keys() == steps[0].keys() for record in steps)
    assert all(math.isfinite(value) for record in steps for key, value in record.items() if not key.endswith(MAY_LACK))
    assert all(-1 <= record["reward/rule/length_correlation"] <= 1 for record in steps)
    assert {"rollout/solve_rate", "oger/divergence", "oger/bonus", "tokens_per_second", "off_policy_prob"} <= steps[
        0
    ].keys()


def test_every_group_has_one_teacher_in_the_place_of_its_most_similar_rollout(smoke_run):
    for step in range(1, STEPS + 1):
        rows = samples(smoke_run, step)
        assert len(rows) == PROMPTS * (GROUP + 1)
        for uid, group in groups(smoke_run, step).items():
            assert [row["off_policy"] for row in group].count(True) == 1 and len(group) == GROUP
            rollouts = [row for row in rows if row["uid"] == uid and not row["off_policy"]]
            replaced = [row for row in rollouts if row.get("replaced")]
            assert len(replaced) == 1
            assert replaced[0]["similarity"] == max(row["similarity"] for row in rollouts)


def test_bonus_and_advantage_follow_their_equations(smoke_run):
    for group in groups(smoke_run, 1).values():
        totals = []
        for row in group:
            if row["off_policy"]:
                assert (row["reward"], row["score"]) == (1.0, 1.0)
                assert row["entropy"] is None  # nothing needs it, so that no forward pass is made for it
                totals.append(1.0)
                continue
            bonus = (1 - row["similarity"]) * math.exp(-row["entropy"]) * row["reward"] * row["score"]
            assert row["bonus"] == pytest.approx(bonus, abs=1e-5)
            totals.append(row["reward"] + bonus)
        mean = sum(totals) / GROUP
        assert [row["advantage"] for row in group] == pytest.approx([total - mean for total in totals], abs=1e-5)


def test_solve_rate_is_of_the_rollouts_before_bonus_and_replacement(smoke_run):
    steps = lines(smoke_run / "metrics.jsonl")
    for record in steps:
        rollouts = [row for row in samples(smoke_run, record["step"]) if not row["off_policy"]]
        assert len(rollouts) == PROMPTS * GROUP
        assert record["rollout/solve_rate"] == pytest.approx(sum(row["score"] for row in rollouts) / len(rollouts))


def test_the_engine_follows_the_policy(smoke_run):
    for record in lines(smoke_run / "metrics.jsonl"):
        assert record["vllm_logprob_difference"] < 0.02
        assert abs(record["vllm_kl"]) < 0.01


def weights(folder: str | Path) -> torch.Tensor:
    """All parameters of a saved policy, flat, float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_optimizer_moved_the_policy_by_its_learning_rate(smoke_run):
    """Adam moves a weight by at most about the learning rate a step."""
    actor = yaml.safe_load((smoke_run / "recipe.yaml").read_text())["actor"]
    moved = (weights(smoke_run / "model") - weights(actor["model_name_or_path"])).abs().mean().item()
    assert 0.2 < moved / actor["adam"]["lr"] < STEPS * 1.5


def test_run_can_be_repeated_from_what_it_wrote(smoke_run):
    from oger_recipe.cli.train_ppo_ray import build_parser
    from oger_recipe.settings.recipe_file import read_recipe

    parser = build_parser(cpu=True)
    args = read_recipe(smoke_run / "recipe.yaml", parser)
    assert args["oger.run_dir"] == str(smoke_run) and args["rollout.batch_size"] == PROMPTS
    assert f"-m oger_recipe.cli.train --recipe {ROOT}/configs/{SMOKE}.yaml" in (smoke_run / "command.sh").read_text()
    environment = json.loads((smoke_run / "environment.json").read_text())
    assert "openrlhf==0.11.2" in environment["packages"]
    assert (environment["engine"]["model_runner"], environment["engine"]["nccl"]) == ("V1", None)


def test_what_a_person_sees_of_a_run_in_a_terminal(smoke_run, capsys):
    state = read_state(smoke_run)
    assert (state.state, state.why, state.recipe) == ("finished", None, SMOKE)
    assert (state.step, state.planned_steps, state.first.step, state.last.step) == (STEPS, STEPS, 0, STEPS)
    (attempt,) = state.attempts
    seconds = json.loads((smoke_run / "summary.json").read_text())["seconds"]["total"]
    assert attempt.began < attempt.ended < attempt.began + seconds and attempt.last_step == STEPS
    assert sum(bool(row.get("replaced")) for group in read_groups(smoke_run, STEPS) for row in group.rows) == PROMPTS
    watch.main([str(smoke_run)])
    show.main([str(smoke_run)])
    seen = capsys.readouterr().out
    assert f"step {STEPS}/{STEPS}" in seen and "after training: avg_at_" in seen and "solved" in seen
    assert f"rollout {GROUP}: " in seen and "replaced by the teacher that follows" in seen and "advantage  " in seen


def test_a_run_knows_every_file_that_it_has_written(smoke_run, tmp_path):
    """One that it does not know would lie in the way of the next run."""
    folder = shutil.copytree(smoke_run, tmp_path / "run", symlinks=True)
    begin_anew(folder, folder / "checkpoints", overwrite=True)
    # The lock, the marker, and what the fixture of this test has written.
    assert {path.name for path in folder.iterdir()} == {".oger-lock", own_files.MARKER, "stdout.txt"}


def test_curves_trackers_and_logs_are_there(smoke_run):
    for name in ("solve_rate", "bonus_and_teachers", "policy"):
        assert (smoke_run / "curves" / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert '<script type="application/octet-stream" id="samples-0">' in (smoke_run / "report.html").read_text()
    assert list((smoke_run / "tensorboard").rglob("events.out.tfevents.*"))
    assert (smoke_run / "logs" / "driver.log").stat().st_size
    assert not list(smoke_run.rglob("*.pkl"))


def test_model_and_checkpoint_are_in_hugging_face_format(smoke_run):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = {}
    for folder in (smoke_run / "model", smoke_run / "checkpoints" / "global_step4_hf"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder).chat_template
        weights = load_file(folder / "model.safetensors").values()
        assert sum(weight.numel() for weight in weights) == model.num_parameters()  # its head is tied
        trained[folder] = torch.cat([parameter.flatten() for parameter in model.parameters()])
    final, checkpoint = trained.values()
    assert torch.equal(final, checkpoint)


def test_a_newcomer_sees_progress(smoke_run):
    shown = (smoke_run / "stdout.txt").read_text()
    assert "before training: avg_at_8" in shown and "after training: avg_at_8" in shown
    assert sum(line.startswith("step ") for line in shown.splitlines()) == STEPS
    assert "Traceback" not in shown
    last = [line for line in shown.splitlines() if line.startswith("step ")][-1]
    assert "| entropy " in last and last.endswith(" elapsed, 0:00 left")
    table = shown[shown.rindex("before training") :]
    assert "difference" in table and "countdown   avg@8" in table and f"run folder: {smoke_run}" in table
    assert f"{STEPS} steps in " in table


def test_what_a_step_is_at_is_told_while_it_lasts(smoke_run):
    told = [event for event in lines(smoke_run / "events.jsonl") if event["event"] == "phase"]
    for step in range(1, STEPS + 1):
        phases = [event["phase"] for event in told if event["step"] == step and event["phase"] != "answers"]
        assert list(dict.fromkeys(phases))[:4] == ["rollouts", "experience", "training", "weights"]
    counted = [event for event in told if event["phase"] == "rollouts"]
    assert all(0 <= event["done"] <= event["of"] == PROMPTS * GROUP for event in counted)


def test_the_entropy_is_that_of_a_policy_and_not_of_its_last_tokens(smoke_run):
    """Of the distributions of all tokens; the last token's, an end of a response, is nearly certain."""
    for record in lines(smoke_run / "metrics.jsonl"):
        assert 0.05 < record["rollout/entropy"] < math.log(1024)  # the tokenizer has no more tokens than that
        assert record["rollout/entropy"] > 2 * record["oger/entropy"]


def test_oger_eval_with_the_runs_recipe_gives_the_runs_own_evaluation(smoke_run, tmp_path):
    """On the recipe's eval.dataset: the same prompts, samples, verdicts and figures, to the digit."""
    command = [sys.executable, "-m", "oger_recipe.cli.eval", str(smoke_run / "model")]
    command += ["--recipe", str(smoke_run / "recipe.yaml"), "--out", str(tmp_path / "again")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-3000:]
    (answers,) = (tmp_path / "again" / "answers").iterdir()
    ours = {(record["uid"], record["sample"]): record for record in lines(answers)}
    theirs = {(record["uid"], record["sample"]): record for record in lines(smoke_run / "eval" / "step_00004.jsonl")}
    assert ours.keys() == theirs.keys() and len(ours) == 16 * 8
    for key, record in theirs.items():
        assert {name: ours[key][name] for name in record if name != "benchmark"} == {
            name: value for name, value in record.items() if name != "benchmark"
        }
    figures = json.loads((tmp_path / "again" / "results.json").read_text())["average"]
    expected = json.loads((smoke_run / "eval" / "step_00004.json").read_text())["average"]
    assert figures == expected
