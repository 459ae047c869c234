"use strict";
/* What did it write: rollouts and teachers of the training steps, and the evaluations' answers before and after. */
(() => {
  const { el } = Page;
  const MOVE_MS = 60;

  /* The tabs: what each shows, and the browser that it makes. A browser has element, search (a field), show(state),
     which is called whenever the place changes, and move(by) in its list; that of rollouts also moveStep(by). */
  const TABS = [
    { name: "", title: "Training", make: Page.rollouts },
    { name: "evaluation", title: "Evaluation: before and after", make: Page.evaluations },
  ];

  /* How many problems of each benchmark the run's last evaluation asked. */
  function askedOf({ evaluations }) {
    const last = Page.last(evaluations)?.benchmarks ?? {};
    return Object.fromEntries(Object.entries(last).map(([name, { problems }]) => [name, problems]));
  }

  let browser; // returns that of the open tab, once the section is built

  function build(element, report) {
    const several = report.runs.length > 1;
    const runs = report.runs.map((run) => ({ ...run.samples, name: run.name, asked: askedOf(run), groups: null }));
    const names = runs.map(({ name }, index) => [String(index), name]);
    const place = Page.place("samples", arrive);
    const runOf = (state) => runs[Number(state.run ?? 0)] ?? runs[0];
    const otherOf = (state) => (state.beside ? (runs[Number(state.beside)] ?? null) : null);
    const context = { several, place, runOf, otherOf };
    const tabs = TABS.map(({ name, title, make }) => ({ name, title, ...make(context) }));
    const tabOf = (state) => tabs.find(({ name }) => name === (state.of ?? "")) ?? tabs[0];
    const current = () => tabOf(place.state());

    const links = tabs.map(({ title }) => el("a", { class: "tab" }, title));
    const elsewhere = { at: null, uid: null, row: null };
    const which = Page.choice(names, (run) => place.go({ ...elsewhere, run, beside: null }));
    const beside = Page.choice([["", "no other run"], ...names], (other) => place.go({ beside: other }));
    const [ofRun, ofOther] = [Page.labelled("Run", which), Page.labelled("beside", beside)];
    element.append(el("div", { class: "tabs" }, links, ofRun, ofOther), ...tabs.map((tab) => tab.element));

    async function arrive(state) {
      for (const run of [runOf(state), otherOf(state)]) {
        if (run !== null && run.groups === null) Object.assign(run, await Page.load(run.block));
      }
      tabs.forEach((tab, index) => {
        tab.element.hidden = tab !== tabOf(state);
        links[index].setAttribute("href", place.link({ of: tab.name, ...elsewhere }));
        links[index].setAttribute("aria-current", String(tab === tabOf(state)));
      });
      ofRun.hidden = !several;
      ofOther.hidden = !several || tabOf(state) !== tabs[0];
      which.value = state.run ?? "0";
      beside.value = state.beside ?? "";
      tabOf(state).show(state);
    }

    browser = current;
    const begin = () => arrive(place.state());
    if (place.isLinked()) begin();
    else Page.whenSeen(element, begin);
  }

  let moved = 0;

  /* Act on a key; one that is held moves no faster than browsers let a page change its URL. */
  function move(action) {
    if (performance.now() - moved < MOVE_MS) return;
    moved = performance.now();
    action(browser());
  }

  const keys = [
    ["j", "the next sample or problem", () => move((tab) => tab.move(1))],
    ["k", "the previous sample or problem", () => move((tab) => tab.move(-1))],
    ["ArrowRight", "samples of the next step", () => move((tab) => tab.moveStep?.(1))],
    ["ArrowLeft", "samples of the previous step", () => move((tab) => tab.moveStep?.(-1))],
    ["/", "search", () => browser().search.focus()],
  ];
  Page.section({ id: "samples", title: "Samples", question: "What did it write?", build, keys });
})();
