"""One step's groups: the rollouts, how similar they are to their teachers, and which of them teachers replace."""

import json
from dataclasses import dataclass

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.hybrid_group import REPLACE_MODES, select_replaced
from oger_recipe.embedding.similarity import EmbeddingSimilarity, RerankerSimilarity
from oger_recipe.seeds import stable_seed
from oger_recipe.teachers.draw import draw, may_enter
from oger_recipe.teachers.history import History
from oger_recipe.teachers.store import Teacher, TeacherStore

UNKNOWN = 1.0  # in place of a teacher's own log-probability, which is never above 0


@dataclass
class Rollouts:
    """What the engine returned for a step, in the order of OpenRLHF's flat list; groups are contiguous."""

    samples: list[Experience]
    texts: list[str]
    uids: list[str]  # one per group
    rewards: torch.Tensor  # [N], verified
    scores: torch.Tensor  # [N], 0 or 1
    guided: torch.Tensor  # [N], bool: begins with a teacher's tokens, or is a teacher's trajectory

    @property
    def size(self) -> int:
        """Rollouts of a group."""
        return len(self.texts) // len(self.uids)


@dataclass
class HybridBatch:
    """The rows that are trained on: rollouts, some replaced by teachers. Tensors are [N], like ``samples``."""

    samples: list[Experience]
    similarity: torch.Tensor  # of the row's rollout to the group's teachers; nan without teachers
    is_teacher: torch.Tensor  # bool: at least one of the row's tokens is a teacher's
    left_alone: torch.Tensor  # bool: its group's rollouts are all correct, and oger.all_correct_group is skip
    rewards: torch.Tensor  # verified reward of the row
    scores: torch.Tensor  # 0 or 1
    truncated: torch.Tensor  # bool; a teacher's trajectory never counts as truncated
    teachers: dict[int, Teacher]  # row -> the teacher that took its place
    prompts_without_teacher: int


def read_rollouts(samples: list[Experience], tokenizer, group_size: int) -> Rollouts:
    """Texts (without special tokens), uids and verdicts of a flat list of rollouts."""
    return Rollouts(
        samples,
        texts_of(samples, tokenizer),
        [uid_of(sample) for sample in samples[::group_size]],
        torch.cat([sample.rewards for sample in samples]).float(),
        torch.cat([sample.scores for sample in samples]).float(),
        torch.tensor([float(sample.info.get("off_policy_tokens", 0.0)) > 0 for sample in samples]),
    )


def texts_of(samples: list[Experience], tokenizer) -> list[str]:
    """The responses without special tokens."""
    responses = [sample.sequences[0, 1:][sample.action_mask[0].bool()] for sample in samples]
    return tokenizer.batch_decode(responses, skip_special_tokens=True)


def uid_of(sample: Experience) -> str:
    return json.loads(sample.labels[0])["uid"]


def make_hybrid(
    rollouts: Rollouts,
    store: TeacherStore,
    measure: EmbeddingSimilarity | RerankerSimilarity | None,
    history: History | None,
    settings,
    seed: int,
    step: int,
) -> HybridBatch:
    """Lets teachers take their places; ``settings`` is ``args.oger``. Without a measure similarities are nan.

    What is drawn for a prompt follows from the seed, its uid and the step: not from the order in which groups arrive.
    """
    teachers = [store[uid] for uid in rollouts.uids]
    similarity = _similarity(rollouts, teachers, measure, history, settings.replace_mode)
    scores = rollouts.scores.view(-1, rollouts.size)
    all_correct = (scores > 0).all(dim=1)
    untouched = all_correct & (settings.all_correct_group in ("online", "skip"))
    placed: dict[int, Teacher] = {}
    entering = [may_enter(members, settings) for members in teachers]
    for group, members in enumerate(entering):
        if untouched[group] or not members or not settings.replace_after_rm:
            continue
        generator = torch.Generator().manual_seed(stable_seed(seed, rollouts.uids[group], step))
        replaced = select_replaced(
            _without_nan(similarity[group]),
            scores[group],
            max_replace_num=min(settings.max_replace_num, len(members)),
            mode=settings.replace_mode,
            generator=generator,
        )
        drawn = draw(members, len(replaced), settings, generator, step)
        placed |= {group * rollouts.size + int(row): each for row, each in zip(replaced, drawn, strict=True)}
    left_alone = all_correct & (settings.all_correct_group == "skip")
    batch = _with_teachers(rollouts, similarity.flatten(), left_alone.repeat_interleave(rollouts.size), placed)
    batch.prompts_without_teacher = sum(not members for members in entering)
    return batch


def _similarity(
    rollouts: Rollouts,
    teachers: list[list[Teacher]],
    measure: EmbeddingSimilarity | RerankerSimilarity | None,
    history: History | None,
    replace_mode: str,
) -> torch.Tensor:
    """[groups, n]"""
    if measure is None:
        return torch.full((len(teachers), rollouts.size), torch.nan)
    references = [
        list(dict.fromkeys([*(teacher.text for teacher in members), *(history[uid] if history else [])]))
        for uid, members in zip(rollouts.uids, teachers, strict=True)
    ]
    groups = [rollouts.texts[start : start + rollouts.size] for start in range(0, len(rollouts.texts), rollouts.size)]
    return measure.of_groups(groups, references, REPLACE_MODES[replace_mode].similarity or "mean")


def _without_nan(similarity: torch.Tensor) -> torch.Tensor:
    """For ranking: a rollout that could not be embedded ranks as the average one."""
    known = similarity[similarity.isfinite()]
    return torch.nan_to_num(similarity, nan=known.mean().item() if len(known) else 0.0)


def _with_teachers(
    rollouts: Rollouts, similarity: torch.Tensor, left_alone: torch.Tensor, placed: dict[int, Teacher]
) -> HybridBatch:
    samples, rewards, scores = list(rollouts.samples), rollouts.rewards.clone(), rollouts.scores.clone()
    is_teacher = rollouts.guided.clone()
    for row, teacher in placed.items():
        samples[row] = teacher_experience(samples[row], teacher)
        rewards[row], scores[row], is_teacher[row] = teacher.reward, teacher.score, True
    for sample in samples:
        sample.info.setdefault("off_policy_tokens", torch.zeros(1))
    truncated = torch.cat([sample.truncated for sample in samples]).bool()
    return HybridBatch(samples, similarity, is_teacher, left_alone, rewards, scores, truncated, placed, 0)


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
        rollout_log_probs=_teacher_log_probs(teacher, prompt_length),
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


def _teacher_log_probs(teacher: Teacher, prompt_length: int) -> torch.Tensor:
    """[1, T-1]: the teacher's own log-probabilities on its tokens, UNKNOWN where the data has none."""
    log_probs = torch.full((prompt_length - 1 + len(teacher.tokens),), UNKNOWN)
    if teacher.probs is not None:
        log_probs[prompt_length - 1 :] = torch.tensor(teacher.probs).clamp(max=1).log()  # data may say 1.0001
    return log_probs.unsqueeze(0)
