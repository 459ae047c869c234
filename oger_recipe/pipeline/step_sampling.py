"""One response, sampled at once or step by step, which ends where the rule of steps ends it.

Both ways give the same response where nothing is drawn by chance: requests are cut into steps afterwards by one rule,
and a request that stops too late or too early changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from oger_recipe.base.cutting import StepSampling, end_of, open_tokens, token_bytes
from oger_recipe.base.seeds import stable_seed


class SteppedResponse:
    """A response in the making: ask the engine for `request` and `take` what it returns until there is a
    `finish_reason`.

    tokens, log_probs: what was sampled so far; finish_reason: vLLM's, or "length" where the cap of steps ended the
    response and "stop" where the last step's text did. before: a teacher's tokens at the end of the prompt, which the
    response begins with: they count as steps, and none of them is cut off.
    """

    def __init__(
        self, prompt: Sequence[int], params: Any, tokenizer: Any, steps: StepSampling, before: Sequence[int] = ()
    ) -> None:
        self._prompt, self._params, self._tokenizer, self._steps = list(prompt), params, tokenizer, steps
        self._before, self._requests, self._asked = list(before), 0, 0
        self.tokens: list[int] = []
        self.log_probs: list[Any] = []
        self.finish_reason: str | None = None
        self._end(None)

    def request(self) -> tuple[list[int], Any]:
        """Return the tokens of the next request, and its parameters."""
        params = self._params.clone()
        params.max_tokens -= len(self.tokens)
        if self._steps.by_step:
            self._ask_for_a_step(params)
        self._asked = params.max_tokens
        return self._prompt + self.tokens, params

    def _ask_for_a_step(self, params: Any) -> None:
        rule = self._steps.rule
        params.min_tokens = max(params.min_tokens - len(self.tokens), 0)
        if params.seed is not None:
            params.seed = stable_seed(params.seed, self._requests)
        if rule.max_step_tokens is not None:
            begun = open_tokens(self._before + self.tokens, self._tokenizer, rule)
            params.max_tokens = min(params.max_tokens, rule.max_step_tokens - begun)
            params.min_tokens = min(params.min_tokens, params.max_tokens)
        if rule.delimiters:
            params.stop, params.detokenize = [*(params.stop or ()), *rule.delimiters], True
        if rule.delimiter_token_ids and params.min_tokens:  # vLLM draws no token that stops before this many
            params.max_tokens = params.min_tokens
        elif rule.delimiter_token_ids:
            params.stop_token_ids = [*(params.stop_token_ids or ()), *rule.delimiter_token_ids]

    def take(self, output: Any) -> None:
        """Add what the engine returned to the last request, vLLM's CompletionOutput."""
        self._requests += 1
        self.tokens += output.token_ids
        self.log_probs += output.logprobs if output.logprobs is not None else []
        is_cut = output.finish_reason == "length" and len(output.token_ids) < self._asked  # by the engine's context
        if is_cut or output.finish_reason not in ("stop", "length"):  # aborted
            self.finish_reason = output.finish_reason
        else:
            self._end(self._stopped(output))

    def _stopped(self, output: Any) -> int | None:
        """Return after how many tokens the policy ended the response; None: it did not."""
        if not self._steps.by_step:
            return len(self.tokens) if output.finish_reason == "stop" else None
        stop_text = self._behind_stop_text()
        if stop_text is not None or output.finish_reason == "length":
            return stop_text
        ids = set(self._steps.rule.delimiter_token_ids) - set(self._params.stop_token_ids or ())
        delimits = output.stop_reason in ids or output.stop_reason in self._steps.rule.delimiters
        return None if delimits else len(self.tokens)

    def _behind_stop_text(self) -> int | None:
        """Count the tokens up to the first stop text, else None: it may begin in one request and end in another."""
        stops = [each.encode() for each in self._params.stop or ()]
        if not stops:
            return None
        pieces = token_bytes(self._tokenizer, self.tokens, skip_special_tokens=self._params.skip_special_tokens)
        text, least = b"".join(pieces), sum(map(len, pieces[: self._params.min_tokens]))
        begins = [(text.find(each, max(least - len(each) + 1, 0)), len(each)) for each in stops]
        end = min((begin + length for begin, length in begins if begin >= 0), default=None)
        read = accumulate(map(len, pieces))
        return None if end is None else next(place for place, bytes in enumerate(read, start=1) if bytes >= end)

    def _end(self, stopped: int | None) -> None:
        """End the response where it ends first: by the policy, by the rule of steps, or at its longest length."""
        rule, before = self._steps.rule, len(self._before)
        end = end_of(self._before + self.tokens, self._tokenizer, rule)
        if stopped is not None and (end is None or stopped <= end.tokens - before):
            self._cut(stopped, "stop")
        elif end is not None:
            self._cut(max(end.tokens - before, 0), "length" if end.truncated else "stop")
        elif len(self.tokens) >= self._params.max_tokens:
            self.finish_reason = "length"

    def _cut(self, length: int, finish_reason: str) -> None:
        self.tokens, self.log_probs = self.tokens[:length], self.log_probs[:length]
        self.finish_reason = finish_reason
