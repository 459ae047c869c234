"""Keys that must not be written anywhere: they go from the command line or the recipe into the environment at once."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WANDB_KEY = "logger.wandb.key"
FROM_ENVIRONMENT = "env"  # in place of a key: W&B is on, with the key of the environment or of `wandb login`
_SHORTEST_KEY = 20  # characters; W&B's have 40 or more

# flag -> the variable that its program reads instead
SECRETS = {WANDB_KEY: "WANDB_API_KEY"}

# What a run hands on to processes on other nodes, whose environment is another.
_HANDED_ON = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR", "OGER_EMBEDDING_API_KEY")


def hide_secrets(tokens: Sequence[str]) -> list[str]:
    """The command-line tokens with FROM_ENVIRONMENT in the place of each secret, which goes into the environment.

    The last one counts, as for every flag. A text too short for a key is left for `secret_problems` to refuse.
    """
    hidden = list(tokens)
    for position, token in enumerate(hidden):
        name, separator, value = token.removeprefix("--").partition("=")
        if not token.startswith("--") or name not in SECRETS:
            continue
        if separator:
            hidden[position] = f"--{name}={_hide(name, value)}"
        elif position + 1 < len(hidden):
            hidden[position + 1] = _hide(name, hidden[position + 1])
    return hidden


def _hide(name: str, value: str) -> str:
    if len(value) < _SHORTEST_KEY:
        return value
    os.environ[SECRETS[name]] = value
    return FROM_ENVIRONMENT


def secret_problems(value: Mapping[str, Any]) -> list[str]:
    """What stands in the place of a secret and is none; it is not repeated: it may be a part of one."""
    return [
        f"{name} is neither a key nor the word {FROM_ENVIRONMENT}, which takes the key from {variable} or from "
        "`wandb login`"
        for name, variable in SECRETS.items()
        if value[name] not in (None, "", FROM_ENVIRONMENT)
    ]


def handed_on(value: Mapping[str, Any], run_dir: Path) -> dict[str, str]:
    """Variables for the processes of a run. What W&B writes goes into the run folder."""
    folder = {"WANDB_DIR": str(run_dir)} if value[WANDB_KEY] else {}
    return folder | {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
