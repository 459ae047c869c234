"""The flags of the seed's command by their names: from the command line to what they change, with nothing in between.

What the parts do with a setting is tested beside them; here a setting that is parsed and lost on its way is found.
test_every_setting.py says of each where that is.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from openrlhf.utils.config import hierarchize

from oger_recipe.base.files import write_jsonl
from oger_recipe.embedding.similarity import RerankerSimilarity, make_similarity
from oger_recipe.pipeline.policy.loss import Given, HybridPolicyLoss
from oger_recipe.settings.encoder import EmbeddingSettings
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.teachers.store import Teacher, TeacherStore


@pytest.fixture(scope="module")
def arguments(parser: argparse.ArgumentParser):
    """The nested namespace that OpenRLHF's processes get, from flags."""

    def nested(*flags: str) -> argparse.Namespace:
        args = hierarchize(parser.parse_args(list(flags)))
        args.actor.eps_clip_low_high = args.actor.eps_clip_low_high or (args.actor.eps_clip, args.actor.eps_clip)
        return args

    return nested


# A group: correct, correct, wrong, and the one most similar to the teacher, which takes its place. Similarity to the
# teacher, and entropy at the last token; with the defaults the rewards are 1 + 0.7 * 1, 1 + 0.4 * 0.5, 0 and the
# teacher's own 1.
SIMILARITY = (0.3, 0.6, 0.5, 0.9)
ENTROPY = (0.0, 0.6931471805599453, 0.0, 0.0)
SCORES = (1.0, 1.0, 0.0, 0.0)


@pytest.fixture()
def advantages(controller, models, rollout, letters):
    """The advantages of the group at the second of three steps, from flags."""

    def found(
        *flags: str, scores: tuple[float, ...] = SCORES, similarity: tuple[float, ...] = SIMILARITY
    ) -> list[float]:
        circles = "--oger.repeating_check" in flags
        texts = ["18", "So 1 + 1 = 2. " * 100 if circles else "19", "20", "21"]
        models.similarity = dict(zip(texts, similarity, strict=True))
        models.entropy = dict(zip(texts, ENTROPY, strict=True))
        teacher = Teacher("a teacher", "ok", [*letters.encode("ok"), letters.eos_token_id], 1.0, 1.0)
        maker = controller(*flags, teachers={"u": [teacher]}, steps=3)
        maker.step = 2
        (experience,) = maker.make_experience_batch(list(map(rollout, texts, scores)))
        first = experience.action_mask.long().argmax(dim=1, keepdim=True)
        by_row = experience.advantages.gather(1, first).flatten().tolist()
        return [value for _, value in sorted(zip(experience.index, by_row, strict=True))]

    return found


def _said(value: object) -> str:
    return " ".join(value) if isinstance(value, list) and value and isinstance(value[0], str) else ""


def _centred(*rewards: float) -> list[float]:
    return [reward - sum(rewards) / len(rewards) for reward in rewards]


