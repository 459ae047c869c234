"""Fixtures shared by the tests of recipe, data and policy."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forks import Forks
from hang import HANG_S

from oger_recipe.algorithm.credit import ESTIMATORS
from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS, SHAPINGS
from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.cli import train
from oger_recipe.cli.train_ppo_ray import build_parser, parse
from oger_recipe.convert.dialect import Dialect
from oger_recipe.convert.values import UNSET, Flag, NoEffect, checked
from oger_recipe.grading import processes, verifiers
from oger_recipe.lab import countdown, tiny_policy
from oger_recipe.models import plugin
from oger_recipe.patches import apply_training_patches, apply_vllm_import_patches
from oger_recipe.settings.recipe_file import read_recipe

# Before any module of tests imports OpenRLHF or vLLM.
apply_training_patches()
apply_vllm_import_patches()


@pytest.fixture(autouse=True)
def no_folders_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one run, whose folders are looked in for the user's modules and whose functions join registries;
    here it has many."""
    monkeypatch.setattr(verifiers, "_looked_in", [])
    for registry in (ESTIMATORS, ENTROPY_WEIGHTS, SHAPINGS):
        for path in [name for name in registry if ":" in name]:
            del registry[path]


@pytest.fixture(scope="session")
def gpu_parser() -> argparse.ArgumentParser:
    """The flags of a run on GPUs, which recipes in configs/ are written for."""
    return build_parser(cpu=False)


@pytest.fixture(scope="session")
def settings_made() -> Callable[[Dialect, Mapping[str, str]], Iterator[tuple[Flag, set[str]]]]:
    def made(dialect: Dialect, values: Mapping[str, str]) -> Iterator[tuple[Flag, set[str]]]:
        """Each flag of the table that has an effect in a command with these values, and the settings that its rule
        makes."""
        flags = dialect.flags
        given = {
            name: checked(dialect.value(value, flags[name].value_type()), flags[name])
            for name, value in values.items()
        }

        def get(name: str) -> Any:
            default = flags[name].left_out(get)
            return given.get(name, None if default is UNSET else default)

        for flag in flags.values():
            if flag.default is UNSET and flag.name not in given:
                continue
            try:
                yield flag, set(flag.rule(get(flag.name), get))
            except NoEffect:
                continue

    return made


@pytest.fixture(scope="session")
def parser() -> argparse.ArgumentParser:
    """The command line of a machine without CUDA; parsing leaves it as it is."""
    return build_parser(cpu=True)


@pytest.fixture(scope="session")
def nested(parser: argparse.ArgumentParser) -> Callable[..., Any]:
    """The namespace that OpenRLHF's processes get, from flags."""
    from openrlhf.utils.config import hierarchize

    def settings(*flags: str) -> Any:
        args = hierarchize(parser.parse_args(list(flags)))
        args.actor.eps_clip_low_high = args.actor.eps_clip_low_high or (args.actor.eps_clip, args.actor.eps_clip)
        return args

    return settings


@pytest.fixture()
def read(tmp_path: Path, parser: argparse.ArgumentParser) -> Callable[..., dict[str, Any]]:
    """Settings by their dotted names, from the text of a recipe file and flags of the command line."""

    def settings(text: str, *flags: str) -> dict[str, Any]:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return parse(parser, flags, read_recipe(path, parser))

    return settings


