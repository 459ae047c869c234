"""For every alarm a run that raises it, by a recipe that goes wrong on purpose. A window is two or three steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import lines, train

from oger_recipe.algorithm.alarms import ALARMS
from oger_recipe.report.run_state import read_state

SOURCES = '''
asked = 0


def brief(group):
    return [-float(len(text)) for text in group.responses]


def long(group):
    return [len(text) / 20 + sum(text.count(sign) for sign in "+-*") for text in group.responses]


def form(group):
    return [graded.verdict.components["format"] for graded in group.graded]


def jumps(group):
    """Pays a thousand times as much from the ninth step on, of 16 groups each."""
    global asked
    asked += 1
    return [(1000.0 if asked > 8 * 16 else 1.0) * len(text) for text in group.responses]
'''
UNEVALUATED = ["--no-oger.val_before_train", "--no-oger.val_after_train", "--ckpt.save_steps=-1"]
ANY_DIFFERENCE = "--oger.max_logprob_difference=1"  # rounding grows as these policies degrade
NO_TEACHER = "--oger.max_replace_num=0"


def paid_by(**weights: float) -> str:
    own = [{"name": name, "kind": f"alarming:{name}", "weight": weight} for name, weight in weights.items()]
    return f"--oger.reward.sources={json.dumps([{'name': 'rule', 'kind': 'verifier'}, *own])}"


# What goes wrong -> the flags, and the alarms that the run raises at least.
RUNS: dict[str, tuple[list[str], set[str]]] = {
    "it may write eight tokens, and the engine may hardly differ": (
        [
            "--rollout.max_new_tokens=8", NO_TEACHER, "--oger.bonus_weight=0", "--oger.max_logprob_difference=0.0078",
            "--oger.alarms.never_solved=stop", "--ckpt.save_steps=2", "--ckpt.max_num=1", *UNEVALUATED[:2],
        ],
        {"truncation", "equal_groups", "never_solved", "never_verified", "engine_parted"},
    ),
    "it is paid for brevity, behind a teacher's prefix": (
        [
            paid_by(brief=1.0), "--actor.adam.lr=2e-3", NO_TEACHER, "--oger.n_prefix=1",
            "--oger.prefix_strategy=fixed", "--oger.min_prefix_ratio=0.4", "--train.num_episodes=6", ANY_DIFFERENCE,
            *UNEVALUATED,
        ],
        {"solve_rate_lost", "entropy_gone", "length_collapsing", "teachers_never_right", "length_correlation"},
    ),
    "it is paid for length, steps and form, and more from the ninth step on": (
        [
            paid_by(long=1.0, form=0.1, jumps=0.01), "--actor.adam.lr=1e-3", NO_TEACHER, "--train.num_episodes=3",
            "--eval.steps=3", '--oger.steps.delimiters=["+", "-", "*"]', "--oger.ratio_level=step", ANY_DIFFERENCE,
            "--oger.alarms.window=2", "--ckpt.save_steps=-1",
        ],
        {
            "length_growing", "steps_growing", "gradient_norm", "reward_without_accuracy", "length_correlation",
            "format_correlation", "rule_disagreement",
        },
    ),
    "it is paid for entropy, and its texts are cut for the encoder": (
        [
            "--actor.entropy_coef=1", "--actor.adam.lr=1e-3", "--train.num_episodes=2", ANY_DIFFERENCE,
            "--oger.embedding_long_texts=head", "--oger.embedding_max_tokens=16", *UNEVALUATED,
        ],
        {"entropy_growing", "embedding_truncated"},
    ),
}  # fmt: skip


def test_every_alarm_has_a_run() -> None:
    assert set.union(*(alarms for _, alarms in RUNS.values())) == set(ALARMS)


@pytest.mark.long
@pytest.mark.parametrize("what", RUNS)
def test_a_run_that_goes_wrong_raises_its_alarms(tmp_path: Path, cache: Path, what: str) -> None:
    flags, expected = RUNS[what]
    run_dir = tmp_path / "run"
    (tmp_path / "alarming.py").write_text(SOURCES)
    done = train(run_dir, cache, "--oger.alarms.window=3", "--oger.verifier_path", str(tmp_path), *flags)
    raised = [each for each in lines(run_dir / "events.jsonl") if each["event"] == "alarm"]
    assert expected <= {each["name"] for each in raised}, done.stdout + done.stderr
    assert all(each["text"] in done.stdout for each in raised)
    assert {each["name"] for each in raised} == {each.name for each in read_state(run_dir).alarms}
    stops = [each for each in raised if each["level"] == "stop"]
    assert done.returncode == (1 if stops else 0), done.stderr
    if stops:
        assert "an alarm stopped the run after step 3: no rollout has been right in 3 steps" in done.stderr
        assert {path.name for path in (run_dir / "checkpoints" / "_actor").glob("global_step*")} == {
            "global_step2", "global_step3",
        }  # fmt: skip
