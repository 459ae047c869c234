"""How the policy's trainer cuts a batch into micro-batches, and what it reports of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from doubles import Remote, Strategy
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor
from openrlhf.trainer.ray.launcher import RayActorGroup

from oger_recipe.algorithm.batches import LengthSortedBatches
from oger_recipe.algorithm.policy_loss import TOKEN_WEIGHTS
from oger_recipe.pipeline.policy.policy_trainer import OgerActorPPOTrainer
from oger_recipe.pipeline.policy.updates import UpdateHealth

LENGTHS = [3, 9, 4, 4, 12, 2, 7, 5]  # of the responses; prompts have two tokens


def _rows(
    old: float = 0.001,
    begun: int = 0,
    corrected: bool = False,
    left_out: tuple[int, ...] = (),
    mu: float | None = None,
    stored: float | None = None,
) -> list[Experience]:
    """One row each, as they come from the engine; the first is a teacher's, the second has so many of a teacher's
    tokens before its own. Steps of reasoning have three tokens; old: the weight of the policy that sampled;
    corrected: every third token is left out, and the weights of the others rise with their row; left_out: rows that
    stay out of the loss; mu: the weight of the supervised loss, where it moves; stored: the weight of the policy that
    sampled the first row, where that is known."""
    rows = []
    for number, length in enumerate(LENGTHS):
        sequences = torch.arange(1, length + 3).unsqueeze(0) + 20 * number
        action_mask = torch.ones(1, length + 1, dtype=torch.long)
        action_mask[:, 0] = 0
        action_mask *= number not in left_out
        known = action_mask.bool() & (number == 0)
        rows.append(
            Experience(
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=action_mask,
                action_log_probs=-old * sequences[:, 1:] * action_mask,
                base_action_log_probs=-0.0005 * sequences[:, 1:] * action_mask,
                advantages=(number - 3.5) * action_mask,
                total_length=torch.tensor([float(length + 2)]),
                step_index=(torch.arange(length + 1).unsqueeze(0) + 2) // 3 * action_mask,
                info={"off_policy_tokens": torch.tensor([float({0: length, 1: begun}.get(number, 0))])}
                | ({} if mu is None else {"sft_loss_coef": torch.tensor([mu])}),
                engine_weights=(torch.arange(length + 1) % 3 > 0).unsqueeze(0) * (0.5 + number) if corrected else None,
                teacher_log_probs=None if stored is None else torch.where(known, -stored * sequences[:, 1:], math.nan),
            )
        )
    return rows


class Policy(torch.nn.Module):
    """A token's log-probability is -weight * token, its entropy token / 100: whatever the other rows are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.001))
        self.seen: list[list[int]] = []  # lengths of the responses
        self.rows: list[int] = []  # their numbers

    def forward(self, sequences, action_mask, return_entropy, **_):
        self.seen.append(action_mask.sum(dim=1).tolist())
        self.rows += ((sequences[:, 0] - 1) // 20).tolist()
        return -self.weight * sequences[:, 1:] * action_mask, SimpleNamespace(
            entropy=sequences[:, 1:] / 100 if return_entropy else None
        )


class OneRank(Strategy):
    """DeepSpeed's part: every loss counts 1 / gas."""

    def backward(self, loss: torch.Tensor, *_: Any) -> None:
        (loss / self.accumulated_gradient).backward()


class Learning(OneRank):
    """DeepSpeed's part where it updates: at the end of an optimizer step the weight grows by so much."""

    growth = 0.0

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.micro_batches = 0

    def optimizer_step(self, _: Any, model: Policy, *__: Any, **___: Any) -> None:
        self.micro_batches += 1
        if self.micro_batches % self.accumulated_gradient == 0:
            with torch.no_grad():
                model.weight += self.growth


@pytest.fixture()
def train(nested, monkeypatch) -> Callable[..., tuple[Policy, dict[str, float]]]:
    """Trains one optimizer step of all rows, cut into micro-batches of this size."""
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)

    def trained(
        micro_batch_size: int, *flags: str, kl_coefficient: float = 0.0, entropies: bool = True, **of_rows: Any
    ) -> tuple[Policy, dict[str, float]]:
        sizes = (f"--train.batch_size={len(LENGTHS)}", f"--train.micro_batch_size={micro_batch_size}")
        args = nested(*sizes, "--rollout.max_new_tokens=12", "--actor.entropy_coef=0", *flags)
        args.actor.entropy_coef = args.actor.entropy_coef if entropies else None
        scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        trainer = OgerActorPPOTrainer(
            OneRank(args), Policy(), None, None, scheduler, micro_train_batch_size=micro_batch_size,
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer.replay_buffer.append(Experience.concat_experiences(_rows(**of_rows), 0))
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


@pytest.mark.parametrize(
    "flags",
    [
        (), ("--oger.off_policy_loss=ppo",), ("--oger.ratio_level=step",), ("--oger.off_policy_loss=sft",),
        ("--oger.on_policy_reshape=p_div_p_0.1",), ("--actor.dual_clip=3", "--oger.loss_aggregation=token_mean"),
    ],
)  # fmt: skip
def test_old_log_probs_of_the_update_train_as_those_of_a_pass_before_it(flags, train) -> None:
    """The policy's weight is 0.001, and zeros are what rows have that did not pass before the update."""
    (known, expected), (policy, found) = train(2, *flags), train(2, *flags, "--oger.old_log_probs=of_update", old=0.0)
    assert policy.weight.grad.item() == pytest.approx(known.weight.grad.item(), rel=1e-6)
    assert {name: float(found[name]) for name in expected} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=1e-5, abs=1e-7
    )
    other, _ = train(2, *flags, old=0.0)
    assert other.weight.grad.item() != pytest.approx(known.weight.grad.item(), rel=1e-3)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("micro_batch_size", [len(LENGTHS), 2])
