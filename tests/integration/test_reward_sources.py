"""Sources of reward in whole steps of the controller, and those that embed: similarity to the reference by MiniLM."""

from __future__ import annotations

import json
import sys
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from groups import group

from oger_recipe.algorithm.exploration import similarity_reward
from oger_recipe.base.files import read_jsonl
from oger_recipe.embedding.base import Encoder
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import TrajectoryEncoder, make_encoder
from oger_recipe.embedding.settings import PACKAGED_MODEL, EncoderSettings
from oger_recipe.lab.tiny_policy import build_model
from oger_recipe.models.likelihood import response_length
from oger_recipe.rewards.compose import rewards_of
from oger_recipe.rewards.kinds import KINDS, SCORERS
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.kinds.similarity import Similarity, SimilarityKeys
from oger_recipe.rewards.place import Reply, StepPrompt
from oger_recipe.rewards.sources import Group, Scores
from oger_recipe.rewards.spec import SourceSpec, Surroundings
from oger_recipe.run_folder import checkpoints
from oger_recipe.settings.encoder import EmbeddingSettings
from oger_recipe.settings.oger import OgerSettings

# ---- similarity

ANSWER = "The trains meet at noon."
SAME, CLOSE, FAR = ANSWER, "The two trains meet each other at twelve o'clock.", "Bananas are rich in potassium."


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return make_encoder(EncoderSettings(PACKAGED_MODEL, None, 256), 8)


@pytest.fixture()
def similar(encoder: Encoder, tmp_path):
    def make(**keys: Any) -> Similarity:
        return Similarity(SimilarityKeys(**keys), encoder, EmbeddingCache(encoder, tmp_path / "embeddings"))

    return make


def said(source: Similarity, *groups: Group, wanted: list[list[bool]] | None = None) -> Scores:
    n = len(groups[0].responses)
    return source.score(groups, torch.tensor(wanted or [[True] * n] * len(groups)))


def test_a_response_is_compared_with_the_reference_answer_through_the_curve(similar, encoder: Encoder) -> None:
    responses = [SAME, CLOSE, FAR, f"<think>{FAR}</think>{SAME}"]
    scores = said(similar(), group([1.0] * 4, responses=responses, answer=ANSWER))
    vectors = encoder.encode([ANSWER, CLOSE])
    close = float(vectors[0] @ vectors[1])
    assert 0.65 < close < 0.85  # between the curve's ends, by all-MiniLM-L6-v2
    expected = (1e4**close / 3981.07 - 0.1) * 1.69811 + 0.1
    assert scores.values[0].tolist() == pytest.approx([1.0, expected, 0.1, 1.0], abs=1e-4)
    assert scores.components["cosine"][0, :2].tolist() == pytest.approx([1.0, close], abs=1e-5)
    assert not scores.errors


@pytest.mark.parametrize(("part", "expected"), [("answer", [1.0, 0.1]), ("thought", [0.1, 1.0])])
def test_the_part_of_the_response_is_chosen(similar, part: str, expected: list[float]) -> None:
    responses = [f"<think>{FAR}</think>{SAME}", f"<think>{SAME}</think>{FAR}"]
    scores = said(similar(part=part), group([1.0, 1.0], responses=responses, answer=ANSWER))
    assert scores.values[0].tolist() == pytest.approx(expected, abs=1e-4)


def test_the_reference_is_a_column_and_the_curves_ends_are_keys(similar, encoder: Encoder) -> None:
    groups = [
        group([1.0, 1.0], responses=[SAME, FAR], answer="?", row={"gold": reference})
        for reference in (ANSWER, FAR, {"when": "noon"})
    ]
    scores = said(similar(reference="gold", low=0.3, high=0.9, floor=0.0), *groups)
    assert scores.values[:2].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    third = encoder.encode([SAME, '{"when": "noon"}'])
    cosine = (third[0] * third[1]).sum()
    assert scores.values[2, 0].item() == pytest.approx(
        similarity_reward(cosine, low=0.3, high=0.9, floor=0.0).item(), abs=1e-5
    )


class Refuses(TrajectoryEncoder):
    """Has no vector for texts with these words in them."""

    refused = ("Bananas", "nothing")

    def _embed(self, texts: list[str]) -> tuple[torch.Tensor, dict[int, str]]:
        vectors, _ = super()._embed(texts)
        bad = [row for row, text in enumerate(texts) if any(word in text for word in self.refused)]
        vectors[bad] = torch.nan
        return vectors, dict.fromkeys(bad, "the server refuses it")


