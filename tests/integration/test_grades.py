"""What the policy, or a teacher model, says of texts that it did not sample: grades of rollouts, teachers' answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from doubles import Strategy
from judge_server import Server
from openrlhf.models.actor import Actor
from openrlhf.trainer.ray import ppo_actor
from transformers import AutoConfig, AutoTokenizer

from oger_recipe.base.errors import SourceFailed
from oger_recipe.base.files import read_jsonl
from oger_recipe.checks.combinations import combination_problems
from oger_recipe.checks.models import grader
from oger_recipe.checks.notes import notes
from oger_recipe.models.in_process import InProcess
from oger_recipe.models.keys import WriterKeys
from oger_recipe.pipeline.controller.likelihoods import PolicyLikelihoods
from oger_recipe.pipeline.policy.policy_actor import OgerPolicyModelActor
from oger_recipe.rewards.place import Reply, StepPrompt
from oger_recipe.teachers.store import Teacher

NO_TEACHERS = ["--oger.bonus_weight", "0", "--oger.max_replace_num", "0"]
MODEL = ["--oger.grader", "model", "--oger.grade_model", json.dumps([{"model": "me/teacher"}])]
TEXTS = {"ab": 1.0, "c": 0.0, "def": 1.0, "gh": 0.0}  # with the end of sequence a token more
PROMPT = "ask>"


class Place:
    """In place of a teacher model: its log-probability of each token, by the response's text; what it was asked."""

    def __init__(self, tokenizer: Any, said: dict[str, Any]) -> None:
        self.tokenizer, self.said, self.asked = tokenizer, said, []
        self.turns: list[str] = []

    def open(self) -> None:
        self.turns.append("open")

    def close(self) -> None:
        self.turns.append("close")

    def log_probs(self, prompts: list[StepPrompt]) -> list[Reply]:
        replies = []
        for prompt in prompts:
            before, response = prompt.tokens[: prompt.ends[0] + 1], prompt.tokens[prompt.ends[0] + 1 :]
            text = self.tokenizer.decode(response, skip_special_tokens=True)
            self.asked.append((self.tokenizer.decode(before), text))
            said = self.said[text]
            replies.append(said if isinstance(said, Reply) else Reply(log_probs=tuple(said)))
        return replies


@pytest.fixture()
def place(letters, monkeypatch) -> Place:
    """The policy says -0.5 of every token."""
    said = {"ab": [-0.5, -0.25, -1.5], "c": [-0.5, -0.5], "def": [-2.5, -0.5, -0.5, -0.1], "gh": [-20.5, -0.5, -0.5]}
    made = Place(letters, said)
    monkeypatch.setattr("oger_recipe.pipeline.controller.experience_maker.likelihoods_of", lambda *_: made)
    return made


def by_row(experiences: list[Any], name: str = "advantages") -> list[list[float]]:
    rows = {}
    for experience in experiences:
        for position, row in enumerate(experience.index):
            rows[row] = getattr(experience, name)[position][experience.action_mask[position].bool()].tolist()
    return [rows[row] for row in sorted(rows)]


D = [[0.0, 0.25, -1.0], [0.0, 0.0], [-2.0, 0.0, 0.0, 0.4], [-20.0, 0.0, 0.0]]
GROUP = [0.5, -0.5, 0.5, -0.5]  # dr_grpo


def graded(weight: float, limit: float = 10.0, forward: bool = False, group: list[float] = GROUP) -> list[Any]:
    """Advantages by hand."""

    def grade(d: float) -> float:
        return max(-limit, min(limit, math.exp(d) - 1 if forward else d))

    return [pytest.approx([own + weight * grade(d) for d in row], abs=1e-5) for own, row in zip(group, D, strict=True)]


@pytest.mark.parametrize("micro_batch", ["4", "2", "1"])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], graded(1.0)),
        (["--oger.grade_weight", "0.3"], graded(0.3)),
        (["--oger.grade_weight", "0"], graded(0.0)),
        (["--oger.grade_max", "1.5"], graded(1.0, limit=1.5)),
        (["--oger.grade_divergence", "forward_kl"], graded(1.0, forward=True)),
        (["--oger.grade_divergence", "forward_kl", "--oger.grade_max", "0.5"], graded(1.0, 0.5, forward=True)),
        (["--oger.prefix_reward_weight_beta", "0"], graded(1.0, group=[0.0] * 4)),  # alone
        (["--oger.grade_schedule", "linear", "--oger.grade_weight_end", "0.5"], graded(0.75)),  # step 2 of 3
        (
            ["--oger.grade_schedule", "linear", "--oger.grade_weight_end", "3", "--oger.grade_schedule_steps", "2"],
            graded(3.0),
        ),
    ],
    ids=str,
)
def test_grades_are_added_to_each_tokens_advantage(controller, rollout, place, flags, expected, micro_batch) -> None:
    cut = f"--rollout.micro_batch_size={micro_batch}"
    maker = controller(*NO_TEACHERS, *MODEL, cut, *flags, steps=3)
    maker.step = 2
    assert by_row(maker.make_experience_batch([rollout(*each) for each in TEXTS.items()])) == expected
    assert place.turns == ["open", "close"]
    assert sorted(place.asked) == [(PROMPT, text) for text in sorted(TEXTS)]


