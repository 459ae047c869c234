"""The keys of sources that ask a model: which model, where it runs, how it is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from oger_recipe.algorithm.steps import AGGREGATES, CREDITS
from oger_recipe.base.ranges import COUNT, COUNT_OR_NONE, PART, POSITIVE, WEIGHT
from oger_recipe.base.seeds import stable_seed
from oger_recipe.models.asking import Ask, Judged, Metrics, ModelSource, RewardModel, shares
from oger_recipe.models.plugin import EXAMPLE, Example, Plugin
from oger_recipe.models.step_formats import FORMATS, SCORERS, Format
from oger_recipe.rewards.keys import key
from oger_recipe.rewards.place import Place, Reply, Sampling, StepPrompt
from oger_recipe.rewards.sources import Group, Source
from oger_recipe.rewards.spec import FLIPS, Keys, SourceSpec, Surroundings

PLACES = ("engine", "in_process", "server")
APIS = ("chat", "completions")
HEADS = ("classify", "pooling", "embeddings")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
OF_A_SERVER = (
    "api", "head", "api_key_env", "concurrency", "requests_per_minute", "request_limit_s", "attempts", "step_limit_s",
)  # fmt: skip
OF_A_MODEL_HERE = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len", "dtype")
_OF_AN_ENGINE = ("tensor_parallel_size", "gpu_memory_utilization")
_SHARED_BY_ENTRIES = (
    "model", "revision", "tokenizer", "tensor_parallel_size", "gpu_memory_utilization", "max_model_len", "dtype",
    "request_limit_s", "step_limit_s",
)  # fmt: skip
ON_OVERFLOW = ("worst", "truncate", "drop_group")
_OF_REQUESTS = (
    "model", "messages", "prompt", "n", "best_of", "stream", "stream_options", "echo", "temperature", "top_p", "seed",
    "max_tokens", "max_completion_tokens", "add_special_tokens", "chat_template_kwargs",
)  # fmt: skip
_OF_TEMPLATES = (
    "conversation", "messages", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message",
    "padding", "truncation", "max_length", "return_tensors", "return_dict",
)  # fmt: skip
DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Question:
    """How a model of an entry is asked: through a plugin (None: through none) about things such as `example`.

    responses: whole responses in its text; room: tokens behind it, which the model writes or needs.
    """

    model: ModelKeys
    plugin: Plugin | None = None
    example: Any = "x"
    responses: int = 1
    room: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelKeys(Keys):
    """Which model, where it runs, and what it may take there.

    writes: it is asked for texts; scores_steps: for a number at each step of a text; otherwise for its head's number.
    """

    asks_models: ClassVar[bool] = True
    writes: ClassVar[bool] = False
    scores_steps: ClassVar[bool] = False

    model: str = key(help="folder, hub name, or name at the server")
    revision: str | None = key(None, "revision of a hub model")
    tokenizer: str | None = key(None, "folder or hub name of the tokenizer (default: the model's own)")
    place: str | None = key(
        None,
        "where the model runs: an engine of the run (vLLM), this process (small models), or a server, which url names "
        "(default: engine, or server with a url)",
        choices=PLACES,
    )
    # a server
    url: str | None = key(None, "base address of an OpenAI-compatible server, http://HOST:PORT/v1")
    api: str | None = key(
        None,
        "how a server is asked for judges. completions: with the plugin's prompt as it is, chat template included; "
        "chat: with the prompt as a user's message, around which it puts the template; the plugin's tokenizer is None "
        "(default: completions where tokenizer is named, else chat)",
        choices=APIS,
    )
    head: str = key(
        "classify", "how a server is asked for heads: vLLM has the first two, SGLang the third", choices=HEADS
    )
    api_key_env: str = key("OGER_JUDGE_API_KEY", "environment variable with the server's API key, if it needs one")
    concurrency: int = key(16, "most concurrent requests", range=COUNT)
    requests_per_minute: float | None = key(None, "most requests per minute (default: no limit)", range=POSITIVE)
    request_limit_s: float = key(120.0, "timeout of one request, in seconds", range=POSITIVE)
    attempts: int = key(6, "attempts per request, with backoff between them", range=COUNT)
    step_limit_s: float = key(
        3600.0,
        "timeout for all requests of a step, in seconds; requests still open then have failed",
        range=POSITIVE,
    )
    # an engine
    tensor_parallel_size: int = key(1, "GPUs that share the engine", range=COUNT)
    gpu_memory_utilization: float = key(0.8, "share of these GPUs' memory for the engine", range=PART)
    max_model_len: int | None = key(None, "longest sequence, prompt and reply (default: the model's)", range=COUNT)
    dtype: str = key("auto", "type of the weights; auto: the model's own, float32 on CPUs", choices=DTYPES)
    cache: bool = key(True, "cache replies and reuse them for the same question, also in other runs")
    on_overflow: str = key(
        "worst",
        "value of a row whose text is longer than the model reads. worst: the worst value of the source; truncate "
        "(tags and token heads of kind process): steps within the window keep their scores, later ones get the worst; "
        "drop_group: its group has no advantage in this step",
        choices=ON_OVERFLOW,
    )

    @property
    def truncates(self) -> bool:
        """Whether a text may be cut where the model's window ends, and still be judged."""
        return False

    @property
    def runs_on(self) -> str:
        """The place, one of PLACES."""
        return self.place or ("server" if self.url else "engine")

    @property
    def is_loaded_by_us(self) -> bool:
        """Whether code of this recipe stands in for code that the model may bring (step_models.py, or vLLM's own)."""
        return False

    @property
    def models(self) -> tuple[ModelKeys, ...]:
        """The models of the entry, each with its own keys."""
        return (self,)

    @property
    def is_served(self) -> bool:
        """Whether all models of the entry are at servers."""
        return all(model.runs_on == "server" for model in self.models)

    def questions(self) -> list[Question]:
        """Return how each of the entry's models is asked; start nothing."""
        return [Question(model) for model in self.models]

    def try_out(self, place: Place) -> Reply:
        """Ask the model, in its place, the shortest question of its kind."""
        (reply,) = place.classify(["Hello."])
        return reply

    @property
    def drops_overflow(self) -> bool:
        return self.on_overflow == "drop_group"

    @property
    def prm(self) -> ProcessKeys:
        """These keys, where the model scores steps."""
        raise TypeError(f"{self.model} scores no steps")

    @property
    def request(self) -> Mapping[str, Any]:
        """Fields of a server's requests beside the recipe's own."""
        return {}

    def of_engine(self) -> ModelKeys:
        """Return the keys that entries which share its engine have in common."""
        return ModelKeys(**{name: getattr(self, name) for name in _SHARED_BY_ENTRIES})

    @property
    def tokenizer_files(self) -> tuple[str, str | None]:
        """Folder or hub name of the tokenizer, and its revision: the model's, where it is the model's own."""
        name = self.tokenizer or self.model
        return name, self.revision if name == self.model else None

    @property
    def chats(self) -> bool:
        """Whether it writes, and its chat template is a server's."""
        return False

    @property
    def of_chat_template(self) -> tuple[str | None, Mapping[str, Any]] | None:
        """Its system prompt, and further arguments of its chat template, where there are any."""
        return None

    def combined(self) -> Iterator[str]:
        if (self.runs_on == "server") != (self.url is not None):
            yield f"place {self.runs_on} {'needs a' if self.url is None else 'has no'} url"
        for each in fields(ModelKeys):
            if getattr(self, each.name) == each.default:
                continue
            if each.name in OF_A_SERVER and not self.urls:
                yield f"{each.name} is for a server: give a url, or leave it out"
            elif each.name in OF_A_MODEL_HERE and self.url is not None:
                yield f"the server decides {each.name}: leave it out, or leave out url"
            elif each.name in _OF_AN_ENGINE and self.runs_on == "in_process":
                yield f"{each.name} is for an engine, and place is in_process: leave it out"
        if self.on_overflow == "truncate" and not self.truncates:
            yield (
                "on_overflow truncate is for scorers step_tag and token_head of kind process, in this process or an "
                "engine: other scorers need the end of the text; use worst, or drop_group"
            )
        if not _VARIABLE.fullmatch(self.api_key_env):  # not shown: it may be a key
            yield "api_key_env must be the name of an environment variable: capitals, digits and '_'"
        else:
            yield from _of_addresses(self.urls, self.api_key_env)

    @property
    def urls(self) -> dict[str, str]:
        """The addresses of servers, by key."""
        return {"url": self.url} if self.url is not None else {}


