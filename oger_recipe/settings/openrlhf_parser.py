"""OpenRLHF's command-line parser, without starting or importing OpenRLHF.

Upstream builds the parser inside ``if __name__ == "__main__"`` of openrlhf/cli/train_ppo_ray.py. Importing that module
takes many seconds (torch, vLLM, DeepSpeed), and a misspelt flag should be reported before; so the statements that
build the parser, and only they, are read from its source and run.
"""

import argparse
import ast
import importlib.util
import os
from datetime import datetime
from pathlib import Path


def openrlhf_parser() -> argparse.ArgumentParser:
    """A fresh parser with every flag of the installed openrlhf.cli.train_ppo_ray.

    Raises:
        RuntimeError: OpenRLHF is not installed, or its command line no longer has this shape.
    """
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("OpenRLHF is not installed in this environment; bash scripts/setup.sh installs it")
    path = Path(spec.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py"
    statements = _parser_statements(ast.parse(path.read_text()))
    namespace: dict[str, object] = {"argparse": argparse, "datetime": datetime, "os": os}
    exec(compile(ast.Module(statements, type_ignores=[]), str(path), "exec"), namespace)
    parser = namespace["parser"]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def _parser_statements(tree: ast.Module) -> list[ast.stmt]:
    """The statements of the ``__main__`` block before the one that calls ``parser.parse_args()``."""
    for node in tree.body:
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            for position, statement in enumerate(node.body):
                if "parse_args" in ast.unparse(statement):
                    return node.body[:position]
    raise RuntimeError("openrlhf.cli.train_ppo_ray has no __main__ block with parse_args(); openrlhf==0.11.2 has")