def test_metrics_and_samples_of_grades(controller, rollout, place) -> None:
    maker = controller(*NO_TEACHERS, *MODEL, "--oger.grade_weight", "0.5")
    maker.make_experience_batch([rollout(*each) for each in TEXTS.items()])
    metrics = maker.current.metrics
    tokens, total = sum(map(len, D)), sum(map(sum, D))
    ours = 0.5 * (0.25 + 1 + 2 + 0.4 + 10)
    wanted = {
        "oger/grade": total / tokens,
        "oger/grade_weight": 0.5,
        "oger/grade_share": ours / (ours + 0.5 * tokens),
        "oger/grade_clamped": 1 / tokens,
        "oger/graded_rollouts": 4.0,
        "oger/graded_tokens": float(tokens),
        "oger/grade_failed": 0.0,
        "nonfinite/grades": 0.0,
    }
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted)
    assert metrics["timing/grades"] > 0 and metrics["timing/forward"] > 0
    lines = read_jsonl(maker.run_dir / "samples" / "step_00001.jsonl")
    assert [line["grade"] for line in lines] == [pytest.approx(sum(row) / len(row)) for row in D]
    assert [line["advantage"] for line in lines] == GROUP  # the estimator's


def test_without_a_grader_there_is_no_trace_of_one(controller, rollout) -> None:
    maker = controller(*NO_TEACHERS)
    maker.make_experience_batch([rollout(*each) for each in TEXTS.items()])
    names = [name for name in maker.current.metrics if "grade" in name or name == "timing/forward"]
    assert names == ["nonfinite/grades"]
    assert "grade" not in read_jsonl(maker.run_dir / "samples" / "step_00001.jsonl")[0]


def test_rows_that_a_grader_fails_on_keep_the_estimators_advantage(controller, rollout, place) -> None:
    place.said |= {"ab": Reply(error="not finite", cause="answer"), "c": Reply(error="too long", cause="overflow")}
    maker = controller(*NO_TEACHERS, *MODEL)
    advantages = by_row(maker.make_experience_batch([rollout(*each) for each in TEXTS.items()]))
    assert advantages == [[0.5] * 3, [-0.5] * 2, *graded(1.0)[2:]]
    names = ("oger/grade_failed", "nonfinite/grades", "oger/graded_rollouts")
    assert [maker.current.metrics[name] for name in names] == [2, 1, 2]


def test_a_grader_that_is_gone_ends_the_run(controller, rollout, place) -> None:
    place.said = dict.fromkeys(TEXTS, Reply(error="its process died"))
    with pytest.raises(SourceFailed, match="oger.grader model: its process died"):
        controller(*NO_TEACHERS, *MODEL).make_experience_batch([rollout(*each) for each in TEXTS.items()])


def test_rows_without_a_place_in_the_loss_are_not_graded(controller, rollout, place) -> None:
    flags = ["--oger.disable_truncation_advantage"]
    rows = [rollout(*each, truncated=each[0] == "def") for each in TEXTS.items()]
    advantages = by_row(controller(*NO_TEACHERS, *MODEL, *flags).make_experience_batch(rows))
    assert advantages == [*graded(1.0)[:2], [0.0] * 4, graded(1.0)[3]]


def test_teachers_rows_have_no_grades(controller, rollout, place, letters) -> None:
    teacher = Teacher("a", "zz", [*letters.encode("zz"), letters.eos_token_id], 1.0, 1.0)
    flags = ["--oger.bonus_weight", "0", "--oger.replace_mode", "wrong_first_random"]
    maker = controller(*MODEL, *flags, teachers={"u": [teacher]})
    advantages = by_row(maker.make_experience_batch([rollout(*each) for each in TEXTS.items()]))
    (row,) = maker.current.batch.injected
    assert len(set(advantages[row])) == 1  # of the estimator alone
    assert sorted(text for _, text in place.asked) == sorted({*TEXTS} - {[*TEXTS][row]})