def test_weights_that_correct_for_the_engine_reach_the_gradient_of_rollouts_however_cut(
    aggregation: str, micro_batch_size: int, train
) -> None:
    """The second row begins with four tokens of a teacher's; all tokens count in the totals, with weight 0 too."""
    flags = (f"--oger.loss_aggregation={aggregation}", "--oger.off_policy_loss=ppo")
    policy, found = train(micro_batch_size, *flags, begun=4, corrected=True)
    expected, of_loss, rollouts = 0.0, 0.0, 0
    for row, length in enumerate(LENGTHS):
        divisor = {"token_mean": sum(LENGTHS), "sequence_mean": 8 * length, "constant": 8 * 12}[aggregation]
        for place in range(1, length + 1):
            is_teacher = row == 0 or (row == 1 and place <= 4)
            weight = 1.0 if is_teacher else (place % 3 > 0) * (0.5 + row)
            expected += weight * (row - 3.5) * (20 * row + 2 + place) / divisor  # -A r, and log p = -w * token
            of_loss -= 0.0 if is_teacher else weight * (row - 3.5)
            rollouts += not is_teacher
    assert policy.weight.grad.item() == pytest.approx(expected, rel=1e-5)
    assert float(found["on_policy_loss"]) == pytest.approx(of_loss / rollouts, rel=1e-5)
    assert float(found["on_policy_ratio"]) == pytest.approx(1.0)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("teacher_loss", ["reshape", "sft"])
