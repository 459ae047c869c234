"""The process of a reward model: a vLLM engine that writes replies, or reads the number of a head."""

from __future__ import annotations

import functools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray

from oger_recipe.base.cpu import ROWS, engine_arguments, free_memory, is_without_cuda, main_memory
from oger_recipe.base.imports import without_garbage_collection
from oger_recipe.base.remote_code import may_run
from oger_recipe.models.keys import ModelKeys
from oger_recipe.models.likelihood import likelihood_reply
from oger_recipe.models.step_models import step_arguments, step_reply, without_adapter
from oger_recipe.models.tokens import tokens_of
from oger_recipe.rewards.place import Reply, Sampling, StepPrompt
from oger_recipe.rewards.sources import ANSWER, OVERFLOW

_EVERY_S = 1.0  # between two signs of life
_SHOWN = 500  # characters of a reason

Numbered = list[tuple[int, Reply]]


class CannotLoad(Exception):
    """vLLM's reason, in one line: its own exceptions do not all travel between processes."""


class _TooLong(ValueError):
    """A prompt is longer than the model reads."""


class Memory(NamedTuple):
    """Main memory of an engine's machine, in bytes: what its process has, what is free, and what there is in all."""

    taken: int
    free: int
    there: int


class JudgeActor:
    """A model in vLLM, of one process on a CPU. Its answers are streams of lists of (position, reply); a list may be
    empty: then it is a sign of life."""

    def __init__(self, keys: ModelKeys, *, share: float, bundles: list[int] | None) -> None:
        """Tell vLLM its GPUs. share: of each, as Ray counts; bundles: of the placement group, if several."""
        self._keys, self._cpu, self._bundles = keys, is_without_cuda(), bundles
        if bundles is not None:
            os.environ["VLLM_RAY_PER_WORKER_GPUS"] = str(share)
            os.environ["VLLM_RAY_BUNDLE_INDICES"] = ",".join(map(str, bundles))
        elif not self._cpu:  # where the user keeps Ray from saying so (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES)
            os.environ["CUDA_VISIBLE_DEVICES"] = str(ray.get_gpu_ids()[0])

    def load(self) -> int:
        """Load the model and return this process's pid. Raises CannotLoad."""
        try:
            self._load()
        except Exception as error:  # whatever can be wrong with a model's files, or with the room for it
            raise CannotLoad(f"{type(error).__name__}: {' '.join(str(error).split())}"[:_SHOWN]) from None
        return os.getpid()

    def _load(self) -> None:
        """Load the model; an adapter is merged into files that are there until then."""
        with tempfile.TemporaryDirectory(prefix="oger-prm-") as folder:
            keys = self._keys
            if keys.scores_steps and keys.prm.adapter is not None:
                keys = without_adapter(keys.prm, Path(folder))
            self._start(keys)

    def _start(self, keys: ModelKeys) -> None:
        with without_garbage_collection():  # and here: who only starts this actor does without vLLM
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

        arguments = model_arguments(keys, cpu=self._cpu)
        if self._cpu:
            length = keys.max_model_len or EngineArgs(**arguments).create_model_config().max_model_len
            float32 = arguments["dtype"] == "float32"
            arguments |= engine_arguments(keys.model, length, revision=keys.revision, float32=float32)
        else:
            arguments |= {"gpu_memory_utilization": keys.gpu_memory_utilization, "max_num_seqs": ROWS}
            arguments |= {"enable_sleep_mode": True}
        self._engine: Any = LLMEngine.from_engine_args(
            EngineArgs(
                **arguments,
                tensor_parallel_size=keys.tensor_parallel_size,
                distributed_executor_backend="uni" if self._bundles is None else "ray",
                enforce_eager=self._cpu,
                disable_log_stats=True,
            )
        )
        self._tokenizer: Any = self._engine.get_tokenizer()
        self._longest = self._engine.model_config.max_model_len

    def rest(self) -> Memory:
        """Give GPU memory back; return the state of main memory."""
        if not self._cpu:
            self._engine.sleep(level=1)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return Memory(pages * os.sysconf("SC_PAGE_SIZE"), free_memory(), main_memory())

    def wake_up(self) -> None:
        if not self._cpu:
            self._engine.wake_up()

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> Iterator[Numbered]:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        def params(prompt: str) -> Any:
            return SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                seed=sampling.seed_of(prompt),
                output_kind=RequestOutputKind.FINAL_ONLY,
            )

        return self._answers([*map(self._tokens, prompts)], [*map(params, prompts)], [_written] * len(prompts), room=1)

    def classify(self, prompts: Sequence[str]) -> Iterator[Numbered]:
        from vllm import PoolingParams

        # Some heads have a number for every token, and no other: vLLM then lacks the first of these tasks.
        task: Any = "classify" if "classify" in self._engine.get_supported_tasks() else "token_classify"

        params = [PoolingParams(task=task, use_activation=False) for _ in prompts]
        return self._answers([*map(self._tokens, prompts)], params, [_measured] * len(prompts), room=0)

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> Iterator[Numbered]:
        from vllm import PoolingParams

        params = [PoolingParams(task="token_classify", use_activation=False) for _ in prompts]
        reads = [functools.partial(self._steps, prompt) for prompt in prompts]
        return self._answers([list(prompt.tokens) for prompt in prompts], params, reads, room=0)

    def _steps(self, prompt: StepPrompt, output: Any) -> Reply:
        data = output.outputs.data
        if len(data) != len(prompt.tokens):
            return Reply(error=f"vLLM gives {len(data)} numbers or rows of them for {len(prompt.tokens)} tokens")
        return step_reply(self._keys.prm, data[list(prompt.ends)].float())

    def log_probs(self, prompts: Sequence[StepPrompt]) -> Iterator[Numbered]:
        """Read prompts' log-probabilities. vLLM gives them with a reply alone, so that one token is written."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY
        )
        reads = [functools.partial(_likelihood, prompt) for prompt in prompts]
        return self._answers([list(prompt.tokens) for prompt in prompts], [params] * len(prompts), reads, room=1)

    def _answers(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[Any],
        reads: Sequence[Callable[[Any], Reply]],
        *,
        room: int,
    ) -> Iterator[Numbered]:
        """Yield replies as they come; ``room``: tokens that a reply takes at least."""
        ready: Numbered = []
        for number, tokens in enumerate(prompts):
            try:
                self._require_room(tokens, room)
                self._engine.add_request(str(number), {"prompt_token_ids": tokens}, params[number])
            except _TooLong as error:
                ready.append((number, Reply(error=str(error), cause=OVERFLOW)))
            except Exception as error:  # whatever vLLM has against this prompt
                ready.append((number, Reply(error=str(error), cause=ANSWER)))
        said = -math.inf
        while self._engine.has_unfinished_requests():
            done = [(int(output.request_id), output) for output in self._engine.step() if output.finished]
            ready += [(number, reads[number](output)) for number, output in done]
            if time.monotonic() - said >= _EVERY_S:
                said = time.monotonic()
                yield ready
                ready = []
        yield ready

    def _tokens(self, prompt: str) -> list[int]:
        return tokens_of(self._tokenizer, prompt)

    def _require_room(self, tokens: Sequence[int], room: int) -> None:
        """Raise _TooLong where a prompt leaves no ``room``."""
        if len(tokens) + room > self._longest:
            raise _TooLong(
                f"the prompt has {len(tokens)} tokens, and {self._keys.model} reads {self._longest} in all "
                "(max_model_len)"
            )


def model_arguments(keys: ModelKeys, *, cpu: bool) -> dict[str, Any]:
    """Return vLLM's arguments that say which model, and as what."""
    return plain_arguments(keys, cpu=cpu) | (step_arguments(keys.prm) if keys.scores_steps else {})


