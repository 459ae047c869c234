"""``oger push``: the folders that it writes are read back by the hub's own readers; a server on this machine stands in
for the hub and keeps what it is sent."""

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import load_dataset
from forks import Forks
from hang import HANG_S
from huggingface_hub import DatasetCard, ModelCard
from transformers import AutoModelForCausalLM

from oger_recipe.base import hub as hub_names
from oger_recipe.report.publish import linked
from oger_recipe.run_folder import own_files

HELD_OUT = {"problems": 8, "n": 4, "avg_at_4": 0.5, "avg_at_4_interval": [0.25, 0.75], "pass_at_4": 0.875,
            "pass_at_4_interval": [0.625, 1.0], "maj_at_4": 0.5, "maj_at_4_interval": [0.25, 0.75]}  # fmt: skip
BEFORE = HELD_OUT | {"avg_at_4": 0.125, "avg_at_4_interval": [0.0, 0.25]}
ROLLOUT: dict[str, Any] = {
    "uid": "p1", "prompt": "2 + 2?", "task": "math", "answer": "4", "truncated": False, "text": "</script> 4 \u202e",
    "off_policy": False, "reward": 1.0, "score": 1.0, "extracted": "4", "reason": None, "components": {"format": 1.0},
    "similarity": 0.5, "divergence": 0.5, "bonus": 0.1, "entropy_weight": 1.0, "entropy": 0.0,
    "sources": {"rule": 1.0}, "total_reward": 1.1, "advantage": 0.3,
}  # fmt: skip
TEACHER = {
    "uid": "p1", "prompt": "2 + 2?", "task": "math", "answer": "4", "text": "It is 4.", "truncated": False,
    "source": "r1", "off_policy": True, "reward": 1.0, "score": 1.0, "entropy": 0.1, "sources": {},
    "total_reward": 1.0, "advantage": -0.3,
}  # fmt: skip