def _standardised(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return [(value - mean) / variance**0.5 for value in values]


PASS_AT_K = ["--algo.advantage.estimator", "pass_at_k"]
OF_ADVANTAGES: list[tuple[list[str], list[float]]] = [
    ([], _centred(1.7, 1.2, 0, 1)),
    (["--oger.max_replace_num", "0"], _centred(1.7, 1.2, 0, 0)),
    (["--no-oger.replace_after_rm"], _centred(1.7, 1.2, 0, 0)),  # he would have entered before
    (["--oger.replace_mode", "similarity_mean_asc"], _centred(1, 1.2, 0, 0)),
    (["--oger.bonus_weight", "0"], _centred(1, 1, 0, 1)),
    (["--oger.bonus_weight", "0.5"], _centred(1.35, 1.1, 0, 1)),
    (["--no-oger.similarity_reverse"], _centred(1.3, 1.3, 0, 1)),
    (["--oger.similarity_reverse_fail"], _centred(1.7, 1.2, 0.5, 1)),
    (["--oger.similarity_shaping", "group_minmax"], _centred(2.0, 1.0, 0, 1)),
    (["--oger.last_token_enp_reward", "none"], _centred(1.7, 1.4, 0, 1)),
    (["--oger.last_token_enp_reward", "entropy"], _centred(1.0, 1 + 0.4 * 0.6931471805599453, 0, 1)),
    (["--oger.bonus_schedule", "linear"], _centred(1.35, 1.1, 0, 1)),  # half way to 0
    (["--oger.bonus_schedule", "linear", "--oger.bonus_weight_end", "2"], _centred(2.05, 1.3, 0, 1)),
    (["--oger.repeating_check"], _centred(1.7, 1.0, 0, 1)),
    (["--oger.advantage_baseline", "rollouts"], [reward - 2.9 / 3 for reward in (1.7, 1.2, 0, 1)]),
    # Three of four rows are right (the teacher too): draws of one have mean 3/4; of the rollouts alone 2/3.
    ([*PASS_AT_K, "--oger.pass_at_k", "1"], [(1 / 3) ** 0.5] * 2 + [-(3**0.5), (1 / 3) ** 0.5]),
    (
        [*PASS_AT_K, "--oger.pass_at_k", "1", "--oger.advantage_baseline", "rollouts"],
        [0.5**0.5, 0.5**0.5, -(2**0.5), 0.5**0.5],
    ),
    ([*PASS_AT_K, "--oger.pass_at_k", "2"], [0.0] * 4),  # two rows are never both wrong
    (["--oger.prefix_reward_weight_alpha", "2"], [0.725, 0.225, -0.975, 2 * 0.025]),
    (["--oger.prefix_reward_weight_beta", "2"], [1.45, 0.45, -1.95, 0.025]),
    (["--oger.use_sft_prefix_reward"], [0.725, 0.225, -0.975, 1 / 4]),
    (
        ["--oger.use_sft_prefix_reward", "--oger.sft_prefix_reward_weight", "3"],
        [0.725, 0.225, -0.975, 3 / 4],
    ),
    (
        ["--oger.bonus_schedule", "linear", "--oger.bonus_schedule_steps", "5"],  # a quarter of the way
        _centred(1 + 0.75 * 0.7, 1 + 0.75 * 0.2, 0, 1),
    ),
]


@pytest.mark.parametrize(("flags", "expected"), OF_ADVANTAGES, ids=_said)
def test_flags_of_bonus_and_advantage(advantages, flags: list[str], expected: list[float]) -> None:
    assert advantages(*flags) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("flags", "rewards"),
    [
        ([], (1 + 0.0, 1 + 1.0 * 0.5, 0, 0)),
        # Less the mean (1/2, 1/2) the vectors are +-(1, -1), the teacher's is (1, -1): similarities 1, -1, 1, -1.
        (["--oger.similarity_centred"], (1 + 0.0, 1 + 2.0 * 0.5, 0, 0)),
    ],
)
def test_rollouts_may_be_compared_with_teachers_by_what_sets_them_apart(advantages, flags, rewards) -> None:
    """Rollouts (1, 0), (0, 1), (1, 0), (0, 1) and a teacher (1, 0)."""
    found = advantages("--oger.max_replace_num", "0", *flags, similarity=(1.0, 0.0, 1.0, 0.0))
    assert found == pytest.approx(_centred(*rewards), abs=1e-6)


def test_the_estimator_with_std(advantages) -> None:
    plain = torch.tensor(_centred(1.7, 1.2, 0, 1))
    std = (plain.square().sum() / 3).sqrt()
    found = advantages("--algo.advantage.estimator", "group_norm")
    assert found == pytest.approx((plain / (std + 1e-6)).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # Leave one out: each row's reward less the mean of the other three.
        ("rloo", [1.7 - 2.2 / 3, 1.2 - 2.7 / 3, 0 - 3.9 / 3, 1 - 2.9 / 3]),
        # The group's mean subtracted, and REINFORCE++: both then centred and divided by the std of all tokens.
        ("reinforce_baseline", _standardised(_centred(1.7, 1.2, 0, 1))),
        ("reinforce", _standardised([1.7, 1.2, 0, 1])),
    ],
)
def test_openrlhfs_estimators_take_teachers_as_members_of_the_group(advantages, estimator, expected) -> None:
    assert advantages("--algo.advantage.estimator", estimator) == pytest.approx(expected, abs=1e-5)


def test_a_solved_group_need_not_push_its_teacher_down(advantages) -> None:
    solved = (1.0,) * 4
    kept = advantages(scores=solved)
    assert kept[3] < 0
    assert advantages("--oger.all_correct_group", "clip", scores=solved) == pytest.approx([*kept[:3], 0.0])


# Of the policy's own tokens, "#### 2" has six at most, with its end.
TEACHERS = [{"source": "a", "text": "#### 2"}, {"source": "b", "text": "#### 3"}]
TEACHERS.append({"source": "c", "text": "It is two, as one and one are two. #### 2"})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "ac"),
        (["--oger.keep_wrong_teachers"], "abc"),
        (["--oger.teacher_sources", "c", "b"], "c"),
        (["--oger.max_prefix_len", "8"], "a"),
        (["--oger.max_prefix_len", "8", "--oger.long_teachers", "truncate", "--oger.keep_wrong_teachers"], "abc"),
        (["--oger.teacher_key", "others"], "d"),
    ],
    ids=_said,
)
def test_flags_that_choose_the_teachers(run, tmp_path: Path, flags: list[str], expected: str) -> None:
    row = {"question": "1+1?", "answer": 2, "uid": "u", "teachers": TEACHERS}
    row["others"] = [{"source": "d", "text": "#### 2"}]
    write_jsonl(
        [row, {"question": "2+1?", "answer": 3, "uid": "v"} | {"teachers": [], "others": []}], Path("train.jsonl")
    )
    run("--oger.max_replace_num=1", *flags)
    store = TeacherStore(tmp_path / "run" / "data" / "teachers.arrow")
    assert sorted(teacher.source for teacher in store["u"]) == list(expected)


