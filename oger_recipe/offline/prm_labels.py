"""Labels of steps that nobody has to write: by rollouts from a step, or by Countdown's arithmetic.

By rollouts (Math-Shepherd, arXiv 2312.08935): a policy goes on from behind each step several times; the step is good
if any of these responses is right (hard estimation), or as good as the share that is (soft). The last step of a
response is as right as the response.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from oger_recipe.base.cutting import StepRule, cut_text
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import append_json, read_jsonl, to_json
from oger_recipe.base.progress import Progress
from oger_recipe.base.remote_code import policy_models
from oger_recipe.base.seeds import stable_seed
from oger_recipe.checks.settings import require_loadable
from oger_recipe.data.labelled_steps import Label, Solution, stepwise_record
from oger_recipe.data.responses import Response
from oger_recipe.data.rows import Row
from oger_recipe.evaluation.prompts import prompt_tokens
from oger_recipe.evaluation.sampling import Model, Request, Sampling
from oger_recipe.grading.pool import GradingPool
from oger_recipe.grading.rules import question_of
from oger_recipe.grading.verdict import Graded
from oger_recipe.offline.shared import Settings, checked, rows_and_responses
from oger_recipe.run.inputs import grading_settings, preparation, with_task
from oger_recipe.settings.steps import StepSettings

_AT_A_TIME = 64  # responses between two moments at which labels are put on disk


@dataclass(frozen=True)
class Labelling:
    """estimate: one of ESTIMATES; model and sampling: of the rollouts; the model is the policy of the settings."""

    estimate: str
    model: Model
    sampling: Sampling


def label(value: Settings, file: Path, how: Labelling, out: Path) -> str:
    """Label each step of the responses in a file, write them as stepwise supervision, and return a sentence.
    ``OUT.partial`` keeps what is labelled until all is; the same command goes on from there.

    Raises RecipeError for what is wrong, before any model is loaded.
    """
    value = checked(value)
    if not value["actor.model_name_or_path"] and value["oger.task.name"] is None:
        raise RecipeError("actor.model_name_or_path is not set: labels come from rollouts of that policy")
    value = with_task(value)
    require_loadable(value, policy_models(value))
    how = replace(how, model=replace(how.model, name=value["actor.model_name_or_path"]))
    rows, responses = rows_and_responses(value, file)
    rule = _rule(value)
    partial = out.with_name(f"{out.name}.partial")
    done = _done(partial, value, how, rule, responses)
    if done:
        print(f"{done} of {len(responses)} responses are labelled already", flush=True)
    left = responses[done:]
    if left:
        answered = [rows[response.uid] for response in left]
        with (
            GradingPool(grading_settings(value, answered)) as pool,
            Progress("labels", "responses", len(left)) as shown,
        ):
            labeller = _Labeller(value, how, rule, rows, pool, left)
            for start in range(0, len(left), _AT_A_TIME):
                part = left[start : start + _AT_A_TIME]
                for solution in labeller.labelled(part):
                    append_json(partial, stepwise_record(solution))
                shown.add(len(part))
    lines = [line for line in read_jsonl(partial)[1:] if line["completions"]]
    partial.write_text("".join(to_json(line) + "\n" for line in lines), encoding="utf-8")
    partial.replace(out)
    return _summary(lines)


def _rule(value: Settings) -> StepRule:
    """Return the rule; raise RecipeError if it needs tokens, which a text in a file has not."""
    rule = StepSettings.of(value).rule
    if rule.delimiter_token_ids or rule.max_step_tokens:
        raise RecipeError(
            "oger.steps.delimiter_token_ids and max_step_tokens cut tokens, and these responses are texts: set "
            "oger.steps.delimiters"
        )
    return rule


def _done(partial: Path, value: Settings, how: Labelling, rule: StepRule, responses: Sequence[Response]) -> int:
    """Count the responses labelled in the partial file, which is begun where there is none.

    Raises RecipeError for one of other responses or settings.
    """
    texts = json.dumps([[each.uid, each.text] for each in responses])
    settings = json.dumps([asdict(how), asdict(rule), hashlib.sha256(texts.encode()).hexdigest()], default=str)
    there = read_jsonl(partial)
    if not there:
        partial.unlink(missing_ok=True)
        append_json(partial, {"of": settings})
        return 0
    if there[0].get("of") != settings:
        raise RecipeError(
            f"{partial} holds labels made with other settings or for other responses: remove it, or choose "
            "another --out"
        )
    text = "".join(to_json(line) + "\n" for line in there)
    partial.write_text(text, encoding="utf-8")  # without half a line that a kill may have left
    return len(there) - 1


def label_of(graded: Sequence[Graded], estimate: str) -> Label:
    """Return the label of a step by the grades of the responses that go on from it; None without a verdict, where
    there was no room for a rollout or the verifier failed."""
    right = [each.verdict.score >= 1 for each in graded if each.error is None]
    if not right:
        return None
    return sum(right) / len(right) if estimate == "share" else float(any(right))


class _Labeller:
    """What labels responses; it loads the policy with the first of them."""

    def __init__(
        self,
        value: Settings,
        how: Labelling,
        rule: StepRule,
        rows: Mapping[str, Row],
        pool: GradingPool,
        responses: Sequence[Response],
    ) -> None:
        shared = preparation(value)
        self._how, self._rule, self._rows, self._pool = how, rule, rows, pool
        self._tokenizer, self._rules = shared["tokenizer"], shared["rules"]
        uids = dict.fromkeys(response.uid for response in responses)
        self._prompts = {uid: shared["prompt_format"].text(rows[uid]["prompt"], self._tokenizer) for uid in uids}
        self._texts = [self._prompts[response.uid] + response.text for response in responses]
        self._sampler: Any = None
        self._context = 0

    def labelled(self, responses: Sequence[Response]) -> Iterator[Solution]:
        steps = [cut_text(response.text, self._rule) if response.text.strip() else [] for response in responses]
        by = self._by_arithmetic if self._how.estimate == "countdown" else self._by_rollouts
        for response, texts, labels in zip(responses, steps, by(responses, steps), strict=True):
            question = question_of(self._rows[response.uid]["prompt"])
            name = f"{response.uid}/{response.where.rpartition(':')[2]}"
            yield Solution(name, question, tuple(texts), tuple(labels))

    def _by_arithmetic(self, responses: Sequence[Response], steps: Sequence[list[str]]) -> list[list[Label]]:
        from oger_recipe.lab.countdown_steps import step_labels

        made: list[list[Label]] = []
        for response, texts in zip(responses, steps, strict=True):
            row = self._rows[response.uid]
            if row["task"] != "countdown":
                raise RecipeError(
                    f"row {response.uid!r} is of task {row['task']!r}: --by countdown is for Countdown alone; use "
                    "--by any or share"
                )
            problem = json.loads(row["answer"])
            made.append([float(each) for each in step_labels(texts, problem["numbers"], problem["target"])])
        return made

    def _by_rollouts(self, responses: Sequence[Response], steps: Sequence[list[str]]) -> list[list[Label]]:
        """Label steps by rollouts from behind them; the last one is as right as the response."""
        prefixes = [
            (row, "".join(texts[: count + 1])) for row, texts in enumerate(steps) for count in range(len(texts) - 1)
        ]
        drawn = self._rollouts([(responses[row].uid, prefix) for row, prefix in prefixes])
        asked = [(responses[row].uid, prefix + text) for (row, prefix), texts in zip(prefixes, drawn, strict=True)
                 for text in texts]  # fmt: skip
        asked += [(response.uid, response.text) for response in responses]
        graded = iter(self._pool.grade_many([self._rules.answer(self._rows[uid], text) for uid, text in asked]))
        labels: list[list[Label]] = [[] for _ in responses]
        for (row, _), texts in zip(prefixes, drawn, strict=True):
            labels[row].append(label_of([*islice(graded, len(texts))], self._how.estimate))
        for row, (texts, outcome) in enumerate(zip(steps, graded, strict=True)):
            if texts:
                labels[row].append(label_of([outcome], self._how.estimate))
        return labels

    def _rollouts(self, asked: Sequence[tuple[str, str]]) -> list[list[str]]:
        """Draw responses that go on from prefixes (uid, text); none where the model's context leaves no room."""
        if not asked:
            return []
        sampler, sampling = self._loaded(), self._how.sampling
        tokens = prompt_tokens([self._prompts[uid] + prefix for uid, prefix in asked], self._tokenizer)
        requests = [
            Request(
                ids, min(sampling.max_new_tokens, self._context - len(ids)), stable_seed(sampling.seed, uid, prefix, n)
            )
            for ids, (uid, prefix) in zip(tokens, asked, strict=True)
            if len(ids) < self._context
            for n in range(sampling.n)
        ]
        drawn = iter(sampler.generate(requests, sampling, "rollouts") if requests else [])
        return [[next(drawn).text for _ in range(sampling.n)] if len(ids) < self._context else [] for ids in tokens]

    def _loaded(self) -> Any:
        if self._sampler is None:
            from oger_recipe.pipeline.sampler import Sampler

            self._sampler = Sampler(self._how.model)
            self._context = self._sampler.context()
            longest = max(map(len, prompt_tokens(self._texts, self._tokenizer)))
            print(f"loading {self._how.model.name} ...", flush=True)
            self._sampler.load(min(self._context, longest + self._how.sampling.max_new_tokens))
        return self._sampler


def _summary(lines: Sequence[Mapping[str, Any]]) -> str:
    labels = [each for line in lines for each in line["labels"]]
    known = [each for each in labels if each is not None]
    said = f"{len(lines)} responses, {len(labels)} steps: {sum(each > 0 for each in known)} good, {known.count(0)} bad"
    unknown = len(labels) - len(known)
    return said + (f", {unknown} without a label (no room for a rollout, or the verifier failed)" if unknown else "")
