// Small things that all parts use. Whatever comes from a run is put on the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

// Letters that turn the direction of what follows: shown as what they are, a name cannot pretend to be another.
const plain = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (one) => `\\u${one.charCodeAt(0).toString(16)}`);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(typeof child === "string" ? plain(child) : child);
  }
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function number(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return minus(value.toExponential(1).replace("e+", "e"));
  if (size >= 1000) return minus(Math.round(value).toLocaleString("en"));
  return minus(String(Number(value.toPrecision(3))));
}

const short = (text) => (text.length > 64 ? `${text.slice(0, 40)} … ${text.slice(-20)}` : text);
const minus = (text) => text.replace(/-/g, "−"); // as wide as a plus

const percent = (value) => (typeof value === "number" ? `${(100 * value).toFixed(1)}\u00a0%` : number(value));
const counted = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function bytes(text) {
  const raw = atob(text);
  const made = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
  return made;
}

// The names of files: each was written without what it shares with the one before.
function decodedNames(coded) {
  const names = new Array(coded.length);
  let before = "";
  for (let i = 0; i < coded.length; i++) {
    before = before.slice(0, coded[i].charCodeAt(0) - 48) + coded[i].slice(1);
    names[i] = before;
  }
  return names;
}

// How many letters all names begin with, up to the last slash: nobody needs to read them again and again.
function sharedFolder(names) {
  if (names.length < 2) return 0;
  const first = names[0], last = names[names.length - 1];
  let shared = 0;
  while (shared < first.length && first[shared] === last[shared]) shared++;
  return first.lastIndexOf("/", shared - 1) + 1;
}

async function copied(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

const styleOf = (name, at = document.documentElement) => getComputedStyle(at).getPropertyValue(name).trim();
const COLORS = 10;
const color = (number) => `var(--c${number % COLORS})`;
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];

function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step + 0); // never -0
  return found;
}

// As many digits as tell ticks apart.
function tickText(value, all, times = 1) {
  const shown = value * times + 0, step = all.length > 1 ? (all[1] - all[0]) * times : 0;
  if (!step) return number(shown);
  const power = Math.floor(Math.log10(step) + 1e-9), size = Math.abs(shown);
  if (size >= 1e6 || (size > 0 && step < 1e-4)) {
    return shown.toExponential(Math.max(0, Math.min(6, Math.floor(Math.log10(size)) - power))).replace("e+", "e").replace(/-/g, "−");
  }
  const digits = -power + (Math.abs(step / 10 ** power - 2.5) < 0.01 ? 1 : 0);
  return minus(shown.toLocaleString("en", { minimumFractionDigits: Math.max(0, digits), maximumFractionDigits: Math.max(0, digits) }));
}
