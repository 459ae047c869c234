"""Steps of reasoning in a run: from the rollouts' tokens to what is trained, recorded and watched."""

from __future__ import annotations

import json
import statistics
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    balance_experiences,
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from oger_recipe.base.cutting import StepCutter, StepRule, StepSampling, require_steps
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import read_jsonl
from oger_recipe.checks.combinations import combination_problems
from oger_recipe.checks.notes import notes
from oger_recipe.cli import eval as eval_command
from oger_recipe.data.responses import Response
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.offline.answers import Answers, Prompt
from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.pipeline.controller.trainer import OgerPPOTrainer
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.teachers.store import Teacher

SOURCE = """
import math
import torch
from oger_recipe.rewards.sources import Scores

class Process:
    def score(self, groups, wanted):
        most = max(len(steps) for group in groups for steps in group.steps)
        rows = [[[len(step) / 8 for step in steps] for steps in group.steps] for group in groups]
        steps = [[row + [math.nan] * (most - len(row)) for row in group] for group in rows]
        return Scores(torch.tensor([[row[0] for row in group] for group in rows]), steps=torch.tensor(steps))
"""
# Text, truncated, tokens of a teacher; "zz" makes room for the teacher.
ROWS = [("a.bb.c", False, 0), ("dd", False, 0), ("ee.f", True, 3), ("zz", False, 0)]
TEACHER = "t.u\n.v"
STEPS = {"a.bb.c": ["a.", "bb.", "c"], "dd": ["dd"], "ee.f": ["ee.", "f"], "zz": ["zz"], TEACHER: ["t.", "u\n.", "v"]}
# The step of each token, from 1, with the end of sequence: what is behind a delimiter and blank belongs to its step.
INDEX = {"a.bb.c": [1, 1, 2, 2, 2, 3, 3], "dd": [1, 1, 1], "ee.f": [1, 1, 1, 2, 2], TEACHER: [1, 1, 2, 2, 2, 3, 3]}


@pytest.fixture()
def step(controller, models, rollout, tmp_path, letters):
    (tmp_path / "steps_in_a_run_source.py").write_text(SOURCE)
    models.similarity = {"zz": 0.9, "a.bb.c": 0.1, "dd": 0.1, "ee.f": 0.1}

    def make(*flags: str, estimator: str = "process_grpo") -> tuple[Any, list[Experience]]:
        kind = "steps_in_a_run_source:Process"
        listed = [{"name": "rule", "kind": "verifier"}, {"name": "prm", "kind": kind, "weight": 0.5}]
        given = [f"--oger.reward.sources={json.dumps(listed)}"] if estimator == "process_grpo" else []
        maker = controller(
            *given, f'--oger.verifier_path=["{tmp_path}"]', '--oger.steps.delimiters=["."]',
            f"--algo.advantage.estimator={estimator}", *flags,
            teachers={"u": [Teacher("a", TEACHER, [*letters.encode(TEACHER), letters.eos_token_id], 1.0, 1.0)]},
        )  # fmt: skip
        rows = [rollout(text, 0.0, truncated=cut, guided=guided) for text, cut, guided in ROWS]
        return maker, maker.make_experience_batch(rows)

    return make


def _index_by_text(experiences: list[Experience], letters: Any) -> dict[str, list[int]]:
    found = {}
    for experience in experiences:
        for row in range(len(experience.sequences)):
            mask = experience.action_mask[row].bool()
            assert (experience.step_index[row][~mask] == 0).all()
            text = letters.decode(experience.sequences[row, 1:][mask], skip_special_tokens=True)
            found[text] = experience.step_index[row][mask].tolist()
    return found


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_every_token_that_is_trained_has_its_step_those_of_teachers_too(step, letters, micro_batch):
    _, experiences = step(f"--rollout.micro_batch_size={micro_batch}")
    assert len(experiences) == 4 // micro_batch
    assert _index_by_text(experiences, letters) == INDEX


def test_a_recipe_without_steps_has_none(step):
    maker, experiences = step(estimator="dr_grpo")
    assert all(each.step_index is None for each in experiences)
    assert maker.current.batch.steps == [] and not [
        name for name in maker.current.metrics if name.startswith("rollout/step")
    ]
    assert all("steps_of_reasoning" not in line for line in _lines(maker))


def _lines(maker: Any) -> list[dict[str, Any]]:
    (path,) = (maker.run_dir / "samples").iterdir()
    return read_jsonl(path)


