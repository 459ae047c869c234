"""One step's groups: the rollouts, how similar they are to their teachers, and which of them teachers replace."""

import json
import os
from collections.abc import Mapping

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS, REPLACE_MODES, TAUGHT_GROUPS, select_replaced
from oger_recipe.base.cutting import StepCutter, StepRule, step_texts
from oger_recipe.base.seeds import stable_seed
from oger_recipe.embedding.similarity import Similarity
from oger_recipe.grading.rules import is_repetitive, travelled
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.pipeline.controller.likelihoods import AnswerLikelihoods
from oger_recipe.pipeline.controller.training_step import HybridBatch, Rollouts
from oger_recipe.pipeline.experiences import prompt_tokens, response_tokens, with_step_index
from oger_recipe.rewards.sources import Group
from oger_recipe.settings.teachers import TeacherSettings
from oger_recipe.teachers.draw import History, draw, may_enter
from oger_recipe.teachers.store import Teacher, TeacherStore


def read_rollouts(
    samples: list[Experience], tokenizer, group_size: int, *, find_repetition: bool, step_rule: StepRule | None = None
) -> Rollouts:
    """Read texts (without special tokens), labels and verdicts of a flat list of rollouts, and cut them into steps of
    reasoning where there is a rule."""
    texts = texts_of(samples, tokenizer)
    cutter = StepCutter(tokenizer, step_rule) if step_rule is not None else None
    samples = [with_step_index(sample, cutter) for sample in samples]
    return Rollouts(
        samples,
        texts,
        [json.loads(sample.labels[0]) for sample in samples[::group_size]],
        [sample.graded for sample in samples],
        torch.cat([sample.rewards for sample in samples]).float(),
        torch.cat([sample.scores for sample in samples]).float(),
        torch.tensor([_taught_tokens(sample) > 0 for sample in samples]),
        torch.tensor([find_repetition and is_repetitive(text) for text in texts]),
        [_taught_characters(sample, text, tokenizer) for sample, text in zip(samples, texts, strict=True)],
        [_steps_of(sample, tokenizer) for sample in samples] if cutter is not None else [],
        cutter,
    )


def texts_of(samples: list[Experience], tokenizer) -> list[str]:
    """Decode the responses, without special tokens."""
    responses = [response_tokens(sample) for sample in samples]
    return tokenizer.batch_decode(responses, skip_special_tokens=True)


def _taught_tokens(sample: Experience) -> int:
    return int(sample.info.get("off_policy_tokens", 0))


def _taught_characters(sample: Experience, text: str, tokenizer) -> int:
    """Count the leading characters of the text that a teacher's tokens make; one that these only begin is none."""
    tokens = response_tokens(sample)[: _taught_tokens(sample)]
    return len(os.path.commonprefix([*tokenizer.batch_decode([tokens], skip_special_tokens=True), text]))


def _steps_of(sample: Experience, tokenizer) -> list[str]:
    numbers = sample.step_index[sample.action_mask.bool()] - 1
    return step_texts(response_tokens(sample).tolist(), numbers.tolist(), tokenizer)


def uid_of(sample: Experience) -> str:
    return json.loads(sample.labels[0])["uid"]