def test_the_template_of_a_prompt_that_shows_a_teacher(run, tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": 2, "uid": uid, "teachers": TEACHERS} for uid in "uv"]
    write_jsonl(rows, Path("train.jsonl"))
    flags = ("--oger.max_replace_num=0", "--oger.hint_share=0.5", "--rollout.max_new_tokens=32")
    run(*flags, "--oger.shown_template", "{teacher}: {question}")
    store = TeacherStore(tmp_path / "run" / "data" / "teachers.arrow")
    assert "ab: 1+1?" in store.shown_prompt("u", "ab")


LOG_PROBS = torch.tensor([[-0.1, -1.5], [-0.3, -2.5]])
OLD_LOG_PROBS = torch.tensor([[-0.9, -1.4], [-0.4, -2.4]])
ADVANTAGES = torch.tensor([[1.0, 1.0], [0.5, 0.5]])
MASK = torch.tensor([[1, 1], [1, 0]])
RATIO = (LOG_PROBS - OLD_LOG_PROBS).exp()
P = LOG_PROBS[1, 0].exp()


def _loss(args: argparse.Namespace, advantages: torch.Tensor = ADVANTAGES) -> float:
    """Of a rollout of two tokens and of a teacher of one; the longest response has ten."""
    args.rollout.max_new_tokens = 10
    loss = HybridPolicyLoss(args)
    loss.given = Given(torch.tensor([[False, False], [True, False]]))
    return loss(LOG_PROBS, OLD_LOG_PROBS, advantages, MASK, None, 1, None, None)[0].item()


# What the tokens lose, and what their sum is divided by; RATIO[0] is 2.23 and 0.905.
OF_LOSS: list[tuple[list[str], list, int]] = [
    ([], [1.2, RATIO[0, 1], 0.5 * P / (P + 0.1)], 20),
    (["--actor.eps_clip", "0.3"], [1.3, RATIO[0, 1], 0.5 * P / (P + 0.1)], 20),
    (["--oger.loss_remove_clip"], [RATIO[0, 0], RATIO[0, 1], 0.5 * P / (P + 0.1)], 20),
    (["--oger.loss_aggregation", "token_mean"], [1.2, RATIO[0, 1], 0.5 * P / (P + 0.1)], 3),
    (["--oger.off_policy_reshape", "p_div_p_0.5"], [1.2, RATIO[0, 1], 0.5 * P / (P + 0.5)], 20),
    (["--oger.off_policy_reshape", "no_reshape"], [1.2, RATIO[0, 1], 0.5 * P], 20),
    (
        ["--oger.off_policy_reshape", "pow", "--oger.off_policy_reshape_pow_exp", "2"],
        [1.2, RATIO[0, 1], 0.5 * P**2],
        20,
    ),
    (["--oger.off_policy_max_clip", "0.5"], [1.2, RATIO[0, 1], 0.5 * 0.5], 20),
    (["--oger.off_policy_min_clip", "0.95"], [1.2, RATIO[0, 1], 0.5 * 0.95], 20),
    (["--oger.off_policy_loss", "ppo"], [1.2, RATIO[0, 1], 0.5 * RATIO[1, 0]], 20),
    (["--actor.eps_clip_low_high", "0.1", "0.4"], [1.4, RATIO[0, 1], 0.5 * P / (P + 0.1)], 20),
    (["--oger.off_policy_reshape", "p_logp"], [1.2, RATIO[0, 1], 0.5 * (P - 0.1 * 0.3)], 20),
    (
        ["--oger.off_policy_reshape", "p_logp", "--oger.off_policy_reshape_weight", "0.4"],
        [1.2, RATIO[0, 1], 0.5 * (P - 0.4 * 0.3)],
        20,
    ),
    (["--oger.on_policy_reshape", "p_logp"], [1.2, RATIO[0, 1] - 0.1 * 0.1, 0.5 * P / (P + 0.1)], 20),
    (
        ["--oger.on_policy_reshape", "p_logp", "--oger.on_policy_reshape_weight", "0.4"],
        [1.2, RATIO[0, 1] - 0.4 * 0.1, 0.5 * P / (P + 0.1)],
        20,
    ),
    (["--oger.on_policy_reshape", "pow"], [1.2, RATIO[0, 1] ** 0.5, 0.5 * P / (P + 0.1)], 20),
    (
        ["--oger.on_policy_reshape", "pow", "--oger.on_policy_reshape_pow_exp", "2"],
        [1.2, RATIO[0, 1] ** 2, 0.5 * P / (P + 0.1)],
        20,
    ),
    (["--oger.all_max_clip", "0.8"], [RATIO[0, 1], 0.5 * P / (P + 0.1)], 20),  # p: 0.905, 0.223; 0.741
]


@pytest.mark.parametrize(("flags", "terms", "denominator"), OF_LOSS, ids=_said)
def test_flags_of_the_loss(arguments, flags: list[str], terms: list, denominator: int) -> None:
    expected = -sum(float(term) for term in terms) / denominator
    assert _loss(arguments(*flags)) == pytest.approx(expected, rel=1e-5)


def test_the_lower_clip_is_the_first_of_the_two(arguments) -> None:
    terms = [-RATIO[0, 0], -0.95, -0.5 * P / (P + 0.1)]  # 0.905 is below 1 - 0.05, and so is no longer pushed down
    expected = -sum(float(term) for term in terms) / 20
    found = _loss(arguments("--actor.eps_clip_low_high", "0.05", "0.4"), -ADVANTAGES)
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_supervised_loss_and_its_weight(arguments) -> None:
    """Rollouts and the teacher's -log p are added; the weight is the teacher's part's alone."""
    one = _loss(arguments("--oger.off_policy_loss", "sft", "--oger.sft_loss_coef", "1"))
    three = _loss(arguments("--oger.off_policy_loss", "sft", "--oger.sft_loss_coef", "3"))
    assert three - one == pytest.approx(2 * 0.3, rel=1e-5)


def embedding(args: argparse.Namespace) -> EmbeddingSettings:
    return EmbeddingSettings.of(args.oger)


def test_flags_that_choose_the_measure(arguments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = []
    monkeypatch.setattr("oger_recipe.embedding.similarity.Reranker", lambda *values: made.append(values))
    assert isinstance(
        make_similarity(embedding(arguments("--oger.similarity_reranker", "a/model"))),
        RerankerSimilarity,
    )
    flags = ["--oger.embedding_max_tokens", "512", "--oger.embedding_trust_remote_code"]
    make_similarity(embedding(arguments("--oger.similarity_reranker", "a/model", *flags)))
    assert made == [("a/model", 256, 32, False), ("a/model", 512, 16, True)]

    chosen = []

    def encoder(settings, batch_size):
        chosen.append(settings)
        assert batch_size == 16
        return SimpleNamespace(settings=settings, dimension=3)

    flags += ["--oger.embedding_model", "b/model", "--oger.embedding_long_texts", "tail"]
    flags += ["--oger.embedding_part", "answer"]
    flags += ["--oger.embedding_url", "http://127.0.0.1:1/v1", "--oger.embedding_cache", str(tmp_path)]
    flags += ["--oger.embedding_revision", "c", "--oger.embedding_layers", "2"]
    make_similarity(embedding(arguments(*flags)), encoder)
    assert any(tmp_path.iterdir())
    assert (chosen[0].revision, chosen[0].max_tokens, chosen[0].trust_remote_code) == ("c", 512, True)
    assert chosen[0].layers == 2
    assert (chosen[0].model, chosen[0].long_texts, chosen[0].url) == ("b/model", "tail", "http://127.0.0.1:1/v1")
    assert chosen[0].part == "answer"


def test_a_reranker_reads_the_part_that_is_asked_for(arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Reranker:
        def __init__(self, *_) -> None: ...

        def similarity(self, pairs: list[tuple[str, str]]) -> torch.Tensor:
            asked.extend(pairs)
            return torch.full((len(pairs),), 0.5)

    monkeypatch.setattr("oger_recipe.embedding.similarity.Reranker", Reranker)
    measure = make_similarity(
        embedding(arguments("--oger.similarity_reranker", "a", "--oger.embedding_part", "answer"))
    )
    assert measure.of_groups([["x</think>y", "z"]], [["a</think>b"]], "mean").tolist() == [[0.5, 0.5]]
    assert asked == [("y", "b"), ("z", "b")]


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ([], True),
        (["--oger.bonus_weight", "0"], True),
        (["--oger.bonus_weight", "0", "--oger.replace_mode", "random"], False),
        (["--oger.bonus_weight", "0", "--oger.max_replace_num", "0"], False),
        (["--oger.bonus_weight", "0", "--no-oger.replace_after_rm"], False),
        (["--oger.replace_mode", "random"], True),
    ],
)
def test_nothing_is_embedded_for_a_run_that_compares_nothing(arguments, flags: list[str], needed: bool) -> None:
    assert OgerSettings.of(arguments(*flags).oger).compares == needed