@pytest.mark.parametrize("micro_batch", ["4", "1"])
def test_of_a_rollout_behind_a_prefix_the_policys_own_tokens_are_graded(
    controller, rollout, place, micro_batch
) -> None:
    """ "def" goes on after "de", of which the engine sampled nothing, and "gh" is a teacher's whole trajectory."""
    guided = {"def": 2, "gh": 3}
    place.said["f"] = [-0.25, -1.5]  # and of the end
    flags = ["--oger.bonus_weight", "0", "--oger.max_replace_num", "0", "--oger.n_prefix", "2"]
    maker = controller(*MODEL, *flags, f"--rollout.micro_batch_size={micro_batch}")
    rows = [rollout(*each, guided=guided.get(each[0], 0)) for each in TEXTS.items()]
    advantages = by_row(maker.make_experience_batch(rows))
    assert advantages == [*graded(1.0)[:2], pytest.approx([0.5, 0.5, 0.75, -0.5]), [-0.5] * 3]
    assert sorted(place.asked) == [(PROMPT, "ab"), (PROMPT, "c"), (PROMPT + "de", "f")]
    assert [maker.current.metrics[f"oger/graded_{what}"] for what in ("rollouts", "tokens")] == [3, 7]


# ---- what the policy is shown


def demonstrations(letters: Any, *texts: str) -> list[Teacher]:
    tokens = [[*letters.encode(text), letters.eos_token_id] for text in texts]
    return [Teacher(f"s{n}", text, tokens[n], 1.0, 1.0) for n, text in enumerate(texts)]


class Own(Place):
    """In place of the policy that is shown a teacher: what it is asked, and how long each whole text is."""

    def log_probs(self, prompts: list[StepPrompt]) -> list[Reply]:
        self.asked += [(self.tokenizer.decode(each.tokens[: each.ends[0] + 1]), len(each.tokens)) for each in prompts]
        return [Reply(log_probs=(-0.25,) * (each.ends[1] - each.ends[0])) for each in prompts]


@pytest.fixture()
def own(letters, monkeypatch) -> Own:
    made = Own(letters, {})
    monkeypatch.setattr("oger_recipe.pipeline.controller.experience_maker.PolicyLikelihoods", lambda *_: made)
    monkeypatch.setattr("oger_recipe.pipeline.controller.experience_maker.window_of", lambda _: 40)
    return made


SELF = [*NO_TEACHERS, "--oger.grader", "self", "--actor.model_name_or_path", "me/policy"]
SHOWN = {"u": ("[", "] now>"), "v": ("{", "} now>")}


def test_the_policy_grades_what_it_says_by_what_it_would_say_if_it_saw_a_teacher(
    controller, rollout, own, letters
) -> None:
    """Of two groups the second has no teacher. Rows of up to four tokens leave 36 of the 40 of the window to a prompt,
    which the third teacher does not fit."""
    teachers = {"u": demonstrations(letters, "first", "second", "t" * 30)}
    maker = controller(*SELF, teachers=teachers, shown=SHOWN)
    rows = [rollout(*each, uid=uid) for uid in "uv" for each in TEXTS.items()]
    advantages = by_row(maker.make_experience_batch(rows))
    (prompt,) = {prompt for prompt, _ in own.asked}
    assert prompt in ("[first] now>", "[second] now>") and len(own.asked) == 4
    assert [length - len(prompt) for _, length in own.asked] == [3, 2, 4, 3]
    assert advantages[:4] == [[0.75] * 3, [-0.25] * 2, [0.75] * 4, [-0.25] * 3]
    assert advantages[4:] == [[0.5] * 3, [-0.5] * 2, [0.5] * 4, [-0.5] * 3]
    names = ("oger/grade_untaught", "oger/grade_too_long", "oger/graded_rollouts")
    assert [maker.current.metrics[name] for name in names] == [1, 1, 4]


@pytest.mark.parametrize(("longest", "fits"), [(29, True), (30, False)])
def test_a_teacher_fits_beside_the_longest_rollout(controller, rollout, own, letters, longest, fits) -> None:
    """[, ] now>: 7 tokens; the longest rollout has 4 of the window's 40."""
    maker = controller(*SELF, teachers={"u": demonstrations(letters, "t" * longest)}, shown=SHOWN)
    maker.make_experience_batch([rollout(*each) for each in TEXTS.items()])
    assert bool(own.asked) is fits and maker.current.metrics["oger/grade_untaught"] == float(not fits)


def test_who_is_shown_follows_from_seed_prompt_and_step_alone(controller, rollout, own, letters) -> None:
    teachers = {"u": demonstrations(letters, *map(str, range(8))), "v": demonstrations(letters, *map(str, range(8)))}
    seen = []
    for uids, step, seed in (("uv", 1, 1), ("vu", 1, 1), ("uv", 2, 1), ("uv", 1, 2)):
        maker = controller(*SELF, f"--train.seed={seed}", teachers=teachers, shown=SHOWN)
        maker.step, own.asked = step, []
        maker.make_experience_batch([rollout(*each, uid=uid) for uid in uids for each in TEXTS.items()])
        assert len({prompt for prompt, _ in own.asked}) == 2
        seen.append({prompt for prompt, _ in own.asked})
    assert seen[0] == seen[1] and seen[2] != seen[0] != seen[3]


