// Curves: hover shows values, dragging zooms all charts to a stretch of steps, double click or 0 shows everything.

const charts = new Set();
const zoom = { from: null, to: null };

function setZoom(from, to) {
  zoom.from = from;
  zoom.to = to;
  for (const one of charts) one.redraw();
}

function pointAt(series, step) {
  let low = 0, high = series.x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (series.x[middle] < step) low = middle + 1; else high = middle;
  }
  if (low > 0 && step - series.x[low - 1] < series.x[low] - step) low--;
  return low;
}

function described(panel) {
  const parts = panel.series.filter((one) => one.y.length).map((one) => {
    const first = shownValue(one.y[0], panel.unit), last = shownValue(one.y[one.y.length - 1], panel.unit);
    return `${one.label}: from ${first} to ${last} in ${one.x.length} readings`;
  });
  return `${panel.title}. ${parts.join("; ")}`;
}

const shownValue = (value, unit) => (unit === "%" ? percent(value) : number(value));

function stepsOf(panels) {
  let low = Infinity, high = -Infinity;
  for (const one of panels.flatMap((panel) => panel.series)) {
    for (const steps of [one.x, one.bad].filter((each) => each.length)) {
      low = Math.min(low, steps[0]);
      high = Math.max(high, steps[steps.length - 1]);
    }
  }
  return high > low ? [low, high] : [low - 1, low + 1];
}

class Chart {
  constructor(panel) {
    Object.assign(this, { panel, width: 350, height: 190, left: 46, right: 14, top: 10, bottom: 24, drag: null });
    this.svg = draw("svg", {
      viewBox: `0 0 ${this.width} ${this.height}`, role: "img", tabindex: 0, class: "chart",
      "aria-label": described(panel),
    });
    this.tip = el("div", { class: "tip", hidden: true });
    const isMany = panel.series.length > 1;
    const legend = isMany && el("ul", { class: "keys" }, panel.series.map((one) => el("li", {},
      draw("svg", { viewBox: "0 0 22 8", class: "key", "aria-hidden": "true" },
        draw("line", { x1: 0, x2: 22, y1: 4, y2: 4, class: "line", "stroke-dasharray": one.dash, stroke: one.color })),
      one.label)));
    this.element = el("figure", { class: "panel" },
      el("figcaption", {}, el("b", {}, panel.title), panel.note && el("span", {}, panel.note)),
      el("div", { class: "canvas" }, this.svg, this.tip), legend);
    const events = { pointermove: "move", pointerdown: "press", pointerup: "lift", pointerleave: "leave",
      dblclick: "reset", keydown: "key" };
    for (const [name, method] of Object.entries(events)) this.svg.addEventListener(name, (event) => this[method](event));
    charts.add(this);
    this.redraw();
  }

  // One stretch of steps for all charts: what is above each other happened at the same time.
  range() {
    const [low, high] = Chart.steps || stepsOf([this.panel]);
    return [zoom.from ?? low, zoom.to ?? high];
  }

  heights(from, to) {
    let low = Infinity, high = -Infinity;
    for (const one of this.panel.series) {
      for (let i = 0; i < one.x.length; i++) {
        if (one.x[i] < from || one.x[i] > to) continue;
        low = Math.min(low, one.y[i]);
        high = Math.max(high, one.y[i]);
      }
    }
    if (low > high) return [0, 1];
    if (this.panel.unit === "%") low = Math.min(low, 0);
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [this.panel.unit === "%" && low === 0 ? 0 : low - room, high + room];
  }

  redraw() {
    const [from, to] = (this.across = this.range());
    const [low, high] = (this.upright = this.heights(from, to));
    const inside = this.width - this.left - this.right, tall = this.height - this.top - this.bottom;
    this.x = (step) => this.left + (step - from) / (to - from) * inside;
    this.y = (value) => this.top + (high - value) / (high - low) * tall;
    this.step = (x) => from + (x - this.left) / inside * (to - from);
    const clip = `c${(Chart.count = (Chart.count || 0) + 1)}`;
    this.svg.replaceChildren();
    fill(this.svg, {}, [
      draw("clipPath", { id: clip },
        draw("rect", { x: this.left - 4, y: 0, width: inside + 8, height: this.height - this.bottom + 4 })),
      ticks(low, high, 4).map((value, i, all) => draw("g", {},
        draw("line", { x1: this.left, x2: this.width - this.right, y1: this.y(value), y2: this.y(value), class: "grid" }),
        draw("text", { x: this.left - 6, y: this.y(value) + 3.5, class: "tick", "text-anchor": "end" },
          this.panel.unit === "%" ? `${tickText(value, all, 100)} %` : tickText(value, all)))),
      draw("text", { x: 0, y: this.height - 6, class: "tick" }, "step"),
      ticks(from, to, 4).filter(Number.isInteger).map((step) => draw("text", {
        x: this.x(step), y: this.height - 6, class: "tick", "text-anchor": "middle" }, step.toLocaleString("en"))),
      draw("g", { "clip-path": `url(#${clip})` }, this.panel.series.map((one) => this.curve(one))),
      (this.cursor = draw("line", { y1: this.top, y2: this.height - this.bottom, class: "cursor", visibility: "hidden" })),
      (this.dots = draw("g", {})),
      (this.band = draw("rect", { y: this.top, height: tall, class: "band", visibility: "hidden" }))]);
  }

