"use strict";
/* Every metric that the runs wrote, so that nothing is hidden. */
(() => {
  const { el } = Page;

  /* What a point is where a long run's steps are taken together. */
  function thinned(runs) {
    const most = Math.max(...runs.map((run) => run.steps_per_point));
    return most > 1 ? ` A point is the mean of up to ${most} steps.` : "";
  }

  function build(element, report) {
    const { runs, metrics } = report,
      several = runs.length > 1;
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].sort();
    const figures = names.map((name) => {
      const lines = runs
        .map((run, index) => ({
          label: several ? run.name : name,
          isRun: several,
          run,
          index,
          colour: several ? index : 0,
          steps: run.steps,
          values: run.metrics[name] ?? [],
        }))
        .filter(({ values }) => values.some((value) => value !== null));
      const { unit, meaning, healthy } = metrics[name] ?? {};
      const title = unit ? `${name}, ${unit}` : name;
      const values = new Set(lines.flatMap((line) => line.values.filter((value) => value !== null)));
      const figure =
        values.size > 1
          ? Page.chart({ title, metrics: [name], lines, free: true, healthy, hint: meaning })
          : el(
              "figure",
              { class: "chart" },
              el("figcaption", {}, el("span", { class: "title" }, title), Page.tip(name)),
              el("p", {}, values.size ? `${Page.number([...values][0])} on every step.` : "No value on any step."),
              el("p", { class: "muted hint" }, meaning ?? ""),
            );
      return { figure, words: `${name} ${unit ?? ""} ${meaning ?? ""}`.toLowerCase() };
    });
    const count = el("span", { class: "muted", role: "status" });
    const search = el("input", {
      type: "search",
      placeholder: "name or meaning",
      "aria-label": "Search the metrics",
      oninput: filter,
    });

    function filter() {
      const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let found = 0;
      for (const { figure, words } of figures) {
        figure.hidden = !wanted.every((word) => words.includes(word));
        found += !figure.hidden;
      }
      count.textContent = `${found} of ${figures.length} metrics`;
    }

    filter();
    Page.key("m", "search the metrics", () => {
      Page.goTo(element.id);
      search.focus();
    });
    element.append(
      el("p", {}, `Everything that was written at each step. These axes need not begin at 0.${thinned(runs)}`),
      el("p", { class: "search" }, search, " ", count),
      el(
        "div",
        { class: "grid" },
        figures.map(({ figure }) => figure),
      ),
    );
  }

  Page.section({ id: "metrics", title: "All metrics", question: "All metrics", build });
})();