@pytest.mark.parametrize("flags", [["--oger.teacher_draw", "shortest"], ["--oger.teacher_draw", "source_weights"]])
def test_who_is_shown_is_drawn_as_who_enters_is(controller, rollout, own, letters, flags) -> None:
    teachers = {"u": demonstrations(letters, "long one", "ok")}
    weights = ["--oger.teacher_source_weights", "s0=0"] if "source_weights" in flags else []
    maker = controller(*SELF, *flags, *weights, teachers=teachers, shown=SHOWN)
    maker.make_experience_batch([rollout(*each) for each in TEXTS.items()])
    assert {prompt for prompt, _ in own.asked} == {"[ok] now>"}


def test_behind_the_prompt_that_shows_a_teacher_the_prefix_stays(controller, rollout, own, letters) -> None:
    maker = controller(*SELF, "--oger.n_prefix", "1", teachers={"u": demonstrations(letters, "first")}, shown=SHOWN)
    advantages = by_row(
        maker.make_experience_batch([rollout(*each, guided=each[0] == "ab") for each in TEXTS.items()])
    )
    prompts = sorted({prompt for prompt, _ in own.asked})
    assert prompts == ["[first] now>", "[first] now>a"]
    assert advantages == [[0.5, 0.75, 0.75], [-0.25] * 2, [0.75] * 4, [-0.25] * 3]


# ---- the policy as a place


class Actors:
    """A group of one of the policy's actors."""

    def __init__(self, actor: OgerPolicyModelActor) -> None:
        self.actor = actor
        self.calls: list[tuple[int, int]] = []  # shapes of what passed through the model

    def async_run_method_batch(self, method_name: str, **lists: Any) -> list[list[Any]]:
        rows = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
        self.calls += [tuple(each["sequences"].shape) for each in rows]
        return [[getattr(self.actor, method_name)(**each) for each in rows]]


@pytest.fixture()
def actors(nested, tiny, monkeypatch) -> Any:
    """A tiny policy in OpenRLHF's actor, on one rank without DeepSpeed, in float32."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # written by the actor's constructor
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(ppo_actor, "Actor", Actor)  # put back: which one is chosen for the process

    def make(*flags: str) -> Actors:
        actor = OgerPolicyModelActor(1, 0, "127.0.0.1", 1)
        strategy = Strategy(nested("--ds.attn_implementation=eager", *flags))
        actor.init_model_from_pretrained(strategy, str(tiny), max_steps=1)
        for model in filter(None, (actor.actor, actor.grader)):
            model.model.float()
        return Actors(actor)

    return make


@pytest.fixture(scope="module")
def tiny(byte_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights the policy's type, bfloat16, can hold."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    AutoModelForCausalLM.from_pretrained(byte_llama).bfloat16().float().save_pretrained(folder)
    AutoTokenizer.from_pretrained(byte_llama).save_pretrained(folder)
    return folder


def texts(letters: Any, pairs: list[tuple[str, str]]) -> list[StepPrompt]:
    made = []
    for before, response in pairs:
        first, second = letters.encode(before), [*letters.encode(response), letters.eos_token_id]
        made.append(StepPrompt((*first, *second), (len(first) - 1, len(first) + len(second) - 1)))
    return made


PAIRS = [("Solve 1+2. A solution: 3. Solve it.", "<answer>1+2"), ("a", "b"), ("Solve 4.", "44+4"), ("xyz", "no idea")]


def direct(folder: Path, prompt: StepPrompt, temperature: float = 1.0) -> torch.Tensor:
    """Each row alone through transformers' own forward pass."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.tensor([prompt.tokens])).logits[0] / temperature
    found = logits.log_softmax(dim=-1)
    places = range(prompt.ends[0] + 1, len(prompt.tokens))
    return torch.stack([found[place - 1, prompt.tokens[place]] for place in places])


@pytest.mark.parametrize(
    "flags",
    [
        ["--rollout.micro_batch_size", "1"],
        ["--rollout.micro_batch_size", "3"],
        ["--rollout.micro_batch_size", "4", "--rollout.temperature", "0.7"],
        ["--rollout.micro_batch_size", "1", "--train.dynamic_batch_enable", "--rollout.max_tokens_per_gpu", "60"],
        ["--rollout.micro_batch_size", "4", "--ds.packing_samples"],
        ["--rollout.micro_batch_size", "1", "--train.dynamic_batch_enable", "--rollout.max_tokens_per_gpu", "60"]
        + ["--ds.packing_samples"],
    ],
    ids=str,
)
def test_the_policys_log_probabilities_are_those_of_a_direct_forward_pass(
    controller, tiny, letters, actors, flags
) -> None:
    maker = controller(*NO_TEACHERS, *flags)
    temperature = maker.args.rollout.temperature
    packs = ["--ds.packing_samples"] * ("--ds.packing_samples" in flags)
    group, prompts = actors(f"--rollout.temperature={temperature}", *packs), texts(letters, PAIRS)
    replies = PolicyLikelihoods(group, maker.split_rollout_samples, maker.args).log_probs(prompts)
    for prompt, reply in zip(prompts, replies, strict=True):
        torch.testing.assert_close(torch.tensor(reply.log_probs), direct(tiny, prompt, temperature))
    assert len(group.calls) > 1 or flags[1] == "4"
    assert sum(rows for rows, _ in group.calls) == len(prompts)


