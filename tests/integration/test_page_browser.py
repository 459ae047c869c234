"""The page of runs in a real browser: what it says, draws and switches, for runs whose figures are set by hand."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from oger_recipe.base.files import write_jsonl
from oger_recipe.report.metric_table import lookup
from oger_recipe.report.page.write import write_page

Record = dict[str, Any]
Visit = Callable[..., Any]

QUESTIONS = [
    "Is it learning?", "Is it healthy?", "What do teachers, bonus, judges and process rewards do?",
    "What did it write?", "What was it?",
]  # fmt: skip
STEPS = 40
WARNING = "WARNING: the reward 'judge' follows the length of the answers"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def metrics_of(step: int, *, truncated: float) -> Record:
    share = step / STEPS
    teachers = {
        "oger/replaced": 4.0,
        "oger/off_on_ratio": 1 / 7,
        "off_policy_token_share": 0.1,
        "oger/teacher_advantage": 0.5,
    }
    bonus = {"oger/bonus": 0.02, "oger/bonus_of_correct": 0.2, "oger/bonus_of_correct_std": 0.05}
    judge = {"reward/judge": 0.5 + share / 4, "reward/judge/length_correlation": 0.1, "reward/judge/failed": 0.0}
    return {
        "step": step, "rollout/solve_rate": 0.2 + share / 2, "rollout/solve_none": 0.5 - share / 4,
        "rollout/solve_all": 0.1, "rollout/entropy": 0.4 - share / 10, "rollout/truncated": truncated,
        "rollout/repetitive": 0.0, "clip_fraction": 0.0, "actor_grad_norm": None if step == 7 else 0.1 + share,
        "constant": 3.0, "never": None, HOSTILE: share, "timing/step_total": 30.0, "timing/generation": 20.0,
        "timing/ppo_train": 10.0, **teachers, **bonus, **judge,
    }  # fmt: skip


def rollout(similarity: float, *scores: float) -> Record:
    """A right rollout of which each step of reasoning has a score."""
    steps = [{"text": "so", "reward": score, "advantage": 0.0, "sources": {"prm": score}} for score in scores]
    numbers = {"similarity": similarity, "divergence": 1 - similarity, "advantage": 0.0, "bonus": 0.0}
    row = {"uid": "a", "prompt": "?", "task": "sums", "answer": "1", "text": "so 1", "truncated": False, "score": 1.0}
    return row | {"off_policy": False, "reward": 1.0, "steps_of_reasoning": steps} | numbers


def make_run(
    folder: Path, *, lr: float, before: list[int], after: list[int], truncated: dict[int, float], finished: bool
) -> Path:
    """A run of STEPS steps. ``before``, ``after``: the right ones of two answers to each held-out problem;
    ``truncated``: by step, 0 on others."""
    own = {} if finished else {"constructor": 0.5}  # a source may be named as what all objects of JavaScript have
    steps = [metrics_of(step, truncated=truncated.get(step, 0.0)) | own for step in range(1, STEPS + 1)]
    events: list[Record] = [{"time": 100.0, "event": "ready", "steps": STEPS, "resumed_at": 0, "sources": ["judge"]}]
    for step, right, when in ((0, before, "before"), (STEPS, after, "after")):
        mean = sum(right) / len(right) / 2
        scores = {"problems": len(right), "n": 2, "avg_at_2": mean, "avg_at_2_interval": [mean - 0.1, mean + 0.1]}
        of_k = {f"pass_at_{k}": mean for k in (1, 2)} | {
            f"pass_at_{k}_interval": [mean - 0.1, mean + 0.1] for k in (1, 2)
        }
        answers = [
            {"uid": f"p{number}", "benchmark": "sums", "sample": sample, "prompt": "?", "text": "", "answer": "1",
             "score": float(sample < count), "extracted": "1"}
            for number, count in enumerate(right) for sample in range(2)
        ]  # fmt: skip
        (folder / "eval").mkdir(parents=True, exist_ok=True)
        write_jsonl(answers, folder / "eval" / f"step_{step:05d}.jsonl")
        (folder / "eval" / f"step_{step:05d}.json").write_text(json.dumps({"benchmarks": {"sums": scores | of_k}}))
        events.append(
            {"time": 101.0 + step, "event": "evaluated", "when": when, "step": step, "benchmarks": {"sums": scores}}
        )
    if not finished:
        events.insert(2, {"time": 105.0, "event": "note", "step": 5, "text": WARNING})
    events.append(
        {"time": 200.0} | ({"event": "finished"} if finished else {"event": "ended", "why": "an actor died"})
    )
    write_jsonl(events, folder / "events.jsonl")
    write_jsonl(steps, folder / "metrics.jsonl")
    (folder / "recipe.yaml").write_text(
        yaml.safe_dump({"actor": {"adam": {"lr": lr}}, "oger": {"task": {"name": "sums"}}})
    )
    (folder / "command.sh").write_text(f"oger train --recipe {HOSTILE}\n")
    (folder / "environment.json").write_text(json.dumps({"python": "3.11.7", "packages": ["torch==2.13.0"]}))
    seconds = {"until_ready": 60.0, "training": 1200.0, "total": 1300.0}
    (folder / "summary.json").write_text(json.dumps({"seconds": seconds, "finished": finished}))
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    calm = make_run(folder / "calm", lr=1e-6, before=[0, 0, 1, 1], after=[1, 1, 2, 2], truncated={}, finished=True)
    wild = make_run(
        folder / "wild", lr=3e-4, before=[0, 1, 2, 1], after=[1, 0, 1, 2], truncated={4: 0.3, 5: 0.25}, finished=False
    )
    (wild / "samples").mkdir()
    for step, similarities in ((1, [0.1, 0.9]), (2, [0.9, 0.9])):
        rows = [rollout(similarity, 0.25, 0.75 * similarity) for similarity in similarities]
        write_jsonl(rows, wild / "samples" / f"step_{step:05d}.jsonl")
    for name, runs in {"calm": [calm], "wild": [wild], "both": [calm, wild]}.items():
        write_page(runs, folder / f"{name}.html")
    damaged = (folder / "calm.html").read_text().replace('id="report">', 'id="report">AAAA')
    (folder / "damaged.html").write_text(damaged)
    return {path.stem: path for path in folder.glob("*.html")}


@pytest.fixture()
def visit(chromium: Any, pages: dict[str, Path]) -> Iterator[Visit]:
    """Opens a page; when the test ends, the page may not have asked for anything or complained unless ``broken``."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def opened(name: str, *, width: int = 1280, scheme: str = "light", script: str = "", broken: bool = False) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => console.error(event.violatedDirective))"
        )
        tab.add_init_script(script)
        if not broken:
            tab.on("console", lambda message: complaints.append(message.text))
            tab.on("pageerror", lambda error: complaints.append(str(error)))
        url = pages[name].as_uri()
        tab.on("request", lambda request: request.url == url or complaints.append(request.url))
        tab.goto(url)
        tab.wait_for_selector(".alert[role=alert]" if broken else "html[data-ready]", state="attached")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def chart(tab: Any, title: str) -> Any:
    """The first chart with the title, drawn."""
    figure = tab.locator("figure.chart", has=tab.get_by_text(title, exact=True)).first
    figure.scroll_into_view_if_needed()
    figure.locator("canvas").wait_for()
    return figure


