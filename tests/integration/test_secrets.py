"""A W&B key reaches W&B and no file, message or argument of a run."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest

from oger_recipe.base.secrets import (
    HIDDEN,
    PASSED_ON,
    SECRETS,
    declare_key,
    handed_on,
    hide_secrets,
    redacted,
    secret_problems,
    without_keys,
)
from oger_recipe.cli import train, train_ppo_ray
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of

KEY = "0123456789abcdef" * 2 + "76543210"
COLUMNS = {
    "data.input_key", "data.label_key", "data.image_key", "oger.eval.input_key", "oger.eval.label_key",
    "ckpt.best_metric_key", "oger.teacher_key",
}  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "OGER_REWARD_TOKEN", HIDDEN):
        monkeypatch.setenv(name, "")  # so that it is put back, whoever sets it
        monkeypatch.delenv(name)


def test_every_flag_named_like_a_secret_is_one_or_a_column(parser: argparse.ArgumentParser) -> None:
    ends = ("key", "token", "password", "secret")
    named = {action.dest for action in parser._actions if action.dest.endswith(ends)}
    assert named == COLUMNS | SECRETS.keys()


@pytest.mark.parametrize(
    ("tokens", "hidden"),
    [
        (["--logger.wandb.key", KEY, "--oger.verbose"], ["--logger.wandb.key", "env", "--oger.verbose"]),
        ([f"--logger.wandb.key={KEY}"], ["--logger.wandb.key=env"]),
        (
            [f"--logger.wandb.key={'x' * 40}", "--logger.wandb.key", KEY],
            ["--logger.wandb.key=env", "--logger.wandb.key", "env"],
        ),
    ],
)
def test_a_key_goes_into_the_environment(tokens: list[str], hidden: list[str]) -> None:
    assert hide_secrets(tokens) == hidden
    assert os.environ["WANDB_API_KEY"] == KEY


def test_a_reward_servers_token_goes_into_the_environment(parser: argparse.ArgumentParser) -> None:
    urls = [f"http://{host}/get_reward?token={KEY}" for host in ("a:1", "b:2")]
    tokens = hide_secrets(["--reward.remote_url", ",".join(urls)])
    assert tokens == ["--reward.remote_url", ",".join(url.replace(KEY, "$OGER_REWARD_TOKEN") for url in urls)]
    assert os.environ["OGER_REWARD_TOKEN"] == KEY
    assert hide_secrets(tokens) == tokens and secret_problems(vars(parser.parse_args(tokens))) == []
    assert handed_on(vars(parser.parse_args(tokens)), Path("run")) == {"OGER_REWARD_TOKEN": KEY}
    differ = hide_secrets([f"--reward.remote_url={urls[0]},http://c:3/get_reward?x=1&token=another"])
    (problem,) = secret_problems(vars(parser.parse_args(differ)))
    assert "different tokens" in problem and KEY not in problem


def test_the_word_env_and_columns_are_left_alone(parser: argparse.ArgumentParser) -> None:
    tokens = ["--logger.wandb.key", "env", "--data.input_key", KEY, "--logger.wandb.project", KEY]
    assert hide_secrets(tokens) == tokens
    assert "WANDB_API_KEY" not in os.environ
    assert secret_problems(vars(parser.parse_args(tokens))) == []


def test_a_word_that_is_no_key_is_refused_and_not_repeated(parser: argparse.ArgumentParser) -> None:
    (problem,) = secret_problems(vars(parser.parse_args(hide_secrets(["--logger.wandb.key", "hunter2"]))))
    assert problem.startswith("logger.wandb.key must be a key or the word env") and "hunter2" not in problem


def test_what_wandb_writes_goes_into_the_run_folder(
    parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = vars(parser.parse_args(hide_secrets(["--logger.wandb.key", KEY])))
    assert handed_on(on, tmp_path) == {"WANDB_API_KEY": KEY, "WANDB_DIR": str(tmp_path)}
    monkeypatch.setenv("WANDB_DIR", "/elsewhere")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert handed_on(on, tmp_path) == {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline", "WANDB_DIR": "/elsewhere"}


def test_the_keys_of_judges_reach_other_nodes_and_no_log(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OGER_JUDGE_API_KEY", "k3y")
    monkeypatch.setenv("OF_MY_JUDGE", "another k3y")
    monkeypatch.setenv("UNSET_KEY", "")
    sources = [{"name": "a", "kind": "verifier"}]
    sources += [{"name": name, "kind": "b", "api_key_env": name} for name in ("OF_MY_JUDGE", "NOT_SET", "UNSET_KEY")]
    value = vars(parser.parse_args(["--oger.reward.sources", json.dumps(sources)]))
    assert handed_on(value, Path("run")) == {
        "OGER_JUDGE_API_KEY": "k3y", "OF_MY_JUDGE": "another k3y", "UNSET_KEY": ""
    }  # fmt: skip
    monkeypatch.setenv("SOMEBODYS_API_KEY", KEY)
    monkeypatch.setenv("SHORT_TOKEN", "it")
    assert redacted(f"it said: k3y, {KEY}") == "it said: $OGER_JUDGE_API_KEY, $SOMEBODYS_API_KEY"


KEYS = (
    "OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OGER_REWARD_TOKEN", "AWS_ACCESS_KEY_ID",
    "AWS_SESSION_TOKEN", "AWS_PROFILE", "my_secret", "PGPASSWORD", "DB_PASSWORD", "SSH_AUTH_SOCK", "GH_PAT", "TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS", "MINIO_SECRET_KEY", "KEY_OF_MINE",
)  # fmt: skip
NO_KEYS = {
    "PATH": "/bin", "HOME": "/root", "PYTHONPATH": "x", "PWD": "/", "OLDPWD": "/", "TOKENIZERS_PARALLELISM": "false",
    "HF_HOME": "/hf", "CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": "/lib", "KEYBOARD": "us", "PATTERN": "x",
    "HTTPS_PROXY": "http://proxy:3128", "AUTHOR": "me", "MONKEY": "x", "WANDB_MODE": "offline",
}  # fmt: skip


def test_code_of_others_gets_the_environment_without_keys() -> None:
    urls = {"DATABASE_URL": "postgres://me:pass@host/db", "HTTP_PROXY": "http://me:pass@proxy:3128"}
    environment = NO_KEYS | urls | dict.fromkeys(KEYS, "v")
    assert without_keys(environment) == NO_KEYS
    wanted = {PASSED_ON: "HF_TOKEN,HTTP_PROXY , NOT_THERE"}
    passed = {"HF_TOKEN": "v", "HTTP_PROXY": urls["HTTP_PROXY"]}
    assert without_keys(environment | wanted) == NO_KEYS | wanted | passed


def test_what_is_passed_on_reaches_other_nodes(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSED_ON, "OF_A_VERIFIER_KEY")
    monkeypatch.setenv("OF_A_VERIFIER_KEY", "k3y")
    handed = handed_on(vars(parser.parse_args([])), Path("run"))
    assert handed == {PASSED_ON: "OF_A_VERIFIER_KEY", "OF_A_VERIFIER_KEY": "k3y"}


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("logger: {wandb: {kye: %s}}", []),
        ("logger: {wandb: {key: [%s]}}", []),
        ("{}", ["--logger.wandb.kye=%s"]),
        ("{}", ["--logger.wandb.kye", "%s"]),
        ("{}", ["--logger.wandb.key", "%s", "--oger.bonus_weight=-1"]),
    ],
)
def test_no_message_repeats_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, flags: list[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text.replace("%s", KEY))
    with pytest.raises(SystemExit) as stop:
        train.main(["--recipe", str(recipe), *(flag.replace("%s", KEY) for flag in flags)])
    assert "oger train: " in str(stop.value.code) and KEY not in str(stop.value.code)
    printed = capsys.readouterr()
    assert KEY not in printed.out + printed.err


def test_a_misspelt_flag_keeps_its_value_in_the_message() -> None:
    with pytest.raises(
        SystemExit, match=r"unknown flag '--oger.verbos=1'; did you mean '--oger.verbose'\?\n  - unknown flag '--zzz'"
    ):
        train_ppo_ray.main(["--oger.verbos=1", "--zzz", "3"])


def test_a_key_that_is_passed_on_or_named_by_an_entry_is_known_as_one(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is called; as it is written in a message, and whichever begins with another."""
    keys = {
        "OF_A_VERIFIER_KEY": 'k3y-"quoted"',
        "OF_MY_JUDGE": "k3y",
        "OTHER_API_KEY": f"k3y-{KEY}",
        "MAX_TOKENS": "512",
    }
    for name, key in (keys | {PASSED_ON: "OF_A_VERIFIER_KEY,MAX_TOKENS"}).items():
        monkeypatch.setenv(name, key)
    (problem,) = entry_problems([{"name": "a", "kind": "no_kind", "api_key_env": "OF_MY_JUDGE"}])
    declare_key("not-a-name-but-a-key")
    assert "no_kind" in problem and os.environ[HIDDEN] == "OF_MY_JUDGE"
    said = (
        f"512 {KEY} {keys['OTHER_API_KEY']} {json.dumps(keys['OF_A_VERIFIER_KEY'])} {keys['OF_A_VERIFIER_KEY']!r} k3y"
    )
    assert redacted(said) == f"512 {KEY} $OTHER_API_KEY \"$OF_A_VERIFIER_KEY\" '$OF_A_VERIFIER_KEY' $OF_MY_JUDGE"
    assert without_keys(keys | {HIDDEN: "OF_MY_JUDGE", PASSED_ON: "MAX_TOKENS"}) == {
        "MAX_TOKENS": "512", HIDDEN: "OF_MY_JUDGE", PASSED_ON: "MAX_TOKENS"
    }  # fmt: skip
    assert handed_on(vars(parser.parse_args([])), Path("run"))[HIDDEN] == "OF_MY_JUDGE"


def test_the_key_of_an_entry_is_known_in_the_processes_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_MY_JUDGE", "k3y")
    sources_of([{"name": "a", "kind": "judge", "model": "m", "plugin": "grade", "api_key_env": "OF_MY_JUDGE"}])
    assert redacted("k3y") == "$OF_MY_JUDGE"
