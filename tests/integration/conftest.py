"""Fixtures shared by the tests of recipe, data and policy."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.cli.train_ppo_ray import build_parser
from oger_recipe.recipe import read_recipe
from oger_recipe.tasks import countdown, tiny_policy


@pytest.fixture(scope="session")
def parser() -> argparse.ArgumentParser:
    """The command line of a machine without CUDA; parsing leaves it as it is."""
    return build_parser(cpu=True)


@pytest.fixture()
def read(tmp_path: Path, parser: argparse.ArgumentParser) -> Callable[..., dict[str, Any]]:
    """Settings by their dotted names, from the text of a recipe file and flags of the command line."""

    def settings(text: str, *flags: str) -> dict[str, Any]:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return vars(parser.parse_args([*read_recipe(path, parser), *flags]))

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
def letters() -> Any:
    """A tokenizer without merges: one token for each ASCII character and for each tag."""
    return tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)


@pytest.fixture(scope="session")
def run_ranks() -> Callable[[Path, int, Path], None]:
    """Runs ``python SCRIPT RANK RANKS PORT FOLDER`` for every rank at once, and fails with their logs."""

    def run(script: Path, ranks: int, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
        processes = []
        for rank, log in enumerate(logs):
            with log.open("w") as file:
                command = [sys.executable, str(script), str(rank), str(ranks), str(port), str(folder)]
                processes.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))
        try:
            codes = [process.wait(timeout=300) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert codes == [0] * ranks, "\n".join(log.read_text()[-2000:] for log in logs)

    return run