def pixels(figure: Any) -> str:
    """What a chart shows, once it is drawn."""
    figure.locator("canvas").wait_for()
    figure.page.wait_for_timeout(50)  # uPlot draws with the next frame
    return figure.locator("canvas").evaluate("(canvas) => canvas.toDataURL()")


def in_order(wanted: list[str], found: list[str]) -> bool:
    rest = iter(found)
    return all(each in rest for each in wanted)


@pytest.mark.parametrize("name", ["wild", "both"])
def test_a_page_answers_the_questions_in_order_and_draws_all_charts_without_a_complaint(visit, name):
    tab = visit(name)
    headings = tab.locator("h2").all_inner_texts()
    assert in_order([*QUESTIONS, "All metrics"], headings), headings
    tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    plots = tab.locator("div.plot:visible")
    assert 0 < tab.locator("div.plot canvas").count() < plots.count(), "charts are drawn when they are seen"
    for plot in plots.all():
        plot.scroll_into_view_if_needed()
        plot.locator("canvas").first.wait_for()
    assert tab.locator("div.plot:visible:not(:has(canvas))").count() == 0
    assert tab.locator("main img, main script").count() == 0
    assert HOSTILE in tab.locator("#recipe pre").first.text_content()


def test_a_rise_beyond_its_interval_is_told_from_none(visit):
    """Each of calm's problems gains one answer of two, so every resample gains 0.5; wild's gains and losses cancel."""
    rise = visit("calm").locator("#learning .finding").inner_text()
    assert rise.startswith("On sums (4 held-out problems), avg@2 rose, from 0.250 at step 0 to 0.750 at step 40:")
    assert rise.endswith(" +0.500 [0.500, 0.500].")
    none = visit("wild").locator("#learning .finding").inner_text()
    assert "avg@2 did not change beyond its interval, from 0.500 at step 0 to 0.500 at step 40: +0.000" in none


