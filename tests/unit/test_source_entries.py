"""What an entry of oger.reward.sources may say, and how it is told what is wrong with one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from oger_recipe.rewards.compose import ON_ERROR
from oger_recipe.rewards.kinds import KINDS
from oger_recipe.rewards.kinds.bonus import BonusKeys
from oger_recipe.rewards.kinds.classifier import ClassifierKeys, CritiqueKeys
from oger_recipe.rewards.kinds.entries import DEFAULT, as_today, entry_problems, sources_of
from oger_recipe.rewards.kinds.own import OwnKeys
from oger_recipe.rewards.kinds.pairwise import PairwiseKeys
from oger_recipe.rewards.kinds.verifier import VerifierKeys
from oger_recipe.rewards.spec import COMBINATIONS, SourceSpec
from oger_recipe.settings.rewards import named_source


def listed(*entries: Any) -> list[str]:
    return list(entry_problems(entries))


def test_a_right_list_is_read_and_no_list_is_the_default() -> None:
    entries = [
        {"name": "rule", "kind": "verifier"},
        {"name": "short", "kind": "mine_of_compose:score", "weight": 0.5, "combine": "mul", "gate": "rule_equals_1"},
        {"name": "explore", "kind": "bonus"},
    ]
    assert listed(*entries) == [] == listed()
    assert sources_of(entries) == (
        SourceSpec("rule", "verifier", 1.0, "add", "always", keys=VerifierKeys()),
        SourceSpec(
            "short", "mine_of_compose:score", 0.5, "mul", "rule_equals_1", keys=OwnKeys(path="mine_of_compose:score")
        ),
        SourceSpec("explore", "bonus", keys=BonusKeys()),
    )
    assert sources_of(()) == sources_of(None) == DEFAULT
    assert [(spec.kind, spec.weight, spec.combine, spec.gate) for spec in DEFAULT] == [
        ("verifier", 1.0, "add", "always"),
        ("bonus", 1.0, "add", "always"),
    ]


RULE_ENTRY = {"name": "rule", "kind": "verifier"}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("verifier", "'verifier' is not a mapping: {name: ..., kind: ...}"),
        ({"kind": "bonus"}, "name None: use only letters"),
        ({"name": "a/b", "kind": "bonus"}, "name 'a/b': use only letters"),
        ({"name": "a", "kind": "critic"}, f"kind 'critic' is unknown; known: {', '.join(KINDS)}"),
        (
            {"name": "a", "kind": "bonuss"},
            f"kind 'bonuss' is unknown; did you mean 'bonus'? known: {', '.join(KINDS)}",
        ),
        ({"name": "a"}, "kind None is unknown"),
        ({"name": "a", "kind": "bonus", "wieght": 1}, "key 'wieght' is unknown; did you mean 'weight'? known: name"),
        (
            {"name": "a", "kind": "length", "budget": 1, "limit": 2, "worst": -1},
            "worst -1: this source gives -1 to 0",
        ),
        ({"name": "a", "kind": "length", "budget": 1, "limit": 2, "weight": -1}, "long answers would be rewarded"),
        (
            {"name": "a", "kind": "process", "model": "m", "format": "math_shepherd", "weight": -1},
            "weight -1: it must be 0 or more for kind process: wrong steps would be paid more than right ones",
        ),
        (
            {"name": "a", "kind": "mine_of_compose:score", "weight": -1, "combine": "mul"},
            "combine mul with weight -1: values below 0 would flip the sign of the total; use combine add",
        ),
        (
            {"name": "a", "kind": "length", "budget": 1, "limit": 2, "combine": "mul"},
            "combine mul with kind length: values below 0 would flip the sign of the total; use combine add",
        ),
        (
            {
                "name": "a",
                "kind": "process",
                "model": "m",
                "format": "math_shepherd",
                "scale": "difference",
                "combine": "mul",
            },
            "combine mul with scale difference: values below 0 would flip the sign of the total",
        ),
        (
            {"name": "a", "kind": "process", "model": "m", "scorer": "implicit", "reference": "r", "combine": "mul"},
            "combine mul with kind process: values below 0 would flip the sign of the total",
        ),
        ({"name": "a", "kind": "bonus", "combine": "mul"}, "combine mul with kind bonus: rows that earn no bonus"),
        ({"name": "a", "kind": "rubric", "model": "m", "weight": -1}, "weights below 0 are for single criteria"),
        ({"name": "a", "kind": "length", "budget": 2, "limit": 2}, "budget 2 must be below limit 2"),
        ({"name": "a", "kind": "length", "budget": 2}, "limit is missing: tokens from which"),
        (
            {"name": "a", "kind": "mine_of_compose:score", "weight": math.nan},
            "weight nan: it must be a finite number",
        ),
        (
            {"name": "a", "kind": "mine_of_compose:score", "weight": math.inf},
            "weight inf: it must be a finite number",
        ),
        ({"name": "a", "kind": "mine_of_compose:score", "weight": "1"}, "weight '1': it must be a finite number"),
        ({"name": "a", "kind": "mine_of_compose:score", "weight": True}, "weight True: it must be a finite number"),
        ({"name": "a", "kind": "bonus", "weight": 0.5}, "weight 0.5: the weight of the bonus is oger.bonus_weight"),
        ({"name": "a", "kind": "bonus", "combine": "times"}, "combine 'times' is unknown; known: add, mul"),
        ({"name": "a", "kind": "bonus", "gate": "rule_equals"}, "did you mean 'rule_equals_1'? known: always, rule_"),
        ({"name": "a", "kind": "bonus", "combine": ["add"]}, "combine ['add'] is unknown; did you mean 'add'?"),
        ({"name": "a", "kind": "bonus", "normalize": "groups"}, "did you mean 'group'? known: none, group, running"),
        (
            {"name": "a", "kind": "mine_of_compose:score", "normalize": "group", "combine": "mul"},
            "normalize group with combine mul: about every second normalized value is below 0",
        ),
        ({"name": "a", "kind": "similarity", "low": 0.9}, "low 0.9 must be below high 0.85"),
        ({"name": "a", "kind": "similarity", "low": -0.1}, "low -0.1: it must be 0 to 1"),
        ({"name": "a", "kind": "similarity", "floor": math.nan}, "floor nan: it must be 0 to 1"),
        ({"name": "a", "kind": "similarity", "part": "end"}, "part 'end' is unknown; known: all, thought, answer"),
        ({"name": "a", "kind": "similarity", "referense": "x"}, "'referense' is unknown; did you mean 'reference'?"),
        ({"name": "a", "kind": "mine_of_compose:Mute"}, "is a class without a method score(groups, wanted)"),
        (
            {"name": "a", "kind": "mine_of_compose:Length"},
            "cannot be made with these keys: missing a required argument",
        ),
        (
            {"name": "a", "kind": "mine_of_compose:Length", "times": 2, "unti": 1},
            "key 'unti' is unknown; did you mean 'unit'? known: times, unit",
        ),
        (
            {"name": "a", "kind": "mine_of_compose:Length", "times": math.inf},
            "times inf: it must be a finite number",
        ),
        ({"name": "a", "kind": "mine_of_compose:score", "times": 2}, "'times' is unknown: a function of your own has"),
        ({"name": "a", "kind": "mine_of_compose:scores"}, "kind 'mine_of_compose:scores' cannot be imported: Attr"),
        ({"name": "a", "kind": "nowhere:score"}, "kind 'nowhere:score' cannot be imported: ModuleNotFoundError"),
        (
            {"name": "a", "kind": "mine_of_compose:number"},
            "kind 'mine_of_compose:number' is of type int, not a function or a class",
        ),
        (
            {"name": "a", "kind": "mine_of_compose:pair"},
            "cannot be called with one group: missing a required argument",
        ),
    ],
)
def test_what_is_wrong_with_an_entry_is_said_with_its_place(entry: Any, said: str) -> None:
    (problem,) = listed(RULE_ENTRY, entry)
    assert problem.startswith("oger.reward.sources, entry 2: ") and said in problem


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("mine_of_compose:Failing", {"values": 2}),  # takes all
        ("mine_of_compose:Broken", {"why": "x"}),  # by name, though it may be given by place
        ("mine_of_compose:Unsigned", {"times": 2}),
        ("builtins:max", {}),  # without a signature
    ],
)
def test_keys_that_can_be_given_are_not_refused(kind: str, keys: dict[str, Any]) -> None:
    assert listed(RULE_ENTRY, {"name": "a", "kind": kind, **keys}) == []


def test_a_penalty_has_a_weight_below_0_where_more_of_it_may_be_worse() -> None:
    entry = {"name": "a", "kind": "mine_of_compose:score", "weight": -0.2}
    assert listed(RULE_ENTRY, entry) == [] and sources_of([entry])[0].weight == -0.2
    assert listed(RULE_ENTRY, {"name": "a", "kind": "similarity", "weight": -0.2}) == []
    (problem,) = listed({"name": "rule", "kind": "verifier", "weight": -1})
    assert problem.endswith(
        "weight -1: it must be 0 or more for kind verifier: wrong answers would be paid more than right ones"
    )


def test_what_is_wrong_with_the_list_is_said() -> None:
    assert listed(RULE_ENTRY, {"name": "rule", "kind": "bonus"}) == [
        "oger.reward.sources: two sources are named 'rule'"
    ]
    assert listed(RULE_ENTRY, {"name": "again", "kind": "verifier"}) == [
        "oger.reward.sources: 2 sources are of kind verifier: list only one"
    ]
    (problem,) = listed(RULE_ENTRY | {"combine": "mul"})
    assert "entry 1: combine mul: the first source has nothing before it to multiply" in problem
    assert len(listed({"name": "?", "kind": "critic", "weight": math.nan})) == 3  # all at once


def test_what_users_recipes_name_is_there() -> None:
    names = {"verifier", "bonus", "similarity", "judge", "pairwise", "classifier", "critique_classifier", "process"}
    assert {*names, "length", "rubric"} <= KINDS.keys() and {"add", "mul"} <= COMBINATIONS.keys()
    assert {"zero", "neutral", "drop_group", "stop"} <= ON_ERROR.keys()


def test_an_earlier_word_is_taken_and_one_note_says_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    head = {"name": "h", "kind": "classifier", "model": "m"}
    assert [as_today(head | {"place": "process"}) for _ in "12"] == [head | {"place": "in_process"}] * 2
    assert capsys.readouterr().out.count("write place: in_process") == 1
    assert named_source(head | {"place": "process"})["place"] == "in_process"
    assert listed(head | {"place": "in_process"}) == []
    own = {"name": "own", "kind": "mine:Own", "place": "process"}
    assert as_today(own) == own and as_today(head) == head


def test_a_kind_says_how_each_of_its_models_is_asked() -> None:
    """By the windows of the models: a critique stands behind the answer, for the head that reads both."""
    critic, head = CritiqueKeys(model="head", critic="critic", max_new_tokens=7).questions()
    assert (critic.model.model, critic.example, critic.responses, critic.room) == ("critic", "x", 1, 7)
    assert (head.model.model, head.example, head.responses, head.room) == ("head", ["x", "x"], 1, 7)
    for against, responses in (("answer", 1), ("teacher", 2)):
        (question,) = PairwiseKeys(model="m", against=against, max_new_tokens=7).questions()
        assert (question.example, question.responses, question.room) == (["x", "x"], responses, 7)
    (alone,) = ClassifierKeys(model="m").questions()
    assert (alone.example, alone.responses, alone.room) == ("x", 1, 0)
    assert KINDS["verifier"]().questions() == ()
