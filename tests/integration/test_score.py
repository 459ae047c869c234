"""`oger score`: what a run says of the same texts, what plugins say by hand, and what it says of bad input."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from doubles import Recorded, embedding_server
from judge_server import Server
from replay import CASES, CONFIGS, FLAGS, HERE, replayed
from transformers import AutoModelForCausalLM, AutoTokenizer

from oger_recipe.base import progress
from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.cli import score
from oger_recipe.grading.verifiers import look_in
from oger_recipe.lab.known_judges import Star, save_judge

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = list(sys.path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    look_in([])
    sys.path[:] = path


# ---- as a run


AS_A_RUN = {
    "shaped": ["--oger.similarity_shaping=group_rank", "--oger.similarity_reverse_fail", "--oger.entropy_position=top",
               "--oger.repeating_check", "--oger.non_stop_penalty=-0.25"],
    "fixed": ["--oger.non_stop_fixed_reward=0.5", "--oger.last_token_enp_reward=none",
              "--oger.all_correct_group=skip"],
    "steps": ["--algo.advantage.estimator=process_rloo", "--oger.advantage_baseline=group",
              '--oger.steps.delimiters=[","]', f'--oger.verifier_path=["{PLUGINS}"]',
              "--oger.non_stop_fixed_reward=-0.25", "--oger.reward.sources="
              '[{"name": "rule", "kind": "verifier"}, {"name": "explore", "kind": "bonus"}, '
              '{"name": "prm", "kind": "process_by_length:ByLength", "weight": 0.5}]'],
    "length": ["--oger.last_token_enp_reward=none", "--oger.reward.sources="
               '[{"name": "rule", "kind": "verifier"}, {"name": "explore", "kind": "bonus"}, '
               '{"name": "short", "kind": "length", "budget": 4, "limit": 16, "weight": 0.5}]'],
    "rank": ["--oger.repeating_check", "--oger.reward.sources="
             '[{"name": "rule", "kind": "verifier"}, {"name": "explore", "kind": "bonus"}, '
             '{"name": "unlikely", "kind": "unlikeliness", "weight": 0.25}, '
             '{"name": "rare", "kind": "uniqueness", "by": "answer", "weight": 0.5}]'],
}  # fmt: skip
# The same with teachers in the places of rollouts; those of wrong ones first, so that right ones alone are left.
_TAUGHT = ["--oger.max_replace_num=4", "--oger.replace_mode=wrong_first_similarity_mean_des"]
AS_A_RUN |= {f"{name} with teachers": [*flags, *_TAUGHT] for name, flags in AS_A_RUN.items()}
AS_A_RUN["failures, and functions of the user's own"] = [
    "--algo.advantage.estimator=own_method:over_mean", "--oger.last_token_enp_reward=own_method:half",
    "--oger.similarity_shaping=own_method:squared",
    f'--oger.verifier_path=["{PLUGINS}"]', "--oger.reward.sources="
    '[{"name": "rule", "kind": "verifier"}, {"name": "explore", "kind": "bonus"}, '
    '{"name": "short", "kind": "now_and_then:NowAndThen", "weight": 0.5, "worst": -3, "normalize": "group"}]',
]  # fmt: skip


@pytest.mark.parametrize("name", AS_A_RUN)
def test_a_response_gets_the_reward_that_a_run_gave_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--oger.prompts_per_update=3", "--oger.total_training_steps=2", "--oger.max_replace_num=0"]
    flags += AS_A_RUN[name]
    monkeypatch.setitem(CASES, name, ("oger_cpu", "group", flags))
    replayed(name, tmp_path)
    lines = [line for step in (1, 2) for line in read_jsonl(tmp_path / "run" / "samples" / f"step_0000{step}.jsonl")]
    write_jsonl(lines, tmp_path / "responses.jsonl")
    places = {"actor.model_name_or_path": HERE / "policy", "oger.data_cache": tmp_path / "data",
              "oger.embedding_cache": tmp_path / "scored_embeddings"}  # fmt: skip
    given = [f"--{flag}={value}" for flag, value in places.items()]
    with embedding_server(Recorded(HERE / "inputs" / "group.npz").vectors) as url:
        score.main(
            ["--recipe", str(CONFIGS / "oger_cpu.yaml"), "--rows", str(tmp_path / "rows.jsonl"),
             "--responses", str(tmp_path / "responses.jsonl"), "--out", str(tmp_path / "out.jsonl"),
             f"--oger.embedding_url={url}", *given, *FLAGS, *flags]
        )  # fmt: skip
    scored = read_jsonl(tmp_path / "out.jsonl")
    pairs = list(zip(lines, scored, strict=True))
    trained = [(line, found) for line, found in pairs if "replaced" not in line]
    assert len(trained) == 96 and any(line["truncated"] for line, _ in trained)
    assert len({line["sources"]["explore"] for line, _ in trained}) > 10
    assert any("errors" in line for line, _ in trained) is name.startswith("failures")
    taught = [found for line, found in trained if "source" in line]
    assert bool(taught) is ("with teachers" in name)
    assert len(pairs) == 96 + len(taught) and all(found["off_policy"] for found in taught)
    said = f"{len(taught)} of them are teachers' trajectories, in place of {len(taught)} rollouts"
    assert (said in capsys.readouterr().out) is bool(taught)
    for line, found in pairs:
        assert found["uid"] == line["uid"] and found["score"] == line["score"]
        assert found.get("off_policy", False) is line["off_policy"]
        if "replaced" in line:
            assert found == {"uid": line["uid"], "reward": None, "score": line["score"], "components": {},
                             "errors": {}, "replaced": True}  # fmt: skip
    for line, found in trained:
        assert found["reward"] == pytest.approx(line["total_reward"], rel=1e-5, abs=1e-7)
        assert found["components"] == pytest.approx(line["sources"], rel=1e-5, abs=1e-7)
        assert found["errors"] == line.get("errors", {}) and "replaced" not in found
        steps = line.get("steps_of_reasoning", [])
        assert bool(steps) is name.startswith("steps")
        for step, of_run in zip(found.get("steps_of_reasoning", []), steps, strict=True):
            assert step["text"] == of_run["text"]
            assert step["reward"] == pytest.approx(of_run["reward"], rel=1e-5, abs=1e-7)
            assert step["sources"] == pytest.approx(of_run["sources"], rel=1e-5)


# ---- answers in files


@pytest.fixture()
def scored(
    tmp_path: Path, policy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[dict[str, Any]]]:
    """Scores responses to three sums by the sources of a recipe in tmp_path."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"uid": f"sum-{n}", "prompt": f"What is {n} + {n}?", "answer": str(2 * n), "task": "gsm8k"} for n in (1, 2, 3)
    ]
    write_jsonl(rows, tmp_path / "rows.jsonl")

    def run(responses: list[Any], sources: list[Any] | None = None, *flags: str, **oger: Any) -> list[dict[str, Any]]:
        policy = {"model_name_or_path": str(policy_folder)} if oger.pop("policy", True) else {}
        reward = {"sources": sources, "cache": str(tmp_path / "verdicts")} | oger.pop("reward", {})
        settings = {"oger": {"bonus_weight": 0.0, "reward": {k: v for k, v in reward.items() if v is not None}} | oger,
                    "actor": policy, "data": {"max_len": 512}}  # fmt: skip
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
        lines = (each if isinstance(each, str) else json.dumps(each) for each in responses)
        (tmp_path / "responses.jsonl").write_text("".join(line + "\n" for line in lines))
        score.main(["--recipe", "recipe.yaml", "--rows", "rows.jsonl", "--responses", "responses.jsonl",
                    "--out", "out.jsonl", *flags])  # fmt: skip
        return read_jsonl(tmp_path / "out.jsonl")

    return run


