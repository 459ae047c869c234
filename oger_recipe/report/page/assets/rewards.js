"use strict";
/* What do teachers, the bonus, judges and process rewards do? A part that the run does not have is left out. */
(() => {
  const { el } = Page;

  const share = (run) =>
    (run.metrics["oger/off_on_ratio"] ?? []).map((ratio) => (ratio === null ? null : ratio / (1 + ratio)));

  const TEACHERS = [
    {
      title: "rollouts that a teacher replaced",
      curves: { all: "oger/replaced", "right ones": "oger/replaced_correct", "wrong ones": "oger/replaced_wrong" },
    },
    { title: "teachers in what is trained, share", curves: { rows: share, tokens: "off_policy_token_share" } },
    {
      title: "advantage",
      curves: { teachers: "oger/teacher_advantage", "rollouts, absolute": "oger/rollout_advantage_abs" },
    },
    { title: "reward", curves: { teachers: "oger/teacher_reward", rollouts: "oger/on_reward" } },
    { title: "length, tokens", curves: { teachers: "oger/off_response_length", rollouts: "oger/on_response_length" } },
    {
      title: "probability of a token under the policy", least: 1,
      curves: { teachers: "off_policy_prob", rollouts: "on_policy_prob" },
    },
    { title: "teachers' share of a response", least: 1, curves: { share: "oger/prefix_ratio" } },
    { title: "prompts without a teacher", curves: { prompts: "oger/prompts_without_teacher" } },
  ];
  const BONUS = [
    {
      title: "bonus of a right rollout", deviation: "oger/bonus_of_correct_std",
      curves: { "mean ± sd": "oger/bonus_of_correct" },
    },
    {
      title: "spread of the bonus among a group's right rollouts, sd",
      curves: { sd: "oger/bonus_of_correct_std_in_group" },
    },
    {
      title: "weight of the bonus", least: 1,
      curves: { "of entropy": "oger/entropy_weight", "of the schedule": "oger/bonus_weight" },
    },
    {
      title: "divergence from the teachers", deviation: "oger/divergence_std",
      curves: { "mean ± sd": "oger/divergence" },
    },
  ];
  // What every source of reward writes beside its value; the rest are components of its own.
  const SHARED = [
    "failed", "length_correlation", "format_correlation", "rule_disagreement", "cached", "cut", "unparsed", "overflow",
    "seconds", "steps",
  ];

  const has = (runs, name) => runs.some((run) => run.metrics[name]?.some(Boolean));
  const unique = (values) => [...new Set(values)];

  /* What a source alone writes, as curves: reward/judge/brief is the curve `brief` of the source `judge`. */
  function componentsOf(runs, source) {
    const prefix = `reward/${source}/`;
    const names = unique(runs.flatMap((run) => Object.keys(run.metrics))).filter((name) => name.startsWith(prefix));
    return Object.fromEntries(names.map((name) => [name.slice(prefix.length), name])
      .filter(([label]) => !SHARED.includes(label)));
  }

  function sourcePanels(runs, source) {
    const of = (title, least, curves) => ({
      title: `${source}: ${title}`, source, least,
      curves: Object.fromEntries(Object.entries(curves).map(([label, name]) => [label, `reward/${source}/${name}`])),
    });
    return [
      { title: `${source}: value`, curves: { value: `reward/${source}` } },
      { title: `${source}: components`, source, plain: true, curves: componentsOf(runs, source) },
      of("steps of reasoning", 0, { steps: "steps" }),
      of("correlation within groups", 0, { "with length": "length_correlation", "with format": "format_correlation" }),
      of("pairs that it orders against the rule, share", 0.5, { share: "rule_disagreement" }),
      of("trouble, share of the rows", 0.01, {
        failed: "failed", cut: "cut", unreadable: "unparsed", "too long": "overflow",
      }),
      of("answers from the cache, share", 1, { cached: "cached" }),
      of("seconds a step", 0, { seconds: "seconds" }),
    ];
  }

  const TITLES = {
    similarity: "similarity to the nearest teacher", divergence: "divergence from the teachers", bonus: "bonus",
    advantage: "advantage", response_length: "length of a response, tokens",
  };

  function distributions(runs, names) {
    const several = runs.length > 1;
    const found = runs.flatMap((run, index) => run.distributions.filter(({ name }) => names.includes(name))
      .map((each) => Page.heat(each, {
        title: `${TITLES[each.name]}${several ? `: ${run.name}` : ""}`, colour: index, index,
        hint: `Of ${each.rows}. The stronger the colour, the more rows; line: median.`,
      })));
    return found.length ? [el("div", { class: "grid" }, found)] : [];
  }

  /* Mean scores by step of reasoning, with their deviation. */
  function stepsOfReasoning(runs) {
    const several = runs.length > 1;
    const sources = unique(runs.flatMap((run) => (run.steps_of_reasoning ?? []).map((each) => each.source)));
    const charts = sources.map((source) => {
      const lines = runs.flatMap((run, index) => {
        const rows = (run.steps_of_reasoning ?? []).filter((each) => each.source === source);
        return rows.length ? [{
          label: several ? run.name : "mean ± sd", isRun: several, colour: index, index,
          steps: rows.map((row) => row.position), values: rows.map((row) => row.mean),
          band: { low: rows.map((row) => row.mean - row.sd), high: rows.map((row) => row.mean + row.sd) },
        }] : [];
      });
      const axis = { label: "step of the answer" };
      return Page.chart({ title: `${source}: score by step of reasoning`, lines, axis });
    });
    return charts.length ? [el("div", { class: "grid" }, charts)] : [];
  }

  function part(title, text, children) {
    return children.length ? [el("h3", {}, title), text ? el("p", { class: "muted" }, text) : null, ...children] : [];
  }

  const OF_TEACHERS = "A teacher's trajectory takes the place of a rollout in its group and is trained off-policy.";
  const OF_BONUS = "A right rollout earns more the less it resembles the teachers' trajectories. Where the spread " +
    "within a group is 0, the bonus moves nothing.";

  function build(element, report) {
    const { runs } = report;
    const sources = unique(runs.flatMap((run) => run.sources));
    const panels = (wanted, names) => (names.some((name) => has(runs, name)) ? Page.panels(wanted, report) : []);
    const parts = [
      part("Teachers", OF_TEACHERS, panels(TEACHERS, ["oger/replaced", "oger/prefix_ratio"])),
      part("Bonus for exploration", OF_BONUS, panels(BONUS, ["oger/bonus"])),
      part("Distributions over the rows", "", distributions(runs, Object.keys(TITLES))),
      ...sources.map((source) => part(`Reward: ${source}`, "", Page.panels(sourcePanels(runs, source), report))),
      part("Steps of reasoning", "", stepsOfReasoning(runs)),
    ].flat().filter(Boolean);
    element.append(...(parts.length ? parts : [el("p", {}, "This run has neither teachers nor sources of reward.")]));
  }

  Page.section({
    id: "rewards", title: "Teachers and rewards", link: "What do teachers and rewards do?", build,
    question: "What do teachers, bonus, judges and process rewards do?",
  });
})();