@pytest.fixture(scope="session")
def countdown_rows() -> list[dict[str, Any]]:
    """Twelve problems with three right teachers each."""
    problems = countdown.generate_problems(12, difficulty=countdown.Difficulty(), seed=0, split="train")
    return countdown.build_rows(problems, seed=0)


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory, countdown_rows: list[dict[str, Any]]) -> Path:
    """An untrained tiny policy (width 32, one layer) with its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "policy"
    tokenizer = tiny_policy.build_tokenizer(teacher["text"] for row in countdown_rows for teacher in row["teachers"])
    tokenizer.save_pretrained(folder)
    tiny_policy.build_model(tokenizer, hidden_size=32, num_layers=1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def byte_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights, whose tokens are bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("byte_llama")
    tokenizer = tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,  # vLLM on CPUs has no heads of 16 dimensions
        num_key_value_heads=1,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture()
def recipe(tmp_path: Path, policy_folder: Path) -> Path:
    """Three problems with three teachers, five passes of three steps; a module may have another one of this name."""
    row = {"uid": "p-1", "prompt": "Make 96.", "answer": '{"numbers":[3,5,12],"target":96}', "task": "countdown"}
    teacher = {"source": "a", "text": "<answer>(3+5)*12</answer>", "correct": True}
    rows = [row | {"teachers": [teacher, teacher]}, row | {"uid": "p-2"}, row | {"uid": "p-3", "teachers": [teacher]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    settings = {
        "oger": {"run_dir": str(tmp_path / "run")},
        "actor": {"model_name_or_path": str(policy_folder)},
        "data": {"prompt_dataset": str(tmp_path / "rows.jsonl"), "max_len": 256},
        "rollout": {"batch_size": 1, "n_samples_per_prompt": 4, "max_new_tokens": 64, "micro_batch_size": 1},
        "train": {"batch_size": 4, "micro_batch_size": 1, "num_episodes": 5},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="session")
def letters() -> Any:
    """A tokenizer without merges: one token for each ASCII character and for each tag."""
    return tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)


@pytest.fixture(scope="module", autouse=True)
def quick_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Processes of plugins and of graders as they are, but forked from one that has imported what they import.

    A module whose tests are of these processes has a fixture of this name that does nothing.
    """

    def forked(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        assert command[0] == sys.executable
        return request.getfixturevalue("forks").start(*command[1:], **how)

    quick = types.SimpleNamespace(**vars(subprocess) | {"Popen": forked})
    with pytest.MonkeyPatch.context() as patch:
        for module in (plugin, processes):
            patch.setattr(module, "subprocess", quick)
        yield


@pytest.fixture(scope="session")
def run_ranks(forks: Forks) -> Callable[[Path, int, Path], None]:
    """Runs ``python SCRIPT RANK RANKS PORT FOLDER`` for every rank at once, and fails with their logs."""

    def run(script: Path, ranks: int, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
        processes = []
        for rank, log in enumerate(logs):
            with log.open("w") as file:
                words = [str(script), str(rank), str(ranks), str(port), str(folder)]
                processes.append(forks.start(*words, stdout=file, stderr=file))
        try:
            codes = [process.wait(timeout=HANG_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert codes == [0] * ranks, "\n".join(log.read_text()[-2000:] for log in logs)

    return run


class _Started(BaseException):
    """In place of Ray; no Exception, which a run reports as its failure."""


@pytest.fixture()
def run(tmp_path: Path, policy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs ``oger train`` up to the start of Ray; returns the parsed flags that OpenRLHF would get, the environment,
    and the prompts for training and evaluation."""
    stub = types.ModuleType("oger_recipe.pipeline.driver.launch")
    launched: dict[str, Any] = {}

    def launch(tokens: list[str], run_dir: Path, **settings: Any) -> None:
        launched.update(tokens=tokens, **settings)
        raise _Started

    stub.launch = launch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "oger_recipe.pipeline.driver.launch", stub)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    settings = {
        "oger": {"run_dir": str(tmp_path / "run"), "task_name": "gsm8k", "max_replace_num": 0, "bonus_weight": 0.0},
        "actor": {"model_name_or_path": str(policy_folder)},
        "data": {"input_key": "question", "max_len": 2048, "prompt_dataset": "train.jsonl"},
        "eval": {"dataset": "test.jsonl"},
        "rollout": {"batch_size": 2, "n_samples_per_prompt": 4, "max_new_tokens": 64, "micro_batch_size": 1},
        "train": {"batch_size": 8, "micro_batch_size": 1},
    }
    settings["oger"]["data_cache"] = str(tmp_path / "cache")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    write_jsonl(({"question": f"{n}+1?", "answer": n + 1} for n in (1, 2, 2)), tmp_path / "train.jsonl")
    write_jsonl([{"question": "4+1?", "answer": 5}, {"question": "x" * 900, "answer": 5}], tmp_path / "test.jsonl")

    def started(*flags: str) -> tuple[dict[str, Any], dict[str, str], list[dict[str, Any]], list[dict[str, Any]]]:
        with pytest.raises(_Started):
            train.main(["--recipe", "recipe.yaml", *flags])
        settings = vars(build_parser(cpu=True).parse_args(launched["tokens"]))
        files = (settings[key] for key in ("data.prompt_dataset", "eval.dataset"))
        prompts, problems = (read_jsonl(Path(file)) if file else [] for file in files)
        return settings, launched["environment"], prompts, problems

    return started


class Models:
    """In place of the policy's actors, and of the encoder: what they say of a response, by its text.

    entropy: at oger.entropy_position, ten times as much as mean over the response; difference: the engine's
    log-probability of each token, which is -0.5, less the policy's; similarity: to any teacher, whose text is in none
    of these. asked: the action masks of the forward passes.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.entropy: dict[str, float] = {}
        self.difference: dict[str, float] = {}
        self.similarity: dict[str, float] = {}
        self.asked: list[list[int]] = []

    def async_run_method_batch(self, method_name: str, **lists: list[torch.Tensor]) -> list[list[Any]]:
        assert method_name == "forward"
        calls = zip(lists["sequences"], lists["action_mask"], strict=True)
        return [[self._forward(sequences, mask) for sequences, mask in calls]]

    def _forward(self, sequences: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.asked += mask.sum(dim=1).tolist()
        texts = [
            self.tokenizer.decode(row[1:][rows.bool()], skip_special_tokens=True)
            for row, rows in zip(sequences, mask, strict=True)
        ]
        entropy = torch.tensor([self.entropy.get(text, 0.0) if text else torch.nan for text in texts])
        apart = torch.tensor([self.difference.get(text, 0.0) for text in texts])
        return (-0.5 - apart).unsqueeze(1) * mask, entropy, 10 * entropy


class _Constant:
    """In place of the actors of a critic or a reference model: one number for every token, or one made of the token
    before it."""

    def __init__(self, value: float | Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.value = value

    def async_run_method_batch(self, method_name: str, **lists: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        calls = zip(lists["sequences"], lists["action_mask"], strict=True)
        return [[self._of(sequences) * mask.float() for sequences, mask in calls]]

    def _of(self, sequences: torch.Tensor) -> torch.Tensor | float:
        return self.value(sequences[:, :-1]) if callable(self.value) else self.value


@pytest.fixture()
def models(letters: Any) -> Models:
    return Models(letters)


@pytest.fixture()
def controller(
    tmp_path: Path, parser: argparse.ArgumentParser, letters: Any, models: Models, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Makes the controller's experience maker from flags, in a run folder with these teachers, over ``models``.

    Groups are of four unless a flag says otherwise; ``critic`` and ``reference`` are what these say of every token.
    """
    import ray
    from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
    from openrlhf.utils.config import hierarchize

    from oger_recipe.embedding.base import Encoder
    from oger_recipe.pipeline.controller.experience_maker import OgerExperienceMaker
    from oger_recipe.teachers.store import write_teacher_store

    class Directions(Encoder):
        dimension, _longest = 2, 4

        def _lengths(self, texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

        def _embed(self, texts: list[str]) -> tuple[torch.Tensor, dict[int, str]]:
            cosines = torch.tensor([models.similarity.get(text, 1.0) for text in texts])
            return torch.stack([cosines, (1 - cosines.square()).sqrt()], dim=1), {}

    monkeypatch.setattr(ray, "get", lambda refs: refs)
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr("oger_recipe.pipeline.encoder.actor_encoder.make_encoder", Directions)

    def make(
        *flags: str, teachers: dict[str, list[Any]] | None = None, shown: Any = None, critic: Any = None,
        reference: Any = None, steps: int = 1, parser: argparse.ArgumentParser = parser,
    ) -> Any:  # fmt: skip
        run_dir = tmp_path / "run"
        for folder in ("data", "samples"):
            (run_dir / folder).mkdir(parents=True, exist_ok=True)
        write_teacher_store(teachers or {}, run_dir / "data" / "teachers.arrow", shown)
        (run_dir / "data" / "counts.json").write_text("{}")
        given = ["--rollout.n_samples_per_prompt=4", "--rollout.micro_batch_size=4", *flags]
        given += [f"--oger.run_dir={run_dir}", f"--oger.embedding_cache={tmp_path / 'embeddings'}"]
        args = hierarchize(parser.parse_args(given))
        groups = [models, None if critic is None else _Constant(critic), None, reference and _Constant(reference)]
        control = FixedKLController(args.algo.kl.init_coef)
        maker = OgerExperienceMaker(*groups, control, types.SimpleNamespace(args=args), letters)
        maker.resume(0, steps, {})
        maker.step = 1
        return maker

    return make


@pytest.fixture()
def rollout(letters: Any) -> Callable[..., Any]:
    """A rollout as the generator hands it over; with ``guided``, its first tokens are a teacher's."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    from oger_recipe.grading.verdict import Graded, Verdict

    def make(
        text: str, reward: float = 0.0, *, score: float | None = None, uid: str = "u", prompt: str = "ask>",
        truncated: bool = False, guided: int = 0, error: str | None = None, label: dict[str, Any] | None = None,
        **verdict: Any,
    ) -> Any:  # fmt: skip
        score = float(reward > 0) if score is None else score
        before, tokens = letters.encode(prompt), [*letters.encode(text), letters.eos_token_id]
        response = {
            "prompt": prompt, "label": json.dumps({"uid": uid, "answer": "42", "task": "gsm8k"} | (label or {})),
            "observation_tokens": before + tokens, "action_ranges": [(len(before), len(before) + len(tokens))],
            "rollout_log_probs": [0.0] * len(before) + [-0.5] * len(tokens), "truncated": truncated,
            "reward": reward, "scores": score,
            "extra_logs": {"reward_error": float(error is not None), "off_policy_tokens": float(guided)},
        }  # fmt: skip
        sample = SamplesGenerator._process_response_into_experience(None, response, max_len=4096)
        sample.graded = Graded(Verdict(reward, score, verdict.pop("reason", "said so"), **verdict), error)
        return sample

    return make


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's Chromium for the pages that `oger report` writes; its driver runs an event loop, so no longer than a
    module."""
    found = shutil.which("chromium")
    if found is None:
        missing = "pages are tested in a real browser, which is missing: apt-get install chromium"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()
