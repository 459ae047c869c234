"""Scorer implicit of kind process: rewards of two real tiny models, and a model that learns from outcomes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from oger_recipe.algorithm.implicit import outcome_accuracy
from oger_recipe.base.cutting import StepRule, cut_text
from oger_recipe.base.errors import RecipeError
from oger_recipe.checks import model_files
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.grading.verifiers import verify
from oger_recipe.lab import tiny_policy
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.kinds.implicit import ImplicitScorer, LearningSource
from oger_recipe.rewards.sources import Group, Learning, Scores
from oger_recipe.rewards.spec import Surroundings

RULE = StepRule(delimiters=(", ", "\n"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, policy_folder: Path) -> tuple[Path, Path]:
    """Two untrained models with the same tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("implicit"), AutoTokenizer.from_pretrained(policy_folder)
    for seed, name in enumerate(("prm", "reference")):
        torch.manual_seed(seed)
        tokenizer.save_pretrained(folder / name)
        tiny_policy.build_model(tokenizer, hidden_size=32, num_layers=1).save_pretrained(folder / name)
    return folder / "prm", folder / "reference"


def source_of(**keys: Any) -> Any:
    entry = {"name": "prime", "kind": "process", "scorer": "implicit", "place": "in_process", **keys}
    assert [*entry_problems([entry])] == []
    (spec,) = sources_of([entry])
    return spec.source(Surroundings(None, None))  # type: ignore[arg-type]


def group(
    texts: Sequence[str], scores: Sequence[float], prompt: str = "Make 24 of 8, 3 and 1.\n", **more: Any
) -> Group:
    size = len(texts)
    facts: dict[str, Any] = {
        "graded": [Graded(Verdict(each, each, "")) for each in scores],
        "is_teacher": [False] * size,
        "steps": [cut_text(text, RULE) for text in texts],
        "question": "What the policy does not read",
    }
    return Group(
        uid="u", prompt=prompt, task="countdown", answer="", row={},
        teachers=[], responses=list(texts), truncated=[False] * size, may_earn=[True] * size,
        similarity=[math.nan] * size, entropy=[0.0] * size, **facts | more,
    )  # fmt: skip


TEXTS = ["try 8-1=7, 7*3=21, no.", "8*3=24, 24*1=24\nfound", "no", "need 24=8*3, need 3=3*1, found, yes, really"]
GROUPS = [
    group(TEXTS[:2], [0, 1]),
    group(TEXTS[2:], [0, 1], prompt="Make 24 of 8, 3 and 1, please: any way you like.\n"),
]


def said(source: Any, groups: Sequence[Group] = GROUPS, wanted: torch.Tensor | None = None) -> Scores:
    every = torch.ones(len(groups), len(groups[0].responses), dtype=torch.bool)
    return source.score(groups, every if wanted is None else wanted)


