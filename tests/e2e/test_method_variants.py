"""LUFFY's way of letting teachers in, through the whole pipeline."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hang import HANG_S
from runs import ROOT, SMALL, dataset, lines, samples, train

pytestmark = pytest.mark.full
DOCUMENT = ROOT.parent / "shared" / "seeds" / "000_e39033487543f5dd.txt"


def test_the_policy_continues_after_prefixes_and_remembers_what_it_solved(tmp_path: Path, cache: Path):
    """Three of eight rollouts begin with 0.4, 0.7 and all of a teacher's tokens, which are learnt supervised.

    Before that the policy is trained on the same teachers, so that it solves some of the problems by itself.
    """
    run_dir = tmp_path / "run"
    guided = ["--oger.max_replace_num", "0", "--oger.n_prefix", "3", "--oger.prefix_strategy", "fixed"]
    guided += ["--oger.min_prefix_ratio", "0.4", "--oger.off_policy_loss", "sft", "--oger.prompts_per_update", "8"]
    first = ["--oger.sft.epochs", "15", "--oger.sft.lr", "0.002"]
    first += ["--oger.sft.batch_size", "32", "--oger.sft.micro_batch_size", "32"]
    bonus = ["--oger.use_history_samples", "--oger.similarity_reverse_fail", "--oger.entropy_position", "top"]
    bonus += ["--oger.bonus_schedule", "linear", "--oger.repeating_check", "--actor.entropy_coef", "0.001"]
    shorter = ["--oger.total_training_steps", "2", "--no-oger.val_before_train", "--no-oger.val_after_train"]
    (tmp_path / "reward_of_mine.py").write_text(SOURCE)
    sources = [{"name": "rule", "kind": "verifier"}, {"name": "explore", "kind": "bonus"}]
    sources.append({"name": "short", "kind": "reward_of_mine:short", "weight": 0.5, "gate": "rule_equals_1"})
    mine = [f"--oger.reward.sources={json.dumps(sources)}", "--oger.verifier_path", str(tmp_path)]
    mine += ["--oger.reward.max_error_rate", "1"]
    done = train(run_dir, cache, *first, *guided, *bonus, *shorter, *mine)
    assert done.returncode == 0, done.stderr

    teachers = {row["uid"]: row["teachers"] for row in dataset(run_dir)}
    rows = samples(run_dir, 1)
    assert len(rows) == 16 * 8 and not any(row.get("replaced") for row in rows)
    begun = [row for row in rows if row["off_policy"]]
    assert len(begun) == 16 * 3
    whole = [row for row in begun if row["text"] in {teacher["text"] for teacher in teachers[row["uid"]]}]
    assert len(whole) >= 16  # the third of each group at least
    for row in begun:  # every one begins as one of its teachers does
        assert any(row["text"][:8] == teacher["text"][:8] for teacher in teachers[row["uid"]])
        assert row["bonus"] == 0 and row["off_policy_tokens"] > 0
    earned = [row for row in rows if not row["off_policy"] and row["score"] == 0]
    assert any(row["bonus"] > 0 for row in earned)  # wrong ones earn their closeness

    steps = lines(run_dir / "metrics.jsonl")
    assert steps[0]["oger/bonus_weight"] == 1.0 and steps[1]["oger/bonus_weight"] == 0.0
    assert steps[0]["oger/off_on_ratio"] == pytest.approx(3 / 5)
    assert 0.2 < steps[0]["oger/prefix_ratio"] < 3 / 8
    own = [row["score"] for row in rows if not row["off_policy"]]
    assert steps[0]["rollout/solve_rate"] == pytest.approx(sum(own) / len(own))
    assert steps[0]["off_policy_loss"] > 0  # -log p of teacher tokens
    assert steps[0].keys() == steps[1].keys()
    remembered = {(record["uid"], record["text"]) for record in lines(run_dir / "history.jsonl")}
    solved = {(row["uid"], row["text"]) for step in (1, 2) for row in samples(run_dir, step)
              if row["score"] > 0 and not row["off_policy"]}  # fmt: skip
    assert solved and remembered == solved
    _source_was_asked(run_dir, done.stdout)


SOURCE = """
def short(group):
    if min(graded.verdict.score for graded in group.graded) == 1:
        raise ValueError("a group that is solved")
    return [1 / len(text) for text in group.responses], {"letters": [len(text) for text in group.responses]}
