"use strict";
/* What the browsers of samples and of evaluations share: a place in the URL, and a list that builds what is visible. */
(() => {
  const { el } = Page;

  /* A section's state: texts by name, which stand behind its id and "?" in the URL's hash. So a place can be linked to,
     and Back returns to it. arrive(state) is called whenever the hash changes to a place of the section. */
  function place(section, arrive) {
    let state = read() ?? {};

    function read() {
      const hash = location.hash.slice(1);
      if (hash === "") return {};
      return hash.startsWith(`${section}?`)
        ? Object.fromEntries(new URLSearchParams(hash.slice(section.length + 1)))
        : null;
    }

    function link(changes) {
      const entries = Object.entries({ ...state, ...changes }).filter(([, value]) => value !== null && value !== "");
      return `#${section}?${new URLSearchParams(entries)}`;
    }

    function go(changes, { replace = false } = {}) {
      if (replace) location.replace(link(changes));
      else location.hash = link(changes);
    }

    window.addEventListener("hashchange", () => {
      const now = read();
      if (now === null) return; // another section's
      state = now;
      arrive(state);
    });
    return { link, go, state: () => state, isLinked: () => location.hash.startsWith(`#${section}?`) };
  }

  /* A list of entries of one height, in pixels; build(entry, index) makes one that is visible. */
  function windowed(height, build) {
    const inner = el("div", { class: "window-inner" });
    const element = el("div", { class: "window", role: "group", "aria-label": "Entries", tabindex: 0 }, inner);
    let entries = [];

    function draw() {
      const first = Math.max(0, Math.floor(element.scrollTop / height) - 5);
      const last = Math.ceil((element.scrollTop + element.clientHeight) / height) + 5;
      const focused = inner.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const items = entries.slice(first, last).map((entry, offset) => {
        const item = build(entry, first + offset);
        item.style.top = `${(first + offset) * height}px`;
        item.style.height = `${height}px`;
        return item;
      });
      inner.style.height = `${entries.length * height}px`;
      inner.replaceChildren(...items);
      if (focused !== null)
        items.find((item) => item.getAttribute("href") === focused)?.focus({ preventScroll: true });
    }

    function show(shown, selected) {
      entries = shown;
      inner.style.height = `${entries.length * height}px`;
      const top = selected * height;
      const isHidden = top < element.scrollTop || top + height > element.scrollTop + element.clientHeight;
      if (selected >= 0 && isHidden) element.scrollTop = top - element.clientHeight / 2 + height / 2;
      draw();
    }

    element.addEventListener("scroll", draw);
    new ResizeObserver(draw).observe(element);
    return { element, show };
  }

  /* A field with its label. */
  function labelled(label, field) {
    field.setAttribute("aria-label", label); // a label around a choice would be named by all its options
    return el("label", { class: "field" }, el("span", {}, label), field);
  }

  /* A choice among [value, label] pairs. */
  function choice(options, onchange) {
    const items = options.map(([value, label]) => el("option", { value }, label));
    return el("select", { onchange: (event) => onchange(event.target.value) }, ...items);
  }

  /* A field for a search, which calls back a moment after typing. */
  function searchField(onsearch) {
    let waiting;
    const field = el("input", {
      type: "search",
      placeholder: "press / to search",
      oninput: () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => onsearch(field.value), 150);
      },
    });
    return field;
  }

  /* Show a search in its field, unless it is being typed. */
  function setField(field, words) {
    if (document.activeElement !== field) field.value = words ?? "";
  }

  /* Return how many leading characters all prompts share: a template, which tells none of them from another. */
  function sharedStart(groups) {
    let shared = groups.length ? groups[0].prompt : "";
    for (const { prompt } of groups) {
      let length = 0;
      while (length < shared.length && shared[length] === prompt[length]) length++;
      shared = shared.slice(0, length);
    }
    return groups.some(({ prompt }) => prompt.length === shared.length) ? 0 : shared.search(/\S*$/);
  }

  const count = (number, what) => `${number.toLocaleString("en-US")} ${what}${number === 1 ? "" : "s"}`;

  Object.assign(Page, { place, windowed, labelled, choice, searchField, setField, sharedStart, count });
})();
