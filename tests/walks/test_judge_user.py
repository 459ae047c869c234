"""What someone types in the first ten minutes with a rubric of his own, or a process reward model, behind a server."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forks import Forks
from hang import HANG_S
from judge_server import Server
from runs import ROOT, caches_in, lines

from oger_recipe.base.files import write_jsonl
from oger_recipe.cli import serve_judge
from oger_recipe.lab import tiny_policy
from oger_recipe.lab.known_judges import save_prm

PAGE = ROOT / "docs" / "judges.md"
NUMBERS = range(1, 17)
# The hub's library has been imported already, where it looks at HF_HUB_OFFLINE.
OFFLINE = """
import huggingface_hub.constants as hub
from oger_recipe.cli.main import main
hub.HF_HUB_OFFLINE = True
main()
"""
Oger = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture()
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


@pytest.fixture()
def desk(tmp_path: Path) -> Path:
    """A folder with the user's rows, answers to two of them, and a model."""
    rows = [{"uid": f"sum-{n}", "prompt": f"{n} + {n}?", "answer": str(2 * n), "task": "gsm8k"} for n in NUMBERS]
    write_jsonl(rows, tmp_path / "rows.jsonl")
    answers = [(n, f"{n} + {n}\n\n{mark}\n\n#### {2 * n}") for n in (1, 2) for mark in ("because", "~")]
    write_jsonl(({"uid": f"sum-{n}", "text": text} for n, text in answers), tmp_path / "responses.jsonl")
    tokenizer = tiny_policy.build_tokenizer(row["prompt"] for row in rows)
    tokenizer.save_pretrained(tmp_path / "policy")
    tiny_policy.build_model(tokenizer, hidden_size=64, num_layers=2).save_pretrained(tmp_path / "policy")
    return tmp_path


@pytest.fixture()
def oger(desk: Path, forks: Forks) -> Oger:
    """Without a key, and without the hub: nothing here is to be asked of it."""

    def oger(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        line = ["-m", f"oger_recipe.cli.{command}", *words, *caches_in(desk / "caches")]
        environment = {name: value for name, value in os.environ.items() if name != "OGER_JUDGE_API_KEY"}
        return forks.run(*line, cwd=desk, env=environment | {"HF_HUB_OFFLINE": "1"}, timeout=HANG_S)

    return oger


SCORE = ("--responses", "responses.jsonl", "--out", "scored.jsonl")


def _on_the_page(kind: str) -> str:
    """The first block of its kind on the page."""
    return re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]  # type: ignore[index]