def _answers(*texts: tuple[int, str]) -> list[dict[str, str]]:
    return [{"uid": f"sum-{n}", "text": text} for n, text in texts]


def _by_hand(name: str, folder: Path, prompts: list[str], responses: list[str]) -> list[float]:
    """What a user of a plugin writes himself: both functions, and greedy decoding between them."""
    sys.path.insert(0, str(PLUGINS))
    spec = importlib.util.spec_from_file_location("by_hand", PLUGINS / name)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    replies = []
    for prompt in module.rm_preprocess(prompts, responses, tokenizer):
        tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        written = model.generate(tokens, max_new_tokens=16, do_sample=False)[0, tokens.shape[1] :]
        replies.append(tokenizer.decode(written, skip_special_tokens=True))
    return module.rm_postprocess(replies)


def test_a_plugin_of_the_seeds_kind_scores_as_its_code_does_by_hand(
    scored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    rule = Star(yes='{"contact": 1, "solution": 1, "tone": 0}', no="I cannot tell")
    folder = save_judge(rule, tmp_path / "judge")
    texts = ["4*", "It is 4", "5*", "four"]
    sources = [
        {"name": "rule", "kind": "verifier"},
        {"name": "rider", "kind": "judge", "model": str(folder), "place": "in_process", "plugin": "rider_reward.py",
         "weight": 0.3, "gate": "rule_equals_1", "max_new_tokens": 16},
    ]  # fmt: skip
    found = scored(_answers(*((2, text) for text in texts)), sources, verifier_path=[str(PLUGINS)])
    assert "judge: 2 of 2 replies\n" in capsys.readouterr().err
    values = _by_hand("rider_reward.py", folder, ["What is 2 + 2?"] * 4, texts)
    assert values == pytest.approx([2 / 3, -1, 2 / 3, -1])
    right = [1, 1, 0, 0]
    assert [line["reward"] for line in found] == pytest.approx([1 + 0.3 * 2 / 3, 1 - 0.3, 0, 0])
    assert [line["score"] for line in found] == right
    judged = [line["components"].get("rider") for line in found]
    assert judged == [pytest.approx(values[0]), pytest.approx(values[1]), None, None]  # the gate is closed


OWN = """
def shortest(group):
    if any("boom" in text for text in group.responses):
        raise ValueError("boom")
    least = min(map(len, group.responses))
    size = len(group.responses)
    return [float(len(text) == least) for text in group.responses], {"of": [float(size)] * size}
"""


def test_a_group_is_the_answers_of_one_uid_wherever_they_stand_and_whatever_the_others_size(
    scored: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    sources = [{"name": "rule", "kind": "verifier"}, {"name": "short", "kind": "mine:shortest", "weight": 0.5}]
    mixed = _answers((1, "so 2"), (3, "boom"), (2, "4"), (1, "2"), (3, "6"), (2, "it is 5"), (2, "4!"))
    found = scored(mixed, sources)
    assert [line["uid"] for line in found] == [f"sum-{n}" for n in (1, 3, 2, 1, 3, 2, 2)]
    # short: of sum-1 the second answer, of sum-2 the first; sum-3 failed and counts as 0
    assert [line["reward"] for line in found] == [1.0, 0.0, 1.5, 1.5, 1.0, 0.0, 1.0]
    assert [line["components"].get("short/of") for line in found] == [2, None, 3, 2, None, 3, 3]
    assert [list(line["errors"]) for line in found] == [[], ["short"], [], [], ["short"], [], []]
    assert "boom" in found[4]["errors"]["short"] and "short" not in found[4]["components"]
    alone = scored([line for line in mixed if line["uid"] == "sum-2"], sources)
    assert alone == [line for line in found if line["uid"] == "sum-2"]
    said = capsys.readouterr().out
    assert "note: reward source short failed on 2 of 7 answers, first on responses.jsonl:2: ValueError: boom" in said
    assert "7 answers to 3 of 3 prompts" in said


def test_what_an_answer_brings_about_costs_the_same_by_all_of_on_error_but_stop(scored: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    sources = [{"name": "rule", "kind": "verifier"},
               {"name": "short", "kind": "mine:shortest", "combine": "mul"}]  # fmt: skip
    answers = _answers((1, "2"), (3, "boom 6"))
    for how in ("zero", "neutral"):  # the answer has brought it about
        assert [line["reward"] for line in scored(answers, sources, f"--oger.reward.on_error={how}")] == [1, 0]
    (tmp_path / "out.jsonl").unlink()
    said = r"^oger score: reward source short failed on 1 of 2 answers, first on responses\.jsonl:2: .*boom.* "
    with pytest.raises(SystemExit, match=said + r"\(oger\.reward\.on_error stop: nothing was written\)$"):
        scored(answers, sources, "--oger.reward.on_error=stop")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("gate", "texts", "rewards", "failed"),
    [("always", ["boom", "boom 2"], [0, 1], "2 of 2"), ("rule_equals_1", ["boom 2", "3"], [1, 0], "1 of 1")],
)
def test_a_source_that_failed_on_all_that_it_was_asked_about_is_the_commands_failure(
    scored: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    gate: str, texts: list[str], rewards: list[float], failed: str,
) -> None:  # fmt: skip
    """The file is there: it has each row's reason, and what the other sources said."""
    (tmp_path / "mine.py").write_text(OWN)
    sources = [{"name": "rule", "kind": "verifier"}, {"name": "short", "kind": "mine:shortest", "gate": gate}]
    said = rf"^oger score: reward source short failed on {failed} answers, first on responses\.jsonl:1: .*boom"
    with pytest.raises(SystemExit, match=said):
        scored(_answers(*((1, text) for text in texts)), sources)
    found = read_jsonl(tmp_path / "out.jsonl")
    assert "boom" in found[0]["errors"]["short"] and [line["reward"] for line in found] == rewards
    assert "reward" in capsys.readouterr().out.split("answers/s")[1]
    assert scored(_answers((1, texts[0]), (2, "4")), sources)[1]["components"]["short"] == 1.0  # not on all


def test_a_truncated_answer_gets_the_fixed_reward_and_nothing_on_top(scored: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    sources = [{"name": "rule", "kind": "verifier"}, {"name": "short", "kind": "mine:shortest"}]
    answers = [{"uid": "sum-1", "text": "2", "truncated": True}, {"uid": "sum-1", "text": "so 2"}]
    found = scored(answers, sources, "--oger.non_stop_fixed_reward=-0.5")
    assert [line["reward"] for line in found] == [-0.5, 1.0]


def test_tokens_are_counted_where_no_line_says_them(scored: Any, policy_folder: Path) -> None:
    """The budget is what the text has: what ends a whole answer is one token more, and nothing ends a cut one."""
    text = "1 + 1 = 2"
    tokens = len(AutoTokenizer.from_pretrained(policy_folder).encode(text, add_special_tokens=False))
    assert tokens > 4
    line = {"uid": "sum-1", "text": text}
    sources = [{"name": "short", "kind": "length", "budget": tokens, "limit": tokens + 4}]
    lines = [line, line | {"response_length": tokens + 2}, line | {"response_length": 3}]
    assert [each["reward"] for each in scored(lines, sources)] == [-0.25, -0.5, 0.0]
    assert [each["reward"] for each in scored([line | {"truncated": True}], sources)] == [-1.0]


def test_answers_that_are_equal_are_samples_of_their_own(scored: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert [line["reward"] for line in scored(_answers((1, "2"), (1, "2"), (2, "2")))] == [1, 1, 0]
    assert "note: 1 answers repeat another one of their group" in capsys.readouterr().out


def test_the_bonus_needs_the_entropy_that_no_text_tells(scored: Any) -> None:
    said = (
        r"^oger score: responses\.jsonl:2: the exploration bonus is weighted with the policy's entropy, which 1 of 2"
    )
    with pytest.raises(SystemExit, match=f"{said} lines do not have: add 'entropy'"):
        scored([{"uid": "sum-1", "text": "2", "entropy": 0.5}, {"uid": "sum-1", "text": "2"}], bonus_weight=1.0)
    without = scored(_answers((1, "2")), None, "--oger.last_token_enp_reward=none", bonus_weight=1.0)
    assert without[0]["reward"] == 1.0  # no teachers: nothing is known to differ from


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"uid": "sum-9", "text": "2"}, r"responses\.jsonl:2: no row of rows\.jsonl has the uid 'sum-9'"),
        ({"uid": "sum-1"}, r"responses\.jsonl:2: 'text' must be a string, found None"),
        ({"text": "2"}, r"responses\.jsonl:2: 'uid' must be a non-empty string, found None"),
        ({"uid": "sum-1", "text": "2", "response_length": 2.5}, r"responses\.jsonl:2: 'response_length' must be a"),
        ({"uid": "sum-1", "text": "2", "entropy": "high"}, r"responses\.jsonl:2: 'entropy' must be a number"),
        ({"uid": "sum-1", "text": "2", "truncated": 1}, r"responses\.jsonl:2: 'truncated' must be true or false"),
        ("{", r"responses\.jsonl:2: not valid JSON"),
        ("7", r"responses\.jsonl:2: a response is a JSON object, found int"),
    ],
)
def test_a_line_that_cannot_be_scored_is_named(scored: Any, line: Any, message: str) -> None:
    with pytest.raises(SystemExit, match=f"^oger score: {message}"):
        scored([{"uid": "sum-1", "text": "2"}, line])


