"""Prompts to vLLM with the recipe's sampling: stop rules, top-k, and seeds that no order of requests can change.

Rollouts come back in the order of their prompts, whichever is sampled first.
"""

import functools
import heapq
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from vllm import SamplingParams

from oger_recipe.algorithm.prefix import prefix_length, prefix_ratios
from oger_recipe.base.seeds import stable_seed
from oger_recipe.grading.rules import TIMES_ASKED
from oger_recipe.pipeline.controller.refill import GroupFilter
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.teachers.draw import History, draw, may_enter
from oger_recipe.teachers.store import Teacher, TeacherStore, beginning


def _place(sample: Experience) -> int:
    place: int = sample.place
    return place


class OgerSamplesGenerator(SamplesGenerator):
    """Ends the data where the run ends, and leaves out a last batch that does not fill an optimizer step."""

    steps_left: int | None = None
    step = 0  # the trainer's: of the batch that is sampled, or was last; set when a run is resumed
    planned_steps = 1  # of the run; set by the trainer
    sent: Callable[[list[str]], None] | None = None  # told the uids of training prompts that engines have got
    arrived: Callable[[Experience], None] | None = None  # told of every rollout of a training batch as it comes
    counted: Callable[[str, int, int], None] | None = None  # told how many "rollouts" or "answers" came, of how many
    stop_is_asked: Callable[[], bool] | None = None  # of the run, before every batch
    history: History | None = None  # the experience maker's
    asked = come = 0  # responses of the batch or evaluation; dynamic filtering asks for more as it leaves some out

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.settings = OgerSettings.of(self.args.oger)
        self._filter = GroupFilter(self.settings, self.args)
        self.filtering: dict[str, float] = {}  # metrics of the last batch, where dynamic filtering is on
        self._kept = 0.0  # percent of the last batch's prompts

    def generate_samples(self, **generate_kwargs):
        if self.steps_left == 0 or (self.stop_is_asked is not None and self.stop_is_asked()):
            return [], None, 0, True
        self.step += 1
        self.asked = self.come = 0
        generate_kwargs["guided"] = self.settings.teachers_enter_in_rollout
        samples, pass_rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        if len(samples) % self.args.train.batch_size:
            samples = []
        if not samples:  # the end of an episode is no step
            self.step -= 1
        if self.steps_left is not None and samples:
            self.steps_left -= 1
        if self.args.algo.dynamic_filtering_enable and consumed:
            pass_rate = self._kept
        return samples, pass_rate, consumed, exhausted

    def _process_response_into_experience(self, response, **generate_kwargs) -> Experience:
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        experience.graded = response["graded"]  # while rollouts are single: batches keep fields of tensors alone
        experience.place = response["place"]
        if "guided" in generate_kwargs and self.arrived is not None:  # evaluation does not say
            self.arrived(experience)
        self.come += 1
        self._tell_count(generate_kwargs)
        return experience

    def _tell_count(self, generate_kwargs: dict[str, Any]) -> None:
        if self.counted is not None:
            self.counted("rollouts" if "guided" in generate_kwargs else "answers", self.come, self.asked)

    def generate_eval_samples(self, **generate_kwargs) -> list[Experience]:
        """Return the rollouts in the order of the evaluation data, those of each problem together."""
        self.asked = self.come = 0
        return super().generate_eval_samples(**generate_kwargs)

    def _generate_vllm(
        self, dataloader_iter: Any, num_prompts: int, dynamic_filtering: bool, **kwargs: Any
    ) -> tuple[list[Experience], int, bool]:
        """Return the rollouts in the order in which their prompts were asked, not in that of their arrival.

        With dynamic filtering, sample as many prompts again as groups were left out, until none is missing. Where the
        data or oger.dynamic_filtering_max_batches ends that, the first ones that were left out fill the batch.
        """
        wanted: list[list[Experience]] = []
        left_out: list[list[Experience]] = []
        drawn, exhausted = 0, False
        most = num_prompts * (self.settings.rollouts.dynamic_filtering_max_batches if dynamic_filtering else 1)
        while (missing := num_prompts - len(wanted)) and drawn < most and not exhausted:
            count = min(missing, most - drawn)
            samples, consumed, exhausted = super()._generate_vllm(dataloader_iter, count, False, **kwargs)
            drawn += consumed
            for _, group in itertools.groupby(sorted(samples, key=_place), key=_place):
                rollouts = list(group)
                keeps = not dynamic_filtering or self._filter.keeps(rollouts, self._teachers(rollouts[0]))
                (wanted if keeps else left_out).append(rollouts)
            if not dynamic_filtering:
                break
        filling = left_out[: num_prompts - len(wanted)]
        if dynamic_filtering:
            self._kept = 100 * len(wanted) / max(drawn, 1)
            counts = {"filtered_groups": len(left_out), "filling_groups": len(filling)}
            self.filtering = {f"rollout/{name}": float(number) for name, number in counts.items()}
        return sorted(itertools.chain(*wanted, *filling), key=_place), drawn, exhausted

    @functools.cached_property
    def _store(self) -> TeacherStore:
        return TeacherStore(Path(self.args.oger.run_dir) / "data" / "teachers.arrow")

    def _teachers(self, rollout: Experience) -> list[Teacher]:
        return self._teachers_of(json.loads(rollout.labels[0])["uid"])

    def _teachers_of(self, uid: str) -> list[Teacher]:
        if self.history is None or not self.settings.teachers.history_enters:
            return self._store[uid]
        return [*self._store[uid], *self.history.teachers(uid)]

    def _dispatch_prompts_to_vllm(
        self, prompts: list[str], labels: list[str], *, images: list | None = None, **generate_kwargs: Any
    ) -> list[ray.ObjectRef]:
        """Send each prompt, with the recipe's sampling settings, to the least busy engine, as OpenRLHF does."""
        params = self._sampling_params(generate_kwargs)
        samples = generate_kwargs.get("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
        loads = ray.get([engine.get_num_unfinished_requests.remote() for engine in self.vllm_engines])
        heap = [(load, index) for index, load in enumerate(loads)]
        heapq.heapify(heap)
        refs = []
        guided, steps = generate_kwargs.get("guided", False), self.settings.steps.sampling
        trains = "guided" in generate_kwargs  # evaluation does not say
        read = [json.loads(label) for label in labels]
        for prompt, label, known, image in zip(prompts, labels, read, images or [None] * len(prompts), strict=True):
            more: dict[str, Any] = {"prefixes": self._prefixes(known["uid"])} if guided else {}
            more |= {"steps": steps} if steps is not None else {}
            count = 1 if generate_kwargs.get("greedy") else samples * known.get(TIMES_ASKED, 1)
            place = self.asked
            shown = self._with_hint(prompt, known["uid"]) if trains else prompt
            if trains and self.settings.rollouts.deterministic:  # a prompt that comes twice is sampled twice
                params.seed = stable_seed(self.args.train.seed, self.step, place)
            self.asked += count
            load, index = heapq.heappop(heap)
            heapq.heappush(heap, (load + count, index))
            refs.append(
                self.vllm_engines[index].generate_responses.remote(
                    prompt=shown,
                    label=label,
                    sampling_params=params.clone(),
                    max_length=generate_kwargs.get("max_len", 2048),
                    hf_tokenizer=self.tokenizer,
                    num_samples=count,
                    place=place,
                    images=image,
                    **more,
                )
            )
        self._tell_count(generate_kwargs)
        if trains and self.sent is not None:
            self.sent([known["uid"] for known in read])
        return refs

    def _with_hint(self, prompt: str, uid: str) -> str:
        """Return the prompt that shows the beginning of a teacher; as it is where none has to be shown."""
        settings = self.settings.teachers
        teachers = may_enter(self._store[uid], settings) if settings.hint_share else []
        if not teachers:
            return prompt
        generator = torch.Generator().manual_seed(stable_seed(self.args.train.seed, uid, self.step))
        (teacher,) = draw(teachers, 1, settings, generator, self.step)
        hint = beginning(teacher.text, settings.hint_share_at(self.step, self.planned_steps))
        return self._store.shown_prompt(uid, hint) if hint else prompt

    def _prefixes(self, uid: str) -> list[list[int]]:
        """Return the teacher's tokens that each rollout of a group begins with; none for a prompt without teachers."""
        settings, n = self.settings.teachers, self.args.rollout.n_samples_per_prompt
        teachers = may_enter(self._teachers_of(uid), settings)
        if not teachers:
            return [[] for _ in range(n)]
        generator = torch.Generator().manual_seed(stable_seed(self.args.train.seed, uid, self.step))
        if not settings.replace_after_rm:
            chosen = draw(teachers, settings.max_replace_num, settings, generator, self.step)
            return [teacher.tokens for teacher in chosen] + [[] for _ in range(n - len(chosen))]
        ratios = self._prefix_ratios(n, generator)
        chosen = draw(teachers, n, settings, generator, self.step)
        tokens = [chosen[row % len(chosen)].tokens for row in range(n)]
        return [whole[: prefix_length(len(whole), ratio)] for whole, ratio in zip(tokens, ratios, strict=True)]

    def _prefix_ratios(self, n: int, generator: torch.Generator) -> list[float]:
        settings = self.settings.prefix
        return prefix_ratios(
            n,
            n_prefix=settings.n_prefix,
            strategy=settings.prefix_strategy,
            min_ratio=settings.min_prefix_ratio,
            max_ratio=settings.max_prefix_ratio,
            steps=settings.prefix_steps,
            linear_max_ratio=settings.prefix_linear_max_ratio,
            share=settings.prefix_share_across_samples,
            step=self.step,
            generator=generator,
        )

    def _sampling_params(self, generate_kwargs: dict[str, Any]) -> SamplingParams:
        rollouts = self.settings.rollouts
        return SamplingParams(
            temperature=generate_kwargs.get("temperature", 1.0),
            top_p=generate_kwargs.get("top_p", 1.0),
            top_k=generate_kwargs.get("top_k", rollouts.top_k),
            max_tokens=generate_kwargs.get("max_new_tokens"),  # None: what the prompt leaves
            min_tokens=generate_kwargs.get("min_new_tokens", 1),
            skip_special_tokens=generate_kwargs.get("skip_special_tokens", False),
            stop=list(rollouts.stop) or None,
            stop_token_ids=list(rollouts.stop_token_ids) or None,
            include_stop_str_in_output=True,
            seed=generate_kwargs.get("seed"),
        )
