"""What someone types who puts a reward together: the rule, what tokens cost, a judge behind a gate; and what someone
types who brings reward functions from TRL and verl. Totals are by hand."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forks import Forks
from hang import HANG_S
from judge_server import Answer, Server
from runs import ROOT, caches_in, lines

from oger_recipe.base.files import write_jsonl
from oger_recipe.lab import tiny_policy

Oger = Callable[..., subprocess.CompletedProcess[str]]
# As three files of users: the first two functions are TRL's, the next two verl's, and nobody could call the last.
REWARDS = """
import re


def format_reward(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.search(r"#### \\d+$", content) else 0.0 for content in contents]


def of_level_2(prompts, completions, level, **kwargs):
    return [len(text[0]["content"]) / 10 if each == 2 else None for text, each in zip(completions, level)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source != "sums":
        raise NotImplementedError(data_source)
    found = re.findall(r"#### (\\d+)", solution_str)
    right = bool(found) and found[-1] == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": found[-1] if found else ""}


def in_words(solution_str, ground_truth, extra_info, **kwargs):
    return {"score": extra_info["words"] * len(solution_str.split()), "lines": solution_str.count("\\n") + 1}


def by_ids(prompts, completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]
"""
BRIDGE = """
from my_rewards import by_ids


def length(group):
    return by_ids(prompts=[group.prompt] * len(group.responses), completion_ids=[range(n) for n in group.tokens])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy for which each letter is a token."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)
    tokenizer.save_pretrained(folder)
    tiny_policy.build_model(tokenizer, hidden_size=32, num_layers=1).save_pretrained(folder)
    return folder


@pytest.fixture()
def server() -> Iterator[Server]:
    server = Server()
    server.answer = says_whether_it_is_a_sentence
    yield server
    server.end()


def says_whether_it_is_a_sentence(prompt: str, count: int) -> Answer:
    verdict = f"Verdict: {int('The answer is' in prompt)}"
    return 200, {"choices": [{"index": 0, "message": {"content": verdict}, "finish_reason": "stop"}]}


@pytest.fixture()
def oger(tmp_path: Path, forks: Forks) -> Oger:
    def oger(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        line = ["-m", f"oger_recipe.cli.{command}", *words, *caches_in(tmp_path / "caches")]
        return forks.run(*line, cwd=tmp_path, timeout=HANG_S)

    return oger


def scores(folder: Path, oger: Oger, answers: list[dict], *flags: str) -> list[dict]:
    write_jsonl(answers, folder / "answers.jsonl")
    files = ["--recipe", "mine.yaml", "--responses", "answers.jsonl", "--out", "out.jsonl"]
    done = oger("score", *files, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return lines(folder / "out.jsonl")


def test_the_rule_what_tokens_cost_and_a_judge_behind_a_gate(tmp_path: Path, oger: Oger, model: Path, server: Server):
    """Tokens are letters and the end of sequence; the first 10 are free, and 30 cost all: 0.5."""
    (tmp_path / "mine.yaml").write_text(f"""\
extends: {ROOT}/configs/own_data_cpu.yaml
actor: {{model_name_or_path: {model}}}
data: {{prompt_dataset: rows.jsonl}}
oger:
  task_name: gsm8k
  max_replace_num: 0
  reward:
    sources:
      - {{name: rule, kind: verifier}}
      - {{name: short, kind: length, budget: 10, limit: 30, weight: 0.5}}
      - {{name: style, kind: judge, url: "{server.url}", model: judge, api: chat, plugin: binary, weight: 0.25,
         gate: rule_equals_1}}
""")
    rows = [{"uid": f"sum-{n}", "prompt": f"{n} + {n}?", "answer": str(2 * n)} for n in range(16)]
    write_jsonl(rows, tmp_path / "rows.jsonl")
    answers = [
        {"uid": "sum-2", "text": "4"},  # right, short, no sentence: 1
        {"uid": "sum-2", "text": "The answer is 4."},  # right, 16 + 1 tokens, a sentence: 1 - 0.5 * 7 / 20 + 0.25
        {"uid": "sum-2", "text": "The answer is 5."},  # wrong, and the judge is not asked: -0.175
        {"uid": "sum-2", "text": "5"},  # wrong
        {"uid": "sum-3", "text": "The answer is, if I am not mistaken, 6"},  # right, 38 + 1 tokens: 1 - 0.5 + 0.25
        {"uid": "sum-3", "text": "7 ".rjust(60)},  # wrong and long
        {"uid": "sum-3", "text": "6", "truncated": True},  # right, but cut: 1 - 0.5
    ]
    found = scores(tmp_path, oger, answers)
    assert [line["reward"] for line in found] == pytest.approx([1, 1.075, -0.175, 0, 0.75, -0.5, 0.5])
    assert [line["components"]["short"] for line in found] == pytest.approx([0, -0.35, -0.35, 0, -1, -1, -1])
    said = [line["components"].get("style") for line in found]
    assert said == [0.0, 1.0, None, None, 1.0, None, 0.0] and not any(line["errors"] for line in found)
    of_wrong = [prompt for prompt in server.prompts if "The answer is 5." in prompt]
    assert len(server.prompts) == 4 and not of_wrong

    done = oger("train", "--recipe", "mine.yaml", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    # What could not count is said before anything starts: both mistakes at once.
    wrong = ["--rollout.max_new_tokens", "8", "--reward.overlong_buffer_len", "4"]
    done = oger("train", "--recipe", "mine.yaml", "--dry-run", *wrong)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "'short' has budget 10, and responses have at most 8 tokens" in done.stderr
    assert "reward.overlong_buffer_len and 'short' of oger.reward.sources, of kind length, both charge" in done.stderr


def test_reward_functions_of_trl_and_verl_are_used_unchanged(tmp_path: Path, oger: Oger, model: Path):
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    (tmp_path / "mine.yaml").write_text(f"""\
extends: {ROOT}/configs/own_data_cpu.yaml
actor: {{model_name_or_path: {model}}}
data: {{prompt_dataset: rows.jsonl}}
oger:
  task_name: mine
  verifiers: ["mine=my_rewards:compute_score"]
  max_replace_num: 0
  reward:
    sources:
      - {{name: rule, kind: verifier}}
      - {{name: form, kind: "my_rewards:format_reward", weight: 0.2}}
      - {{name: level, kind: "my_rewards:of_level_2", weight: 0.1}}
      - {{name: words, kind: "my_rewards:in_words", weight: 2, gate: rule_equals_1}}
""")
    rows = [
        {"data_source": "sums", "prompt": [{"role": "user", "content": f"{n} + {n}?"}], "ability": "math", "level": n}
        | {"reward_model": {"style": "rule", "ground_truth": str(2 * n)}}
        | {"extra_info": {"index": n, "split": "train", "words": 0.5}}
        for n in range(16)
    ]
    write_jsonl(rows, tmp_path / "rows.jsonl")
    answers = [
        {"uid": "sums/train/2", "text": "2 and 2\n#### 4"},  # 1 + 0.2 + 0.1 * 1.4 + 2 * 0.5 * 5 words
        {"uid": "sums/train/2", "text": "#### 5"},  # -1 + 0.2 + 0.1 * 0.6
        {"uid": "sums/train/3", "text": "#### 6"},  # 1 + 0.2 + 2 * 0.5 * 2 words; the level is another one
        {"uid": "sums/train/3", "text": "6"},  # -1
    ]
    found = scores(tmp_path, oger, answers)
    assert [line["reward"] for line in found] == pytest.approx([6.34, -0.74, 3.2, -1.0])
    assert [line["score"] for line in found] == [1.0, 0.0, 1.0, 0.0]
    assert found[0]["components"] == pytest.approx(
        {"rule": 1.0, "rule/acc": 1.0, "form": 1.0, "level": 1.4, "words": 2.5, "words/lines": 2.0}
    )
    assert found[3]["components"].keys() == {"rule", "rule/acc", "form"} and not any(line["errors"] for line in found)
    done = oger("train", "--recipe", "mine.yaml", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr

    # What nobody hands over is refused by its name, and the page's bridge goes round it.
    def sources(kind: str) -> str:
        entries = [{"name": "rule", "kind": "verifier"}, {"name": "ids", "kind": kind}]
        return f"--oger.reward.sources={json.dumps(entries)}"

    done = oger("train", "--recipe", "mine.yaml", "--dry-run", sources("my_rewards:by_ids"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "is a function for TRL: it needs 'completion_ids', which TRL passes" in done.stderr
    (tmp_path / "bridge.py").write_text(BRIDGE)
    found = scores(tmp_path, oger, answers, sources("bridge:length"))
    assert [line["components"]["ids"] for line in found] == pytest.approx([-0.15, -0.07, -0.07, -0.02])
