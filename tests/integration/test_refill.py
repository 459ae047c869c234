"""Dynamic filtering leaves out groups that are certain to have no variance, and samples others in their place.

Real parts: OpenRLHF's loop and the recipe's generator, over engines that answer with the rewards that a test gives.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.teachers.store import Teacher, write_teacher_store

RIGHT, WRONG = Teacher("a", "right", [10, 1], 1.0, 1.0), Teacher("b", "wrong", [11, 1], 0.0, 0.0)
NO_BONUS = "--oger.bonus_weight=0"
DAPO = ["--reward.overlong_buffer_len=2", "--algo.dynamic_filtering_range", "0.01", "0.99"]
SOURCES = json.dumps([{"name": "rule", "kind": "verifier"}, {"name": "judge", "kind": "mine:score"}])


class Engine:
    """Answers a prompt with rollouts of the rewards that stand in it, such as "name:1,0,0.1t" (t: truncated)."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int | None]] = []
        self.generate_responses = SimpleNamespace(remote=self._responses)
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)

    def _responses(
        self, *, prompt: str, label: str, sampling_params: Any, place: int, **_: Any
    ) -> list[dict[str, Any]]:
        self.asked.append((prompt, sampling_params.seed))
        rewards = [(float(each.rstrip("t")), each.endswith("t")) for each in prompt.partition(":")[2].split(",")]
        return [
            {
                "observation_tokens": [5, 6, 7], "action_ranges": [(1, 3)], "rollout_log_probs": [0.0, -0.5, -0.5],
                "reward": reward, "scores": float(reward >= 1), "prompt": prompt, "label": label, "place": place,
                "truncated": truncated, "graded": Graded(Verdict(reward, float(reward >= 1), "")),
            }
            for reward, truncated in rewards
        ]  # fmt: skip


