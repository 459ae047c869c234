"use strict";
/* Distributions over steps: a column for each step; the stronger a cell's colour, the more rows fell into it. */
(() => {
  const { el, sum } = Page;
  const HEIGHT = 190,
    LEFT = 46,
    BOTTOM = 34,
    TOP = 6,
    RIGHT = 8;

  /* The value below which a share of the rows lies, in the middle of its bin's part. */
  function quantile(counts, edges, share) {
    const total = sum(counts);
    let below = 0;
    for (let bin = 0; bin < counts.length; bin++) {
      if (counts[bin] && below + counts[bin] >= share * total) {
        return edges[bin] + (edges[bin + 1] - edges[bin]) * ((share * total - below) / counts[bin]);
      }
      below += counts[bin];
    }
    return null;
  }

  /* About five round numbers between two values. */
  function ticks(low, high) {
    const size = 10 ** Math.floor(Math.log10((high - low || 1) / 4));
    const step = size * [1, 2, 5, 10].find((times) => size * times >= (high - low) / 5);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (each, row) => (first + row) * step);
  }

  function quantiles({ counts, edges }) {
    return counts.map((column) => [0.1, 0.5, 0.9].map((share) => quantile(column, edges, share)));
  }

  function draw(canvas, found, colour, medians) {
    const { steps, edges, counts } = found;
    const width = canvas.clientWidth,
      ratio = devicePixelRatio;
    [canvas.width, canvas.height] = [width * ratio, HEIGHT * ratio];
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    const low = edges[0],
      high = Page.last(edges);
    const cell = (width - LEFT - RIGHT) / steps.length;
    const x = (row) => LEFT + row * cell;
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low || 1));
    ctx.fillStyle = Page.colour(colour);
    counts.forEach((column, row) => {
      const total = Math.max(1, sum(column));
      column.forEach((count, bin) => {
        if (!count) return;
        ctx.globalAlpha = Math.min(1, 0.12 + Math.sqrt(count / total));
        ctx.fillRect(
          x(row),
          y(edges[bin + 1]),
          Math.max(cell - (cell > 4 ? 1 : 0), 0.5),
          y(edges[bin]) - y(edges[bin + 1]),
        );
      });
    });
    ctx.globalAlpha = 1;
    ctx.strokeStyle = Page.css("--ink");
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    medians.forEach((median, row) => {
      if (median !== null) ctx.lineTo(x(row) + cell / 2, y(median));
    });
    ctx.stroke();
    ctx.font = "11px system-ui, sans-serif";
    ctx.fillStyle = Page.css("--muted");
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    for (const value of ticks(low, high)) ctx.fillText(Page.number(value, 3), LEFT - 6, y(value));
    ctx.textAlign = "center";
    const every = Math.ceil(steps.length / 6);
    steps.forEach((step, row) => {
      if (row % every === 0) ctx.fillText(String(step), x(row) + cell / 2, HEIGHT - BOTTOM + 12);
    });
    ctx.fillText("step", LEFT + (width - LEFT) / 2, HEIGHT - 7);
  }

  /* A distribution of the contract as a figure; `colour` and `index` are the run's. */
  Page.heat = (found, { title, hint, colour, index }) => {
    const cuts = quantiles(found),
      last = Page.last(cuts);
    const spoken =
      `${title}. Median at step ${found.steps[0]}: ${Page.number(cuts[0][1])}; at step ` +
      `${Page.last(found.steps)}: ${Page.number(last[1])}, with a tenth below ${Page.number(last[0])} ` +
      `and a tenth above ${Page.number(last[2])}`;
    const canvas = el("canvas", { class: "plot", role: "img", "aria-label": spoken, style: `height: ${HEIGHT}px` });
    const readout = el("span", { class: "at" });
    const say = (row) => {
      const rows = sum(found.counts[row]);
      readout.textContent = `step ${found.steps[row]}: median ${Page.number(cuts[row][1], 3)} of ${rows} rows`;
    };
    canvas.addEventListener("mousemove", (event) => {
      const row = Math.floor(((event.offsetX - LEFT) / (canvas.clientWidth - LEFT - RIGHT)) * found.steps.length);
      say(Math.min(Math.max(row, 0), found.steps.length - 1));
    });
    canvas.addEventListener("mouseleave", () => say(found.steps.length - 1));
    say(found.steps.length - 1);
    const details = Page.foldOf("figures", () => {
      const rows = found.steps.map((step, row) => [String(step), ...cuts[row].map((value) => Page.number(value))]);
      return Page.table(["step", "10 %", "median", "90 %"], rows);
    });
    const figure = el(
      "figure",
      { class: "chart" },
      el("figcaption", {}, el("span", { class: "title" }, title)),
      el("div", { class: "legend" }, readout),
      canvas,
      hint ? el("p", { class: "muted hint" }, hint) : null,
      details,
    );
    let observer;
    const reset = () => {
      figure.hidden = !Page.isShown(index);
      observer?.disconnect();
      observer = Page.whenSeen(canvas, () =>
        draw(canvas, found, colour, cuts.map((cut) => cut[1])));
    };
    Page.onRedraw(reset);
    reset();
    return figure;
  };
})();