def _of_addresses(urls: Mapping[str, str], api_key_env: str) -> Iterator[str]:
    if urls:
        from oger_recipe.base.endpoint import checked_address  # loads httpx
    for name, url in urls.items():
        try:
            checked_address(url, api_key_env)
        except ValueError as error:
            yield f"{name}: {error}"


@dataclass(frozen=True, kw_only=True)
class ChatKeys(ModelKeys):
    """A model that writes, and what is said to it beside the plugin's prompt."""

    system_prompt: str | None = key(None, "system message before the plugin's prompt, in the judge's chat template")
    chat_template_kwargs: Mapping[str, Any] | None = key(
        None, "extra arguments of the judge's chat template, such as {enable_thinking: false}"
    )
    extra_body: Mapping[str, Any] | None = key(
        None, "extra fields of requests to a server, such as {top_k: 20, reasoning_effort: low}"
    )
    top_p: float = key(1.0, "top-p (nucleus) of the judge", range=PART)
    max_new_tokens: int = key(1024, "longest reply", range=COUNT)

    @property
    def request(self) -> Mapping[str, Any]:
        return self.extra_body or {}

    @property
    def chats(self) -> bool:
        by_chat = self.tokenizer is None if self.api is None else self.api == "chat"
        return self.runs_on == "server" and by_chat

    @property
    def of_chat_template(self) -> tuple[str | None, Mapping[str, Any]] | None:
        has_any = self.system_prompt is not None or self.chat_template_kwargs
        return (self.system_prompt, self.chat_template_kwargs or {}) if has_any else None

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.chats and self.tokenizer is not None:
            yield "tokenizer is read by plugins of api completions; with api chat leave it out"
        if self.extra_body is not None and not self.urls:
            yield "extra_body is for a server: give a url, or leave it out"
        for name, reserved in (("extra_body", _OF_REQUESTS), ("chat_template_kwargs", _OF_TEMPLATES)):
            if taken := [each for each in getattr(self, name) or () if each in reserved]:
                yield f"{name} must not have {', '.join(taken)}, which other keys or the recipe set: leave it out"