def test_the_initial_policy_answers_whatever_the_policy_has_become(controller, tiny, letters, actors) -> None:
    maker = controller(*NO_TEACHERS)
    group, prompts = actors("--oger.grader=initial"), texts(letters, PAIRS)
    for parameter in group.actor.actor.parameters():
        parameter.data.mul_(1.5)
    for method, is_initial in (("forward_grader", True), ("forward", False)):
        replies = PolicyLikelihoods(group, maker.split_rollout_samples, maker.args, method).log_probs(prompts)
        for prompt, reply in zip(prompts, replies, strict=True):
            assert torch.allclose(torch.tensor(reply.log_probs), direct(tiny, prompt), atol=1e-5) == is_initial


@pytest.mark.parametrize(
    ("grader", "method"), [("self", "forward"), ("initial", "forward_grader"), ("average", "forward_grader")]
)
def test_who_is_shown_a_teacher_is_the_one_that_the_recipe_names(
    controller, rollout, letters, monkeypatch, grader, method
) -> None:
    """What the grader's prompt is, and what becomes of its grades, is the same for both."""
    asked, own = [], Own(letters, {})

    def place(group: Any, cut: Any, args: Any, method: str) -> Own:
        asked.append(method)
        return own

    monkeypatch.setattr("oger_recipe.pipeline.controller.experience_maker.PolicyLikelihoods", place)
    monkeypatch.setattr("oger_recipe.pipeline.controller.experience_maker.window_of", lambda _: 40)
    maker = controller(*SELF, "--oger.grader", grader, teachers={"u": demonstrations(letters, "first")}, shown=SHOWN)
    advantages = by_row(maker.make_experience_batch([rollout(*each) for each in TEXTS.items()]))
    assert asked == [method] and {prompt for prompt, _ in own.asked} == {"[first] now>"}
    assert advantages == [[0.75] * 3, [-0.25] * 2, [0.75] * 4, [-0.25] * 3]


def test_rows_are_made_up_to_a_multiple_of_the_ranks(controller, tiny, letters, actors) -> None:
    maker = controller(*NO_TEACHERS, "--rollout.micro_batch_size", "2", "--actor.num_gpus_per_node", "3")
    group, prompts = actors(), texts(letters, PAIRS)
    replies = PolicyLikelihoods(group, maker.split_rollout_samples, maker.args).log_probs(prompts)
    assert len(replies) == 4 and sum(rows for rows, _ in group.calls) == 6
    assert len(group.calls) % 3 == 0  # as many for each rank
    for prompt, reply in zip(prompts, replies, strict=True):
        torch.testing.assert_close(torch.tensor(reply.log_probs), direct(tiny, prompt))


