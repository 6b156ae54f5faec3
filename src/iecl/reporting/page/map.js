// The map of images: points in one pass over the pixels, so that 100,000 of them follow the pointer.

const GRID = 256; // cells on a side of the index that finds the point under the pointer
const FULL = 65535;
const PICTURE = 42; // pixels on a side

class PlaneMap {
  constructor(data) {
    this.names = decodedNames(data.names);
    this.count = this.names.length;
    this.folder = sharedFolder(this.names);
    this.layouts = data.layouts.map((one) => ({ ...one, xy: new Uint16Array(bytes(one.xy).buffer) }));
    this.columns = data.columns.map((one) => {
      const raw = bytes(one.values);
      return { ...one, values: one.bytes === 2 ? new Uint16Array(raw.buffer) : raw };
    });
    this.sheets = new Sheets(data.tiles);
    this.tileOf = new Int32Array(this.count).fill(-1);
    new Uint32Array(bytes(data.tiles.of).buffer).forEach((point, tile) => { this.tileOf[point] = tile; });
    this.chosen = new Set(); // classes in focus
    this.selected = null; // a mark for each point within the lasso
    this.isLasso = false;
    this.isShowingPictures = true;
    this.hovered = -1;
    this.build();
    this.layOut(0);
    this.colorBy(0);
    new ResizeObserver(() => this.resize()).observe(this.base);
    this.sheets.ready.then(() => this.later());
    const looks = [[window, "iecl-theme"], [matchMedia("(prefers-color-scheme: dark)"), "change"]];
    for (const [target, name] of looks) target.addEventListener(name, () => this.later());
  }

  // --- what is on the page

  build() {
    const help = "Drag to move, wheel or + and − to zoom, 0 to see all. Lasso, or Shift and drag, selects. "
      + "With the keyboard: arrows move, Enter shows the image in the middle.";
    this.base = el("canvas", { class: "base", tabindex: 0, role: "img",
      "aria-label": `Map of ${counted(this.count, "image")}: images that the network finds alike are near each other. ${help}` });
    this.top = el("canvas", { class: "top", "aria-hidden": "true" });
    this.paper = el("canvas", { class: "paper", "aria-hidden": "true" }); // for printers: light, and drawn before they ask
    this.tip = el("div", { class: "tip card", hidden: true });
    this.live = el("div", { class: "offscreen", "aria-live": "polite" });
    this.legend = el("div", { class: "legend" });
    this.note = el("p", { class: "note" });
    this.list = el("div", { class: "selection" });
    const button = (text, action, attributes) => el("button", { type: "button", onclick: action, ...attributes }, text);
    this.mover = button("Move", () => this.setLasso(false), { "aria-pressed": "true" });
    this.lassoer = button("Lasso", () => this.setLasso(true), { "aria-pressed": "false" });
    const pictures = el("input", { type: "checkbox", checked: true, onchange: (event) => {
      this.isShowingPictures = event.target.checked;
      this.later();
    } });
    const choice = (title, options, action) => el("label", {}, title,
      el("select", { onchange: (event) => action(Number(event.target.value)) },
        options.map((text, i) => el("option", { value: i }, text))));
    this.element = el("div", { class: "map" },
      el("div", { class: "tools" },
        choice("Color by ", this.columns.map((one) => one.name), (i) => this.colorBy(i)),
        this.layouts.length > 1 && choice("Layout ", this.layouts.map((one) => one.title), (i) => this.layOut(i)),
        el("span", { class: "group" }, this.mover, this.lassoer),
        el("span", { class: "group" }, button("+", () => this.zoom(1.5), { "aria-label": "zoom in" }),
          button("−", () => this.zoom(1 / 1.5), { "aria-label": "zoom out" }), button("Fit", () => this.fit())),
        el("label", {}, pictures, " Pictures")),
      el("div", { class: "stage" }, this.base, this.paper, this.top, this.tip), this.live, this.legend, this.note,
      el("p", { class: "note keyboard" }, help), this.list);
    const events = { pointermove: "move", pointerdown: "press", pointerup: "lift", pointercancel: "lift",
      pointerleave: "leave", wheel: "turn", keydown: "key", dblclick: "fit" };
    for (const [name, method] of Object.entries(events)) {
      this.base.addEventListener(name, (event) => this[method](event), { passive: false });
    }
  }