@dataclass(frozen=True, kw_only=True)
class PromptKeys(ModelKeys):
    """A model that reads a prompt of the data."""

    prompt_column: str | None = key(
        None,
        "column of the data with the model's prompt (default: rm_prompt if there is one, else the problem)",
        column="text",
    )


@dataclass(frozen=True, kw_only=True)
class PluginKeys(PromptKeys):
    """A model that is asked through a plugin."""

    plugin_limit_s: float = key(
        60.0, "time limit of each of the plugin's functions for the rows of a step, in seconds", range=POSITIVE
    )
    plugin_memory_limit_mb: int = key(
        8192, "memory limit: MiB of address space that the plugin may add after loading", range=COUNT
    )

    def plugin_at(
        self, path: Path, needed: Mapping[str, int], judges: str = "responses", example: Example | None = EXAMPLE
    ) -> Plugin:
        """Make the plugin of a file, with the model's tokenizer; see `Plugin`.

        The example is for plugins that may not ask as the entry says: without a tokenizer, or in a chat template that
        the entry changes.
        """
        tokenizer, revision = (None, None) if self.chats else self.tokenizer_files
        chat = None if self.chats else self.of_chat_template
        return Plugin(
            path,
            tokenizer,
            revision,
            self.plugin_limit_s,
            needed,
            memory_limit_mb=self.plugin_memory_limit_mb,
            judges=judges,
            chat=chat,
            example=example if tokenizer is None or chat is not None else None,
        )