  curve(one) {
    let path = "";
    for (let i = 0; i < one.x.length; i++) {
      path += `${i ? "L" : "M"}${this.x(one.x[i]).toFixed(1)} ${this.y(one.y[i]).toFixed(1)}`;
    }
    const marks = one.bad.map((step) => draw("path", { class: "bad",
      d: `M${this.x(step)} ${this.top + 8}l-5 -8h10z` }, draw("title", {}, `not a number at step ${step}`)));
    const single = one.x.length === 1
      && draw("circle", { cx: this.x(one.x[0]), cy: this.y(one.y[0]), r: 3, fill: one.color });
    return [path && draw("path", { d: path, class: "line", stroke: one.color, "stroke-dasharray": one.dash,
      "stroke-opacity": one.faint ? 0.75 : 1 }), single, marks];
  }

  place(event) {
    const box = this.svg.getBoundingClientRect();
    return (event.clientX - box.left) / box.width * this.width;
  }

  move(event) {
    const at = this.place(event);
    if (this.drag !== null) {
      const [a, b] = [Math.min(this.drag, at), Math.max(this.drag, at)];
      fill(this.band, { x: a, width: b - a, visibility: b - a > 4 ? "visible" : "hidden" }, []);
    }
    this.show(this.step(at));
  }

  show(step) {
    const [from, to] = this.across;
    this.at = Math.max(from, Math.min(to, step));
    for (const other of charts) other.follow(this.at, other === this);
  }

  follow(step, isOwn) {
    const near = this.panel.series.filter((one) => one.x.length).map((one) => ({ one, i: pointAt(one, step) }));
    if (!near.length) return;
    const x = this.x(near[0].one.x[near[0].i]);
    const isInside = x >= this.left - 1 && x <= this.width - this.right + 1;
    fill(this.cursor, { x1: x, x2: x, visibility: isInside ? "visible" : "hidden" }, []);
    this.dots.replaceChildren(...(isInside ? near.map(({ one, i }) => draw("circle", {
      cx: this.x(one.x[i]), cy: this.y(one.y[i]), r: 3.2, fill: one.color, class: "dot" })) : []));
    this.tip.hidden = !isOwn;
    if (!isOwn) return;
    const shown = near.length > 12 ? near.slice(0, 12) : near;
    this.tip.replaceChildren(el("b", {}, `step ${near[0].one.x[near[0].i].toLocaleString("en")}`),
      ...shown.map(({ one, i }) => {
        const swatch = el("i", {});
        swatch.style.background = one.color;
        return el("div", {}, swatch, `${one.label} `, el("b", {}, shownValue(one.y[i], this.panel.unit)));
      }), ...(near.length > shown.length ? [`and ${near.length - shown.length} more`] : []));
    const box = this.svg.getBoundingClientRect();
    const isRight = x > this.width / 2;
    this.tip.style.left = isRight ? "" : `${x / this.width * box.width + 12}px`;
    this.tip.style.right = isRight ? `${(1 - x / this.width) * box.width + 12}px` : "";
  }

  press(event) {
    if (event.pointerType === "touch") return;
    this.drag = this.place(event);
    this.svg.setPointerCapture(event.pointerId);
  }

  lift(event) {
    if (this.drag === null) return;
    const [a, b] = [this.drag, this.place(event)].sort((one, other) => one - other);
    this.drag = null;
    this.band.setAttribute("visibility", "hidden");
    const from = Math.round(this.step(Math.max(a, this.left))), to = Math.round(this.step(b));
    if (b - a > 8 && to > from) setZoom(from, to);
  }

