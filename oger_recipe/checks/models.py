"""Check that models, their tokenizers and what a user brings with them, plugins and verifiers, work here."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

from oger_recipe.algorithm.credit import CRITIC_ESTIMATORS
from oger_recipe.base import hub, remote_code
from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.grades import longest_shown
from oger_recipe.checks.job import OK, PROBLEM, WARNING, Finding, Found, Job
from oger_recipe.checks.machine import judge_engines, where_named
from oger_recipe.checks.model_files import fault, is_pickled
from oger_recipe.checks.model_loading import problems_of
from oger_recipe.checks.services import hub_names
from oger_recipe.lab.built_in_models import PRMS
from oger_recipe.rewards.kinds.entries import models_of, sources_of
from oger_recipe.settings.grades import GRADE_MODEL, OFF
from oger_recipe.settings.grading import VerifierSettings, grading_rules
from oger_recipe.settings.oger import OgerSettings


def model_files(job: Job) -> Found:
    """Check model folders, whose loading would fail in the midst of the run's processes."""
    value = job.value
    named = [("actor.model_name_or_path", value["actor.model_name_or_path"])]
    if value["algo.advantage.estimator"] in CRITIC_ESTIMATORS:
        named.append(("critic.model_name_or_path", value["critic.model_name_or_path"]))
    models = OgerSettings.of(value).models
    named += [(where_named(name), keys.model) for name, keys in models if keys.runs_on != "server"]
    for where, model in named:
        if not model or not (Path(model) / "config.json").is_file():  # said elsewhere
            continue
        writes = where.startswith("actor") or where == GRADE_MODEL
        wrong = fault(Path(model), language_model=writes, own_code=value[remote_code.SETTING])
        if wrong:
            yield Finding(PROBLEM, f"{where}: {model} cannot be loaded: {wrong}")
        elif is_pickled(Path(model)):
            yield _pickled(where, model)
        else:
            yield Finding(OK, f"{where}: configuration and files of {model} are complete")
    for where, model, folder in _further_folders(job):
        if is_pickled(folder):
            yield _pickled(where, model)


def _further_folders(job: Job) -> Iterator[tuple[str, str, Path]]:
    """Yield setting, name and folder of encoder and reranker, and of the hub's models as far as its cache has them."""
    oger = OgerSettings.of(job.value)
    if oger.embeds and not oger.embedding.embedding_url:
        yield "oger.embedding_model", oger.embedding.embedding_model, Path(oger.embedding.embedding_model)
    if oger.compares and (reranker := oger.embedding.similarity_reranker):
        yield "oger.similarity_reranker", reranker, Path(reranker)
    for where, kind, name, revision in dict.fromkeys(hub_names(job.value)):
        if kind == "model" and (folder := hub.cached_folder(name, revision)):
            yield where, name, folder


def _pickled(where: str, model: str) -> Finding:
    return Finding(
        WARNING,
        f"{where}: the weights of {model} are pickle files (.bin), of which only tensors are read; "
        "safetensors can hold no code: from_pretrained(...).save_pretrained(...) of transformers writes it",
    )


def judge_plugins(job: Job) -> Found:
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


def step_texts(job: Job) -> Found:
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
            yield Finding(OK, f"{name}: the tokenizer fits format {keys.prm.format}")
        except RecipeError as error:
            yield Finding(PROBLEM, f"oger.reward.sources, {name}: {error}")


def windows(job: Job) -> Found:
    """Check whether the policy may write more than the reward's models read."""
    from oger_recipe.checks.windows import window_problems

    settings = OgerSettings.of(job.value)
    for spec in sources_of(settings.reward.sources):
        for is_hopeless, text in window_problems(spec.keys, job.value["data.max_len"], settings.steps.max_steps or 1):
            yield Finding(PROBLEM if is_hopeless else WARNING, f"oger.reward.sources, {spec.name}: {text}")


# Read by the policy's tokenizer and by the grader's: these may share a vocabulary, and cut texts differently.
_TEXT = "Let $x = 12.5$; then \\frac{x}{3} = 4.17.\n\n<think>Wait, (3+5)*12 = 96</think>\n"


def grader(job: Job) -> Found:
    """Check whether the teacher model has the policy's tokens, and whether what the grader reads fits its window."""
    from oger_recipe.models.keys import WriterKeys
    from oger_recipe.models.server import window_at
    from oger_recipe.models.tokens import load_tokenizer, plain_tokens, window_of

    settings, longest = OgerSettings.of(job.value), job.value["data.max_len"]
    policy = WriterKeys(model=job.value["actor.model_name_or_path"] or "")
    if not policy.model or settings.grades.grader == OFF or hub.out_of_reach(*policy.tokenizer_files):
        return
    if settings.grades.shows_teachers:
        window = window_of(policy)
        shown = longest_shown(job.value, settings)
        if window is not None and shown > window:
            yield Finding(
                WARNING,
                f"{policy.model} reads {window:,} tokens, and data.max_len ({longest:,}) with a shown teacher may "
                f"have {shown:,}: a teacher that does not fit is not shown "
                "(oger/grade_too_long counts them); lower rollout.max_new_tokens or oger.max_prefix_len",
            )
    for model in settings.grades.models:
        if hub.out_of_reach(*model.tokenizer_files):  # other checks say so
            continue
        try:
            ours, theirs = load_tokenizer(policy), load_tokenizer(model)
        except RecipeError as error:
            yield Finding(PROBLEM, str(error))
            continue
        known, window = theirs.get_vocab(), window_at(model) if model.runs_on == "server" else window_of(model)
        other = [token for token, number in ours.get_vocab().items() if known.get(token) != number]
        if other or plain_tokens(ours, _TEXT) != plain_tokens(theirs, _TEXT):
            what = f"{len(other):,} tokens have another id there, or none" if other else "they cut texts differently"
            yield Finding(
                PROBLEM,
                f"{GRADE_MODEL}: the tokenizers of {model.model} and of the policy differ ({what}), "
                "and a grader reads the tokens that the policy sampled: use a "
                "model of the policy's family",
            )
        elif window is not None and window < longest + (model.runs_on != "in_process"):
            yield Finding(
                WARNING,
                f"{GRADE_MODEL}: {model.model} reads {window:,} tokens in all, and a row may have {longest:,} "
                "(data.max_len): longer ones get no grades (oger/grade_failed counts them)",
            )
        else:
            yield Finding(OK, f"{GRADE_MODEL}: {model.model} has the policy's tokens")


def encoder(job: Job) -> Found:
    from oger_recipe.embedding.encoder import make_encoder

    oger = OgerSettings.of(job.value)
    embedding = oger.embedding
    if embedding.embedding_url or not oger.embeds:
        return
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
            encoder = make_encoder(embedding.encoder, embedding.embedding_batch_size)
            encoder.encode(["A text."])
        yield Finding(OK, f"{embedding.embedding_model} loads, {encoder.dimension} numbers a vector")
    except Exception as error:  # whatever can be wrong with a model's files
        yield Finding(PROBLEM, f"oger.embedding_model {embedding.embedding_model}: {type(error).__name__}: {error}")


def judges(job: Job) -> Found:
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
            yield Finding(PROBLEM, f"{where_named(name)}: {problem}")


_EXAMPLE = "I think that the answer is \\boxed{1}."


def verifiers(job: Job) -> Found:
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