def test_the_policy_and_the_same_model_in_this_process_agree(controller, tiny, letters, actors) -> None:
    maker = controller(*NO_TEACHERS)
    prompts = texts(letters, PAIRS)
    ours = PolicyLikelihoods(actors(), maker.split_rollout_samples, maker.args).log_probs(prompts)
    theirs = InProcess(WriterKeys(model=str(tiny), place="in_process")).log_probs(prompts)
    for one, other in zip(ours, theirs, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_a_policy_that_is_shown_what_it_sees_anyway_gives_itself_no_grade(
    controller, rollout, tiny, letters, actors
) -> None:
    """The grader's prompt is the rollout's own: equal to the last bit where both passes are cut alike."""
    flags = ["--oger.grader", "self", "--actor.model_name_or_path", str(tiny), *NO_TEACHERS]
    before, after = PROMPT[:1], PROMPT[2:]
    maker = controller(*flags, teachers={"u": demonstrations(letters, PROMPT[1])}, shown={"u": (before, after)})
    maker.actor_model_group = maker.grader._place._group = actors()
    maker.engine_guard = SimpleNamespace(compare=lambda *_, **__: {})  # its engine says -0.5 of every token
    maker.make_experience_batch([rollout(*each) for each in TEXTS.items()])
    (difference,) = maker.current.differences
    mask = difference.isfinite()
    assert mask.sum() == 12 and torch.equal(difference[mask], torch.zeros(12))


def test_no_text_is_no_forward_pass(controller, actors) -> None:
    maker = controller(*NO_TEACHERS)
    assert PolicyLikelihoods(actors(), maker.split_rollout_samples, maker.args).log_probs([]) == []


# ---- how likely teachers' answers are

LIKELIEST = ["--oger.bonus_weight", "0", "--oger.replace_mode", "random", "--oger.teacher_draw", "likeliest_answer"]
WRONG = dict.fromkeys(TEXTS, 0.0)
ANSWERED = ("so #### 12", "well <answer>3</answer>.", "\\boxed{45}\n", "none\n  6 ", "")
# p of each token by hand; (e^-1 + e^-2) / 2 = 0.25, e^-1.2 = 0.30, (e^-0.3 + e^-4) / 2 = 0.38, e^-1.3 = 0.27
SAID = {"12": [-1.0, -2.0], "3": [-1.2], "45": [-0.3, -4.0], "6": [-1.3]}


@pytest.fixture()
def answers(letters, monkeypatch) -> Place:
    made = Place(letters, SAID)
    monkeypatch.setattr("oger_recipe.pipeline.controller.experience_maker.PolicyLikelihoods", lambda *_: made)
    return made


@pytest.mark.parametrize(
    ("places", "drawn"), [("1", ["45"]), ("2", ["45", "3"]), ("4", ["45", "3", "6", "12"])], ids=["1", "2", "4"]
)
def test_teachers_enter_by_the_mean_probability_of_their_answer_after_their_reasoning(
    controller, rollout, letters, answers, places, drawn
) -> None:
    teachers = {"u": demonstrations(letters, *ANSWERED)}
    maker = controller(*LIKELIEST, "--oger.max_replace_num", places, teachers=teachers)
    maker.make_experience_batch([rollout(*each) for each in WRONG.items()])
    entered = [teacher.text for teacher in maker.current.batch.injected.values()]
    assert entered == [next(text for text in ANSWERED if answer in text) for answer in drawn]
    assert sorted(answers.asked) == [
        (f"{PROMPT}\\boxed{{", "45"),
        (f"{PROMPT}none\n  ", "6"),
        (f"{PROMPT}so #### ", "12"),
        (f"{PROMPT}well <answer>", "3"),
    ]
    assert answers.turns == ["open", "close"]
    means = [sum(map(math.exp, log_probs)) / len(log_probs) for log_probs in SAID.values()]
    assert maker.current.metrics["oger/answer_likelihood"] == pytest.approx(sum(means) / 4)
    assert maker.current.metrics["timing/answer_likelihoods"] > 0


def test_the_policy_is_asked_only_where_teachers_enter_and_not_all_of_them_do(
    controller, rollout, letters, answers
) -> None:
    flags = ["--oger.teacher_gate", "0", "--oger.max_replace_num", "2"]
    teachers = {uid: demonstrations(letters, *ANSWERED[:3]) for uid in "uv"}
    teachers["w"] = demonstrations(letters, *ANSWERED[1:3])
    maker = controller(*LIKELIEST, *flags, teachers=teachers)
    earned = {(uid, text): float(uid == "v" and text == "ab") for uid in "vuwx" for text in TEXTS}
    maker.make_experience_batch([rollout(text, one, uid=uid, prompt=f"{uid}?") for (uid, text), one in earned.items()])
    # one of v is right, w has as many teachers as places, x has none
    assert sorted(before[:2] for before, _ in answers.asked) == ["u?"] * 3
    assert sorted(row // 4 for row in maker.current.batch.injected) == [1, 1, 2, 2]


def test_without_a_group_to_ask_about_there_is_no_forward_pass(controller, rollout, letters, answers) -> None:
    maker = controller(*LIKELIEST, teachers={"u": demonstrations(letters, "so 1")})
    maker.make_experience_batch([rollout(*each) for each in WRONG.items()])
    assert answers.turns == [] and len(maker.current.batch.injected) == 1
    assert "oger/answer_likelihood" not in maker.current.metrics


def test_a_teacher_that_the_policy_cannot_be_asked_about_comes_last(controller, rollout, letters, answers) -> None:
    answers.said = SAID | {"45": Reply(error="not finite", cause="answer")}
    maker = controller(*LIKELIEST, teachers={"u": demonstrations(letters, ANSWERED[2], ANSWERED[4], ANSWERED[0])})
    maker.make_experience_batch([rollout(*each) for each in WRONG.items()])
    assert [teacher.text for teacher in maker.current.batch.injected.values()] == [ANSWERED[0]]
    none = controller(*LIKELIEST, teachers={"u": demonstrations(letters, "", " ", "\n")})
    none.make_experience_batch([rollout(*each) for each in WRONG.items()])
    assert [teacher.text for teacher in none.current.batch.injected.values()] == [""]
    answers.said = dict.fromkeys(SAID, Reply(error="its process died"))
    with pytest.raises(SourceFailed, match="oger.teacher_draw likeliest_answer: its process died"):
        maker.make_experience_batch([rollout(*each) for each in WRONG.items()])


@pytest.mark.parametrize("micro_batch", ["1", "3"])
def test_the_likeliest_answer_is_that_of_direct_forward_passes(
    controller, rollout, letters, tiny, actors, micro_batch
) -> None:
    written = {"so #### ": "12", "well <answer>": "31", "\\boxed{": "-7", "é, then\n": "8*2"}
    ends = ("", "</answer>", "}", "")
    means = {}
    for (before, answer), end in zip(written.items(), ends, strict=True):
        (whole,) = texts(letters, [(PROMPT + before, answer)])  # with the end of sequence a token more
        means[before + answer + end] = direct(tiny, whole)[:-1].exp().mean().item()
    flags = ["--oger.max_replace_num", "3", f"--rollout.micro_batch_size={micro_batch}"]
    maker = controller(*LIKELIEST, *flags, teachers={"u": demonstrations(letters, *means)})
    maker.actor_model_group = maker.likelihoods._place._group = actors()
    maker.engine_guard = SimpleNamespace(compare=lambda *_, **__: {})  # its engine says -0.5 of every token
    maker.make_experience_batch([rollout(*each) for each in WRONG.items()])
    assert maker.current.metrics["oger/answer_likelihood"] == pytest.approx(sum(means.values()) / 4, rel=1e-5)
    likeliest = sorted(means, key=means.__getitem__, reverse=True)[:3]
    assert [teacher.text for teacher in maker.current.batch.injected.values()] == likeliest


# ---- before a run

DYNAMIC = ["--train.dynamic_batch_enable", "--rollout.max_tokens_per_gpu"]
BETA = ["--oger.prefix_reward_weight_beta", "0"]
ALONE = ["--oger.grader", "self", *BETA]
IN_LOSS = ["--algo.kl.use_loss", "--algo.kl.init_coef", "0.01"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--oger.grader", "model"], "needs one model in oger.grade_model"),
        (["--oger.grader", "model", "--oger.grade_model", '[{"model": "a"}, {"model": "b"}]'], "needs one model"),
        (
            ["--oger.grader", "model", "--oger.grade_model", '[{"model": "a", "url": "http://h:1/v1"}]'],
            "oger.grade_model: a server's name for a model says nothing of its tokens: add tokenizer",
        ),
        (
            ["--oger.grader", "model", "--oger.grade_model", '[{"model": "a", "concurrency": 2}]'],
            "oger.grade_model: concurrency is for a server: give a url, or leave it out",
        ),
        (
            ["--oger.grader", "model", "--oger.grade_model", '[{"model": "a", "head": "pooling"}]'],
            "oger.grade_model: key 'head' is unknown; known: model, revision",
        ),
        (
            ["--oger.grader", "model", "--oger.grade_model", '[{"model": "a", "plugin": "binary"}]'],
            "oger.grade_model: key 'plugin' is unknown; known: model, revision",
        ),
        (
            ["--oger.grader", "model", "--oger.grade_model", '[{"model": "a", "dtype": "int4"}]'],
            "oger.grade_model: dtype 'int4' is unknown",
        ),
        (["--oger.grader", "self", "--oger.ratio_level", "step"], "oger.grader self grades tokens"),
        (
            [*ALONE, "--algo.kl.init_coef", "0.01"],
            "the KL in the reward (algo.kl.init_coef 0.01): set algo.kl.use_loss",
        ),
        (
            [*ALONE, *IN_LOSS, "--oger.kl_penalty_coef", "0.02"],
            "the KL of oger.kl_penalty_coef 0.02: leave it out",
        ),
        (["--oger.grader", "average", "--ds.zero_stage", "3"], "cannot be used with ds.zero_stage 3: use"),
        (["--oger.grader", "average", "--ds.lora.rank", "8"], "cannot be used with ds.lora.rank: use"),
        (["--oger.grader", "average", "--ds.tensor_parallel_size", "2"], "with ds.tensor_parallel_size above 1: use"),
        ([*NO_TEACHERS, *BETA], "nothing else teaches the policy: grades are off (oger.grader off"),
        ([*ALONE, *NO_TEACHERS, "--oger.grade_weight", "0"], "grades are off (oger.grader self, oger.grade_weight 0)"),
    ],
    ids=str,
)
def test_what_cannot_be_graded_is_refused(parser, flags, said) -> None:
    value = vars(parser.parse_args(flags))
    assert [problem for problem in combination_problems(value) if said in problem]


@pytest.mark.parametrize(
    "flags",
    [
        [*ALONE, *IN_LOSS],
        ["--algo.kl.init_coef", "0.01", "--oger.grader", "self"],
        [*BETA],  # teachers alone
        [*BETA, "--oger.max_replace_num", "0", "--oger.n_prefix", "2"],
        [*ALONE, *NO_TEACHERS, "--oger.grade_weight", "0", "--oger.grade_schedule", "linear"]
        + ["--oger.grade_weight_end", "1"],
    ],
    ids=str,
)
def test_a_run_without_the_estimators_advantage_has_what_still_teaches(parser, flags) -> None:
    problems = combination_problems(vars(parser.parse_args(flags)))
    assert not [problem for problem in problems if "prefix_reward_weight_beta" in problem]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            [*DYNAMIC, "767"],
            "768 tokens (data.max_len and a shown teacher), more than rollout.max_tokens_per_gpu 767:",
        ),
        ([*DYNAMIC, "767", "--oger.grader", "self"], "768 tokens"),
        ([DYNAMIC[0], "--train.max_tokens_per_gpu", "767"], "more than train.max_tokens_per_gpu 767: a longer one is"),
        ([*DYNAMIC, "768"], None),
        ([*DYNAMIC, "800", "--oger.max_prefix_len", "288"], None),
        ([*DYNAMIC, "799", "--oger.max_prefix_len", "288"], "800 tokens"),
        ([DYNAMIC[1], "767"], None),
        ([*DYNAMIC, "767", "--oger.grader", "off"], None),
    ],
    ids=str,
)
def test_rows_of_grades_that_are_longer_than_a_dynamic_batch_are_noted(parser, flags, said) -> None:
    common = ["--data.max_len", "512", "--rollout.max_new_tokens", "256", "--oger.grader", "initial"]
    found = notes(vars(parser.parse_args([*common, *flags])), parser.get_default)
    assert [said in note for note in found if note.startswith("rows of grades may")] == [True] * (said is not None)


