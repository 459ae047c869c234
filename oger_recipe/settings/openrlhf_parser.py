"""OpenRLHF's command-line parser, without starting or importing OpenRLHF.

Upstream builds the parser inside ``if __name__ == "__main__"`` of openrlhf/cli/train_ppo_ray.py. Importing that module
takes many seconds (torch, vLLM, DeepSpeed), and a misspelt flag should be reported before; so the statements that
build the parser, and only they, are read from its source and run. Where OpenRLHF is not installed, they are those of
openrlhf_flags.txt, which ``python -m oger_recipe.settings.openrlhf_parser`` prints from an installed one: commands
that start no run need the flags alone.
"""

import argparse
import ast
import importlib.util
import os
from datetime import datetime
from pathlib import Path

SHIPPED = Path(__file__).with_name("openrlhf_flags.txt")


def openrlhf_parser() -> argparse.ArgumentParser:
    """A fresh parser with every flag of the installed openrlhf.cli.train_ppo_ray, or else of the pinned one.

    Raises:
        RuntimeError: the installed OpenRLHF's command line no longer has this shape.
    """
    text = parser_source() or SHIPPED.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"argparse": argparse, "datetime": datetime, "os": os}
    exec(compile(text, "openrlhf.cli.train_ppo_ray", "exec"), namespace)
    parser = namespace["parser"]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def parser_source() -> str | None:
    """The statements of the installed OpenRLHF that build its parser; None where it is not installed."""
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py"
    return ast.unparse(_parser_statements(ast.parse(path.read_text(encoding="utf-8"))))


def _parser_statements(tree: ast.Module) -> ast.Module:
    """The statements of the ``__main__`` block before the one that calls ``parser.parse_args()``."""
    for node in tree.body:
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            for position, statement in enumerate(node.body):
                if "parse_args" in ast.unparse(statement):
                    return ast.Module(node.body[:position], type_ignores=[])
    raise RuntimeError("openrlhf.cli.train_ppo_ray has no __main__ block with parse_args(); openrlhf==0.11.2 has")


if __name__ == "__main__":
    print("# Of OpenRLHF 0.11.2, openrlhf/cli/train_ppo_ray.py (Apache-2.0); made by openrlhf_parser.py beside it.")
    print(parser_source())
