"""`oger prm`: a tiny model learns from labelled steps, and what was written is read as a source of reward reads it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.cli import prm
from oger_recipe.data.labelled_steps import Solution, read_labelled_steps
from oger_recipe.evaluation.sampling import Response
from oger_recipe.lab import tiny_policy
from oger_recipe.lab.known_judges import save_prm
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.models.step_text import StepWriter
from oger_recipe.prm import hf_trainer
from oger_recipe.prm.learning import make_rows

HEAD: list[str] = []  # trl is the format where none is named
TAGS = ["--format", "math_shepherd", "--tag", "|"]
QUICK = ["--learning_rate", "1e-2", "--batch_size", "8", "--epochs", "12", "--held_out", "0.25", "--seed", "1"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads wait for one another longer than these models take, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def solutions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Of ProcessBench's shape; the first wrong step is the one with a tilde."""
    drawn = random.Random(seed)
    rows = []
    for number in range(count):
        steps = ["".join(drawn.choices("abcdef ", k=8)) + "." for _ in range(drawn.randint(2, 5))]
        label = drawn.choice([-1, drawn.randrange(len(steps))])
        if label >= 0:
            steps[label] = "~" + steps[label]
        rows.append({"id": f"toy-{number}", "problem": f"q{number}", "steps": steps, "label": label, "generator": "g"})
    return rows


@pytest.fixture()
def trained(
    byte_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Path, str]]:
    """The folder of a PRM that the command trains with these flags, and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "steps.json").write_text(json.dumps(solutions(64)))

    def run(out: str, *flags: str, data: str = "steps.json") -> tuple[Path, str]:
        prm.main(["train", "--model", str(byte_llama), "--data", data, "--out", out, *QUICK, *flags])
        return tmp_path / out, "".join(capsys.readouterr())

    return run


@pytest.fixture()
def evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], str]]:
    """What the command's file says of a PRM, and what it printed."""

    def run(entry: dict[str, Any], *flags: str) -> tuple[dict[str, Any], str]:
        written = yaml.safe_dump({"place": "in_process"} | entry, allow_unicode=True)
        prm.main(["eval", "--prm", written, "--out", "out.json", "--oger.reward.cache=", *flags])
        document = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)  # NaN is no JSON
        return document, "".join(capsys.readouterr())

    return run


def entry_in(printed: str) -> dict[str, Any]:
    """The entry that the command names."""
    (entry,) = yaml.safe_load(printed.rpartition("its entry: ")[2])
    return entry  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", [HEAD, TAGS, [*HEAD, "--lora_rank", "8"], [*TAGS, "--lora_rank", "8"]])
def test_what_was_learnt_is_what_the_source_of_reward_reads(form: list[str], trained: Any, evaluated: Any) -> None:
    """Training's own forward gives the held-out figures, the source's the same ones."""
    folder, printed = trained("prm", *form)
    report = json.loads((folder / "prm.json").read_text())
    assert "read: 64 rows of ProcessBench; 64 solutions\n" in printed
    of_held_out = report["held_out"]
    assert of_held_out["auc"] > (0.9 if "--lora_rank" not in form else 0.6)
    assert f"AUC {of_held_out['auc']:.3f}" in printed and report["held_out_counts"]["cut"] == 0
    entry = entry_in(printed)
    assert entry["kind"] == "process" and Path(entry["model"]) == Path("prm")
    found, _ = evaluated(entry, "--data", "prm/held_out.jsonl")
    assert found["threshold"] == 0.5
    for name in ("solutions", "erroneous", "steps", "bad_steps", "accuracy_erroneous", "accuracy_correct", "f1"):
        assert found["all"][name] == of_held_out[name], name
    assert found["all"]["auc"] == pytest.approx(of_held_out["auc"], abs=1e-6)
    assert found["all"]["calibration_error"] == pytest.approx(of_held_out["calibration_error"], abs=1e-5)
    if "--lora_rank" in form:  # the adapter by itself, on the model that was begun with, says the same
        begun = entry | {"model": report["entry"]["model"], "adapter": "prm/adapter"}
        again, _ = evaluated(begun, "--data", "prm/held_out.jsonl")
        for one, other in zip(found["cases"], again["cases"], strict=True):
            assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)