def test_what_left_its_healthy_range_is_named_with_the_advice_and_every_warning_listed(visit):
    assert "Nothing conspicuous" in visit("calm").locator("#health .finding").inner_text()
    tab = visit("wild")
    assert tab.locator("#health .finding").inner_text() == "1 metric left its healthy range; 1 warning or note."
    row = lookup("rollout/truncated")
    said = tab.locator("#health .conspicuous li").inner_text()
    assert "rollout/truncated" in said and "on 2 of 40 steps, last at step 5: 0.25" in said and "Now it is 0." in said
    assert row is not None and row.advice and row.advice in said
    assert [text.strip() for text in tab.locator("#health tbody td").all_inner_texts()] == ["5", WARNING]
    assert "0 throughout: " in tab.locator("#health").inner_text()


def test_parts_that_a_run_lacks_are_left_out(visit):
    tab = visit("calm")
    parts = tab.locator("#rewards h3").all_inner_texts()
    assert parts == ["Teachers", "Bonus for exploration", "Reward: judge"]
    assert tab.get_by_text("loss of the critic").count() == 0


def test_distributions_and_steps_of_reasoning_are_drawn_from_the_rows(visit):
    """Similarities 0.1, 0.9, 0.9, 0.9; second steps of reasoning score three quarters of it: 0.525 on average."""
    tab = visit("wild")
    heat = chart(tab, "similarity to the nearest teacher")
    assert re.fullmatch(r"step 2: median 0\.8\d* of 2 rows", heat.locator(".at").inner_text())
    drawn = "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    assert heat.locator("canvas").evaluate(drawn)
    heat.locator("canvas").hover(position={"x": 80, "y": 50})
    assert heat.locator(".at").inner_text().startswith("step 1: ")
    steps = chart(tab, "prm: score by step of reasoning").locator("[role=img]").get_attribute("aria-label")
    assert "0.25 at 1, 0.525 at 2" in steps
    assert visit("both").get_by_text("similarity to the nearest teacher: wild").count() == 1


def test_what_the_run_was(visit):
    tab = visit("wild")
    recipe = tab.locator("#recipe")
    assert "actor.adam.lr" in recipe.inner_text() and "0.0003" in recipe.inner_text()
    training = recipe.locator(".times > div").nth(1)
    rows = [cell.strip() for cell in training.locator("td").all_inner_texts()]
    assert rows == ["sampling", "13:20", "67 %", "updates", "6:40", "33 %"]  # 40 times 20 s and 10 s
    assert not recipe.get_by_text("torch==2.13.0").is_visible()
    recipe.get_by_text("Versions of 1 packages").click()
    assert recipe.get_by_text("torch==2.13.0").is_visible()


def test_charts_say_their_figures_in_words_and_as_a_table(visit):
    figure = chart(visit("calm"), "entropy of a token, nats")
    label = figure.locator("[role=img]").get_attribute("aria-label")
    assert label == "entropy of a token, nats. entropy: 0.3975 at 1, 0.3 at 40, between 0.3 and 0.3975"
    figure.get_by_text("figures").click()
    figure.locator("tbody").wait_for()
    cells = figure.locator("tbody tr").nth(19).locator("td").all_inner_texts()
    assert cells == ["20", "0.35"] and figure.locator("tbody tr").count() == STEPS


def test_a_tip_says_what_a_metric_is(visit):
    tab = visit("calm")
    chart(tab, "entropy of a token, nats").get_by_role("button", name="What is rollout/entropy?").focus()
    row = lookup("rollout/entropy")
    assert row is not None and row.meaning in tab.get_by_role("tooltip").inner_text()
    tab.keyboard.press("Escape")
    assert tab.get_by_role("tooltip").count() == 0


