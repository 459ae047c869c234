"""The page's browser of samples and evaluations, in a real browser, with runs whose rows are counted by hand."""

import re
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.base.files import write_jsonl
from oger_recipe.report.page.write import write_page

Row = dict[str, Any]

TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
LONG = "a" * 60_000 + "needle" + "b" * 40_000
HOSTILE = {
    "script": "</script><script>window.ran = true</script><!-- <script> --> ]]> ${alert(1)}",
    "image": '<img src=x onerror="window.ran = true"><svg onload="window.ran = true">',
    "bidi": "before \u202egnp.exe\u202c after \u2066x\u2069 \u200b\u0000\u0007\u001b[31m",
    "rtl": "שלום עולם, the answer is 42",
    "emoji": "👩‍👩‍👧 🏳️‍🌈 👍🏽",
    "latex": r"$\frac{1}{2} \href{javascript:window.ran=true}{x}$ \(x^2\) $$y$$",
    "word": "w" * 3000,
}


def rollout(text: str, score: float, reward: float, **more: Any) -> Row:
    reason = "right" if score else "equals 5, not 4"
    verdict = {"extracted": text[-2:], "reason": reason, "components": {"format": 1.0}}
    numbers = {"similarity": 0.75, "divergence": 0.25, "bonus": 0.0, "entropy": 0.5, "entropy_weight": 0.6}
    paid = {"sources": {"rule": reward, "rule/format": 1.0}, "total_reward": reward, "advantage": reward - 0.5}
    row = {"truncated": False, "text": text, "off_policy": False, "reward": score, "score": score}
    return row | verdict | numbers | paid | more


def teacher(text: str, **more: Any) -> Row:
    row = {"text": text, "truncated": False, "source": "gold", "off_policy": True, "reward": 1.0, "score": 1.0}
    return row | {"entropy": 0.1, "sources": {"rule": 1.0}, "total_reward": 1.0, "advantage": 0.9} | more


def replaced(text: str, score: float) -> Row:
    untrained = ("bonus", "entropy", "entropy_weight", "sources", "total_reward", "advantage")
    row = rollout(text, score, 0.0, replaced=True, similarity=0.95, divergence=0.05)
    return {name: value for name, value in row.items() if name not in untrained}


def group(uid: str, question: str, answer: str, rows: list[Row]) -> list[Row]:
    return [{"uid": uid, "prompt": TEMPLATE.format(question), "task": "sums", "answer": answer} | row for row in rows]


STEPS = [
    {"text": "First, two. ", "reward": 0.2, "advantage": -0.8, "sources": {"prm": 0.1}},
    {"text": "Then four: 4", "reward": 0.7, "advantage": 0.5, "sources": {"prm": 0.9}},
]
NAMES = ".detail .card h4 bdi"  # of the rows whose texts are shown
WAIT_MS = 30_000  # on a busy machine
UNGRADED = "not graded: the verifier took more than 10 s"
# 12 rows in 4 groups; of these right 7 (2 teachers among them), wrong 4, failed 2, replaced 2, teacher 3, truncated 1.
SAMPLES = {
    1: [
        *group("two", "What is 2 + 2?", "4", [
            rollout("I think it is 5", 0.0, 0.1),
            rollout("Surely it is 4", 1.0, 1.3, bonus=0.3),
            replaced("Everybody knows that it is 4", 1.0),
            teacher("Two and two make 4"),
            rollout("It goes on and on", 0.0, 0.0, truncated=True),
        ]),
        *group("three", "What is 3 + 3?", "6", [
            rollout("Nobody can say", 0.0, 0.0, reason=UNGRADED, graded=False),
            rollout("It is 6", 1.0, 1.0, errors={"judge": "no reply within 60 s"}, criteria={"judge": {"brief": 1.0}}),
            replaced("It must be 7", 0.0),
            teacher("Three and three make 6"),
        ]),
    ],
    4: group("two", "What is 2 + 2?", "4", [
        rollout("First, two. Then four: 4", 1.0, 0.9, steps_of_reasoning=STEPS),
        rollout("It is 4", 1.0, 1.0, off_policy=True, off_policy_tokens=2, off_policy_characters=5),
    ]),
    9: group("long", "What is long?", "a", [rollout(LONG[:19_000] + "needle", 0.0, 0.05)]),
}  # fmt: skip