def test_rows_that_are_left_out_are_no_part_of_a_step_however_it_is_cut(aggregation, teacher_loss, train) -> None:
    """Rows 1, 4, 6 and 7 stay out, of which two make up a micro-batch: teacher 0 and rollouts 2, 3 and 5 remain. Only
    the divisor of constant still has all 8, so that a group weighs the same whatever others leave out."""
    flags = (f"--oger.loss_aggregation={aggregation}", f"--oger.off_policy_loss={teacher_loss}")
    weight = torch.tensor(0.001, dtype=torch.float64, requires_grad=True)
    tokens = {row: 20 * row + 3 + torch.arange(LENGTHS[row], dtype=torch.float64) for row in (0, 2, 3, 5)}
    rollouts = {row: 3.5 - row for row in (2, 3, 5)}
    losses = {row: minus * torch.exp(0.001 * tokens[row] - weight * tokens[row]) for row, minus in rollouts.items()}
    p = torch.exp(-weight * tokens[0])
    taught, apart = (3.5 * p / (p + 0.1), False) if teacher_loss == "reshape" else (weight * tokens[0], True)
    together = losses if apart else losses | {0: taught}
    expected = {
        "token_mean": torch.cat([*together.values()]).mean(),
        "sequence_mean": torch.stack([each.mean() for each in together.values()]).mean(),
        "constant": torch.cat([*together.values()]).sum() / (8 * 12),
    }[aggregation] + (taught.mean() if apart else 0.0)
    everything = torch.cat([*tokens.values()])
    expected.backward()
    for size in (len(LENGTHS), 2):
        model, status = train(size, *flags, left_out=(1, 4, 6, 7))
        assert model.weight.grad.item() == pytest.approx(weight.grad.item(), rel=1e-4)
        assert float(status["entropy_loss"]) == pytest.approx(everything.mean().item() / 100, rel=1e-5)


@pytest.mark.parametrize("weight", TOKEN_WEIGHTS)
@pytest.mark.parametrize("mu", [None, 0.25])
def test_weight_and_mixture_of_the_supervised_loss_however_the_step_is_cut(weight, mu, train) -> None:
    """mu of the step is that of its rows, else the setting's; row 0 is the teacher's, of tokens 3, 4 and 5."""
    flags = ("--oger.off_policy_loss=sft", "--oger.sft_loss_mixture", "--oger.sft_loss_coef=0.5")
    flags += ("--oger.loss_aggregation=token_mean", f"--oger.sft_token_weight={weight}")
    p = torch.exp(-0.001 * torch.tensor([3.0, 4.0, 5.0]))
    weights = {"none": torch.ones(3), "p_times_1mp": p * (1 - p), "exp_neg_entropy": torch.full((3,), math.exp(-0.04))}
    taught = (weights[weight] * torch.tensor([3.0, 4.0, 5.0])).mean().item()
    others = [(row - 3.5, 20 * row + 3 + place) for row in range(1, 8) for place in range(LENGTHS[row])]
    rollouts = sum(advantage * token for advantage, token in others) / len(others)
    share = 0.5 if mu is None else mu
    for size in (len(LENGTHS), 2):
        model, status = train(size, *flags, mu=mu, entropies=False)
        assert model.weight.grad.item() == pytest.approx((1 - share) * rollouts + share * taught, rel=1e-4)
        assert ("sft_loss_coef" in status) == (mu is not None)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("teacher_loss", ["ppo", "sft"])
def test_teacher_tokens_of_low_entropy_have_no_loss_and_count_however_the_step_is_cut(
    teacher_loss, aggregation, train
) -> None:
    """Of a teacher's 3 tokens the last is learnt, of the 4 before a rollout the last two: entropies rise."""
    flags = (f"--oger.off_policy_loss={teacher_loss}", f"--oger.loss_aggregation={aggregation}")
    flags += ("--oger.off_policy_top_entropy_share=0.3", "--oger.sft_loss_coef=0.5")
    tokens = {row: [20 * row + 3 + place for place in range(length)] for row, length in enumerate(LENGTHS)}
    supervised = teacher_loss == "sft"
    counted = {row: of_row[{0: 3, 1: 4}.get(row, 0) if supervised else 0 :] for row, of_row in tokens.items()}
    expected = 0.5 * (5 + 25 + 26) / 7 if supervised else 0.0
    for row, of_row in tokens.items():
        learnt = {0: [] if supervised else [5], 1: of_row[4:] if supervised else of_row[2:]}.get(row, of_row)
        divisor = {
            "token_mean": sum(map(len, counted.values())),
            "sequence_mean": sum(map(bool, counted.values())) * len(counted[row]),
            "constant": 8 * 12,
        }[aggregation]
        expected += sum((row - 3.5) * token / divisor for token in learnt)
    for size in (len(LENGTHS), 2):
        model, _ = train(size, *flags, begun=4, entropies=False)
        assert model.weight.grad.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("of_ratio", [True, False])