def test_a_rubric_at_a_server(desk: Path, oger: Oger, server: Server) -> None:
    """The files of the page's first screen, with this server and model."""

    def judged(prompt: str, count: int) -> tuple[int, Any]:
        text = f"I looked. Score: {2 if 'because' in prompt else 1}"
        return 200, {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]}

    server.answer = judged
    (desk / "rubric.py").write_text(_on_the_page("python"))
    recipe = _on_the_page("yaml").replace("http://127.0.0.1:8000/v1", server.url)
    (desk / "no_policy.yaml").write_text(re.sub(r"actor: .*\n", "", recipe).replace("served-name", "judge"))
    scored = oger("score", "--recipe", "no_policy.yaml", *SCORE)
    assert scored.returncode == 0, scored.stderr
    assert [line["components"]["rubric"] for line in lines(desk / "scored.jsonl")] == [1, 0.5, 1, 0.5]
    assert [line["reward"] for line in lines(desk / "scored.jsonl")] == [1.3, 1.15, 1.3, 1.15]
    assert {path for path, _ in server.asked} == {"/v1/chat/completions"} and len(server.asked) == 4

    # What the server calls its model is said before the run, beside the one that the user named.
    (desk / "rubric.yaml").write_text(recipe.replace("my/policy", "policy"))
    refused = oger("train", "--recipe", "rubric.yaml", "--dry-run")
    assert refused.returncode == 1 and f"{server.url} has no model served-name; it has judge, other" in refused.stderr
    (desk / "rubric.yaml").write_text(recipe.replace("my/policy", "policy").replace("served-name", "judge"))
    planned = oger("train", "--recipe", "rubric.yaml", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "0.3 * rubric: judge, judge (server)" in planned.stdout
    assert "the run can start" in planned.stdout


def test_a_plugin_that_writes_the_template_itself_is_told_which_key_it_lacks(
    desk: Path, oger: Oger, server: Server
) -> None:
    """As files of VeRL-with-RMs do: one command says it, without asking anybody, and names the key that is right."""
    ask = "tgt_tokenizer.apply_chat_template([{'role': 'user', 'content': r}], tokenize=False)"
    plugin = f"""
        def rm_preprocess(ps, rs, tgt_tokenizer):
            return [{ask} for p, r in zip(ps, rs)]

        def rm_postprocess(replies):
            return [float(reply) for reply in replies]
        """
    (desk / "rubric.py").write_text(textwrap.dedent(plugin))
    recipe = _on_the_page("yaml").replace("http://127.0.0.1:8000/v1", server.url).replace("served-name", "judge")
    (desk / "rubric.yaml").write_text(recipe)
    refused = oger("score", "--recipe", "rubric.yaml", *SCORE)
    assert refused.returncode == 1 and "name the judge's tokenizer by the key tokenizer" in refused.stderr
    assert "Traceback" not in refused.stderr and not server.asked
    server.answer = lambda prompt, count: (200, {"choices": [{"index": 0, "text": "1", "finish_reason": "stop"}]})
    (desk / "rubric.yaml").write_text(recipe.replace("model: judge,", "model: judge, tokenizer: policy,"))
    scored = oger("score", "--recipe", "rubric.yaml", *SCORE)
    assert scored.returncode == 0, scored.stderr
    assert [line["components"]["rubric"] for line in lines(desk / "scored.jsonl")] == [1] * 4
    assert {path for path, _ in server.asked} == {"/v1/completions"}


def test_a_process_reward_model_over_http(desk: Path, oger: Oger, server: Server) -> None:
    """The entry that `oger serve-judge` prints, and in the place of vLLM its model in this process, which answers
    /pooling. A step with a tilde is wrong, and all behind it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = save_prm(desk / "prm", tag="ки")
    model = AutoModelForCausalLM.from_pretrained(folder)
    args = serve_judge._parser().parse_args(
        [str(folder), "--format", "math_shepherd", "--port", str(server.server_port)]
    )
    words = serve_judge._command(args, cpu=True, key="", prm=serve_judge._prm(args))
    of_vllm = yaml.safe_load(words[words.index("--hf-overrides") + 1])
    labels = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(of_vllm["classifier_from_token"])
    server.models = (200, {"data": [{"id": args.name or args.model}]})

    def pooled(prompt: str, count: int) -> tuple[int, Any]:
        tokens = yaml.safe_load(prompt)
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0][:, labels]
        return 200, {"data": [{"index": 0, "object": "pooling", "data": logits.tolist()}]}

    server.answer = pooled
    entry = yaml.safe_load(serve_judge._entry(args))
    recipe = {
        "extends": "own_data_cpu.yaml",
        "data": {"prompt_dataset": "rows.jsonl", "input_key": "prompt"},
        "oger": {
            "max_replace_num": 0,
            "prompt_template": "none",
            "steps": {"delimiters": ["\n\n"]},
            "reward": {"sources": [{"name": "rule", "kind": "verifier"}, {**entry, "weight": 0.5}]},
        },
    }
    (desk / "prm.yaml").write_text(yaml.safe_dump(recipe))
    refused = oger("score", "--recipe", "prm.yaml", *SCORE)
    why = "set actor.model_name_or_path: the policy's tokenizer is needed: it cuts responses into steps of reasoning"
    assert refused.returncode == 1 and why in refused.stderr
    (desk / "prm.yaml").write_text(yaml.safe_dump(recipe | {"actor": {"model_name_or_path": "policy"}}))
    scored = oger("score", "--recipe", "prm.yaml", *SCORE)
    assert scored.returncode == 0, scored.stderr
    found = lines(desk / "scored.jsonl")
    assert [line["components"]["prm"] for line in found] == pytest.approx([1, 0, 1, 0], abs=1e-3)
    of_wrong = [step["sources"]["prm"] for step in found[1]["steps_of_reasoning"]]
    assert of_wrong == pytest.approx([1, 0, 0], abs=1e-3)
    assert {path for path, _ in server.asked} == {"/pooling"}
    planned = oger("train", "--recipe", "prm.yaml", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "0.5 * prm: process" in planned.stdout and "the run can start" in planned.stdout