def test_the_seed_decides_everything(trained: Any) -> None:
    weights = [
        load_file(trained(name, "--epochs", "1", "--seed", seed)[0] / "model.safetensors")
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["score.weight"], weights[2]["score.weight"])


def test_an_interrupted_training_goes_on_to_the_same_end(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = trained("whole", "--epochs", "2")
    on_log = hf_trainer.Lines.on_log

    def interrupted(self: Any, args: Any, state: Any, *more: Any, **others: Any) -> None:
        on_log(self, args, state, *more, **others)
        if state.epoch > 1.3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(SystemExit, match="the same command resumes"):
        patched.setattr(hf_trainer.Lines, "on_log", interrupted)
        trained("cut", "--epochs", "2")
    assert not Path("cut").exists() and list(Path("cut.training").glob("checkpoint-*"))
    with pytest.raises(SystemExit, match=r"interrupted training with other settings \(settings.seed differ\)"):
        trained("cut", "--epochs", "2", "--seed", "3")
    folder, printed = trained("cut", "--epochs", "2")
    assert "resuming after step" in printed and not Path("cut.training").exists()
    there, wanted = (load_file(each / "model.safetensors") for each in (folder, whole))
    assert all(torch.allclose(there[name], wanted[name], atol=1e-6) for name in wanted)


def test_what_cannot_be_trained_is_said_before_anything_is_loaded(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    write_jsonl([{"prompt": "q", "completions": ["a"], "labels": [True]}] * 2, tmp_path / "good.jsonl")
    for flags, message in (
        ((), "--out there exists: remove it, or choose another one"),
        (("--batch_size", "6"), "--batch_size 6 is not a multiple of --micro_batch_size 4"),
        (("--learning_rate", "0"), "--learning_rate is 0.0: it must be above 0"),
        (("--lora_alpha", "4"), "--lora_alpha needs --lora_rank"),
        (("--oger.trust_remote_code", "true"), "unknown flag '--oger.trust_remote_code'"),
        (("--out", "new", "--held_out", "0", "--data", "good.jsonl"), "all labelled steps to train on are good"),
        (("--out", "new", "--data", "none.jsonl"), "none.jsonl: no such dataset file"),
        (("--out", "new", "--max_length", "3"), "nothing to train on: .* within --max_length 3"),
        (("--out", "new", "--held_out", "0.001"), "--held_out 0.001 leaves no problem to evaluate on"),
        (("--out", "new", "--model", "./none"), "none: no such model folder"),
        (("--out", "new", "--format", "math_shepherd"), "tag 'ки' is 4 tokens of .*, and must be one"),
        (("--out", "new", "--good", "yes", *TAGS), "good 'yes' is 3 tokens of"),
    ):
        with pytest.raises(SystemExit, match=f"(?s)^oger prm train: .*{message}"):
            trained("there", *flags)
    assert not list(tmp_path.glob("new*"))


def test_a_long_solution_is_cut_behind_a_step(byte_llama: Path) -> None:
    """Tokens are bytes: a question of 1, steps of 9, a line's end behind each."""
    from transformers import AutoTokenizer

    writer = StepWriter(ProcessKeys(model=str(byte_llama), format="trl"), AutoTokenizer.from_pretrained(byte_llama))
    steps = ("a" * 9, "b" * 9, "c" * 9)
    rows, counts = make_rows(
        [Solution("1", "q", steps, (1.0, None, 0.0)), Solution("2", "q", steps, (None, None, 0.0))], writer, 30
    )
    assert [(len(row.prompt.tokens), row.prompt.ends, row.labels) for row in rows] == [(21, (10, 20), (1.0, None))]
    assert counts == {
        "rows": 1, "steps": 2, "labelled": 1, "bad": 0, "cut": 2, "steps_cut": 2, "too_long": 1, "unwritable": 0
    }  # fmt: skip
    (row,), counts = make_rows([Solution("1", "q", steps, (1.0, None, 0.0))], writer, 31)
    assert (row.prompt.ends, counts["cut"], counts["bad"]) == ((10, 20, 30), 0, 1)


# ---- eval


@pytest.fixture()
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The PRM that calls every step good up to the first with a tilde, as an entry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return {"model": str(save_prm(tmp_path / "known", tag="\n", head=True)), "format": "trl"}


@pytest.mark.parametrize("is_named", [True, False])
def test_a_prm_of_the_built_in_task_is_asked_by_its_name(
    known: Any, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an entry, and as a source of a recipe; what its name stands for is a folder that is made once."""
    folder = known["model"]
    monkeypatch.setattr("oger_recipe.lab.built_in_models.folder_of", lambda name, *_, **how: (
        folder if how.get("train", True) else name
    ))  # fmt: skip
    (tmp_path / "data.json").write_text(json.dumps([row("math-1", ["a", "~b", "c"], 1)]))
    entry = known | {"name": "prm", "kind": "process", "model": "countdown-prm", "place": "in_process"}
    if is_named:
        (tmp_path / "own.yaml").write_text(yaml.safe_dump({"oger": {"reward": {"sources": [entry]}}}))
    asked = ["--recipe", "own.yaml", "--source", "prm"] if is_named else ["--prm", yaml.safe_dump(entry)]
    prm.main(["eval", *asked, "--data", "data.json", "--out", "out.json", "--oger.reward.cache="])
    (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [each > 0.5 for each in case["scores"]] == [True, False, False]


def row(name: str, steps: list[str], label: int, generator: str = "g") -> dict[str, Any]:
    return {"id": name, "problem": f"question of {name}", "steps": steps, "label": label, "generator": generator}


def test_a_prm_gets_the_figures_that_its_rule_has_by_hand(known: Any, evaluated: Any, tmp_path: Path) -> None:
    data = [
        row("math-1", ["a", "~b", "c"], 1),  # found
        row("math-2", ["a", "~b", "c"], 2, "h"),  # found one step early
        row("math-3", ["a", "b"], -1),  # seen
        row("gsm8k-1", ["~a", "b"], -1),  # a false alarm
        row("gsm8k-2", ["~a", "b"], 0, "h"),  # found
        row("gsm8k-3", ["a"], -1, "h"),  # seen
    ]
    (tmp_path / "data.json").write_text(json.dumps(data))
    found, printed = evaluated(known, "--benchmark", "processbench", "--data", "data.json", "--picture", "steps.png")
    figures = found["all"]
    assert (figures["solutions"], figures["erroneous"]) == (6, 3)
    assert (figures["accuracy_erroneous"], figures["accuracy_correct"]) == (2 / 3, 2 / 3)
    assert figures["f1"] == pytest.approx(2 / 3)
    assert {name: each["f1"] for name, each in found["subsets"].items()} == {
        "gsm8k": pytest.approx(2 / 3),  # 1/1 and 1/2
        "math": pytest.approx(2 / 3),  # 1/2 and 1/1
    }
    assert found["generators"]["h"]["f1"] == pytest.approx(2 / 3)  # 1/2 and 1/1
    # labelled: 1 0 | 1 1 0 | 1 1 | 1 1 | 0 | 1 and said: 1 0 | 1 0 0 | 1 1 | 0 0 | 0 | 1
    assert (figures["steps"], figures["bad_steps"], figures["step_accuracy"]) == (11, 3, pytest.approx(8 / 11))
    assert figures["auc"] == pytest.approx((5 + 3 / 2) / 8, abs=0.2)
    assert "mean F1 of the 2 subsets: 66.7" in printed and "steps/s after" in printed
    assert [each["labels"] for each in found["cases"]][0] == [1, 0, None]
    assert (tmp_path / "steps.png").stat().st_size > 1000


def test_the_threshold_is_chosen_on_other_problems(known: Any, evaluated: Any, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(json.dumps(solutions(60)))
    found, printed = evaluated(known, "--data", "data.json", "--tune", "0.4")
    assert found["tuned_on"] + found["all"]["solutions"] == 60 and 10 < found["tuned_on"] < 40
    assert found["all"]["f1"] == 1 and 0 < found["threshold"] < 1
    assert f"chosen by the F1 of {found['tuned_on']} other solutions" in printed
    assert found["rivals"]["early steps good"]["f1"] < 0.9
    # A difference and a min form are not what is evaluated: scores are.
    other = known | {"scale": "difference", "credit": "min", "aggregate": "last"}
    again, _ = evaluated(other, "--data", "data.json", "--tune", "0.4")
    assert again["all"] == found["all"]


def test_a_solution_without_scores_is_not_right(known: Any, evaluated: Any, tmp_path: Path) -> None:
    data = [row("a-1", ["b" * 5000], -1), row("a-2", ["b"], -1), row("a-3", ["~"], 0)]
    (tmp_path / "data.json").write_text(json.dumps(data))
    found, printed = evaluated(known, "--data", "data.json")
    assert found["all"]["without_scores"] == 1 and found["all"]["accuracy_correct"] == 1 / 2
    assert "1 solutions have no scores, the first a-1: the prompt has" in printed


def test_a_prm_without_a_single_score_is_the_commands_failure(known: Any, evaluated: Any, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(json.dumps([row("a-1", ["b" * 5000], -1), row("a-2", ["~" * 5000], 0)]))
    with pytest.raises(
        SystemExit, match="^oger prm eval: the PRM failed on all 2 solutions, first with: the prompt has"
    ):
        evaluated(known, "--data", "data.json")
    assert json.loads((tmp_path / "out.json").read_text())["all"]["without_scores"] == 2


def test_what_cannot_be_evaluated_is_said(known: Any, evaluated: Any, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(json.dumps(solutions(3)))
    write_jsonl([{"prompt": "q", "completions": ["a"], "labels": [True]}], tmp_path / "other.jsonl")
    data = ["--data", "data.json"]
    for entry, flags, message in (
        (known, (), "nothing to evaluate on"),
        (known, (*data, "--tune", "0.5", "--threshold", "1"), "leave out one of them"),
        (known, (*data, "--tune", "1"), "--tune is 1.0: it must be above 0 and below 1"),
        (
            known | {"model": "./none"},
            (*data, "--tune", "0.001"),
            "--tune 0.001 leaves one part of 3 solutions empty",
        ),
        (known, (*data, "--limit", "0"), "--limit is 0"),
        (known, (*data, "--picture", "a.pdf"), "must end in .png or .svg"),
        (known, ("--data", "other.jsonl", "--benchmark", "processbench"), "rows of stepwise supervision"),
        (known | {"format": "tlr"}, data, "format 'tlr' is unknown; did you mean 'trl'"),
        ({"kind": "classifier", "model": "m"}, data, "prm is of kind classifier, which scores no steps"),
    ):
        with pytest.raises(SystemExit, match=f"(?s)^oger prm eval: .*{message}"):
            evaluated(entry, *flags)


def test_an_implicit_prm_has_rewards_around_zero_and_no_calibration(
    letters: Any, evaluated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for seed, name in enumerate(("prm", "reference")):
        torch.manual_seed(seed)
        letters.save_pretrained(tmp_path / name)
        tiny_policy.build_model(letters, hidden_size=32, num_layers=1).save_pretrained(tmp_path / name)
    rows = solutions(20)
    (tmp_path / "data.json").write_text(json.dumps(rows))
    entry = {"scorer": "implicit", "model": "prm", "reference": "reference", "beta": 1.0}
    found, printed = evaluated(entry, "--data", "data.json")
    pairs = [pair for each in found["cases"] for pair in zip(each["labels"], each["scores"], strict=True)]
    pairs = [(good, score) for good, score in pairs if good is not None]
    by_threshold = {at: sum((score >= at) == bool(good) for good, score in pairs) / len(pairs) for at in (0, 0.5)}
    assert by_threshold[0] != by_threshold[0.5]  # the scores can tell which it was
    assert (found["threshold"], found["all"]["step_accuracy"]) == (0, pytest.approx(by_threshold[0]))
    assert found["all"]["calibration_error"] is None and found["all"]["auc"] is not None
    assert "threshold 0, given" in printed and "they have no calibration" in printed
    small = next(row for row, each in zip(rows, found["cases"], strict=True) if min(each["scores"]) > 0)
    (tmp_path / "data.json").write_text(json.dumps([small]))
    found, _ = evaluated(entry | {"beta": 1e-3}, "--data", "data.json")
    assert all(0 < score < 1 for score in found["cases"][0]["scores"])  # rewards all the same
    assert (found["threshold"], found["all"]["calibration_error"]) == (0, None)
    with pytest.raises(SystemExit, match="--picture needs probabilities, and scorer implicit"):
        evaluated(entry, "--data", "none.json", "--picture", "steps.png")


def test_scores_of_a_users_own_beyond_probabilities_are_rewards(
    evaluated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_steps.py").write_text(
        "import torch\n"
        "from oger_recipe.rewards.sources import Scores\n"
        "class Tilde:\n"
        "    def __init__(self, place, bad): self.bad = bad\n"
        "    def score(self, groups, wanted):\n"
        "        said = [[self.bad if '~' in step else 0.4 for step in each.steps[0]] for each in groups]\n"
        "        longest = max(map(len, said))\n"
        "        steps = [[row + [float('nan')] * (longest - len(row))] for row in said]\n"
        "        return Scores(torch.zeros(wanted.shape), steps=torch.tensor(steps))\n"
    )
    (tmp_path / "data.json").write_text(json.dumps(solutions(20)))
    own = {"kind": "own_steps:Tilde"}
    flags = ("--data", "data.json", "--picture", "steps.png")
    rewards, printed = evaluated(own | {"bad": -1.0}, *flags)
    assert (rewards["threshold"], rewards["all"]["f1"], rewards["all"]["calibration_error"]) == (0, 1, None)
    assert "picture: not drawn, some scores are below 0 or above 1" in printed and not Path("steps.png").exists()
    chances, _ = evaluated(own | {"bad": 0.3}, *flags)
    assert (chances["threshold"], chances["all"]["accuracy_correct"]) == (0.5, 0)
    assert chances["all"]["calibration_error"] > 0.3 and Path("steps.png").exists()


def test_the_file_says_what_tuned_the_threshold_and_nothing_that_needs_one_without(
    known: Any, evaluated: Any, tmp_path: Path
) -> None:
    (tmp_path / "data.json").write_text(json.dumps(solutions(60)))
    found, printed = evaluated(known, "--data", "data.json", "--tune", "0.4")
    tuned = [each for each in found["cases"] if each["tuned"]]
    assert (found["tune"], len(tuned)) == (0.4, found["tuned_on"]) and 0 < len(tuned) < 60
    shown = [label for each in found["cases"] if not each["tuned"] for label in each["labels"]]
    assert sum(label is not None for label in shown) == found["all"]["steps"]
    assert all(each["f1"] is not None and each["calibration_error"] is None for each in found["rivals"].values())
    plain, printed = evaluated(known, "--data", "data.json")
    assert plain["tune"] is None and not any(each["tuned"] for each in plain["cases"])
    for name, each in plain["rivals"].items():
        assert each["auc"] is not None and each["intervals"] == {}
        assert {each[figure] for figure in ("accuracy_erroneous", "accuracy_correct", "f1", "step_accuracy")} == {None}
        (line,) = (line for line in printed.splitlines() if f"rule: {name}" in line)
        assert line.split()[-6:] == ["-", "-", "-", f"{each['auc']:.3f}", "-", "-"]


# ---- label


def test_countdown_has_exact_labels(
    tmp_path: Path, countdown_rows: list[dict[str, Any]], policy_folder: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = {"uid": "c", "prompt": "make 96", "answer": json.dumps({"numbers": [3, 5, 12], "target": 96})}
    write_jsonl([problem | {"task": "countdown"}], tmp_path / "rows.jsonl")
    text = "<think>3+5=8, 8*12=95, </think><answer>(3+5)*12</answer>"
    write_jsonl([{"uid": "c", "text": text}, {"uid": "c", "text": " "}], tmp_path / "responses.jsonl")
    flags = ["label", "--recipe", "grpo_cpu", "--rows", "rows.jsonl", "--responses", "responses.jsonl"]
    flags += ["--model", str(policy_folder), "--by", "countdown", "--oger.steps.delimiters", ", "]
    # A PRM of the recipe is not asked, so it is not trained either.
    monkeypatch.setattr("oger_recipe.lab.countdown_prm.save_base", lambda folder: pytest.fail("a PRM is trained"))
    source = {"name": "prm", "kind": "process", "model": "countdown-prm", "place": "in_process", "format": "trl"}
    flags += [f"--oger.reward.sources={json.dumps([source])}", "--oger.task.cache", str(tmp_path / "cache")]
    prm.main([*flags, "--out", "labels.jsonl"])
    assert "1 responses, 3 steps: 2 good, 1 bad\nlabels: labels.jsonl" in capsys.readouterr().out
    ((solution,), shapes) = read_labelled_steps(["labels.jsonl"])
    assert shapes == {"stepwise supervision": 1} and "".join(solution.steps) == text
    assert (solution.question, solution.labels) == ("make 96", (1, 0, 1))
    assert not (tmp_path / "labels.jsonl.partial").exists()
    with pytest.raises(SystemExit, match="--out labels.jsonl exists"):
        prm.main([*flags, "--out", "labels.jsonl"])
    assert read_jsonl(tmp_path / "labels.jsonl")[0]["id"] == "c/1"


class Scripted:
    """In place of vLLM's sampler: so many of the rollouts behind a prefix are right, the first ones."""

    RIGHT = {"8, ": 1, "95, ": 0, "60, ": 2, "15, ": 4, "<answer>": 3}
    CONTEXT = 50  # the longest prefix but one has 40

    def __init__(self, model: Any) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model.name)
        self.asked: dict[str, int] = {}
        self.seeds: set[int] = set()

    def context(self) -> int:
        return self.CONTEXT

    def load(self, max_model_len: int) -> None:
        assert max_model_len == self.CONTEXT  # one response and its rollouts need more

    def generate(self, requests: Any, sampling: Any, name: str) -> list[Response]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Response:
        assert (
            0 < request.max_new_tokens == min(16, self.CONTEXT - len(request.tokens))
            and request.seed not in self.seeds
        )
        self.seeds.add(request.seed)
        text = self.tokenizer.decode(request.tokens)
        self.asked[text] = self.asked.get(text, 0) + 1
        right = next(count for end, count in self.RIGHT.items() if text.endswith(end))
        answer = "(3+5)*12" if self.asked[text] <= right else "3+5"
        begin = "" if text.endswith("<answer>") else "</think><answer>"
        return Response(f"{begin}{answer}</answer>", 9, False)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("share", [(0.25, 0, 0.75, 1), (0.5, 0.75, 0), (0.75, 1), (1, None, None, 1)]),
        ("any", [(1, 0, 1, 1), (1, 1, 0), (1, 1), (1, None, None, 1)]),
    ],
)
def test_a_step_is_as_good_as_the_rollouts_that_go_on_from_it(
    by: str, expected: list[Any], tmp_path: Path, policy_folder: Path, capsys: Any, monkeypatch: Any
) -> None:
    """Four rollouts a step; the last step is as right as its response; without room for a rollout nobody knows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("oger_recipe.pipeline.sampler.Sampler", Scripted)
    problem = {"uid": "c", "prompt": "make 96", "answer": json.dumps({"numbers": [3, 5, 12], "target": 96})}
    write_jsonl([problem | {"task": "countdown"}], tmp_path / "rows.jsonl")
    texts = [
        "<think>3+5=8, 8*12=95, </think><answer>(3+5)*12</answer>",
        "<think>5*12=60, </think><answer>3+5</answer>",
        "<answer>(3+5)*12</answer>",
        f"<think>3+12=15, {'so ' * 200}95, </think><answer>(3+5)*12</answer>",
    ]
    write_jsonl([{"uid": "c", "text": text} for text in texts], tmp_path / "responses.jsonl")
    flags = ["label", "--recipe", "grpo_cpu", "--rows", "rows.jsonl", "--responses", "responses.jsonl", "--by", by]
    flags += ["--model", str(policy_folder), "--n", "4", "--max_new_tokens", "16"]
    prm.main([*flags, "--oger.steps.delimiters", ", ", "<answer>", "--out", "labels.jsonl"])
    found, _ = read_labelled_steps(["labels.jsonl"])
    assert ["".join(each.steps) for each in found] == texts
    assert [each.labels for each in found] == expected
    assert "2 without a label (no room for a rollout, or the verifier failed)" in capsys.readouterr().out
