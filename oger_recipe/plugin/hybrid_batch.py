"""One step's groups: the rollouts, how similar they are to their teachers, and which of them teachers replace."""

import json
from dataclasses import dataclass

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.exploration import mean_similarity
from oger_recipe.algorithm.hybrid_group import select_replaced
from oger_recipe.data.teacher_store import Teacher, TeacherStore
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import TrajectoryEncoder


@dataclass
class Rollouts:
    """What the engine returned for a step, in the order of OpenRLHF's flat list; groups are contiguous."""

    samples: list[Experience]
    texts: list[str]
    uids: list[str]  # one per group
    rewards: torch.Tensor  # [N], verified
    scores: torch.Tensor  # [N], 0 or 1


@dataclass
class HybridBatch:
    """The rows that are trained on: rollouts, some replaced by teachers. Tensors are [N], like ``samples``."""

    samples: list[Experience]
    similarity: torch.Tensor  # of the row's rollout to the group's teachers; nan without teachers
    is_teacher: torch.Tensor  # bool
    rewards: torch.Tensor  # verified reward of the row
    scores: torch.Tensor  # 0 or 1
    truncated: torch.Tensor  # bool; a teacher's trajectory is always whole
    teachers: dict[int, Teacher]  # row -> the teacher that took its place
    prompts_without_teacher: int


def read_rollouts(samples: list[Experience], tokenizer, group_size: int) -> Rollouts:
    """Texts (without special tokens), uids and verdicts of a flat list of rollouts."""
    responses = [sample.sequences[0, 1:][sample.action_mask[0].bool()] for sample in samples]
    return Rollouts(
        samples,
        tokenizer.batch_decode(responses, skip_special_tokens=True),
        [json.loads(sample.labels[0])["uid"] for sample in samples[::group_size]],
        torch.cat([sample.rewards for sample in samples]).float(),
        torch.cat([sample.scores for sample in samples]).float(),
    )


def similarity_reduction(replace_mode: str) -> str:
    """mean | max | min as the replacement mode names it; modes that name none use the mean."""
    return next((name for name in ("max", "min") if f"similarity_{name}" in replace_mode), "mean")


def group_similarities(
    rollouts: Rollouts, teachers: list[list[Teacher]], encoder: TrajectoryEncoder, cache: EmbeddingCache, reduce: str
) -> torch.Tensor:
    """[groups, n]; nan for groups without teachers. One pass over the rollouts, the teachers from the cache."""
    size = len(rollouts.texts) // len(teachers)
    similarity = torch.full((len(teachers), size), float("nan"))
    taught = [group for group, members in enumerate(teachers) if members]
    if not taught:
        return similarity
    texts = [text for group in taught for text in rollouts.texts[group * size : (group + 1) * size]]
    rollout_vectors = encoder.encode(texts).split(size)
    teacher_vectors = cache.encode([teacher.text for group in taught for teacher in teachers[group]])
    by_group = teacher_vectors.split([len(teachers[group]) for group in taught])
    for group, ours, theirs in zip(taught, rollout_vectors, by_group, strict=True):
        similarity[group] = mean_similarity(ours, theirs, reduce)
    return similarity


def make_hybrid(
    rollouts: Rollouts,
    store: TeacherStore,
    encoder: TrajectoryEncoder | None,
    cache: EmbeddingCache | None,
    settings,
    seed: int,
) -> HybridBatch:
    """Lets teachers take their places; ``settings`` is ``args.oger``. The same seed draws the same teachers.

    Without an encoder the run uses no teachers: the rollouts stay as they are, and no similarity is defined.
    """
    teachers = [store[uid] for uid in rollouts.uids]
    size = len(rollouts.samples) // len(teachers)
    if encoder is None or cache is None:
        similarity = torch.full((len(teachers) * size,), float("nan"))
        return _with_teachers(rollouts, similarity, {}, sum(not members for members in teachers))
    similarity = group_similarities(rollouts, teachers, encoder, cache, similarity_reduction(settings.replace_mode))
    scores = rollouts.scores.view(-1, size)
    generator = torch.Generator().manual_seed(seed)
    placed: dict[int, Teacher] = {}
    for group, members in enumerate(teachers):
        if settings.all_correct_group == "online" and bool(scores[group].all()):
            continue
        replaced = select_replaced(
            similarity[group],
            scores[group],
            max_replace_num=min(settings.max_replace_num, len(members)),
            mode=settings.replace_mode,
            generator=generator,
        )
        drawn = torch.randperm(len(members), generator=generator)
        placed |= {group * size + int(row): members[int(choice)] for row, choice in zip(replaced, drawn, strict=False)}
    return _with_teachers(rollouts, similarity.flatten(), placed, sum(not members for members in teachers))


def _with_teachers(
    rollouts: Rollouts, similarity: torch.Tensor, placed: dict[int, Teacher], without_teacher: int
) -> HybridBatch:
    samples, rewards, scores = list(rollouts.samples), rollouts.rewards.clone(), rollouts.scores.clone()
    is_teacher = torch.zeros(len(samples), dtype=torch.bool)
    for row, teacher in placed.items():
        samples[row] = teacher_experience(samples[row], teacher)
        rewards[row], scores[row], is_teacher[row] = teacher.reward, teacher.score, True
    for sample in samples:
        sample.info.setdefault("off_policy_tokens", torch.zeros(1))
    truncated = torch.cat([sample.truncated for sample in samples]).bool()
    return HybridBatch(samples, similarity, is_teacher, rewards, scores, truncated, placed, without_teacher)


def teacher_experience(rollout: Experience, teacher: Teacher) -> Experience:
    """The teacher's trajectory after the rollout's prompt, with every field and info key that the rollout has."""
    prompt_length = int(rollout.action_mask[0].long().argmax()) + 1
    response = torch.tensor(teacher.tokens)
    sequences = torch.cat([rollout.sequences[0, :prompt_length], response]).unsqueeze(0)
    action_mask = torch.zeros_like(sequences)[:, 1:]
    action_mask[:, prompt_length - 1 :] = 1
    info = {key: torch.zeros_like(value) for key, value in rollout.info.items()}
    info["reward"], info["score"] = torch.tensor([teacher.reward]), torch.tensor([teacher.score])
    info["off_policy_tokens"] = torch.tensor([float(len(response))])
    return Experience(
        sequences=sequences,
        attention_mask=torch.ones_like(sequences),
        action_mask=action_mask,
        rollout_log_probs=torch.zeros(1, sequences.shape[1] - 1),
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