def test_a_text_that_cannot_be_embedded_is_its_rows_error_and_rows_that_do_not_count_are_not_embedded(
    tmp_path,
) -> None:
    encoder = Refuses(EncoderSettings(PACKAGED_MODEL, None, 256), 8)
    source = Similarity(SimilarityKeys(), encoder, EmbeddingCache(encoder, tmp_path))
    groups = [
        group([1.0] * 3, responses=[SAME, FAR, FAR], answer=ANSWER),
        group([1.0] * 3, responses=[SAME] * 3, answer="nothing"),
        group([1.0] * 3, responses=[SAME] * 3, answer=""),
    ]
    scores = said(source, *groups, wanted=[[True, True, False], [True, False, False], [False, True, False]])
    assert scores.errors == {
        (0, 1): "the response cannot be embedded: the server refuses it",
        (1, 0): "the reference cannot be embedded",
        (2, 1): "the row has no reference",
    }
    assert scores.values[0, 0].item() == pytest.approx(1.0)
    spec = [SourceSpec("similar", "similarity", gate="rule_equals_1")]
    assert rewards_of(groups, [source], spec, on_error="zero").total.isfinite().all()


def test_the_runs_encoder_is_used_whatever_part_it_compares_elsewhere(tmp_path) -> None:
    settings = OgerSettings(
        embedding=EmbeddingSettings(embedding_part="thought", embedding_cache=str(tmp_path), embedding_max_tokens=64)
    )
    spec = SourceSpec("similar", "similarity", keys=SimilarityKeys())
    source = spec.source(Surroundings(settings, lambda keys: None))  # type: ignore[arg-type, return-value]
    assert isinstance(source, Similarity)
    assert (source.encoder.settings.part, source.encoder.settings.max_tokens) == ("all", 64)
    references = [
        group([1.0], responses=[f"<think>{FAR}</think>{SAME}"], answer=answer) for answer in (ANSWER, ANSWER)
    ]
    assert said(source, *references).values.tolist() == [[pytest.approx(1.0)], [pytest.approx(1.0)]]
    assert len(source.cache) == 1  # the reference alone is kept


# ---- steps of the controller

LENGTHS = """
from oger_recipe.rewards.sources import Scores
import torch

def length(group):
    return [float(len(text)) for text in group.responses]

class Words:
    overlaps = True
    def __init__(self, *, column):
        self.column = column
    def score(self, groups, wanted):
        values = [[group.row[self.column] * len(group.question) for text in group.responses] for group in groups]
        return Scores(torch.tensor(values), metrics={"asked": wanted.sum().item()})
"""
TEXTS = [["a", "abcd", "ab", "abc"], ["abcdef", "abcde", "a", "abc"]]
RULES = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]]


@pytest.fixture()
def maker(controller, tmp_path):
    (tmp_path / "mine_of_steps.py").write_text(LENGTHS)

    def make(*sources: dict[str, Any], flags: tuple[str, ...] = ()) -> Any:
        listed = json.dumps([{"name": "rule", "kind": "verifier"}, *sources])
        places = [f"--oger.reward.sources={listed}", f'--oger.verifier_path=["{tmp_path}"]']
        return controller("--oger.max_replace_num=0", "--oger.bonus_weight=0", *places, *flags)

    return make


@pytest.fixture()
def rows(rollout):
    def make(texts: list[list[str]] = TEXTS, **label: Any) -> list[Any]:
        return [
            rollout(text, reward, uid=uid, label=label)
            for uid, group_texts, rules in zip("uv", texts, RULES, strict=True)
            for text, reward in zip(group_texts, rules, strict=True)
        ]

    return make


def advantages(experiences: list[Any]) -> list[float]:
    found = {
        row: experience.advantages[position][experience.action_mask[position].bool()][0].item()
        for experience in experiences
        for position, row in enumerate(experience.index)
    }
    return [found[row] for row in sorted(found)]


def compared(values: list[float]) -> list[float]:
    return [(value - mean(values)) / (stdev(values) + 1e-6) for value in values]


@pytest.mark.parametrize("micro_batch", ["4", "2"])
def test_gdpo_compares_each_source_in_its_group_and_then_the_sums_in_the_batch(maker, rows, micro_batch: str) -> None:
    made = maker(
        {"name": "long", "kind": "mine_of_steps:length", "weight": 0.5, "worst": 0.0},
        flags=("--algo.advantage.estimator", "gdpo", f"--rollout.micro_batch_size={micro_batch}"),
    )
    found = advantages(made.make_experience_batch(rows()))
    sums = [
        one + 0.5 * other
        for rules, texts in zip(RULES, TEXTS, strict=True)
        for one, other in zip(compared(rules), compared([float(len(text)) for text in texts]), strict=True)
    ]
    assert found == pytest.approx(compared(sums), abs=1e-4)
    assert made.current.metrics["reward/long"] == pytest.approx(25 / 8)  # as it was said
    assert not (made.run_dir / "reward_statistics.jsonl").exists()  # nothing of earlier steps is used


