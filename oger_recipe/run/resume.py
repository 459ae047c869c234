"""Continuing a run: which checkpoint it goes on from, and which settings may differ from those it began with."""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import read_jsonl
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.run_folder import checkpoints
from oger_recipe.run_folder.hashes import altered
from oger_recipe.settings.fields import FREE, Rules
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.oger import RULES
from oger_recipe.settings.recipe_file import read_recipe
from oger_recipe.settings.upstream import why_fixed


def check_settings(value: Mapping[str, Any], parser: argparse.ArgumentParser, began_with: Path) -> Iterator[str]:
    """Yield a note on each setting that differs from the recipe file of the run's first attempt.

    Raises:
        RecipeError: one has to stay; all such are named.
    """
    if not began_with.exists():
        return
    was = defaults(parser) | read_recipe(began_with, parser)
    refused = []
    for key, before, now in differences(_apart_from_cache(was), _apart_from_cache(value)):
        rule = why_fixed(key, value) or RULES.get(key, Rules()).resume
        if rule:
            refused.append(f"{key} was {before} -> is {now}: {rule}")
        elif rule != FREE:
            yield f"the run resumes with another {key}: was {before} -> is {now}"
    if refused:
        raise RecipeError(
            "\n  - ".join(["this run cannot resume with these settings changed:", *refused])
            + "\n  Undo the changes, or start a new run; it may begin with this run's last model "
            "(actor.model_name_or_path)"
        )


# What lies before the folder of one content (lab/build.py, `cached`).
_IN_CACHE = re.compile(r"^/.*/(?=countdown-[a-z-]+-[0-9a-f]{16}(/|$))")


def _apart_from_cache(value: Any) -> Any:
    """Return the setting with the task's files named as in its cache, which may lie in another HOME now."""
    if isinstance(value, str):
        return _IN_CACHE.sub("", value)
    if isinstance(value, Mapping):
        return {key: _apart_from_cache(item) for key, item in value.items()}
    return [_apart_from_cache(item) for item in value] if isinstance(value, list | tuple) else value


def differences(was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """List the settings that differ, as (name, before, now). A list equals a tuple of the same."""

    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    return [
        (key, plain(was.get(key)), plain(now[key])) for key in sorted(now) if plain(was.get(key)) != plain(now[key])
    ]


def choose(folder: Path) -> tuple[checkpoints.Checkpoint, list[str]]:
    """Choose the newest whole checkpoint to resume from, with sentences on newer ones and on how it was compared.

    Raises:
        RecipeError: there is none; or a newer one cannot be read now, which may be whole.
    """
    there = {one.step: one for one in checkpoints.found(folder)}
    while (chosen := checkpoints.newest_whole(there.values())) and (fault := _altered(folder, chosen)):
        there[chosen.step] = replace(chosen, fault=fault)
    newer = [one for one in there.values() if chosen is None or one.step > chosen.step]
    for one in newer:
        if one.unread:
            raise _unread(folder, one.step, str(one.fault))
    passed = [f"the checkpoint of step {one.step} is skipped: {one.fault}" for one in newer]
    if chosen is not None:
        aside = [str(one.step) for one in newer if one.foreign]
        if aside:
            passed.append(f"files of step {', '.join(aside)} are kept: they get the ending .set-aside")
        if not chosen.hashes:
            passed.append(f"the checkpoint of step {chosen.step} has no hashes: only its files' sizes were compared")
        return chosen, passed
    best = checkpoints.newest_whole(checkpoints.found(folder / checkpoints.BEST))
    hint = (
        f"\n  The best one, of step {best.step}, is stored apart; to resume from it: --ckpt.path "
        f"{folder / checkpoints.BEST}"
        if best
        else ""
    )
    raise RecipeError(
        "\n  ".join([f"--ckpt.load_enable: there is no checkpoint to resume from in {folder}", *passed])
        + hint
        + "\n  To start over, leave --ckpt.load_enable out; add --overwrite if an earlier run trained there"
    )


def _altered(folder: Path, one: checkpoints.Checkpoint) -> str | None:
    try:
        return altered(folder, one)
    except OSError as error:
        raise _unread(folder, one.step, checkpoints.unread_fault(error)) from None


def _unread(folder: Path, step: int, fault: str) -> RecipeError:
    """Refuse to resume from an earlier checkpoint: that would remove the records of all later steps for good."""
    return RecipeError(
        f"--ckpt.load_enable: the checkpoint of step {step} in {folder} may be whole, but {fault}; nothing was "
        f"changed. Try again once it can be read; to resume from an earlier one, move global_step{step}.json away"
    )


def check_learnt(value: Mapping[str, Any], folder: Path, chosen: checkpoints.Checkpoint) -> None:
    """Raise RecipeError where the checkpoint lacks what a source of reward that learns had learnt."""
    for spec in sources_of(value["oger.reward.sources"]):
        learns = spec.keys.learns
        if learns and not (checkpoints.of_sources(folder, chosen.step) / spec.name).is_dir():
            raise RecipeError(
                f"the checkpoint of step {chosen.step} lacks what reward source {spec.name} had learnt: the run began "
                "without that source, without its learning_rate, or under another name; undo that, or start a new run"
            )


def check_records(value: Mapping[str, Any], run_dir: Path, chosen: checkpoints.Checkpoint) -> Iterator[str]:
    """Yield a note where the run folder lacks records of the steps before the checkpoint's, as another run's does.

    Raises:
        RecipeError: the run needs what they say.
    """
    last = max((record.get("step", 0) for record in read_jsonl(run_dir / "metrics.jsonl")), default=0)
    if last >= chosen.step:
        return
    needing = [f"reward source {each.name}" for each in sources_of(value["oger.reward.sources"]) if each.is_compared]
    needing += ["oger.use_history_samples"] if value["oger.use_history_samples"] else []
    lacks = f"oger.run_dir {run_dir} lacks the records of steps {last + 1} to {chosen.step}"
    if needing:
        raise RecipeError(
            f"{lacks}, which {', '.join(needing)} would go on from: set oger.run_dir to the folder of the run that "
            "wrote the checkpoint, or to a copy of it; or, if the records are lost, move "
            f"global_step{chosen.step}.json away from ckpt.path, to resume from an earlier checkpoint"
        )
    yield f"{lacks}: metrics, curves and alarms go on without them"
    if not (run_dir / "recipe.yaml").exists():
        yield f"{run_dir} has no recipe.yaml: settings could not be compared with those that the run began with"


def load(folder: Path, chosen: checkpoints.Checkpoint) -> None:
    """Make OpenRLHF load the chosen checkpoint; remove what is left of writes that broke off, and make way for later
    steps, without a loss of files that nobody knows to be the run's.

    Raises:
        RecipeError: a newer one cannot be read now.
    """
    for one in checkpoints.found(folder):
        newer = one.step > chosen.step
        if newer and one.foreign:
            checkpoints.set_aside(folder, one.step)
        elif newer and one.fault is None:
            if fault := _altered(folder, one):
                checkpoints.add(folder, one.step, fault=fault)
        elif not (one.finished or one.foreign):
            checkpoints.remove(folder, one.step)
    checkpoints.point_at(folder, chosen.step)
