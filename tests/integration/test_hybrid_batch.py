"""Hybrid groups on OpenRLHF's own batches: teachers among rollouts, their mask through every repacking, their loss."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from doubles import Strategy
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm

from oger_recipe.algorithm.batches import off_policy_mask
from oger_recipe.embedding.base import EmbeddingError
from oger_recipe.embedding.similarity import EmbeddingSimilarity
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.pipeline.controller.hybrid_batch import (
    HybridBatch,
    Rollouts,
    make_hybrid,
    read_rollouts,
    teacher_experience,
    teacher_log_probs,
)
from oger_recipe.pipeline.policy.loss import Given, HybridPolicyLoss
from oger_recipe.pipeline.policy.policy_trainer import OgerActorPPOTrainer
from oger_recipe.settings.loss import LossSettings
from oger_recipe.settings.teachers import TeacherSettings
from oger_recipe.teachers.draw import History
from oger_recipe.teachers.store import Teacher, TeacherStore, write_teacher_store

PAD, END = 0, 1  # every other token is the letter of that code
GROUP = 4

# Similarities to the teachers E = (1, 0) and N = (0, 1):   to E   to N   mean   max   min
VECTORS = {
    "E": (1.0, 0.0),
    "N": (0.0, 1.0),
    "W": (-1.0, 0.0),
    "a": (1.0, 0.0),  #                                       1.0    0.0    0.5    1.0   0.0
    "b": (0.6, 0.8),  #                                       0.6    0.8    0.7    0.8   0.6
    "c": (0.0, -1.0),  #                                      0.0   -1.0   -0.5    0.0  -1.0
    "d": (-0.8, 0.6),  #                                     -0.8    0.6   -0.1    0.6  -0.8
}


class Letters:
    """A tokenizer of letters, as far as rollouts need one."""

    def batch_decode(self, rows: Sequence[torch.Tensor], skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return ["".join(chr(token) for token in row.tolist() if token not in (PAD, END)) for row in rows]


class Vectors:
    """Stands in for the encoder and for the cache; notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    batch_size = 3

    def encode(self, texts: list[str], max_error_rate: float) -> torch.Tensor:
        return self.encode_each(texts)[0]

    def encode_each(self, texts: list[str]) -> tuple[torch.Tensor, dict[str, str]]:
        self.asked.append(texts)
        return torch.tensor([VECTORS[text[0]] for text in texts]).view(len(texts), 2), {}


def _tokens(text: str) -> list[int]:
    return [*map(ord, text), END]


def _rollout(
    text: str, *, uid: str = "taught", prompt: str = "?>", reward: float = 0.0, max_len: int = 64
) -> Experience:
    """What OpenRLHF makes of one answer of the engine."""
    observation = [*map(ord, prompt), *_tokens(text)]
    response = {
        "prompt": prompt,
        "label": json.dumps({"uid": uid, "answer": "42", "task": "countdown"}),
        "images": None,
        "mm_train_inputs": None,
        "observation_tokens": observation,
        "action_ranges": [(len(prompt), len(observation))],
        "rollout_log_probs": [0.0] * len(prompt) + [-0.5] * (len(text) + 1),
        "truncated": len(observation) > max_len,
        "reward": reward,
        "scores": float(reward > 0),
        "extra_logs": {"reward_format": 1.0, "reward_error": 0.0},
    }
    sample = SamplesGenerator._process_response_into_experience(None, response, max_len=max_len)
    sample.graded = Graded(Verdict(reward, float(reward > 0), "said so"))
    return sample


def _teacher(text: str, reward: float = 1.0) -> Teacher:
    return Teacher(source=f"source of {text}", text=text, tokens=_tokens(text), reward=reward, score=float(reward > 0))


def _rollouts(*groups: tuple[str, list[str], list[float]]) -> Rollouts:
    """Groups of (uid, texts, rewards); every group has a prompt of another length."""
    samples = [
        _rollout(text, uid=uid, prompt="?" * (2 + number) + ">", reward=reward)
        for number, (uid, texts, rewards) in enumerate(groups)
        for text, reward in zip(texts, rewards, strict=True)
    ]
    return read_rollouts(samples, Letters(), GROUP, find_repetition=False)


LETTERS, WRONG, RIGHT = ["a", "bb", "ccc", "dddd"], [0.0] * 4, [1.0] * 4


@pytest.fixture
def hybrid(tmp_path: Path) -> Callable[..., HybridBatch]:
    """make_hybrid with a store of the teachers given by uid, and with the vectors above."""

    def make(
        rollouts: Rollouts,
        teachers: dict[str, list[Teacher]],
        *,
        seed: int = 0,
        step: int = 1,
        history: History | None = None,
        **settings: Any,
    ) -> HybridBatch:
        write_teacher_store(teachers, tmp_path / "teachers.arrow")
        store, vectors = TeacherStore(tmp_path / "teachers.arrow"), Vectors()
        measure = EmbeddingSimilarity(vectors, vectors)
        batch = make_hybrid(rollouts, store, measure, history, TeacherSettings(**settings), seed, step)
        batch.asked = vectors.asked
        return batch

    return make


# ---- rollouts that arrive


