"""Kind rubric: criteria of the data, asked by real plugins of a real server, in scores, files and judge-eval."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import groups
import pytest
import torch
import yaml
from judge_server import Answer, Server

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.cli import data, judge_eval
from oger_recipe.cli import score as score_command
from oger_recipe.grading.verifiers import look_in
from oger_recipe.models.plugin import OF_RUBRICS, OF_STEPS, ready_made
from oger_recipe.rewards.kinds.entries import entry_problems, sources_of
from oger_recipe.rewards.kinds.rubric import ASKS, criteria_of
from oger_recipe.rewards.sources import ANSWER, OVERFLOW, Group, Scores
from oger_recipe.rewards.spec import Surroundings
from oger_recipe.run.rows import training_rows

_CRITERION = re.compile(r"^(\d+)\. Has (\w+)$", re.MULTILINE)


def _words(prompt: str) -> tuple[str, dict[int, str]]:
    """The answer of a question, and the word that each criterion asks for."""
    (answer,) = re.findall(r">\n(.*)\n</answer-", prompt)
    return answer, {int(number): word for number, word in _CRITERION.findall(prompt.rpartition("The criteria:")[2])}


def honest(prompt: str) -> str:
    """A judge that looks for the words, and says nothing where the answer has `mute`."""
    answer, words = _words(prompt)
    lines = [f"Criterion {number}: {int(word in answer.split())}" for number, word in words.items()]
    return "\n".join(line for line, word in zip(lines, words.values(), strict=True) if f"mute-{word}" not in answer)


def _said(text: str) -> Answer:
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = list(sys.path)
    look_in([str(tmp_path)])
    yield
    look_in([])
    sys.path[:] = path


@pytest.fixture()
def server() -> Iterator[Server]:
    server = Server()
    server.answer = lambda prompt, count: _said(honest(prompt))
    yield server
    server.end()


def entry(server: Server, **keys: Any) -> dict[str, Any]:
    return {"name": "rubric", "kind": "rubric", "model": "judge", "url": server.url, "api": "chat"} | keys


def scored(entry: dict[str, Any], shown: Sequence[Group], wanted: torch.Tensor | None = None) -> Scores:
    assert list(entry_problems([{"name": "rule", "kind": "verifier"}, entry])) == []
    source = sources_of([entry])[0].source(Surroundings(None, lambda keys: None, seed=7))  # type: ignore
    size = len(shown), len(shown[0].responses)
    return source.score(shown, torch.ones(size, dtype=torch.bool) if wanted is None else wanted)


def group(responses: Sequence[str], rubric: Any, column: str = "rubric") -> Group:
    return groups.group([1.0] * len(responses), responses=list(responses), row={column: rubric})


def has(word: str, weight: float = 1.0) -> dict[str, Any]:
    return {"title": word, "description": f"Has {word}", "weight": weight}


FRUIT = [has("apple", 3), has("pear"), has("worm", -2)]
ROOTS = ["Has carrot"]


@pytest.mark.parametrize("ask", ASKS)
def test_a_response_earns_the_share_of_its_own_rubrics_weights(server: Server, ask: str) -> None:
    fruit = group(["apple pear", "apple worm", "pear mute-apple", "worm"], FRUIT)
    roots = group(["carrot", "apple", "", "carrot worm"], ROOTS)
    said = scored(entry(server, ask=ask), [fruit, roots])
    assert said.values.tolist() == [[1, 1 / 4, 1 / 4, 0], [1, 0, 0, 1]]
    assert said.errors == {} and len(server.asked) == {"each": 4 * 3 + 4, "together": 8}[ask]
    assert said.criteria[0, 1] == {"apple": 1, "pear": 0, "worm": 1}
    assert said.criteria[0, 2] == {"apple": None, "pear": 1, "worm": 0}
    assert said.criteria[1, 0] == {"Has carrot": 1}
    # 16 criteria: apple 2 of 3 that were read, pear 2 of 4, carrot 2 of 4; worm 2 of 4
    of_replies = {
        "cached": 0,
        "cut": 0,
        "unparsed": {"each": 1 / 16, "together": 0}[ask],
        "seconds": ANY,
        "overflow": 0,
    }
    assert said.metrics == of_replies | {"met": pytest.approx(6 / 11), "pitfalls": 0.5, "unread": 1 / 16}


@pytest.mark.parametrize("ask", ASKS)
def test_neither_the_order_of_criteria_nor_the_rows_beside_it_change_a_verdict(server: Server, ask: str) -> None:
    texts = ["apple pear", "apple worm", "pear", "worm apple pear"]
    shown = [group(texts, FRUIT), group(texts, [*FRUIT[::-1], has("plum", 2)]), group(texts, ROOTS)]
    together = scored(entry(server, ask=ask), shown)
    turned = scored(entry(server, ask=ask), [group(texts, FRUIT[::-1])])
    assert turned.values.tolist() == together.values[:1].tolist()
    for at, each in enumerate(shown):
        for row, text in enumerate(texts):
            alone = scored(entry(server, ask=ask), [group([text], each.row["rubric"])])
            assert alone.values.item() == together.values[at, row].item()
            assert alone.criteria[0, 0] == together.criteria[at, row]
            by_hand = {name: float(name.removeprefix("Has ") in text.split()) for name in alone.criteria[0, 0]}
            assert alone.criteria[0, 0] == by_hand
    some = torch.tensor([[False, True, False, True], [False] * 4, [True, False, False, False]])
    part = scored(entry(server, ask=ask), shown, some)
    assert part.values[some].tolist() == together.values[some].tolist() and part.values[~some].isnan().all()
    assert part.criteria == {place: said for place, said in together.criteria.items() if some[place]}


def test_what_fails_costs_its_own_row_and_pays_nobody(server: Server) -> None:
    def answer(prompt: str, count: int) -> Answer:
        text, words = _words(prompt)
        if "refused" in text and "pear" in words.values():
            return 400, {"error": "too long"}
        return _said("I like it" if "liked" in text else honest(prompt))

    server.answer = answer
    texts = ["apple pear", "refused apple pear", "liked apple", "apple"]
    said = scored(entry(server), [group(texts, FRUIT)])
    assert said.values.nan_to_num(-1).tolist() == [[1, -1, -1, 0.75]]
    assert set(said.errors) == {(0, 1), (0, 2)} and "400" in said.errors[0, 1]
    assert said.errors[0, 2] == "no verdict in the judge's reply, which ends 'I like it'"
    assert said.causes == {(0, 1): OVERFLOW, (0, 2): ANSWER}  # the answers' doing: worth the lowest value, 0
    assert sources_of([entry(server)])[0].lowest == 0
    assert set(said.criteria) == {(0, 0), (0, 3)} and said.metrics["unparsed"] == 3 / 11
    # more verdicts than criteria belong to nobody
    server.answer = lambda prompt, count: _said("Criterion 1: 1\nCriterion 4: 1")
    said = scored(entry(server, ask="together"), [group(["apple"], FRUIT)])
    assert said.errors[0, 0].startswith("no verdict: 4 for 3 criteria in the judge's reply")
    for bad in (None, [], "text"):
        said = scored(entry(server), [group(["apple"], bad)])
        assert said.errors[0, 0].startswith("the row's column rubric: a rubric is a list of criteria")


def test_one_grade_by_all_criteria_and_plugins_of_ones_own(server: Server, tmp_path: Path) -> None:
    server.answer = lambda prompt, count: _said(f"Grade: {10 if '2. (weight 1) Has pear' in prompt else 1}")
    said = scored(entry(server, plugin="rubric_grade", ask="together"), [group(["x"], FRUIT), group(["x"], ROOTS)])
    assert said.values.tolist() == [[1], [0]] and said.criteria == {} and said.errors == {}
    (tmp_path / "mine.py").write_text(
        "def rm_preprocess(prompts, rated, tokenizer):\n"
        "    return [r['response'] + '|' + '|'.join(c['description'] for c in r['criteria']) for r in rated]\n"
        "def rm_postprocess(results):\n"
        "    return [[float(part) for part in text.split()] for text in results]\n"
    )
    asked = {"a|Has apple|Has pear|Has worm": "0.5 1", "a|Has carrot": "2"}
    server.answer = lambda prompt, count: _said(asked[prompt])
    mine = entry(server, plugin="mine.py", ask="together", rubric_column="points")
    said = scored(mine, [group(["a"], FRUIT, "points"), group(["a"], ROOTS, "points")])
    assert said.values.nan_to_num(-1).tolist() == [[(1.5 + 1 - 2) / 4], [-1]]  # the worm is not read; 2 is no share
    assert said.criteria == {(0, 0): {"apple": 0.5, "pear": 1, "worm": None}}
    assert "rm_postprocess gave float 2.0, which is not from 0 to 1" in said.errors[1, 0]
    assert said.causes == {(1, 0): ANSWER}


@pytest.mark.parametrize("plugin", ready_made())
def test_each_ready_made_plugin_is_for_its_kind(server: Server, plugin: str) -> None:
    of_kind = entry(server, plugin=plugin, ask="together")
    judge = {"name": "j", "kind": "judge", "model": "judge", "url": server.url, "api": "chat", "plugin": plugin}
    assert (list(entry_problems([of_kind])) == []) == (plugin in OF_RUBRICS)
    assert (list(entry_problems([judge])) == []) == (plugin not in (*OF_RUBRICS, *OF_STEPS))
    if plugin in OF_RUBRICS and plugin != "rubric":
        (said,) = entry_problems([of_kind | {"ask": "each"}])
        assert f"plugin {plugin!r} grades by all criteria at once: it needs ask: together" in said


# ---- data


ROWS = [
    {"uid": f"u{n}", "prompt": f"{n}?", "answer": "1", "task": "gsm8k", "rubric": rubric}
    for n, rubric in enumerate([FRUIT, ROOTS, [has("a"), has("b", 2) | {"title": None}]])
]


def _bad(n: int, rubric: Any) -> list[dict[str, Any]]:
    return [row | {"rubric": rubric} if at == n else row for at, row in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (_bad(1, None), "1 of 3 rows have no 'rubric', the rubric_column of the reward source 'rubric': u1"),
        (_bad(2, []), "1 rows have a bad rubric in 'rubric', the rubric_column of the reward source 'rubric': u2: a "),
        (_bad(0, [has("a", math.nan)]), "u0: criterion 1: weight or points must be a finite number, found nan"),
        (_bad(0, [has("a", 0)]), "u0: no criterion has a weight above 0"),
        (_bad(2, [has("a"), has("a")]), "u2: two criteria are named 'a'"),
        ([{name: row[name] for name in row if name != "rubric"} for row in ROWS], "no column 'rubric', the "),
    ],
)
def test_a_bad_rubric_stops_a_run_before_it_starts_and_is_a_bad_row_of_a_file(
    server: Server,
    parser: argparse.ArgumentParser,
    capsys: pytest.CaptureFixture[str],
    rows: list[dict[str, Any]],
    said: str,
) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))  # with NaN, as Python writes it
    flags = [f"--oger.reward.sources={json.dumps([{'name': 'rule', 'kind': 'verifier'}, entry(server)])}"]
    with pytest.raises(RecipeError) as raised:
        training_rows(vars(parser.parse_args(["--data.prompt_dataset", "rows.jsonl", *flags])))
    assert said in str(raised.value)
    with pytest.raises(SystemExit) as ended:
        data.main(["validate", "rows.jsonl", *flags])
    printed = capsys.readouterr().out
    wrong = [n for n, row in enumerate(rows, start=1) if "rubric" not in row or row["rubric"] != ROWS[n - 1]["rubric"]]
    assert ended.value.code == 1 and f"rows.jsonl: 3 rows, {len(wrong)} bad" in printed
    assert f"rows.jsonl:{wrong[0]}: " in printed and "'rubric', the rubric_column of the reward source" in printed
    data.main(["validate", "rows.jsonl"])  # nothing reads the column
    write_jsonl(ROWS, Path("rows.jsonl"))
    data.main(["validate", "rows.jsonl", *flags])
    assert "3 rows, 0 bad" in capsys.readouterr().out


@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl"])
def test_a_mix_keeps_the_columns_that_it_names(server: Server, parser: argparse.ArgumentParser, out: str) -> None:
    write_jsonl(ROWS[:2], Path("ours.jsonl"))
    theirs = [{"q": row["prompt"], "a": "1", "rubric": row["rubric"]} for row in ROWS]
    theirs[0]["rubric"] = ["Is another one"]  # the first source decides
    write_jsonl([*theirs, {"q": "none?", "a": "1"}], Path("theirs.jsonl"))
    mapped = {"name": "b", "path": "theirs.jsonl", "task": "gsm8k", "columns": {"prompt": "q", "answer": "a"}}
    mix = {"sources": [{"name": "a", "path": "ours.jsonl"}, mapped], "keep": ["rubric"]}
    Path("mix.yaml").write_text(yaml.safe_dump(mix))
    if out.endswith(".parquet"):
        with pytest.raises(SystemExit, match="'keep': no .parquet column holds all values of 'rubric'"):
            data.main(["prepare", "mix.yaml", "--out", out])  # texts and dicts in one column
        for name in ("ours", "theirs"):
            rows = read_jsonl(Path(f"{name}.jsonl"))
            for row in rows:
                texts = [each for each in row.get("rubric", []) if isinstance(each, str)]
                row["rubric"] = [{"description": text} for text in texts] or row.get("rubric")
            write_jsonl(rows, Path(f"{name}.jsonl"))
    data.main(["prepare", "mix.yaml", "--out", out])
    rows = training_rows(vars(parser.parse_args(["--data.prompt_dataset", out])))
    read = {row["prompt"]: row["rubric"] and criteria_of(row["rubric"]) for row in rows}
    assert read == {row["prompt"]: criteria_of(row["rubric"]) for row in ROWS} | {"none?": None}
    for keep, said in (
        (["rubrics"], "'keep': no row has a column 'rubrics'"),
        (["uid"], "'keep' takes columns other than"),
    ):
        Path("mix.yaml").write_text(yaml.safe_dump(mix | {"keep": keep}))
        with pytest.raises(SystemExit, match=said):
            data.main(["prepare", "mix.yaml", "--out", "other.jsonl"])


def test_scored_answers_have_the_verdict_on_each_criterion(server: Server, policy_folder: Path) -> None:
    rows = [row | {"prompt": f"{n}: what is 2 + 2?", "answer": "4", "rubric": FRUIT} for n, row in enumerate(ROWS[:2])]
    write_jsonl(rows, Path("rows.jsonl"))
    texts = ["apple worm 4", "pear 5", "apple pear 4"]
    uids = ["u0", "u1", "u0"]  # the group of two is not the first two lines
    write_jsonl(({"uid": uid, "text": text} for uid, text in zip(uids, texts, strict=True)), Path("responses.jsonl"))
    listed = [{"name": "rule", "kind": "verifier"}, entry(server, weight=0.5, gate="rule_equals_1")]
    recipe = {"oger": {"reward": {"sources": listed, "cache": ""}}, "data": {"max_len": 512}}
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe | {"actor": {"model_name_or_path": str(policy_folder)}}))
    command = ["--recipe", "recipe.yaml", "--rows", "rows.jsonl", "--responses", "responses.jsonl"]
    score_command.main([*command, "--out", "out.jsonl"])
    first, wrong, best = read_jsonl(Path("out.jsonl"))
    assert [first["reward"], wrong["reward"], best["reward"]] == [1 + 0.5 * 0.25, 0, 1.5]
    assert first["criteria"] == {"rubric": {"apple": 1, "pear": 0, "worm": 1}}
    assert best["criteria"] == {"rubric": {"apple": 1, "pear": 1, "worm": 0}}
    assert "criteria" not in wrong and "rubric" not in wrong["components"]  # its gate is closed


@pytest.mark.parametrize("micro_batch", ["4", "2"])
def test_the_samples_of_a_step_have_the_verdict_on_each_criterion(
    server: Server, controller: Any, rollout: Any, micro_batch: str
) -> None:
    listed = json.dumps([{"name": "rule", "kind": "verifier"}, entry(server, gate="rule_nonzero")])
    places = [f"--oger.reward.sources={listed}", "--oger.reward.cache=", f"--rollout.micro_batch_size={micro_batch}"]
    made = controller("--oger.max_replace_num=0", "--oger.bonus_weight=0", *places)
    texts = {"u": ["apple pear", "apple worm", "worm", "pear"], "v": ["carrot", "beet", "beet", "carrot"]}
    rules, rubrics = {"u": [1.0, 1.0, 1.0, 0.0], "v": [0.0, 1.0, 1.0, 1.0]}, {"u": FRUIT, "v": ROOTS}
    made.make_experience_batch(
        [
            rollout(text, rule, uid=uid, label={"row": {"rubric": rubrics[uid]}})
            for uid, each in texts.items()
            for text, rule in zip(each, rules[uid], strict=True)
        ]
    )
    (file,) = (made.run_dir / "samples").glob("*.jsonl")
    lines = read_jsonl(file)
    assert [line["total_reward"] for line in lines] == [2, 1.25, 1, 0, 0, 1, 1, 2]
    assert [line.get("criteria", {}).get("rubric") for line in lines] == [
        {"apple": 1, "pear": 1, "worm": 0}, {"apple": 1, "pear": 0, "worm": 1}, {"apple": 0, "pear": 0, "worm": 1},
        None, None, {"Has carrot": 0}, {"Has carrot": 0}, {"Has carrot": 1},
    ]  # fmt: skip
    assert (
        made.current.metrics["reward/rubric/met"] == 4 / 9 and made.current.metrics["reward/rubric/pitfalls"] == 2 / 3
    )


# ---- how good such a judge is


@pytest.fixture()
def evaluated(server: Server, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], str]]:
    def run(rows: list[dict[str, Any]], **keys: Any) -> tuple[dict[str, Any], str]:
        write_jsonl(rows, Path("labels.jsonl"))
        command = ["--judge", yaml.safe_dump(entry(server, **keys)), "--oger.reward.cache="]
        judge_eval.main([*command, "--labels", "labels.jsonl", "--out", "out.json"])
        return json.loads(Path("out.json").read_text()), capsys.readouterr().out

    return run


def labelled(*labels: int | None) -> list[dict[str, Any]]:
    return [each | {"label": label} for each, label in zip(FRUIT, labels, strict=True)]


def test_a_judge_of_rubrics_is_held_against_labels_of_criteria_and_of_answers(evaluated: Any) -> None:
    rows = [
        {"question": "?", "text": "apple pear", "rubric": labelled(1, 1, 0)},  # the judge agrees: 1
        {"question": "?", "text": "apple", "rubric": labelled(1, 1, 0)},  # it misses the pear: 3/4 for 1
        {"question": "?", "text": "worm mute-apple", "rubric": labelled(0, 0, 1)},  # 0, and one is not read
        {"question": "?", "text": "pear", "rubric": labelled(None, 1, None), "label": 0.5},  # 1/4 for 1/2
    ]
    found, printed = evaluated(rows)
    assert [case["value"] for case in found["cases"]] == [1, 0.75, 0, 0.25]
    assert [case["label"] for case in found["cases"]] == [1, 1, 0, 0.5]
    assert found["cases"][2]["criteria"] == {"apple": None, "pear": 0, "worm": 1}
    assert found["cases"][1]["labels"] == {"apple": 1, "pear": 1, "worm": 0}
    assert (found["criteria"], found["accuracy_of_criteria"], found["unread_criteria"]) == (10, 8 / 10, 1 / 10)
    assert (found["criteria_met"], found["labelled_met"]) == (5 / 9, 6 / 10)
    assert found["rank_correlation"] > 0.9 and found["asked"] == 12 and found["unread"] == 0
    assert re.search(r"\naccuracy of criteria +0\.800\n", printed)
    of_answers = [{key: row[key] for key in ("question", "text")} | {"rubric": FRUIT, "label": 1} for row in rows]
    found, _ = evaluated(of_answers, ask="together")
    assert found["accuracy"] == 2 / 4 and "criteria" not in found and found["asked"] == 4


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"rubric": FRUIT}, "labels.jsonl:1: add a column label, or a label for each criterion"),
        ({"rubric": labelled(1, 2, 0)}, "labels.jsonl:1: the label of a criterion must be 0 or 1, found 2"),
        ({"rubric": [], "label": 1}, "labels.jsonl:1: 'rubric': a rubric is a list of criteria, found []"),
        ({"label": 1}, "labels.jsonl:1: no column rubric; the columns are question, text, label"),
    ],
)
def test_labels_that_cannot_be_read_are_said_with_their_line(evaluated: Any, row: dict[str, Any], said: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(said)):
        evaluated([{"question": "?", "text": "x"} | row])


def test_pairs_are_for_other_kinds(server: Server) -> None:
    write_jsonl([{"question": "?", "response_A": "a", "response_B": "b", "label": "A>B"}], Path("pairs.jsonl"))
    with pytest.raises(SystemExit, match="rubric reads a rubric with each answer: kind rubric needs --labels"):
        judge_eval.main(["--judge", yaml.safe_dump(entry(server)), "--pairs", "pairs.jsonl"])
