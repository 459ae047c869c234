"""Settings that follow from others. Each function takes the settings of a run by flag and returns them with those."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from oger_recipe.settings.rollouts import RolloutSettings

Settings = Mapping[str, Any]
T = TypeVar("T")


def in_prompts(value: Settings) -> Settings:
    """Set train.batch_size, in rollouts, where the optimizer step is given in prompts."""
    prompts = value["oger.prompts_per_update"]
    return value if prompts is None else {**value, "train.batch_size": prompts * value["rollout.n_samples_per_prompt"]}


_UNITS = {"train.batch_size": "oger.prompts_per_update", "oger.prompts_per_update": "train.batch_size"}


def without_outdone(settings: Mapping[str, T], nearer: Collection[str]) -> dict[str, T]:
    """Leave out the size of an optimizer step where ``nearer`` settings (flags, or the file that extends) give it in
    the other unit, rollouts or prompts."""
    return {flag: each for flag, each in settings.items() if flag in nearer or _UNITS.get(flag) not in nearer}


def two_step_sizes(value: Settings, given: Collection[str]) -> Iterator[str]:
    """Yield a sentence where both units of an optimizer step are given, and are not the same size."""
    rollouts = in_prompts(value)["train.batch_size"]
    if _UNITS.keys() <= {*given} and value["train.batch_size"] != rollouts:
        yield (
            f"train.batch_size {value['train.batch_size']} and oger.prompts_per_update "
            f"{value['oger.prompts_per_update']} ({rollouts} rollouts) are two sizes of an optimizer step: "
            "leave one out"
        )


def with_verifier_path(value: Settings, recipe: Path | None) -> Settings:
    """Set oger.verifier_path to the recipe file's folder and the working directory where the user names none.

    It is kept with the run: resumed from its own folder, the run still finds its verifiers.
    """
    given = value["oger.verifier_path"] or ([recipe.parent] if recipe else []) + [Path.cwd()]
    folders = dict.fromkeys(str(Path(folder).expanduser().absolute()) for folder in given)
    return {**value, "oger.verifier_path": tuple(folders)}


def with_template(value: Settings) -> Settings:
    """Set what a named prompt template means: the chat template, or stop texts where the user has none."""
    chat = value["oger.prompt_template"] == "chat" or bool(value["data.apply_chat_template"])
    return {**value, "data.apply_chat_template": chat, "oger.stop": RolloutSettings.of(value).stop_texts}


# Where OpenRLHF would write to -> where in the run folder it goes, unless the user sent it elsewhere.
_OUTPUTS = {
    "ckpt.path": ("./ckpt/checkpoints_ppo_ray", "checkpoints"),
    "ckpt.output_dir": ("./ckpt", "model"),
    "logger.tensorboard_dir": (None, "tensorboard"),
}


def in_folder(value: Settings, run_dir: Path) -> Settings:
    """Point the paths that the run writes to into its folder."""
    unsaid = {key: str(run_dir / name) for key, (upstream, name) in _OUTPUTS.items() if value[key] == upstream}
    return {**value, "oger.run_dir": str(run_dir), **unsaid}