def test_a_resumed_run_compares_with_the_same_values_as_one_that_went_on(maker, rows) -> None:
    source = {"name": "long", "kind": "mine_of_steps:length", "weight": 0.5, "normalize": "running"}
    steps = [
        TEXTS,
        [["abcdefgh", "a", "ab", "abc"], ["a", "a", "a", "abcdefghi"]],
        [["ab"] * 4, ["a", "b", "c", "de"]],
    ]

    def train(made: Any, first: int, last: int) -> list[list[float]]:
        totals = []
        for step in range(first, last + 1):
            made.step = step
            made.make_experience_batch(rows(steps[step - 1]))
            totals.append(made.current.rewards.total.flatten().tolist())
        return totals

    through = maker(source)
    totals = train(through, 1, 3)
    lengths = [float(len(text)) for texts in steps[0] + steps[1] for text in texts[:4]]
    spread = stdev(lengths) + 1e-6
    second = [rule + 0.5 * (value - mean(lengths)) / spread
              for rule, value in zip(RULES[0] + RULES[1], lengths[8:], strict=True)]  # fmt: skip
    assert totals[1] == pytest.approx(second, abs=1e-5)
    assert [record["step"] for record in read_jsonl(through.run_dir / "reward_statistics.jsonl")] == [1, 2, 3]
    resumed = maker(source)
    resumed.resume(2, 3, {})  # with what step 3 left there
    assert train(resumed, 3, 3) == totals[2:]
    anew = maker(source)
    assert train(anew, 1, 1) == totals[:1] != totals[1:2]


def test_a_resumed_run_pays_what_an_implicit_prm_had_learnt(maker, rows, letters, tmp_path) -> None:
    """Steps of the controller, with a checkpoint after the second: rewards of steps, advantages and metrics."""
    letters.save_pretrained(tmp_path / "lm")
    torch.manual_seed(0)
    build_model(letters, hidden_size=32, num_layers=1).save_pretrained(tmp_path / "lm")
    prime = {
        "name": "prime", "kind": "process", "scorer": "implicit", "model": str(tmp_path / "lm"),
        "learning_rate": 0.01, "beta": 1.0, "weight": 0.5,
    }  # fmt: skip
    delimiters = '--oger.steps.delimiters=["|"]'
    flags = (delimiters, "--algo.advantage.estimator=process_grpo", f"--ckpt.path={tmp_path / 'checkpoints'}")
    texts = [["a|b", "ab|cd", "x|y|z", "a|bc"], ["ab|cd", "a|b", "c", "c|d|e"]]

    def train(made: Any, step: int) -> tuple[Any, list[float], dict[str, float]]:
        made.step = step
        found = advantages(made.make_experience_batch(rows(texts)))
        known = {name: value for name, value in made.current.metrics.items() if name.startswith("reward/prime")}
        assert not made.current.rewards.errors["prime"] and known["reward/prime/learnt_rows"] == 8
        return made.current.rewards.steps.rewards, found, {**known, "reward/prime/seconds": 0.0}

    through = maker(prime, flags=flags)
    steps = []
    for step in (1, 2, 3):
        steps.append(train(through, step))
        if step == 2:
            through.reward_sources.save(checkpoints.of_sources(tmp_path / "checkpoints", 2))
    resumed = maker(prime, flags=flags)
    resumed.resume(2, 3, {})
    rewards, found, metrics = train(resumed, 3)
    assert torch.equal(rewards, steps[2][0]) and (found, metrics) == steps[2][1:]
    assert not torch.equal(steps[1][0], rewards) and rewards.shape == (2, 4, 3)
    assert (rewards[:, :, 0] != 0).all() and max(map(abs, found)) > 0.1


def test_a_class_reads_question_and_columns_of_the_data_and_its_numbers_become_metrics(maker, rows) -> None:
    made = maker(
        {"name": "words", "kind": "mine_of_steps:Words", "column": "level", "weight": 0.5, "gate": "rule_equals_1"}
    )
    made.make_experience_batch(rows(question="Why?", row={"level": 2.0}))
    # 2 x 4 letters x 0.5 = 4 where the rule says 1
    assert made.current.rewards.total.tolist() == [[5.0, 0.0, 0.0, 5.0], [5.0, 5.0, 0.0, 5.0]]
    assert made.current.metrics["reward/words/asked"] == 5.0 and made.current.metrics["reward/words/failed"] == 0.0


