"use strict";
/* What every part of the page uses: elements, numbers, data blocks, colours, tips, shortcuts, and the frame around the
   sections. Data reach the document as text nodes and attributes' values alone, never as markup. */
const Page = (() => {
  const sections = [];
  const controls = [];
  const shortcuts = new Map();
  const themes = ["auto", "light", "dark"];
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4], [1, 5]];
  const COLOURS = 7;
  const BROWSERS = "Chrome or Edge 80, Firefox 113, Safari 16.4, or later";
  const themeChanged = signal(), runsChanged = signal();
  const shown = new Set();
  let report;

  function signal() {
    const watchers = [];
    return { watch: (callback) => watchers.push(callback), fire: () => watchers.forEach((callback) => callback()) };
  }

  /* Make an element. Attributes that are null or false are left out; onclick and the like take functions. */
  function el(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) {
        element.setAttribute(name, value === true ? "" : value);
      }
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return element;
  }

  /* Decode the data block `id`. */
  async function load(id) {
    if (typeof DecompressionStream === "undefined") {
      throw new Error(`this browser cannot unpack the page's data. Open it in ${BROWSERS}`);
    }
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (each) => each.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  /* Numbers as a reader wants them: 0.4414, 8,783, 3.3e-5; – for none. */
  function number(value, digits = 4) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e9)) return String(Number(value.toPrecision(digits - 1)).toExponential());
    const options = size >= 10 ** digits ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: digits };
    return value.toLocaleString("en-US", options);
  }

  /* Scores and shares have three decimals, so that they line up. */
  const score = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
  const signed = (value) => (value < 0 ? "" : "+") + score(value);
  const interval = (bounds) => (bounds ? `[${score(bounds[0])}, ${score(bounds[1])}]` : "");

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    const whole = Math.round(seconds);
    const days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24;
    const minutes = Math.floor(whole / 60) % 60;
    const two = (value) => String(value).padStart(2, "0");
    const clock = days || hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
    return days ? `${days} d ${clock}` : clock;
  }

  // Lists. What is null or undefined does not count.

  const last = (list) => list[list.length - 1];
  const sum = (values) => values.reduce((all, value) => all + (value ?? 0), 0);

  function mean(values) {
    const known = values.filter((value) => (value ?? null) !== null);
    return known.length ? sum(known) / known.length : null;
  }

  /* A table of texts and elements; numbers stand to the right. Without a head, rows are names and values. */
  function table(head, rows, attributes = {}) {
    const cell = (tag, content) => {
      const isNumber = head && typeof content === "string" && /^[-+–\d.,:[\] e%]+$/.test(content);
      return el(tag, { class: isNumber ? "number" : null, scope: tag === "th" ? "col" : null }, content);
    };
    const body = rows.map((row) => el("tr", {}, row.map((content) => cell("td", content))));
    const top = head ? el("thead", {}, el("tr", {}, head.map((content) => cell("th", content)))) : null;
    return el("div", { class: "scrolls" }, el("table", attributes, top, el("tbody", {}, body)));
  }

  function fold(summary, ...children) {
    return el("details", {}, el("summary", {}, summary), ...children);
  }

  /* A fold whose content is made when somebody opens it. */
  function foldOf(summary, make) {
    const details = fold(summary);
    details.addEventListener("toggle", () => details.append(make()), { once: true });
    return details;
  }

  /* Call back once, when the element comes near the part of the page that is in view. */
  function whenSeen(element, callback) {
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      callback();
    }, { rootMargin: "300px" });
    observer.observe(element);
    return observer;
  }

  let going;

  /* Scroll to the element with the id, if there is one. It stays in place while what stands above it is being built
     and changes its height, until the reader acts. */
  function goTo(id) {
    const element = document.getElementById(id);
    if (!element) return;
    going?.disconnect();
    going = new ResizeObserver(() => element.scrollIntoView());
    going.observe(document.querySelector("main"));
    element.scrollIntoView();
    const arrived = () => going.disconnect();
    for (const act of ["wheel", "pointerdown", "touchstart", "keydown"]) {
      addEventListener(act, arrived, { capture: true, once: true, passive: true });
    }
  }

  // Colours and dashes of runs.

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (index) => css(`--colour-${index % COLOURS}`);
  const dash = (index) => dashes[index % dashes.length];

  /* A short piece of a line as charts draw it. */
  function swatch(index) {
    const make = (tag, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      return element;
    };
    const drawing = make("svg", { width: 24, height: 8, class: "swatch", "aria-hidden": "true" });
    const style = `stroke: var(--colour-${index % COLOURS})`;
    drawing.append(make("line", { x1: 0, x2: 24, y1: 4, y2: 4, style, "stroke-dasharray": dash(index).join(" ") }));
    return drawing;
  }

  // Tips: what a metric is, from the table of metrics.

  let bubble;

  function metricLines(name) {
    const row = report.metrics[name];
    return [
      ["", row.meaning],
      ["Unit", row.unit],
      ["Of", row.rows],
      ["Healthy", row.healthy_text],
      ["Otherwise", row.advice],
    ].filter(([, text]) => text);
  }

  /* A button that says what the metrics are; null where the table of metrics lacks them. */
  function tip(...names) {
    const known = names.filter((name) => report.metrics[name]);
    if (!known.length) return null;
    const show = (event) => showBubble(event.currentTarget, known);
    return el("button", {
      type: "button", class: "tip", "aria-label": `What is ${known.join(", ")}?`,
      onmouseenter: show, onfocus: show, onclick: show, onmouseleave: hideBubble, onblur: hideBubble,
    }, "?");
  }

  function showBubble(anchor, names) {
    hideBubble();
    const about = names.map((name) => [
      el("p", {}, el("code", {}, name)),
      metricLines(name).map(([label, text]) => el("p", {}, label ? el("b", {}, `${label}: `) : null, text)),
    ]);
    bubble = el("div", { class: "bubble", role: "tooltip", id: "bubble" }, about);
    document.body.append(bubble);
    anchor.setAttribute("aria-describedby", "bubble");
    const at = anchor.getBoundingClientRect(), box = bubble.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - box.width - 8);
    const below = at.bottom + 6 + box.height < innerHeight;
    bubble.style.left = `${Math.max(left, 8)}px`;
    bubble.style.top = `${below ? at.bottom + 6 : Math.max(at.top - box.height - 6, 8)}px`;
  }

  function hideBubble() {
    bubble?.remove();
    bubble = undefined;
  }

  // Shortcuts.

  /* Let a key do something, and list it under "?". A key has one meaning on the whole page. */
  function key(name, text, action) {
    if (shortcuts.has(name)) throw new Error(`two parts of the page claim the key ${name}`);
    shortcuts.set(name, { text, action });
  }

  function onKey(event) {
    if (event.key === "Escape") hideBubble();
    const typing = event.target.closest?.("input, textarea, select") || document.querySelector("dialog[open]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const ofSection = sectionInView()?.keys?.find(([name]) => name === event.key);
    const action = shortcuts.get(event.key)?.action ?? ofSection?.[2];
    if (!action) return;
    event.preventDefault();
    action();
  }

  /* The section that covers the middle of the window: its keys count. */
  function sectionInView() {
    return sections.find(({ id }) => {
      const box = document.getElementById(id)?.getBoundingClientRect();
      return box && box.top <= innerHeight / 2 && box.bottom > innerHeight / 2;
    });
  }

  function showShortcuts() {
    const rows = [...shortcuts].map(([name, { text }]) => [el("kbd", {}, name), text]);
    for (const { title, keys = [] } of sections) {
      rows.push(...keys.map(([name, text]) => [el("kbd", {}, name), `in “${title}”: ${text}`]));
    }
    const close = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
    const dialog = el("dialog", { "aria-label": "Keyboard shortcuts", onclose: () => dialog.remove() },
      el("h2", {}, "Keyboard shortcuts"), table(["key", "what it does"], rows),
      el("p", { class: "muted" }, "Tab reaches every control; Escape closes this list."), close);
    document.body.append(dialog);
    dialog.showModal();
  }

  // Theme: auto follows the system.

  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  let theme = remembered("oger-theme", themes);

  /* Read a choice that an earlier visit stored; a browser may keep nothing for pages from disk. */
  function remembered(name, choices) {
    try {
      return choices.includes(localStorage.getItem(name)) ? localStorage.getItem(name) : choices[0];
    } catch {
      return choices[0];
    }
  }

  function remember(name, value) {
    try {
      localStorage.setItem(name, value);
    } catch { /* the choice lasts as long as the page */ }
  }

  function applyTheme() {
    const dark = theme === "dark" || (theme === "auto" && systemDark.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    themeChanged.fire();
  }

  function nextTheme() {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    remember("oger-theme", theme);
    applyTheme();
  }

  // Runs.

  function toggleRun(index) {
    if (shown.has(index) && shown.size > 1) shown.delete(index);
    else shown.add(index);
    runsChanged.fire();
  }

  /* The scores of the run's last evaluation, as [benchmark, name of the metric, value, interval]. */
  function lastScores(run) {
    return Object.entries(last(run.evaluations)?.benchmarks ?? {}).map(([benchmark, scores]) => {
      const metric = mainMetric(scores);
      return [benchmark, metric, scores[metric], scores[`${metric}_interval`]];
    });
  }

  const mainMetric = (scores) => Object.keys(scores).find((name) => /^avg_at_\d+$/.test(name));
  const metricName = (name) => name.replace("_at_", "@");

  function stateText(run) {
    const { state, why, step, planned_steps: planned, resume_from: from } = run.state;
    const steps = planned && step !== planned ? `step ${step} of ${planned}` : `${step} steps`;
    const ended = why ? `${state}: ${why}` : state;
    return [ended, steps, from ? `can resume from step ${from}` : null].filter(Boolean).join(" · ");
  }

  function alarmText(run) {
    const raised = [...new Set(run.alarms.filter(({ cleared }) => cleared === null).map(({ name }) => name))];
    if (!raised.length) return null;
    const count = `${raised.length} ${raised.length === 1 ? "alarm" : "alarms"}`;
    return el("b", { class: "bad", title: raised.join(", ") }, count);
  }

  function scoreText(run) {
    const scores = lastScores(run);
    if (!scores.length) return "not evaluated";
    const [benchmark, metric, value, bounds] = scores[0];
    const more = scores.length > 1 ? `, and ${scores.length - 1} more` : "";
    return `${benchmark} ${metricName(metric)} ${score(value)} ${interval(bounds)}${more}`;
  }

  // The frame.

  function chip(run, index) {
    const look = { class: "chip", title: run.folder };
    const text = [
      el("b", {}, run.name), alarmText(run), el("span", {}, stateText(run)), el("span", {}, scoreText(run)),
    ];
    if (report.runs.length === 1) return el("div", look, text);
    const button = el("button", { type: "button", ...look, onclick: () => toggleRun(index) }, swatch(index), text);
    const mark = () => button.setAttribute("aria-pressed", String(shown.has(index)));
    runsChanged.watch(mark);
    mark();
    return button;
  }

  function frame() {
    const button = el("button", { type: "button", onclick: nextTheme });
    const label = () => { button.textContent = `Theme: ${theme}`; };
    themeChanged.watch(label);
    label();
    const help = el("button", { type: "button", onclick: showShortcuts, "aria-label": "Keyboard shortcuts" }, "?");
    const links = sections.map(({ id, question, link }) =>
      el("a", { href: `#${id}`, onclick: () => goTo(id) }, link ?? question));
    const several = report.runs.length > 1;
    return el("header", {},
      el("div", { class: "bar" },
        el("div", { class: "runs", role: several ? "group" : null, "aria-label": several ? "Runs shown" : null },
          report.runs.map(chip)), el("div", { class: "controls" }, controls, button, help)),
      el("nav", { "aria-label": "Questions" }, links));
  }

  function build(section, element) {
    try {
      Promise.resolve(section.build(element, report)).catch((error) => fail(error, section.title));
    } catch (error) {
      fail(error, section.title);
    }
  }

  /* Show what broke; the rest of the page goes on. */
  function fail(error, part = "The page") {
    console.error(error);
    const text = `${part} failed: ${error?.message ?? error}. Everything it shows is also in the run's folder.`;
    document.getElementById("errors").append(el("p", { class: "alert", role: "alert" }, text));
  }

  async function start() {
    addEventListener("error", (event) => fail(event.error ?? event.message));
    addEventListener("unhandledrejection", (event) => fail(event.reason));
    applyTheme();
    try {
      report = await load("report");
    } catch (error) {
      fail(error);
      return;
    }
    // Sources name metrics as they like: "constructor" must find no method of all objects.
    const bare = (entries) => Object.assign(Object.create(null), entries);
    report.metrics = bare(report.metrics);
    report.runs.forEach((run, index) => {
      run.metrics = bare(run.metrics);
      shown.add(index);
    });
    document.title = report.runs.map((run) => run.name).join(", ");
    const main = el("main", {});
    document.body.prepend(el("a", { class: "skip", href: "#page" }, "To the content"), frame(), main);
    const header = document.querySelector("header"); // as high as there are runs
    const measure = () => document.documentElement.style.setProperty("--header", `${header.offsetHeight}px`);
    new ResizeObserver(measure).observe(header);
    main.id = "page";
    main.tabIndex = -1;
    const elements = sections.map(({ id, question }) =>
      el("section", { id, "aria-labelledby": `${id}-question` }, el("h2", { id: `${id}-question` }, question)));
    main.append(...elements);
    sections.forEach((section, position) => {
      build(section, elements[position]);
      key(String(position + 1), `go to “${section.question}”`, () => goTo(section.id));
    });
    const written = new Date(report.written * 1000).toLocaleString("en-GB");
    document.body.append(el("footer", { class: "muted" }, `Written ${written} by oger ${report.oger}.`));
    goTo(location.hash.slice(1).split("?")[0]);
    document.documentElement.dataset.ready = "";
  }

  key("?", "show this list", showShortcuts);
  key("t", "switch the theme: auto, light, dark", nextTheme);
  document.addEventListener("keydown", onKey);
  systemDark.addEventListener("change", applyTheme);
  document.addEventListener("DOMContentLoaded", start);
  return {
    el, table, fold, foldOf, tip, swatch, key, whenSeen, goTo, load, remember, remembered,
    last, sum, mean, number, score, signed, interval, duration, mainMetric, metricName, lastScores,
    css, colour, dash, isShown: (index) => shown.has(index),
    onTheme: themeChanged.watch, onRuns: runsChanged.watch,
    section: (section) => sections.push(section), control: (element) => controls.push(element),
  };
})();