def likelihoods_by_hand(folder: Path, prompt: str, steps: Sequence[str]) -> list[torch.Tensor]:
    """The log-probabilities of each step's tokens, of the text alone, unpadded."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    pieces = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, *steps)]
    tokens = [token for piece in pieces for token in piece]
    log_probs = model(torch.tensor([tokens])).logits[0].double().log_softmax(dim=1)
    found, place = [], len(pieces[0])
    for piece in pieces[1:]:
        found.append(torch.stack([log_probs[place + at - 1, token] for at, token in enumerate(piece)]))
        place += len(piece)
    return found


def rewards_by_hand(prm: Path, reference: Path, prompt: str, steps: Sequence[str], beta: float) -> list[float]:
    of_both = [likelihoods_by_hand(folder, prompt, steps) for folder in (prm, reference)]
    return [beta * (one.sum() - other.sum()).item() for one, other in zip(*of_both, strict=True)]


def of_rows(scores: Scores) -> list[list[float]]:
    assert scores.steps is not None
    return [[each for each in row if not math.isnan(each)] for rows in scores.steps.tolist() for row in rows]


def test_rewards_are_those_of_the_formula(models: tuple[Path, Path]) -> None:
    prm, reference = models
    source = source_of(model=str(prm), reference=str(reference), beta=0.3)
    scores, rows = said(source), [(group, steps) for group in GROUPS for steps in group.steps]
    wanted = [rewards_by_hand(prm, reference, group.prompt, steps, 0.3) for group, steps in rows]
    assert not scores.errors and [len(row) for row in wanted] == [3, 3, 1, 5]
    for found, by_hand in zip(of_rows(scores), wanted, strict=True):
        assert found == pytest.approx(by_hand, abs=1e-5)
    assert scores.values.flatten().tolist() == pytest.approx([sum(row) for row in wanted], abs=1e-5)
    assert not isinstance(source, Learning) and max(abs(each) for row in wanted for each in row) > 0.01


def test_a_row_is_what_it_is_alone(models: tuple[Path, Path]) -> None:
    """Neither others nor their length matter, nor what a gate leaves out; what is wrong with a row costs that row."""
    prm, reference = (str(each) for each in models)
    together = of_rows(said(source_of(model=prm, reference=reference)))
    source = source_of(model=prm, reference=reference, max_model_len=200)
    bad = [group(["2, 3", "4, " * 300], [0, 1]), group(["a, b", "c"], [0, 1], steps=[["a", ""], []])]
    for row in range(4):
        alone = torch.zeros(2, 2, dtype=torch.bool)
        alone[row // 2, row % 2] = True
        scores = said(source, wanted=alone)
        assert of_rows(scores)[row] == pytest.approx(together[row], abs=1e-6)
        assert scores.values.isnan().sum() == 3
    scores = said(source, bad)
    assert scores.values.isnan().tolist() == [[False, True], [True, True]]
    assert "tokens, and" in scores.errors[0, 1] and "reads 200 in all" in scores.errors[0, 1]
    assert scores.errors[1, 0] == "step 2 of 2 has no token"
    assert scores.errors[1, 1] == "the row has no steps of reasoning"


def test_credit_and_one_value_are_made_as_of_other_scorers(models: tuple[Path, Path]) -> None:
    prm, reference = (str(each) for each in models)
    raw = of_rows(said(source_of(model=prm, reference=reference, beta=1.0)))
    scores = said(source_of(model=prm, reference=reference, beta=1.0, credit="min", temperature=0.5, aggregate="min"))
    assert scores.values.flatten().tolist() == pytest.approx([min(row) for row in raw], abs=1e-5)
    for found, row in zip(of_rows(scores), raw, strict=True):
        weights = [math.exp(-each / 0.5) for each in row]
        assert found == pytest.approx(
            [each * w / sum(weights) for each, w in zip(row, weights, strict=True)], abs=1e-5
        )


def test_models_with_other_tokens_are_refused(models: tuple[Path, Path], letters: Any, tmp_path: Path) -> None:
    letters.save_pretrained(tmp_path)
    tiny_policy.build_model(letters, hidden_size=32, num_layers=1).save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="the tokenizers of .* and of its reference .* differ"):
        said(source_of(model=str(models[0]), reference=str(tmp_path)))


def test_a_question_that_no_policy_has_read_is_a_turn_of_the_chat_template(models: tuple[Path, Path]) -> None:
    prm, reference = models
    source = source_of(model=str(prm), reference=str(reference), beta=0.3)
    scores = said(source, [group(TEXTS[1:2], [1], prompt="", question="Make 24.")])
    prompt = "<|im_start|>user\nMake 24.<|im_end|>\n<|im_start|>assistant\n"
    wanted = rewards_by_hand(prm, reference, prompt, GROUPS[0].steps[1], 0.3)
    assert of_rows(scores) == [pytest.approx(wanted, abs=1e-5)]


# ---- learning


def learning(model: Path, **keys: Any) -> LearningSource:
    source = source_of(model=str(model), **{"learning_rate": 1e-2, "beta": 0.5} | keys)
    assert isinstance(source, LearningSource) and isinstance(source, Learning)
    return source


def weights_of(source: LearningSource) -> dict[str, torch.Tensor]:
    _, model = source._learner._place.writer()
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def learnt_by_hand(
    folder: Path, updates: Sequence[Sequence[tuple[str, Sequence[str], float]]]
) -> tuple[dict[str, torch.Tensor], float]:
    """Weights after updates on rows of (prompt, steps, outcome), each row read alone; the mean norm of gradients."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, start = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)

    def log_likelihood(which: Any, prompt: list[int], response: list[int]) -> torch.Tensor:
        log_probs = which(torch.tensor([prompt + response])).logits[0].log_softmax(dim=1)
        return sum(log_probs[len(prompt) + at - 1, token] for at, token in enumerate(response))  # type: ignore

    norms = []
    for rows in updates:
        adam.zero_grad()
        total = 0.0
        for prompt, steps, outcome in rows:
            read = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            response = [each for step in steps for each in tokenizer(step, add_special_tokens=False)["input_ids"]]
            reward = 0.5 * (log_likelihood(model, read, response) - log_likelihood(start, read, response).detach())
            total += -(outcome * reward.sigmoid().log() + (1 - outcome) * (-reward).sigmoid().log()) / len(rows)
        total.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        adam.step()
    return dict(model.named_parameters()), sum(norms) / len(norms)