def background(tab: Any) -> str:
    return tab.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_follows_the_system_until_somebody_chooses(visit):
    light, dark = visit("calm"), visit("calm", scheme="dark")
    colours = background(light), background(dark)
    assert colours[0] != colours[1]
    figure = chart(light, "entropy of a token, nats")
    before = pixels(figure)
    for theme, colour in (("light", colours[0]), ("dark", colours[1]), ("auto", colours[0])):
        light.get_by_role("button", name="Theme:").click()
        assert light.get_by_role("button", name=f"Theme: {theme}").is_visible() and background(light) == colour
        if theme == "dark":
            assert pixels(figure) != before
    light.emulate_media(color_scheme="dark")
    light.wait_for_function("(colour) => getComputedStyle(document.body).backgroundColor === colour", arg=colours[1])


def test_runs_are_switched_on_and_off_but_one_stays(visit):
    tab = visit("both")
    calm, wild = tab.locator(".chip").all()
    figure = chart(tab, "entropy of a token, nats")
    both = pixels(figure)
    assert figure.locator(".key").count() == 2
    wild.click()
    assert wild.get_attribute("aria-pressed") == "false" and figure.locator(".key").count() == 1
    assert pixels(figure) != both
    calm.click()
    assert calm.get_attribute("aria-pressed") == "true", "one run is always shown"
    wild.focus()
    tab.keyboard.press("Enter")
    assert figure.locator(".key").count() == 2 and pixels(figure) == both


def test_two_runs_compare(visit):
    tab = visit("both")
    tables = tab.locator("#learning table").all()
    scores, differences = [[cell.strip() for cell in table.locator("td").all_inner_texts()] for table in tables[:2]]
    assert scores[:4] == ["calm", "sums", "avg@2", "0.750"] and scores[5:9] == ["wild", "sums", "avg@2", "0.500"]
    assert differences[:4] == ["wild against calm", "sums", "avg@2", "-0.250"] and differences[-2:] == ["4", "paired"]
    recipes = [cell.strip() for cell in tab.locator("#recipe table").first.locator("td").all_inner_texts()]
    assert recipes == ["actor.adam.lr", "0.000001", "0.0003"]
    assert tab.locator(".chip").nth(1).inner_text().startswith("wild")


def hover(figure: Any, share: float) -> str:
    """Point at a chart, so far from its left end; return where the cursor says it is."""
    box = figure.locator(".u-over").bounding_box()
    figure.page.mouse.move(box["x"] + share * box["width"], box["y"] + 20)
    figure.page.wait_for_timeout(50)
    return figure.locator(".at").inner_text()


def test_cursor_and_zoom_are_those_of_all_charts(visit):
    tab = visit("calm")
    tab.set_viewport_size({"width": 1280, "height": 2000})
    tab.wait_for_timeout(400)  # the charts are drawn anew a moment after a resize
    entropy, norm = chart(tab, "entropy of a token, nats"), chart(tab, "gradient norm of the policy")
    assert hover(entropy, 0.5) == norm.locator(".at").inner_text() == "step 20"
    assert entropy.locator(".key").inner_text() == "0.35"  # 0.4 - 20 / 400
    before = hover(norm, 0.02)
    box = entropy.locator(".u-over").bounding_box()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 30)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 30, steps=4)
    tab.mouse.up()
    reset = tab.get_by_role("button", name="Reset zoom")
    assert reset.is_visible() and before == "step 1" and hover(norm, 0.02) == "step 21"
    reset.click()
    assert not reset.is_visible() and hover(norm, 0.02) == before


def begins(tab: Any, section: str, low: float, high: float) -> None:
    """Wait until the section begins so many pixels below the top of what is in view; fail if it does not."""
    for _ in range(100):
        y = tab.locator(f"#{section}").bounding_box()["y"]
        if low <= y < high:
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"{section} begins at {y}")


@pytest.mark.parametrize("way", ["key", "link", "URL"])
@pytest.mark.parametrize("name", ["calm", "wild"])
def test_a_question_stays_in_place_while_the_samples_above_it_are_built(visit, name, way):
    """They are built when the reader comes near; without any, their section shrinks to a line."""
    tab = visit(name)
    if way == "key":
        tab.keyboard.press("5")
    elif way == "link":
        tab.locator("nav a[href='#recipe']").click()
    else:
        tab.goto(tab.url + "#recipe")
        tab.reload()
    begins(tab, "recipe", 0, 450)
    tab.locator("#samples").get_by_text("Training", exact=True).and_(tab.locator("[aria-current=true]")).wait_for()
    begins(tab, "recipe", 0, 450)
    tab.mouse.wheel(0, -600)
    begins(tab, "recipe", 450, 900)
    tab.evaluate("document.getElementById('learning').style.paddingBottom = '50px'")
    tab.wait_for_timeout(100)
    assert tab.locator("#recipe").bounding_box()["y"] > 450, "the reader had moved on"


