"""Numbers of models that are not finite, in the controller: they stay with their row, are counted, and are kept.

Real parts as in test_experience_maker.py: the experience maker, over models that say what a test tells them.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from oger_recipe.base.files import read_jsonl
from oger_recipe.pipeline.controller.nonfinite import (
    ENGINE_LOG_PROBS,
    ENTROPIES,
    KINDS,
    LOG_PROBS,
    REWARDS,
    SIMILARITIES,
    VALUES,
    broken_parameters,
    keep_skipped,
    skipped_too_often,
    why_skipped,
)
from oger_recipe.pipeline.controller.nonfinite import kept_lines as kept_lines_of
from oger_recipe.teachers.store import Teacher

TEXTS = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op"]  # two groups of four; the second row is the bad one
REWARDS_OF_ROWS = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
BAD = 1
PLAIN = ["--oger.bonus_weight=0", "--oger.max_replace_num=0"]
ESTIMATORS = {  # of each way to compare: in the group, in the batch, with a critic's values
    "dr_grpo": [], "group_norm": [], "gdpo": [], "reinforce": [], "reinforce_baseline": [],
    "gae": ["--algo.advantage.lambd=0.5"],
}  # fmt: skip


@pytest.fixture()
def rows(rollout) -> list[Any]:
    facts = zip(TEXTS, REWARDS_OF_ROWS, "uuuuvvvv", strict=True)
    return [rollout(text, reward, uid=uid) for text, reward, uid in facts]


def _advantages(experiences: list[Any], name: str = "advantages") -> torch.Tensor:
    """The first response token's, of every row."""
    found = torch.zeros(len(TEXTS))
    for experience in experiences:
        first = experience.action_mask.long().argmax(dim=1)
        found[experience.index] = getattr(experience, name)[torch.arange(len(first)), first]
    return found


def _spoil(models, source: str) -> dict[str, Any]:
    """Let the policy, the reference or the critic say nan of the bad row: it is the first to have the token of "c"."""
    if source == "policy":
        models.difference[TEXTS[BAD]] = math.nan
        return {}
    letter = models.tokenizer.encode(TEXTS[BAD])[0]

    def say(tokens: torch.Tensor) -> torch.Tensor:
        is_bad = (tokens == letter).any(dim=1, keepdim=True).expand(tokens.shape)
        return torch.where(is_bad, torch.nan, -0.25)

    return {"reference": say} if source == "reference" else {"critic": say}


@pytest.mark.parametrize("micro_batch", ["8", "1"])
@pytest.mark.parametrize(
    ("source", "estimator"),
    [*((source, name) for source in ("policy", "reference") for name in ESTIMATORS), ("critic", "gae")],
)
def test_a_row_that_cannot_be_trained_keeps_that_to_itself(
    controller, models, rows, source: str, estimator: str, micro_batch: str
) -> None:
    flags = [*PLAIN, f"--algo.advantage.estimator={estimator}", *ESTIMATORS[estimator]]
    flags += ["--algo.kl.init_coef=0.1"] * (source == "reference") + [f"--rollout.micro_batch_size={micro_batch}"]
    said = ({"critic": -0.25} if estimator == "gae" else {}) | _spoil(models, source)
    maker = controller(*flags, **said)
    experiences = maker.make_experience_batch(rows)
    advantages, kind = _advantages(experiences), VALUES if source == "critic" else LOG_PROBS
    assert advantages.isnan().nonzero().flatten().tolist() == [BAD]
    assert _advantages(experiences, "returns").isnan().nonzero().flatten().tolist() == [BAD]
    metrics = maker.current.metrics
    assert {name: metrics[f"nonfinite/{name}"] for name in KINDS} == dict.fromkeys(KINDS, 0) | {kind: 1}
    assert math.isfinite(metrics["oger/advantage_max"]) and math.isfinite(metrics["vllm_logprob_limit"])
    assert all(experience.info["kl"].isfinite().all() for experience in experiences)
    # In estimators that compare rows of a group, all others are as if it had not been.
    if estimator in ("dr_grpo", "group_norm") and source == "policy":
        models.difference.clear()
        usual = _advantages(controller(*flags).make_experience_batch(rows))
        others = [row for row in range(len(TEXTS)) if row != BAD]
        assert advantages[others].tolist() == usual[others].tolist()


