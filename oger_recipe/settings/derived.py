"""Settings that follow from others. Each function takes the settings of a run by flag and returns them with those."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oger_recipe.settings.rollouts import RolloutSettings

Settings = Mapping[str, Any]


def in_prompts(value: Settings) -> Settings:
    """train.batch_size counts rollouts; where the optimizer step is given in prompts it follows."""
    prompts = value["oger.prompts_per_update"]
    return value if prompts is None else {**value, "train.batch_size": prompts * value["rollout.n_samples_per_prompt"]}


def with_verifier_path(value: Settings, recipe: Path | None) -> Settings:
    """oger.verifier_path is the recipe file's folder and the working directory where the user names none.

    Kept with the run: continued from its own folder it still finds its verifiers.
    """
    given = value["oger.verifier_path"] or ([recipe.parent] if recipe else []) + [Path.cwd()]
    folders = dict.fromkeys(str(Path(folder).expanduser().absolute()) for folder in given)
    return {**value, "oger.verifier_path": tuple(folders)}


def with_template(value: Settings) -> Settings:
    """A named prompt template means the chat template, or brings stop texts where the user has none."""
    chat = value["oger.prompt_template"] == "chat" or bool(value["data.apply_chat_template"])
    return {**value, "data.apply_chat_template": chat, "oger.stop": RolloutSettings.of(value).stop_texts}


# Where OpenRLHF would write to -> where in the run folder it goes, unless the user sent it elsewhere.
_OUTPUTS = {
    "ckpt.path": ("./ckpt/checkpoints_ppo_ray", "checkpoints"),
    "ckpt.output_dir": ("./ckpt", "model"),
    "logger.tensorboard_dir": (None, "tensorboard"),
}


def in_folder(value: Settings, run_dir: Path) -> Settings:
    """What the run writes goes into its folder."""
    unsaid = {key: str(run_dir / name) for key, (upstream, name) in _OUTPUTS.items() if value[key] == upstream}
    return {**value, "oger.run_dir": str(run_dir), **unsaid}
