"use strict";
/* The browser of evaluations: what the model won and lost between the first evaluation and the last. */
(() => {
  const { el, short } = Page;
  const HEIGHT = 34; // of a row of the table, in pixels
  const ANSWER_FOLD = 600; // characters of an answer before it folds

  /* What became of a problem, by its right answers before and after. */
  const CHANGES = {
    won: { meaning: "no answer right before, at least one after", test: (before, after) => before === 0 && after > 0 },
    better: { meaning: "more answers right than before", test: (before, after) => 0 < before && before < after },
    same: { meaning: "as many answers right as before", test: (before, after) => before === after },
    worse: {
      meaning: "fewer answers right than before, not none",
      test: (before, after) => 0 < after && after < before,
    },
    lost: {
      meaning: "at least one answer right before, none after",
      test: (before, after) => before > 0 && after === 0,
    },
    unpaired: { meaning: "asked in one of the evaluations only", test: () => false },
  };

  const isRight = (answer) => answer.graded !== false && answer.score > 0;
  const rightOf = (half) => half.answers.filter(isRight).length;
  const share = (half) => rightOf(half) / half.answers.length;

  function changeOf(problem) {
    const { before, after } = problem;
    if (!before || !after) return "unpaired";
    return Object.keys(CHANGES).find((name) => CHANGES[name].test(share(before), share(after)));
  }

  /* The totals of a benchmark's problems in words. */
  function sentence(name, problems) {
    const paired = problems.filter(({ change }) => change !== "unpaired");
    if (!paired.length) return `${name}: no problem was asked both before and after training.`;
    const number = (change) => paired.filter((problem) => problem.change === change).length;
    const sum = (half, of) => Page.sum(paired.map((problem) => of(problem[half]))).toLocaleString("en-US");
    const right = (half) => `${sum(half, rightOf)} of ${sum(half, ({ answers }) => answers.length)}`;
    const [first, last] = [paired[0].before.step, paired[0].after.step];
    return [
      `${name}, ${Page.count(paired.length, "problem")}: ${number("won")} won (no right answer at step ${first}, at least`,
      `one at step ${last}), ${number("lost")} lost (the reverse); by their numbers of right answers`,
      `${number("better")} better, ${number("worse")} worse, ${number("same")} the same. In all, ${right("before")} answers`,
      `were right at step ${first}, and ${right("after")} at step ${last}.`,
    ].join(" ");
  }

  /* Say so where only some of a benchmark's problems are on the page. */
  function shownOf(shown, asked) {
    if (!asked || asked <= shown) return "";
    return ` The page has ${shown.toLocaleString("en-US")} of the benchmark's ${Page.count(asked, "problem")}.`;
  }

  function evaluations({ place, runOf }) {
    let problems = []; // of the benchmark
    let entries = []; // that pass
    let position = -1;
    let listed = null;
    const list = Page.windowed(HEIGHT, entry);
    const detail = el("div", { class: "detail" });
    const about = el("p", { role: "status" });
    const which = el("select", { onchange: () => ask({ benchmark: which.value }) });
    const benchmark = Page.labelled("Benchmark", which);
    const order = Page.choice(
      [
        ["", "in the order asked"],
        ["gain", "most gained first"],
        ["loss", "most lost first"],
      ],
      (value) => ask({ rank: value }),
    );
    const search = Page.searchField((words) => ask({ q: words }, { replace: true }));
    const filters = Object.entries(CHANGES).map(([name, { meaning }]) =>
      el(
        "button",
        { type: "button", class: "kind", "data-kind": name, title: meaning, onclick: () => toggle(name) },
        name,
        el("span", { class: "count" }),
      ),
    );
    const toolbar = el(
      "div",
      { class: "toolbar" },
      benchmark,
      Page.labelled("Order", order),
      Page.labelled("Search prompts and answers", search),
      el("div", { class: "kinds", role: "group", "aria-label": "Show only" }, el("span", {}, "Show only"), filters),
    );

    const asked = (state) => (state.change ?? "").split(",").filter((name) => name in CHANGES);
    const ask = (changes, options) => place.go({ ...changes, uid: null }, options);

    function toggle(name) {
      const now = asked(place.state());
      ask({ change: (now.includes(name) ? now.filter((each) => each !== name) : [...now, name]).join(",") });
    }

    /* Return the problems that pass filters and search, in the order that was asked for. */
    function passing(state) {
      const wanted = asked(state);
      const pattern = Page.searched(state.q);
      const texts = ({ prompt, uid, before, after }) => [
        prompt,
        uid,
        ...[before, after].flatMap((half) => (half ? half.answers.map(({ text }) => text) : [])),
      ];
      const isFound = (problem) => pattern === null || texts(problem).some((text) => text.search(pattern) >= 0);
      const found = problems.filter(
        (problem) => (!wanted.length || wanted.includes(problem.change)) && isFound(problem),
      );
      const gain = ({ before, after }) => (before && after ? share(after) - share(before) : 0);
      const sign = { gain: -1, loss: 1 }[state.rank];
      return sign === undefined ? found : found.sort((a, b) => sign * (gain(a) - gain(b)));
    }

    function entry(problem, index) {
      const run = runOf(place.state());
      run.questions ??= Page.sharedStart(run.evaluations);
      const figures = (half) => (half ? `${rightOf(half)}/${half.answers.length}` : "–");
      return el(
        "a",
        {
          href: place.link({ uid: problem.uid }),
          class: "entry problem",
          "aria-current": index === position ? "true" : null,
        },
        el("span", { class: `change ${problem.change}` }, problem.change),
        el("span", { class: "fraction" }, `${figures(problem.before)} → ${figures(problem.after)}`),
        el("span", { class: "beginning" }, short(problem.prompt.slice(run.questions, run.questions + 160))),
      );
    }

    function answer(each, pattern) {
      return el(
        "article",
        { class: "card" },
        Page.verdict(each, Page.glyph(each)),
        Page.line("Extracted answer", each.extracted),
        each.solution ? Page.line("Class of the solution", each.solution) : null,
        each.cut ? el("p", {}, `${Page.count(each.cut, "character")} in the middle are left out here.`) : null,
        Page.text(each.text, { pattern, fold: ANSWER_FOLD }),
      );
    }

    function half(title, asked, pattern) {
      if (!asked) return el("div", { class: "half" }, el("h4", {}, title), el("p", {}, "Not asked."));
      const heading = `${title}: step ${asked.step}, ${rightOf(asked)} of ${asked.answers.length} right`;
      return el(
        "div",
        { class: "half" },
        el("h4", {}, heading),
        asked.answers.map((each) => answer(each, pattern)),
      );
    }

    function showProblem(state) {
      const problem = position >= 0 ? entries[position] : problems.find(({ uid }) => uid === state.uid);
      if (problem === undefined) {
        detail.replaceChildren(el("p", {}, "No problem passes the filters and the search."));
        return;
      }
      const pattern = Page.searched(state.q);
      detail.replaceChildren(
        el(
          "div",
          { class: "group" },
          el("h3", {}, short(problem.uid), el("span", { class: "values" }, problem.change)),
          Page.text(problem.prompt, { pattern }),
          Page.line("Reference answer", problem.answer),
          el(
            "div",
            { class: "halves" },
            half("Before", problem.before, pattern),
            half("After", problem.after, pattern),
          ),
        ),
      );
    }

    function showControls(state, names, name) {
      which.replaceChildren(...names.map((each) => el("option", { value: each }, each)));
      which.value = name;
      benchmark.hidden = names.length < 2;
      order.value = state.rank ?? "";
      Page.setField(search, state.q);
      for (const button of filters) {
        const number = problems.filter(({ change }) => change === button.dataset.kind).length;
        button.setAttribute("aria-pressed", String(asked(state).includes(button.dataset.kind)));
        button.hidden = number === 0;
        button.querySelector(".count").textContent = number.toLocaleString("en-US");
      }
    }

    function show(state) {
      const all = runOf(state).evaluations;
      const names = [...new Set(all.map((problem) => problem.benchmark))];
      for (const part of [toolbar, browse]) part.hidden = !all.length;
      if (!all.length) {
        about.textContent = "This run has no answers of evaluations to compare.";
        return;
      }
      const name = names.includes(state.benchmark) ? state.benchmark : names[0];
      const wanted = JSON.stringify([state.run, name, state.change, state.rank, state.q]);
      if (wanted !== listed) {
        problems = all.filter((problem) => problem.benchmark === name);
        for (const problem of problems) problem.change = changeOf(problem);
        entries = passing(state);
        listed = wanted;
        about.textContent = `${sentence(name, problems)}${shownOf(problems.length, runOf(state).asked[name])}`;
        showControls(state, names, name);
      }
      position =
        state.uid === undefined ? (entries.length ? 0 : -1) : entries.findIndex(({ uid }) => uid === state.uid);
      list.show(entries, position);
      showProblem(state);
    }

    function move(by) {
      const to = entries[Math.max(0, Math.min(position + by, entries.length - 1))];
      if (to) place.go({ uid: to.uid });
    }

    const browse = el("div", { class: "browser" }, el("div", { class: "side" }, list.element), detail);
    return { element: el("div", {}, about, toolbar, browse), search, show, move };
  }

  Page.evaluations = evaluations;
})();