def test_every_page_wide_shortcut_does_what_the_list_says(visit):
    tab = visit("calm")
    tab.keyboard.press("?")
    listed = {key: text for key, text in (row.split("\t") for row in tab.locator("dialog tbody tr").all_inner_texts())}
    keys = [key for key, text in listed.items() if not text.startswith("in “")]
    tab.keyboard.press("t")
    assert tab.get_by_role("button", name="Theme: auto").count() == 1, "a key does nothing while the list is open"
    tab.keyboard.press("Escape")
    tab.locator("dialog").wait_for(state="detached")  # the browser closes it with a later task

    sections = tab.locator("main > section").evaluate_all("(all) => all.map((each) => each.id)")
    for number, section in enumerate(sections, start=1):
        tab.keyboard.press(str(number))
        if number < len(sections):
            begins(tab, section, 0, 450)
    for key, before, after in (("t", "Theme: auto", "Theme: light"), ("s", "Smoothing: on", "Smoothing: off"),
                               ("x", "Over steps", "Over time")):  # fmt: skip
        assert tab.get_by_role("button", name=before).is_visible()
        tab.keyboard.press(key)
        assert tab.get_by_role("button", name=after).is_visible()
    tab.keyboard.press("1")
    hover(chart(tab, "rollouts in training, share"), 0.5)
    assert "minutes of training" in chart(tab, "rollouts in training, share").locator(".at").inner_text()
    tab.keyboard.press("r")
    tab.keyboard.press("m")
    assert tab.get_by_label("Search the metrics").evaluate("(field) => field === document.activeElement")
    tab.keyboard.type("t")
    assert tab.get_by_role("button", name="Theme: light").is_visible(), "typing is no shortcut"
    assert set(keys) == {"?", "t", "s", "x", "r", "m"} | {str(number) for number in range(1, len(sections) + 1)}


def test_metrics_are_found_by_name_and_meaning(visit):
    tab = visit("calm")
    count = tab.locator("#metrics [role=status]")
    total = int(re.sub(r".* of (\d+) metrics", r"\1", count.inner_text()))
    assert total == len(metrics_of(1, truncated=0.0)) - 1
    search = tab.get_by_label("Search the metrics")
    search.fill("grad norm")
    assert count.inner_text() == f"1 of {total} metrics"
    assert chart(tab, "actor_grad_norm").is_visible()
    search.fill("constant")
    assert "3 on every step." in tab.locator("#metrics figure:visible").inner_text()
    search.fill("never")
    assert "No value on any step." in tab.locator("#metrics figure:visible").inner_text()
    search.fill("img src")
    assert tab.locator("#metrics figure:visible .title").inner_text() == HOSTILE


def test_a_metric_of_one_run_alone_may_have_any_name(visit):
    tab = visit("both")
    tab.get_by_label("Search the metrics").fill("constructor")
    assert tab.locator("#metrics figure:visible .title").inner_text() == "constructor"


@pytest.mark.parametrize("name", ["wild", "both"])
def test_nothing_is_wider_than_the_page(visit, name):
    tab = visit(name)
    tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    for width in (1280, 900):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_is_reached_by_tab_and_shows_it(visit):
    tab = visit("both")
    reached = []
    for _ in range(14):
        tab.keyboard.press("Tab")
        text = tab.evaluate("document.activeElement.textContent")
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", text
        reached.append(text)
    controls = ["Smoothing: on", "Over steps", "Theme: auto", "?"]
    wanted = ["To the content", *controls, "Is it learning?", "Is it healthy?", "What do teachers and rewards do?"]
    assert in_order(wanted, reached) and reached[1].startswith("calm") and reached[2].startswith("wild")


def test_what_breaks_is_shown(visit):
    old = visit("calm", script="delete window.DecompressionStream", broken=True)
    assert "Firefox 113" in old.locator(".alert[role=alert]").inner_text()
    damaged = visit("damaged", broken=True)
    assert "The page failed" in damaged.locator(".alert[role=alert]").inner_text()