def make_hybrid(
    rollouts: Rollouts,
    store: TeacherStore,
    measure: Similarity | None,
    history: History | None,
    settings: TeacherSettings,
    seed: int,
    step: int,
    likelihoods: AnswerLikelihoods | None = None,
) -> HybridBatch:
    """Replace rollouts by teachers' trajectories. Without a measure similarities are nan. ``likelihoods``: asked about
    the teachers of groups in which not all of them find a place.

    What is drawn for a prompt follows from the seed, its uid and the step: not from the order in which groups arrive.
    """
    teachers = [store[uid] for uid in rollouts.uids]
    similarity = _similarity(rollouts, teachers, measure, history, settings.replace_mode)
    right = (rollouts.scores.view(-1, rollouts.size) > 0).sum(dim=1)
    all_correct = right == rollouts.size
    rule = ALL_CORRECT_GROUPS[settings.all_correct_group]
    own = [history.teachers(uid) if history and settings.history_enters else [] for uid in rollouts.uids]
    entering = [may_enter([*given, *earlier], settings) for given, earlier in zip(teachers, own, strict=True)]
    taught = [
        group
        for group, members in enumerate(entering)
        if members and may_replace(settings, int(right[group]) / rollouts.size)
    ]
    of_answers: dict[str, float] = {}
    if likelihoods is not None:
        compared = [group for group in taught if len(entering[group]) > settings.max_replace_num]
        prompts = [prompt_tokens(rollouts.samples[group * rollouts.size]).tolist() for group in compared]
        told, of_answers = likelihoods.of([*zip(prompts, (entering[group] for group in compared), strict=True)])
        for group, members in zip(compared, told, strict=True):
            entering[group] = members
    injected: dict[int, Teacher] = {}
    for group in taught:
        generator = torch.Generator().manual_seed(stable_seed(seed, rollouts.uids[group], step))
        injected |= _injected(rollouts, similarity[group], group, entering[group], settings, generator, step)
    samples, rewards, scores, is_teacher = _with_teachers(rollouts, injected)
    return HybridBatch(
        samples,
        similarity.flatten(),
        is_teacher,
        TAUGHT_GROUPS[settings.taught_group](is_teacher.view(-1, rollouts.size)).flatten(),
        (all_correct & (not rule.bonus)).repeat_interleave(rollouts.size),
        rewards,
        scores,
        torch.cat([sample.truncated for sample in samples]).bool(),
        injected,
        teachers,
        prompts_without_teacher=sum(not members for members in entering),
        steps=_steps(rollouts, injected),
        of_answers=of_answers,
    )


def may_replace(settings: TeacherSettings, solve_rate: float) -> bool:
    """Say whether teachers replace rollouts of a group, of which this share is right."""
    replaces = settings.replace_after_rm and settings.max_replace_num > 0
    enter = ALL_CORRECT_GROUPS[settings.all_correct_group].teachers_enter or solve_rate < 1
    return replaces and enter and settings.teacher_gate_low <= solve_rate <= settings.teacher_gate


def _injected(
    rollouts: Rollouts,
    similarity: torch.Tensor,
    group: int,
    teachers: list[Teacher],
    settings: TeacherSettings,
    generator: torch.Generator,
    step: int,
) -> dict[int, Teacher]:
    """Choose the rows of one group that make room, and the teachers for them; ``similarity`` is the group's, [n]."""
    first = group * rollouts.size
    replaced = select_replaced(
        _without_nan(similarity),
        rollouts.scores[first : first + rollouts.size],
        max_replace_num=min(settings.max_replace_num, len(teachers)),
        mode=settings.replace_mode,
        generator=generator,
    )
    drawn = draw(teachers, len(replaced), settings, generator, step)
    return {first + int(row): teacher for row, teacher in zip(replaced, drawn, strict=True)}


def _similarity(
    rollouts: Rollouts,
    teachers: list[list[Teacher]],
    measure: Similarity | None,
    history: History | None,
    replace_mode: str,
) -> torch.Tensor:
    """Measure the similarity of every rollout to its references, [groups, n]; nan without measure."""
    if measure is None:
        return torch.full((len(teachers), rollouts.size), torch.nan)
    references = [
        list(dict.fromkeys([*(teacher.text for teacher in members), *(history[uid] if history else [])]))
        for uid, members in zip(rollouts.uids, teachers, strict=True)
    ]
    groups = [rollouts.texts[start : start + rollouts.size] for start in range(0, len(rollouts.texts), rollouts.size)]
    similarity = measure.of_groups(groups, references, REPLACE_MODES[replace_mode].similarity or "mean")
    return torch.where(similarity.isfinite(), similarity, torch.nan)


def _without_nan(similarity: torch.Tensor) -> torch.Tensor:
    """Give a rollout that could not be embedded the mean of the others, 0 without others."""
    known = similarity[~similarity.isnan()]
    return torch.nan_to_num(similarity, nan=known.mean().item() if len(known) else 0.0)