  leave() {
    if (this.drag !== null) return;
    for (const other of charts) {
      other.tip.hidden = true;
      other.cursor.setAttribute("visibility", "hidden");
      other.dots.replaceChildren();
    }
  }

  reset() { setZoom(null, null); }

  key(event) {
    const [from, to] = this.across, middle = this.at ?? (from + to) / 2, wide = to - from;
    const steps = { ArrowLeft: -wide / 40, ArrowRight: wide / 40 };
    if (event.key in steps) this.show(middle + steps[event.key]);
    else if (event.key === "+" || event.key === "=") setZoom(Math.round(middle - wide / 4), Math.round(middle + wide / 4));
    else if (event.key === "-") setZoom(Math.round(middle - wide), Math.round(middle + wide));
    else if (event.key === "0" || event.key === "Escape") { this.leave(); setZoom(null, null); }
    else return;
    event.preventDefault();
  }
}

// Bars of shares beside each other, the first one in color.
function bars(rows, title) {
  const tall = 30, left = 118, wide = 380, most = Math.max(...rows.map((row) => row.value), 1e-9);
  return draw("svg", { viewBox: `0 0 ${wide} ${rows.length * tall}`, role: "img", class: "bars",
    "aria-label": `${title}: ${rows.map((row) => `${row.name} ${row.text}`).join(", ")}` },
  rows.map((row, i) => draw("g", {},
    draw("text", { x: left - 8, y: i * tall + 19, "text-anchor": "end", class: "tick big" },
      row.name.length > 15 ? `…${row.name.slice(-14)}` : row.name, draw("title", {}, row.name)),
    draw("rect", { x: left, y: i * tall + 5, height: tall - 10, rx: 3, class: i && !row.color ? "bar other" : "bar", fill: row.color,
      width: Math.max(2, row.value / most * (wide - left - 64)) }),
    draw("text", { x: left + row.value / most * (wide - left - 64) + 8, y: i * tall + 19, class: "tick big" }, row.text))));
}

// Lines over named stages.
function stageChart(names, lines, title, unit) {
  const [wide, tall, left, bottom, top] = [460, 230, 40, 44, 12];
  const values = lines.flatMap((line) => line.values).filter((value) => typeof value === "number");
  const high = Math.max(...values, 1e-9) * 1.06;
  const x = (i) => left + 24 + i * (wide - left - 48) / Math.max(1, names.length - 1);
  const y = (value) => top + (1 - value / high) * (tall - top - bottom);
  const shapes = [
    (a, b) => draw("circle", { cx: a, cy: b, r: 4 }),
    (a, b) => draw("rect", { x: a - 3.6, y: b - 3.6, width: 7.2, height: 7.2 }),
    (a, b) => draw("path", { d: `M${a} ${b - 5}l5 8.6h-10z` }),
  ];
  return el("figure", { class: "panel wide" }, el("figcaption", {}, el("b", {}, title), el("span", {}, unit)),
    draw("svg", { viewBox: `0 0 ${wide} ${tall}`, class: "chart", role: "img", "aria-label":
      `${title}. ${lines.map((line) => `${line.name}: ${line.values.map((v, i) => `${names[i]} ${number(v)}`).join(", ")}`).join("; ")}` },
    ticks(0, high, 4).map((value, i, all) => [
      draw("line", { x1: left, x2: wide - 8, y1: y(value), y2: y(value), class: "grid" }),
      draw("text", { x: left - 6, y: y(value) + 4, class: "tick", "text-anchor": "end" }, tickText(value, all))]),
    names.map((name, i) => draw("text", { x: x(i), y: tall - (i % 2 ? 8 : 24), class: "tick", "text-anchor": "middle" }, name)),
    lines.map((line, n) => draw("g", { fill: color(n), stroke: "none" },
      draw("path", { d: line.values.map((v, i) => `${i ? "L" : "M"}${x(i)} ${y(v)}`).join(""), class: "line",
        stroke: color(n), "stroke-dasharray": line.dash || "" }),
      line.values.map((v, i) => draw("g", {}, shapes[n % 3](x(i), y(v)), draw("title", {}, `${names[i]}: ${number(v)}`)))))),
    lines.length > 1 && el("ul", { class: "keys" }, lines.map((line, n) => el("li", {},
      draw("svg", { viewBox: "0 0 12 12", class: "key", fill: color(n), "aria-hidden": "true" }, shapes[n % 3](6, 6)), line.name))));
}
