"""The engine's probabilities in the place of the policy's: OpenRLHF's corrections, on rollout tokens alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from openrlhf.models.loss import PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from oger_recipe.algorithm.engine_ratio import EngineCorrection, correction_metrics
from oger_recipe.pipeline.policy.loss import Given, HybridPolicyLoss
from oger_recipe.teachers.store import Teacher

# Level, mode, gating and threshold: all that OpenRLHF combines, with bounds that keep some and filter some.
SCHEMES = [
    ("token", "clip", "ratio", [0.0, 1.05]),
    ("token", "clip", "ratio", [0.9, 1.1]),
    ("token", "mask", "ratio", [0.9, 1.1]),
    ("seq", "mask", "ratio", [0.97, 1.03]),
    ("token", "mask", "binary_kl", [0.0, 0.002]),
    ("seq", "mask", "binary_kl", [0.0, 0.0035]),
    ("token", "mask", "tv", [0.0, 0.03]),
    ("seq", "mask", "tv", [0.0, 0.022]),
]
LENGTHS = [9, 4, 12, 1, 7]
TEXTS = ["ab", "cd", "ef", "gh"]


def _rows(seed: int) -> tuple[torch.Tensor, ...]:
    """log p, log pi, log mu, advantages and mask of rollouts, [5, 12]; 0 around their tokens, as OpenRLHF pads."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)

    def near(values: torch.Tensor, by: float) -> torch.Tensor:
        return (values + by * torch.randn(values.shape, generator=generator)).clamp(max=-1e-3) * mask

    old = near(-torch.rand(mask.shape, generator=generator) * 3, 0.0)
    return near(old, 0.2), old, near(old, 0.1), torch.randn(len(mask), 1, generator=generator) * mask, mask.long()


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize(("seed", "dual_clip"), [(0, None), (1, None), (2, None), (0, 1.05), (1, 1.3)])
def test_without_teachers_loss_gradient_and_shares_are_openrlhfs(
    scheme: tuple[Any, ...], aggregation: str, seed: int, dual_clip: float | None, nested
) -> None:
    log_probs, old, engine, advantages, mask = _rows(seed)
    totals = {"dp_size": 2, "batch_num_tokens": torch.tensor(50.0), "global_batch_size": torch.tensor(9.0)}
    arguments = {"action_mask": mask} | totals

    theirs = log_probs.clone().requires_grad_()
    level, mode, gating, threshold = scheme
    upstream = PolicyLoss(
        0.2, 0.2, dual_clip, token_level_loss=aggregation == "token_mean",
        is_correction_level=level, is_correction_mode=mode, is_correction_gating=gating,
        is_correction_threshold=threshold,
    )  # fmt: skip
    expected, *_, share = upstream(theirs, old, advantages, rollout_log_probs=engine, **arguments)
    expected.backward()

    ours = log_probs.clone().requires_grad_()
    flags = [f"--oger.loss_aggregation={aggregation}", "--rollout.max_new_tokens=12"]
    loss_of = HybridPolicyLoss(nested(*flags, *([] if dual_clip is None else [f"--actor.dual_clip={dual_clip}"])))
    correction = EngineCorrection.named(*scheme)
    assert correction is not None
    weighed = correction.of(old, engine, mask)
    loss_of.given = Given(torch.zeros_like(mask).bool(), engine_weights=weighed.weight)
    loss, *_ = loss_of(ours, old, advantages, rollout_log_probs=None, **arguments)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-8)
    found = correction_metrics([weighed])
    assert found["vllm_filtered_rows" if level == "seq" else "vllm_filtered_tokens"] == pytest.approx(share.item())
    assert 0 < share < 1


# From the engine's answers to the weights of the loss.

TIS = (
    "--algo.advantage.is_correction_level=token", "--algo.advantage.is_correction_mode=clip",
    "--algo.advantage.is_correction_threshold=1.02", "--oger.max_logprob_difference=1",
)  # fmt: skip


def _by_row(experiences: list[Experience], name: str) -> list[list[float]]:
    """The values of response tokens, in the order of the flat list."""
    found: dict[int, list[float]] = {}
    for experience in experiences:
        for place, row in enumerate(experience.index):
            found[row] = getattr(experience, name)[place][experience.action_mask[place].bool()].tolist()
    return [found[row] for row in sorted(found)]