def _with_teachers(
    rollouts: Rollouts, injected: dict[int, Teacher]
) -> tuple[list[Experience], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Put the teachers in their places; return the samples, and rewards, scores and who is a teacher, [N]."""
    samples, rewards, scores = list(rollouts.samples), rollouts.rewards.clone(), rollouts.scores.clone()
    is_teacher = rollouts.guided.clone()
    for row, teacher in injected.items():
        samples[row] = with_step_index(teacher_experience(samples[row], teacher), rollouts.cutter)
        rewards[row], scores[row], is_teacher[row] = teacher.reward, teacher.score, True
    for sample in samples:
        sample.info.setdefault("off_policy_tokens", torch.zeros(1))
    return samples, rewards, scores, is_teacher


def _steps(rollouts: Rollouts, injected: dict[int, Teacher]) -> list[list[str]]:
    if rollouts.cutter is None:
        return []
    taught = {row: rollouts.cutter.texts(teacher.tokens) for row, teacher in injected.items()}
    return [taught.get(row, steps) for row, steps in enumerate(rollouts.steps)]


def reward_groups(
    rollouts: Rollouts, batch: HybridBatch, entropy: torch.Tensor, log_prob: torch.Tensor, may_earn: torch.Tensor
) -> list[Group]:
    """Make the groups that sources of reward are asked about; entropy (nats), log_prob and may_earn (bool) are [N]."""
    texts, graded = list(rollouts.texts), list(rollouts.graded)
    for row, teacher in batch.injected.items():
        texts[row] = teacher.text
        graded[row] = Graded(Verdict(teacher.reward, teacher.score, "a teacher's trajectory"))
    groups = []
    for number, label in enumerate(rollouts.labels):
        rows = slice(number * rollouts.size, (number + 1) * rollouts.size)
        groups.append(
            Group(
                uid=label["uid"],
                prompt=rollouts.samples[rows.start].prompts[0],
                task=label["task"],
                answer=label["answer"],
                **travelled(label),
                teachers=[teacher.text for teacher in batch.teachers[number]],
                responses=texts[rows],
                graded=graded[rows],
                is_teacher=batch.is_teacher[rows].tolist(),
                truncated=batch.truncated[rows].tolist(),
                may_earn=may_earn[rows].tolist(),
                similarity=batch.similarity[rows].tolist(),
                entropy=entropy[rows].tolist(),
                log_prob=log_prob[rows].tolist(),
                steps=batch.steps[rows],
                tokens=[int(sample.response_length[0]) for sample in batch.samples[rows]],
            )
        )
    return groups


def teacher_experience(rollout: Experience, teacher: Teacher) -> Experience:
    """Put the teacher's trajectory behind the rollout's prompt, [1, T], with the rollout's fields and info keys."""
    prompt, response = prompt_tokens(rollout), torch.tensor(teacher.tokens)
    sequences = torch.cat([prompt, response]).unsqueeze(0)
    action_mask = torch.zeros_like(sequences)[:, 1:]
    action_mask[:, len(prompt) - 1 :] = 1
    info = {key: torch.zeros_like(value) for key, value in rollout.info.items()}
    info["reward"], info["score"] = torch.tensor([teacher.reward]), torch.tensor([teacher.score])
    info["off_policy_tokens"] = torch.tensor([float(len(response))])
    return Experience(
        sequences=sequences,
        attention_mask=torch.ones_like(sequences),
        action_mask=action_mask,
        rollout_log_probs=torch.full_like(action_mask, torch.nan, dtype=torch.float32),  # no engine sampled it
        prompts=rollout.prompts,
        labels=rollout.labels,
        images=rollout.images,
        mm_train_inputs=rollout.mm_train_inputs,
        rewards=torch.tensor([teacher.reward]),
        scores=torch.tensor([teacher.score]),
        response_length=torch.tensor([len(response)]),
        truncated=torch.zeros_like(rollout.truncated),
        total_length=torch.tensor([float(sequences.shape[1])]),
        info=info,
    )


def teacher_log_probs(experience: Experience, injected: Mapping[int, Teacher]) -> torch.Tensor:
    """Return teachers' own log-probabilities of their tokens, [B, A]; nan on rollouts, and where the data has none.

    ``injected``: the teachers by the rows of the step; ``experience.index`` says which of these it has.
    """
    log_probs = torch.full_like(experience.action_mask, torch.nan, dtype=torch.float32)
    for place, row in enumerate(experience.index):
        probs = injected[row].probs if row in injected else None
        if probs is not None:  # data may say 1.0001
            log_probs[place, experience.action_mask[place].bool()] = torch.tensor(probs).clamp(max=1).log()
    return log_probs