  layOut(number) {
    this.layout = this.layouts[number];
    this.note.textContent = this.layout.note;
    const xy = this.layout.xy;
    const cells = new Uint32Array(GRID * GRID + 1), cell = new Uint16Array(this.count);
    for (let i = 0; i < this.count; i++) {
      cell[i] = (xy[2 * i + 1] >> 8) * GRID + (xy[2 * i] >> 8);
      cells[cell[i] + 1]++;
    }
    for (let i = 0; i < GRID * GRID; i++) cells[i + 1] += cells[i];
    const next = cells.slice(), members = new Uint32Array(this.count);
    for (let i = 0; i < this.count; i++) members[next[cell[i]]++] = i;
    Object.assign(this, { cells, members });
    this.fit();
  }

  colorBy(number) {
    this.column = this.columns[number];
    this.chosen.clear();
    const column = this.column;
    if (column.classes) {
      column.sizes = new Uint32Array(column.classes.length + 1);
      for (const value of column.values) column.sizes[value]++;
      const order = column.classes.map((_, i) => i).sort((a, b) => column.sizes[b] - column.sizes[a] || a - b);
      column.order = column.classes.length > COLORS ? order : column.classes.map((_, i) => i);
    }
    this.drawLegend();
    this.later();
  }

  // The color of each value as red, green and blue; what is not in focus is gray.
  palette(canvas) {
    const parsed = (name) => parsedColor(name, canvas);
    const gray = parsed("--dim"), column = this.column;
    if (!column.classes) {
      const stops = ["--n0", "--n1", "--n2", "--n3"].map(parsed);
      return Array.from({ length: 256 }, (_, i) => {
        const place = i / 255 * (stops.length - 1), at = Math.min(Math.floor(place), stops.length - 2);
        return stops[at].map((part, k) => part + (stops[at + 1][k] - part) * (place - at));
      });
    }
    const found = Array.from({ length: column.classes.length + 1 }, () => gray);
    const shown = this.chosen.size ? [...this.chosen] : column.order.slice(0, COLORS);
    shown.forEach((value) => { found[value] = parsed(`--c${this.colorOf(value)}`); });
    return found;
  }

  colorOf(value) {
    const place = this.column.order.indexOf(value);
    return place < COLORS ? place : [...this.chosen].indexOf(value) % COLORS;
  }

  drawLegend() {
    const column = this.column;
    if (!column.classes) {
      this.legend.replaceChildren(el("span", {}, number(column.low)), el("span", { class: "ramp" }), el("span", {}, number(column.high)));
      return;
    }
    const shown = column.order.slice(0, 60);
    this.legend.replaceChildren(...shown.map((value) => {
      const swatch = el("i", {}), isColored = this.chosen.size ? this.chosen.has(value) : column.order.indexOf(value) < COLORS;
      swatch.style.background = isColored ? color(this.colorOf(value)) : "var(--dim)";
      return el("button", { type: "button", class: "entry", "aria-pressed": String(this.chosen.has(value)),
        title: "show this one alone, or with others", onclick: () => {
          if (!this.chosen.delete(value)) this.chosen.add(value);
          this.drawLegend();
          this.later();
        } }, swatch, short(column.classes[value]), el("small", {}, column.sizes[value].toLocaleString("en")));
    }));
    if (column.order.length > shown.length) this.legend.append(`and ${column.order.length - shown.length} more`);
    if (this.chosen.size) {
      this.legend.append(el("button", { type: "button", onclick: () => {
        const points = [];
        for (let i = 0; i < this.count; i++) if (this.chosen.has(column.values[i])) points.push(i);
        this.select(points);
      } }, "List their files"));
    }
  }