def test_samples_show_each_step_with_what_was_said_of_it_and_paid_for_it(step):
    maker, _ = step()
    lines = {line["text"]: line for line in _lines(maker)}
    for text, steps in STEPS.items():
        if text == "zz":  # it made room
            assert "steps_of_reasoning" not in lines[text]
            continue
        shown = lines[text]["steps_of_reasoning"]
        assert [each["text"] for each in shown] == steps
        assert [each["sources"] for each in shown] == [{"prm": len(each) / 8} for each in steps]
        of_response = 1.0 if text == TEACHER else 0.0  # the rule's, paid with the last step
        paid = [0.5 * len(each) / 8 for each in steps[:-1]] + [0.5 * len(steps[-1]) / 8 + of_response]
        assert [each["reward"] for each in shown] == paid
        assert lines[text]["total_reward"] == pytest.approx(sum(paid))


def test_samples_show_the_advantage_of_each_step(step):
    """DeepSeekMath's: a step's reward and those behind it, in units of the group's spread."""
    maker, _ = step()
    shown = [line["steps_of_reasoning"] for line in _lines(maker) if "steps_of_reasoning" in line]
    rewards = [each["reward"] for row in shown for each in row]
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    for row in shown:
        z = [(each["reward"] - mean) / std for each in row]
        expected = [sum(z[number:]) for number in range(len(z))]
        assert [each["advantage"] for each in row] == pytest.approx(expected, rel=1e-4)


def test_the_metrics_count_steps_of_the_policys_own_rollouts(step):
    """Three of them, one of which a teacher replaced afterwards; the one that he began does not count."""
    metrics = step("--oger.steps.max_steps=3")[0].current.metrics
    assert metrics["rollout/steps"] == pytest.approx((3 + 1 + 1) / 3)
    assert (metrics["rollout/steps_max"], metrics["rollout/steps_min"]) == (3.0, 1.0)
    assert metrics["rollout/step_length"] == pytest.approx((7 / 3 + 3 + 3) / 3)
    assert metrics["rollout/ended_by_max_steps"] == 0.0
    assert "rollout/ended_by_max_steps" not in step()[0].current.metrics


def test_a_rollout_that_the_cap_of_steps_ended_is_counted(step, monkeypatch):
    monkeypatch.setattr(
        f"{__name__}.ROWS", [("a.bb.", True, 0), ("dd", True, 0), ("ee.f", False, 0), ("zz", False, 0)]
    )
    assert step("--oger.steps.max_steps=2")[0].current.metrics["rollout/ended_by_max_steps"] == 0.25


# ---- OpenRLHF's batches


def _experience(lengths: list[int], first: int) -> Experience:
    """Rows whose step_index holds numbers that tell every token apart."""
    longest = max(lengths)
    index, mask = torch.zeros(len(lengths), longest, dtype=torch.long), torch.zeros(len(lengths), longest + 1)
    for row, length in enumerate(lengths):
        index[row, :length] = torch.arange(length) + first + 100 * row
        mask[row, : length + 1] = 1
    return Experience(
        sequences=torch.where(mask.bool(), 7, 0), attention_mask=mask.long(), action_mask=mask[:, 1:].bool(),
        step_index=index, total_length=mask.sum(dim=1), response_length=mask.sum(dim=1) - 1,
        truncated=torch.zeros(len(lengths)), rewards=torch.zeros(len(lengths)), scores=torch.zeros(len(lengths)),
        advantages=index.float(), prompts=["?"] * len(lengths), labels=["{}"] * len(lengths),
        info={"reward": torch.zeros(len(lengths))},
    )  # fmt: skip


def _same(experience: Experience) -> None:
    """The numbers are those of another field, which OpenRLHF carries along."""
    assert experience.step_index.dtype == torch.long
    assert torch.equal(experience.step_index.float(), experience.advantages)
    assert (experience.step_index[experience.action_mask.bool()] > 0).all()
    assert (experience.step_index[~experience.action_mask.bool()] == 0).all()


def test_steps_survive_concatenation_splitting_padding_and_batching():
    whole = Experience.concat_experiences([_experience([3, 5], 1), _experience([7, 2], 11)], pad_token_id=0)
    assert whole.step_index.shape == (4, 7)
    _same(whole)
    items = remove_padding_in_sequences(split_experience_batch(whole))
    assert [len(each.step_index) for each in items] == [3, 5, 7, 2]
    assert [each.step_index.tolist() for each in items] == [
        [1, 2, 3], [101, 102, 103, 104, 105], [11, 12, 13, 14, 15, 16, 17], [111, 112]
    ]  # fmt: skip
    _same(make_experience_batch(items))


