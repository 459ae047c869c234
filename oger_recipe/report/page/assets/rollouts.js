"use strict";
/* The browser of rollouts and teachers: a list of groups, or of single rows by rank, and the group that was chosen. */
(() => {
  const { el, KINDS, ORDERS } = Page;
  const HEIGHT = 78; // of an entry of the list, in pixels
  const BEGINNING = 160; // characters of a prompt in the list

  const same = (state) => (group) => String(group.step) === state.at && group.uid === state.uid;
  const stepsOf = (groups) => [...new Set(groups.map((group) => group.step))];
  const kindsAsked = (state) => (state.show ?? "").split(",").filter((kind) => kind in KINDS);

  /* Return the entries of the list: groups, each with the rows that pass, or in an order by rank single rows. */
  function entriesOf(groups, state) {
    const pattern = Page.searched(state.q);
    const passes = Page.passes(kindsAsked(state));
    const inPrompts = state.in === "prompts";
    const isFound = (text) => pattern === null || text.search(pattern) >= 0;
    const entries = [];
    for (const group of groups) {
      if (state.step && String(group.step) !== state.step) continue;
      if (inPrompts && !isFound(group.prompt) && !isFound(group.uid)) continue;
      const rows = [...group.rows.keys()].filter((index) => {
        const row = group.rows[index];
        return passes(row) && (inPrompts || isFound(row.text));
      });
      if (rows.length) entries.push({ group, rows });
    }
    if (!(state.sort in ORDERS)) return entries;
    const single = ({ group, rows }) => rows.map((index) => ({ group, rows: [index], row: group.rows[index] }));
    return Page.inOrder(entries.flatMap(single), state.sort);
  }

  /* Return where the chosen entry stands: the first one without a choice, -1 where it is not in the list. */
  function chosen(entries, state) {
    if (state.uid === undefined) return entries.length ? 0 : -1;
    const isSame = same(state);
    const isRow = ({ row, rows }) => row === undefined || state.row === undefined || rows[0] === Number(state.row);
    return entries.findIndex((entry) => isSame(entry.group) && isRow(entry));
  }

  function rollouts({ several, place, runOf, otherOf }) {
    let entries = [];
    let position = -1; // of the chosen entry
    let listed = null; // what the entries were made of
    const groups = () => runOf(place.state()).groups;
    const list = Page.windowed(HEIGHT, entry);
    const detail = el("div", { class: "detail" });
    const tally = el("p", { class: "muted", role: "status" });
    const about = el("p", { class: "muted" });

    /* Go on with other filters; what was chosen stays chosen where it is still listed. */
    function ask(changes, options) {
      const state = { ...place.state(), ...changes };
      const isListed = chosen(entriesOf(groups(), state), state) >= 0;
      place.go(isListed ? changes : { ...changes, at: null, uid: null, row: null }, options);
    }

    // The controls.

    const slider = el("input", {
      type: "range",
      min: 0,
      "aria-label": "Step, by slider",
      oninput: () => toStep(Number(slider.value), { replace: true }),
    });
    const field = el("input", { type: "number", class: "step-field", onchange: () => toNearest(field.value) });
    const every = el("button", { type: "button", onclick: () => ask({ step: null }) }, "All steps");
    const search = Page.searchField((words) => ask({ q: words }, { replace: true }));
    const where = Page.choice(
      [
        ["", "texts"],
        ["prompts", "prompts and uids"],
      ],
      (value) => ask({ in: value }),
    );
    const ranks = Object.entries(ORDERS).map(([name, { label }]) => [name, `single rows, ${label} first`]);
    const sort = Page.choice([["", "groups, by step"], ...ranks], (value) => ask({ sort: value }));
    const filters = Object.entries(KINDS).map(([kind, { meaning }]) =>
      el(
        "button",
        { type: "button", class: "kind", "data-kind": kind, title: meaning, onclick: () => toggle(kind) },
        el("span", { class: `glyph ${kind}`, "aria-hidden": "true" }),
        kind,
        el("span", { class: "count" }),
      ),
    );
    const toolbar = el(
      "div",
      { class: "toolbar" },
      Page.labelled("Step", field),
      slider,
      every,
      Page.labelled("List", sort),
      el("span", { class: "field" }, Page.labelled("Search", search), Page.labelled("in", where)),
      el("div", { class: "kinds", role: "group", "aria-label": "Show only" }, el("span", {}, "Show only"), filters),
    );

    function toggle(kind) {
      const asked = kindsAsked(place.state());
      const now = asked.includes(kind) ? asked.filter((each) => each !== kind) : [...asked, kind];
      ask({ show: now.join(",") });
    }

    /* Go to a step by its place among those shown; a prompt that is there, too, stays chosen. */
    function toStep(index, options) {
      const steps = stepsOf(groups());
      const step = String(steps[Math.max(0, Math.min(index, steps.length - 1))]);
      const { uid } = place.state();
      const stays = groups().some(same({ at: step, uid }));
      place.go({ step, at: stays ? step : null, uid: stays ? uid : null, row: null }, options);
    }

    function toNearest(wanted) {
      if (wanted === "") return ask({ step: null });
      const steps = stepsOf(groups());
      const distances = steps.map((step) => Math.abs(step - Number(wanted)));
      return toStep(distances.indexOf(Math.min(...distances)));
    }

    function showControls(state) {
      const steps = stepsOf(groups());
      slider.max = String(steps.length - 1);
      slider.value = String(state.step ? steps.indexOf(Number(state.step)) : 0);
      field.value = state.step ?? "";
      field.placeholder = "all";
      every.setAttribute("aria-pressed", String(!state.step));
      Page.setField(search, state.q);
      where.value = state.in ?? "";
      sort.value = state.sort ?? "";
      const ofStep = groups().filter((group) => !state.step || String(group.step) === state.step);
      const rows = ofStep.flatMap((group) => group.rows);
      for (const button of filters) {
        const { kind } = button.dataset;
        button.setAttribute("aria-pressed", String(kindsAsked(state).includes(kind)));
        button.querySelector(".count").textContent = rows.filter(KINDS[kind].test).length.toLocaleString("en-US");
      }
    }

    // The list.

    function entry({ group, rows, row }, index) {
      const changes = { at: group.step, uid: group.uid, row: row === undefined ? null : rows[0] };
      const isCurrent = index === position ? "true" : null;
      return el(
        "a",
        { href: place.link(changes), class: "entry", "aria-current": isCurrent },
        row === undefined ? ofGroup(group, rows) : ofSingle(group, rows[0]),
        el("span", { class: "beginning" }, excerpt(group, rows, row)),
      );
    }

    /* Return the surroundings of the first hit; without a search the beginning of the row's text, or of the prompt. */
    function excerpt(group, rows, row) {
      const state = place.state();
      const run = runOf(state);
      const pattern = Page.searched(state.q);
      run.template ??= Page.sharedStart(run.groups);
      if (pattern !== null && state.in !== "prompts") return Page.excerpt(group.rows[rows[0]].text, pattern);
      if (pattern !== null) return Page.excerpt(group.prompt, pattern);
      return Page.short((row === undefined ? group.prompt.slice(run.template) : row.text).slice(0, BEGINNING));
    }

    function ofGroup(group, rows) {
      const { right, n } = Page.solved(group);
      const pictures = group.rows.map((row, index) =>
        el("span", { class: rows.includes(index) ? null : "dimmed" }, Page.glyph(row)),
      );
      const many = group.rows.length > 14 ? "strip many" : "strip";
      const reward = Page.mean(group.rows.map((row) => row.total_reward));
      const replaced = group.rows.filter(KINDS.replaced.test).length;
      const facts = [`step ${group.step}`, `mean reward ${Page.number(reward, 2)}`];
      if (replaced) facts.push(`${replaced} replaced`);
      return [
        el(
          "span",
          { class: "pictures" },
          el("span", { class: many }, pictures),
          el("b", {}, `${right} of ${n} right`),
        ),
        el("span", { class: "facts" }, facts.join(" · ")),
      ];
    }

    function ofSingle(group, index) {
      const row = group.rows[index];
      const { what, value } = ORDERS[place.state().sort];
      return [
        el("span", { class: "pictures" }, Page.glyph(row), Page.short(Page.names(group)[index])),
        el("span", { class: "facts" }, `step ${group.step} · ${what} ${Page.number(value(row))}`),
      ];
    }

    // The group.

    function showGroup(state) {
      const group = position >= 0 ? entries[position].group : groups().find(same(state));
      if (group === undefined) {
        detail.replaceChildren(el("p", {}, "No row passes the filters and the search."));
        return;
      }
      const other = otherOf(state);
      const views = [ofRun(runOf(state), group, state)];
      if (other !== null) {
        const twin = other.groups.find(({ step, uid }) => step === group.step && uid === group.uid);
        views.push(twin === undefined ? missing(other, group) : ofRun(other, twin, state));
      }
      detail.classList.toggle("two", views.length > 1);
      detail.replaceChildren(...views);
      const card = state.row === undefined ? null : detail.querySelector(`[data-row="${Number(state.row)}"]`);
      card?.classList.add("chosen");
      card?.scrollIntoView({ block: "nearest" });
    }

    const inRun = (run, ...children) =>
      el("div", { class: "of-run" }, several ? el("h3", { class: "run" }, Page.short(run.name)) : null, children);

    function ofRun(run, group, state) {
      const passing = entriesOf([group], { ...state, sort: "", step: null });
      const others = run.groups.filter(({ uid }) => uid === group.uid);
      return inRun(run, Page.group(group, { shown: passing[0]?.rows ?? [], others, place }));
    }

    function missing(run, { step, uid }) {
      const steps = run.groups.filter((group) => group.uid === uid).map((group) => group.step);
      const where = steps.length ? `It has it at step ${steps.join(", ")}.` : "It has none of this prompt.";
      return inRun(run, el("p", {}, `This run has no sample of the prompt at step ${step}. ${where}`));
    }

    function show(state) {
      const isEmpty = groups().length === 0;
      for (const part of [toolbar, browse]) part.hidden = isEmpty;
      about.textContent = isEmpty ? "This run has no samples: no training step is complete." : runOf(state).text;
      if (isEmpty) return;
      const wanted = JSON.stringify([state.run, state.step, state.q, state.in, state.show, state.sort]);
      if (wanted !== listed) {
        entries = entriesOf(groups(), state);
        listed = wanted;
        const rows = Page.sum(entries.map((each) => each.rows.length));
        const parents = new Set(entries.map(({ group }) => group)).size;
        tally.textContent = rows ? `${Page.count(rows, "row")} in ${Page.count(parents, "group")}` : "Nothing found";
        showControls(state);
      }
      position = chosen(entries, state);
      list.show(entries, position);
      showGroup(state);
    }

    /* Choose the entry so many places on. */
    function move(by) {
      const to = entries[Math.max(0, Math.min(position + by, entries.length - 1))];
      if (to) place.go({ at: to.group.step, uid: to.group.uid, row: to.row === undefined ? null : to.rows[0] });
    }

    function moveStep(by) {
      const steps = stepsOf(groups());
      const { step } = place.state();
      if (step) toStep(steps.indexOf(Number(step)) + by);
      else toStep(by > 0 ? 0 : steps.length - 1);
    }

    const browse = el("div", { class: "browser" }, el("div", { class: "side" }, tally, list.element), detail);
    return { element: el("div", {}, about, toolbar, browse), search, show, move, moveStep };
  }

  Page.rollouts = rollouts;
})();