def test_the_ratio_to_the_policy_that_sampled_a_teachers_row_may_be_reshaped(of_ratio: bool, train) -> None:
    """Row 0 was sampled with weight 0.5: r = e^(0.499 t) of tokens 3, 4 and 5, f(r) = r / (r + 0.1) (ExGRPO)."""
    flags = ("--oger.use_off_policy_probs", *(["--oger.off_policy_reshape_ratio"] if of_ratio else []))
    flags += ("--oger.loss_aggregation=token_mean",)
    slopes, ratios = [], []
    for token in (3, 4, 5):
        r = math.exp(0.499 * token)
        ratios.append(r / (r + 0.1) if of_ratio else r)
        slopes.append(token * (0.1 * r / (r + 0.1) ** 2 if of_ratio else r))
    others = [(row - 3.5) * (20 * row + 3 + place) for row in range(1, 8) for place in range(LENGTHS[row])]
    expected = (sum(others) - 3.5 * sum(slopes)) / sum(LENGTHS)
    for size in (len(LENGTHS), 2):
        model, status = train(size, *flags, stored=0.5)
        assert model.weight.grad.item() == pytest.approx(expected, rel=1e-4)
        assert float(status["off_policy_ratio"]) == pytest.approx(sum(ratios) / 3, rel=1e-4)


