"use strict";
/* Panels: which metrics stand in one chart. One run has them over each other, several runs have a chart for each. */
(() => {
  const { el } = Page;

  const known = (values) => values.some((value) => value !== null);
  const isDrawn = (values) => values.some(Boolean);
  const valuesOf = (run, value) => (typeof value === "function" ? value(run) : run.metrics[value]) ?? [];

  function band(run, values, deviation) {
    const spread = run.metrics[deviation];
    if (!spread || !known(spread)) return undefined;
    const moved = (sign) => values.map((value, row) => (value === null ? null : value + sign * (spread[row] ?? 0)));
    return { low: moved(-1), high: moved(1) };
  }

  function line(run, index, several, colour, label, value, deviation) {
    const values = valuesOf(run, value);
    const look = several ? { label: run.name, colour: index, isRun: true } : { label, colour };
    return { ...look, run, index, steps: run.steps, values, band: deviation && band(run, values, deviation) };
  }

  /* The charts of a panel, and the names of those that are 0 throughout. Metrics that no run has are left out.

     panel: {title, curves: {label: metric, or function of a run}, deviation (a metric), least,
             source (of reward), plain (a curve's label is its title)} */
  function chartsOf(panel, { runs, metrics }) {
    const several = runs.length > 1;
    const zero = [], groups = [];
    for (const [label, value] of Object.entries(panel.curves)) {
      const lines = runs
        .map((run, index) => line(run, index, several, groups.length, label, value, panel.deviation))
        .filter(({ values }) => known(values));
      if (!lines.length) continue;
      if (!lines.some(({ values }) => isDrawn(values))) zero.push(label);
      else groups.push({ label, value, lines });
    }
    const ofOne = ({ label, value, lines }) => ({
      ...panel,
      lines,
      metrics: [value],
      healthy: metrics[value]?.healthy,
      title: panel.plain || Object.keys(panel.curves).length > 1 ? titleOf(panel, label, metrics[value]) : panel.title,
    });
    if (several || groups.length < 2) return { zero, specs: groups.map(ofOne) };
    const lines = groups.flatMap((group) => group.lines);
    return { zero, specs: [{ ...panel, lines, metrics: groups.map(({ value }) => value) }] };
  }

  /* The title of one curve of a panel: that of the table of metrics, which says more than the curve's label. */
  function titleOf({ title, source, plain }, label, row) {
    if (plain) return `${source}: ${label}`;
    if (!row) return `${title}: ${label}`;
    return `${source ? `${source}: ` : ""}${row.title}${row.unit && row.unit !== row.title ? `, ${row.unit}` : ""}`;
  }

  /* Name what is 0 throughout: the panel alone where that is all of it. */
  const nameZero = ({ title }, { zero, specs }) =>
    specs.length || zero.length > 1 ? `${title} (${zero.join(", ")})` : title;

  /* A grid of the charts `first` and of the panels that the runs have something for, and what is 0 throughout. */
  Page.panels = (panels, report, first = []) => {
    const made = panels.map((panel) => chartsOf(panel, report));
    const charts = [...first, ...made.flatMap((each) => each.specs)].map(Page.chart);
    const zero = made.flatMap((each, position) => (each.zero.length ? [nameZero(panels[position], each)] : []));
    return [
      ...(charts.length ? [el("div", { class: "grid" }, charts)] : []),
      ...(zero.length ? [el("p", { class: "muted" }, `0 throughout: ${zero.join("; ")}.`)] : []),
    ];
  };
})();
