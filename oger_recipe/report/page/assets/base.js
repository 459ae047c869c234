"use strict";
/* What every part of the page uses. Data reach the document as text nodes alone. */
const Page = (() => {
  const sections = [];

  function el(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  async function load(id) {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (each) => each.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  async function start() {
    const report = await load("report");
    const main = document.getElementById("page");
    document.title = report.runs.map((run) => run.name).join(", ");
    for (const section of sections) {
      const element = el("section", { id: section.id }, el("h2", {}, section.title), el("p", {}, section.question));
      main.append(element);
      section.build(element, report);
    }
  }

  document.addEventListener("DOMContentLoaded", start);
  return { el, load, section: (section) => sections.push(section) };
})();
