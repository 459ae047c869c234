"""`oger train --help [SECTION]`: the sections of all flags, or one section's flags with a sentence each."""

import argparse
import difflib
import textwrap
from collections.abc import Iterator
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.settings import RANGES
from oger_recipe.cli.openrlhf_help import SENTENCES
from oger_recipe.settings.oger import SECTIONS
from oger_recipe.settings.parser import ListAction

_WIDTH = 100

# A section of OpenRLHF's flags is the first word of their names.
OPENRLHF_SECTIONS = {
    "data": "prompts: dataset, columns, chat template, lengths",
    "rollout": "how groups are sampled",
    "eval": "held-out evaluation during the run",
    "actor": "the policy: model, optimizer, learning rate, clipping",
    "critic": "the value model of algo.advantage.estimator gae, appo and tppo",
    "ref": "the reference model of the KL",
    "reward": "reward models, ranges and penalties (verifiers: oger.rollouts)",
    "algo": "advantage estimator, KL, dynamic filtering",
    "train": "batches, epochs, seed, which models share GPUs",
    "vllm": "the engines that sample",
    "ds": "DeepSpeed: ZeRO, memory, attention, LoRA",
    "ckpt": "checkpoints, resuming, the final model",
    "logger": "TensorBoard and Weights & Biases",
}
OGER_SECTIONS = {section.title: section for section in SECTIONS}

_USAGE = """\
usage: oger train --recipe FILE [flags]            train by a recipe file; flags override it
       oger train --recipe FILE --dry-run          check it and print the plan
       oger train --recipe FILE --max-restarts N  resume the run after a failure, up to N times
       oger train --help SECTION                   a section's flags, or all that begin with a word

  oger train --recipe countdown_cpu.yaml                        OGER on this machine's CPU
  oger train --recipe countdown_cpu --rollout.temperature 0.9   a shipped recipe
  oger train --help oger.bonus     oger train --help actor.adam    oger train --help rollout.top_p

Each flag is also a line of a recipe file: --actor.adam.lr 1e-6 is `actor: {adam: {lr: 1e-6}}`.
"""


def overview(parser: argparse.ArgumentParser) -> str:
    """Write usage, examples and the sections with their numbers of flags."""
    sections = sections_of(parser)
    lines = {name: line for name, line in OPENRLHF_SECTIONS.items()}
    lines |= {name: each.about for name, each in OGER_SECTIONS.items()}
    lines["other"] = "flags without a section"
    rows = [f"  {name:15} {len(actions):3}  {lines[name]}" for name, actions in sections.items()]
    total = sum(map(len, sections.values()))
    own = next(place for place, name in enumerate(sections) if name in OGER_SECTIONS)
    return "\n".join([_USAGE, f"{total} flags; OpenRLHF's:", *rows[:own], "the recipe's own:", *rows[own:]])


def section(parser: argparse.ArgumentParser, name: str) -> str:
    """Write the help of a section, or of flags that begin with ``name``. Raises RecipeError if there are none."""
    name = name.removeprefix("--").removesuffix(".")
    sections = sections_of(parser)
    actions = sections.get(name)
    if actions is None:
        every = [action for group in sections.values() for action in group]
        actions = [a for a in every if any(_begins(flag, name) for flag in a.option_strings)]
    if not actions:
        known = [*sections, *(flag[2:] for flag in parser._option_string_actions)]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise RecipeError(
            f"--help {name}: no section or flag begins like this{hint} (--help alone lists all sections)"
        )
    return "\n".join(line for action in actions for line in _flag(action))


def sections_of(parser: argparse.ArgumentParser) -> dict[str, list[argparse.Action]]:
    """Put every flag into one section, without --help itself and the opposites (--no-FLAG) of switches."""
    own = {each.flag: section.title for section in SECTIONS for each in section.settings()}
    found: dict[str, list[argparse.Action]] = {name: [] for name in (*OPENRLHF_SECTIONS, "other", *OGER_SECTIONS)}
    for action in parser._actions:
        if action.dest != "help" and action.help != argparse.SUPPRESS:
            first = action.option_strings[0].removeprefix("--").partition(".")[0]
            found[own.get(action.dest, first if first in OPENRLHF_SECTIONS else "other")].append(action)
    return found


def sentence(action: argparse.Action) -> str:
    """Say what the flag does, its default included."""
    said = (action.help or SENTENCES.get(action.option_strings[0][2:], "")).replace("%%", "%")
    return said if "(default" in said else f"{said} (default: {_default(action)})"


def _begins(flag: str, name: str) -> bool:
    flag = flag.removeprefix("--").removeprefix("no-")
    return flag == name or flag.startswith(name + ".") or (name.count(".") == 1 and flag.startswith(name))


def _default(action: argparse.Action) -> str:
    if isinstance(action.default, bool):
        return "on" if action.default else "off"
    if action.default is None or action.default == ():
        return "none"
    values = action.default if isinstance(action.default, list | tuple) else [action.default]
    return " ".join(map(str, values))


def _flag(action: argparse.Action) -> Iterator[str]:
    names = ", ".join(action.option_strings)
    several_of = action.setting if isinstance(action, ListAction) else None
    kind: Any = several_of.read if several_of else action.type
    choices = several_of.choices if several_of else action.choices
    name = kind.__name__ if isinstance(kind, type) else "mapping" if kind else ""
    value = f"{{{','.join(map(str, choices))}}}" if choices else name
    several = {None: "", 0: "", "*": " ...", "+": " ..."}.get(action.nargs, f" x {action.nargs}")
    allowed = f": {RANGES[action.dest].text}" if action.dest in RANGES else ""
    line = f"{names} {value}{several}".rstrip() + allowed
    yield from textwrap.wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    yield from textwrap.wrap(sentence(action), _WIDTH, initial_indent="      ", subsequent_indent="      ")
