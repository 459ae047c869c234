"""``oger <command>``: the same as ``python -m oger_recipe.cli.<command>``."""

import difflib
import importlib
import sys
from pathlib import Path

import oger_recipe
from oger_recipe.base.imports import missing_package
from oger_recipe.settings.shipped import folder

COMMANDS = {
    "train": "train by a recipe file and flags",
    "runs": "list the runs in a folder with state, steps and scores",
    "watch": "follow a run in a terminal",
    "show": "print a prompt's rollouts with verdicts, rewards and teachers",
    "convert": "convert a training command of OGER, LUFFY, OAT, VeRL-with-RMs or OpenR into a recipe file",
    "eval": "answer benchmarks with a model and grade the answers",
    "score": "score answers in a file with a recipe's reward, without training",
    "judge-eval": "measure a judge on labelled pairs or answers",
    "prm": "train a process reward model, measure one on labels, or label steps",
    "data": "build a file of rows from datasets, or check one",
    "push": "upload a run's model to the Hugging Face hub, with a card",
    "report": "write an HTML page about a run, or compare several",
    "doctor": "check whether this machine is ready to train",
    "serve-reward": "grade answers over HTTP, as OpenRLHF's remote reward",
    "serve-judge": "serve a judge or a reward model to runs with vLLM",
}


def main() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command == "--version":
        print(f"oger {oger_recipe.__version__} ({Path(oger_recipe.__file__).parent})")
        return
    if command in ("-h", "--help"):
        print("usage: oger <command> [--help]\n       oger --version\n")
        print("\n".join(f"  {name:13} {text}" for name, text in COMMANDS.items()))
        print(f"\nThe docs/ that messages name are in {folder('docs')}")
        return
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        sys.exit(f"oger: unknown command '{command}'; known: {', '.join(COMMANDS)}{hint}")
    try:
        importlib.import_module(f"oger_recipe.cli.{command.replace('-', '_')}").main(sys.argv[2:])
    except ModuleNotFoundError as error:
        if sentence := missing_package(error):
            sys.exit(f"oger {command}: {sentence}")
        raise


if __name__ == "__main__":
    main()
