"""Advantages from rewards of steps of reasoning, through the controller: a teacher and a truncated rollout in the
group, a rollout that a teacher began, ragged steps, and whatever way rows are cut into micro-batches."""

from __future__ import annotations

import json
import math
from statistics import mean, pstdev, stdev
from typing import Any

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from step_trees import Tree, plain_process_grpo, plain_process_rloo, plain_step_gae, plain_token_gae

from oger_recipe.algorithm.steps import token_gae_by_steps
from oger_recipe.base.files import read_jsonl
from oger_recipe.pipeline.controller import experience_maker
from oger_recipe.teachers.store import Teacher

SOURCE = """
import math
import torch
from oger_recipe.rewards.sources import Scores

def of(step):
    return (len(step) * 7 % 5 - 2) / 4

class Process:
    def __init__(self, fail=""):
        self.fail = fail

    def score(self, groups, wanted):
        n = max(len(steps) for group in groups for steps in group.steps)
        rows = [[list(map(of, steps)) for steps in group.steps] for group in groups]
        rewards = [[row + [math.nan] * (n - len(row)) for row in group] for group in rows]
        errors = {(g, r): "gone" for g, group in enumerate(groups) for r, text in enumerate(group.responses)
                  if text == self.fail}
        values = [[min(map(of, steps)) for steps in group.steps] for group in groups]
        return Scores(torch.tensor(values), errors=errors, steps=torch.tensor(rewards))
"""
WEIGHT = 0.5
# Text, verified reward, truncated, tokens of a teacher. "zz.y" makes room for the teacher of group u.
ROWS: dict[str, list[tuple[str, float, bool, int]]] = {
    "u": [("a.bb.ccc", 1.0, False, 0), ("d", 0.0, False, 0), ("ee.ff", 0.0, True, 0), ("zz.y", 0.0, False, 0)],
    "v": [("g.h.i.jj.k", 0.0, False, 0), ("lllll.m", 1.0, False, 3), (".", 0.0, False, 0), ("n.oo", 1.0, False, 0)],
}
TEACHER = "t.uuu.v.w"
PENALTY = -0.5
ESTIMATORS = ["appo", "tppo", "process_grpo", "process_grpo_batch", "process_rloo"]


@pytest.fixture()
def step(controller, models, rollout, tmp_path, letters):
    """Makes a step of the two groups, in any order; returns the controller and what it gives each text."""
    (tmp_path / "mine_by_steps.py").write_text(SOURCE)

    def make(
        *flags: str, estimator: str, groups: tuple[str, ...] = ("u", "v"), order: tuple[int, ...] = (0, 1, 2, 3),
        reference: Any = None, fail: str = "", coefficient: float | None = None,
    ) -> tuple[Any, dict[str, dict[str, Any]]]:  # fmt: skip
        models.similarity = {"zz.y": 0.9} | {
            text: 0.1 for rows in ROWS.values() for text, *_ in rows if text != "zz.y"
        }
        listed = [
            {"name": "rule", "kind": "verifier"},
            {"name": "prm", "kind": "mine_by_steps:Process", "weight": WEIGHT, "fail": fail},
        ]
        maker = controller(
            f"--oger.reward.sources={json.dumps(listed)}", f'--oger.verifier_path=["{tmp_path}"]',
            '--oger.steps.delimiters=["."]', f"--oger.non_stop_penalty={PENALTY}",
            f"--algo.advantage.estimator={estimator}", *flags,
            teachers={"u": [Teacher("a", TEACHER, [*letters.encode(TEACHER), letters.eos_token_id], 1.0, 1.0)]},
            critic=(lambda tokens: (tokens % 11) / 10) if estimator in ("appo", "tppo") else None,
            reference=reference,
        )  # fmt: skip
        maker.kl_ctl.value = maker.kl_ctl.value if coefficient is None else coefficient
        rows = [
            rollout(text, reward, uid=uid, truncated=truncated, guided=guided)
            for uid in groups
            for text, reward, truncated, guided in (ROWS[uid][place] for place in order)
        ]
        return maker, by_text(maker, maker.make_experience_batch(rows))

    return make