"""


def _source_was_asked(run_dir: Path, said: str) -> None:
    """By rule + bonus + 0.5 / letters where the rule gave 1; groups that were all right failed and earned 0 of it."""
    failed = {}
    for step in (1, 2):
        groups: dict[str, list[dict]] = {}
        for row in samples(run_dir, step):
            groups.setdefault(row["uid"], []).append(row)
        for rows in groups.values():
            fails = all(row["score"] == 1 for row in rows)
            failed[step] = failed.get(step, 0) + fails * len(rows)
            for row in rows:
                valued = row["reward"] == 1 and not fails
                assert ("errors" in row) == fails and ("short" in row["sources"]) == valued
                earned = 0.5 / len(row["text"]) if valued else 0.0
                assert row["total_reward"] == pytest.approx(row["reward"] + row["bonus"] + earned, abs=1e-6)
                assert row["sources"].get("short/letters") == (len(row["text"]) if valued else None)
    steps = lines(run_dir / "metrics.jsonl")
    assert [step["reward/short/failed"] for step in steps] == [failed[1], failed[2]]
    examples = lines(run_dir / "source_errors.jsonl") if any(failed.values()) else []
    assert [example["step"] for example in examples] == [step for step in (1, 2) if failed[step]]
    assert ("reward source short failed on" in said) == any(failed.values())


def test_the_converted_command_runs_with_the_twins_overrides(tmp_path: Path, cache: Path):
    """OGER's own command, through `oger convert`, on this machine: what the twin changes, and sizes."""
    if not DOCUMENT.exists():
        pytest.skip("shared/seeds is not here")
    converted, twin = tmp_path / "converted.yaml", tmp_path / "twin.yaml"
    command = [sys.executable, "-m", "oger_recipe.cli.convert", str(DOCUMENT), "--out", str(converted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    overrides = yaml.safe_load((ROOT / "configs" / "oger_paper_cpu.yaml").read_text()) | {"extends": str(converted)}
    overrides["oger"]["embedding_model"] = None  # placeholders of the document
    overrides["logger"] = {"tensorboard_dir": None}
    twin.write_text(yaml.safe_dump(overrides))
    # The smoke recipe's sizes: its data and its warm start are in the cache.
    flags = ["--oger.task.train_problems", "64", "--oger.task.eval_problems", "16"]
    flags += ["--rollout.batch_size", "16", "--oger.prompts_per_update", "8", "--oger.total_training_steps", "2"]
    flags += ["--eval.n_samples_per_prompt", "2"]
    done = train(tmp_path / "run", cache, *flags, recipe=twin)
    assert done.returncode == 0, done.stderr
    steps = lines(tmp_path / "run" / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["oger/replaced"] == 16 and step["oger/off_on_ratio"] == pytest.approx(1 / 7) for step in steps)
    assert all(step["off_policy_loss"] < 0 and step["oger/teacher_reward"] == 1 for step in steps)


def test_the_twins_of_distillation_grade_every_rollout_token_by_token(tmp_path: Path, cache: Path):
    """The policy that is shown a teacher grades first; what it has become is the teacher model of the second run."""
    rows = ["--rollout.micro_batch_size", "16", "--train.micro_batch_size", "16"]
    first, second = tmp_path / "first", tmp_path / "second"
    done = train(first, cache, *SMALL, *rows, "--train.batch_size", "16", recipe="self_distillation_cpu")
    assert done.returncode == 0, done.stderr
    assert (first / "model" / "adapter").exists()  # of the first twin; the second trains all weights
    teacher = json.dumps([{"model": str(first / "model"), "place": "in_process"}])
    more = ["--oger.prompts_per_update", "16", "--oger.grade_model", teacher]
    done = train(second, cache, *SMALL, *rows, *more, recipe="distillation_cpu")
    assert done.returncode == 0, done.stderr
    for run_dir, count in ((first, 16), (second, 64)):
        steps = lines(run_dir / "metrics.jsonl")
        assert [step["oger/graded_rollouts"] for step in steps] == [count, count]
        assert all(step["oger/grade_share"] == 1 and step["oger/grade_failed"] == 0 for step in steps)
        assert all(step["oger/graded_tokens"] == step["rollout/response_tokens"] for step in steps)
        graded = samples(run_dir, 1)
        assert all(row["advantage"] == 0 and "grade" in row for row in graded)


def test_the_initial_policy_grades_as_the_policy_of_the_step_does_while_they_are_the_same(
    tmp_path: Path, cache: Path
) -> None:
    """Two runs sample and grade alike in the first step, which makes one policy of both; then one is graded by it."""
    rows = ["--rollout.micro_batch_size", "16", "--train.micro_batch_size", "16", "--train.batch_size", "16"]
    runs = {name: tmp_path / name for name in ("initial", "self")}
    for name, run_dir in runs.items():
        recipe = "self_distillation_cpu"
        done = train(run_dir, cache, *SMALL, *rows, "--oger.grader", name, recipe=recipe)
        assert done.returncode == 0, done.stderr
    initial, own = ([samples(run_dir, step) for step in (1, 2)] for run_dir in runs.values())
    assert [row["text"] for row in initial[1]] == [row["text"] for row in own[1]]
    assert [row["grade"] for row in initial[0]] == [row["grade"] for row in own[0]]
    moved = [abs(one["grade"] - other["grade"]) for one, other in zip(initial[1], own[1], strict=True)]
    assert min(moved) > 0


def _shares_of_prefixes(run_dir: Path, step: int) -> dict[str, list[float]]:
    """Of each prompt the share of a teacher's text with which each rollout begins, 0 where it begins by itself."""
    teachers = {row["uid"]: [each["text"] for each in row["teachers"]] for row in dataset(run_dir)}
    shares: dict[str, list[float]] = {}
    for row in samples(run_dir, step):
        begun = row.get("off_policy_characters", 0)
        whole = [text for text in teachers[row["uid"]] if text.startswith(row["text"][:begun])]
        assert whole and row["off_policy"] is (begun > 0)
        shares.setdefault(row["uid"], []).append(begun / len(whole[0]))
    return shares


def test_prefix_rfts_twin_begins_one_rollout_of_each_group_with_a_falling_share(tmp_path: Path, cache: Path):
    """0.05 + 0.45 (1 + cos(pi t / T)) of T = 4: 0.82 and 0.5. A token may be several characters."""
    done = train(tmp_path, cache, *SMALL, "--oger.prefix_steps", "4", recipe="prefix_rft_cpu")
    assert done.returncode == 0, done.stderr
    steps = lines(tmp_path / "metrics.jsonl")
    for step, share in ((1, 0.818), (2, 0.5)):
        shares = _shares_of_prefixes(tmp_path, step)
        assert len(shares) == 16 and all(len(of_group) == 8 for of_group in shares.values())
        assert all(sum(each > 0 for each in of_group) == 1 for of_group in shares.values())
        assert all(max(of_group) == pytest.approx(share, abs=0.15) for of_group in shares.values())
        assert steps[step - 1]["oger/off_on_ratio"] == pytest.approx(1 / 7)
        assert 0 < steps[step - 1]["off_policy_token_share"] < 1 / 8


def test_ufts_twin_begins_all_rollouts_with_fifths_of_a_solution_and_learns_them_supervised(
    tmp_path: Path, cache: Path
):
    """k ~ Bin(5, p) fifths for the whole group, p 0.5 at the first of two steps and 0.05 at the second."""
    done = train(tmp_path, cache, *SMALL, "--oger.prefix_steps", "2", recipe="uft_cpu")
    assert done.returncode == 0, done.stderr
    means = []
    for step in (1, 2):
        shares = _shares_of_prefixes(tmp_path, step)
        assert len(shares) == 16 and all(len(of_group) == 4 for of_group in shares.values())
        for of_group in shares.values():  # of one k, though of different teachers
            assert max(of_group) - min(of_group) < 0.3 and (min(of_group) > 0) == (max(of_group) > 0)
        means.append(sum(map(sum, shares.values())) / 64)
    assert 0.35 < means[0] < 0.65 and means[1] < 0.2
    assert lines(tmp_path / "metrics.jsonl")[0]["off_policy_loss"] > 0  # -log p


def test_questas_twin_shows_half_of_a_solution_in_the_prompt_and_trains_rollouts_alone(tmp_path: Path, cache: Path):
    sizes = ["--rollout.n_samples_per_prompt", "4", "--train.batch_size", "64"]
    done = train(tmp_path, cache, *SMALL, *sizes, recipe="questa_cpu")
    assert done.returncode == 0, done.stderr
    teachers = {row["uid"]: [each["text"] for each in row["teachers"]] for row in dataset(tmp_path)}
    for step in (1, 2):
        rows = samples(tmp_path, step)
        assert len(rows) == 16 * 4 and len({(row["uid"], row["prompt"]) for row in rows}) == 16
        for row in rows:
            hint = row["prompt"].partition("## Hint. ")[2].partition("<|im_end|>")[0].rstrip()
            shown = next(text for text in teachers[row["uid"]] if text.startswith(hint))
            assert len(hint) / len(shown) == pytest.approx(0.5, abs=0.15) and not row["off_policy"]
    for metrics in lines(tmp_path / "metrics.jsonl"):
        assert metrics["oger/hint_share"] == 0.5 and metrics["off_policy_token_share"] == 0