@pytest.fixture()
def sample(tmp_path: Path, nested, monkeypatch) -> Callable[..., tuple[list[str], OgerSamplesGenerator, list[Any]]]:
    """Sample steps of two groups; return their prompts, the generator, and what was asked for and returned."""
    (tmp_path / "data").mkdir()
    taught = {"right": [RIGHT], "wrong": [WRONG], "both": [WRONG, RIGHT]}
    write_teacher_store(taught, tmp_path / "data" / "teachers.arrow")

    def sampled(prompts: list[str], *flags: str, order: int = 0, times: int = 1) -> Any:
        arrival = random.Random(order)

        def wait(refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
            arrived = refs.pop(arrival.randrange(len(refs)))
            return [arrived], refs

        monkeypatch.setattr(ray, "get", lambda refs: refs)
        monkeypatch.setattr(ray, "wait", wait)
        args = nested(
            f"--oger.run_dir={tmp_path}", "--rollout.n_samples_per_prompt=2", "--rollout.batch_size=2",
            "--train.batch_size=4", "--algo.dynamic_filtering_enable", *flags,
        )  # fmt: skip
        args.rollout.vllm_generate_batch_size = 2
        loader = [
            (None, [text], [json.dumps({"uid": text.partition(":")[0]})], [None]) for text in prompts
        ]  # one prompt at a time, as the run's loader
        engine = Engine()
        generator = OgerSamplesGenerator(SimpleNamespace(args=args), loader, None, None, [engine])
        steps = [generator.generate_samples(max_len=64) for _ in range(times)]
        names = [[each.prompts[0] for each in samples[::2]] for samples, *_ in steps]
        return (names[0] if times == 1 else names), generator, (engine.asked, steps)

    return sampled


KEPT, LEFT_OUT = ["x:1,0", "y:0,1"], ["m:0,0", "n:1,1"]


@pytest.mark.parametrize(
    ("group", "flags", "stays"),
    [
        ("nobody:0,0", [], False),
        ("nobody:1,1", [], False),
        ("nobody:0,0.1", [], True),  # a reward for form
        ("right:0,0", [NO_BONUS], True),  # a right teacher enters
        ("right:0,0", [NO_BONUS, "--oger.max_replace_num=0"], False),
        ("wrong:0,0", [NO_BONUS], False),
        ("both:0,0", [NO_BONUS], True),  # which of them is drawn is not looked at
        ("right:1,1", [NO_BONUS], False),
        ("right:1,1", [], True),  # the bonus tells them apart
        ("nobody:1,1", ["--oger.bonus_weight=1"], False),  # which there is none of without teachers
        ("wrong:1,1", [NO_BONUS], True),  # a wrong teacher enters, so the others are better than it
        ("wrong:1,1", [NO_BONUS, "--oger.all_correct_group=online"], False),
        ("right:1,1", ["--oger.all_correct_group=skip"], False),
        ("wrong:1,1", [NO_BONUS, "--oger.teacher_gate=0.5"], False),
        ("nobody:0,0", [NO_BONUS, "--oger.rollout_advantage=sign_exp_entropy"], True),
        *[
            ("nobody:0,0", [f"--algo.advantage.estimator={name}"], True)
            for name in ("gae", "reinforce", "process_grpo")
        ],
        *[("nobody:0,0", [f"--algo.advantage.estimator={name}"], False) for name in ("rloo", "gdpo", "max_rl")],
        ("right:0,0", [NO_BONUS, "--oger.teacher_gate=0"], True),
        ("nobody:0,0t", [], False),
        ("nobody:0,0t", ["--oger.non_stop_penalty=-1"], True),
        ("nobody:0,0", ["--reward.overlong_buffer_len=2"], True),
        ("nobody:0,0", DAPO, False),  # by their accuracy, whatever length costs
        ("nobody:1,1", DAPO, False),
        ("nobody:1,0", DAPO, True),
        ("nobody:0,0", [f"--oger.reward.sources={SOURCES}"], True),  # a judge may tell them apart
        ("right:0,0", ["--algo.dynamic_filtering_range", "0.1", "1"], False),  # too hard, as the user has it
        ("x:1,0", ["--algo.dynamic_filtering_range", "0.5", "1"], False),
        ("x:1,0", ["--algo.dynamic_filtering_range", "0.1", "0.9"], True),
    ],
)
def test_a_group_goes_only_where_it_is_certain_that_its_rows_earn_the_same(sample, group, flags, stays) -> None:
    flags = [*flags, *["--algo.dynamic_filtering_range", "0", "1"] * ("--algo.dynamic_filtering_range" not in flags)]
    others = ["x:1,0", "y:0,1"] if "0.5" not in flags else ["x:1,1,0", "y:1,1,0"]
    found, _, (asked, _) = sample([group, *others], *flags)
    assert (found == [group, others[0]]) == stays
    assert len(asked) == (2 if stays else 3)


@pytest.mark.parametrize("order", range(6))
def test_the_batch_is_the_same_in_every_order_of_arrival(sample, order: int) -> None:
    """The fourth and the sixth prompt are the first two with variance; all that is asked has its own seed."""
    prompts = ["a:0,0", "b:1,1", "c:0,0", KEPT[0], "d:1,1", KEPT[1], "e:1,0"]
    found, generator, (asked, ((_, percent, drawn, _),)) = sample(prompts, order=order)
    assert found == KEPT
    assert [prompt for prompt, _ in asked] == prompts[:6]
    assert len({seed for _, seed in asked}) == 6
    assert asked == sample(prompts, order=order + 1)[2][0]
    assert generator.filtering == {"rollout/filtered_groups": 4.0, "rollout/filling_groups": 0.0}
    assert (drawn, percent) == (6, pytest.approx(100 / 3))


def test_no_more_prompts_than_the_limit_are_drawn_and_the_first_that_were_left_out_fill_the_step(sample) -> None:
    prompts = ["a:0,0", "b:1,1", "c:0,0", KEPT[0], KEPT[1], "e:1,0"]
    found, generator, (asked, ((samples, percent, drawn, exhausted),)) = sample(
        prompts, "--oger.dynamic_filtering_max_batches=2"
    )
    assert found == ["a:0,0", KEPT[0]]  # in the order in which they were asked
    assert (len(samples), len(asked), drawn, exhausted, percent) == (4, 4, 4, False, 25)
    assert generator.filtering == {"rollout/filtered_groups": 3.0, "rollout/filling_groups": 1.0}


def test_the_end_of_the_data_costs_no_step(sample) -> None:
    """The third step would have one group: OpenRLHF trains a smaller batch then, which fits no optimizer step here."""
    prompts = [*KEPT, KEPT[0], LEFT_OUT[0], KEPT[1], LEFT_OUT[1], "z:0,1"]
    found, generator, _ = sample(prompts, times=3)
    assert found == [KEPT, [KEPT[0], KEPT[1]], [LEFT_OUT[1], "z:0,1"]]
    assert generator.filtering == {"rollout/filtered_groups": 1.0, "rollout/filling_groups": 1.0}


def test_without_filtering_every_group_is_trained(sample) -> None:
    found, generator, _ = sample([*LEFT_OUT, *KEPT])
    assert found == KEPT
    generator.args.algo.dynamic_filtering_enable = False
    generator._dataloader_iter, generator._sample_buffer = iter(generator.prompts_dataloader), []
    samples, percent, drawn, _ = generator.generate_samples(max_len=64)
    assert [each.prompts[0] for each in samples[::2]] == LEFT_OUT
    assert (percent, drawn) == (None, 2)
    assert torch.cat([each.rewards for each in samples]).tolist() == [0, 0, 1, 1]
