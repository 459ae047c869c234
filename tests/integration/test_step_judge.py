"""Scorer judge of kind process: real plugins in real processes, and a real model whose replies are known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from oger_recipe.base.seeds import stable_seed
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.grading.verifiers import look_in
from oger_recipe.lab.known_judges import Star, save_judge
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.place import Reply, Sampling, VerdictCache
from oger_recipe.rewards.sources import ANSWER, Group, Scores
from oger_recipe.rewards.spec import Surroundings

QUESTION = "What is 2 + 2 + 2?"
STEPS = [
    ["2 + 2 = 4.\n", "4 + 2 = 6.\n", "So 6."],
    ["2 + 2 = 4.\n", "4 * 2 = 8.\n", "So 8."],
    ["6."],
    ["2 * 3 = 6."],
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where plugins are looked for."""
    path = list(sys.path)
    look_in([str(tmp_path)])
    yield tmp_path
    look_in([])
    sys.path[:] = path


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 1 is wrong where there is an asterisk, else no step is."""
    rule = Star("First wrong step: 1", "First wrong step: -1")
    return save_judge(rule, tmp_path_factory.mktemp("judge") / "judge")


class Says:
    """A place whose model is a function of the prompt."""

    def __init__(self, says: Callable[[str], str]) -> None:
        self.says = says
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        self.prompts += prompts
        self.samplings.append(sampling)
        return [Reply(self.says(prompt), cut="cut off" in self.says(prompt)) for prompt in prompts]


def group(steps: Sequence[Sequence[str]] = STEPS, **others: Any) -> Group:
    size = len(steps)
    known: dict[str, Any] = {"row": {}, "steps": [list(each) for each in steps]} | others
    return Group(
        uid="p", prompt=f"<user>{QUESTION}", question=QUESTION, task="math", answer="6", teachers=[],
        responses=["".join(each) for each in steps], graded=[Graded(Verdict(1.0, 1.0, ""))] * size,
        is_teacher=[False] * size, truncated=[False] * size, may_earn=[True] * size,
        similarity=[0.0] * size, entropy=[0.0] * size, **known,
    )  # fmt: skip


def source_of(engine: Any = None, cache: VerdictCache | None = None, **keys: Any) -> Any:
    entry = {"name": "critic", "kind": "process", "scorer": "judge"} | keys
    assert [*entry_problems([entry])] == []
    (spec,) = sources_of([entry])
    return spec.source(Surroundings(None, lambda keys: engine, seed=7, cache=cache))  # type: ignore[arg-type]


def asked(source: Any, shown: Group | None = None) -> Scores:
    shown = shown or group()
    return source.score([shown], torch.ones(1, len(shown.steps), dtype=torch.bool))


def steps_of(scores: Scores) -> list[list[float]]:
    assert scores.steps is not None
    return [[each for each in row if each == each] for row in scores.steps[0].tolist()]


def test_steps_before_the_first_wrong_one_are_good(judge: Path, tmp_path: Path) -> None:
    keys = {"model": str(judge), "place": "in_process", "max_new_tokens": 8}
    source = source_of(cache=VerdictCache(tmp_path / "cache"), **keys)
    for share in (0.0, 1.0):  # the second time replies are kept ones
        scores = asked(source)
        # A verdict that an answer may have talked the judge out of: the worst stands beside its error.
        assert steps_of(scores) == [[1, 1, 1], [1, 0, 0], [1], [0]]
        assert scores.values[0].tolist() == [1, 0, 1, 0] and scores.causes == {(0, 3): ANSWER}
        assert scores.errors == {
            (
                0,
                3,
            ): "no verdict: step 1 is named, and the last is 0, in the judge's reply, which ends 'First wrong step: 1'"
        }
        assert {name: scores.metrics[name] for name in ("unparsed", "cut", "cached")} == {
            "unparsed": 0.25, "cut": 0, "cached": share,
        }  # fmt: skip
        assert scores.metrics["steps"] == pytest.approx(7 / 3)
    scores = asked(source_of(**keys, scale="difference", aggregate="mean", credit="min", temperature=0.1))
    assert steps_of(scores)[1] == pytest.approx([0, -0.5, -0.5], abs=1e-6)
    assert scores.values[0, :3].tolist() == pytest.approx([1, -1 / 3, 1])


OWN = """
import json

def rm_preprocess(prompts, steps, tokenizer):
    return [json.dumps([prompt, each]) for prompt, each in zip(prompts, steps)]

def rm_postprocess(results):
    return [None if "?" in result else json.loads(result) for result in results]
"""


def test_a_plugin_of_ones_own_may_give_a_number_for_each_step(folder: Path, policy_folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    replies = ["[0.5, 1, 0.25]", "[0.5, 1]", "no idea?", "cut off?", "[1, null, 1]", "not JSON", "2", "3", "0"]
    place = Says(lambda prompt: replies[place.prompts.index(prompt)])
    source = source_of(place, model=str(policy_folder), plugin="own.py", sampling_temperature=0.7, top_p=0.9)
    steps = [[f"{number}\n", "then\n", "so"] for number in range(9)]
    scores = asked(source, group(steps, row={"rm_prompt": "Say."}))
    assert place.prompts[1] == '["Say.", ["1\\n", "then\\n", "so"]]'
    assert place.samplings == [Sampling(0.7, 0.9, 1024, stable_seed(7, "critic"))]
    assert steps_of(scores) == [[0.5, 1, 0.25], [], [], [], [], [], [1, 1, 0], [], [0, 0, 0]]
    errors = {row: why for (_, row), why in scores.errors.items()}
    assert errors.pop(1) == "2 scores came for 3 steps of reasoning"
    assert errors.pop(2) == "no verdict in the judge's reply, which ends 'no idea?'"
    assert "no verdict" in errors.pop(3) and "with no number for some steps" in errors.pop(4)
    assert "JSONDecodeError" in errors.pop(5)
    assert "step 3 is named, and the last is 2" in errors.pop(7) and not errors
    assert scores.metrics["unparsed"] == 3 / 9 and scores.metrics["cut"] == 1 / 9
