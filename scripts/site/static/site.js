// A box above the tables of a page that has many rows: it shows the rows that have all words that are typed.
document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector("article");
  const rows = article ? [...article.querySelectorAll("tbody tr")] : [];
  if (rows.length < 60) return;
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const sections = [...article.querySelectorAll("section")].filter((section) => section.querySelector("tbody"));

  const box = document.createElement("div");
  box.className = "filter";
  box.innerHTML = '<input type="search" aria-label="Filter the tables"><output></output>';
  const [input, count] = box.children;
  input.placeholder = `Filter ${rows.length} rows`;
  article.querySelector("h1").after(box);

  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, at) => { row.hidden = !words.every((word) => texts[at].includes(word)); });
    for (const section of sections) {
      section.hidden = section !== sections[0] && ![...section.querySelectorAll("tbody tr")].some((row) => !row.hidden);
    }
    count.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows` : "";
  };
  input.addEventListener("input", show);
  input.value = new URLSearchParams(location.search).get("filter") ?? ""; // settings.html?filter=entropy
  if (input.value) show();
});
