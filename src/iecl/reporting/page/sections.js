// The sections of the page, in their order. Each gives an element, or null where there is nothing to show.

const SIGNS = {
  __proto__: null, // a run may say any word
  healthy: ["good", "✓"], slow: ["fair", "○"], "too short": ["unknown", "…"], untrained: ["unknown", "–"],
  unlearning: ["bad", "↓"], collapsing: ["bad", "✕"], diverged: ["bad", "✕"], "nothing to learn": ["bad", "∅"],
};

// What each verdict means to somebody who has never heard of its words.
const MEANINGS = {
  __proto__: null,
  healthy: "Training does what it should: images that differ get different embeddings.",
  slow: "The network has hardly learned anything yet.",
  "too short": "It is too early to tell how training goes.",
  untrained: "Nothing was trained: this is a baseline for others.",
  unlearning: "Training makes the network worse than it was before.",
  collapsing: "The network gives nearly the same embedding to all images: as it is, it is of no use.",
  diverged: "Training broke down: its numbers left all bounds.",
  "nothing to learn": "All images are the same: there is nothing to tell apart.",
};
const CAPTIONS = {
  __proto__: null,
  "other view found": "Images that are recognized by a second view among all others",
  kNN: "Images whose class is told by those that are most like them",
  "online kNN": "Images whose class is told by those that are most like them",
};

const table = (head, rows, name) => el("div", { class: "scroll" }, el("table", { class: name },
  head && el("thead", {}, el("tr", {}, head.map((cell) => el("th", { scope: "col" }, cell)))),
  el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, cell)))))));

const folded = (title, ...content) => el("details", {}, el("summary", {}, title), ...content);