def test_rollouts_that_have_arrived_are_encoded_once_and_change_nothing():
    groups, references = [["a", "b"], ["c", "d"]], [["E", "N"], ["E"]]
    at_once, ahead = Vectors(), Vectors()
    expected = EmbeddingSimilarity(at_once, Vectors()).of_groups(groups, references, "mean")
    measure = EmbeddingSimilarity(ahead, Vectors())
    for text in ("d", "b", "d", "a"):  # a batch of the encoder is three texts
        measure.prefetch(text)
    assert torch.equal(measure.of_groups(groups, references, "mean"), expected)
    assert ahead.asked == [["d", "b", "d"], ["a", "c"]]
    assert torch.equal(measure.of_groups(groups, references, "mean"), expected)
    assert ahead.asked[2:] == [["a", "b", "c", "d"]]  # the next step's are new


def test_what_went_wrong_while_rollouts_arrived_is_told_when_they_are_needed(monkeypatch):
    vectors = Vectors()
    monkeypatch.setattr(vectors, "encode_each", lambda texts: (torch.full((len(texts), 2), torch.nan), {"a": "down"}))
    measure = EmbeddingSimilarity(vectors, Vectors())
    for text in ("a", "b", "c"):
        measure.prefetch(text)
    with pytest.raises(EmbeddingError, match="down"):
        measure.of_groups([["a"]], [["E"]], "mean")


def test_what_went_wrong_with_references_ahead_is_told_when_they_are_needed(monkeypatch):
    cache = Vectors()
    measure = EmbeddingSimilarity(Vectors(), cache)
    with monkeypatch.context() as patched:
        patched.setattr(cache, "encode_each", lambda texts: open("/nowhere/to/be/found"))
        measure.prefetch_references(["E"])
        with pytest.raises(FileNotFoundError):
            measure.of_groups([["a"]], [["E"]], "mean")
    assert measure.of_groups([["a"]], [["E"]], "mean").isfinite().all()  # the next step asks anew


# ---- one teacher


def test_rollouts_are_read_as_texts_without_prompt_and_special_tokens_with_one_uid_per_group():
    rollouts = _rollouts(("u", LETTERS, [0.0, 1.0, 0.5, 0.0]), ("v", list("dcba"), WRONG))
    assert rollouts.texts == [*LETTERS, *"dcba"]
    assert rollouts.uids == ["u", "v"]
    assert rollouts.rewards.tolist() == [0.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert rollouts.scores.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_a_teacher_follows_the_prompt_of_the_rollout_and_its_mask_covers_exactly_its_tokens():
    rollout = _rollout("abcdef", prompt="ask>")
    taught = teacher_experience(rollout, _teacher("NO", reward=0.75))
    assert taught.sequences.tolist() == [[*map(ord, "ask>NO"), END]]
    # Position t of the action mask speaks of token t + 1: N, O and the end are tokens 4, 5 and 6.
    assert taught.action_mask.tolist() == [[0, 0, 0, 1, 1, 1]]
    assert taught.attention_mask.tolist() == [[1] * 7]
    assert taught.rollout_log_probs.shape == (1, 6)
    assert (taught.response_length.tolist(), taught.total_length.tolist()) == ([3], [7.0])
    assert (taught.rewards.tolist(), taught.scores.tolist()) == ([0.75], [1.0])
    assert (taught.prompts, taught.labels) == (rollout.prompts, rollout.labels)
    figures = {key: value.item() for key, value in taught.info.items()}
    assert figures == {
        "response_clip_ratio": False,
        "reward": 0.75,
        "score": 1.0,
        "reward_format": 0.0,
        "reward_error": 0.0,
        "off_policy_tokens": 3.0,
    }


@pytest.mark.parametrize("max_len", [64, 5])
def test_a_teacher_has_every_field_and_info_key_of_a_rollout_also_of_a_truncated_one(max_len):
    rollout = _rollout("abcdef", max_len=max_len)
    assert rollout.truncated.item() == (max_len == 5)
    taught = teacher_experience(rollout, _teacher("NN"))
    for field in fields(Experience):
        theirs, ours = getattr(rollout, field.name), getattr(taught, field.name)
        assert type(ours) is type(theirs), field.name
        if isinstance(theirs, torch.Tensor):
            assert (ours.dtype, ours.ndim, len(ours)) == (theirs.dtype, theirs.ndim, 1), field.name
    assert taught.info.keys() == rollout.info.keys() | {"off_policy_tokens"}
    for key, value in rollout.info.items():
        assert (taught.info[key].dtype, taught.info[key].shape) == (value.dtype, value.shape), key
    assert taught.truncated.tolist() == [False]
    assert taught.sequences[0, :2].tolist() == list(map(ord, "?>"))


def test_a_mix_of_rollouts_and_teachers_can_be_joined_and_split_again(hybrid):
    batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), {"taught": [_teacher("NNNNNN")]})
    assert batch.is_teacher.tolist() == [False, True, False, False]
    joined = Experience.concat_experiences(batch.samples, PAD)
    # Prompt "??" and ">", then the answer and its end; row 1 is the teacher's.
    assert joined.attention_mask.sum(dim=1).tolist() == [5, 10, 7, 8]
    assert joined.action_mask.sum(dim=1).tolist() == joined.response_length.tolist() == [2, 7, 4, 5]
    assert joined.sequences[1].tolist() == [*map(ord, "??>NNNNNN"), END]
    assert joined.sequences[0].tolist() == [*map(ord, "??>a"), END, *[PAD] * 5]
    assert {key: value.shape for key, value in joined.info.items()} == {key: (4,) for key in batch.samples[0].info}
    assert joined.info["off_policy_tokens"].tolist() == [0.0, 7.0, 0.0, 0.0]

    rows = remove_padding_in_sequences(split_experience_batch(joined))
    for row, sample in zip(rows, batch.samples, strict=True):
        assert row.sequences.tolist() == sample.sequences[0].tolist()
        assert row.action_mask.tolist() == sample.action_mask[0].tolist()
        assert {k: v.item() for k, v in row.info.items()} == {k: v.item() for k, v in sample.info.items()}


