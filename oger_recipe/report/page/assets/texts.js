"use strict";
/* Texts as a model wrote them. They reach the page as text nodes alone, each isolated from its surroundings; characters
   that hide or turn others round are shown as symbols; what is long is folded. */
(() => {
  const { el } = Page;
  const FOLD = 1500; // characters before a text folds
  const BEFORE_HIT = 300; // characters shown before the first hit of a search, where a fold would hide it
  const LINE = 200; // characters that stand in a line
  const BEFORE_EXCERPT = 15;
  const AROUND_EXCERPT = 160;
  // Controls but tab and line feed, soft hyphen, marks of direction, line separators, invisible operators. Joiners stay:
  // emoji and several scripts are written with them.
  const HIDDEN =
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/;
  const EVERY_HIDDEN = new RegExp(HIDDEN, "g");

  /* Return the pattern of a plain search, which ignores case; null for an empty one. */
  function searched(words) {
    return words ? new RegExp(words.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"), "gi") : null;
  }

  function symbol(character) {
    const code = character.codePointAt(0);
    const name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    const shown = code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : name;
    return el("span", { class: "hidden-character", title: name }, shown);
  }

  function visible(text) {
    if (!HIDDEN.test(text)) return [text];
    const nodes = [];
    let done = 0;
    for (const hit of text.matchAll(EVERY_HIDDEN)) {
      nodes.push(text.slice(done, hit.index), symbol(hit[0]));
      done = hit.index + 1;
    }
    return [...nodes, text.slice(done)];
  }

  /* Return text[from, to) as nodes, with the parts of the hits that lie in it marked. */
  function marked(text, from, to, hits) {
    const nodes = [];
    let done = from;
    for (const hit of hits) {
      const start = Math.max(hit.from, done);
      const end = Math.min(hit.to, to);
      if (start >= end) continue;
      nodes.push(...visible(text.slice(done, start)), el("mark", {}, ...visible(text.slice(start, end))));
      done = end;
    }
    return [...nodes, ...visible(text.slice(done, to))];
  }

  function hitsIn(text, pattern) {
    if (pattern === null) return [];
    return Array.from(text.matchAll(pattern), (hit) => ({ from: hit.index, to: hit.index + hit[0].length }));
  }

  /* Return text[from, to) as nodes, its spans ({from, to, attributes}, in order, apart) each in an element. */
  function pieces(text, from, to, hits, spans) {
    const nodes = [];
    let done = from;
    for (const span of spans) {
      const start = Math.max(span.from, done);
      const end = Math.min(span.to, to);
      if (start >= end) continue;
      nodes.push(...marked(text, done, start, hits), el("span", span.attributes, ...marked(text, start, end, hits)));
      done = end;
    }
    return [...nodes, ...marked(text, done, to, hits)];
  }

  /* Move a place off the middle of a surrogate pair. */
  function between(text, place) {
    const code = text.charCodeAt(place);
    return code >= 0xdc00 && code <= 0xdfff ? place + 1 : place;
  }

  const characters = (number) => Page.count(number, "character");

  /* Return an element with a text of a model, folded where it is long. pattern: of a search; spans: as of pieces. */
  function text(written, { pattern = null, spans = [], fold = FOLD } = {}) {
    const body = el("div", { class: "written", dir: "auto" });
    const element = el("div", { class: "text" }, body);
    const hits = hitsIn(written, pattern);
    const isLong = written.length > 1.2 * fold;
    const toggle = el("button", { type: "button", class: "fold", onclick: () => draw(!isFolded) });
    let isFolded = isLong;

    function draw(folded) {
      isFolded = folded;
      const first = hits.length && hits[0].to > fold ? hits[0].from - BEFORE_HIT : 0;
      const from = folded ? between(written, Math.max(0, first)) : 0;
      const to = folded ? between(written, Math.min(from + fold, written.length)) : written.length;
      const above = from > 0 ? [el("span", { class: "left-out" }, `… ${characters(from)} above`), "\n"] : [];
      const below =
        to < written.length ? [el("span", { class: "left-out" }, ` … ${characters(written.length - to)} more`)] : [];
      body.replaceChildren(...above, ...pieces(written, from, to, hits, spans), ...below);
      toggle.textContent = folded ? `Show all ${characters(written.length)}` : "Fold";
    }

    draw(isLong);
    if (isLong) element.append(toggle);
    if (written === "") body.append(el("span", { class: "left-out" }, "(empty)"));
    return element;
  }

  /* Return a line around the first hit of a search. */
  function excerpt(written, pattern) {
    const hit = hitsIn(written, pattern)[0]?.from ?? 0;
    const from = between(written, Math.max(0, hit - BEFORE_EXCERPT));
    return el("span", {}, from > 0 ? "…" : null, short(written.slice(from, from + AROUND_EXCERPT), pattern));
  }

  /* Return a short text of a model, in a line: a uid, a reason, a name. */
  function short(written, pattern = null) {
    const whole = typeof written === "string" ? written : JSON.stringify(written);
    return el("bdi", {}, ...marked(whole, 0, whole.length, hitsIn(whole, pattern)));
  }

  /* Return a text of a model with its label, in a line where it fits in one: an answer, an error. */
  function line(label, written) {
    if (written === null || written === undefined || written === "") return el("p", {}, `${label}: none`);
    if (typeof written !== "string" || written.length <= LINE)
      return el("p", {}, `${label}: `, el("code", {}, short(written)));
    return el("div", {}, `${label}:`, text(written, { fold: LINE }));
  }

  Object.assign(Page, { searched, text, short, line, excerpt });
})();