@pytest.mark.parametrize(
    "keys", [{}, {"batch_size": 3}, {"micro_batch_size": 1}, {"batch_size": 2, "micro_batch_size": 2}]
)
def test_it_learns_the_cross_entropy_of_outcomes(models: tuple[Path, Path], keys: dict[str, int]) -> None:
    prm, _ = models
    source = learning(prm, **keys)
    scores = said(source)
    rows = [
        (group.prompt, steps, graded.verdict.score)
        for group in GROUPS
        for steps, graded in zip(group.steps, group.graded, strict=True)
    ]
    size = keys.get("batch_size", len(rows))
    wanted, norm = learnt_by_hand(prm, [rows[at : at + size] for at in range(0, len(rows), size)])
    assert scores.metrics["grad_norm"] == pytest.approx(norm, rel=1e-3)  # Adam alone hides a loss's scale
    for name, value in weights_of(source).items():
        torch.testing.assert_close(value, wanted[name], atol=2e-4, rtol=1e-3)  # of updates of 1e-2


def test_it_learns_before_or_after_its_rewards_are_used(models: tuple[Path, Path]) -> None:
    prm, _ = models
    before, after = learning(prm), learning(prm, update="after")
    first, second = said(before), said(after)
    assert set(second.values.flatten().tolist()) == {0.0}  # it is still its own reference
    third = said(after)
    assert torch.equal(third.values, first.values) and first.values.abs().min() > 0
    assert third.steps is not None  # what was said is what is learnt from: each row's own reward
    signs = torch.tensor([[-1, 1], [-1, 1]])
    losses = -(signs * third.steps.nansum(dim=2)).sigmoid().log()
    assert third.metrics["loss"] == pytest.approx(losses.mean().item(), rel=1e-4)
    assert third.metrics["accuracy"] == third.metrics["pair_accuracy"] == 1.0
    assert first.metrics["accuracy"] == second.metrics["accuracy"] == 0.5  # before it was learnt from
    assert first.metrics["pair_accuracy"] == 0.5 and first.metrics["learnt_rows"] == 4
    assert first.metrics["loss"] == pytest.approx(math.log(2)) and first.metrics["grad_norm"] > 0
    right, wrong = first.values[:, 1], first.values[:, 0]
    assert (right > 0).all() and (wrong < 0).all()