def test_what_cannot_be_scored_is_refused_before_anything_is_read(scored: Any, tmp_path: Path) -> None:
    answers = _answers((1, "2"))
    for sources, flags, message in (
        ([{"name": "rule", "kind": "judg"}], [], r"the rewards of this recipe cannot be computed:\n  - .*'judg'"),
        (None, ["--out", "responses.jsonl"], "--out responses.jsonl is the file of the responses"),
        (None, ["--out", "."], r"--out \. is a folder"),
        (None, ["--out", "rows.jsonl/out.jsonl"], r"--out rows\.jsonl/out\.jsonl cannot be written: "),
        (None, ["--respones", "x"], "unknown flag '--respones'; did you mean '--responses'"),
        (
            None,
            ["--oger.bonus_weight=-1"],
            r"the rewards of this recipe cannot be computed:\n  - oger\.bonus_weight is -1\.0",
        ),
        (None, ["--responses", "nowhere.jsonl"], r"nowhere\.jsonl: no such"),
    ):
        with pytest.raises(SystemExit, match=f"^oger score: {message}"):
            scored(answers, sources, *flags)
    assert not (tmp_path / "out.jsonl").exists()


# ---- without a policy


RULE = {"name": "rule", "kind": "verifier"}


def test_a_judge_needs_no_policy_and_a_set_one_is_not_looked_at(scored: Any) -> None:
    """Nor do prompts that are chats, nor teachers whom no source reads."""
    turns = [{"role": "user", "content": "What is 1 + 1?"}]
    teacher = {"source": "a", "text": "#### 2", "correct": True}
    row = {"uid": "sum-1", "prompt": turns, "answer": "2", "task": "gsm8k", "teachers": [teacher]}
    server = Server()
    choice = {"index": 0, "message": {"content": "Verdict: 1"}, "finish_reason": "stop"}
    server.answer = lambda prompt, count: (200, {"choices": [choice]})
    judge = {"name": "good", "kind": "judge", "model": "judge", "url": server.url, "plugin": "binary", "weight": 0.5}
    answers = _answers((1, "#### 2"), (1, "#### 3"))
    write_jsonl([row], Path("rows.jsonl"))
    for flags in ([], ["--data.apply_chat_template"], ["--actor.model_name_or_path=/no/where"]):
        lines = scored(answers, [RULE, judge], *flags, policy=False)
        assert [line["reward"] for line in lines] == [1.5, 0.5]
    assert len(server.asked) == 2  # the replies of the first time are kept
    server.end()


