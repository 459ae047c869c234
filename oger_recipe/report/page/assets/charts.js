"use strict";
/* Charts of lines over steps: drawn by uPlot when they come into view, with one cursor, one zoom and one smoothing. */
(() => {
  const { el } = Page;
  const HEIGHT = 190;
  const SMOOTHED_FROM = 30; // values of a line
  const charts = [];
  const view = { smooth: true, byTime: false, zoom: null };

  /* The minutes of training that a run had behind it after each step. */
  const clocks = new Map();
  function minutes(run) {
    if (!clocks.has(run)) {
      let seconds = 0;
      const taken = run.metrics["timing/step_total"] ?? [];
      clocks.set(run, new Map(run.steps.map((step, row) => [step, (seconds += taken[row] ?? 0) / 60])));
    }
    return clocks.get(run);
  }

  const place = (line, step) => (view.byTime && line.run ? (minutes(line.run).get(step) ?? 0) : step);

  /* Average over `width` (odd) neighbours, at the ends over fewer; null does not count and stays. */
  function movingMean(values, width) {
    const half = (width - 1) / 2;
    const around = (row) => values.slice(Math.max(row - half, 0), row + half + 1);
    return values.map((value, row) => (value === null ? null : Page.mean(around(row))));
  }

  const windowOf = (line) => Math.floor(line.values.length / 24) * 2 + 3;
  const isSmoothed = (line) => view.smooth && !line.band && line.values.length >= SMOOTHED_FROM;
  const shownLines = (spec) => spec.lines.filter((line) => line.index === undefined || Page.isShown(line.index));

  /* What uPlot draws of the lines: columns of data, their series, and the bands between them. */
  function columns(lines) {
    const tables = [],
      series = [{}],
      bands = [];
    for (const line of lines) {
      const stroke = Page.colour(line.colour),
        dash = Page.dash(line.colour);
      const known = line.values.filter((value) => value !== null).length;
      const style = { spanGaps: known < line.values.length / 2, points: { show: known <= 20, size: 5, fill: stroke } };
      const table = [line.steps.map((step) => place(line, step))];
      const add = (values, options) => {
        table.push(values);
        series.push({ stroke, width: 2, dash, ...style, ...options });
      };
      if (line.band) {
        const none = { width: 0, points: { show: false }, stroke: "transparent" };
        add(line.band.high, none);
        add(line.band.low, none);
        bands.push({ series: [series.length - 2, series.length - 1], fill: `${stroke}2e` });
      }
      if (isSmoothed(line)) {
        add(line.values, { stroke: `${stroke}66`, width: 1, dash: [], points: { show: false } });
        add(movingMean(line.values, windowOf(line)), { points: { show: false } });
      } else {
        add(line.values, {});
      }
      tables.push(table);
    }
    return { data: uPlot.join(tables), series, bands };
  }

  /* The range of the vertical axis: noise must not look like news. */
  function heights(spec, low, high) {
    if (low === null) return [0, 1];
    if (!spec.free) [low, high] = [Math.min(low, 0), Math.max(high, spec.least ?? 0, 0)];
    const least = Math.max(Math.abs(low), Math.abs(high)) * 1e-3 || 1;
    const missing = Math.max(least - (high - low), 0) / 2;
    const room = (high - low + 2 * missing) * 0.04;
    return [low - missing - (low === 0 ? 0 : room), high + missing + room];
  }

  /* Lines behind the curves: a step that had a warning, the ends of a healthy range. */
  function drawMarks(plot, spec, lines) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = Page.css("--warn-line");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    const stroke = (x0, y0, x1, y1) => {
      ctx.beginPath();
      ctx.moveTo(x0, y0);
      ctx.lineTo(x1, y1);
      ctx.stroke();
    };
    for (const limit of (spec.healthy ?? []).filter(Boolean)) {
      const y = plot.valToPos(limit, "y", true);
      stroke(bbox.left, y, bbox.left + bbox.width, y);
    }
    for (const line of spec.axis ? [] : uniqueRuns(lines)) {
      for (const note of line.run.notes) {
        const x = plot.valToPos(place(line, note.step), "x", true);
        stroke(x, bbox.top, x, bbox.top + 8 * devicePixelRatio);
      }
    }
    ctx.restore();
  }

  const uniqueRuns = (lines) => [
    ...new Map(lines.filter((line) => line.run).map((line) => [line.run, line])).values(),
  ];

  function axisOf(spec) {
    if (spec.axis) return spec.axis;
    return { label: view.byTime ? "minutes of training" : "step" };
  }

  function options(spec, lines, parts, width, readout) {
    const stroke = Page.css("--muted"),
      grid = { stroke: Page.css("--grid"), width: 1 };
    const { label, log } = axisOf(spec);
    const ticks = { stroke: Page.css("--line"), size: 4 };
    const numbers = (plot, values) => values.map((value) => (value === null ? null : Page.number(value, 3)));
    const isWhole = (value) => view.byTime || Number.isInteger(value);
    const font = "11px system-ui, sans-serif";
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      series: parts.series,
      bands: parts.bands,
      padding: [8, 10, 0, 0],
      scales: {
        x: { time: false, distr: log ? 3 : 1, log: log ?? 10, range: (plot, low, high) => span(spec, low, high) },
        y: { range: (plot, low, high) => heights(spec, low, high) },
      },
      axes: [
        {
          stroke,
          grid,
          ticks,
          font,
          label,
          labelFont: font,
          labelSize: 16,
          labelGap: 0,
          size: 26,
          gap: 2,
          splits: spec.axis ? () => spec.lines[0].steps : null,
          values: (plot, values) =>
            numbers(
              plot,
              values.map((value) => (isWhole(value) ? value : null)),
            ),
        },
        { stroke, grid, ticks, font, values: numbers, size: 50, gap: 3, space: 32 },
      ],
      cursor: {
        y: false,
        drag: { x: !spec.axis, y: false, setScale: false },
        bind: { dblclick: () => () => zoomTo(null) },
        sync: spec.axis
          ? undefined
          : {
              key: "steps",
              setSeries: false,
              scales: ["x", null],
              filters: { pub: (type) => type === "mousemove" || type === "mouseleave" },
            },
      },
      hooks: {
        drawClear: [(plot) => drawMarks(plot, spec, lines)],
        setCursor: [
          (plot) =>
            readout(plot.cursor.idx === null || plot.cursor.idx === undefined ? null : plot.data[0][plot.cursor.idx]),
        ],
        setSelect: [
          (plot) => {
            const { left, width: chosen } = plot.select;
            if (chosen > 4) zoomTo([plot.posToVal(left, "x"), plot.posToVal(left + chosen, "x")]);
          },
        ],
      },
    };
  }

  /* The range of the horizontal axis: the zoom, or everything with a little room. */
  function span(spec, low, high) {
    if (spec.axis?.log) return [low / 1.1, high * 1.1];
    if (view.zoom && !spec.axis) return view.zoom;
    const room = Math.max((high - low) * 0.02, low === high ? 1 : 0);
    return [low - room, high + room];
  }

  /* The last value of a line at or before x; of all where x is null. */
  function valueAt(line, x) {
    for (let row = line.steps.length - 1; row >= 0; row--) {
      if (line.values[row] !== null && (x === null || place(line, line.steps[row]) <= x)) return line.values[row];
    }
    return null;
  }

  function spoken(line) {
    const known = line.values.map((value, row) => [value, line.steps[row]]).filter(([value]) => value !== null);
    if (!known.length) return `${line.label}: no values`;
    const values = known.map(([value]) => value),
      [first, last] = [known[0], Page.last(known)];
    const [low, high] = values.reduce(([a, b], each) => [Math.min(a, each), Math.max(b, each)], [Infinity, -Infinity]);
    return (
      `${line.label}: ${Page.number(first[0])} at ${first[1]}, ${Page.number(last[0])} at ${last[1]}, ` +
      `between ${Page.number(low)} and ${Page.number(high)}`
    );
  }

  /* The figures behind a chart, built when somebody asks for them. */
  function figures(spec) {
    return Page.foldOf("figures", () => {
      const steps = [...new Set(spec.lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
      const columnsOf = spec.lines.map((line) => new Map(line.steps.map((step, row) => [step, row])));
      const cell = (line, row) =>
        row === undefined
          ? ""
          : Page.number(line.values[row]) +
            (line.band ? ` [${Page.number(line.band.low[row])}, ${Page.number(line.band.high[row])}]` : "");
      const rows = steps.map((step) => [
        String(step),
        ...spec.lines.map((line, column) => cell(line, columnsOf[column].get(step))),
      ]);
      return Page.table([spec.axis?.label ?? "step", ...spec.lines.map((line) => line.label)], rows);
    });
  }

  /* Make a chart.

     spec: {title, metrics (for the tip), lines, least (the axis reaches from 0 to it at least), free (without 0),
            healthy: [low, high], axis: {label, log} where x is no step, hint}
     line: {label, colour, steps, values, band: {low, high}, run, index (of the run: its switch counts)} */
  Page.chart = (spec) => {
    const legend = el("div", { class: "legend" });
    const label = `${spec.title}. ${spec.lines.map(spoken).join("; ")}`;
    const area = el("div", { class: "plot", role: "img", "aria-label": label, style: `height: ${HEIGHT}px` });
    let plot, observer, readout;

    function writeLegend(lines) {
      const named = lines.length > 1 || spec.lines.length > 1 || lines.some((line) => line.isRun || line.band);
      const values = lines.map(() => el("b", {}));
      const at = el("span", { class: "at" });
      legend.replaceChildren(
        ...lines.map((line, row) =>
          el(
            "span",
            { class: "key", title: line.label },
            named ? Page.swatch(line.colour) : null,
            named && !line.isRun ? el("span", {}, line.label) : null,
            values[row],
          ),
        ),
        at,
      );
      readout = (x) => {
        lines.forEach((line, row) => {
          values[row].textContent = Page.number(valueAt(line, x));
        });
        at.textContent = x === null ? "" : `${axisOf(spec).label} ${Page.number(x, 4)}`;
      };
      readout(null);
    }

    function draw() {
      const lines = shownLines(spec).filter((line) => line.values.length);
      if (!lines.length) return;
      const parts = columns(lines);
      plot = new uPlot(
        options(spec, lines, parts, area.clientWidth, (x) => readout(x)),
        parts.data,
        area,
      );
    }

    function reset() {
      observer?.disconnect();
      plot?.destroy();
      plot = undefined;
      writeLegend(shownLines(spec));
      observer = Page.whenSeen(area, draw);
    }

    charts.push({ reset, drawn: () => plot ?? draw(), rescale: () => plot?.setData(plot.data, true) });
    reset();
    const caption = el(
      "figcaption",
      {},
      el("span", { class: "title" }, spec.title),
      Page.tip(...(spec.metrics ?? [])),
    );
    return el(
      "figure",
      { class: "chart" },
      caption,
      legend,
      area,
      spec.hint ? el("p", { class: "muted hint" }, spec.hint) : null,
      figures(spec),
    );
  };

  // One view for all charts.

  function zoomTo(range) {
    view.zoom = range;
    resetZoom.hidden = range === null;
    charts.forEach((chart) => chart.rescale());
  }

  function redraw() {
    charts.forEach((chart) => chart.reset());
  }

  /* Call back when figures are to be drawn anew: another theme, other runs, another width. */
  Page.onRedraw = (reset) => charts.push({ reset, rescale: () => {} });

  const smoothing = el("button", { type: "button", onclick: switchSmoothing });
  const xAxis = el("button", { type: "button", onclick: switchTime });
  const resetZoom = el("button", { type: "button", onclick: () => zoomTo(null), hidden: true }, "Reset zoom");

  function label() {
    smoothing.textContent = `Smoothing: ${view.smooth ? "on" : "off"}`;
    xAxis.textContent = `Over ${view.byTime ? "time" : "steps"}`;
  }

  function switchSmoothing() {
    view.smooth = !view.smooth;
    label();
    redraw();
  }

  function switchTime() {
    view.byTime = !view.byTime;
    zoomTo(null);
    label();
    redraw();
  }

  label();
  [resetZoom, smoothing, xAxis].forEach(Page.control);
  Page.key("s", "smooth the curves, or show every step alone", switchSmoothing);
  Page.key("x", "draw over steps, or over minutes of training", switchTime);
  Page.key("r", "reset the zoom (drag over a chart to zoom in)", () => zoomTo(null));
  Page.onTheme(redraw);
  Page.onRuns(redraw);
  addEventListener("beforeprint", () => charts.forEach((chart) => chart.drawn?.()));
  let resized;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(redraw, 150);
  });
})();