def test_it_learns_from_the_policys_own_verdicts_alone_whatever_the_gate(models: tuple[Path, Path]) -> None:
    prm, _ = models
    plain, closed, others = learning(prm), learning(prm), learning(prm)
    said(plain, GROUPS[:1])
    scores = said(closed, GROUPS[:1], torch.zeros(1, 2, dtype=torch.bool))
    assert scores.values.isnan().all() and scores.metrics["learnt_rows"] == 2
    failed = Graded(Verdict(0.0, 0.0, ""), "the grading failed")
    rows = [*TEXTS[:2], TEXTS[3], TEXTS[2], "8, " * 600]
    mixed = group(
        rows, [0, 1, 1, 0, 1], is_teacher=[False, False, True, False, False],
        graded=[*GROUPS[0].graded, Graded(Verdict(1.0, 1.0, "")), failed, Graded(Verdict(1.0, 1.0, ""))],
    )  # fmt: skip
    found = said(others, [mixed])
    assert found.metrics["learnt_rows"] == 2 and [*found.errors] == [(0, 4)]
    assert found.values[0, :4].isfinite().all()  # teachers, too, are rewarded
    for name, value in weights_of(plain).items():
        assert torch.equal(value, weights_of(closed)[name])
        torch.testing.assert_close(value, weights_of(others)[name], atol=1e-6, rtol=1e-5)


def test_nothing_to_learn_from_is_no_failure(models: tuple[Path, Path]) -> None:
    prm, _ = models
    source = learning(prm)
    scores = said(source, [group(TEXTS[:2], [1, 1], is_teacher=[True, True])])
    assert scores.metrics["learnt_rows"] == 0 and "loss" not in scores.metrics and not scores.errors
    alike = said(source, [group(TEXTS[:2], [1, 1])])  # no pair of right and wrong
    assert "pair_accuracy" not in alike.metrics and alike.metrics["accuracy"] == 0.5


def test_an_update_whose_gradient_is_not_finite_is_as_if_it_had_not_been(models: tuple[Path, Path]) -> None:
    """Weights and Adam's moments: the next step learns, to the bit, what it learns without that one before."""
    source, other = (learning(models[0], batch_size=2) for _ in range(2))
    (_, model), (_, expected) = (each._learner._place.writer() for each in (source, other))
    for each in (source, other):
        said(each)
    kept = {name: parameter.clone() for name, parameter in model.named_parameters()}
    row = model.lm_head.weight[5].clone()
    with torch.no_grad():
        model.lm_head.weight[5] = math.nan
    broken = said(source).metrics
    assert (broken["updates"], broken["skipped_updates"], broken["skipped_in_a_row"]) == (2, 2, 2)
    assert math.isnan(broken["grad_norm"])
    assert said(source).metrics["skipped_in_a_row"] == 4  # with those of the step before
    with torch.no_grad():
        model.lm_head.weight[5] = row
    assert all(torch.equal(parameter, kept[name]) for name, parameter in model.named_parameters())
    for each in (source, other):
        found = said(each).metrics
        assert (found["updates"], found["skipped_updates"], found["skipped_in_a_row"]) == (2, 0, 0)
        assert found["grad_norm"] > 0
    assert all(map(torch.equal, model.parameters(), expected.parameters()))


def test_a_resumed_run_gives_the_rewards_that_an_unbroken_one_gives(models: tuple[Path, Path], tmp_path: Path) -> None:
    prm, _ = models
    draw = random.Random(0)
    steps = [
        [group(draw.sample(TEXTS, 2), [draw.randrange(2), draw.randrange(2)]), group(draw.sample(TEXTS, 2), [0, 1])]
        for _ in range(5)
    ]
    unbroken, broken, resumed = (learning(prm, batch_size=2) for _ in range(3))
    wanted = [said(unbroken, each).steps for each in steps]
    for each in steps[:3]:
        said(broken, each)
    broken.save(tmp_path / "kept")
    said(broken, steps[4])  # what comes after a checkpoint is lost
    resumed.load(tmp_path / "kept")
    for each, rewards in zip(steps[3:], wanted[3:], strict=True):
        torch.testing.assert_close(said(resumed, each).steps, rewards, atol=0, rtol=0, equal_nan=True)
    forgetful = learning(prm, batch_size=2)
    assert not torch.equal(said(forgetful, steps[3]).values, said(broken, steps[3]).values)
    kept = source_of(model=str(tmp_path / "kept" / "model"), reference=str(prm), beta=0.5)  # a model as any other
    assert said(kept, steps[3]).values.isfinite().all()