def plain_arguments(keys: ModelKeys, *, cpu: bool) -> dict[str, Any]:
    """Return the arguments that leave to vLLM what it makes of the model's files."""
    return {
        "model": keys.model,
        "revision": keys.revision,
        "tokenizer": keys.tokenizer,
        "tokenizer_revision": None if keys.tokenizer else keys.revision,
        "max_model_len": keys.max_model_len,
        "dtype": "float32" if cpu and keys.dtype == "auto" else keys.dtype,
        "trust_remote_code": may_run(),
    }


def _written(output: Any) -> Reply:
    (text,) = output.outputs
    return Reply(text.text, cut=text.finish_reason == "length")


def _likelihood(prompt: StepPrompt, output: Any) -> Reply:
    begin = prompt.ends[0] + 1
    of_tokens = zip(prompt.tokens[begin:], output.prompt_logprobs[begin:], strict=True)
    return likelihood_reply(prompt, [said[token].logprob for token, said in of_tokens])


def _measured(output: Any) -> Reply:
    """Read a head's number. Where it has some for every token, [tokens, numbers], those of the last one count."""
    data = output.outputs.data
    numbers = (data[-1] if data.dim() > 1 else data).tolist()
    if len(numbers) != 1:
        return Reply(error=f"its head gives {len(numbers)} numbers, and a reward model's gives one")
    (value,) = numbers
    return Reply(value=value) if math.isfinite(value) else Reply(error=f"its head gives {value}", cause=ANSWER)