# ---- the mask


def _expected_mask(prompt: int, teacher: int, width: int) -> list[bool]:
    return [prompt - 1 <= position < prompt - 1 + teacher for position in range(width)]


def _mask_of(batch: Experience) -> list[list[bool]]:
    """As OgerActorPPOTrainer.training_step makes it."""
    return off_policy_mask(batch.action_mask, torch.stack(list(batch.info["off_policy_tokens"]))).tolist()


@pytest.mark.parametrize(
    "packs", [[range(8)], [[0, 1], [2, 3], [4, 5], [6, 7]], [[1], [0, 6, 3], [7, 2, 5, 4]], [[5, 1]]]
)
def test_the_off_policy_mask_covers_the_teachers_tokens_in_every_packing(hybrid, packs):
    rollouts = _rollouts(("first", LETTERS, WRONG), ("second", LETTERS[::-1], WRONG))
    teachers = {"first": [_teacher("NN")], "second": [_teacher("NNNNNNN")]}
    batch = hybrid(rollouts, teachers)
    # Row 1 (bb) and row 6 (bb) are the most similar; prompts have 3 and 4 tokens, teachers 3 and 8.
    taught = {1: (3, 3), 6: (4, 8)}
    buffer = NaiveReplayBuffer(2)
    for half in (batch.samples[:4], batch.samples[4:]):  # as micro-batches arrive from the controller
        buffer.append(Experience.concat_experiences(half, PAD))
    for pack in packs:
        together = buffer.collate_fn([buffer.items[row] for row in pack])
        width = together.action_mask.shape[1]
        assert width == max(buffer.items[row].action_mask.shape[0] for row in pack)
        expected = [_expected_mask(*taught[row], width) if row in taught else [False] * width for row in pack]
        assert _mask_of(together) == expected


def test_the_off_policy_mask_survives_each_of_openrlhfs_steps(hybrid):
    batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), {"taught": [_teacher("N")]})
    joined = Experience.concat_experiences(batch.samples, PAD)
    assert _mask_of(joined) == [[False] * 7, _expected_mask(3, 2, 7), [False] * 7, [False] * 7]
    rows = split_experience_batch(joined)
    assert off_policy_mask(rows[1].action_mask, rows[1].info["off_policy_tokens"]).tolist() == _expected_mask(3, 2, 7)
    rows = remove_padding_in_sequences(rows)
    assert off_policy_mask(rows[1].action_mask, rows[1].info["off_policy_tokens"]).tolist() == _expected_mask(3, 2, 4)
    again = make_experience_batch([rows[3], rows[1]])
    assert _mask_of(again) == [[False] * 7, _expected_mask(3, 2, 7)]


# ---- groups


@pytest.mark.parametrize(
    ("mode", "replaced", "similarity"),
    [
        ("similarity_mean_des", 1, [0.5, 0.7, -0.5, -0.1]),
        ("similarity_max_des", 0, [1.0, 0.8, 0.0, 0.6]),
        ("similarity_min_des", 1, [0.0, 0.6, -1.0, -0.8]),
        ("similarity_mean_asc", 2, [0.5, 0.7, -0.5, -0.1]),
        ("wrong_first_similarity_mean_des", 0, [0.5, 0.7, -0.5, -0.1]),  # b, the most similar, is right
    ],
)
def test_the_rollout_that_the_mode_ranks_first_makes_room(hybrid, mode, replaced, similarity):
    rollouts = _rollouts(("taught", LETTERS, [0.0, 1.0, 0.0, 0.0]))
    batch = hybrid(rollouts, {"taught": [_teacher("E", 0.75), _teacher("N", 0.75)]}, replace_mode=mode)
    assert batch.similarity.tolist() == pytest.approx(similarity, abs=1e-6)
    assert batch.is_teacher.tolist() == [row == replaced for row in range(4)]
    assert list(batch.injected) == [replaced]
    expected = [0.0, 1.0, 0.0, 0.0]
    expected[replaced] = 0.75
    assert batch.rewards.tolist() == expected
    assert batch.scores.tolist() == [math.ceil(reward) for reward in expected]
    assert rollouts.rewards.tolist() == [0.0, 1.0, 0.0, 0.0]  # what was sampled is not rewritten
    text = batch.injected[replaced].text
    assert batch.samples[replaced].sequences[0].tolist() == [*map(ord, "??>" + text), END]
    assert [batch.samples[row] is rollouts.samples[row] for row in range(4)] == [row != replaced for row in range(4)]