def answers(uid: str, scores: list[float], benchmark: str = "sums") -> list[Row]:
    given = [f"{uid} answer {number}: {'good' if score else 'bad'}" for number, score in enumerate(scores)]
    return [
        {"uid": uid, "benchmark": benchmark, "sample": number, "prompt": TEMPLATE.format(f"Solve {uid}"), "text": text}
        | {"answer": "1", "score": score, "reward": score, "format": 1.0, "extracted": "1", "graded": True}
        | {"reason": "right" if score else "not so", "components": {}, "response_length": 5, "truncated": False}
        for number, (text, score) in enumerate(zip(given, scores, strict=True))
    ]


# Right answers of two, before and after: 2 won, 1 better, 2 the same, 1 worse, 1 lost; 6 and 8 of 14 right.
BEFORE = {"p0": [0, 0], "p1": [0, 0], "p2": [1, 0], "p3": [0, 0], "p4": [1, 1], "p5": [1, 1], "p6": [0, 1]}
AFTER = {"p0": [1, 0], "p1": [1, 1], "p2": [1, 1], "p3": [0, 0], "p4": [1, 1], "p5": [1, 0], "p6": [0, 0]}


def make_run(
    folder: Path,
    samples: dict[int, list[Row]],
    evaluated: dict[int, dict[str, list[int]]] | None = None,
) -> Path:
    for name in ("samples", "eval"):
        (folder / name).mkdir(parents=True)
    for step, rows in samples.items():
        write_jsonl(rows, folder / "samples" / f"step_{step:05d}.jsonl")
    write_jsonl([{"step": step, "solve_rate": 0.5} for step in samples], folder / "metrics.jsonl")
    events: list[Row] = [{"time": 1.0, "event": "ready", "steps": 9, "resumed_at": 0, "sources": ["rule"]}]
    for step, problems in (evaluated or {}).items():
        rows = [row for uid, scores in problems.items() for row in answers(uid, [float(each) for each in scores])]
        write_jsonl(rows, folder / "eval" / f"step_{step:05d}.jsonl")
        scores = {"sums": {"problems": len(problems), "n": 2, "avg_at_2": 0.5}}
        when = "after" if step else "before"
        events.append({"time": 2.0, "event": "evaluated", "when": when, "step": step, "benchmarks": scores})
    write_jsonl(events, folder / "events.jsonl")
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name."""
    folder = tmp_path_factory.mktemp("pages")
    known = make_run(folder / "known", SAMPLES, {0: BEFORE, 9: AFTER})
    other = make_run(folder / "other", {1: group("two", "What is 2 + 2?", "4", [rollout("Other 4", 1.0, 1.0)])})
    empty = make_run(folder / "empty", {})
    rows = [rollout(text, 0.0, 0.0, extracted=text, reason=text) for text in HOSTILE.values()]
    hostile_uid = HOSTILE["script"]
    hostile = make_run(folder / "hostile", {1: group(hostile_uid, HOSTILE["image"], HOSTILE["bidi"], rows)})
    made = {"known": [known], "two": [known, other], "empty": [empty], "hostile": [hostile]}
    for name, runs in made.items():
        write_page(runs, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in made}


@pytest.fixture
def visit(chromium, pages):
    """Opens a page at a place; when the test ends, nothing may have been said on the console."""
    complaints: list[str] = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    tab = context.new_page()
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))

    def opened(name: str, place: str = "samples?"):
        tab.goto("about:blank")
        tab.goto(f"{pages[name].as_uri()}#{place}")
        tab.locator("#samples .tab").first.wait_for()
        return tab

    yield opened
    context.close()
    assert complaints == []


def expect(locator):
    from playwright.sync_api import expect  # late, as in the fixture chromium: without it all is skipped

    expect.set_options(timeout=WAIT_MS)
    return expect(locator)


def expect_texts(locator, shown: list[str]) -> None:
    """Wait for them, since a page draws after a click has returned."""
    expect(locator).to_have_text(shown, use_inner_text=True)


def texts(locator) -> list[str]:
    return [text.strip() for text in locator.all_inner_texts()]


def press(tab, key: str) -> None:
    tab.wait_for_timeout(80)  # keys that come faster count as one that is held
    tab.keyboard.press(key)


def count(tab) -> str:
    return tab.locator(".side [role=status]").inner_text()


# Kind: rows and groups of the whole run.
@pytest.mark.parametrize(
    ("kinds", "rows", "groups"),
    [
        (["right"], 7, 3), (["wrong"], 4, 3), (["failed"], 2, 1), (["replaced"], 2, 2), (["teacher"], 3, 3),
        (["truncated"], 1, 1), (["right", "wrong"], 11, 4), (["replaced", "right"], 1, 1),
        (["replaced", "teacher", "right"], 4, 3), (["truncated", "right"], 0, 0),
    ],
)  # fmt: skip
def test_a_filter_leaves_the_rows_that_it_names(visit, kinds, rows, groups):
    tab = visit("known")
    expect(tab.locator(".side [role=status]")).to_have_text("12 rows in 4 groups")
    for kind in kinds:
        tab.locator(f".kind[data-kind={kind}]").click()
        expect(tab.locator(f".kind[data-kind={kind}]")).to_have_attribute("aria-pressed", "true")
    plural = ("" if rows == 1 else "s", "" if groups == 1 else "s")
    expected = f"{rows} row{plural[0]} in {groups} group{plural[1]}" if rows else "Nothing found"
    expect(tab.locator(".side [role=status]")).to_have_text(expected)
    expect(tab.locator(".entry")).to_have_count(groups)


def test_a_filter_counts_its_rows_and_hides_the_texts_of_others(visit):
    tab = visit("known", "samples?at=1&uid=two")
    kinds = {kind: int(tab.locator(f".kind[data-kind={kind}] .count").inner_text()) for kind in
             ("right", "wrong", "failed", "replaced", "teacher", "truncated")}  # fmt: skip
    assert kinds == {"right": 7, "wrong": 4, "failed": 2, "replaced": 2, "teacher": 3, "truncated": 1}
    expect_texts(tab.locator(NAMES), ["Rollout 3", "Teacher gold", "Rollout 1", "Rollout 2", "Rollout 4"])
    tab.locator(".kind[data-kind=wrong]").click()
    expect(tab.locator(".detail .card")).to_have_count(2)
    expect_texts(tab.locator(NAMES), ["Rollout 1", "Rollout 4"])
    assert tab.locator(".numbers tr.dimmed").count() == 3
    tab.get_by_role("link", name="show all").click()
    expect(tab.locator(".detail .card")).to_have_count(5)


def test_a_click_shows_a_group_with_its_teacher_beside_the_rollout_that_made_room(visit):
    tab = visit("known")
    entry = tab.locator(".entry").nth(1)
    assert "What is 3" in entry.inner_text() or "3 + 3" in entry.inner_text()
    assert "1 of 3 right" in entry.inner_text() and "1 replaced" in entry.inner_text()
    entry.click()
    expect(tab.locator(".detail h3").first).to_contain_text("three")
    pair = tab.locator(".exchange")
    assert pair.locator("h4").first.inner_text() == "Teacher gold took the place of Rollout 3"
    expect_texts(pair.locator(".card .written"), ["It must be 7", "Three and three make 6"])
    failed, judged = tab.locator("[data-row='0']"), tab.locator("[data-row='1']")
    assert UNGRADED in failed.inner_text()
    assert "judge failed: no reply within 60 s" in judged.inner_text() and "brief" in judged.inner_text()
    heads = texts(tab.locator(".numbers thead th"))
    assert heads[:4] == ["total reward", "advantage", "verifier", "rule"] and "similarity" in heads
    right = tab.locator(".numbers tbody tr").nth(1)
    assert texts(right.locator("td"))[:4] == ["1", "0.5", "1", "1"]
    wrong = tab.locator(".numbers tbody tr").nth(0)
    assert "left: 50%" in right.locator(".bar-of .positive").get_attribute("style")
    assert "right: 50%" in wrong.locator(".bar-of .negative").get_attribute("style")


def test_rows_come_by_rank(visit):
    tab = visit("known", "samples?sort=best")
    expect(tab.locator(".entry")).to_have_count(12)
    ranked = texts(tab.locator(".entry .facts"))
    assert ranked[0] == "step 1 · total reward 1.3" and ranked[-1].endswith("–")
    values = [float(text.split()[-1]) for text in ranked if not text.endswith("–")]
    assert values == [1.3, 1, 1, 1, 1, 0.9, 0.1, 0.05, 0, 0]
    first = {"worst": "0", "longest": "19,006", "advantage": "0.9", "similar": "0.95"}
    for order, value in first.items():
        tab = visit("known", f"samples?sort={order}")
        assert tab.locator(".entry .facts").first.inner_text().split()[-1] == value, order


def test_search_finds_and_marks_whatever_the_case(visit):
    tab = visit("known")
    tab.keyboard.press("/")
    tab.keyboard.type("MAKE")
    expect(tab.locator(".side [role=status]")).to_have_text("2 rows in 2 groups")
    expect_texts(tab.locator(".detail mark"), ["make"])
    expect_texts(tab.locator(NAMES), ["Teacher gold"])
    tab.locator(".toolbar input[type=search]").first.fill("(make.*")  # plain, no pattern
    expect(tab.locator(".side [role=status]")).to_have_text("Nothing found")
    tab.locator(".toolbar input[type=search]").first.fill("3 + 3")
    tab.get_by_label("in", exact=True).select_option("prompts")
    expect(tab.locator(".side [role=status]")).to_have_text("4 rows in 1 group")
    expect_texts(tab.locator(".detail mark"), ["3 + 3"])


def test_a_hit_below_the_fold_is_shown(visit):
    tab = visit("known", "samples?q=NEEDLE")
    expect_texts(tab.locator(".detail mark"), ["needle"])
    assert tab.locator(".written", has_text="needle").inner_text().startswith("… 18,700 characters above")
    shown = len(tab.locator(".detail .card .written").inner_text())
    tab.get_by_role("button", name="Show all 19,006 characters").click()
    assert shown < 2000 and len(tab.locator(".detail .card .written").inner_text()) == 19_006


def test_steps_are_chosen_by_field_slider_and_keys(visit):
    tab = visit("known")
    status = tab.locator(".side [role=status]")
    tab.get_by_label("Step", exact=True).fill("5")  # the nearest that has samples is 4
    tab.keyboard.press("Enter")
    expect(status).to_have_text("2 rows in 1 group")
    assert tab.locator(".detail h3").first.inner_text().startswith("Step 4")
    tab.locator("h2", has_text="What did it write?").click()
    press(tab, "ArrowRight")
    expect(tab.locator(".detail h3").first).to_contain_text("Step 9")
    press(tab, "ArrowLeft")
    expect(tab.locator(".detail h3").first).to_contain_text("Step 4")
    tab.get_by_label("Step, by slider").fill("0")
    expect(status).to_have_text("9 rows in 2 groups")
    tab.get_by_role("button", name="All steps").click()
    expect(status).to_have_text("12 rows in 4 groups")


def test_a_prompt_is_followed_over_time_and_the_list_by_keys(visit):
    tab = visit("known")
    over_time = tab.locator(".over-time .time")
    assert [each.get_attribute("title") for each in over_time.all()] == [
        "step 1: 2 of 4 right",
        "step 4: 2 of 2 right",
    ]
    over_time.nth(1).click()
    expect(tab.locator(".detail h3").first).to_contain_text("Step 4")
    tab.go_back()
    expect(tab.locator(".detail h3").first).to_contain_text("Step 1")
    tab.locator("h2", has_text="What did it write?").click()
    for key, uid in (("j", "three"), ("j", "two"), ("j", "long"), ("k", "two")):
        press(tab, key)
        expect(tab.locator(".detail h3").first).to_contain_text(uid)


def test_steps_of_reasoning_have_scores_beside_them_or_colour_one_text(visit):
    tab = visit("known", "samples?at=4&uid=two")
    steps = tab.locator(".steps li")
    expect_texts(steps.locator(".written"), ["First, two.", "Then four: 4"])
    assert re.split(r"\s+", steps.nth(0).locator("dl").inner_text()) == [
        "prm", "0.1", "reward", "0.2", "advantage", "-0.8",
    ]  # fmt: skip
    tab.get_by_label("Steps of reasoning").select_option("whole")
    spans = tab.locator(".card .written .step")
    expect(spans).to_have_count(2)
    assert spans.nth(1).get_attribute("title") == "step 2 of 2, prm 0.9, reward 0.7, advantage 0.5"
    low, high = (spans.nth(each).get_attribute("style") for each in (0, 1))
    assert "--low) 44%" in low and "--high) 44%" in high  # 0.1 and 0.9: four fifths of the way, of 55%
    tab.get_by_label("coloured by").select_option("advantage")
    expect(spans.nth(0)).to_have_attribute("style", re.compile(r"--low\) 55%"))  # the largest of all
    assert (
        tab.locator(".prefix").inner_text() == "It is"
        and "first 2 tokens" in tab.locator("[data-row='1']").inner_text()
    )


def test_a_link_restores_the_view_and_back_returns(visit):
    place = "samples?show=wrong%2Ctruncated&sort=worst&at=1&uid=two&row=4"
    tab = visit("known", place)
    assert count(tab) == "1 row in 1 group"
    expect_texts(tab.locator(NAMES), ["Rollout 4"])
    assert tab.locator(".card.chosen").count() == 1
    assert tab.get_by_label("List", exact=True).input_value() == "worst"
    pressed = tab.locator(".kind[aria-pressed=true]")
    assert [each.get_attribute("data-kind") for each in pressed.all()] == ["wrong", "truncated"]
    tab.locator(".kind[data-kind=truncated]").click()
    expect(tab.locator(".side [role=status]")).to_have_text("4 rows in 3 groups")
    tab.go_back()
    expect(tab.locator(".side [role=status]")).to_have_text("1 row in 1 group")
    assert place in tab.url


def test_evaluations_tell_what_was_won_and_lost(visit):
    tab = visit("known", "samples?of=evaluation")
    assert tab.locator("#samples [role=status]:visible").inner_text() == (
        "sums, 7 problems: 2 won (no right answer at step 0, at least one at step 9), 1 lost (the reverse); by their "
        "numbers of right answers 1 better, 1 worse, 2 the same. In all, 6 of 14 answers were right at step 0, and "
        "8 of 14 at step 9."
    )
    kinds = {each.get_attribute("data-kind"): each.locator(".count").inner_text() for each in
             tab.locator(".kind:visible").all()}  # fmt: skip
    assert kinds == {"won": "2", "better": "1", "same": "2", "worse": "1", "lost": "1"}
    tab.locator(".kind[data-kind=lost]").click()
    expect(tab.locator(".entry:visible")).to_have_count(1)
    assert "1/2 → 0/2" in tab.locator(".entry:visible").inner_text()
    tab.locator(".kind[data-kind=lost]").click()
    tab.get_by_label("Order").select_option("gain")
    gains = ["0/2 → 2/2", "0/2 → 1/2", "1/2 → 2/2", "0/2 → 0/2", "2/2 → 2/2", "2/2 → 1/2", "1/2 → 0/2"]
    expect_texts(tab.locator(".entry:visible .fraction"), gains)
    tab.locator(".entry:visible").nth(1).click()
    before, after = (tab.locator(".half:visible").nth(each) for each in (0, 1))
    expect_texts(before.locator("h4"), ["Before: step 0, 0 of 2 right"])
    expect_texts(after.locator(".written"), ["p0 answer 0: good", "p0 answer 1: bad"])


def test_runs_without_samples_or_evaluations_say_so(visit):
    tab = visit("empty")
    assert "no samples" in tab.locator("#samples").inner_text()
    tab.get_by_role("link", name="Evaluation: before and after").click()
    expect(tab.locator("#samples [role=status]:visible")).to_contain_text("no answers of evaluations")


def test_no_header_hides_what_a_link_leads_to(visit):
    tab = visit("two")
    tab.set_viewport_size({"width": 500, "height": 900})
    tab.locator("nav a[href='#samples']").click()
    header = tab.locator("header").bounding_box()
    assert header["height"] > 130  # the runs stand in several lines
    expect(tab.locator("#samples")).to_be_in_viewport()
    assert tab.locator("#samples h2").bounding_box()["y"] > header["y"] + header["height"]


def test_a_prompt_stands_beside_that_of_another_run(visit):
    tab = visit("two")
    tab.get_by_label("beside").select_option("1")
    expect(tab.locator(".of-run")).to_have_count(2)
    assert "Other 4" in tab.locator(".of-run").nth(1).inner_text()
    tab.locator(".over-time .time").nth(1).click()
    expect(tab.locator(NAMES).nth(1)).to_have_text("Rollout 2, begun by a teacher")
    tab.go_back()
    tab.locator(".entry").nth(1).click()
    expect(tab.locator(".of-run").nth(1)).to_contain_text("no sample of the prompt at step 1. It has none of this")
    tab.get_by_label("Run", exact=True).select_option("1")
    expect(tab.locator(".side [role=status]")).to_have_text("1 row in 1 group")


def test_hostile_texts_are_text(visit):
    tab = visit("hostile")
    cards = tab.locator(".detail .card")
    expect(cards).to_have_count(len(HOSTILE))
    for index, (name, text) in enumerate(HOSTILE.items()):
        written = cards.nth(index).locator(".text > .written").last
        if name not in ("bidi", "word"):
            assert written.text_content() == text, name
        assert written.evaluate("each => getComputedStyle(each).unicodeBidi") == "isolate"
    hidden = texts(cards.nth(2).locator(".text > .written .hidden-character"))
    assert hidden == ["U+202E", "U+202C", "U+2066", "U+2069", "U+200B", "\u2400", "\u2407", "\u241b"]
    assert cards.nth(3).locator(".written").last.evaluate("each => getComputedStyle(each).direction") == "rtl"
    assert cards.nth(6).locator(".written").last.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert tab.evaluate("window.ran") is None
    assert tab.evaluate("document.querySelectorAll('#samples img, #samples svg, #samples script').length") == 0
    for width in (900, 1280):  # nothing is wider than the page
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