@dataclass(frozen=True, kw_only=True)
class ValueKeys(PluginKeys):
    """A kind with one value for each response, which `oger judge-eval` can hold against labels.

    threshold: the least value that says label 1; None: it compares pairs of answers.
    """

    threshold: ClassVar[float | None] = 0.5

    @property
    def reads_rubric(self) -> str | None:
        """The column with the rubric that it holds answers against."""
        return None

    def reward_model(self, spec: SourceSpec, surroundings: Surroundings) -> RewardModel:
        """Make the judge or the head."""
        raise NotImplementedError

    def source(self, spec: SourceSpec, surroundings: Surroundings) -> Source:
        return self.asking(partial(self.ask_model, self.reward_model(spec, surroundings)))

    def asking(self, ask: Ask) -> Source:
        """Make a source that asks about what is `judged_of` each row."""
        return ModelSource(self.prompt_column, self.is_served, ask, self.judged_of)

    def judged_of(self, group: Group, row: int) -> Any:
        """Return what the model judges of a row, or a Reply that says why there is nothing."""
        return group.responses[row]

    def ask_model(
        self, model: RewardModel, prompts: Sequence[str], judged: Sequence[Any]
    ) -> tuple[Sequence[Judged], Metrics]:
        """Ask about all of `judged` at once; return what came of each, and the step's metrics."""
        said = model.judge(prompts, judged)
        return said, self.metrics(said)

    def metrics(self, judged: Sequence[Judged]) -> Metrics:
        return shares(judged)


@dataclass(frozen=True, kw_only=True)
class WriterKeys(ChatKeys, PluginKeys):
    """A model that writes."""

    writes: ClassVar[bool] = True

    temperature: float = key(0.0, "sampling temperature of the judge; 0 is greedy", range=WEIGHT)

    def try_out(self, place: Place) -> Reply:
        (reply,) = place.generate(["Hello."], Sampling(max_new_tokens=1))
        return reply

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.head != ModelKeys.head:
            yield "head is for kinds with a head; judges are asked as api says"

    def sampling(self, *seed: object) -> Sampling:
        """Return how it writes, seeded by these parts if it samples at all."""
        drawn = stable_seed(*seed) if self.temperature else None
        return Sampling(self.temperature, self.top_p, self.max_new_tokens, drawn)


SCALES = ("probability", "difference")