def test_a_kl_in_the_reward_is_weighed_as_the_estimators_advantage_is(controller, rollout, place) -> None:
    """Why it is refused beside a beta of 0. Policy -0.5, reference -1.2: k1 takes 0.07 for each token to the end."""
    kl = ["--algo.kl.init_coef", "0.1", "--algo.kl.estimator", "k1", "--oger.grade_weight", "0"]
    halved = controller(*NO_TEACHERS, *MODEL, *kl, "--oger.prefix_reward_weight_beta", "0.5", reference=-1.2)
    advantages = by_row(halved.make_experience_batch([rollout(*each) for each in TEXTS.items()]))
    own = [[reward - 0.07 * (len(row) - n) for n in range(len(row))] for reward, row in zip(GROUP, D, strict=True)]
    assert advantages == [pytest.approx([0.5 * each for each in row]) for row in own]


def test_a_model_is_named_by_a_mapping(parser) -> None:
    with pytest.raises(Exception, match=r"a list of one mapping with a model, such as \[\{model: "):
        parser.parse_args(["--oger.grade_model", '["a"]'])


@pytest.fixture()
def found(parser, tiny):
    def of(model: Path, *flags: str, url: str | None = None) -> list[Any]:
        given = ["--actor.model_name_or_path", str(tiny), "--oger.grader", "model", *flags]
        there = {"model": str(model), "place": "in_process"}
        there = there if url is None else {"model": "its-name", "url": url, "tokenizer": str(model)}
        given += ["--oger.grade_model", json.dumps([there])]
        return list(grader(SimpleNamespace(value=vars(parser.parse_args(given)), cpu=True)))

    return of


