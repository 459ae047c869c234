"""Sources that ask a model: real plugins in real processes, and tiny real models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForSequenceClassification

from oger_recipe.errors import RecipeError
from oger_recipe.rewards.compose import Surroundings, entry_problems, make_source, sources_of
from oger_recipe.rewards.models.in_process import Noise, ProcessPlace
from oger_recipe.rewards.models.keys import ModelKeys
from oger_recipe.rewards.models.place import Reply, Sampling
from oger_recipe.rewards.sources import Group, Scores
from oger_recipe.rewards.verdict import Graded, Verdict
from oger_recipe.rewards.verifiers import look_in

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> Iterator[None]:
    """Plugins are looked for in the test's own folder, and among those of tests."""
    path = list(sys.path)
    look_in([str(tmp_path), str(PLUGINS)])
    yield
    look_in([])
    sys.path[:] = path


def group(responses: Sequence[str], question: str = "What is 1 + 1?", **others: Any) -> Group:
    size = len(responses)
    known: dict[str, Any] = {"row": {}, "answer": "2", "teachers": []} | others
    return Group(
        uid="p",
        prompt=f"<user>{question}",
        question=question,
        task="math",
        responses=list(responses),
        graded=[Graded(Verdict(1.0, 1.0, ""))] * size,
        is_teacher=[False] * size,
        truncated=[False] * size,
        may_earn=[True] * size,
        similarity=[0.0] * size,
        entropy=[0.0] * size,
        **known,
    )


class Says:
    """A place whose model is a function of the prompt. opened: how often; prompts: all that it was asked."""

    def __init__(self, says: Callable[[str], str]) -> None:
        self._says = says
        self.opened, self.prompts, self.samplings = 0, [], []  # type: ignore[var-annotated]

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.opened -= 1

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        assert self.opened == 1
        self.prompts += prompts
        self.samplings.append(sampling)
        return [Reply(self._says(prompt)) for prompt in prompts]


def score(place: Any, groups: Sequence[Group], wanted: torch.Tensor | None = None, **keys: Any) -> Scores:
    """What a source says whose engine is ``place``; None stands for the places that need none."""
    entry = {"name": "rider", "kind": "judge", **keys}
    assert list(entry_problems([entry])) == []
    (spec,) = sources_of([entry])
    source = make_source(spec, Surroundings(None, lambda keys: place, seed=7))  # type: ignore[arg-type]
    size = len(groups), len(groups[0].responses)
    return source.score(groups, torch.ones(size, dtype=torch.bool) if wanted is None else wanted)


# ---- plugins as their users have written them


@pytest.mark.parametrize("name", ["rider_reward", "consistency_reward"])
def test_a_users_plugin_gives_what_its_functions_give_by_hand(name: str, policy_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy_folder)
    replies = {
        "good": "<think>{'x': 1}</think>{'contact': 1, 'solution': 1, 'tone': 0, 'consistent': 1,}",
        "rude": '{"contact": 1, "solution": 1, "tone": 1, "consistent": 1} but: I do not care',
        "none": "I refuse to say",
        "half": '{"contact": 1}',
    }
    groups = [group(["good", "rude"], row={"rm_prompt": "Courier waits."}), group(["none", "half"], "Who?")]
    place = Says(
        lambda prompt: next(
            reply for word, reply in replies.items() if f"\n{word}\n" in prompt.replace("Reply: ", "\n")
        )
    )
    scores = score(place, groups, model=str(policy_folder), plugin=f"{name}.py")

    module = _by_hand(name)
    prompts = ["Courier waits."] * 2 + ["Who?"] * 2
    asked = module["rm_preprocess"](prompts, list(replies), tokenizer)
    assert place.prompts == asked
    assert asked[0].startswith("<|im_start|>user\n") and asked[0].endswith("<|im_start|>assistant\n")
    assert scores.values.flatten().tolist() == pytest.approx(module["rm_postprocess"](list(replies.values())))
    assert scores.errors == {}
    assert {"rider_reward": [2 / 3, 0, -1, -1], "consistency_reward": [1, 1, -1, 0]}[name] == pytest.approx(
        scores.values.flatten().tolist()
    )