@pytest.mark.parametrize("dynamic", [False, True])
def test_steps_survive_the_replay_buffer(dynamic):
    buffer = NaiveReplayBuffer(sample_batch_size=2, dynamic_batch=dynamic)
    for each in (_experience([3, 5], 1), _experience([7, 2], 11)):
        buffer.append(each)
    if dynamic:
        buffer.dynamic_indices, buffer.dynamic_loss_scale = [[0, 2, 3], [1]], [1.0, 1.0]
        batches = [buffer.collate_fn([buffer[number]]) for number in range(2)]
        assert [each.step_index[:, 0].tolist() for each in batches] == [[1, 11, 111], [101]]
    else:
        batches = [buffer.collate_fn([buffer[number] for number in pair]) for pair in ((0, 2), (1, 3))]
    for each in batches:
        _same(each)


def test_steps_go_with_their_rows_to_the_ranks():
    args = SimpleNamespace(
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    ranks = balance_experiences([_experience([3, 5, 4], 1), _experience([7, 2, 6], 11)], args)
    assert len(ranks) == 2 and sum(len(each.sequences) for each in ranks) == 6
    for each in ranks:
        _same(each)


# ---- settings


BY_STEP = {"oger.steps.sample_by_step": True, "vllm.enable_prefix_caching": True}
NO_CUT = {"oger.steps.delimiters": ()}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (BY_STEP | NO_CUT, "sample_by_step needs to know where a step ends"),
        (BY_STEP | {"oger.stop": ("\n",)}, "contains '\\n', which ends a response"),
        (BY_STEP | {"oger.steps.delimiters": ("</answer>\n",), "oger.prompt_template": "r1"}, "contains '</answer>'"),
        ({"algo.advantage.estimator": "process_grpo", "oger.stop": ("\n\n",)}, "no response would have a second step"),
        (BY_STEP | {"oger.steps.delimiter_token_ids": (3, 4), "oger.stop_token_ids": (4,)}, "delimiter_token_ids 4"),
        ({"oger.stop": ("\n\n",)}, None),  # there are no steps
        ({"oger.steps.delimiters": ("",)}, "an empty text is found everywhere"),
        ({"oger.steps.last_step_text": ""}, "an empty text is found everywhere"),
        (BY_STEP, None),
        (BY_STEP | NO_CUT | {"oger.steps.max_step_tokens": 9}, None),
    ],
)
def test_settings_that_leave_no_steps_are_refused(parser, given, problem):
    found = [each for each in combination_problems(defaults(parser) | given) if "oger.steps" in each]
    assert (len(found) == 1 and problem in found[0]) if problem else found == []


@pytest.mark.parametrize(
    ("given", "remark"),
    [
        ({"algo.advantage.estimator": "process_grpo"} | NO_CUT, "every response is one step of reasoning"),
        ({"oger.steps.sample_by_step": True}, "vllm.enable_prefix_caching, or the engine computes them again"),
        (BY_STEP, None),
        (BY_STEP | {"oger.steps.delimiters": ("\\n\\n",)}, "has a backslash and an n, not a newline"),
        (BY_STEP | {"oger.steps.max_steps": 3}, None),
        (
            {"oger.steps.max_steps": 3} | NO_CUT,
            "oger.steps.max_steps has no effect: it needs something that ends a step",
        ),
    ],
)
def test_settings_of_steps_that_are_easily_not_meant_are_said(parser, given, remark):
    of = defaults(parser)
    found = [each for each in notes(of | given, of.__getitem__) if "step of reasoning" in each or "oger.steps" in each]
    assert any(remark in each for each in found) if remark else found == []


def test_delimiters_that_the_tokenizer_does_not_write_are_refused(letters):
    require_steps(letters, StepRule(("\n\n", "</think>"), (letters.eos_token_id,)))
    with pytest.raises(
        RecipeError, match=f"{len(letters)} is not a token of actor.model_name_or_path, whose tokens are 0 to"
    ):
        require_steps(letters, StepRule(delimiter_token_ids=(len(letters),)))
    with pytest.raises(RecipeError, match=r"special token <\|im_end\|>.*delimiter_token_ids \[2\] instead"):
        require_steps(letters, StepRule(("\n", "<|im_end|>\n")))


