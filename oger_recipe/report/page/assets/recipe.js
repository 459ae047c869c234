"use strict";
/* What was it? The recipe and what differs from the defaults, command, machine, versions, time, attempts. */
(() => {
  const { el, duration, sum } = Page;

  const text = (value) =>
    value === null || value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
  const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString("en-GB") : "–");

  function changed(run) {
    if (!run.recipe.changed.length) return el("p", {}, "Every setting has its default.");
    const rows = run.recipe.changed.map(({ key, value, default: usual }) => [
      el("code", {}, key),
      el("code", {}, text(value)),
      el("code", { class: "muted" }, text(usual)),
    ]);
    return Page.table(["setting", "value", "default"], rows);
  }

  const PARTS = {
    until_ready: "start-up",
    evaluate_before: "evaluation before",
    training: "training",
    evaluate_after: "evaluation after",
  };
  const OF_TRAINING = {
    "timing/generation": "sampling",
    "timing/make_experience": "rewards and log-probabilities",
    "timing/ppo_train": "updates",
    "timing/broadcast": "weights to the engine",
  };

  /* A bar of the seconds by part, with the same as a table: colours alone say nothing. */
  function timeBar(title, parts, total) {
    const known = parts.filter(([, seconds]) => seconds > 0);
    const named = sum(known.map(([, seconds]) => seconds));
    const rest = total - named;
    const whole = rest > 0.01 * total ? [...known, ["other", rest]] : known;
    const all = Math.max(total, named);
    const bar = el(
      "div",
      { class: "timebar", "aria-hidden": "true" },
      whole.map(([label, seconds], index) =>
        el("div", {
          style: `flex-grow: ${seconds}; background: var(--colour-${index})`,
          title: `${label}: ${duration(seconds)}`,
        }),
      ),
    );
    const rows = whole.map(([label, seconds], index) => [
      el("span", {}, el("i", { class: "dot", style: `background: var(--colour-${index})` }), label),
      duration(seconds),
      `${Math.round((100 * seconds) / all)} %`,
    ]);
    return el("div", {}, el("h4", {}, title), bar, Page.table(["part", "time", "share"], rows));
  }

  function time(run) {
    const parts = Object.entries(PARTS).map(([name, label]) => [label, run.seconds[name] ?? 0]);
    const training = Object.entries(OF_TRAINING).map(([name, label]) => [label, sum(run.metrics[name] ?? [])]);
    return el(
      "div",
      { class: "times" },
      timeBar("The last attempt", parts, run.seconds.total ?? sum(parts.map(([, seconds]) => seconds))),
      timeBar("All steps of training", training, sum(run.metrics["timing/step_total"] ?? [])),
    );
  }

  function attempts(run) {
    const rows = run.attempts.map((each, number) => [
      String(number + 1),
      when(each.began),
      when(each.ended),
      each.resumed_at ? `step ${each.resumed_at}` : "the beginning",
      String(each.last_step),
    ]);
    return Page.table(["attempt", "began", "ended", "started from", "last step"], rows);
  }

  function machine(run) {
    const { packages, ...rest } = run.environment;
    const rows = Object.entries(rest).map(([name, value]) => [name.replace(/_/g, " "), text(value)]);
    const counts = Object.entries(run.data).map(([name, value]) => [
      `data: ${name.replace(/_/g, " ")}`,
      text(value),
    ]);
    return [
      Page.table(null, [["folder", run.folder], ...rows, ...counts]),
      packages?.length
        ? Page.fold(`Versions of ${packages.length} packages`, el("pre", {}, packages.join("\n")))
        : null,
    ];
  }

  function ofRun(run, several) {
    const parts = [
      el("h3", {}, "Command"),
      el("pre", {}, run.command.trim()),
      el("h3", {}, "Settings that differ from the defaults"),
      changed(run),
      Page.fold("The whole recipe", el("pre", {}, run.recipe.text)),
      el("h3", {}, "Time"),
      time(run),
      el("h3", {}, "Attempts"),
      attempts(run),
      el("h3", {}, "Machine and data"),
      ...machine(run),
    ];
    if (!several) return parts;
    return [Page.fold(run.name, ...parts)];
  }

  function differences(report) {
    if (report.runs.length < 2) return [];
    if (!report.recipe_differences.length) return [el("p", {}, "The runs have the same recipe.")];
    const rows = report.recipe_differences.map(({ key, values }) => [
      el("code", {}, key),
      ...values.map((value) => el("code", {}, text(value))),
    ]);
    const list = Page.fold(
      `How the recipes differ: ${rows.length} settings`,
      Page.table(["setting", ...report.runs.map((run) => run.name)], rows),
    );
    list.open = true;
    return [list];
  }

  function build(element, report) {
    const several = report.runs.length > 1;
    element.append(...differences(report), ...report.runs.flatMap((run) => ofRun(run, several)).filter(Boolean));
  }

  Page.section({ id: "recipe", title: "The run", question: "What was it?", build });
})();