def _lines(path: Path, *records: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture()
def run_dir(tmp_path: Path, policy_folder: Path) -> Path:
    """A finished run of two steps on a dataset of the hub, whose model is the tests' tiny policy."""
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    own_files.begin(folder)
    (folder / "model").symlink_to(policy_folder)
    recipe = {
        "actor": {"model_name_or_path": "org/base", "adam": {"lr": 1e-6}},
        "algo": {"advantage": {"estimator": "dr_grpo"}},
        "ckpt": {"output_dir": str(folder / "model")},
        "data": {"prompt_dataset": f"main@openai/gsm8k,{tmp_path}/mine.jsonl"},
        "oger": {"task": {"name": None, "cache": "~/.cache/oger/tasks"}},
        "rollout": {"n_samples_per_prompt": 2, "batch_size": 1},
        "train": {"seed": 7},
    }
    (tmp_path / "mine.jsonl").touch()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "command.sh").write_text(
        f"# note\ncd {tmp_path} || exit\n/env/bin/oger train --recipe {tmp_path}/my.yaml --oger.run_dir={folder}\n"
    )
    (folder / "environment.json").write_text(json.dumps({"platform": "Linux", "packages": ["torch==2.13.0"]}))
    evaluated = {"n_problems": 8, "avg_at_4": 0.5, "benchmarks": {"gsm8k": HELD_OUT}}
    _lines(
        folder / "events.jsonl",
        {"time": 1.0, "event": "ready", "steps": 2, "resumed_at": 0, "sources": ["rule", "explore"]},
        {"time": 2.0, "event": "evaluated", "when": "after", "step": 2} | evaluated,
        {"time": 3.0, "event": "finished"},
    )
    _lines(folder / "metrics.jsonl", {"step": 1}, {"step": 2})
    summary = {
        "before": {"n_problems": 8, "benchmarks": {"gsm8k": BEFORE}},
        "after": {"n_problems": 8, "benchmarks": {"gsm8k": HELD_OUT}},
        "finished": True, "data": {"prompts": 1200, "teachers": 1100, "prompts_without_teacher": 100},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    _lines(folder / "samples" / "step_00001.jsonl", ROLLOUT, ROLLOUT | {"replaced": True}, TEACHER)
    _lines(folder / "samples" / "step_00002.jsonl", ROLLOUT | {"steps_of_reasoning": [{"text": "4", "prm": 0.5}]})
    return folder


@pytest.fixture()
def push(run_dir: Path, forks: Forks) -> Any:
    def call(
        *flags: str, endpoint: str = "http://127.0.0.1:9", offline: str = "0"
    ) -> subprocess.CompletedProcess[str]:
        command = ["-m", "oger_recipe.cli.push", str(run_dir), "--repo", "me/tiny", *flags]
        variables = {"HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_of_the_test", "HF_HUB_DISABLE_XET": "1"}
        variables["HF_HUB_OFFLINE"] = offline
        return forks.run(*command, cwd=run_dir.parent, env=variables, timeout=HANG_S)

    return call


def test_the_card_says_what_the_run_was_and_the_model_loads(push: Any, run_dir: Path) -> None:
    done = push("--samples", "me/tiny-rollouts", "--dry-run", "--out", "out")
    assert done.returncode == 0, done.stderr
    folder = run_dir.parent / "out" / "model"
    card = ModelCard.load(folder / "README.md")
    card.data.eval_results = card.data.eval_results or []
    assert {(each.dataset_name, each.metric_type): each.metric_value for each in card.data.eval_results} == {
        ("gsm8k", "avg@4"): 0.5, ("gsm8k", "pass@4"): 0.875, ("gsm8k", "maj@4"): 0.5,
    }  # fmt: skip
    assert card.data.base_model == "org/base" and card.data.datasets == ["openai/gsm8k"]
    for text in (
        "| gsm8k | 8 | avg@4 | 0.125 [0.000, 0.250] | 0.500 [0.250, 0.750] |",
        "| rewards | rule, explore |",
        "| [openai/gsm8k](https://huggingface.co/datasets/openai/gsm8k) | not stated |",
        "| mine.jsonl | a local file: add its sources and their licences |",
        "1,200 prompts, 1,100 teacher trajectories. Rollouts with their verdicts: [me/tiny-rollouts]",
        "oger train --recipe my.yaml --oger.run_dir=mine\n",
        "One run with one seed (7)",
    ):
        assert text in card.text
    assert "/env/bin" not in card.text and str(run_dir) not in card.text
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0


def test_a_data_file_that_is_gone_is_no_dataset_of_the_hub(push: Any, run_dir: Path) -> None:
    recipe = yaml.safe_load((run_dir / "recipe.yaml").read_text())
    recipe["data"]["prompt_dataset"] = "data/gone.jsonl"
    (run_dir / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert push("--dry-run", "--out", "out").returncode == 0
    card = ModelCard.load(run_dir.parent / "out" / "model" / "README.md")
    assert card.data.datasets is None
    assert "| gone.jsonl | a local file: add its sources and their licences |" in card.text


@pytest.mark.parametrize(
    ("header", "stated"),
    [
        ("license: [mit, apache-2.0]", "mit, apache-2.0"),
        ("license: mit", "mit"),
        ("license: : :", None),
        ("- a", None),
    ],
)
def test_a_licence_is_read_from_any_card(tmp_path: Path, header: str, stated: str | None) -> None:
    (tmp_path / "README.md").write_text(f"---\n{header}\n---\ntext\n")
    assert hub_names.licence("model", str(tmp_path)) == stated


def test_the_samples_are_a_dataset_without_a_lost_row(push: Any, run_dir: Path, tmp_path: Path) -> None:
    done = push("--samples", "me/tiny-rollouts", "--dry-run", "--out", "out")
    assert done.returncode == 0, done.stderr
    folder = run_dir.parent / "out" / "samples"
    (configuration,) = DatasetCard.load(folder / "README.md").data.to_dict()["configs"]  # nothing was evaluated
    assert configuration == {"config_name": "rollouts", "data_files": "rollouts/*.parquet"}
    rows = load_dataset(str(folder), "rollouts", split="train", cache_dir=str(tmp_path / "cache")).to_list()
    assert [(row["step"], row["off_policy"], row["replaced"]) for row in rows] == [
        (1, False, None), (1, False, True), (1, True, None), (2, False, None),
    ]  # fmt: skip
    assert rows[0]["text"] == ROLLOUT["text"] and json.loads(rows[0]["components"]) == {"format": 1.0}
    assert rows[2]["source"] == "r1"
    assert json.loads(rows[3]["steps_of_reasoning"]) == [{"text": "4", "prm": 0.5}]


def test_a_folder_of_a_dry_run_shares_no_file_with_the_run(push: Any, run_dir: Path) -> None:
    assert push("--dry-run", "--out", "out").returncode == 0
    for path in (run_dir.parent / "out" / "model").rglob("*.*"):
        assert path.stat().st_nlink == 1


def test_an_upload_links_weights_and_nothing_that_is_written_over(tmp_path: Path) -> None:
    for name in ("model.safetensors", "recipe.yaml"):
        (tmp_path / name).write_text("the run's")
        linked(str(tmp_path / name), str(tmp_path / f"new-{name}"))
    assert (tmp_path / "model.safetensors").stat().st_nlink == 2
    assert (tmp_path / "recipe.yaml").stat().st_nlink == 1


class _Hub(BaseHTTPRequestHandler):
    """Answers as the hub does when everything is small: files come whole within the commit."""

    received: dict[str, dict[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Authorization"] == "Bearer hf_of_the_test"
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.received.setdefault(name, {})
            kind = "datasets/" if asked.get("type") == "dataset" else ""
            self._reply({"url": f"http://{self.headers['Host']}/{kind}{name}", "name": name})
        elif self.path == "/api/validate-yaml":
            self._reply({"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):
            files = [each["path"] for each in json.loads(body)["files"]]
            self._reply({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in files]})
        else:
            name = "/".join(self.path.split("/")[3:5])
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.received[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._reply({"commitUrl": f"http://{self.headers['Host']}/{name}/commit/1", "commitOid": "1"})

    def do_GET(self) -> None:
        self._reply({"id": "me/tiny", "siblings": [], "sha": "1", "private": False})

    def _reply(self, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture()
def hub() -> Iterator[tuple[str, dict[str, dict[str, bytes]]]]:
    received: dict[str, dict[str, bytes]] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"received": received}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_arrives_is_what_a_dry_run_shows(push: Any, run_dir: Path, hub: Any) -> None:
    endpoint, received = hub
    done = push("--samples", "me/tiny-rollouts", endpoint=endpoint)
    assert done.returncode == 0, done.stderr
    assert push("--samples", "me/tiny-rollouts", "--dry-run", "--out", "out", endpoint=endpoint).returncode == 0
    for name, part in (("me/tiny", "model"), ("me/tiny-rollouts", "samples")):
        folder = run_dir.parent / "out" / part
        shown = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert received[name] == shown
    assert not list(run_dir.glob(".oger-push-*"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "me/tiny could not be uploaded: "),
        (("--samples", "rollouts"), "--samples rollouts: write OWNER/NAME"),
        (("--out", "here"), "--out is for --dry-run"),
        (("--dry-run", "--out", "mine"), "--out mine is not empty"),
    ],
)
def test_what_cannot_be_pushed_is_refused_in_a_sentence(push: Any, flags: tuple[str, ...], sentence: str) -> None:
    done = push(*flags)
    assert done.returncode == 1 and done.stderr.startswith(f"oger push: {sentence}"), done.stderr


def test_offline_is_refused_before_anything_is_written(push: Any) -> None:
    done = push(offline="1")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("oger push: HF_HUB_OFFLINE is set: unset it to upload"), done.stderr


def test_a_run_without_model_samples_or_training_is_refused(push: Any, run_dir: Path) -> None:
    (run_dir / "model").unlink()
    assert "has no final model" in push("--dry-run", "--out", "a").stderr
    (run_dir / "summary.json").unlink()
    assert "has not trained" in push("--dry-run", "--out", "b").stderr
    (run_dir / own_files.MARKER).unlink()
    (run_dir / "command.sh").unlink()
    assert "is not a run's folder" in push("--dry-run", "--out", "c").stderr