function command(text) {
  const button = el("button", { type: "button", class: "copy", onclick: () => copied(text.replace(/ {2}#.*$/, ""), button) }, "Copy");
  return el("div", { class: "command" }, el("code", {}, text), button);
}

function chip(run) {
  const [kind, sign] = SIGNS[run.verdict.word] || ["unknown", "?"];
  return el("span", { class: `chip ${kind}`, title: MEANINGS[run.verdict.word] }, el("span", { "aria-hidden": "true" }, `${sign} `), run.verdict.word);
}

const swatch = (number) => draw("svg", { viewBox: "0 0 26 10", class: "key", "aria-hidden": "true" },
  draw("line", { x1: 0, x2: 26, y1: 5, y2: 5, class: "line", stroke: color(number), "stroke-dasharray": dashOf(number) }));
const dashOf = (number) => DASHES[Math.floor(number / COLORS) % DASHES.length] || "";

function wordsOf(run) {
  const { word, reasons, is_final: isFinal } = run.verdict;
  const because = reasons.length > 0 && `${isFinal ? "" : "So far: "}${reasons.join("; ")}.`;
  return [el("p", { class: "sentence" }, MEANINGS[word] || capital(word)), because && el("p", { class: "because" }, capital(because))];
}

function evidence(run, page) {
  const outcome = run.outcome;
  if (outcome) {
    const head = outcome.columns[outcome.main];
    const rows = outcome.rows.map((row) => ({ name: row.name, value: row.values[outcome.main] }))
      .filter((row) => typeof row.value === "number")
      .map((row) => ({ ...row, text: head.is_share ? percent(row.value) : number(row.value) }));
    const caption = (CAPTIONS[head.name] || head.name) + (outcome.images ? `, of ${outcome.images.toLocaleString("en")}` : "");
    if (rows.length) {
      return el("figure", { class: "evidence" }, el("figcaption", {}, caption, el("small", {}, ` (${head.name})`)), bars(rows, caption));
    }
  }
  const loss = page.panels.find((panel) => panel.title === "Loss");
  return loss && el("figure", { class: "evidence" }, new Chart(withLooks({ ...loss, note: "" }, page)).element);
}

const BLOCKS = { learned: "which learns too", frozen: "whose weights stay as they were drawn", redrawn: "whose weights are drawn anew in each step" };

const sections = {
  verdict(page) {
    if (page.runs.length > 1) return several(page);
    const [run] = page.runs;
    return el("div", { class: "hero" },
      el("div", {}, el("p", { class: "verdict" }, chip(run), run.state !== "finished" && el("span", { class: `chip ${run.state}` }, run.state)),
        typeof run.progress === "number" && el("progress", { max: 1, value: run.progress, "aria-label": `${percent(run.progress)} of its steps` }),
        wordsOf(run),
        run.verdict.advice && el("p", { class: "advice" }, el("b", {}, "Next: "), run.verdict.advice),
        run.problems.map((problem) => el("p", { class: "problem" }, problem)),
        run.log.length > 0 && folded("The last lines of its log", el("pre", {}, run.log.join("\n")))),
      evidence(run, page));
  },

  training(page) {
    return page.runs.map((run) => {
      const facts = table(null, run.facts, "facts");
      return page.runs.length > 1
        ? folded(`${run.name}: ${run.sentence}`, facts)
        : [el("p", { class: "sentence" }, run.sentence), facts, settingsOf(page)];
    });
  },

  differing(page) {
    if (page.runs.length < 2) return null;
    const names = page.runs.map((run, i) => el("span", {}, swatch(i), run.name));
    return page.differing.length ? table(["setting", ...names], page.differing)
      : el("p", {}, "All settings of these runs are the same.");
  },

  curves(page) {
    if (!page.panels.length) return el("p", {}, "Nothing was recorded yet.");
    const main = page.panels.filter((panel) => !panel.is_other), other = page.panels.filter((panel) => panel.is_other);
    const grid = (some) => el("div", { class: "grid" }, some.map((panel) => new Chart(withLooks(panel, page)).element));
    return [el("p", { class: "note keyboard" }, "Point at a curve to read it; drag to zoom all of them to a stretch of steps; double click to see everything."),
      grid(main), other.length > 0 && lazily(`${counted(other.length, "further reading")}`, () => grid(other))];
  },

  views(page, pictures) {
    const found = page.sights?.views;
    if (!found) return null;
    return [el("p", {}, "Training never sees an image as it is. Each time it is changed at random in two ways, and the network learns that both are the same image."
      + (found.note ? ` ${found.note}` : ` An input block, ${BLOCKS[found.weights] || "a layer of its own"}, changes the second view further before the network gets it.`)),
    el("div", { class: "scroll" }, el("div", { class: "rows" }, found.rows.map((row) => el("div", { class: "row" },
      el("div", { class: "head" }, el("b", {}, row.name), el("small", {}, row.note)),
      el("div", { class: "tiles" }, row.tiles.map((tile, i) => pictures.tile(tile, `image ${i + 1}: ${row.name}`)))))))];
  },

  neighbors(page, pictures) {
    const found = page.sights?.neighbors;
    if (!found?.length) return null;
    const hasLabels = found.some((one) => one.near.some((other) => other.is_same !== null));
    return [el("p", {}, "At the left an image, beside it those whose embeddings are most like its own."
      + (hasLabels ? " A solid frame: the same label, which training did not use; a dashed one: another label." : "")),
    el("div", { class: "scroll" }, el("div", { class: "rows" }, found.map(({ query, near }) => el("div", { class: "row" },
      el("div", { class: "tiles query" }, pictures.tile(query.tile, `asked for: ${titled(query)}`)),
      el("div", { class: "tiles" }, near.map((one) => pictures.tile(one.tile, `${titled(one)}, cosine ${one.cosine}`,
        `tile ${one.is_same === true ? "same" : one.is_same === false ? "other" : ""}`)))))))];
  },

  map(page) {
    const found = page.sights?.map;
    if (!found) return null;
    const { shown, total } = page.sights;
    return [el("p", {}, `Each point is an image; points are near each other where the network finds images alike. `
      + (shown < total ? `${shown.toLocaleString("en")} of ${total.toLocaleString("en")} images are shown, drawn at random with a fixed seed.` : `All ${counted(total, "image")} are shown.`)
      + ` Weights: ${page.sights.checkpoint}.`),
    new PlaneMap(found).element];
  },

  results(page) {
    const rows = page.runs.flatMap((run, i) => run.evaluations.map((one) => ({ run, i, one })));
    if (!rows.length) return el("p", {}, "Nothing was measured yet. With labels: ", el("code", {}, `iecl evaluate knn ${page.runs[0].path}`));
    return [table(["result", "value", "95 % interval", "images", "protocol"], rows.map(({ run, i, one }) => [
      el("span", {}, page.runs.length > 1 && [swatch(i), `${run.name}: `], `${one.evaluation} ${one.number.replace("top1", "top-1")}`),
      el("b", {}, percent(one.value)),
      one.low === null ? "–" : el("span", { title: one.way }, `${(100 * one.low).toFixed(1)} to ${percent(one.high)}`),
      `${one.n_test.toLocaleString("en")} tested, ${one.n_train.toLocaleString("en")} learned from`,
      el("code", {}, one.protocol_id)]).concat([]), "results"),
    rows.filter(({ one }) => one.baselines.length).slice(0, 4).map(({ run, one }) => el("figure", { class: "evidence" },
      el("figcaption", {}, `${page.runs.length > 1 ? `${run.name}: ` : ""}${one.evaluation}, beside doing nothing`),
      bars([{ name: "this run", value: one.value, text: percent(one.value) },
        ...one.baselines.map((other) => ({ name: other.name, value: other.value, text: percent(other.value) }))], one.evaluation))),
    page.paired && pairedOf(page.paired),
    rows.map(({ run, one }) => folded(`Protocol of ${page.runs.length > 1 ? `${run.name}, ` : ""}${one.evaluation} on ${one.data}`,
      table(null, [["id", one.protocol_hash], ["data", one.data], ...(one.way ? [["interval", one.way]] : []), ...one.protocol], "facts")))];
  },

  confusion(page, pictures) {
    const found = page.sights?.confusion;
    if (!found) return null;
    return [el("p", {}, `${percent(found.right)} of ${counted(found.queries, "image")} are put into their class by ${found.way}. `
      + "This is a look at the images above, not a result to report: results have protocols."),
    found.table && heatTable(found.classes, found.table),
    found.pairs.length > 0 && [el("h3", {}, "Most confused"),
      el("p", { class: "note" }, "Each mistaken image, and beside it the image of the other class that is most like it.")],
    el("div", { class: "pairs" }, found.pairs.map((pair) => el("div", { class: "pair" },
      el("p", {}, el("b", {}, short(pair.true)), " taken for ", el("b", {}, short(pair.said)), el("small", {}, ` ${pair.count} of ${pair.of}`)),
      pair.examples.map((one) => el("span", { class: "duo" }, pictures.tile(one.tile, `${pair.true}: ${one.name}`),
        pictures.tile(one.by, `the most like it of ${pair.said}: ${one.by_name}`))))))];
  },

  layers(page) {
    const found = page.sights?.layers;
    if (!found) return null;
    const names = found.layers.map((stage) => stage.name);
    const lines = [["plain images", "entropy"], ["views", "view_entropy"], ["views behind the block", "block_entropy"]]
      .filter(([, key]) => typeof found.layers[0][key] === "number")
      .map(([name, key]) => ({ name, values: found.layers.map((stage) => stage[key]) }));
    const apart = [{ name: "distance", values: found.layers.map((stage) => stage.view_distance) }];
    return [el("p", {}, `How many ways ${counted(found.images, "image")} differ from each other, from the pixels to the features.`),
      el("div", { class: "two" },
        stageChart(names, lines, "Entropy by stage", `log of the effective rank; at most ${number(found.most)} nats`),
        stageChart(names, apart, "Distance of two views", "over that of two images: 0 the network ignores the change, 1 it sees nothing but")),
      el("ul", {}, found.findings.map((finding) => el("li", {}, finding)))];
  },

  weights(page) {
    return page.runs.map((run) => el("div", {},
      el("p", {}, page.runs.length > 1 && el("b", {}, `${run.name}: `), run.checkpoints.use && [el("code", {}, run.checkpoints.use), ". "], run.checkpoints.why),
      run.checkpoints.files.length > 1 && el("p", { class: "note" }, `There are: ${run.checkpoints.files.join(", ")}.`)));
  },

  skipped(page) {
    return page.runs.map((run) => {
      const found = run.skipped, name = page.runs.length > 1 ? `${run.name}: ` : "";
      if (!found.count) return el("p", {}, name ? `${name}every file could be read.` : "Every file could be read.");
      const rest = found.count > found.files.length ? ` (the first ${found.files.length})` : "";
      return [el("p", {}, `${name}${counted(found.count, "file")} could not be read.`),
        table(["reason", "files"], found.reasons.map(([reason, count]) => [reason, String(count)])),
        folded(`Which ones${rest}`, table(["file", "reason"], found.files))];
    });
  },

  repeat(page) {
    return page.runs.map((run) => [page.runs.length > 1 && el("p", {}, el("b", {}, run.name)), run.commands.map(command)]);
  },
};

const HEADS = {
  verdict: "Verdict", training: "What was trained", differing: "Settings that differ", curves: "Curves", views: "What training saw",
  neighbors: "What it learned: nearest neighbors", map: "Map of the images", results: "Results", confusion: "What it confuses",
  layers: "Entropy through the layers", weights: "Which weights to use", skipped: "Skipped files", repeat: "Repeat it all",
};
const SHORT = { neighbors: "Neighbors", training: "Training", differing: "Differences", views: "Views", map: "Map", confusion: "Confusion",
  layers: "Layers", weights: "Weights", skipped: "Skipped", repeat: "Repeat" };
const OF_IMAGES = ["views", "neighbors", "map", "confusion", "layers"];

const titled = (one) => (one.label ? `${one.label}: ${one.name}` : one.name);

// The first result that all runs have, by the same protocol on the same images: what may be laid side by side.
function commonResult(runs) {
  const same = (a, b) => ["evaluation", "number", "protocol_hash", "data"].every((key) => a[key] === b[key]);
  for (const one of runs[0].evaluations) {
    const found = runs.map((run) => run.evaluations.find((other) => same(one, other)));
    if (found.every((each) => each)) return found;
  }
  return null;
}

function several(page) {
  const common = commonResult(page.runs), title = common && `${common[0].evaluation} ${common[0].number.replace("top1", "top-1")}`;
  const ahead = common && Math.max(...common.map((one) => one.value));
  return [common && el("div", { class: "hero" },
    el("p", { class: "sentence" }, el("b", {}, page.runs[common.findIndex((one) => one.value === ahead)].name),
      ` has the highest ${title} of these ${page.runs.length} runs: ${percent(ahead)}. Whether that is more than noise is said under Results.`),
    el("figure", { class: "evidence" }, el("figcaption", {}, `${title} on ${common[0].data}`),
      bars(common.map((one, i) => ({ name: page.runs[i].name, value: one.value, text: percent(one.value), color: color(i) })), title))),
  table(["run", "verdict", "state", "because"], page.runs.map((run, i) => [
    el("span", {}, swatch(i), run.name), chip(run), run.state,
    el("span", {}, el("b", {}, MEANINGS[run.verdict.word] || ""), " ", capital(run.verdict.reasons.join("; ")),
      run.problems.map((problem) => el("p", { class: "problem" }, problem)))]), "several")];
}

function withLooks(panel, page) {
  const isMany = page.runs.length > 1;
  const series = panel.series.map((one, i) => ({ ...one,
    color: color(isMany ? one.run : i), dash: isMany ? dashOf(one.run) : "", label: isMany ? page.runs[one.run].name : one.name }));
  return { ...panel, series };
}

function settingsOf(page) {
  return page.settings.length > 0 && folded(`All ${page.settings.length} settings`, table(null, page.settings, "facts"));
}

// Built when it is opened: what nobody looks at takes no time.
function lazily(title, make) {
  const holder = folded(title);
  holder.addEventListener("toggle", () => { if (holder.open && holder.childElementCount === 1) holder.append(make()); });
  return holder;
}

function pairedOf(paired) {
  if (!paired.rows.length) return el("p", { class: "note" }, paired.note);
  const rows = paired.rows.map((row) => [
    `${row.evaluation}: ${row.second} against ${row.first}`,
    row.is_comparable ? el("b", {}, minus(`${row.points >= 0 ? "+" : ""}${row.points.toFixed(2)} points`)) : "not comparable",
    row.is_comparable
      ? row.intervals.map((one) => el("div", {}, minus(`${(100 * one.low).toFixed(2)} to ${(100 * one.high).toFixed(2)}, `), one.way))
      : row.reasons.map((reason) => el("div", {}, reason)),
    row.is_comparable ? el("span", { class: `chip ${row.is_noise ? "unknown" : "good"}` }, row.is_noise ? "inside the noise" : "more than noise") : ""]);
  return [el("h3", {}, "Differences"), table(["difference", "points", "95 % interval", ""], rows, "results")];
}

function heatTable(classes, counts) {
  const cell = (count, row, i, j) => {
    const share = count / Math.max(1, row.reduce((a, b) => a + b, 0));
    const made = el("td", { title: `${classes[i]} given ${classes[j]}: ${count}`, class: i === j ? "hit" : "" }, count ? String(count) : "");
    made.style.setProperty("--share", `${Math.round(100 * Math.min(1, share))}%`);
    return made;
  };
  return el("div", { class: "scroll" }, el("table", { class: "heat" },
    el("caption", {}, "Rows: the label of an image. Columns: the class that the probe gives it."),
    el("thead", {}, el("tr", {}, el("th", {}), classes.map((name) => el("th", { scope: "col" }, el("span", {}, name))))),
    el("tbody", {}, counts.map((row, i) => el("tr", {}, el("th", { scope: "row" }, classes[i]), row.map((count, j) => cell(count, row, i, j)))))));
}