@pytest.mark.parametrize("rows", [4, 2, 1])
def test_rollouts_are_weighed_by_their_own_tokens_and_teachers_never(
    controller, models, letters, rollout, rows
) -> None:
    """The engine says -0.5 of each of a rollout's tokens, and the policy as much less as `difference`."""
    models.difference = {"ab": 0.1, "cd": -0.01, "efgh": -0.05, "ok": -3.0}
    models.similarity = {"ab": 0.1, "cd": 0.1, "efgh": 0.1, "last": 0.9}  # the last one makes room
    teacher = Teacher("a source", "ok", [*letters.encode("ok"), letters.eos_token_id], 1.0, 1.0, [0.5, 0.25, 0.125])
    group = [rollout("ab", 1.0), rollout("cd"), rollout("efgh", guided=3), rollout("last")]
    flags = (f"--rollout.micro_batch_size={rows}", "--oger.off_policy_loss=ppo", "--oger.use_off_policy_probs")
    maker = controller(*TIS, *flags, teachers={"u": [teacher]})
    experiences = maker.make_experience_batch(group)
    down, near, up = math.exp(-0.1), math.exp(0.01), math.exp(0.05)
    assert [len(row) for row in _by_row(experiences, "engine_weights")] == [3, 3, 5, 3]
    expected = [[down] * 3, [near] * 3, [1.0] * 3 + [1.02] * 2, [1.0] * 3]
    for found, weights in zip(_by_row(experiences, "engine_weights"), expected, strict=True):
        assert found == pytest.approx(weights, rel=1e-5)
    # Teachers' own log-probabilities have a place of their own, and the engine's end here.
    known = _by_row(experiences, "teacher_log_probs")
    assert [[not math.isnan(each) for each in row] for row in known] == [
        [False] * len(row) for row in expected[:3]
    ] + [[True] * 3]
    assert known[3] == pytest.approx([math.log(0.5), math.log(0.25), math.log(0.125)])
    assert all(experience.rollout_log_probs is None for experience in experiences)
    metrics = maker.current.metrics
    assert metrics["vllm_ratio"] == pytest.approx((3 * down + 3 * near + 2 * up) / 8, rel=1e-5)
    assert metrics["vllm_ratio_max"] == pytest.approx(up, rel=1e-5)
    assert metrics["vllm_filtered_tokens"] == pytest.approx(2 / 8)
    assert metrics["vllm_filtered_rows"] == pytest.approx(1 / 3)
    assert metrics["vllm_kl"] == pytest.approx((3 * 0.1 - 3 * 0.01 - 2 * 0.05) / 8, rel=1e-4)


def test_a_row_with_broken_log_probabilities_has_no_say(controller, models, rollout) -> None:
    models.difference = {"ab": math.nan, "cd": 0.05}
    maker = controller(*TIS, "--oger.max_replace_num=0")
    experiences = maker.make_experience_batch([rollout(text, float(text == "ef")) for text in TEXTS])
    assert _by_row(experiences, "engine_weights")[0] == [1.0] * 3
    assert maker.current.metrics["vllm_ratio"] == pytest.approx((math.exp(-0.05) + 2) / 3, rel=1e-5)


def test_the_guard_stops_a_run_whose_engine_parts_also_where_it_is_corrected(controller, models, rollout) -> None:
    models.difference = dict(zip(TEXTS, (0.3, -0.3, 0.3, -0.3), strict=True))
    group = [rollout(text) for text in TEXTS]
    controller(*TIS, "--oger.max_replace_num=0").make_experience_batch(group)
    with pytest.raises(RuntimeError, match="limit: 0.1000"):
        flags = (*TIS, "--oger.max_replace_num=0", "--oger.max_logprob_difference=0.1")
        controller(*flags).make_experience_batch(group)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("indices", [[[0], [1, 2]], [[2, 0], [1]], [[0, 1, 2]]], ids=str)
def test_no_batch_mixes_up_what_engine_and_teachers_say(packing: bool, indices: list[list[int]]) -> None:
    """Through micro-batches of the controller, the replay buffer and dynamic batches."""
    rows = []
    for number, length in enumerate((2, 5, 3)):
        mask = torch.tensor([[0] + [1] * length])
        tokens = torch.arange(length + 2).unsqueeze(0)
        rows.append(
            Experience(
                sequences=tokens, attention_mask=torch.ones_like(tokens), action_mask=mask,
                total_length=torch.tensor([length + 2.0]), info={"reward": torch.tensor([0.0])},
                engine_weights=torch.arange(1.0, length + 2).unsqueeze(0) + 10 * number,
                teacher_log_probs=torch.full((1, length + 1), math.nan if number else -0.5),
            )
        )  # fmt: skip
    buffer = NaiveReplayBuffer(1, 0, False, packing, dynamic_batch=True)
    buffer.append(Experience.concat_experiences(rows[:2], 0))
    buffer.append(rows[2])
    buffer.dynamic_indices = indices
    for number, places in enumerate(indices):
        batch = buffer.collate_fn([buffer[number]])
        for at, place in enumerate(places):
            own = batch.action_mask[at].bool()
            length = int(own.sum())
            assert batch.engine_weights[at][own].tolist() == [2.0 + each + 10 * place for each in range(length)]
            known = batch.teacher_log_probs[at][own]
            assert (known == -0.5).all() if place == 0 else known.isnan().all()