def test_prompts_without_teachers_are_untouched_counted_and_not_embedded(hybrid):
    rollouts = _rollouts(("none", LETTERS, WRONG), ("taught", LETTERS, WRONG), ("empty", LETTERS, RIGHT))
    batch = hybrid(rollouts, {"taught": [_teacher("N")], "empty": []}, max_replace_num=2)
    assert batch.prompts_without_teacher == 2
    assert batch.is_teacher.nonzero().flatten().tolist() == [5]  # bb of the second group; it has one teacher
    assert batch.similarity.isnan().tolist() == [True] * 4 + [False] * 4 + [True] * 4
    assert all(batch.samples[row] is rollouts.samples[row] for row in range(12) if row != 5)
    assert batch.asked == [LETTERS, ["N"]]
    assert len({tuple(sample.info) for sample in batch.samples}) == 1  # the same keys in the same order


def test_a_step_without_any_teacher_embeds_nothing_and_replaces_nothing(hybrid):
    rollouts = _rollouts(("none", LETTERS, WRONG))
    batch = hybrid(rollouts, {})
    assert (batch.asked, batch.injected, batch.prompts_without_teacher) == ([], {}, 1)
    assert [sample.info["off_policy_tokens"].tolist() for sample in batch.samples] == [[0.0]] * 4


def test_several_places_of_a_group_go_to_distinct_teachers_each_of_which_has_its_turn(hybrid):
    teachers = [_teacher(text) for text in ("E", "N", "W")]
    seen = set()
    for seed in range(40):
        batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), {"taught": teachers}, max_replace_num=2, seed=seed)
        texts = [teacher.text for teacher in batch.injected.values()]
        assert len(texts) == len(set(texts)) == 2
        seen.add(tuple(texts))
    assert seen == {(x, y) for x in "ENW" for y in "ENW" if x != y}


@pytest.mark.parametrize(
    ("wanted", "teachers", "injected"), [(3, "E", 1), (4, "EN", 2), (6, "ENWENW", 4), (0, "EN", 0)]
)
def test_no_more_places_are_given_than_there_are_teachers_or_rollouts(hybrid, wanted, teachers, injected):
    members = [_teacher(text) for text in teachers]
    batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), {"taught": members}, max_replace_num=wanted)
    assert (int(batch.is_teacher.sum()), len(batch.injected)) == (injected, injected)


def test_a_group_that_is_all_correct_can_be_skipped(hybrid):
    rollouts = _rollouts(("solved", LETTERS, RIGHT), ("nearly", LETTERS, [1.0, 1.0, 1.0, 0.0]))
    teachers = {"solved": [_teacher("N")], "nearly": [_teacher("N")]}
    batch = hybrid(rollouts, teachers, all_correct_group="skip")
    assert batch.is_teacher.nonzero().flatten().tolist() == [5]
    assert batch.skipped.tolist() == [True] * 4 + [False] * 4  # and earns no bonus
    assert not hybrid(rollouts, teachers, all_correct_group="online").skipped.any()


def test_the_shortest_teacher_enters_where_that_is_asked_for(hybrid):
    teachers = {"taught": [_teacher("NNNN"), _teacher("EE"), _teacher("WWW")]}
    for seed in range(5):
        batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), teachers, teacher_draw="shortest", seed=seed)
        assert [teacher.text for teacher in batch.injected.values()] == ["EE"]


def test_round_robin_moves_on_with_the_step(hybrid):
    teachers = {"taught": [_teacher("W"), _teacher("N"), _teacher("E")]}  # sources sort as E, N, W
    drawn = []
    for step in (1, 2, 3, 4):
        batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), teachers, teacher_draw="round_robin", step=step)
        drawn += [teacher.text for teacher in batch.injected.values()]
    assert drawn == ["N", "W", "E", "N"]


def test_a_source_of_weight_zero_never_enters(hybrid):
    teachers = {"taught": [_teacher("N"), _teacher("E")]}
    settings = {"teacher_draw": "source_weights", "teacher_source_weights": ("source of N=0",)}
    for seed in range(10):
        batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), teachers, seed=seed, max_replace_num=2, **settings)
        assert [teacher.text for teacher in batch.injected.values()] == ["E"]
    assert batch.prompts_without_teacher == 0
    alone = {"taught": [_teacher("N")]}
    batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), alone, **settings)
    assert (batch.injected, batch.prompts_without_teacher) == ({}, 1)
    assert not batch.similarity.isnan().any()  # it stays a reference


def test_the_policys_own_earlier_solutions_are_references_too(hybrid, tmp_path):
    history = History(tmp_path / "history.jsonl", 4, 0)
    history.add(1, "taught", "E")
    history.add(1, "alone", "E")
    rollouts = _rollouts(("taught", LETTERS, WRONG), ("alone", LETTERS, WRONG))
    batch = hybrid(rollouts, {"taught": [_teacher("N")]}, history=history)
    # The means over N and E, as with two teachers; then the similarity to E alone.
    assert batch.similarity.tolist() == pytest.approx([0.5, 0.7, -0.5, -0.1, 1.0, 0.6, 0.0, -0.8], abs=1e-6)
    assert batch.is_teacher.nonzero().flatten().tolist() == [1]  # references of one's own take no place
    assert batch.prompts_without_teacher == 1