def _spoil_engine(rows: list[Any], number: float, *spoilt: int) -> None:
    """Let the engine say this of the last token of some rows."""
    for row in spoilt:
        rows[row].rollout_log_probs[0, -1] = number


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("micro_batch", ["8", "1"])
def test_a_row_of_which_the_engine_knows_no_probability_is_not_compared_and_trained_as_ever(
    controller, models, rows, number: float, micro_batch: str
) -> None:
    """Each row has three tokens of which the engine says 0.01 more than the policy, the bad one 0.04."""
    models.difference = dict.fromkeys(TEXTS, 0.01) | {TEXTS[BAD]: 0.04}
    flags = [*PLAIN, "--algo.advantage.estimator=dr_grpo", f"--rollout.micro_batch_size={micro_batch}"]
    flags += [f"--algo.advantage.is_correction_{name}" for name in ("level=token", "mode=clip", "threshold=2")]
    usual = _advantages(controller(*flags).make_experience_batch(rows))
    assert usual[BAD] == -0.5
    _spoil_engine(rows, number, BAD)
    maker = controller(*flags)
    experiences = maker.make_experience_batch(rows)
    assert _advantages(experiences).tolist() == usual.tolist()
    weights = _advantages(experiences, "engine_weights")
    assert weights.tolist() == pytest.approx([1.0 if row == BAD else math.exp(-0.01) for row in range(8)])
    metrics = maker.current.metrics
    assert {name: metrics[f"nonfinite/{name}"] for name in KINDS} == dict.fromkeys(KINDS, 0) | {ENGINE_LOG_PROBS: 1}
    assert metrics["vllm_logprob_difference"] == metrics["vllm_kl"] == pytest.approx(0.01, rel=1e-4)
    assert metrics["vllm_logprob_limit"] == maker.state()["engine_limit"] == pytest.approx(0.032, rel=1e-4)
    assert [line["row"] for line in kept_lines_of(maker.current) if line["not_finite"]] == [BAD]


def test_a_run_stops_where_no_row_of_the_engine_can_be_compared(controller, models, rows) -> None:
    _spoil_engine(rows, math.nan, *range(8))
    for flags in ([], ["--oger.max_logprob_difference=1"]):
        maker = controller(*PLAIN, *flags)
        with pytest.raises(RuntimeError, match="step 1: no log-probability of the engine .* those of 8 rows are not"):
            maker.make_experience_batch(rows)
        assert maker.state()["engine_limit"] == (1 if flags else None)


def test_an_engine_that_parts_is_seen_beside_a_row_that_is_not_finite(controller, models, rows) -> None:
    models.difference = dict.fromkeys(TEXTS, -0.2)
    _spoil_engine(rows, math.nan, BAD)
    maker = controller(*PLAIN, "--oger.max_logprob_difference=0.1")
    with pytest.raises(RuntimeError, match="differ from the policy's by 0.2000"):
        maker.make_experience_batch(rows)


@pytest.mark.parametrize("known", [math.nan, math.inf])
def test_a_limit_that_is_not_finite_is_not_taken_from_a_checkpoint(controller, models, rows, known: float) -> None:
    models.difference = dict.fromkeys(TEXTS, -0.1)
    maker = controller(*PLAIN)
    maker.resume(3, 9, {"engine_limit": known})
    maker.make_experience_batch(rows)
    assert maker.state()["engine_limit"] == pytest.approx(0.302, rel=1e-4)  # learnt anew: 3 * 0.1 + 0.002
    maker = controller(*PLAIN)
    maker.resume(3, 9, {"engine_limit": 0.05})
    with pytest.raises(RuntimeError, match="limit: 0.0500"):
        maker.make_experience_batch(rows)


def _teachers(letters: Any) -> dict[str, list[Teacher]]:
    return {"u": [Teacher("a", "solution", [*letters.encode("solution"), letters.eos_token_id], 1.0, 1.0)]}


