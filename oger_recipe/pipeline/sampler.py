"""Answers from vLLM, in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.base.cutting import StepSampling
from oger_recipe.base.errors import RecipeError
from oger_recipe.evaluation.sampling import Model, Request, Response, Sampling
from oger_recipe.pipeline.step_sampling import SteppedResponse


class Sampler:
    """A model in vLLM: ask its `context`, `load` it, `generate`.

    Every request has a seed of its own, so that what is drawn depends on no other request: neither on their order nor
    on the batch size, up to floating-point sums that differ by batch (float32 makes them rare).
    """

    def __init__(self, model: Model) -> None:
        import torch

        self.model = model
        self._cpu = not torch.cuda.is_available()
        if self._cpu and model.tensor_parallel_size > 1:
            raise RecipeError("tensor_parallel_size is for machines with CUDA; use 1")
        self._engine: Any = None

    @property
    def dtype(self) -> str:
        """``auto`` is the model's own dtype, but float32 on CPUs."""
        return "float32" if self._cpu and self.model.dtype == "auto" else self.model.dtype

    def context(self) -> int:
        """Return the model's longest sequence, in tokens. Raises RecipeError for a model that vLLM does not know."""
        for name, value in (CPU_ENVIRONMENT if self._cpu else {}).items():
            os.environ.setdefault(name, value)  # vLLM reads them when it is imported
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR" if self._cpu else "WARNING")  # it warns of all the above
        from vllm.engine.arg_utils import EngineArgs

        try:
            length: int = EngineArgs(**self._arguments()).create_model_config().max_model_len
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise RecipeError(f"{self.model.name} is not a model that vLLM can load: {reason}") from None
        return length

    def load(self, max_model_len: int) -> None:
        """Load the model for sequences of at most ``max_model_len`` tokens; the shorter, the more fit at a time."""
        from vllm import LLM

        if self._cpu:
            from oger_recipe.patches import torch_cpu_products

            torch_cpu_products.apply()  # as in a run's engines: the same answers
        self._engine = LLM(
            **self._arguments(),
            max_model_len=max_model_len,
            max_num_seqs=self.model.batch_size,
            tensor_parallel_size=self.model.tensor_parallel_size,
            gpu_memory_utilization=self.model.gpu_memory_utilization,
            enforce_eager=self._cpu,
            # A seeded request whose prompt is cut in two needs a generator that can be set back; the CPU's cannot.
            enable_chunked_prefill=False if self._cpu else None,
            disable_log_stats=True,
            use_tqdm_on_load=sys.stderr.isatty(),
        )

    def generate(self, requests: Sequence[Request], sampling: Sampling, name: str) -> list[Response]:
        """Draw one response for each request, in their order, with a progress bar on a terminal."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=request.max_new_tokens,
                seed=request.seed,
                stop=list(sampling.stop) or None,
                stop_token_ids=list(sampling.stop_token_ids) or None,
                include_stop_str_in_output=True,
            )
            for request in requests
        ]

        if sampling.steps is not None:
            return self._in_steps(requests, params, sampling.steps, name)
        answers = self._answers([request.tokens for request in requests], params, name)
        return [Response(each.text, len(each.token_ids), each.finish_reason == "length") for each in answers]

    def _answers(self, prompts: Sequence[list[int]], params: Sequence[Any], name: str) -> list[Any]:
        def bar(*args: Any, desc: str, **kwargs: Any) -> tqdm:
            return tqdm(*args, desc=f"{name}: {desc.lower()}", leave=False, **kwargs)

        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._engine.generate(asked, params, use_tqdm=bar if sys.stderr.isatty() else False)
        return [output.outputs[0] for output in outputs]

    def _in_steps(
        self, requests: Sequence[Request], params: Sequence[Any], steps: StepSampling, name: str
    ) -> list[Response]:
        """Draw responses that the rule of steps ends; where it is step by step, the next one of all at a time."""
        tokenizer = self._engine.get_tokenizer()
        responses = [
            SteppedResponse(request.tokens, each, tokenizer, steps)
            for request, each in zip(requests, params, strict=True)
        ]
        while going_on := [each for each in responses if each.finish_reason is None]:
            prompts, asked = zip(*(each.request() for each in going_on), strict=True)
            for each, answer in zip(going_on, self._answers(prompts, asked, name), strict=True):
                each.take(answer)
        texts = tokenizer.batch_decode([each.tokens for each in responses], skip_special_tokens=True)
        return [
            Response(text, len(each.tokens), each.finish_reason == "length")
            for text, each in zip(texts, responses, strict=True)
        ]

    def _arguments(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "revision": self.model.revision,
            "tokenizer_revision": self.model.revision,
            "dtype": self.dtype,
            "trust_remote_code": self.model.trust_remote_code,
        }