def by_text(maker: Any, experiences: list[Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for experience in experiences:
        for place in range(len(experience.index)):
            mask = experience.action_mask[place].bool()
            tokens = experience.sequences[place, 1:][mask]
            of_row = {
                name: getattr(experience, name)[place][mask].tolist()
                for name in ("advantages", "returns", "values", "step_index")
                if getattr(experience, name) is not None
            }
            outside = [getattr(experience, name)[place][~mask] for name in ("advantages", "step_index")]
            assert not any(each.any() for each in outside)
            text = maker.tokenizer.decode(tokens, skip_special_tokens=True)
            found[text] = of_row | {
                name: experience.info[name][place].item() for name in ("return", "group_reward_std")
            }
    return found


def steps_of(text: str) -> list[str]:
    """As the rule cuts these texts: a step ends behind a point; a point alone is one step."""
    parts = [part + "." for part in text.split(".")]
    parts[-1] = parts[-1][:-1]
    return [part for part in parts if part] or [text]


def of(step: str) -> float:
    return (len(step) * 7 % 5 - 2) / 4


def trained() -> dict[str, list[tuple[str, float]]]:
    """The rows that are trained, with the rewards of their whole responses."""
    rows = {
        uid: [(text, reward + PENALTY * truncated) for text, reward, truncated, _ in of_group]
        for uid, of_group in ROWS.items()
    }
    rows["u"][3] = (TEACHER, 1.0)
    return rows


def paid(text: str, whole: float) -> list[float]:
    rewards = [WEIGHT * of(step) for step in steps_of(text)]
    return [*rewards[:-1], rewards[-1] + whole]


def tokens(text: str) -> list[int]:
    """A token for each character, and the end of sequence in the last step."""
    counts = [len(step) for step in steps_of(text)]
    return [*counts[:-1], counts[-1] + 1]


def expected(
    estimator: str, found: dict[str, dict[str, Any]], gamma: float, lam: float, **rows: Any
) -> dict[str, list[float]]:
    """The advantage of every token before it is whitened, in plain Python; ``rows``: other groups in their place."""
    groups = trained() | rows
    rewards = {uid: [paid(*row) for row in rows] for uid, rows in groups.items()}
    if estimator in ("appo", "tppo"):
        plain = {}
        for uid, rows in groups.items():
            for (text, _), of_steps in zip(rows, rewards[uid], strict=True):
                ends = [sum(tokens(text)[: number + 1]) for number in range(len(of_steps))]
                places = [list(range(end - count, end)) for end, count in zip(ends, tokens(text), strict=True)]
                values = found[text]["values"]
                if estimator == "tppo":
                    (of_tokens,), _ = plain_token_gae([of_steps], [values], [Tree(places)], gamma, lam, [0.0])
                else:
                    first = [values[step[0]] for step in places]
                    (one,), _ = plain_step_gae([of_steps], [first], [Tree(places)], gamma, lam, [0.0])
                    of_tokens = [value for value, step in zip(one, places, strict=True) for _ in step]
                plain[text] = of_tokens
        return plain
    if estimator == "process_grpo_batch":
        every = [reward for rows in rewards.values() for row in rows for reward in row]
        by_step = {
            uid: [[(reward - mean(every)) / (pstdev(every) + 1e-8) for reward in row] for row in rows]
            for uid, rows in rewards.items()
        }
    elif estimator == "process_grpo":
        by_step = {uid: plain_process_grpo(rows) for uid, rows in rewards.items()}
    else:
        by_step = {
            uid: plain_process_rloo(rewards[uid], [tokens(text) for text, _ in rows], [whole for _, whole in rows])
            for uid, rows in groups.items()
        }
    return {
        text: [value for value, count in zip(row, tokens(text), strict=True) for _ in range(count)]
        for uid, rows in groups.items()
        for (text, _), row in zip(rows, by_step[uid], strict=True)
    }


def whitened(estimator: str, plain: dict[str, list[float]], divide: bool = True) -> dict[str, list[float]]:
    if estimator in ("process_grpo", "process_grpo_batch"):
        return plain
    counted = [value for row in plain.values() for value in row]
    if estimator == "appo":
        firsts = {text: [sum(tokens(text)[:number]) for number in range(len(tokens(text)))] for text in plain}
        counted = [plain[text][place] for text, places in firsts.items() for place in places]
    middle, spread = mean(counted), pstdev(counted) if divide else 1.0
    return {text: [(value - middle) / spread for value in row] for text, row in plain.items()}


DISCOUNTS = ["--algo.advantage.gamma=0.9", "--algo.advantage.lambd=0.8"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("divide", [True, False])
def test_the_advantages_of_a_step_are_those_of_plain_python(step, estimator, divide):
    _, found = step(*DISCOUNTS, *([] if divide else ["--algo.advantage.no_std_norm"]), estimator=estimator)
    plain = whitened(estimator, expected(estimator, found, 0.9, 0.8), divide)
    worth = dict(row for rows in trained().values() for row in rows)
    assert set(found) == set(plain) == set(worth) and len(found) == 8
    for text, row in plain.items():
        assert found[text]["advantages"] == pytest.approx(row, abs=1e-5), text
    for rows in trained().values():
        totals = {text: sum(paid(text, whole)) for text, whole in rows}
        for text, total in totals.items():
            assert found[text]["return"] == pytest.approx(total)
            assert found[text]["group_reward_std"] == pytest.approx(stdev(totals.values()))
    assert len(found) == len(plain) == 8


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("flags", "groups", "order"),
    [
        (["--rollout.micro_batch_size=1"], ("u", "v"), (0, 1, 2, 3)),
        (["--rollout.micro_batch_size=2"], ("v", "u"), (3, 1, 0, 2)),
        (["--rollout.micro_batch_size=8"], ("u", "v"), (2, 3, 1, 0)),
        (["--train.dynamic_batch_enable", "--rollout.max_tokens_per_gpu=24"], ("v", "u"), (1, 2, 3, 0)),
        (["--actor.num_gpus_per_node=2", "--rollout.micro_batch_size=2"], ("u", "v"), (0, 3, 1, 2)),
    ],
    ids=["one by one", "two by two", "at once", "by tokens", "two ranks"],
)  # fmt: skip
def test_however_rows_are_cut_and_ordered_their_advantages_are_the_same(step, estimator, flags, groups, order):
    _, whole = step(*DISCOUNTS, estimator=estimator)
    _, cut = step(*DISCOUNTS, *flags, estimator=estimator, groups=groups, order=order)
    assert set(cut) == set(whole)
    for text, row in whole.items():
        for name, values in row.items():
            assert cut[text][name] == pytest.approx(values, abs=1e-5), (text, name)


def test_teachers_can_be_held_against_the_rollouts_alone(step):
    """Also rows that a teacher began set no baseline."""
    flags = ["--oger.advantage_baseline=rollouts", "--algo.advantage.no_std_norm"]
    _, found = step(*flags, estimator="process_grpo")
    own = [reward for text, whole in trained()["v"] if text != "lllll.m" for reward in paid(text, whole)]
    z = [(reward - mean(own)) / (stdev(own) + 1e-6) for reward in paid("lllll.m", 1.0)]
    assert found["lllll.m"]["advantages"] == pytest.approx([sum(z)] * 6 + [z[1]] * 2, abs=1e-5)


@pytest.mark.parametrize("estimator", ["appo", "tppo"])
def test_a_critic_is_trained_towards_returns_that_are_not_whitened(step, estimator):
    _, found = step(*DISCOUNTS, estimator=estimator)
    plain = expected(estimator, found, 0.9, 0.8)
    for text, row in found.items():
        towards = [advantage + value for advantage, value in zip(plain[text], row["values"], strict=True)]
        if estimator == "appo":
            first = {sum(tokens(text)[:number]) for number in range(len(tokens(text)))}
            towards = [value if place in first else 0.0 for place, value in enumerate(towards)]
        assert row["returns"] == pytest.approx(towards, abs=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_that_are_left_out_have_no_advantage_and_do_not_whiten_others(step, estimator):
    _, kept = step(*DISCOUNTS, estimator=estimator)
    _, found = step(*DISCOUNTS, "--oger.disable_truncation_advantage", estimator=estimator)
    assert not any(found["ee.ff"]["advantages"]) and any(kept["ee.ff"]["advantages"])
    plain = expected(estimator, found, 0.9, 0.8)
    others = {text: row for text, row in plain.items() if text != "ee.ff"}
    for text, row in whitened(estimator, others).items():
        assert found[text]["advantages"] == pytest.approx(row, abs=1e-5), text


def test_teachers_weigh_as_much_as_ever_and_so_do_the_tokens_with_which_they_began(step):
    weights = ["--oger.prefix_reward_weight_alpha=3", "--oger.prefix_reward_weight_beta=0.5"]
    _, plain = step(estimator="process_grpo")
    _, found = step(*weights, estimator="process_grpo")
    for text, row in plain.items():
        taught = len(row["advantages"]) if text == TEACHER else 3 if text == "lllll.m" else 0
        weighed = [value * (3 if place < taught else 0.5) for place, value in enumerate(row["advantages"])]
        assert found[text]["advantages"] == pytest.approx(weighed)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_kl_of_a_steps_tokens_is_taken_off_its_reward(step, estimator):
    """The reference says -0.9 of every token, the policy -0.5: a KL of 0.4 (k1) for each, with coefficient 0.25."""
    flags = ["--algo.kl.init_coef=0.25", "--algo.advantage.no_std_norm"]
    _, without = step("--algo.advantage.no_std_norm", estimator=estimator)
    _, found = step(*flags, estimator=estimator, reference=-0.9)
    changes = {}
    for text, row in found.items():
        whole = sum(tokens(text))
        assert row["return"] == pytest.approx(without[text]["return"] - 0.1 * whole)
        change = []
        for place, count in enumerate(tokens(text)):  # gamma = lambda = 1: this step's and all later ones'
            change += [-0.1 * sum(tokens(text)[place:])] * count
        changes[text] = change
    shifted = {text: changes[text] for text in found}
    middle = 0.0
    if estimator in ("appo", "tppo", "process_rloo"):
        middle = mean(v for row in shifted.values() for v in row)
        if estimator == "appo":
            middle = mean(
                shifted[text][sum(tokens(text)[:number])] for text in found for number in range(len(tokens(text)))
            )
    for text, row in found.items():
        plain = [a + b - middle for a, b in zip(without[text]["advantages"], shifted[text], strict=True)]
        assert row["advantages"] == pytest.approx(plain, abs=1e-5), text


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_coefficient_below_0_pays_for_no_distance(step, estimator):
    """OpenRLHF's adaptive coefficient falls below 0 where its horizon is short, and OpenRLHF then takes it for 0."""
    _, expected = step(estimator=estimator)
    _, found = step("--algo.kl.init_coef=0.25", estimator=estimator, reference=-0.9, coefficient=-0.25)
    assert found == expected


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_step_of_reasoning_without_tokens_or_without_a_text_is_no_ones_reward(step, monkeypatch, tokens):
    """The row has two steps by its text; its reward of a third one, or of the second, would go nowhere."""
    upstream = experience_maker.OgerExperienceMaker.compute_advantages_and_returns

    def with_other_steps(self, experiences):
        for experience in experiences:
            for place, row in enumerate(experience.index):
                if row == 0:
                    experience.step_index[place][experience.action_mask[place].bool()] = tokens
        return upstream(self, experiences)

    monkeypatch.setattr(experience_maker.OgerExperienceMaker, "compute_advantages_and_returns", with_other_steps)
    with pytest.raises(RuntimeError, match=f"row 0 of the step has {tokens} steps in its tokens, 2 in its text"):
        step(estimator="process_grpo", order=(2, 0, 1, 3))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_length_penalties_join_the_last_step(step, estimator):
    """OpenRLHF's own, which are for whole responses: what is cut off keeps a quarter of its reward."""
    flags = ["--reward.stop_properly_penalty_coef=0.25", "--oger.non_stop_penalty=0", *DISCOUNTS]
    maker, found = step(*flags, estimator=estimator)
    text = "ee.ff"
    total = sum(WEIGHT * of(each) for each in steps_of(text))
    assert total and found[text]["return"] == pytest.approx(0.25 * total)
    assert maker.current.rewards.total[0, 2].item() == pytest.approx(total)  # as the sources said
    rows = trained()["u"]
    rows[2] = (text, -0.75 * total)
    plain = whitened(estimator, expected(estimator, found, 0.9, 0.8, u=rows))
    for each, row in plain.items():
        assert found[each]["advantages"] == pytest.approx(row, abs=1e-5), each


def test_rewards_of_steps_are_held_within_openrlhfs_range(step):
    _, found = step("--reward.clip_range", "-0.1", "0.2", estimator="process_grpo_batch")
    clipped = [[min(max(reward, -0.1), 0.2) for reward in paid(*row)] for rows in trained().values() for row in rows]
    every = [reward for row in clipped for reward in row]
    texts = [text for rows in trained().values() for text, _ in rows]
    for text, row in zip(texts, clipped, strict=True):
        z = [(reward - mean(every)) / pstdev(every) for reward in row]
        plain = [value for value, count in zip(z, tokens(text), strict=True) for _ in range(count)]
        assert found[text]["advantages"] == pytest.approx(plain, abs=1e-5)


def test_a_group_on_which_a_process_source_failed_can_be_dropped(step):
    maker, found = step("--oger.reward.on_error=drop_group", estimator="process_rloo", fail="d")
    assert not any(any(found[text]["advantages"]) for text, _ in trained()["u"])
    assert any(found["n.oo"]["advantages"]) and maker.current.rewards.dropped.tolist() == [True, False]


def test_a_row_on_which_it_failed_has_the_reward_of_its_outcome_alone(step):
    maker, found = step(estimator="process_rloo", fail="a.bb.ccc")
    assert maker.current.rewards.steps.rewards[0, 0, :3].tolist() == [0.0, 0.0, 1.0]
    assert found["a.bb.ccc"]["return"] == 1.0
    assert maker.current.rewards.errors["prm"] == {0: "gone"}


def test_samples_say_what_a_row_was_paid_in_all(step):
    maker, _ = step(estimator="process_grpo")
    lines = {line["text"]: line for line in read_jsonl(maker.run_dir / "samples" / "step_00001.jsonl")}
    for rows in trained().values():
        for text, whole in rows:
            assert lines[text]["total_reward"] == pytest.approx(sum(paid(text, whole)))
            assert lines[text]["sources"]["prm"] == min(map(of, steps_of(text)))


@pytest.mark.parametrize("lam", [1.0, 0.7])
def test_without_a_discount_tokens_by_steps_are_openrlhfs_gae_of_rewards_at_the_ends_of_steps(lam):
    torch.manual_seed(0)
    index = torch.tensor([[0, 0, 1, 2, 2, 2, -1], [0, 1, 1, 1, -1, -1, -1], [0, 0, 0, 0, 0, 0, 0]])
    mask, values, rewards = index >= 0, torch.randn(3, 7), torch.randn(3, 3)
    at_ends = torch.zeros(3, 7)
    for row, steps in enumerate(index.tolist()):
        for place, number in enumerate(steps):
            if number >= 0 and (place == 6 or steps[place + 1] != number):
                at_ends[row, place] = rewards[row, number]
    theirs = RemoteExperienceMaker.get_advantages_and_returns(None, values, at_ends, mask, 1.0, lam)
    ours = token_gae_by_steps(rewards, values, index, gamma=1.0, lam=lam)
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(one * mask, other)
    assert math.isfinite(ours[0].sum().item())
