"""Two runs of one command are one run: seeds, the order of rollouts and what is drawn do not depend on arrival."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from doubles import Strategy

from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.pipeline.policy.critic_actor import OgerCriticModelActor
from oger_recipe.pipeline.policy.policy_actor import OgerPolicyModelActor
from oger_recipe.teachers.store import write_teacher_store

SIZE = 2  # rollouts of a prompt
UIDS = ["a", "b", "a", "c", "d", "b", "e", "f"]  # two prompts come twice


class Engine:
    """Answers each prompt with its seed; of a solved one, known by its uid, all samples but the first are right."""

    def __init__(self, solved: str) -> None:
        self.generate_responses = SimpleNamespace(remote=self._generate)
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)
        self._solved = solved

    def _generate(
        self, *, prompt: str, label: str, sampling_params: Any, num_samples: int, place: int, **_: Any
    ) -> Any:
        score = float(json.loads(label)["uid"] in self._solved)
        logs = {"number": 0.0}
        return [
            {
                "prompt": prompt, "label": label, "observation_tokens": [1, 2], "action_ranges": [(1, 2)],
                "rollout_log_probs": None, "reward": score if number else 0.0, "extra_logs": logs,
                "scores": score if number else 0.0,
                "graded": sampling_params.seed, "place": place,
            }
            for number in range(num_samples)
        ]  # fmt: skip


Sampled = list[tuple[str, Any]]  # uids and seeds


@pytest.fixture()
def sampled(nested: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Sampled]:
    """The rollouts of a step without teachers, whose prompts are answered in this order."""
    (tmp_path / "data").mkdir()
    write_teacher_store({}, tmp_path / "data" / "teachers.arrow")

    def sample(next_ready: Callable[[list], int], *flags: str, step: int = 1, solved: str = "", engines: int = 1):
        def wait(refs: list, **_: Any) -> tuple[list, list]:
            ready = next_ready(refs)
            return [refs[ready]], refs[:ready] + refs[ready + 1 :]

        monkeypatch.setattr(ray, "wait", wait)
        monkeypatch.setattr(ray, "get", lambda refs: refs)
        args = nested(
            f"--oger.run_dir={tmp_path}", "--rollout.batch_size=4", f"--rollout.n_samples_per_prompt={SIZE}",
            "--train.batch_size=8", *flags,
        )  # fmt: skip
        data = [(["task"], ["p"], [json.dumps({"uid": uid})], [None]) for uid in UIDS]
        generator = OgerSamplesGenerator(
            SimpleNamespace(args=args), data, None, None, [Engine(solved) for _ in range(engines)]
        )
        generator.step = step - 1
        samples = generator.generate_samples(max_len=10)[0]
        return [(json.loads(sample.labels[0])["uid"], sample.graded) for sample in samples]

    return sample


def first(refs: list) -> int:
    return 0


def last(refs: list) -> int:
    return len(refs) - 1


def test_groups_come_in_the_order_of_their_prompts_whichever_is_answered_first(sampled) -> None:
    for engines in (1, 3):
        expected = sampled(first, engines=engines)
        assert [uid for uid, _ in expected] == ["a", "a", "b", "b", "a", "a", "c", "c"]
        assert sampled(last, engines=engines) == expected == sampled(lambda refs: len(refs) // 2)


def test_filtering_asks_for_the_same_prompts_with_the_same_seeds_whichever_is_answered_first(sampled) -> None:
    flags = ("--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", "0.1", "0.9")
    expected = sampled(first, *flags, solved="bdef")
    assert [uid for uid, _ in expected[::SIZE]] == ["b", "d", "b", "e"]
    for answered in (last, lambda refs: len(refs) // 2):
        assert sampled(answered, *flags, solved="bdef") == expected
    assert sampled(first)[2:4] == expected[:2]  # the seed is of the prompt's place


def test_a_prompt_that_comes_twice_in_a_step_is_sampled_twice_and_no_seed_comes_again_at_the_next_step(
    sampled,
) -> None:
    seeds = [{seed for _, seed in sampled(first, step=step)} for step in (1, 2)]
    assert len(seeds[0]) == len(seeds[1]) == 4 and not seeds[0] & seeds[1]
    assert {seed for _, seed in sampled(first, "--train.seed=7")} & seeds[0] == set()
    assert None not in seeds[0]
    assert sampled(last, "--no-oger.deterministic") == [(uid, None) for uid, _ in sampled(first)]


class Model(torch.nn.Linear):
    """A model and its DeepSpeed engine, after so many updates, of which it has skipped some."""

    def __init__(self, updates: int, skipped: int) -> None:
        super().__init__(1, 1)
        self.global_steps, self.skipped_steps = updates, skipped

    model = property(lambda self: self)


@pytest.mark.parametrize(("actor_class", "role"), [(OgerPolicyModelActor, "actor"), (OgerCriticModelActor, "critic")])
def test_what_a_training_step_draws_follows_from_the_updates_before_it(actor_class, role: str, nested) -> None:
    def drawn(updates: int, seed: int = 1, skipped: int = 0) -> float:
        torch.rand(1)  # as an attempt draws that loads something
        actor = actor_class.__new__(actor_class)
        actor.strategy = Strategy(nested(f"--train.seed={seed}"))
        setattr(actor, role, Model(updates, skipped))
        actor.health = SimpleNamespace(begin=lambda: None, since=dict)
        actor.trainer = SimpleNamespace(
            ppo_train=lambda *_: {"drawn": torch.rand(1).item()}, replay_buffer=SimpleNamespace(clear=lambda: None)
        )
        status: dict[str, float] = actor.fit()
        return next(value for name, value in status.items() if name.endswith("drawn"))

    assert drawn(3) == drawn(3) == drawn(4, skipped=1)
    assert len({drawn(3), drawn(4), drawn(3, seed=2)}) == 3