# ---- behind a gate


class Answers:
    """A place whose model answers everything that it is asked, and keeps that."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def open(self) -> None: ...

    def close(self) -> None: ...

    def generate(self, prompts: list[str], sampling: Any) -> list[Reply]:
        self.asked += prompts
        return [Reply(text="First wrong step: -1\nVerdict: tie\nGrade: 5") for _ in prompts]

    def classify(self, prompts: list[str]) -> list[Reply]:
        self.asked += prompts
        return [Reply(value=0.5) for _ in prompts]

    def classify_steps(self, prompts: list[StepPrompt]) -> list[Reply]:
        return [Reply(steps=(0.5,) * len(prompt.ends)) for prompt in prompts]

    def log_probs(self, prompts: list[StepPrompt]) -> list[Reply]:
        return [Reply(log_probs=(-0.5,) * response_length(prompt)) for prompt in prompts]


ALL = """
import torch
from oger_recipe.rewards.sources import Scores

def function(group):
    if not any(graded.verdict.score for graded in group.graded):
        raise ValueError("nobody has asked about this group")
    return [0.5] * len(group.responses), {"part": [1.0] * len(group.responses)}

class Class:
    def score(self, groups, wanted):
        values = torch.full(wanted.shape, 0.5)
        errors = {place: "nobody has asked" for place in map(tuple, (~wanted).nonzero().tolist())}
        return Scores(values, {"part": values}, errors, steps=values.unsqueeze(2))
"""
# Kind and scorer of an entry -> the keys that it cannot be without.
NEEDED: dict[tuple[str, str | None], dict[str, Any]] = {
    ("judge", None): {"model": "m", "plugin": "grade"},
    ("pairwise", None): {"model": "m", "plugin": "pairwise", "against": "answer"},
    ("classifier", None): {"model": "m"},
    ("critique_classifier", None): {"model": "m", "critic": "m"},
    ("process", None): {"model": "m", "format": "trl"},
    ("process", "implicit"): {"model": "m", "reference": "n"},
    ("process", "judge"): {"model": "m"},
    ("length", None): {"budget": 1, "limit": 4},
    ("rubric", None): {"model": "m", "plugin": "rubric_grade", "ask": "together"},
}
ALL_KINDS = [(kind, scorer) for kind in KINDS for scorer in (None, *SCORERS.get(kind, ()))]
ALL_KINDS += [("all_of_rows:function", None), ("all_of_rows:Class", None)]


@pytest.mark.parametrize(("kind", "scorer"), ALL_KINDS)
def test_a_source_says_nothing_of_rows_behind_its_gate(
    kind: str, scorer: str | None, encoder: Encoder, tmp_path, monkeypatch, byte_llama
) -> None:
    """No value, component, error or step of them; and a group of such rows alone is not asked about."""
    (tmp_path / "all_of_rows.py").write_text(ALL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "all_of_rows", raising=False)
    (tmp_path / "n").symlink_to(byte_llama)
    models = {"m": str(byte_llama), "n": str(tmp_path / "n")}
    keys = {name: models.get(value, value) for name, value in NEEDED.get((kind, scorer), {}).items()}
    entry = {"name": "it", "kind": kind, "gate": "rule_equals_1"} | keys | ({"scorer": scorer} if scorer else {})
    assert not [*entry_problems([entry])], f"NEEDED in {__file__} has the keys that an entry cannot be without"
    (spec,) = sources_of([entry])
    settings = OgerSettings(embedding=EmbeddingSettings(embedding_cache=str(tmp_path)))
    asked: list[str] = []
    source = spec.source(Surroundings(settings, lambda keys: Answers(asked), encoder=lambda *_: encoder))
    rules = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    texts = {"responses": ["a b", "c d", "e f"], "steps": [["a ", "b"], ["c ", "d"], ["e ", "f"]]}
    row = {"rubric": ["It is polite."]}
    groups = [group(rule, similarity=[0.5] * 3, row=row, **texts) for rule in rules]
    found = rewards_of(groups, [source], [spec], on_error="zero")
    is_open = torch.tensor(rules) == 1
    assert all(torch.equal(values.isfinite(), is_open) for values in found.said.values()), found.said
    assert found.errors == {"it": {}} and found.total[~is_open].tolist() == [0.0] * 4
    assert all(torch.equal(steps.isfinite().all(dim=2), is_open) for steps in found.said_of_steps.values())
    assert not any("c d" in prompt for prompt in asked)
