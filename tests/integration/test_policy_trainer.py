"""How the policy's trainer cuts a batch into micro-batches, and what it reports of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from doubles import Strategy
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor

from oger_recipe.algorithm.micro_batches import LengthSortedBatches
from oger_recipe.plugin.policy.trainer import OgerActorPPOTrainer
from oger_recipe.plugin.policy.updates import UpdateHealth

LENGTHS = [3, 9, 4, 4, 12, 2, 7, 5]  # of the responses; prompts have two tokens


def _rows() -> list[Experience]:
    """One row each, as they come from the engine; the first is a teacher's."""
    rows = []
    for number, length in enumerate(LENGTHS):
        sequences = torch.arange(1, length + 3).unsqueeze(0) + 20 * number
        action_mask = torch.ones(1, length + 1, dtype=torch.long)
        action_mask[:, 0] = 0
        rows.append(
            Experience(
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=action_mask,
                action_log_probs=-0.001 * sequences[:, 1:] * action_mask,
                base_action_log_probs=-0.0005 * sequences[:, 1:] * action_mask,
                advantages=(number - 3.5) * action_mask,
                total_length=torch.tensor([float(length + 2)]),
                info={"off_policy_tokens": torch.tensor([float(length) if number == 0 else 0.0])},
            )
        )
    return rows


class Policy(torch.nn.Module):
    """A token's log-probability is -weight * token, its entropy token / 100: whatever the other rows are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.001))
        self.seen: list[list[int]] = []

    def forward(self, sequences, action_mask, **_):
        self.seen.append(action_mask.sum(dim=1).tolist())
        return -self.weight * sequences[:, 1:] * action_mask, SimpleNamespace(entropy=sequences[:, 1:] / 100)


class OneRank(Strategy):
    """DeepSpeed's part: every loss counts 1 / gas."""

    def backward(self, loss: torch.Tensor, *_: Any) -> None:
        (loss / self.accumulated_gradient).backward()


@pytest.fixture()
def train(nested, monkeypatch) -> Callable[..., tuple[Policy, dict[str, float]]]:
    """Trains one optimizer step of all rows, cut into micro-batches of this size."""
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)

    def trained(micro_batch_size: int, *flags: str, kl_coefficient: float = 0.0) -> tuple[Policy, dict[str, float]]:
        sizes = (f"--train.batch_size={len(LENGTHS)}", f"--train.micro_batch_size={micro_batch_size}")
        args = nested(*sizes, "--rollout.max_new_tokens=12", "--actor.entropy_coef=0", *flags)
        scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        trainer = OgerActorPPOTrainer(
            OneRank(args), Policy(), None, None, scheduler, micro_train_batch_size=micro_batch_size,
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer.replay_buffer.append(Experience.concat_experiences(_rows(), 0))
        return trainer.actor, trainer.ppo_train(kl_coefficient)

    return trained


@pytest.mark.parametrize("seed", range(3))
def test_a_step_cut_by_length_has_the_gradient_and_the_report_of_the_step_in_one_piece(seed: int, train) -> None:
    torch.manual_seed(seed)
    whole, expected = train(len(LENGTHS))
    cut, found = train(2)
    assert cut.seen == [[12, 9], [7, 5], [4, 4], [3, 2]]
    assert cut.weight.grad.item() == pytest.approx(whole.weight.grad.item(), rel=1e-5)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-7), name
    # The response tokens of row r are 20 r + 3, 20 r + 4 and so on.
    tokens = [20 * row + 3 + position for row, length in enumerate(LENGTHS) for position in range(length)]
    assert float(found["entropy_loss"]) == pytest.approx(sum(tokens) / len(tokens) / 100, rel=1e-5)
    # The first row's tokens are the teacher's: means over one kind are of that kind's tokens alone.
    of_teacher, of_rollouts = tokens[: LENGTHS[0]], tokens[LENGTHS[0] :]
    assert found["off_policy_token_share"] == pytest.approx(LENGTHS[0] / len(tokens))
    for name, kind in (("off_policy_prob", of_teacher), ("on_policy_prob", of_rollouts)):
        expected_mean = sum(math.exp(-0.001 * token) for token in kind) / len(kind)
        assert float(found[name]) == pytest.approx(expected_mean, rel=1e-4), name
    assert float(found["on_policy_ratio"]) == pytest.approx(1.0)