@pytest.mark.parametrize("enters", [True, False])
def test_earlier_solutions_enter_only_where_that_is_asked_for(hybrid, tmp_path, enters):
    """As with a run that is resumed without it: the file has what they need."""
    history = History(tmp_path / "history.jsonl", 4, 0)
    history.add(1, "alone", "E", replace(_teacher("E"), source="history", probs=[0.5], tokens=[1], entropy=0.1))
    batch = hybrid(_rollouts(("alone", LETTERS, WRONG)), {}, history=history, history_enters=enters)
    assert [teacher.source for teacher in batch.injected.values()] == (["history"] if enters else [])
    assert batch.prompts_without_teacher == (0 if enters else 1)
    assert batch.teachers == [[]]  # what sources of reward read are the data's


def test_rollouts_that_a_teacher_began_are_teachers_rows_and_make_no_room(hybrid):
    rollouts = _rollouts(("taught", LETTERS, WRONG))
    for sample, tokens in zip(rollouts.samples, (2.0, 0.0, 3.0, 0.0), strict=True):
        sample.info["off_policy_tokens"] = torch.tensor([tokens])
    rollouts = read_rollouts(rollouts.samples, Letters(), GROUP, find_repetition=False)
    batch = hybrid(rollouts, {"taught": [_teacher("N")]}, replace_after_rm=False)
    assert batch.is_teacher.tolist() == rollouts.guided.tolist() == [True, False, True, False]
    assert rollouts.taught == [1, 0, 3, 0]  # characters: the end of sequence is none
    assert (batch.injected, batch.samples) == ({}, rollouts.samples)


def test_a_character_that_a_teacher_only_begins_is_the_policys():
    class Bytes:
        def batch_decode(self, rows: Sequence[torch.Tensor], skip_special_tokens: bool) -> list[str]:
            return [bytes(row.tolist()).decode("utf-8", "replace") for row in rows]

    samples = [_rollout("z\xc3\xa9s", uid="u", prompt="?", reward=0.0) for _ in range(3)]  # zés
    for sample, tokens in zip(samples, (1.0, 2.0, 3.0), strict=True):
        sample.info["off_policy_tokens"] = torch.tensor([tokens])
    assert read_rollouts(samples, Bytes(), 3, find_repetition=False).taught == [1, 1, 2]


def test_a_rollout_without_an_embedding_ranks_as_the_average_one(hybrid, monkeypatch):
    monkeypatch.setitem(VECTORS, "b", (math.nan, math.nan))  # bb, the most similar, could not be embedded
    batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), {"taught": [_teacher("E"), _teacher("N")]})
    assert batch.similarity.isnan().tolist() == [False, True, False, False]
    assert list(batch.injected) == [0]


@pytest.mark.parametrize(
    ("mode", "count", "replaced"),
    [
        ("similarity_mean_des", 2, [0, 1]),  # 0.5, unknown, -0.1, -0.5: their mean is -0.03
        ("similarity_mean_asc", 2, [2, 3]),
        ("similarity_max_des", 2, [0, 3]),  # 1, 0.6, unknown, 0: their mean is 0.53
        ("similarity_max_des", 3, [0, 1, 3]),
    ],
)
def test_neither_first_nor_last_makes_room_what_could_not_be_embedded(hybrid, monkeypatch, mode, count, replaced):
    monkeypatch.setitem(VECTORS, "b", (math.nan, math.nan))
    teachers = [_teacher(text) for text in ("E", "N", "EN")]
    batch = hybrid(
        _rollouts(("taught", LETTERS, WRONG)), {"taught": teachers}, replace_mode=mode, max_replace_num=count
    )
    assert sorted(batch.injected) == replaced


@pytest.mark.parametrize(
    ("probs", "known"),
    # Half precision rounds 1 to more than 1, which is known as 1.
    [([0.5, 0.25], [0.5, 0.25]), ([1.0001, 0.25], [1.0, 0.25]), (None, [math.nan, math.nan])],
)
def test_what_the_engine_says_of_rollouts_and_teachers_of_their_own_tokens_are_apart(hybrid, probs, known):
    teacher = Teacher("known", "N", [ord("N"), END], 1.0, 1.0, probs)
    batch = hybrid(_rollouts(("taught", LETTERS, WRONG)), {"taught": [teacher]})
    (row,) = batch.injected
    for number, sample in enumerate(batch.samples):
        sample.index = [number]
        own = teacher_log_probs(sample, batch.injected).exp().tolist()[0]
        by_engine = sample.rollout_log_probs.tolist()[0]
        # "??>" has three tokens, so the response begins at position 2 of the shifted row.
        if number == row:
            assert own == pytest.approx([math.nan, math.nan, *known], nan_ok=True)
            assert by_engine == pytest.approx([math.nan] * 4, nan_ok=True)
        else:
            assert all(map(math.isnan, own)) and by_engine == [0.0, 0.0, *[-0.5] * (len(own) - 2)]