@pytest.mark.parametrize(
    ("source", "flags", "why"),
    [
        ({"kind": "process", "format": "trl", "model": "."}, [], "it cuts responses into steps of reasoning"),
        ({"kind": "process_by_length:ByLength"}, ["--algo.advantage.estimator=process_rloo"], "it cuts responses"),
        ({"kind": "process_by_length:ByLength"}, ["--data.apply_chat_template"],
         "its chat template writes prompts, which a source may read: mine"),
        ({"kind": "process_by_length:ByLength"}, [], "it counts the tokens of teachers, which a source reads: mine"),
        ({"kind": "pairwise", "against": "teacher", "model": "j", "url": "http://127.0.0.1:9/v1"}, [],
         "it counts the tokens of teachers, which a source reads: mine"),
        ({"kind": "length", "budget": 5, "limit": 9}, [],
         "it counts the tokens of responses, which a source reads: mine"),
        ({"kind": "bonus"}, ["--oger.bonus_weight=1", "--oger.last_token_enp_reward=none"],
         "it counts the tokens of teachers, which a source reads: mine"),
    ],
)  # fmt: skip
def test_what_needs_the_policys_tokenizer_says_so(
    scored: Any, source: dict[str, Any], flags: list[str], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    teacher = {"source": "a", "text": "#### 2", "correct": True}
    row = {"uid": "sum-1", "prompt": "1 + 1?", "answer": "2", "task": "gsm8k", "teachers": [teacher]}
    write_jsonl([row], Path("rows.jsonl"))
    flags = [f'--oger.verifier_path=["{PLUGINS}"]', *flags]
    with pytest.raises(SystemExit) as stop:
        scored(_answers((1, "#### 2")), [RULE, {"name": "mine", **source}], *flags, policy=False)
    said = f"oger score: set actor.model_name_or_path: the policy's tokenizer is needed: {why}"
    assert str(stop.value.code).startswith(said)


def test_a_model_that_cannot_come_is_said_without_asking_the_hub_again_and_again(
    scored: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer of a judge at a server is its model's, where prompts are written here."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    served = {"name": "good", "kind": "judge", "model": "judge", "url": "http://127.0.0.1:9/v1", "plugin": "binary"}
    here = {"name": "good", "kind": "judge", "model": "me/judge", "place": "in_process", "plugin": "binary"}
    of_tokenizer = (
        "oger.reward.sources, good, tokenizer (default: model): judge is neither here nor in the hub's cache"
    )
    for entry, flags, message in (
        (served | {"api": "completions"}, [], of_tokenizer),
        (here, [], "oger.reward.sources, good: me/judge is neither here nor in the hub's cache, and HF_HUB_OFFLINE"),
        (served, ["--oger.steps.delimiters=[\"x\"]", "--algo.advantage.estimator=process_rloo",
                  "--actor.model_name_or_path=me/policy"],
         "actor.model_name_or_path: me/policy is neither here nor in the hub's cache, and HF_HUB_OFFLINE is set"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            scored(_answers((1, "#### 2")), [RULE, entry], *flags, policy=False)
        assert str(stop.value.code).startswith(f"oger score: {message}")
    assert "Retrying" not in capsys.readouterr().err