@pytest.mark.parametrize(("estimator", "direction"), [("abs", 1.0), ("k1", -1.0)])
def test_the_kl_in_the_loss_is_of_the_chosen_estimator(estimator: str, direction: float, train) -> None:
    """A token t has -w t, and -t / 2000 of the reference, where w is 1 / 1000: the log ratio is -t / 2000.

    Its size grows with w by t, the log ratio itself falls by t.
    """
    tokens = [20 * row + 3 + position for row, length in enumerate(LENGTHS) for position in range(length)]
    mean = sum(tokens) / len(tokens)
    flags = ("--algo.kl.use_loss", "--algo.kl.init_coef=3", f"--algo.kl.estimator={estimator}")
    without, _ = train(2)
    policy, status = train(2, *flags, kl_coefficient=3.0)
    assert float(status["kl"]) == pytest.approx(direction * mean / 2000, rel=1e-4)
    gradient = policy.weight.grad.item() - without.weight.grad.item()
    assert gradient == pytest.approx(3 * direction * mean, rel=1e-3)


def test_every_row_is_trained_once_in_a_random_step_whose_rows_are_sorted() -> None:
    lengths = [(7 * row) % 64 for row in range(67)]
    torch.manual_seed(0)
    batches = LengthSortedBatches(lengths, batch_size=4, accumulated=4)
    first, second = list(batches), list(batches)
    assert len(batches) == len(first) == 16 and {len(batch) for batch in first} == {4}
    assert len({row for batch in first for row in batch}) == 64  # three rows do not fill a micro-batch
    for start in range(0, 16, 4):
        of_step = [lengths[row] for batch in first[start : start + 4] for row in batch]
        assert of_step == sorted(of_step, reverse=True)
        assert max(of_step) - min(of_step) > 32  # steps are not sorted among each other
    assert [set(sum(first[start : start + 4], [])) for start in (0, 4, 8, 12)] != [
        set(sum(second[start : start + 4], [])) for start in (0, 4, 8, 12)
    ]


@pytest.mark.parametrize("ranks", [1, 2])
def test_forward_passes_get_rows_of_like_length_and_every_rank_long_and_short_ones(controller, ranks: int) -> None:
    maker = controller("--rollout.micro_batch_size=2", f"--actor.num_gpus_per_node={ranks}")
    rows = _rows()
    micro_batches = maker.split_rollout_samples(rows)
    sorted_rows = [[4, 1], [6, 7], [2, 3], [0, 5]]
    assert [batch.index for batch in micro_batches] == (
        sorted_rows if ranks == 1 else [*sorted_rows[::2], *sorted_rows[1::2]]
    )
    for batch in micro_batches:
        for position, row in enumerate(batch.index):
            length = rows[row].sequences.shape[1]
            assert torch.equal(batch.sequences[position, :length], rows[row].sequences[0])


class Engine:
    """DeepSpeed's counts, and a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.global_steps, self.skipped_steps, self.module = 10, 2, module


def test_updates_are_counted_from_the_beginning_of_the_step(nested) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    engine = Engine(module)
    health = UpdateHealth(Strategy(nested("--train.micro_batch_size=1")), engine)
    engine.global_steps, engine.skipped_steps = 16, 7
    with torch.no_grad():
        module[0].bias[1], module[1].weight[0, 1] = math.inf, math.nan
    assert health.since() == {"updates": 6.0, "skipped_updates": 5.0, "nonfinite_parameters": 2.0}
