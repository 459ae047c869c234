"""OpenRLHF's command-line parser, without starting or importing OpenRLHF.

Upstream builds the parser inside ``if __name__ == "__main__"`` of openrlhf/cli/train_ppo_ray.py. Importing that module
takes many seconds (torch, vLLM, DeepSpeed), and a misspelt flag should be reported before; so the statements that
build the parser, and only they, are read from its source and run. Commands that start no run need only names, types
and defaults: where OpenRLHF is not installed, these are read from openrlhf_flags.json, which
``python -m oger_recipe.settings.openrlhf_parser`` prints from an installed one.
"""

import argparse
import ast
import functools
import importlib.util
import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import CodeType
from typing import Any

SHIPPED = Path(__file__).with_name("openrlhf_flags.json")
_TYPES = {each.__name__: each for each in (int, float, str)}


def openrlhf_parser() -> argparse.ArgumentParser:
    """Make a parser with every flag of the installed openrlhf.cli.train_ppo_ray, or else of the pinned one.

    Raises:
        RuntimeError: the installed OpenRLHF's command line no longer has this shape.
    """
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        return shipped_parser()
    namespace: dict[str, object] = {"argparse": argparse, "datetime": datetime, "os": os}
    exec(_statements(Path(spec.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py"), namespace)
    parser = namespace["parser"]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def shipped_parser() -> argparse.ArgumentParser:
    """Make a parser with the pinned OpenRLHF's flags, without their help texts."""
    parser = argparse.ArgumentParser()
    for flag in json.loads(SHIPPED.read_text(encoding="utf-8"))["flags"]:
        if "type" in flag:
            flag["type"] = _TYPES[flag["type"]]
        parser.add_argument(flag.pop("name"), **flag)
    return parser


def described(parser: argparse.ArgumentParser) -> Iterator[dict[str, Any]]:
    """Yield each flag as `shipped_parser` reads it."""
    for action in parser._actions:
        each: dict[str, Any] = {"name": action.option_strings[0]}
        if isinstance(action, argparse._HelpAction):
            continue
        if isinstance(action, argparse._StoreConstAction):
            yield each | {"dest": action.dest, "action": f"store_{action.const}".lower(), "default": action.default}
            continue
        kind = getattr(action.type, "__name__", "str")
        # The default name of a run in W&B is the time at which the parser was made.
        default = None if action.dest == "logger.wandb.run_name" else action.default
        optional = {"nargs": action.nargs, "choices": action.choices}
        yield each | {"type": kind, "default": default} | {key: value for key, value in optional.items() if value}


@functools.cache
def _statements(path: Path) -> CodeType:
    """Compile the statements of the ``__main__`` block before the one that calls ``parser.parse_args()``."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            for position, statement in enumerate(node.body):
                if "parse_args" in ast.unparse(statement):
                    return compile(ast.Module(node.body[:position], type_ignores=[]), str(path), "exec")
    raise RuntimeError("openrlhf.cli.train_ppo_ray has no __main__ block with parse_args(); openrlhf==0.11.2 has")


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(flag) for flag in described(openrlhf_parser()))
    print(f'{{"of": "openrlhf 0.11.2, openrlhf/cli/train_ppo_ray.py", "flags": [\n{lines}\n]}}')
