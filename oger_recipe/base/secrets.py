"""Moves API keys, which must not be written anywhere, from the command line or the recipe into the environment."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

WANDB_KEY = "logger.wandb.key"
FROM_ENVIRONMENT = "env"  # in place of a key: W&B is on, with the key of the environment or of `wandb login`
_SHORTEST_KEY = 20  # characters; W&B's have 40 or more
_SHORTEST_PASSED_ON = 8

# flag -> the variable that its program reads instead
SECRETS = {WANDB_KEY: "WANDB_API_KEY"}

# The token of a reward server stands in its address, where the executor of a run puts it in the variable's place.
REWARD_URL = "reward.remote_url"
_REWARD_TOKEN = "OGER_REWARD_TOKEN"
_TOKEN_IN_URL = re.compile(r"(?<=[?&]token=)(?!\$)[^&,]+")

# What a run hands on to processes on other nodes, whose environment is another.
_KEYS = (
    "WANDB_API_KEY", "TRACKIO_WRITE_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN",
    "OGER_EMBEDDING_API_KEY", "OGER_JUDGE_API_KEY", _REWARD_TOKEN,
)  # fmt: skip
_NAMED_LIKE_KEYS = re.compile(
    r"(^|_)(KEYS?|APIKEY|TOKENS?|AUTH|PAT)(_|$)|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|^AWS_", re.IGNORECASE
)
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_HANDED_ON = (
    *_KEYS, "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR", "TRACKIO_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL",
    "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_INSECURE_TLS",
)  # fmt: skip
PASSED_ON = (
    "OGER_PASS_ENV"  # names of variables, apart by commas, that the user's verifiers and plugins get all the same
)

HIDDEN = "OGER_HIDE_ENV"  # names of variables with keys that are not named like keys, as those of api_key_env


def declare_key(variable: str) -> None:
    """Treat the value of a variable as an API key from now on, in this process and those that it starts."""
    if variable in os.environ:
        os.environ[HIDDEN] = ",".join(dict.fromkeys([*_names_in(HIDDEN, os.environ), variable]))


def hide_secrets(words: Sequence[str]) -> list[str]:
    """Move the secrets of a command line into the environment, and return its words with a reference in their places.

    The last one counts, as for every flag. What is left as it is, `secret_problems` refuses.
    """
    hidden = list(words)
    for position, word in enumerate(hidden):
        name, separator, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in (*SECRETS, REWARD_URL):
            continue
        if separator:
            hidden[position] = f"--{name}={hide_secret(name, value)}"
        elif position + 1 < len(hidden):
            hidden[position + 1] = hide_secret(name, hidden[position + 1])
    return hidden


def hide_secret(name: str, value: Any) -> Any:
    """Hide the value of one setting in the same way; that of any other setting stays as it is."""
    if name == REWARD_URL:
        return _hide_token(value)
    if name not in SECRETS or len(value) < _SHORTEST_KEY:
        return value
    os.environ[SECRETS[name]] = value
    return FROM_ENVIRONMENT


def _hide_token(url: str) -> str:
    found = set(_TOKEN_IN_URL.findall(url))
    if len(found) != 1:
        return url
    os.environ[_REWARD_TOKEN] = found.pop()
    return _TOKEN_IN_URL.sub(f"${_REWARD_TOKEN}", url)


def secret_problems(value: Mapping[str, Any]) -> list[str]:
    """Say where a value that has to be a secret is none; it is not repeated: it may be a part of one."""
    problems = [
        f"{name} must be a key or the word {FROM_ENVIRONMENT}, which takes the key from {variable} or "
        "from `wandb login`"
        for name, variable in SECRETS.items()
        if value[name] not in (None, "", FROM_ENVIRONMENT)
    ]
    if _TOKEN_IN_URL.search(value[REWARD_URL] or ""):
        problems.append(f"{REWARD_URL} has different tokens: give all its servers the same one, in {_REWARD_TOKEN}")
    return problems


def handed_on(value: Mapping[str, Any], run_dir: Path) -> dict[str, str]:
    """Return the variables for the processes of a run. W&B writes into the run folder."""
    folder = {"WANDB_DIR": str(run_dir)} if value[WANDB_KEY] else {}
    of_judges = [entry["api_key_env"] for entry in value["oger.reward.sources"] or () if "api_key_env" in entry]
    names = (*_HANDED_ON, *of_judges, HIDDEN, PASSED_ON, *_names_in(PASSED_ON, os.environ))
    return folder | {name: os.environ[name] for name in names if name in os.environ}


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for others' code, verifiers and plugins: without API keys, but for those in PASSED_ON."""
    kept, hidden = _names_in(PASSED_ON, environment), _names_in(HIDDEN, environment)
    return {
        name: value
        for name, value in environment.items()
        if name in kept or not (name in hidden or _is_key(name, value))
    }


def _names_in(variable: str, environment: Mapping[str, str]) -> list[str]:
    return [name for each in environment.get(variable, "").split(",") if (name := each.strip())]


def _is_key(name: str, value: str) -> bool:
    return bool(_NAMED_LIKE_KEYS.search(name) or _PASSWORD_IN_URL.search(value))


def said_by(error: BaseException) -> str:
    """Say what code of others raised, without API keys. Cut it only afterwards: half a key would stay."""
    return redacted(f"{type(error).__name__}: {error}")


def redacted(text: str) -> str:
    """Replace the API keys of this process's environment in a text that others wrote: those known here, what is named
    like one, and what is passed on by its name."""
    return redactor()(text)


def redactor() -> Callable[[str], str]:
    """Return a function that does so with many texts."""
    shortest = dict.fromkeys(_names_in(PASSED_ON, os.environ), _SHORTEST_PASSED_ON)
    shortest |= dict.fromkeys((*_KEYS, *_names_in(HIDDEN, os.environ)), 1)
    named = {
        written: name
        for name, key in os.environ.items()
        if len(key) >= shortest.get(name, _SHORTEST_KEY if _is_key(name, key) else len(key) + 1)
        for written in (key, repr(key)[1:-1], json.dumps(key)[1:-1])
    }
    longest_first = sorted(named.items(), key=lambda item: -len(item[0]))

    def without_keys(text: str) -> str:
        for key, name in longest_first:
            text = text.replace(key, f"${name}")
        return text

    return without_keys
