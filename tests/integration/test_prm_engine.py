"""`oger prm label` with vLLM: rollouts from steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forks import Forks
from hang import HANG_S

from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.lab.known_judges import Star, save_judge


def test_rollouts_from_a_step_label_it(tmp_path: Path, forks: Forks) -> None:
    """The policy writes 1, the answer, where what it goes on from has an asterisk, else 0."""
    save_judge(Star(), tmp_path / "policy")
    row: dict[str, Any] = {"prompt": "How many?", "answer": "1", "task": "gsm8k"}
    write_jsonl([row | {"uid": "p"}, row | {"uid": "q"}], tmp_path / "rows.jsonl")
    responses = [("p", "a\n\n* b\n\nso 7"), ("q", "* a\n\nb\n\nso 1"), ("q", "a\n\nso 1")]
    write_jsonl(({"uid": uid, "text": text} for uid, text in responses), tmp_path / "answers.jsonl")
    flags = ["--recipe", "grpo_cpu", "--rows", "rows.jsonl", "--responses", "answers.jsonl", "--model", "policy"]
    flags += ["--n", "2", "--max_new_tokens", "4", "--out", "labels.jsonl", "--oger.prompt_template", "none"]
    done = forks.run("-m", "oger_recipe.cli.prm", "label", *flags, cwd=tmp_path, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = read_jsonl(tmp_path / "labels.jsonl")
    # the last step is as right as the response
    assert [line["labels"] for line in lines] == [[0, 1, 0], [1, 1, 1], [0, 1]]
    assert ["".join(line["completions"]) for line in lines] == [text for _, text in responses]
    assert "3 responses, 8 steps: 5 good, 3 bad" in done.stdout
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])["prompt"] == lines[0]["prompt"]