def test_a_group_that_is_all_correct_stays_online_only_where_that_is_asked_for(hybrid):
    rollouts = [("solved", LETTERS, RIGHT), ("nearly", LETTERS, [1.0, 1.0, 1.0, 0.0])]
    teachers = {"solved": [_teacher("N")], "nearly": [_teacher("N")]}
    online = hybrid(_rollouts(*rollouts), teachers, all_correct_group="online")
    assert online.is_teacher.nonzero().flatten().tolist() == [5]
    assert online.prompts_without_teacher == 0
    assert not online.similarity.isnan().any()  # the bonus still needs it
    for other in ("keep", "clip"):
        batch = hybrid(_rollouts(*rollouts), teachers, all_correct_group=other)
        assert batch.is_teacher.nonzero().flatten().tolist() == [1, 5]


@pytest.mark.parametrize(("low", "taught"), [(0.0, [0, 1, 2]), (0.25, [1, 2]), (0.26, [2]), (0.75, [2])])
def test_teachers_enter_where_no_less_than_the_gates_lower_end_is_solved(hybrid, low, taught):
    rewards = (WRONG, [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0], RIGHT)
    groups = [(str(number), LETTERS, each) for number, each in enumerate(rewards)]
    teachers = {uid: [_teacher("N")] for uid, *_ in groups}
    batch = hybrid(_rollouts(*groups), teachers, teacher_gate_low=low, teacher_gate=0.75)
    assert batch.is_teacher.nonzero().flatten().tolist() == [4 * group + 1 for group in taught]