def test_a_teacher_model_at_a_server_has_a_tokenizer_here_and_the_servers_window(found, byte_llama) -> None:
    server = Server()
    try:
        for reads, state in ((512, "warning"), (513, "ok"), (None, "ok")):
            server.models = (200, {"data": [{"id": "its-name"} | ({"max_model_len": reads} if reads else {})]})
            (finding,) = found(byte_llama, "--data.max_len", "512", url=server.url)
            assert finding.state == state, finding.text
    finally:
        server.end()


def test_a_teacher_model_must_have_the_policys_tokens(found, tiny, byte_llama, tmp_path) -> None:
    fits = ["--data.max_len", "512"]
    (same,) = found(byte_llama, *fits)
    assert same.state == "ok" and "has the policy's tokens" in same.text
    more, other = (AutoTokenizer.from_pretrained(tiny) for _ in range(2))
    more.add_tokens(["zebra"])
    for name, tokenizer in (("more", more), ("other", other)):
        AutoConfig.from_pretrained(tiny).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (superset,) = found(tmp_path / "more", *fits)
    assert superset.state == "ok"  # what it has beside the policy's, no rollout has
    known = json.loads((tmp_path / "other" / "tokenizer.json").read_text())
    words = known["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(known))
    (swapped,) = found(tmp_path / "other", *fits)
    assert swapped.state == "problem" and "2 tokens have another id there" in swapped.text


def test_rows_that_are_longer_than_the_grader_reads_are_warned_of(found, byte_llama, parser, tiny) -> None:
    assert [each.state for each in found(byte_llama, "--data.max_len", "513")] == ["warning"]
    for longest, states in ((256, []), (257, ["warning"])):
        flags = ["--actor.model_name_or_path", str(tiny), "--oger.grader", "self", "--data.max_len", str(longest)]
        value = vars(parser.parse_args([*flags, "--rollout.max_new_tokens", "256"]))
        assert [each.state for each in grader(SimpleNamespace(value=value, cpu=True))] == states