def test_a_tokenizer_whose_tokens_have_no_texts_of_their_own_is_refused(letters):
    class Spaced:
        """Puts a blank between tokens, but before punctuation."""

        def __getattr__(self, name: str) -> Any:
            return getattr(letters, name)

        def decode(self, tokens: list[int], **kwargs: Any) -> str:
            return " ".join(letters.decode([token], **kwargs) for token in tokens).replace(" .", ".")

    with pytest.raises(RecipeError, match="cannot be cut into steps between two tokens"):
        require_steps(Spaced(), StepRule())


# ---- training, evaluation, `oger eval` and `oger score` alike


@pytest.fixture()
def make_asked(monkeypatch):
    """Makes a samples generator of a run's arguments, and the list of what it asks its engine."""

    def make(args: Any) -> tuple[OgerSamplesGenerator, list[dict[str, Any]]]:
        asked: list[dict[str, Any]] = []
        remote, idle = SimpleNamespace(remote=lambda **given: asked.append(given)), SimpleNamespace(remote=lambda: 0)
        engine = SimpleNamespace(generate_responses=remote, get_num_unfinished_requests=idle)
        return OgerSamplesGenerator(SimpleNamespace(args=args), None, None, None, [engine]), asked

    monkeypatch.setattr("ray.get", lambda refs: refs)
    return make


def test_training_and_evaluation_ask_the_engine_for_responses_by_the_same_rule(nested, make_asked):
    for flags, expected in (
        (["--oger.steps.max_steps=3", "--oger.steps.sample_by_step"], StepSampling(StepRule(max_steps=3), True)),
        (["--oger.steps.last_step_text=so"], StepSampling(StepRule(last_step_text="so"))),
        (["--oger.steps.max_step_tokens=9"], None),  # it ends no response
    ):
        generator, asked = make_asked(nested(*flags))
        for kwargs in ({"guided": False}, {"temperature": 0.0}):  # of training, of evaluation
            generator._dispatch_prompts_to_vllm(["p"], ['{"uid": "u"}'], **kwargs)
            assert asked.pop().get("steps") == expected


def test_a_greedy_evaluation_asks_for_one_sample_of_a_problem(nested, make_asked):
    label = '{"uid": "u", "times_asked": 4}'
    for flags, samples in (
        (["--eval.temperature=0.6"], 8 * 4),
        (["--eval.temperature=0"], 1),
        (["--eval.temperature=0.6", "--oger.eval.top_k=1"], 1),
    ):
        args = nested("--eval.n_samples_per_prompt=8", *flags)
        generator, asked = make_asked(args)
        generator._dispatch_prompts_to_vllm(
            ["p"], [label], **OgerPPOTrainer._eval_sampling(SimpleNamespace(args=args))
        )
        assert asked.pop()["num_samples"] == samples
        generator._dispatch_prompts_to_vllm(["p"], ['{"uid": "u"}'], guided=False)  # of training, whatever that is
        assert asked.pop()["num_samples"] == args.rollout.n_samples_per_prompt


def test_oger_eval_has_the_rule_of_the_run(parser, tmp_path):
    given = {"oger.steps.max_steps": 3, "oger.steps.delimiters": ("\n",)}
    options = SimpleNamespace(recipe=tmp_path, **dict.fromkeys(
        ("n", "temperature", "seed", "top_p", "top_k", "max_new_tokens")
    ))  # fmt: skip
    steps = StepSampling(StepRule(("\n",), max_steps=3))
    assert eval_command._sampling(options, defaults(parser) | given).steps == steps
    assert eval_command._sampling(options, defaults(parser)).steps is None


def test_answers_in_a_file_are_cut_as_the_run_cuts_them(letters):
    label = {"task": "gsm8k", "answer": "1"}
    texts = ["a.bb.c", "dd", ""]
    responses = [Response(uid="u", text=text, truncated=False, entropy=0.0, where="line") for text in texts]
    graded = [Graded(Verdict(0.0, 0.0, ""))] * 3
    prompts = {"u": Prompt("p", label, [])}
    cutter = StepCutter(letters, StepRule((".",)))
    for each, steps in ((cutter, [["a.", "bb.", "c"], ["dd"], [""]]), (None, [])):
        answers = Answers(responses, graded, prompts, 0.0, each, letters)
        assert answers.group([0, 1, 2], [0.0] * 3, OgerSettings()).steps == steps