@pytest.mark.parametrize("wrong", [ENTROPIES, SIMILARITIES])
def test_a_rollout_of_unknown_entropy_or_similarity_earns_no_bonus(
    controller, models, rows, letters, wrong: str
) -> None:
    """Rows 0 and 2 are right; the bonus of row 2 is (1 - 0.5) * exp(-0) * 1, with weight 1."""
    models.similarity = dict.fromkeys(TEXTS, 0.5)
    (models.entropy if wrong == ENTROPIES else models.similarity)[TEXTS[0]] = math.nan
    flags = ["--oger.bonus_weight=1", "--oger.replace_mode=wrong_first_similarity_mean_des",
             "--oger.max_embedding_error_rate=1"]  # fmt: skip
    maker = controller(*flags, "--algo.advantage.estimator=dr_grpo", teachers=_teachers(letters))
    experiences = maker.make_experience_batch(rows)
    assert maker.current.rewards.total[0, [0, 2]].tolist() == pytest.approx([1.0, 1.5])
    assert _advantages(experiences).isfinite().all()
    metrics = maker.current.metrics
    assert {name: metrics[f"nonfinite/{name}"] for name in KINDS} == dict.fromkeys(KINDS, 0) | {wrong: 1}
    assert not any(value for name, value in metrics.items() if name.endswith("/failed"))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_row_of_unknown_entropy_does_not_hide_that_of_the_others(controller, models, rows, number: float) -> None:
    """All rows have three tokens; their mean entropy is ten times that at the position (conftest.py)."""
    models.entropy = dict.fromkeys(TEXTS, 0.25) | {TEXTS[BAD]: number, TEXTS[2]: 0.95}
    maker = controller(*PLAIN)
    maker.make_experience_batch(rows)
    metrics = maker.current.metrics
    assert metrics[f"nonfinite/{ENTROPIES}"] == 1
    assert metrics["rollout/entropy"] == pytest.approx((6 * 2.5 + 9.5) / 7)
    assert metrics["oger/entropy"] == pytest.approx((6 * 0.25 + 0.95) / 7)
    assert metrics["oger/entropy_p90"] == pytest.approx(0.25 + 0.4 * 0.7)  # 0.9 * 6 = 5.4: between the last two
    assert metrics["oger/entropy_weight"] == pytest.approx((6 * math.exp(-0.25) + math.exp(-0.95)) / 7)
    models.entropy = dict.fromkeys(TEXTS, number)
    maker.make_experience_batch(rows)
    assert all(not math.isfinite(maker.current.metrics[f"{name}/entropy"]) for name in ("rollout", "oger"))


def test_a_reward_that_is_none_costs_its_group_the_step_and_no_other_one(controller, rows, tmp_path) -> None:
    """Each source is within bounds; their product is not."""
    (tmp_path / "large.py").write_text(
        "def score(group):\n    return [1e12 if text == 'cd' else 1.0 for text in group.responses]\n"
    )
    sources = [{"name": name, "kind": kind, "combine": how} for name, kind, how in (
        ("rule", "verifier", "add"), ("much", "large:score", "add"), ("more", "large:score", "mul"))]  # fmt: skip
    flags = [*PLAIN, f"--oger.reward.sources={json.dumps(sources)}", f"--oger.verifier_path={tmp_path}"]
    maker = controller(*flags, "--algo.advantage.estimator=dr_grpo")
    advantages = _advantages(maker.make_experience_batch(rows))
    # The second group: (1 + 1) * 1 and three times (0 + 1) * 1, with a mean of 1.25.
    assert advantages.tolist() == pytest.approx([0, 0, 0, 0, 0.75, -0.25, -0.25, -0.25])
    assert maker.current.metrics[f"nonfinite/{REWARDS}"] == 1
    (said,) = (each for each in read_jsonl(maker.run_dir / "events.jsonl") if each["event"] == "note")
    assert "reward source much failed on 1 of 8 rows" in said["text"] or "reward source more failed" in said["text"]
    assert "1e+12" in said["text"] and "outside of -1e12 to 1e12" in said["text"]


def test_a_skipped_update_of_a_source_that_learns_keeps_the_rows_of_its_step(controller, rows) -> None:
    maker = controller(*PLAIN)
    maker.make_experience_batch(rows)
    maker.current.metrics |= {"reward/prm/updates": 4.0, "reward/prm/skipped_updates": 1.0}
    keep_skipped(maker.current, {"updates": 1.0, "skipped_updates": 0.0}, 7, maker.run_dir)
    kept = maker.run_dir / "skipped" / "step_00007.jsonl"
    assert [line["text"] for line in read_jsonl(kept)] == TEXTS
    (note,) = (each for each in read_jsonl(maker.run_dir / "events.jsonl") if "WARNING" in each.get("text", ""))
    assert note["text"] == (
        "WARNING: 1 of 4 updates of the reward source prm were skipped: its gradients are not finite; a lower "
        f"learning_rate or beta of the source is the usual remedy. The rows of the step are in {kept}"
    )