  // --- drawing

  resize() {
    const box = this.base.getBoundingClientRect(), ratio = Math.min(2, window.devicePixelRatio || 1);
    if (!box.width || !box.height) return;
    const before = this.wide && Math.min(box.width / this.wide, box.height / this.tall);
    Object.assign(this, { wide: box.width, tall: box.height, ratio });
    for (const canvas of [this.base, this.top, this.paper]) {
      canvas.width = Math.round(box.width * ratio);
      canvas.height = Math.round(box.height * ratio);
    }
    if (!before) {
      this.fit();
      return;
    }
    this.view.k *= before; // the same part of the map
    this.render(); // at once: the canvas is empty now
  }

  fit() {
    if (!this.wide) return;
    this.view = { x: FULL / 2, y: FULL / 2, k: 0.94 * Math.min(this.wide, this.tall) / FULL };
    const xy = this.layout.xy;
    let [left, right, low, high] = [FULL, 0, FULL, 0];
    for (let i = 0; i < xy.length; i += 2) {
      left = Math.min(left, xy[i]); right = Math.max(right, xy[i]);
      low = Math.min(low, xy[i + 1]); high = Math.max(high, xy[i + 1]);
    }
    this.view = { x: (left + right) / 2, y: (low + high) / 2,
      k: 0.92 * Math.min(this.wide / Math.max(1, right - left), this.tall / Math.max(1, high - low)) };
    this.later();
  }

  later() {
    if (this.isWaiting || !this.wide) return;
    this.isWaiting = true;
    requestAnimationFrame(() => { this.isWaiting = false; this.render(); });
  }

  render() {
    this.renderOn(this.base);
    this.drawTop();
    clearTimeout(this.printing);
    this.printing = setTimeout(() => this.renderOn(this.paper), 400);
  }

  renderOn(canvas) {
    const { view, ratio } = this, context = canvas.getContext("2d"), wide = canvas.width, tall = canvas.height;
    if (!this.pixels || this.pixels.width !== wide || this.pixels.height !== tall) {
      this.pixels = context.createImageData(wide, tall);
    }
    const out = this.pixels.data;
    new Uint32Array(out.buffer).fill(0);
    const stretch = view.k * FULL / Math.min(this.wide, this.tall);
    const radius = Math.max(1.1, Math.min(5, 130 / Math.sqrt(this.count)) * Math.min(2.2, Math.max(1, Math.sqrt(stretch)))) * ratio;
    const stamp = this.stamped(radius, wide), edge = Math.ceil(radius) + 1, xy = this.layout.xy, k = view.k * ratio;
    const values = this.column.values, colors = Float64Array.from([...this.palette(canvas), parsedColor("--dim", canvas)].flat());
    const last = colors.length - 3, isFocused = this.chosen.size || this.selected;
    const stride = coprime(this.count);
    for (let pass = isFocused ? 0 : 1; pass < 2; pass++) {
      for (let n = 0, i = 0; n < this.count; n++, i = (i + stride) % this.count) {
        const isOut = isFocused && ((this.selected && !this.selected[i]) || (this.chosen.size && !this.chosen.has(this.column.values[i])));
        if (isFocused && Number(!isOut) !== pass) continue;
        const x = Math.round((xy[2 * i] - view.x) * k + wide / 2), y = Math.round((view.y - xy[2 * i + 1]) * k + tall / 2);
        if (x < edge || y < edge || x >= wide - edge || y >= tall - edge) continue;
        const own = isOut ? last : 3 * values[i], r = colors[own], g = colors[own + 1], b = colors[own + 2];
        const start = 4 * (y * wide + x);
        for (let part = 0; part < stamp.size; part++) {
          const at = start + stamp.offsets[part], alpha = stamp.alphas[part], under = out[at + 3];
          if (under === 0) {
            out[at] = r; out[at + 1] = g; out[at + 2] = b; out[at + 3] = 255 * alpha;
          } else {
            out[at] += (r - out[at]) * alpha;
            out[at + 1] += (g - out[at + 1]) * alpha;
            out[at + 2] += (b - out[at + 2]) * alpha;
            if (255 * alpha > under) out[at + 3] = 255 * alpha;
          }
        }
      }
    }
    context.putImageData(this.pixels, 0, 0);
    if (this.isShowingPictures) this.drawPictures(canvas);
    Object.assign(canvas.dataset, view);
  }

