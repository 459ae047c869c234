"use strict";
/* Is it healthy? The alarms, what left its healthy range, every warning, and the trends behind them. */
(() => {
  const { el, number } = Page;

  const PANELS = [
    { title: "entropy of a token, nats", curves: { entropy: "rollout/entropy" } },
    {
      title: "length of a response, tokens",
      curves: { mean: "rollout/response_length", longest: "rollout/response_length_max" },
    },
    {
      title: "share of the rollouts", least: 0.1,
      curves: { truncated: "rollout/truncated", repetitive: "rollout/repetitive" },
    },
    {
      title: "engine against policy, nats a token",
      curves: { difference: "vllm_logprob_difference", limit: "vllm_logprob_limit" },
    },
    { title: "engine against policy, KL", curves: { KL: "vllm_kl" } },
    { title: "gradient norm of the policy", curves: { norm: "actor_grad_norm" } },
    { title: "KL from the reference, nats a token", curves: { KL: "hybrid_batch/kl" } },
    {
      title: "clipped tokens, share", least: 0.01,
      curves: {
        all: "all_clip_fraction", rollouts: "clip_fraction",
        "teachers above": "off_policy_ratio_max_clip_fraction", "teachers below": "off_policy_ratio_min_clip_fraction",
      },
    },
    {
      title: "failed grades, share", least: 0.01,
      curves: { errors: "rollout/reward_error", timeouts: "rollout/reward_timeout" },
    },
    { title: "updates a step", curves: { made: "updates", skipped: "skipped_updates" } },
    {
      title: "parameters that are not finite",
      curves: { policy: "nonfinite_parameters", critic: "critic_nonfinite_parameters" },
    },
    { title: "loss of the policy", curves: { loss: "policy_loss" } },
    { title: "loss of the critic", curves: { loss: "critic_loss" } },
    { title: "gradient norm of the critic", curves: { norm: "critic_grad_norm" } },
    { title: "explained variance of the critic", least: 1, curves: { explained: "explained_variance" } },
    { title: "tokens a second", curves: { tokens: "tokens_per_second" } },
  ];

  const isOutside = (value, low, high) => (low !== null && value < low) || (high !== null && value > high);

  /* The metrics of a run that left their healthy range; those that are outside at the end come first. */
  function findings(run, metrics) {
    const hasTeachers = run.metrics.off_policy_token_share?.some(Boolean);
    const found = [];
    for (const [name, row] of Object.entries(metrics)) {
      if (!row.healthy || (row.group === "teachers and bonus" && !hasTeachers)) continue;
      const known = (run.metrics[name] ?? []).map((value, position) => ({ step: run.steps[position], value }))
        .filter(({ value }) => value !== null);
      const outside = known.filter(({ value }) => isOutside(value, ...row.healthy));
      if (outside.length) found.push({ name, row, known, outside, last: Page.last(known) });
    }
    const isNow = ({ outside, last }) => outside.includes(last);
    return found.sort((a, b) => isNow(b) - isNow(a) || b.outside.length - a.outside.length);
  }

  function findingItem({ name, row, known, outside, last }) {
    const worst = Page.last(outside), now = worst === last;
    const when = outside.length === 1 ? `at step ${worst.step}`
      : `on ${outside.length} of ${known.length} steps, ${now ? "still" : "last"} at step ${worst.step}`;
    const value = `${number(worst.value)}${row.unit ? ` (${row.unit})` : ""}`;
    const since = now ? "" : ` Now it is ${number(last.value)}.`;
    return el("li", {}, el("b", { class: now ? "bad" : "" }, name), Page.tip(name),
      ` left its healthy range (${row.healthy_text}) ${when}: ${value}.${since} ${row.advice}`);
  }

  /* An alarm: from which step to which one it was raised, and its sentence without the words that say so already. */
  function alarmItem({ name, metric, step, cleared, level, text }) {
    const when = cleared === null ? `since step ${step}` : `from step ${step} to step ${cleared}`;
    const sentence = text.replace(/^WARNING: step \d+: /, "");
    return el("li", {}, el("b", { class: cleared === null ? "bad" : "" }, name), Page.tip(metric),
      ` ${when}${level === "stop" ? " (stops the run)" : ""}: ${sentence}`);
  }

  /* The notes of a run that are no alarms: those are listed above them. */
  function otherNotes(run) {
    const alarms = new Set(run.alarms.map(({ text }) => text));
    return run.notes.filter(({ text }) => !alarms.has(text));
  }

  function verdict(run, report) {
    const found = findings(run, report.metrics);
    const notes = otherNotes(run).length;
    const alarms = [...run.alarms].sort((a, b) => (a.cleared !== null) - (b.cleared !== null) || a.step - b.step);
    const title = report.runs.length > 1 ? el("h3", {}, run.name) : null;
    if (!found.length && !notes && !alarms.length) {
      return el("div", {}, title, el("p", { class: "finding" },
        "Nothing conspicuous: no alarm, no warning, and every metric stayed in its healthy range."));
    }
    const count = (amount, one, many) => (amount ? `${amount} ${amount === 1 ? one : many}` : null);
    const said = [count(alarms.length, "alarm", "alarms"),
      count(found.length, "metric left its healthy range", "metrics left their healthy ranges"),
      count(notes, "warning or note", "warnings and notes")].filter(Boolean).join("; ");
    return el("div", {}, title, el("p", { class: "finding" }, `${said}.`),
      alarms.length ? [el("h4", {}, "Alarms"), el("ul", { class: "conspicuous alarms" }, alarms.map(alarmItem))] : null,
      alarms.length && found.length ? el("h4", {}, "Out of their healthy ranges") : null,
      found.length ? el("ul", { class: "conspicuous" }, found.map(findingItem)) : null,
      notes ? noteList(run) : null);
  }

  function noteList(run) {
    const rows = otherNotes(run).map((note) => [String(note.step), note.text]);
    const list = Page.fold(`Warnings and notes (${rows.length})`, Page.table(["step", "text"], rows));
    list.open = rows.length <= 12;
    return list;
  }

  function build(element, report) {
    element.append(
      ...report.runs.map((run) => verdict(run, report)),
      ...Page.panels(PANELS, report),
      el("p", { class: "muted" },
        "Dashed: the end of a healthy range. A short mark at the top of a chart: an alarm, a warning or a note of that step."));
  }

  Page.section({ id: "health", title: "Health", question: "Is it healthy?", build });
})();
