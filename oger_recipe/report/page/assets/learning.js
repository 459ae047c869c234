"use strict";
/* Is it learning? Scores on held-out problems, pass@k, the share of right rollouts; several runs side by side. */
(() => {
  const { el, score, signed, interval, mean, metricName } = Page;

  const excludesZero = ([low, high]) => low > 0 || high < 0;

  /* What a difference says in words, and how good that is. */
  function verdict(difference, bounds) {
    if (!excludesZero(bounds)) return ["did not change beyond its interval", "muted"];
    return difference > 0 ? ["rose", "good"] : ["fell", "bad"];
  }

  /* The sentence on a benchmark's main metric, from the difference of the first and the last evaluation. */
  function gainSentence(run, { benchmark, metric, difference, interval: bounds, problems }) {
    const [first, last] = [run.evaluations[0], Page.last(run.evaluations)];
    const at = ({ step, benchmarks }) => `${score(benchmarks[benchmark][metric])} at step ${step}`;
    const [verb, mood] = verdict(difference, bounds);
    return el(
      "p",
      { class: "finding" },
      `On ${benchmark} (${problems} held-out problems), ${metricName(metric)} `,
      el("b", { class: mood }, verb),
      `, from ${at(first)} to ${at(last)}: `,
      el("b", {}, signed(difference)),
      ` ${interval(bounds)}.`,
    );
  }

  /* The other metrics of the benchmark in the same words: pass@n falls where a policy gets narrower. */
  function otherGains(run, { benchmark, metric: main }) {
    const shown = Object.keys(Page.last(run.evaluations).benchmarks[benchmark]);
    const said = run.gains
      .filter((gain) => gain.benchmark === benchmark && gain.metric !== main && shown.includes(gain.metric))
      .map(
        ({ metric, difference, interval: bounds }) =>
          `${metricName(metric)} ${verdict(difference, bounds)[0]} (${signed(difference)} ${interval(bounds)})`,
      );
    return said.length ? el("p", {}, `${said.join("; ")}.`) : null;
  }

  function onceSentence(run) {
    const last = Page.last(run.evaluations);
    if (!last) return el("p", { class: "finding" }, "This run was not evaluated on held-out problems.");
    const scores = Page.lastScores(run).map(
      ([benchmark, metric, value, bounds]) => `${benchmark} ${metricName(metric)} ${score(value)} ${interval(bounds)}`,
    );
    return el(
      "p",
      { class: "finding" },
      `Evaluated once, at step ${last.step}, so there is nothing to compare it with: ${scores.join("; ")}.`,
    );
  }

  function trainingSentence(run) {
    const rates = run.metrics["rollout/solve_rate"] ?? [];
    const width = Math.max(1, Math.min(10, Math.floor(rates.length / 4)));
    if (rates.length < 2 || mean(rates) === null) return null;
    const [first, last] = [mean(rates.slice(0, width)), mean(rates.slice(-width))];
    const steps = width === 1 ? "step" : `${width} steps`;
    return el(
      "p",
      {},
      `Of its own rollouts in training, a share of ${score(first)} was right in the first ${steps} and ` +
        `${score(last)} in the last ${steps}.`,
    );
  }

  function sentences(run, several) {
    const gains = run.gains.filter(({ metric }) => metric.startsWith("avg_at_"));
    const said = gains.length
      ? gains.map((gain) => [gainSentence(run, gain), otherGains(run, gain)]).flat()
      : [onceSentence(run)];
    return el("div", { class: "findings" }, several ? el("h3", {}, run.name) : null, said, trainingSentence(run));
  }

  /* The last scores of several runs, and how they differ. */
  function comparison(report) {
    const scores = report.runs.flatMap((run) =>
      Page.lastScores(run).map(([benchmark, metric, value, bounds]) => [
        run.name,
        benchmark,
        metricName(metric),
        score(value),
        interval(bounds),
      ]),
    );
    const isMain = ({ runs: [, second], benchmark, metric }) =>
      Page.last(report.runs[second].evaluations)?.benchmarks[benchmark]?.[metric] !== undefined;
    const differences = report.comparisons.filter(isMain).map((each) => {
      const [verb, mood] = excludesZero(each.interval)
        ? [each.difference > 0 ? "better" : "worse", each.difference > 0 ? "good" : "bad"]
        : ["no clear difference", "muted"];
      const [first, second] = each.runs.map((index) => report.runs[index].name);
      return [
        `${second} against ${first}`,
        each.benchmark,
        metricName(each.metric),
        signed(each.difference),
        interval(each.interval),
        el("span", { class: mood }, verb),
        String(each.problems),
        each.paired ? "paired" : "not paired",
      ];
    });
    return [
      el("h3", {}, "Last scores"),
      Page.table(["run", "benchmark", "metric", "score", "95 % interval"], scores),
      ...(differences.length
        ? [
            el("h3", {}, "Differences"),
            Page.table(
              ["runs", "benchmark", "metric", "difference", "95 % interval", "verdict", "problems", "comparison"],
              differences,
            ),
          ]
        : []),
      el(
        "p",
        { class: "muted" },
        "“paired”: both runs answered the same problems, so the interval is of the differences by problem.",
      ),
    ];
  }

  const benchmarksOf = (runs) => [
    ...new Set(runs.flatMap((run) => run.evaluations.flatMap((each) => Object.keys(each.benchmarks)))),
  ];

  const KINDS = [
    { prefix: "avg_at_", title: "avg@n", says: "the share of n answers that is right (band: 95 % interval)" },
    { prefix: "pass_at_", title: "pass@n", says: "at least one of n answers is right" },
    { prefix: "maj_at_", title: "maj@n", says: "the most frequent of n answers is right" },
  ];

  /* The scores of one kind over the run's evaluations; null where it has none. */
  function scoreLine(run, benchmark, prefix) {
    const points = run.evaluations.filter((each) => each.benchmarks[benchmark])
      .map(({ step, benchmarks }) => ({ step, scores: benchmarks[benchmark] }));
    const isOfKind = (name) => name.startsWith(prefix) && /\d$/.test(name);
    const metric = points.flatMap(({ scores }) => Object.keys(scores)).find(isOfKind);
    if (!metric) return null;
    const bounds = (position) => points.map(({ scores }) => scores[`${metric}_interval`]?.[position] ?? null);
    const band = prefix === "avg_at_" ? { low: bounds(0), high: bounds(1) } : undefined;
    const values = points.map(({ scores }) => scores[metric] ?? null);
    return { label: metricName(metric), run, steps: points.map(({ step }) => step), values, band };
  }

  /* One chart of a run's scores on a benchmark; of several runs, one for each kind of score. */
  function scoreCharts(benchmark, runs) {
    const several = runs.length > 1;
    const kinds = KINDS.map((kind, number) => ({
      ...kind,
      lines: runs.map((run, index) => ({ run, index, line: scoreLine(run, benchmark, kind.prefix) }))
        .filter(({ line }) => line)
        .map(({ run, index, line }) =>
          several ? { ...line, index, colour: index, label: run.name, isRun: true }
            : { ...line, index, colour: number }),
    })).filter(({ lines }) => lines.length);
    const says = ({ title, says: text }) => `${title}: ${text}.`;
    if (several) {
      return kinds.map((kind) => ({
        title: `${benchmark}: ${kind.title}, held out`, lines: kind.lines, hint: says(kind), least: 0.3,
      }));
    }
    const lines = kinds.flatMap((kind) => kind.lines);
    return [{ title: `${benchmark}: share right, held out`, lines, hint: kinds.map(says).join(" "), least: 0.3 }];
  }

  function passAtK(benchmark, runs) {
    const several = runs.length > 1;
    const lines = runs
      .flatMap((run, index) => {
        const found = (run.pass_at_k[benchmark] ?? []).slice(several ? -1 : 0);
        return found.map((each, number) => ({
          label: several ? run.name : `step ${each.step}`,
          isRun: several,
          colour: several ? index : number,
          index,
          steps: each.k,
          values: each.value,
          band: { low: each.low, high: each.high },
        }));
      })
      .filter((line) => line.steps.length > 1);
    const title = `${benchmark}: pass@k, ${several ? "last evaluation" : "first and last evaluation"}`;
    return lines.length ? [{ title, lines, least: 0.3, axis: { label: "k answers a problem", log: 2 } }] : [];
  }

  function evaluationTable(run, several) {
    const rows = run.evaluations.flatMap(({ step, benchmarks }) =>
      Object.entries(benchmarks).map(([name, scores]) => {
        const shares = Object.keys(scores)
          .filter((key) => /_at_\d+$/.test(key))
          .map((key) => `${metricName(key)} ${score(scores[key])} ${interval(scores[`${key}_interval`])}`);
        return [String(step), name, String(scores.problems), shares.join(", ")];
      }),
    );
    const title = several ? `${run.name}: every evaluation` : "Every evaluation";
    return rows.length ? Page.fold(title, Page.table(["step", "benchmark", "problems", "scores"], rows)) : null;
  }

  const TRAINING = {
    title: "rollouts in training, share", least: 0.5,
    curves: {
      right: "rollout/solve_rate",
      "groups: none right": "rollout/solve_none",
      "groups: all right": "rollout/solve_all",
    },
  };

  function build(element, report) {
    const { runs } = report,
      several = runs.length > 1;
    const charts = benchmarksOf(runs).flatMap((benchmark) => [
      ...scoreCharts(benchmark, runs),
      ...passAtK(benchmark, runs),
    ]);
    element.append(
      el(
        "div",
        { class: several ? "findings-of-runs" : "" },
        runs.map((run) => sentences(run, several)),
      ),
      ...(several ? comparison(report) : []),
      ...Page.panels([TRAINING], report, charts),
      el(
        "p",
        { class: "muted" },
        "A group whose answers are all right or all wrong teaches little: its rewards hardly differ.",
      ),
      ...runs.map((run) => evaluationTable(run, several)).filter(Boolean),
    );
  }

  Page.section({ id: "learning", title: "Learning", question: "Is it learning?", build });
})();