  // A round dot: where its pixels lie from its middle, and how much of each it covers.
  stamped(radius, wide) {
    const offsets = [], alphas = [], reach = Math.ceil(radius), opacity = this.count > 20000 ? 0.75 : 0.9;
    for (let dy = -reach; dy <= reach; dy++) {
      for (let dx = -reach; dx <= reach; dx++) {
        const cover = Math.max(0, Math.min(1, radius + 0.5 - Math.hypot(dx, dy)));
        if (cover > 0) {
          offsets.push(4 * (dy * wide + dx));
          alphas.push(opacity * cover);
        }
      }
    }
    return { offsets: Int32Array.from(offsets), alphas: Float64Array.from(alphas), size: offsets.length };
  }

  // Thumbnails where there is room for them, framed in the colors of their points.
  drawPictures(canvas) {
    const side = PICTURE * this.ratio, taken = new Map(), stride = coprime(this.count), colors = this.palette(canvas);
    const context = canvas.getContext("2d");
    context.lineWidth = 2 * this.ratio;
    for (let n = 0, i = 0; n < this.count; n++, i = (i + stride) % this.count) {
      if (this.tileOf[i] < 0 || (this.selected && !this.selected[i])) continue;
      if (this.chosen.size && !this.chosen.has(this.column.values[i])) continue;
      const [x, y] = this.screen(i).map((one) => one * this.ratio);
      if (x < 0 || y < 0 || x > this.base.width || y > this.base.height) continue;
      const [a, b] = [Math.floor(x / side), Math.floor(y / side)];
      let isFree = true;
      for (let right = -1; right <= 1; right++) {
        for (let down = -1; down <= 1; down++) {
          const other = taken.get((a + right) * 4096 + b + down);
          if (other && Math.abs(other[0] - x) < 1.1 * side && Math.abs(other[1] - y) < 1.1 * side) isFree = false;
        }
      }
      if (!isFree) continue;
      taken.set(a * 4096 + b, [x, y, i]);
      this.sheets.paint(context, this.tileOf[i], x - side / 2, y - side / 2, side);
      context.strokeStyle = `rgb(${colors[this.column.values[i]].map(Math.round).join(" ")})`;
      context.strokeRect(x - side / 2, y - side / 2, side, side);
    }
    this.pictures = [...taken.values()].map(([x, y, i]) => [x / this.ratio, y / this.ratio, i]);
  }

  // The image that is seen at a place: a picture hides the points behind it.
  seen(x, y) {
    const found = this.isShowingPictures && this.pictures?.find(([px, py]) => Math.max(Math.abs(x - px), Math.abs(y - py)) <= PICTURE / 2);
    return found ? found[2] : this.nearest(x, y, 14);
  }

