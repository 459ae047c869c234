"""Check what a run asks for over the network: the Hugging Face hub, servers of models, Weights & Biases."""

import netrc
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.base import hub
from oger_recipe.base.imports import is_installed
from oger_recipe.base.secrets import WANDB_KEY
from oger_recipe.checks.job import OK, PROBLEM, WARNING, Finding, Found, Job
from oger_recipe.checks.machine import where_named
from oger_recipe.checks.settings import reward_models
from oger_recipe.data.sources import is_hub_name
from oger_recipe.embedding.settings import PACKAGED_MODEL
from oger_recipe.evaluation.benchmarks import BENCHMARKS
from oger_recipe.lab.built_in_models import PRMS
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.settings.run import TRACKERS

_Name = tuple[str, str, str, str | None]  # flag, kind, name, revision


def hub_names(value: Mapping[str, Any]) -> Iterator[_Name]:
    """Yield what is to come from the Hugging Face hub."""
    oger = OgerSettings.of(value)
    embedding = oger.embedding
    models = {
        "actor.model_name_or_path": not value["use_ms"],
        "critic.model_name_or_path": not value["use_ms"] and value["algo.advantage.estimator"] in CRITIC_ESTIMATORS,
        "oger.similarity_reranker": oger.compares,
        "oger.embedding_model": oger.embeds
        and not embedding.embedding_url
        and embedding.embedding_model != PACKAGED_MODEL,
    }
    for flag, is_used in models.items():
        name, is_encoder = value[flag], flag == "oger.embedding_model"
        if is_used and name and not Path(name).exists():
            owner = "sentence-transformers/" if is_encoder and "/" not in name else ""
            yield flag, "model", owner + name, embedding.embedding_revision if is_encoder else None
    for each in reward_models(value):
        if not (Path(each.model).exists() or each.model in PRMS):
            yield each.key, "model", each.model, each.revision
    for flag in ("data.prompt_dataset", "eval.dataset"):
        for source in map(str.strip, (value[flag] or "").split(",")):
            if flag == "eval.dataset" and source in BENCHMARKS:
                yield flag, "dataset", BENCHMARKS[source].path, None
            elif source and "=" not in source and is_hub_name(source):
                yield flag, "dataset", source.rpartition("@")[2], None


def on_the_hub(job: Job) -> Found:
    """Ask the hub for each name once, and for none any more when it does not answer."""
    reason = "HF_HUB_OFFLINE is set" if hub.is_offline() else None
    absent: list[str] = []
    cached: list[str] = []
    for flag, kind, name, revision in dict.fromkeys(hub_names(job.value)):
        if reason is None:
            print(f"asking the Hugging Face hub for the {kind} {name} ...", flush=True)
            try:
                refusal = hub.refusal(kind, name, revision)
            except hub.Unreachable as error:
                reason = f"the hub cannot be reached ({error})"
            else:
                state = OK if refusal is None else WARNING if hub.is_cached(kind, name) else PROBLEM
                yield Finding(state, f"{flag}: {refusal or f'{name} is there'}")
        if reason is not None:
            (cached if hub.is_cached(kind, name) else absent).append(f"{name} ({flag})")
    if absent:
        yield Finding(
            PROBLEM,
            f"{reason}, and {', '.join(absent)} {'are' if len(absent) > 1 else 'is'} neither here nor in its cache: "
            "give folders and files; or run `hf download NAME` (--repo-type dataset for a dataset) where the hub can "
            "be reached, bring the cache here, and set HF_HUB_OFFLINE=1",
        )
    elif cached and hub.is_offline():
        yield Finding(OK, f"{reason}; the cache has {', '.join(cached)}")
    elif cached:
        yield Finding(
            WARNING,
            f"{reason}, but its cache has {', '.join(cached)}: set HF_HUB_OFFLINE=1, or every process tries the "
            "hub first",
        )


def embedding_server(job: Job) -> Found:
    from oger_recipe.embedding.remote import probe

    oger = OgerSettings.of(job.value)
    if not oger.embedding.embedding_url or not oger.embeds:
        return
    try:
        length = probe(oger.embedding.encoder)
        yield Finding(OK, f"{oger.embedding.embedding_model} answers, {length} numbers a vector")
    except ValueError as error:
        yield Finding(PROBLEM, f"oger.embedding_url: {error}; start the server, correct the url, or leave it out")


def judge_servers(job: Job) -> Found:
    from oger_recipe.models.server import probe

    for name, keys in OgerSettings.of(job.value).models:
        if keys.runs_on != "server":
            continue
        try:
            yield Finding(OK, f"{name}: {probe(keys)}")
        except ValueError as error:
            what_to_do = "start it (`oger serve-judge` starts one), or correct url and model"
            yield Finding(PROBLEM, f"{where_named(name)}: {error}; {what_to_do}")


def wandb(job: Job) -> Found:
    if not job.value[WANDB_KEY]:
        return
    mode = os.environ.get("WANDB_MODE", "online")
    if not is_installed("wandb"):
        yield Finding(PROBLEM, f"{WANDB_KEY} is set, but wandb is not installed: pip install wandb, or leave it out")
    elif mode != "online":
        yield Finding(OK, f"{mode} (WANDB_MODE); its files go into the run folder")
    elif os.environ.get("WANDB_API_KEY") or _is_logged_in():
        yield Finding(OK, "a key is set")
    else:
        yield Finding(PROBLEM, "no key is set: set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline")


def trackers(job: Job) -> Found:
    for name in dict.fromkeys(OgerSettings.of(job.value).run.trackers):
        has_server = os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http")  # then the database is there
        modules = [name] if has_server else TRACKERS[name]
        if lacking := [TRACKERS[name][module] for module in modules if not is_installed(module)]:
            text = (
                f"oger.trackers has {name}, which is not installed: pip install {' '.join(lacking)}, or leave it out"
            )
            yield Finding(PROBLEM, text)
        else:
            yield Finding(OK, f"{name} is installed")


def _is_logged_in() -> bool:
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