def test_an_optimizer_step_that_has_nothing_left_changes_nothing(train) -> None:
    model, status = train(2, "--actor.entropy_coef=0.5", left_out=tuple(range(len(LENGTHS))))
    assert model.weight.grad.item() == 0.0
    assert math.isfinite(status["policy_loss"]) and math.isfinite(status["entropy_loss"])


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("teacher_loss", ["reshape", "ppo", "sft"])
def test_by_steps_too_the_cut_changes_neither_gradient_nor_report(aggregation: str, teacher_loss: str, train) -> None:
    """The second row's second step begins with one token of a teacher's."""
    old, flags = 0.0015, (f"--oger.loss_aggregation={aggregation}", f"--oger.off_policy_loss={teacher_loss}")
    flags += ("--oger.ratio_level=step", "--actor.entropy_coef=0.5")
    whole, expected = train(len(LENGTHS), *flags, old=old, begun=4)
    cut, found = train(2, *flags, old=old, begun=4)
    assert cut.weight.grad.item() == pytest.approx(whole.weight.grad.item(), rel=1e-4)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name
    tokens = [[20 * row + 3 + place for place in range(length)] for row, length in enumerate(LENGTHS)]
    steps = [(row, tokens[row][at : at + 3]) for row in range(2, 8) for at in range(0, LENGTHS[row], 3)]
    steps += [(1, tokens[1][4:6]), (1, tokens[1][6:9])]
    gains = [(old - 0.001) * sum(step) for _, step in steps]  # log pi - log pi_old
    shares = {
        "on_policy_prob": [math.exp(-old * sum(step)) for _, step in steps],
        "on_policy_ratio": [math.exp(gain) for gain in gains],
        "ppo_kl": [-gain for gain in gains],
        "approx_kl": [math.exp(gain) - 1 - gain for gain in gains],
        "clip_fraction": [row > 3.5 and (old - 0.001) * sum(step) > math.log(1.2) for row, step in steps],
    }
    for name, values in shares.items():
        assert float(found[name]) == pytest.approx(sum(values) / len(values), rel=1e-4), name
    every = sum(tokens, [])
    assert found["off_policy_token_share"] == pytest.approx((LENGTHS[0] + 4) / len(every))
    # The entropy bonus is a mean over tokens, whatever the ratio is of.
    assert float(found["entropy_loss"]) == pytest.approx(sum(every) / len(every) / 100, rel=1e-5)
    assert "merged_token_share" not in found


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("teacher_loss", ["reshape", "sft"])
def test_by_steps_the_gradient_of_a_rollout_is_that_of_its_steps(teacher_loss: str, aggregation: str, train) -> None:
    """A step of tokens that add up to t has -w t, so that its ratio's slope is -t ratio; no step is at its bound.

    The first row's tokens are a teacher's: with the supervised loss, the totals are of the others alone.
    """
    old, flags = 0.0011, (f"--oger.loss_aggregation={aggregation}", f"--oger.off_policy_loss={teacher_loss}")
    policy, _ = train(4, *flags, "--oger.ratio_level=step", "--oger.loss_remove_clip", old=old)
    rows, supervised, slope = list(enumerate(LENGTHS)), teacher_loss == "sft", 0.0
    units = sum(-(-length // 3) for _, length in rows[1:])
    if supervised:
        slope, rows = sum(3 + place for place in range(LENGTHS[0])) / LENGTHS[0], rows[1:]
    else:
        units += LENGTHS[0]
    for row, length in rows:
        tokens = [20 * row + 3 + place for place in range(length)]
        of_row = [tokens[place : place + 3] for place in range(0, length, 3)] if row else [[each] for each in tokens]
        whole = {"token_mean": units, "sequence_mean": len(rows) * len(of_row), "constant": 8 * 12}[aggregation]
        for step in map(sum, of_row):
            p = math.exp(-0.001 * step)
            ratio = math.exp((old - 0.001) * step) if row else 0.1 * p / (p + 0.1) ** 2
            slope += (row - 3.5) * step * ratio / whole
    assert policy.weight.grad.item() == pytest.approx(slope, rel=1e-4)


def test_a_batch_without_steps_cannot_be_trained_by_steps(train, monkeypatch) -> None:
    monkeypatch.setattr(Experience, "concat_experiences", _without_steps(Experience.concat_experiences))
    with pytest.raises(ValueError, match="does not say its steps"):
        train(2, "--oger.ratio_level=step")


def _without_steps(concat: Callable[..., Experience]) -> Callable[..., Experience]:
    def joined(*args: Any) -> Experience:
        experience = concat(*args)
        experience.step_index = None
        return experience

    return joined


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


@pytest.fixture()
def learn(nested, monkeypatch) -> Callable[..., tuple[list[int], dict[str, float], int]]:
    """Trains two epochs of four optimizer steps of two rows, in micro-batches of one: the rows in their order, the
    report, and how often the schedule was moved by hand."""
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)

    def learnt(growth: float, *flags: str) -> tuple[list[int], dict[str, float], int]:
        args = nested("--train.batch_size=2", "--train.micro_batch_size=1", "--train.max_epochs=2",
                      "--rollout.max_new_tokens=12", *flags)  # fmt: skip
        moved: list[int] = []
        scheduler = SimpleNamespace(get_last_lr=lambda: [0.0], step=lambda: moved.append(1))
        monkeypatch.setattr(Learning, "growth", growth)
        trainer = OgerActorPPOTrainer(
            Learning(args), Policy(), None, None, scheduler, micro_train_batch_size=1, dataloader_pin_memory=False
        )
        for _ in range(2):  # a batch that was given up does not keep the next one from being trained
            trainer.actor.weight.data.fill_(0.001)
            trainer.actor.rows, moved[:] = [], []
            trainer.replay_buffer.clear()
            trainer.replay_buffer.append(Experience.concat_experiences(_rows(), 0))
            status = trainer.ppo_train(0.0)
        return trainer.actor.rows, status, len(moved)

    return learnt


def _kl_of_steps(growth: float, rows: list[int], by_step: bool) -> list[float]:
    """k3 of each optimizer step of two rows, the teacher's apart; 0.001 + growth * (steps before it) is the weight."""
    found = []
    for number in range(0, len(rows), 2):
        gains = []
        for row in set(rows[number : number + 2]) - {0}:
            tokens = [20 * row + 3 + place for place in range(LENGTHS[row])]
            units = (
                [tokens[at : at + 3] for at in range(0, len(tokens), 3)] if by_step else [[each] for each in tokens]
            )
            gains += [-growth * number / 2 * sum(unit) for unit in units]
        found.append(sum(math.exp(gain) - 1 - gain for gain in gains) / max(len(gains), 1))
    return found


@pytest.mark.parametrize(("level", "limit"), [("token", 5e-4), ("step", 5e-3)])
def test_no_update_follows_the_one_whose_kl_is_above_the_limit(level: str, limit: float, learn) -> None:
    growth, by_step = 2e-4, f"--oger.ratio_level={level}"
    every, status, moved = learn(growth, by_step)
    assert len(every) == 16 and moved == 0 and "kl_stopped_updates" not in status
    taught = set()
    for seed in range(6):
        torch.manual_seed(seed)  # of the order of the rows
        rows, status, moved = learn(growth, by_step, f"--oger.kl_stop={limit}")
        kl = _kl_of_steps(growth, rows, level == "step")
        taught.add(len(kl))
        assert all(each <= limit for each in kl[:-1]) and kl[-1] > limit
        assert status["approx_kl_last"] == pytest.approx(kl[-1], rel=1e-3)
        assert status["kl_stopped_updates"] == moved == 8 - len(kl)
    assert len(taught) > 1 and min(taught) > 1 and max(taught) < 8


def test_a_limit_that_is_not_reached_changes_nothing(learn) -> None:
    torch.manual_seed(0)
    every, _, _ = learn(2e-4)
    torch.manual_seed(0)
    rows, status, moved = learn(2e-4, "--oger.kl_stop=1e6")
    assert rows == every and moved == 0 and status["kl_stopped_updates"] == 0


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


class Rows:
    """In place of a rank: the rows of each micro-batch that it gets."""

    def execute_batch(self, _: str, lists: dict[str, list[Experience]], start: int, end: int) -> list[int]:
        return [len(experience.sequences) for experience in lists["experience"][start:end]]


@pytest.mark.parametrize(
    ("rows", "ranks", "expected"), [(8, 2, [2, 2]), (8, 1, [3, 3, 2]), (6, 2, [3]), (4, 2, [2]), (8, 4, [2])]
)
def test_the_last_batch_of_the_data_goes_to_all_ranks_alike(
    controller, monkeypatch, rows: int, ranks: int, expected: list[int]
) -> None:
    """It has fewer optimizer steps. A rank with fewer micro-batches leaves the others waiting in a collective."""
    monkeypatch.setattr(ray, "put", lambda value: value)
    maker = controller("--rollout.micro_batch_size=3", f"--actor.num_gpus_per_node={ranks}")
    group = RayActorGroup.__new__(RayActorGroup)
    group._actor_handlers, group.duplicate_actors = [Remote(Rows())] * ranks, 1
    of_ranks = group.async_run_method_batch("append", experience=maker.split_rollout_samples(_rows()[:rows]))
    assert of_ranks == [expected] * ranks


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
    counted = {"updates": 6.0, "skipped_updates": 5.0, "nonfinite_parameters": 2.0}
    assert health.since() == counted | {"skipped_in_a_row": 0.0, "nonfinite_losses": 0.0}


def test_skipped_updates_are_counted_in_a_row_over_steps_but_not_in_float16(nested) -> None:
    """Where losses are scaled a skipped update is part of finding the scale."""
    for dtype, expected in (("bf16", [1.0, 3.0, 2.0, 0.0]), ("fp16", [0.0] * 4)):
        strategy = Strategy(nested("--train.micro_batch_size=1", f"--ds.param_dtype={dtype}"))
        engine = Engine(torch.nn.Linear(1, 1))
        outcomes = iter("s ss.s s. .".replace(" ", ""))

        def step(*_: Any, engine: Engine = engine, outcomes: Any = outcomes, **__: Any) -> None:
            engine.global_steps, engine.skipped_steps = (
                engine.global_steps + 1, engine.skipped_steps + (next(outcomes) == "s")
            )  # fmt: skip

        strategy.optimizer_step = step
        health, found = UpdateHealth(strategy, engine), []
        for updates in (1, 4, 2, 1):
            health.begin()
            for _ in range(updates):
                strategy.optimizer_step(None, engine, None)
            found.append(health.since()["skipped_in_a_row"])
        assert found == expected