  drawTop() {
    const context = this.top.getContext("2d"), { ratio } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.wide, this.tall);
    context.lineWidth = 2;
    context.strokeStyle = styleOf("--ink");
    if (this.hovered >= 0) {
      const [x, y] = this.screen(this.hovered);
      context.beginPath();
      context.arc(x, y, 7, 0, 7);
      context.stroke();
    }
    const path = this.drag?.path || this.outline?.map(([x, y]) => this.toScreen(x, y));
    if (path && path.length > 1) {
      context.setLineDash([5, 4]);
      context.beginPath();
      path.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.closePath();
      context.globalAlpha = 0.08;
      context.fill();
      context.globalAlpha = 1;
      context.stroke();
      context.setLineDash([]);
    }
  }

  toScreen(x, y) {
    return [(x - this.view.x) * this.view.k + this.wide / 2, (this.view.y - y) * this.view.k + this.tall / 2];
  }

  screen(i) { return this.toScreen(this.layout.xy[2 * i], this.layout.xy[2 * i + 1]); }

  plane(x, y) {
    return [(x - this.wide / 2) / this.view.k + this.view.x, this.view.y - (y - this.tall / 2) / this.view.k];
  }

  // --- pointer and keys

  at(event) {
    const box = this.base.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  // The nearest point within so many pixels; of those that are out of focus none.
  nearest(x, y, reach) {
    const [px, py] = this.plane(x, y), away = reach / this.view.k, xy = this.layout.xy;
    const cell = (value) => Math.max(0, Math.min(GRID - 1, Math.floor(value / 256)));
    let best = -1, least = away * away;
    for (let row = cell(py - away); row <= cell(py + away); row++) {
      for (let at = this.cells[row * GRID + cell(px - away)]; at < this.cells[row * GRID + cell(px + away) + 1]; at++) {
        const i = this.members[at], far = (xy[2 * i] - px) ** 2 + (xy[2 * i + 1] - py) ** 2;
        if (far <= least && !(this.chosen.size && !this.chosen.has(this.column.values[i]))) { least = far; best = i; }
      }
    }
    return best;
  }

  move(event) {
    const [x, y] = this.at(event);
    if (this.drag?.path) {
      this.drag.path.push([x, y]);
      this.drawTop();
    } else if (this.drag) {
      this.view.x = this.drag.view.x - (x - this.drag.x) / this.view.k;
      this.view.y = this.drag.view.y + (y - this.drag.y) / this.view.k;
      this.drag.isMoved ||= Math.hypot(x - this.drag.x, y - this.drag.y) > 3;
      this.later();
    } else {
      this.hover(this.seen(x, y));
    }
  }

  hover(i) {
    if (i === this.hovered) return;
    this.hovered = i;
    this.tip.hidden = i < 0;
    this.drawTop();
    if (i < 0) return;
    const name = this.names[i].slice(this.folder), tile = this.tileOf[i];
    const facts = this.columns.map((one) => {
      const value = one.values[i];
      const text = one.classes ? one.classes[value] ?? "none" : number(one.low + value / 255 * (one.high - one.low));
      return el("div", {}, `${one.name}: `, el("b", {}, text));
    });
    this.tip.replaceChildren(
      tile >= 0 ? this.sheets.tile(tile, name) : el("div", { class: "note" }, "no thumbnail of this one is kept"),
      el("div", {}, el("div", { class: "name" }, name), ...facts));
    this.tip.dataset.point = i;
    this.live.textContent = name;
    const [x, y] = this.screen(i);
    this.tip.style.left = x > this.wide / 2 ? "" : `${x + 16}px`;
    this.tip.style.right = x > this.wide / 2 ? `${this.wide - x + 16}px` : "";
    this.tip.style.top = y > this.tall / 2 ? "" : `${y}px`;
    this.tip.style.bottom = y > this.tall / 2 ? `${this.tall - y}px` : "";
  }

  press(event) {
    const [x, y] = this.at(event);
    this.base.setPointerCapture(event.pointerId);
    const isLasso = this.isLasso || event.shiftKey;
    this.drag = { x, y, view: { ...this.view }, path: isLasso ? [[x, y]] : null };
    this.hover(-1);
  }

  lift(event) {
    const drag = this.drag;
    this.drag = null;
    if (drag?.path?.length > 2) {
      this.outline = drag.path.map(([x, y]) => this.plane(x, y));
      this.select(this.inside(this.outline));
    } else if (drag && !drag.isMoved && event.type === "pointerup") {
      const [x, y] = this.at(event), i = this.seen(x, y);
      this.outline = null;
      this.select(i < 0 ? null : [i]);
    }
  }

  inside(path) {
    const xs = path.map(([x]) => x), ys = path.map(([, y]) => y), xy = this.layout.xy, found = [];
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    for (let i = 0; i < this.count; i++) {
      const x = xy[2 * i], y = xy[2 * i + 1];
      if (x < left || x > right || y < low || y > high) continue;
      if (this.chosen.size && !this.chosen.has(this.column.values[i])) continue;
      let isIn = false;
      for (let a = 0, b = path.length - 1; a < path.length; b = a++) {
        if ((ys[a] > y) !== (ys[b] > y) && x < (xs[b] - xs[a]) * (y - ys[a]) / (ys[b] - ys[a]) + xs[a]) isIn = !isIn;
      }
      if (isIn) found.push(i);
    }
    return found;
  }

  select(points) {
    this.selected = points && new Uint8Array(this.count);
    points?.forEach((i) => { this.selected[i] = 1; });
    this.list.replaceChildren();
    if (points) {
      const names = points.map((i) => this.names[i]);
      const copy = el("button", { type: "button", onclick: () => copied(names.join("\n"), copy) }, "Copy the names");
      const clear = el("button", { type: "button", onclick: () => { this.outline = null; this.select(null); } }, "Clear");
      this.list.append(
        el("div", { class: "tools" }, el("b", {}, counted(points.length, "image")), copy, clear),
        el("div", { class: "strip" }, points.filter((i) => this.tileOf[i] >= 0).slice(0, 48)
          .map((i) => this.sheets.tile(this.tileOf[i], this.names[i].slice(this.folder), "tile small"))),
        el("ol", { class: "files", tabindex: 0 }, names.slice(0, 1000).map((name) => el("li", {}, name.slice(this.folder)))));
      if (names.length > 1000) this.list.append(el("p", { class: "note" }, `The first 1,000 are shown; all ${names.length.toLocaleString("en")} are copied.`));
      this.live.textContent = `${counted(points.length, "image")} selected`;
    }
    this.later();
  }

  leave() { if (!this.drag) this.hover(-1); }

  zoom(by, x = this.wide / 2, y = this.tall / 2) {
    const [px, py] = this.plane(x, y);
    this.view.k = Math.max(0.5 * Math.min(this.wide, this.tall) / FULL, Math.min(2, this.view.k * by));
    this.view.x = px - (x - this.wide / 2) / this.view.k;
    this.view.y = py + (y - this.tall / 2) / this.view.k;
    this.later();
  }

  turn(event) {
    event.preventDefault();
    this.zoom(1.0015 ** -event.deltaY, ...this.at(event));
  }

  setLasso(isOn) {
    this.isLasso = isOn;
    this.lassoer.setAttribute("aria-pressed", String(isOn));
    this.mover.setAttribute("aria-pressed", String(!isOn));
    this.base.classList.toggle("lasso", isOn);
  }

  key(event) {
    const by = 60 / this.view.k;
    const moves = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, by], ArrowDown: [0, -by] };
    if (event.key in moves) {
      this.view.x += moves[event.key][0];
      this.view.y += moves[event.key][1];
      this.hover(-1);
      this.later();
    } else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") this.fit();
    else if (event.key === "Enter") this.hover(this.nearest(this.wide / 2, this.tall / 2, this.wide));
    else if (event.key === "Escape") { this.hover(-1); this.outline = null; this.select(null); }
    else return;
    event.preventDefault();
  }
}

function parsedColor(name, at) {
  const hex = styleOf(name, at);
  return [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));
}

// A step through all points that leaves none out: neighbors in the list, often of one class, are not drawn in a row.
function coprime(count) {
  const common = (a, b) => (b ? common(b, a % b) : a);
  let step = Math.max(1, Math.floor(count * 0.618));
  while (common(count, step) !== 1) step++;
  return step;
}