@dataclass(frozen=True, kw_only=True)
class StepKeys(ModelKeys):
    """A model that scores steps of reasoning."""

    reads_steps: ClassVar[bool] = True
    if_below: ClassVar[str] = "wrong steps would be paid more than right ones"

    scorer: str | None = key(
        None,
        "what the model is. step_tag: it writes, and its logits of two tokens at a tag after each step are compared; "
        "token_head: its head labels tokens; implicit: it is compared with a reference; judge: it writes about the "
        "steps (default: the format's)",
        choices=(*SCORERS, "implicit", "judge"),
    )
    scale: str = key(
        "probability",
        "score of a step. probability: P(good), 0 to 1; difference: P(good) - P(bad), -1 to 1",
        choices=SCALES,
    )
    credit: str = key(
        "sum",
        "reward of a step, for step estimators. sum: its score; min: its score times its share in a softmax of "
        "-score / temperature, so that a row's rewards add up to about the lowest score; min_ahead: by how much the "
        "step lowers that about-lowest score of the steps from it on",
        choices=CREDITS,
    )
    temperature: float = key(
        0.1, "temperature of credits min and min_ahead: the lower, the more the lowest score counts", range=POSITIVE
    )
    aggregate: str = key("min", "how to aggregate the scores of a row's steps", choices=AGGREGATES)

    @classmethod
    def refusals(cls, entry: Mapping[str, Any]) -> Iterator[str]:
        yield from super().refusals(entry)
        if entry.get("combine") == "mul" and entry.get("scale") == "difference":
            yield f"combine mul with scale difference: {FLIPS}; use combine add, or scale probability"

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Those of a one-step row."""
        return (-1.0 if self.scale == "difference" else 0.0), 1.0

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.api is not None and self.scorer != "judge":
            yield "api is for judges; leave it out"
        if self.head != ModelKeys.head:
            yield "head is for kinds with one number; a PRM's server is asked at /pooling: leave it out"
        if self.credit == "sum" and self.temperature != StepKeys.temperature:
            other = "; how a judge samples is sampling_temperature" if self.scorer == "judge" else ""
            yield f"temperature is for credits min and min_ahead{other}"
        if self.aggregate == "product" and self.scale == "difference":
            yield "aggregate product with scale difference: two bad steps would make a good row; use scale probability"


@dataclass(frozen=True, kw_only=True)
class ProcessKeys(StepKeys, PromptKeys):
    """A process reward model (PRM): a score for each step of reasoning, at tags or by labels."""

    scores_steps: ClassVar[bool] = True

    format: str | None = key(
        None,
        "how question and steps are written, as in this PRM's training; it also sets scorer, tag, good, bad and "
        "good_label unless the entry does",
        choices=FORMATS,
    )
    tag: str | int | None = key(
        None,
        "text after each step at which the model gives its score, or a token's id (default: the format's)",
        range=COUNT_OR_NONE,
    )
    good: str | int | None = key(
        None, "token for a good step, its text or its id (default: the format's)", range=COUNT_OR_NONE
    )
    bad: str | int | None = key(
        None, "token for a bad step, its text or its id (default: the format's)", range=COUNT_OR_NONE
    )
    good_label: int | None = key(
        None, "number of the head's label for a good step, from 0 (default: the format's)", range=COUNT_OR_NONE
    )
    adapter: str | None = key(None, "folder or hub name of a LoRA adapter (peft) on top of the model")

    @property
    def written(self) -> Format:
        """How a text is written and read: the format with what the entry says in place of it."""
        names = ("scorer", "tag", "good", "bad", "good_label")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(FORMATS[self.format or "math_shepherd"], **own)

    @property
    def truncates(self) -> bool:
        return self.runs_on != "server"

    @property
    def prm(self) -> ProcessKeys:
        return self

    def try_out(self, place: Place) -> Reply:
        (reply,) = place.classify_steps([StepPrompt(tokens=(0, 1), ends=(1,))])
        return reply

    @property
    def is_loaded_by_us(self) -> bool:
        return self.format is not None and self.written.scorer == "token_head"

    def of_engine(self) -> ProcessKeys:
        shared = {name: getattr(self, name) for name in _SHARED_BY_ENTRIES}
        return ProcessKeys(**shared, format=self.format, **self.read)

    @property
    def read(self) -> dict[str, Any]:
        """Keys that, beside the model, decide what it says of tokens."""
        form = self.written
        if form.scorer == "step_tag":
            return {"scorer": form.scorer, "good": form.good, "bad": form.bad, "adapter": self.adapter}
        return {"scorer": form.scorer, "good_label": form.good_label, "adapter": self.adapter}

    def combined(self) -> Iterator[str]:
        yield from super().combined()
        if self.format is None:
            yield f"format is missing: one of {', '.join(FORMATS)}"
            return
        form = self.written
        yield from form.problems(self.format)
        for name in ("good_label",) if form.scorer == "step_tag" else ("good", "bad"):
            if getattr(self, name) is not None:
                yield f"{name} is for the other scorer, and this is a {form.scorer}"
        if self.tensor_parallel_size > 1 and form.scorer == "step_tag":
            yield (
                "tensor_parallel_size: vLLM looks for good and bad in one GPU's share of the vocabulary, so a PRM of "
                "scorer step_tag has one GPU; leave it out"
            )
        if self.adapter is not None and self.url is not None:
            yield "the server decides the adapter: leave it out, or leave out url"
