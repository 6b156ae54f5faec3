// Puts the page together, and in the live view brings it up to date.

const root = document.getElementById("page");

function themeButton() {
  const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = el("button", { type: "button", class: "theme", "aria-label": "dark or light", onclick: () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    window.dispatchEvent(new Event("iecl-theme"));
  } }, "◐");
  return button;
}

function part(name, page, pictures) {
  let content;
  try {
    content = sections[name](page, pictures);
  } catch (problem) {
    content = el("p", { class: "problem" }, `This part cannot be shown: ${problem.message}`);
  }
  const found = [content].flat(3).filter((one) => one);
  if (!found.length) return null;
  const of = page.runs.length > 1 && OF_IMAGES.includes(name) ? el("small", {}, ` of ${page.runs[0].name}`) : null;
  return el("section", { id: name, "aria-labelledby": `head-${name}` }, el("h2", { id: `head-${name}` }, HEADS[name], of), found);
}

function header(page) {
  const about = page.runs.length > 1 ? `${page.runs.length} runs` : page.runs[0].path;
  return el("header", {}, el("div", {}, el("h1", {}, page.title), el("p", { class: "note" }, about)), themeButton(),
    el("p", { class: "lead" }, "iecl trains a network on images without labels, so that images that show the same kind of thing get similar "
      + "lists of numbers, called embeddings. This page tells how it went and what came out."));
}

function galleryOf(page) {
  try {
    return new Sheets(page.sights.gallery);
  } catch { // there is none, or it is damaged: words have to do
    return { tile: (number, alt) => el("span", { class: "tile", title: alt, role: "img", "aria-label": alt }) };
  }
}

const maps = {}; // the map is made once: an update of the curves leaves it as the reader has it

function render(page) {
  charts.clear();
  Chart.steps = page.panels.length ? stepsOf(page.panels) : null;
  const pictures = galleryOf(page);
  const built = Object.keys(sections).map((name) => {
    const key = OF_IMAGES.includes(name) && page.sights ? `${name} ${page.sights.key || ""}` : null;
    if (key && maps[name]?.key === key) return maps[name].element;
    const element = part(name, page, pictures);
    if (key) maps[name] = { key, element };
    return element;
  }).filter((one) => one);
  const notes = (page.sights?.notes || []).map((note) => el("p", { class: "problem" }, note));
  const nav = el("nav", { "aria-label": "sections" }, built.map((one) => el("a", { href: `#${one.id}` }, SHORT[one.id] || HEADS[one.id])));
  const reachable = () => [...root.querySelectorAll("a, button, select, summary, [tabindex]")];
  const focused = reachable().indexOf(document.activeElement);
  const open = new Set([...root.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
  const ofImages = built.findIndex((one) => OF_IMAGES.includes(one.id)), first = ofImages < 0 ? built.length : ofImages;
  root.replaceChildren(header(page), nav, ...built.slice(0, first), ...notes, ...built.slice(first),
    el("footer", { class: "note" }, "Written by iecl report. The file needs no network and asks for nothing."));
  root.querySelectorAll("details > summary").forEach((one) => { if (open.has(one.textContent)) one.parentElement.open = true; });
  if (focused >= 0) reachable()[focused]?.focus({ preventScroll: true }); // an update leaves the keyboard where it is
  document.title = page.title;
}

// Ask again, soon or late, as the server says; keep what is on the page while there is no answer.
async function follow(mark) {
  let wait = 3000, next = mark;
  try {
    const answer = await fetch(`data.json?have=${encodeURIComponent(mark)}`, { cache: "no-store" });
    if (answer.status === 200) {
      const page = await answer.json();
      next = page.mark;
      wait = page.wait;
      if (!root.matches(":active")) render(page); else next = mark;
    }
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
  }
  setTimeout(() => follow(next), wait);
}

const page = JSON.parse(document.getElementById("data").textContent);
render(page);
if (page.is_live) follow(page.mark || "");