def test_a_checkpoint_takes_twelve_bytes_a_parameter(models: tuple[Path, Path], tmp_path: Path) -> None:
    """As `checks/disk.py` estimates: 4 of the weights, and 8 of the moments. The rest is headers."""
    source = learning(models[0])
    said(source)
    source.save(tmp_path)
    size = sum((tmp_path / name).stat().st_size for name in ("model/model.safetensors", "optimizer.pt"))
    parameters = model_files.parameters(models[0])
    assert parameters and size == pytest.approx(12 * parameters, rel=0.1)


def test_a_checkpoint_from_another_device_is_gone_on_from(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch
) -> None:
    """A run goes on where its GPU has another number, or where there is none."""
    source = learning(models[0])
    said(source)
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
        source.save(tmp_path / "kept")
    learning(models[0]).load(tmp_path / "kept")


def test_what_is_not_there_or_another_models_is_not_gone_on_from(models: tuple[Path, Path], tmp_path: Path) -> None:
    prm, _ = models
    source = learning(prm)
    with pytest.raises(RecipeError, match=f"the implicit PRM cannot resume from {tmp_path}/prime"):
        source.load(tmp_path / "prime")
    source.save(tmp_path / "prime")
    (tmp_path / "prime" / "optimizer.pt").write_bytes(b"half")
    with pytest.raises(RecipeError, match="cannot resume from"):
        learning(prm).load(tmp_path / "prime")


# ---- Countdown


def rollouts_of(rows: Sequence[dict[str, Any]], draw: random.Random) -> list[Group]:
    """Right answers as teachers reason, and wrong ones that gave the search up; the verifier says which are right."""
    groups = []
    for row in rows:
        problem, right = json.loads(row["answer"]), [each["text"] for each in row["teachers"]]
        first, second = draw.sample(problem["numbers"], 2)
        tries = [f"{first}+{second}={first + second}, no", f"{first}*{second}={first * second}, no"]
        wrong = [
            f"<think>try {tries[0]}.</think>\n<answer>{first}+{second}</answer>",
            f"<think>try {tries[1]}. try {tries[0]}.</think>\n<answer>{first}*{second}</answer>",
            f"<think>need {problem['target']}={first}+{second}, no.</think>\n<answer>{second}+{first}</answer>",
        ]
        texts = [*right, *wrong]
        verdicts = [verify("countdown", text, row["answer"]) for text in texts]
        groups.append(group(texts, [0] * 6, prompt=row["prompt"], graded=[Graded(verdict) for verdict in verdicts]))
    return groups


def test_it_learns_online_which_rollouts_of_countdown_are_right(
    models: tuple[Path, Path], countdown_rows: list[dict[str, Any]]
) -> None:
    draw = random.Random(0)
    rows = rollouts_of(countdown_rows, draw)
    trained, held_out = rows[:9], rows[9:]
    source = learning(models[0], learning_rate=2e-3, beta=0.2)

    def accuracy(scorer: ImplicitScorer) -> float:
        asked = [(group.prompt, steps) for group in held_out for steps in group.steps]
        rewards = torch.tensor([sum(each.steps) for each in scorer.ask(*zip(*asked, strict=True))])
        scorer.forget()
        return outcome_accuracy(
            rewards, torch.tensor([each.verdict.score for g in held_out for each in g.graded])
        ).item()

    assert accuracy(source.scorer) == 0.5
    for _ in range(12):
        said(source, draw.sample(trained, 4))
    assert accuracy(source.scorer) >= 0.9