@pytest.mark.parametrize(
    ("gate", "taught"),
    [(0.0, [0]), (0.24, [0]), (0.25, [0, 1]), (0.99, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
)
def test_teachers_enter_where_no_more_than_the_gate_is_solved(hybrid, gate, taught):
    """Of four rollouts none, one, three and all are right; only the rewards of form differ from that."""
    rewards = (WRONG, [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0], RIGHT)
    groups = [(str(number), LETTERS, each) for number, each in enumerate(rewards)]
    teachers = {uid: [_teacher("N")] for uid, *_ in groups}
    batch = hybrid(_rollouts(*groups), teachers, teacher_gate=gate)
    assert batch.is_teacher.nonzero().flatten().tolist() == [4 * group + 1 for group in taught]
    assert batch.prompts_without_teacher == 0
    open_to_unsolved = hybrid(_rollouts(*groups), teachers, teacher_gate=gate, all_correct_group="online")
    assert open_to_unsolved.is_teacher.nonzero().flatten().tolist() == [4 * group + 1 for group in taught if group < 3]


def test_of_a_taught_group_the_teachers_alone_are_trained_where_that_is_asked_for(hybrid):
    groups = [("taught", LETTERS, WRONG), ("none", LETTERS, WRONG), ("taught", LETTERS, RIGHT)]
    teachers, settings = {"taught": [_teacher("N"), _teacher("E")]}, {"teacher_gate": 0.5, "max_replace_num": 2}
    batch = hybrid(_rollouts(*groups), teachers, taught_group="teachers", **settings)
    assert batch.is_teacher.tolist() == [True, True, False, False] + [False] * 8  # bb, then a, are the most similar
    assert batch.left_out.tolist() == [False, False, True, True] + [False] * 8
    assert not hybrid(_rollouts(*groups), teachers, **settings).left_out.any()


@pytest.mark.parametrize("mode", ["similarity_mean_des", "random"])
def test_the_same_seed_draws_the_same_teachers_and_another_seed_others(hybrid, mode):
    def drawn(seed: int) -> dict[int, str]:
        rollouts = _rollouts(*((uid, LETTERS, WRONG) for uid in "uvwxyz"))
        teachers = {uid: [_teacher(text) for text in ("E", "N", "W")] for uid in "uvwxyz"}
        batch = hybrid(rollouts, teachers, seed=seed, replace_mode=mode)
        return {row: teacher.text for row, teacher in batch.injected.items()}

    assert drawn(3) == drawn(3)
    assert len({tuple(drawn(seed).items()) for seed in range(10)}) > 5


def _drawn(hybrid, uids: str, **settings: Any) -> dict[str, tuple[int, str]]:
    """For each prompt the place in its group that a teacher took, and its text."""
    rollouts = _rollouts(*((uid, LETTERS, WRONG) for uid in uids))
    teachers = {uid: [_teacher(text) for text in ("E", "N", "W")] for uid in "uvwxyz"}
    batch = hybrid(rollouts, teachers, **settings)
    return {uids[row // GROUP]: (row % GROUP, teacher.text) for row, teacher in batch.injected.items()}


@pytest.mark.parametrize("mode", ["similarity_mean_des", "random"])
def test_what_is_drawn_for_a_prompt_follows_from_seed_uid_and_step_alone(hybrid, mode):
    drawn = _drawn(hybrid, "uvwxyz", replace_mode=mode)
    assert _drawn(hybrid, "zyxwvu", replace_mode=mode) == drawn
    assert _drawn(hybrid, "wz", replace_mode=mode) == {uid: drawn[uid] for uid in "wz"}
    assert len({text for _, text in drawn.values()}) > 1  # not one draw for all prompts
    steps = [tuple(_drawn(hybrid, "u", replace_mode=mode, step=step).values()) for step in range(1, 21)]
    assert len({text for ((_, text),) in steps}) == 3  # every teacher has its turn over the steps


# ---- the loss

LONGEST = 9  # rollout.max_new_tokens


def _loss(aggregation: str, **settings: Any) -> HybridPolicyLoss:
    return HybridPolicyLoss(
        SimpleNamespace(
            rollout=SimpleNamespace(max_new_tokens=LONGEST),
            actor=SimpleNamespace(eps_clip_low_high=[0.2, 0.2], dual_clip=None),
            oger=LossSettings(loss_aggregation=aggregation, **settings),
        )
    )


@pytest.fixture
def items(hybrid) -> list[Experience]:
    """Eight rows of the replay buffer, two of them teachers', with log-probabilities and advantages."""
    rollouts = _rollouts(("first", LETTERS, WRONG), ("second", LETTERS[::-1], WRONG))
    batch = hybrid(rollouts, {"first": [_teacher("NNNNNN")], "second": [_teacher("NN")]})
    joined = Experience.concat_experiences(batch.samples, PAD)
    generator = torch.Generator().manual_seed(1)
    joined.action_log_probs = -2 * torch.rand(joined.action_mask.shape, generator=generator) * joined.action_mask
    joined.advantages = torch.randn(8, 1, generator=generator) * joined.action_mask
    buffer = NaiveReplayBuffer(2)
    buffer.append(joined)
    return buffer.items


def _policy(items: list[Experience]) -> list[torch.Tensor]:
    """The policy's log-probabilities of each row, some far enough from the old ones to be clipped."""
    generator = torch.Generator().manual_seed(2)
    return [
        (item.action_log_probs + 0.8 * (torch.rand(item.action_log_probs.shape, generator=generator) - 0.5)).clamp(
            max=0
        )
        for item in items
    ]


def _expected_gradient(items: list[Experience], aggregation: str) -> list[list[float]]:
    """Token by token from the formulas of the method; gamma = 0.1 and clipping at 0.2 on both sides."""
    lengths = [int(item.action_mask.sum()) for item in items]
    gradient = []
    for item, policy, length in zip(items, _policy(items), lengths, strict=True):
        row = []
        for log_prob, old, advantage, is_action in zip(
            policy.tolist(),
            item.action_log_probs.tolist(),
            item.advantages.tolist(),
            item.action_mask.tolist(),
            strict=True,
        ):
            p, ratio = math.exp(log_prob), math.exp(log_prob - old)
            if item.info["off_policy_tokens"] > 0:
                slope = p * 0.1 / (p + 0.1) ** 2
            else:
                clipped = ratio > 1.2 if advantage > 0 else ratio < 0.8
                slope = 0.0 if clipped else ratio
            divisor = {
                "token_mean": sum(lengths),
                "sequence_mean": len(items) * length,
                "constant": len(items) * LONGEST,
            }
            row.append(-advantage * slope / divisor[aggregation] if is_action else 0.0)
        gradient.append(row)
    return gradient


def _accumulate(
    items: list[Experience], leaves: list[torch.Tensor], packs: list[list[int]], aggregation: str, totals: dict | None
) -> float:
    """Backward of every micro-batch, scaled as DeepSpeed does; the totals are OpenRLHF's unless given."""
    loss_fn, gas, total = _loss(aggregation), len(packs), 0.0
    batches = [(pack, make_experience_batch([items[row] for row in pack])) for pack in packs]
    for (pack, batch), info in iter_grad_accum_global_norm(iter(batches), None, gas, lambda pair: pair[1].action_mask):
        loss_fn.given = Given(torch.tensor(_mask_of(batch)))
        log_probs = torch.nn.utils.rnn.pad_sequence([leaves[row] for row in pack], batch_first=True)
        loss, *_ = loss_fn(
            log_probs,
            batch.action_log_probs,
            batch.advantages,
            action_mask=batch.action_mask,
            rollout_log_probs=None,
            **(totals or info),
        )
        (loss / gas).backward()
        total += loss.item() / gas
    return total


def _gradient(leaves: list[torch.Tensor]) -> list[list[float]]:
    return [[0.0] * len(leaf) if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]


CUTS = [
    [[0, 1, 2, 3, 4, 5, 6, 7]],
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[6, 0], [1, 5], [4, 3], [2, 7]],
    [[row] for row in range(8)],
    [[0, 2, 4, 5, 7], [1], [3, 6]],
]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_micro_batches_however_cut_give_the_gradient_of_the_formulas(items, aggregation):
    expected = _expected_gradient(items, aggregation)
    losses = []
    for packs in CUTS:
        leaves = [log_probs.requires_grad_() for log_probs in _policy(items)]
        losses.append(_accumulate(items, leaves, packs, aggregation, None))
        for ours, theirs in zip(_gradient(leaves), expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-7)
    assert losses == pytest.approx([losses[0]] * len(CUTS), rel=1e-5)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("ranks", [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]], [[[5, 1, 0], [7]], [[2], [3, 4, 6]]]])
def test_the_average_over_two_ranks_is_the_gradient_of_the_whole(items, aggregation, ranks):
    tokens = sum(int(item.action_mask.sum()) for item in items)
    totals = {
        "dp_size": 2,
        "batch_num_tokens": torch.tensor(tokens / 2),  # both ranks' tokens over two micro-batches
        "global_batch_size": torch.tensor(8 / 2),
    }
    leaves = [log_probs.requires_grad_() for log_probs in _policy(items)]
    for packs in ranks:
        _accumulate(items, leaves, packs, aggregation, totals)
    for ours, theirs in zip(_gradient(leaves), _expected_gradient(items, aggregation), strict=True):
        assert [value / 2 for value in ours] == pytest.approx(theirs, rel=1e-4, abs=1e-7)


def test_the_rows_of_the_loss_tests_hold_clipped_unclipped_and_teacher_tokens(items):
    gradient = _expected_gradient(items, "constant")
    teachers = [item.info["off_policy_tokens"].item() > 0 for item in items]
    assert teachers == [False, True, False, False, False, False, True, False]
    tokens = [
        (value == 0)
        for row, item, teacher in zip(gradient, items, teachers, strict=True)
        if not teacher
        for value, is_action in zip(row, item.action_mask.tolist(), strict=True)
        if is_action
    ]
    assert 0 < sum(tokens) < len(tokens)


def _expected_supervised_gradient(items: list[Experience], aggregation: str) -> list[list[float]]:
    """-log p averaged over 7 + 3 teacher tokens, times 2; rollouts have PPO's loss with totals of their own.

    There are six rollouts among the eight rows; `constant` alone divides by all rows.
    """
    tokens = sum(int(item.action_mask.sum()) for item in items)
    rescaled = {"token_mean": tokens / (tokens - 10), "sequence_mean": 8 / 6, "constant": 1.0}[aggregation]
    return [
        [-2 / 10 * float(is_action) for is_action in item.action_mask]
        if item.info["off_policy_tokens"] > 0
        else [rescaled * value for value in row]
        for item, row in zip(items, _expected_gradient(items, aggregation), strict=True)
    ]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("packs", CUTS, ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_the_supervised_loss_is_one_mean_over_the_steps_teacher_tokens_however_cut(
    items, packs, aggregation, dynamic, nested, monkeypatch
):
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)
    args = nested(
        f"--rollout.max_new_tokens={LONGEST}", f"--oger.loss_aggregation={aggregation}", "--oger.off_policy_loss=sft",
        "--oger.sft_loss_coef=2", "--train.micro_batch_size=1",
    )  # fmt: skip
    trainer = OgerActorPPOTrainer(Strategy(args), None, None, None, None)
    loss_fn = trainer.actor_loss_fn
    leaves = [log_probs.requires_grad_() for log_probs in _policy(items)]
    batches = [make_experience_batch([items[row] for row in pack]) for pack in packs]
    if dynamic:
        # Another optimizer step, of one row, goes before; OpenRLHF's totals are those of the step, undivided.
        buffer = trainer.replay_buffer
        buffer.items, buffer.dynamic_indices = items, [[1], *packs]
        buffer.dynamic_optimizer_step = [1] + [0] * (len(packs) - 1) + [1]
        tokens = torch.tensor(float(sum(int(item.action_mask.sum()) for item in items)))
        totals = {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": torch.tensor(8.0)}
        steps, scale = [(batch, totals) for batch in batches], 1
    else:
        steps = trainer._with_totals(iter(batches), None, len(packs), lambda experience: experience.action_mask)
        scale = len(packs)  # DeepSpeed divides by it
    for number, (pack, (batch, totals)) in enumerate(zip(packs, steps, strict=True), start=1):
        if dynamic:
            of_kinds = trainer._totals_of_dynamic_step(number, batch.action_mask.device)
        else:
            of_kinds = totals.pop("of_kinds")
        loss_fn.given = Given(torch.tensor(_mask_of(batch)), **of_kinds)
        log_probs = torch.nn.utils.rnn.pad_sequence([leaves[row] for row in pack], batch_first=True)
        arguments = {"action_mask": batch.action_mask, "rollout_log_probs": None} | totals
        loss, *_ = loss_fn(log_probs, batch.action_log_probs, batch.advantages, **arguments)
        (loss / scale).backward()
    for row, expected in zip(_gradient(leaves), _expected_supervised_gradient(items, aggregation), strict=True):
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_a_known_teacher_probability_stands_where_one_is_assumed(items):
    loss_fn = _loss("token_mean", off_policy_reshape="no_reshape")
    row = next(item for item in items if item.info["off_policy_tokens"] == 3)
    batch = make_experience_batch([row])
    mask = torch.tensor(_mask_of(batch))
    known = torch.where(mask, math.log(0.5), math.nan)
    known[0, -1] = math.nan
    loss_fn.given = Given(mask, teacher_log_probs=known)
    log_probs = batch.action_log_probs.clone().requires_grad_()
    arguments = {"action_mask": batch.action_mask, "rollout_log_probs": None, "dp_size": 1}
    loss, *_ = loss_fn(
        log_probs, batch.action_log_probs, batch.advantages, batch_num_tokens=3.0, global_batch_size=1.0, **arguments
    )
    p = batch.action_log_probs[0].exp()[-3:]
    ratios = torch.stack([p[0] / (0.5 + 1e-6), p[1] / (0.5 + 1e-6), p[2]])  # the last one's is not known: p / 1
    assert loss.item() == pytest.approx(-(batch.advantages[0, -1] * ratios).mean().item(), rel=1e-5)
