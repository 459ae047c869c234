"use strict";
/* One group of a step: its prompt, a table of its rows' numbers, the rows' texts, and the prompt over time. */
(() => {
  const { el, glyph, number, short } = Page;

  const NUMBERS = [
    [
      "total reward",
      "what the sources of reward give together: what advantages are made of",
      (row) => row.total_reward,
    ],
    [
      "advantage",
      "how much better than the group's mean; the policy learns towards it where positive",
      (row) => row.advantage,
    ],
    ["verifier", "the verifier's reward, before the sources of reward make anything of it", (row) => row.reward],
  ];
  const MORE_NUMBERS = [
    [
      "similarity",
      "of the rollout to its prompt's teachers, by embeddings; the most similar makes room",
      (row) => row.similarity,
    ],
    ["divergence", "1 − similarity: what the bonus pays for", (row) => row.divergence],
    ["entropy", "of the policy, in nats, where the bonus looks at it", (row) => row.entropy],
    ["entropy weight", "factor of the bonus: near 1 where the policy was sure", (row) => row.entropy_weight],
    ["bonus", "for a right rollout that differs from the teachers", (row) => row.bonus],
    ["teacher's tokens", "how many leading tokens of the response are a teacher's", (row) => row.off_policy_tokens],
    ["tokens", "length of the response", (row) => row.response_length],
    ["characters", "length of the text", (row) => (row.response_length === undefined ? Page.lengthOf(row) : null)],
  ];

  /* The table's columns, [name, meaning, value of a row]: those in which a row of the group has something. */
  function columns(group) {
    const sources = new Set(
      group.rows.flatMap((row) => Object.keys(row.sources ?? {})).filter((name) => !name.includes("/")),
    );
    const ofSources = Array.from(sources, (name) => [
      name,
      `what the source of reward "${name}" said`,
      (row) => row.sources?.[name],
    ]);
    const known = (column) => group.rows.some((row) => (column[2](row) ?? null) !== null);
    return [...NUMBERS, ...ofSources, ...MORE_NUMBERS].filter(known);
  }

  /* A number as a bar from the middle: to the right where positive. */
  function bar(value, largest) {
    const width = largest > 0 ? (Math.abs(value) / largest) * 50 : 0;
    const fill = el("span", { class: value < 0 ? "negative" : "positive" });
    fill.style.width = `${width}%`;
    fill.style[value < 0 ? "right" : "left"] = "50%";
    return el("span", { class: "bar-of", "aria-hidden": "true" }, fill);
  }

  function numbers(group, shown, linkOf) {
    const names = Page.names(group);
    const used = columns(group);
    const largest = Math.max(...group.rows.map((row) => Math.abs(row.advantage ?? 0)));
    const head = used.map(([name, meaning]) => el("th", { scope: "col", title: meaning }, short(name)));
    const body = group.rows.map((row, index) => {
      const cells = used.map(([name, , value]) => {
        const known = value(row) ?? null;
        return el("td", {}, name === "advantage" && known !== null ? bar(known, largest) : null, number(known));
      });
      const name = el("th", { scope: "row" }, glyph(row), el("a", { href: linkOf(index) }, short(names[index])));
      return el("tr", { class: shown.includes(index) ? "" : "dimmed" }, name, ...cells);
    });
    return el(
      "div",
      { class: "scrolls" },
      el(
        "table",
        { class: "numbers" },
        el("thead", {}, el("tr", {}, el("td", {}), ...head)),
        el("tbody", {}, ...body),
      ),
    );
  }

  /* Pairs of a name and a value as a list of definitions; values are texts or numbers. */
  function definitions(pairs) {
    return el(
      "dl",
      {},
      ...pairs.map(([name, value]) =>
        el(
          "div",
          {},
          el("dt", {}, short(name)),
          el("dd", {}, typeof value === "number" ? number(value) : short(value ?? "–")),
        ),
      ),
    );
  }

  /* What is known of a row beside its numbers: the answer found, components, judges' criteria and errors. */
  function facts(row) {
    const ofSources = Object.entries(row.sources ?? {}).filter(([name]) => name.includes("/"));
    const ofVerdict = Object.entries(row.components ?? {}).filter(
      ([name]) => !ofSources.some(([each]) => each.endsWith(`/${name}`)),
    );
    const components = [...ofSources, ...ofVerdict];
    const parts = [Page.line("Extracted answer", row.extracted)];
    if (row.solution) parts.push(Page.line("Class of the solution", row.solution));
    if (components.length) parts.push(definitions(components));
    for (const [source, criteria] of Object.entries(row.criteria ?? {})) {
      parts.push(el("p", {}, "Criteria of ", short(source)), definitions(Object.entries(criteria)));
    }
    for (const [source, error] of Object.entries(row.errors ?? {})) {
      parts.push(el("div", { class: "error" }, Page.line(`${source} failed`, error)));
    }
    return row.source === undefined || row.extracted || components.length ? parts : parts.slice(1);
  }

  /* Return what the steps of reasoning of a group can be coloured by: name -> value of a step. */
  function scales(group) {
    const steps = group.rows.flatMap((row) => row.steps_of_reasoning ?? []);
    const sources = new Set(steps.flatMap((step) => Object.keys(step.sources ?? {})));
    const all = Array.from(sources, (name) => [name, (step) => step.sources?.[name]]);
    all.push(["reward", (step) => step.reward], ["advantage", (step) => step.advantage]);
    return new Map(all.filter(([, value]) => steps.some((step) => (value(step) ?? null) !== null)));
  }

  /* Return what values are coloured by: its ends, and the place of a value between them, from -1 to 1. Signed values
     have 0 in the middle, probabilities go from 0 to 1. */
  function scaleOf(values) {
    let low = Math.min(...values);
    let high = Math.max(...values);
    if (low < 0) [low, high] = [-Math.max(-low, high), Math.max(-low, high)];
    else if (high <= 1) [low, high] = [0, 1];
    return { low, high, place: (value) => (high > low ? (2 * (value - low)) / (high - low) - 1 : 0) };
  }

  function painted(step, { value, place }) {
    const known = value(step) ?? null;
    if (known === null) return null;
    const share = Math.round(Math.abs(place(known)) * 55);
    return `background-color: color-mix(in srgb, var(--${place(known) < 0 ? "low" : "high"}) ${share}%, transparent)`;
  }

  /* Return what is known of a step of reasoning as [name, value] pairs. */
  const said = (step) =>
    [...Object.entries(step.sources ?? {}), ["reward", step.reward], ["advantage", step.advantage]].filter(
      ([, value]) => (value ?? null) !== null,
    );

  function reasoning(row, view) {
    const count = row.steps_of_reasoning.length;
    const styled = row.steps_of_reasoning.map((step, index) => ({
      step,
      attributes: {
        class: "step",
        style: painted(step, view.scale),
        title: [
          `step ${index + 1} of ${count}`,
          ...said(step).map(([name, value]) => `${name} ${number(value)}`),
        ].join(", "),
      },
    }));
    if (view.isWhole) {
      let place = 0;
      const spans = styled.map(({ step, attributes }) => ({
        from: place,
        to: (place += step.text.length),
        attributes,
      }));
      const whole = row.steps_of_reasoning.map((step) => step.text).join("");
      return Page.text(whole, { pattern: view.pattern, spans });
    }
    return el(
      "ol",
      { class: "steps" },
      ...styled.map(({ step, attributes }) => {
        const spans = [{ from: 0, to: step.text.length, attributes }];
        const beside = definitions(said(step));
        return el(
          "li",
          {},
          el("div", { class: "beside" }, Page.text(step.text, { pattern: view.pattern, spans }), beside),
        );
      }),
    );
  }

  function textOf(row, view) {
    if (row.steps_of_reasoning?.length) return reasoning(row, view);
    const prefix = { class: "prefix", title: "the teacher's" };
    const spans = row.off_policy_characters ? [{ from: 0, to: row.off_policy_characters, attributes: prefix }] : [];
    return Page.text(row.text, { pattern: view.pattern, spans });
  }

  function card(group, index, name, view) {
    const row = group.rows[index];
    const tokens = row.off_policy_tokens
      ? [el("p", {}, `The first ${row.off_policy_tokens} tokens are a teacher's.`)]
      : [];
    const cut = row.cut
      ? [
          el(
            "p",
            {},
            `${Page.count(row.cut, "character")} in the middle are left out here; samples/ of the run has them.`,
          ),
        ]
      : [];
    const values =
      row.total_reward === undefined ? [] : [`reward ${number(row.total_reward)}, advantage ${number(row.advantage)}`];
    return el(
      "article",
      { class: "card", "data-row": index, tabindex: -1 },
      el("h4", {}, glyph(row), short(name), el("span", { class: "values" }, ...values)),
      Page.verdict(row),
      ...facts(row),
      ...tokens,
      ...cut,
      textOf(row, view),
    );
  }

  /* The rows' texts: first each teacher that entered beside the rollout that made room, then the others. */
  function cards(group, shown, view) {
    const names = Page.names(group);
    const made = new Map(shown.map((index) => [index, card(group, index, names[index], view)]));
    const parts = [];
    group.rows.forEach((row, index) => {
      if (row.source === undefined) return;
      const pair = [index - 1, index].filter((each) => made.has(each)).map((each) => made.get(each));
      const title = [short(names[index]), ` took the place of ${names[index - 1]}`];
      if (pair.length)
        parts.push(el("div", { class: "exchange" }, el("h4", {}, ...title), el("div", { class: "cards" }, ...pair)));
      made.delete(index - 1);
      made.delete(index);
    });
    return [...parts, el("div", { class: "cards" }, ...made.values())];
  }

  /* A prompt over time: a bar for each step at which it came, as high as its share of right rollouts. */
  function overTime(groups, current, linkOf) {
    if (groups.length < 2) return el("p", { class: "muted" }, "The prompt came in this step only, of those shown.");
    const bars = groups.map((group) => {
      const { right, n } = Page.solved(group);
      const fill = el("span", { class: "fill" });
      fill.style.height = `${(100 * right) / Math.max(n, 1)}%`;
      const what = `step ${group.step}: ${right} of ${n} right`;
      return el(
        "a",
        {
          href: linkOf(group),
          class: "time",
          title: what,
          "aria-label": what,
          "aria-current": group === current && "true",
        },
        el("span", { class: "column" }, fill),
        el("span", {}, `${right}/${n}`),
        el("span", { class: "when" }, String(group.step)),
      );
    });
    return el("div", { class: "over-time" }, el("span", {}, "This prompt by step, right rollouts"), ...bars);
  }

  /* How steps of reasoning are shown, where the group has any: coloured by what, and beside their scores or as one text. */
  function stepControls(known, view, go) {
    const by = Page.choice(
      Array.from(known.keys(), (name) => [name, name]),
      (name) => go({ colour: name }),
    );
    by.value = view.colour;
    const how = Page.choice(
      [
        ["", "beside their scores"],
        ["whole", "as one text"],
      ],
      (value) => go({ steps: value }),
    );
    how.value = view.isWhole ? "whole" : "";
    const ramp = [number(view.scale.low), el("span", { class: "ramp" }), number(view.scale.high)];
    const legend = el("span", { class: "scale" }, ...ramp);
    return el(
      "p",
      { class: "settings" },
      Page.labelled("Steps of reasoning", how),
      Page.labelled("coloured by", by),
      legend,
    );
  }

  function viewOf(group, known, pattern, state) {
    const colour = known.has(state.colour) ? state.colour : known.keys().next().value;
    const value = known.get(colour);
    const steps = group.rows.flatMap((row) => row.steps_of_reasoning ?? []);
    const scale = scaleOf(steps.map(value).filter((each) => (each ?? null) !== null));
    return { pattern, colour, scale: { ...scale, value }, isWhole: state.steps === "whole" };
  }

  /* Return the element of a group. shown: indices of its rows that pass the filters; others: the groups of the same
     prompt, in the order of their steps. */
  function group(group, { shown, others, place }) {
    const state = place.state();
    const searched = Page.searched(state.q);
    const [ofPrompt, ofTexts] = state.in === "prompts" ? [searched, null] : [null, searched];
    const known = scales(group);
    const view = known.size ? viewOf(group, known, ofTexts, state) : { pattern: ofTexts };
    const toRow = (index) => place.link({ at: group.step, uid: group.uid, row: index });
    const toGroup = (other) => {
      const step = state.step ? other.step : null;
      return place.link({ at: other.step, uid: other.uid, row: null, step });
    };
    const hidden = group.rows.length - shown.length;
    const all = el("a", { href: place.link({ show: null, q: null }) }, "show all");
    return el(
      "div",
      { class: "group" },
      el("h3", {}, `Step ${group.step}`, el("span", { class: "values" }, short(group.task), " · ", short(group.uid))),
      el("p", { class: "muted" }, "Prompt"),
      Page.text(group.prompt, { pattern: ofPrompt }),
      Page.line("Reference answer", group.answer),
      overTime(others, group, toGroup),
      numbers(group, shown, toRow),
      hidden
        ? el("p", { class: "muted" }, `${hidden} of ${group.rows.length} rows do not pass the filters: `, all)
        : null,
      known.size ? stepControls(known, view, place.go) : null,
      cards(group, shown, view),
    );
  }

  Page.group = group;
})();