def _by_hand(name: str) -> dict[str, Any]:
    """The functions of a plugin and of its helper, in one namespace."""
    names: dict[str, Any] = {}
    exec((PLUGINS / "checked_fields.py").read_text(), names)
    source = (PLUGINS / f"{name}.py").read_text()
    exec("\n".join(line for line in source.splitlines() if "import" not in line), names)
    return names


# ---- places in this process

TEXTS = ["What is 2 + 2?", "Make 96 of 3, 5 and 12. " * 6, "Hi", "a" * 40, "One more, of another length."]


@pytest.fixture(scope="module")
def head_folder(tmp_path_factory: pytest.TempPathFactory, policy_folder: Path) -> Path:
    """A Bradley-Terry model with the tokenizer of the tiny policy, as transformers and OpenRLHF save them."""
    folder = tmp_path_factory.mktemp("head")
    tokenizer = AutoTokenizer.from_pretrained(policy_folder)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config.from_pretrained(policy_folder, num_labels=1)
    model = Qwen3ForSequenceClassification(config)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    return folder


def process_place(model: Path, **keys: Any) -> ProcessPlace:
    return ProcessPlace(ModelKeys(model=str(model), place="process", **keys))


def test_a_heads_number_does_not_depend_on_its_neighbours(head_folder: Path) -> None:
    place = process_place(head_folder)
    # Two that end with the tokenizer's padding and end of sequence: these are read, too.
    texts = [*TEXTS, "Hi<|im_end|>", "Hi<|endoftext|>"]
    together = [reply.value for reply in place.classify(texts)]
    assert together == pytest.approx([place.classify([text])[0].value for text in texts], abs=1e-5)
    assert len({round(value, 3) for value in together}) == len(texts)
    tokenizer = AutoTokenizer.from_pretrained(head_folder)
    model = Qwen3ForSequenceClassification.from_pretrained(head_folder)
    for text, value in zip(texts, together, strict=True):
        with torch.no_grad():
            last = model.model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1]
        assert value == pytest.approx((model.score.weight[0] @ last).item(), abs=1e-5)


def test_what_is_written_does_not_depend_on_its_neighbours_or_their_order(policy_folder: Path) -> None:
    place = process_place(policy_folder)
    for sampling in (Sampling(max_new_tokens=12), Sampling(0.9, 0.95, 12, seed=3)):
        together = place.generate(TEXTS, sampling)
        assert together == [place.generate([text], sampling)[0] for text in TEXTS]
        assert together[::-1] == place.generate(TEXTS[::-1], sampling)
        assert [reply.cut for reply in together] == [True] * len(TEXTS)
    assert place.generate(TEXTS, Sampling(0.9, 0.95, 12, seed=4)) != together


def test_samples_have_the_models_distribution() -> None:
    """p = (.5, .3, .15, .05) at temperature 0.5 is (.685, .247, .062, .007); a nucleus of 0.8 keeps the first two."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(4000, 1)
    noise = Noise(list(range(4000)), Sampling(temperature=0.5, top_p=0.8))
    drawn = noise(torch.zeros(4000, 1, dtype=torch.long), logits).argmax(dim=1)
    shares = drawn.bincount(minlength=4) / 4000
    assert shares.tolist() == pytest.approx([25 / 34, 9 / 34, 0, 0], abs=0.03)


def test_a_prompt_that_is_too_long_costs_itself(policy_folder: Path) -> None:
    place = process_place(policy_folder, max_model_len=40)
    short, long = place.generate(["Hi", "Make 96. " * 40], Sampling(max_new_tokens=8))
    assert short.error is None and short.text
    assert "tokens, its reply up to 8, and" in str(long.error) and str(long.error).endswith("reads 40")


def test_a_model_without_a_head_is_refused(policy_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no head that gives one number: .* they lack score.weight"):
        process_place(policy_folder).classify(["Hi"])
    two = Qwen3ForSequenceClassification(Qwen3Config.from_pretrained(policy_folder, num_labels=2))
    two.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(policy_folder).save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="no head that gives one number: .* of another size are score.weight"):
        process_place(tmp_path).classify(["Hi"])
    with pytest.raises(RecipeError, match="nowhere cannot be loaded"):
        process_place(tmp_path / "nowhere").generate(["Hi"], Sampling())