def test_what_is_kept_of_a_step_says_what_was_not_finite_in_which_row(controller, models, rows, letters) -> None:
    models.difference[TEXTS[BAD]] = math.nan
    models.similarity = dict.fromkeys(TEXTS, 0.5)
    maker = controller("--oger.replace_mode=wrong_first_similarity_mean_asc", teachers=_teachers(letters))
    experiences = maker.make_experience_batch(rows)
    kept = list(kept_lines_of(maker.current))
    assert [line["row"] for line in kept] == list(range(8))
    (taught,) = maker.current.batch.injected  # by a teacher, in the place of a wrong rollout
    texts = ["solution" if row == taught else text for row, text in enumerate(TEXTS)]
    assert [line["text"] for line in kept] == texts
    ask = letters.encode("ask>")
    assert [line["tokens"] for line in kept] == [[*ask, *letters.encode(text), letters.eos_token_id] for text in texts]
    bad = [] if taught == BAD else [BAD]
    assert [line["row"] for line in kept if line["not_finite"]] == bad
    assert _advantages(experiences).isnan().nonzero().flatten().tolist() == bad


FINE = {
    "updates": 6.0,
    "skipped_updates": 5.0,
    "skipped_in_a_row": 2.0,
    "nonfinite_losses": 0,
    "nonfinite_parameters": 0,
}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({}, None),
        ({"policy_loss": math.nan, "actor_grad_norm": math.nan}, None),  # of a skipped update
        (
            {"skipped_in_a_row": 3.0},
            "3 updates of the policy in a row were skipped (limit: 3, oger.max_skipped_updates)",
        ),
        (
            {"skipped_in_a_row": 3.0, "critic_nonfinite_parameters": 1.0},
            "the critic has parameters that are not finite",
        ),
        ({"nonfinite_parameters": 2.0}, "the policy has parameters that are not finite"),
        ({"critic_skipped_in_a_row": 2.0}, None),
        ({"critic_skipped_in_a_row": 4.0}, "4 updates of the critic in a row were skipped (limit: 3"),
        ({"reward/prm/skipped_updates": 3.0, "reward/prm/skipped_in_a_row": 2.0}, None),
        (
            {"reward/prm/skipped_updates": 1.0, "reward/prm/skipped_in_a_row": 3.0, "nonfinite/log_probs": 2.0},
            "3 updates of the reward source prm in a row were skipped (limit: 3, oger.max_skipped_updates): its ",
        ),
    ],
)
def test_a_series_of_skipped_updates_and_broken_parameters_end_a_run(metrics, said) -> None:
    found = broken_parameters(FINE | metrics) or skipped_too_often(FINE | metrics, limit=3)
    assert found is None if said is None else found.startswith(said)


@pytest.mark.parametrize(
    ("metrics", "prefix", "said"),
    [
        ({"nonfinite/log_probs": 4.0, "nonfinite/values": 1.0}, "", "the log-probabilities of 4 rows"),
        ({"nonfinite/values": 1.0, "critic_nonfinite_losses": 1.0}, "critic_", "the critic's values of 1 rows"),
        ({"nonfinite_losses": 1.0}, "", "the policy's loss is not finite"),
        ({"nonfinite_losses": 1.0}, "critic_", "the critic's gradients are not finite, and its loss is; a"),
        ({}, "", "the policy's gradients are not finite, and its loss is; a lower actor.adam.lr"),
    ],
)  # fmt: skip
def test_the_number_that_was_not_finite_first_is_named(metrics, prefix: str, said: str) -> None:
    assert why_skipped(metrics, prefix).startswith(said)


def test_a_step_in_which_the_policy_rests_is_fine() -> None:
    """critic.freezing_steps: the metrics of the policy are not there."""
    assert broken_parameters({"critic_loss": 0.3}) is None
    assert skipped_too_often({"critic_loss": 0.3}, limit=1) is None
