"use strict";
// The page of `fourfold look`: draws the document and the maps that Python put into this file. Nothing is fetched.
// Part 1: the state and the maps. Part 2: panels. Part 3: input. The pure functions stand in pure.js, which comes before.

// ------------------------------------------------------------------------------------------------ 1 state, maps
const DEFAULTS = {
  row: 0, model: 0, map: "", layer: -1, head: -1, q: -1, k: -1, step: 0, words: 0, special: 0, marks: 1, together: 0,
  scale: "max", smooth: 0, zoom: 0, theme: "",
};
const TITLES = {
  self: "self-attention", cross: "attention to the source (cross-attention)", encoder: "self-attention of the encoder",
  decoder: "self-attention of the decoder", image: "self-attention of the image encoder",
  text: "self-attention of the text encoder", rollout: "rollout (layers 0 to this one together)",
  relevance: "relevance for the class (attention times gradient)", "alpha sum": "attention, sum over all words", alpha: "attention to the source",
  positions: "similarity of positions",
};
const STATS = {
  previous: "attends to the token before", self: "attends to the token at its own position", next: "attends to the token after",
  first: "attends to the first token", induction: "attends to what followed an earlier copy (induction)",
  separator: "attends to separators or the end token", distance: "attends far away: mean distance (tokens or patches)",
  entropy: "entropy in nats (0: attends to one token only)",
};
const TEXTS = { inputs: "tokens read", sum: "all words", source: "source", target: "target", tokens: "text", patches: "picture", visible: "visible patches", class: "class token" };
const page = { state: { ...DEFAULTS }, cache: new Map(), timer: null, sort: ["layer", 1], drawn: {}, thumbs: [] };

const $ = (id) => document.getElementById(id);
const root = () => page.doc.rows[page.state.row];
/** List of the input that is shown; empty if the input has no such list. */
const list = (name) => root()[name] || [];
const say = (id, text) => { $(id).textContent = text; };
const describe = (id, text) => $(id).setAttribute("aria-label", text);
const on = (target, event, act) => (typeof target === "string" ? $(target) : target).addEventListener(event, act);
// A page of several models has a provenance for each input.
const provenance = () => root().provenance || page.doc.provenance;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Element with properties and children; text reaches the page as text nodes only. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((one) => one !== null));
  return element;
}

function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const cell = (textContent, more) => make("td", { textContent, ...more });
const hint = (textContent) => make("p", { className: "hint", textContent });

function makeButton(textContent, act, more, ...children) {
  const button = make("button", { type: "button", textContent, ...more }, ...children);
  on(button, "click", act);
  return button;
}

/** Small text in a plot; `more`: attributes such as text-anchor. */
const note = (x, y, text, more) => makeSvg("text", { x, y, class: "soft", ...more }, text);
const END = { "text-anchor": "end" }, MIDDLE = { "text-anchor": "middle" };

function show(id, isShown) {
  $(id).hidden = !isShown;
  return isShown;
}

const mapTitle = (name) => {
  const map = root().maps.find((one) => one.name === name) || {};
  return map.title || (TITLES[name] || name).replace("the source", map.keys === "patches" ? "the picture" : "the source");
};
const modelOf = () => (page.state.model === 2 ? 0 : page.state.model);
const mapsOf = (name, model = modelOf()) => root().maps.filter((map) => map.name === name && map.model === model);
const mapNames = () => unique(root().maps.filter((map) => map.model === modelOf()).map((map) => map.name));

/** Maps for the tables of heads: those of the map that is shown, or of the first one that has heads. */
function headMaps() {
  const isHeaded = (name) => mapsOf(name).some((map) => map.head !== null);
  return mapsOf([page.state.map, ...root().maps.map((map) => map.name)].find(isHeaded) || page.state.map);
}

/** Stored map with its weights. */
function fetchMap(name, layer, head, model) {
  const id = [page.state.row, name, layer, head, model].join("/");
  if (page.cache.has(id)) return page.cache.get(id);
  const map = mapsOf(name, model).find((one) => one.layer === layer && one.head === head);
  const found = map && { map, data: expand(map, page.bytes, page.doc.precision) };
  if (page.cache.size > 31) page.cache.delete(page.cache.keys().next().value);
  page.cache.set(id, found);
  return found;
}

/** Replace choices that the input at hand does not have. */
function settle() {
  const state = page.state, rows = page.doc.rows;
  state.row = Math.min(state.row, rows.length - 1);
  if (!page.doc.compare) state.model = 0;
  const names = mapNames();
  if (!names.includes(state.map)) {
    const wanted = ["alpha", "cross", ...(root().image ? ["relevance", "rollout"] : [])];
    state.map = wanted.find((name) => names.includes(name)) || names[0] || "";
  }
  page.layers = unique(mapsOf(state.map).map((map) => map.layer));
  if (!page.layers.includes(state.layer)) state.layer = page.layers[page.layers.length - 1] ?? null;
  page.heads = mapsOf(state.map).filter((map) => map.layer === state.layer).map((map) => map.head);
  if (!page.heads.includes(state.head)) state.head = page.heads[0] ?? null;
  state.step = Math.max(0, Math.min(state.step, list("steps").length - 1));
  if (!wordsAvailable()) state.words = 0;
}

const wordsAvailable = () => Object.keys(root().words || {}).length > 0;

/** Indices of special tokens of a list. */
const specialTokens = (name) => new Set((root().special || {})[name] || []);

/** The map that is shown, with labels, after words are merged and special tokens are hidden. */
function makeView() {
  const state = page.state;
  const one = fetchMap(state.map, state.layer, state.head, modelOf());
  if (!one) return null;
  const other = state.model === 2 ? fetchMap(state.map, state.layer, state.head, 1) : null;
  const sides = ["queries", "keys"].map((side) => {
    const name = one.map[side], tokens = root().tokens[name];
    const words = state.words ? (root().words || {})[name] : null;
    const groups = groupTokens(tokens.length, words, state.special ? specialTokens(name) : new Set());
    const read = side === "queries" && one.map.keys === "inputs" && name !== "inputs" ? root().tokens.inputs : null;
    const label = (group) => (read ? `${visible(read[group[0]])} → ` : "")
      + (words ? joinPieces(group.map((i) => tokens[i])) : visible(tokens[group[0]]));
    return { name, groups, labels: groups.map(label), raw: tokens, isShifted: read !== null,
      title: read ? "read → predicted" : TEXTS[name] || name };
  });
  const columns = one.map.shape[1];
  const merge = (raw) => (state.words || state.special ? mergeMap(raw, columns, sides[0].groups, sides[1].groups) : raw);
  let values = merge(one.data);
  if (other) { const second = merge(other.data); values = values.map((value, i) => value - second[i]); }
  const view = { map: one.map, q: sides[0], k: sides[1], data: values, rows: sides[0].groups.length,
    columns: sides[1].groups.length, signed: Boolean(other) || (one.map.range || [0])[0] < 0,
    isWeight: !other && !one.map.range, merge };
  view.most = largest(values);
  view.limit = state.scale === "one" ? 1 : view.most;
  if (state.q < 0 || state.q >= sides[0].raw.length) state.q = startQuery(view);
  view.row = indexOf(sides[0].groups, state.q);
  if (state.k < 0 || state.k >= sides[1].raw.length) state.k = -1;
  view.column = state.k < 0 ? topK(rowOf(view, view.row), 1)[0] ?? 0 : indexOf(sides[1].groups, state.k);
  return view;
}

/** Query that is chosen at the start: that of a picture, else the row of the step or a token in the middle. */
function startQuery(view) {
  const step = list("steps")[page.state.step];
  if (root().query != null && view.q.name === "patches") return root().query;
  if (step && step.list === view.q.name) return step.query;
  return view.q.raw.length > 1 ? Math.floor(view.q.raw.length / 2) : 0;
}

const indexOf = (groups, token) => Math.max(0, groups.findIndex((group) => group[group.length - 1] >= token));
const rowOf = (view, t) => view.data.subarray(t * view.columns, (t + 1) * view.columns);

/** Keys that a query may attend to, for the uniform value: the causal ones or all. */
const uniformOf = (view, t) => 1 / (view.map.triangle ? Math.max(...view.q.groups[t]) + 1 : view.k.raw.length);

/** Colour [r, g, b] of a weight: square-root scale, so that small weights can be seen. */
function shade(view, value) {
  return view.signed ? diverge(value / view.limit) : ramp(Math.sqrt(Math.max(0, value) / view.limit));
}

/** Canvas of width x height CSS pixels, sharp on the screen at hand, with its context. */
function prepare(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  font(context, false);
  context.clearRect(0, 0, width, height);
  return context;
}

const font = (pen, isBold, size = 13) => { pen.font = `${isBold ? "bold " : ""}${size}px system-ui, sans-serif`; };

function outline(pen, paint, width, ...box) {
  pen.strokeStyle = paint;
  pen.lineWidth = width;
  pen.strokeRect(...box);
}

/** Small canvas with one pixel for each value; `paint` gives [r, g, b] or [r, g, b, alpha]. */
function pixels(rows, columns, paint) {
  const canvas = make("canvas", { width: columns, height: rows }), context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const colours = paint(i), at = 4 * i;
    for (let j = 0; j < 3; j++) image.data[at + j] = colours[j];
    image.data[at + 3] = colours[3] ?? 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// ------------------------------------------------------------------------------------------------------ 2 panels
/** Where the map comes from, in words. */
function mapName() {
  const { layer, head, map } = page.state;
  const parts = [];
  if (layer !== null) parts.push(`layer ${layer}`);
  if (head !== null) parts.push(`head ${head}`);
  else if (page.heads.length > 1) parts.push("mean of heads");
  return parts.join(", ") || mapTitle(map);
}

function cellText(t, s) {
  const view = page.view, value = view.data[t * view.columns + s];
  const pair = `‘${view.q.labels[t]}’ attends to ‘${view.k.labels[s]}’`;
  if (page.state.model === 2) return `${pair}: difference ${digits(value)} (${mapName()})`;
  if (!view.isWeight) return `${view.rows > 1 ? `‘${view.q.labels[t]}’ and ` : ""}‘${view.k.labels[s]}’: ${digits(value)}`;
  const uniform = digits(uniformOf(view, t) * view.k.groups[s].length);
  return `${pair}: ${digits(value)} (${mapName()}; uniform attention: ${uniform})`;
}

/** The map and the cell that are shown, in words. */
function drawNow() {
  const view = page.view, stats = view.map.stats || {};
  const parts = [unique([mapTitle(view.map.name), mapName()]).join(", ").replace(/^./, (c) => c.toUpperCase())];
  if (page.doc.compare) parts[0] += ` — ${$("model").selectedOptions[0]?.textContent ?? ""}`;
  if (view.map.label) parts.push(`pattern: ${view.map.label}`);
  for (const name of ["entropy", "distance"]) {
    if (stats[name] && page.state.model !== 2) {
      const [value, uniform] = stats[name], unit = name === "entropy" ? " nats" : "";
      parts.push(`mean ${name} of its rows ${digits(value)}${unit} (uniform ${digits(uniform)})`);
    }
  }
  if (parts.length > 1 && page.heads.length > 1 && page.state.head === null) parts.push("these are means of the heads’ values");
  if (parts.length > 1 && (page.state.words || page.state.special)) parts.push("over single tokens, special ones included");
  say("explain", `${parts.join("; ")}.`);
  say("live", view.rows && view.columns ? cellText(view.row, view.column) : "");
}

/** Model of the input that is shown, below the title and at the end of the page. */
function drawProvenance() {
  const facts = provenance();
  say("subtitle", `${facts.model}, ${Number(facts.n_parameters).toLocaleString("en-US")} parameters`
    + `${facts.checkpoint && `, from ${facts.checkpoint}`}${page.doc.compare && !root().isEdited ? `; compared with ${page.doc.compare.title}` : ""}`);
  $("provenance").replaceChildren(...Object.entries(facts).filter(([, value]) => value !== null)
    .flatMap(([name, value]) => [make("dt", { textContent: name.replaceAll("_", " ") }), make("dd", { textContent: String(value) })]));
}

function drawSelects() {
  const { state, doc } = page;
  const fill = (id, options, chosen, isShown = options.length > 1) => {
    $(id).replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
    $(id).value = String(chosen ?? "mean");
    $(id).closest("label").hidden = !isShown;
  };
  fill("row", doc.rows.map((row, i) => [i, `${i + 1}: ${visibleTitle(row.title)}`]), state.row);
  fill("model", doc.compare
    ? [[0, provenance().name || provenance().checkpoint || "first"], [1, doc.compare.title], [2, "difference (first − second)"]] : [[0, ""]],
  state.model);
  fill("map", mapNames().map((name) => [name, mapTitle(name)]), state.map);
  fill("layer", page.layers.map((layer) => [layer ?? "mean", layer ?? "all"]), state.layer);
  const label = (head) => {
    const map = mapsOf(state.map).find((one) => one.layer === state.layer && one.head === head);
    return head === null ? "mean of heads" : `${head}${map && map.label ? ` (${map.label})` : ""}`;
  };
  fill("head", page.heads.map((head) => [head ?? "mean", label(head)]), state.head);
  $("scale").value = state.scale;
  for (const id of ["words", "special", "marks", "smooth", "zoom", "together"]) $(id).checked = state[id] === 1;
  $("words").closest("label").hidden = !wordsAvailable();
  $("special").closest("label").hidden = !Object.keys(root().tokens)
    .some((name) => specialTokens(name).size);
}

/** Rows and columns of the map that are drawn: all, or 40 around the choice. */
function windowOf(view) {
  const cut = (centre, length) => {
    if (!page.state.zoom || length <= 40) return [0, length];
    const start = Math.max(0, Math.min(centre - 20, length - 40));
    return [start, start + 40];
  };
  return { r: cut(view.row, view.rows), c: cut(view.column, view.columns) };
}

function drawMatrix() {
  if (!show("p-matrix", page.view.rows > 1 || !root().image)) return;
  const view = page.view, canvas = $("matrix"), { r, c } = windowOf(view);
  const rows = r[1] - r[0], columns = c[1] - c[0];
  $("p-matrix").classList.toggle("half", columns <= 32);
  const context = prepare(canvas, 10, 10), room = Math.max(200, $("matrix-box").clientWidth - 2);
  const isNamed = Math.max(rows, columns) <= 64;
  font(context, true);
  const longest = (labels, [a, b], most) => Math.min(most, 8 + labels.slice(a, b)
    .reduce((most, text) => Math.max(most, Math.ceil(context.measureText(text).width)), 12));
  const left = isNamed ? longest(view.q.labels, r, 190) : Math.min(110, room / 4), top = isNamed ? longest(view.k.labels, c, 120) : 90;
  const strip = isNamed && view.isWeight && columns > 1 ? 48 : 0, space = (room - left - strip) / Math.max(1, columns);
  const size = isNamed ? Math.max(13, Math.min(30, space, 800 / rows)) : Math.min(space, 640 / Math.max(rows, columns));
  const width = left + columns * size + strip, height = top + rows * size;
  const pen = prepare(canvas, width, height);
  pen.fillStyle = colour("panel");
  pen.fillRect(0, 0, width, height);
  const at = (i) => (r[0] + Math.floor(i / columns)) * view.columns + c[0] + (i % columns);
  const small = pixels(Math.max(1, rows), Math.max(1, columns), (i) => shade(view, view.data[at(i)] || 0));
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, left, top, columns * size, rows * size);
  pen.fillStyle = colour("text");
  pen.textBaseline = "middle";
  if (isNamed) {
    for (let t = 0; t < rows; t++) {
      pen.textAlign = "right";
      font(pen, t + r[0] === view.row);
      pen.fillText(fitLabel(pen, view.q.labels[t + r[0]], left - 6), left - 4, top + (t + 0.5) * size);
    }
    for (let s = 0; s < columns; s++) {
      pen.save();
      pen.translate(left + (s + 0.5) * size, top - 4);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      font(pen, s + c[0] === view.column);
      pen.fillText(fitLabel(pen, view.k.labels[s + c[0]], top - 6), 0, 0);
      pen.restore();
    }
  } else drawTicks(pen, view, r, c, left, top, size);
  if (strip) drawEntropies(pen, view, r, left + columns * size + 6, top, size);
  drawMarks(pen, view, r, c, left, top, size);
  page.matrix = { left, top, size, r, c };
  canvas.setAttribute("aria-label", `Map of ${view.rows} rows (queries) and ${view.columns} columns (keys), `
    + `${mapTitle(view.map.name)}, ${mapName()}. Arrow keys choose a cell, which is read out.`);
  show("zoom-box", Math.max(view.rows, view.columns) > 40);
  say("matrix-hint", view.signed
    ? page.state.model === 2 ? "Orange: the first model attends there more; blue: the second one; grey: both alike."
      : "Orange: above zero; blue: below zero; grey: zero."
    : `A row belongs to a query (${view.q.title}), a column to a key `
      + `(${view.k.title}). Yellow is much, violet is little; the colour follows the square root of the weight.`
      + `${view.q.isShifted ? " In a row ‘a → b’, the decoder reads a and predicts b; self is a, previous is the token before a." : ""}`
      + `${stepAhead(view) ? ` The model reads ‘${view.q.labels[view.row]}’ to predict ‘${plainPiece(stepAhead(view).chosen)}’.` : ""}`
      + `${strip ? " Bars on the right: entropy of a row; frame: uniform attention." : ""}`
      + `${alignmentOf(view) ? " White line: window of the source; dot: its centre." : ""}`);
  drawLegend(view);
}

/** Entropy of a row as a share of the entropy of uniform attention. */
function entropyShare(view, t) {
  const most = Math.log(view.map.triangle ? view.q.groups[t][0] + 1 : view.columns);
  return most > 0 ? rowOf(view, t).reduce((sum, a) => (a > 0 ? sum - a * Math.log(a) : sum), 0) / most : 0;
}

function drawEntropies(pen, view, r, left, top, size) {
  pen.fillStyle = colour("bar");
  for (let t = r[0]; t < r[1]; t++) pen.fillRect(left, top + (t - r[0] + 0.2) * size, 40 * Math.min(1, entropyShare(view, t)), 0.6 * size);
  outline(pen, colour("plain"), 1, left, top, 40, (r[1] - r[0]) * size);
}

/** Positions and tokens along a map with too many tokens for all labels. */
function drawTicks(pen, view, r, c, left, top, size) {
  const every = [2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * size >= 20) || 1000;
  font(pen, false, 11);
  for (const [side, [start, end], room] of [[view.q, r, left - 8], [view.k, c, top - 8]]) {
    for (let i = Math.ceil(start / every) * every; i < end; i += every) {
      pen.save();
      pen.translate(left, top);
      if (side === view.k) pen.rotate(-Math.PI / 2);
      pen.textAlign = side === view.q ? "right" : "left";
      const at = (i - start + 0.5) * size, [x, y] = side === view.q ? [-4, at] : [4, at];
      pen.fillText(fitLabel(pen, `${side.groups[i][0]} ${side.labels[i]}`, room), x, y);
      pen.restore();
    }
  }
}

const alignmentOf = (view) => (["cross", "alpha"].includes(view.map.name) && !page.state.words && root().alignment) || null;

/** Largest weight of each row, window of local attention, and the choice. */
function drawMarks(pen, view, r, c, left, top, size) {
  const x = (s) => left + (s - c[0]) * size, y = (t) => top + (t - r[0]) * size;
  const alignment = alignmentOf(view);
  pen.save();
  pen.beginPath();
  pen.rect(left, top, (c[1] - c[0]) * size, (r[1] - r[0]) * size);
  pen.clip();
  for (let t = r[0]; t < r[1]; t++) {
    const best = page.state.marks ? topK(rowOf(view, t), 1)[0] : -1;
    if (best >= 0 && !view.signed && size >= 8) outline(pen, "#ffffff", 2, x(best) + 2, y(t) + 2, size - 4, size - 4);
    const centre = alignment && alignment.centers[view.q.groups[t][0]];
    if (Number.isFinite(centre)) {
      pen.strokeStyle = pen.fillStyle = "#ffffff";
      pen.lineWidth = 1.5;
      const shift = view.k.groups[0] ? view.k.groups[0][0] : 0;
      const [low, high] = [-1, 1].map((sign) => x(Math.floor(centre) + sign * alignment.window - shift) + size / 2);
      const end = `${y(t) + size / 4}v${size / 2}`;
      pen.stroke(new Path2D(`M${low} ${end}M${high} ${end}M${low} ${y(t) + size / 2}H${high}`));
      pen.beginPath();
      pen.arc(x(centre - shift) + size / 2, y(t) + size / 2, Math.max(2, size / 8), 0, 7);
      pen.fill();
    }
  }
  const { segments } = root();
  if (segments && view.columns === segments.length && view.rows === segments.length) {
    pen.fillStyle = "#ffffff";
    segments.forEach((one, i) => {
      if (i && one !== segments[i - 1]) { pen.fillRect(x(i) - 1, top, 2, 1e5); pen.fillRect(left, y(i) - 1, 1e5, 2); }
    });
  }
  pen.restore();
  outline(pen, colour("accent"), 2, left, y(view.row), (c[1] - c[0]) * size, Math.max(2, size));
  outline(pen, colour("accent"), 3, x(view.column), y(view.row), Math.max(3, size), Math.max(3, size));
}

function drawLegend(view) {
  const width = Math.min(320, Math.max(200, $("matrix-box").clientWidth - 30));
  const pen = prepare($("legend"), width + 30, 34), low = view.signed ? -view.limit : 0;
  const value = (x) => (view.signed ? low + 2 * view.limit * x : view.limit * x * x);
  pen.drawImage(pixels(1, 256, (i) => shade(view, value(i / 255))), 10, 2, width, 12);
  pen.fillStyle = colour("text");
  pen.textAlign = "center";
  font(pen, false, 11);
  for (const x of view.signed ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) pen.fillText(digits(value(x)), 10 + x * width, 28);
  describe("legend", `Colour scale from ${digits(low)} to ${digits(view.limit)}`);
}

/** Weights of the map that is shown or, if they are drawn together, of each head with its colour; also draws the heads' names. */
function drawTogether(view) {
  const { state } = page, found = mapsOf(state.map).filter((map) => map.layer === state.layer && map.head !== null);
  show("together-box", found.length > 1);
  const together = state.together && found.length > 1 ? found : [];
  const paint = (n) => `hsl(${Math.round(210 + (360 * n) / together.length)} 75% ${isDark() ? 65 : 42}%)`;
  $("together-heads").replaceChildren(...together.map((map, n) => {
    const button = headButton(map, { ariaCurrent: String(map.head === state.head) }, `head ${map.head}`);
    button.style.borderLeft = `0.9rem solid ${paint(n)}`;
    return button;
  }));
  if (!together.length) return [view];
  return together.map((map, n) => ({ data: view.merge(fetchMap(state.map, state.layer, map.head, modelOf()).data),
    paint: paint(n), shift: 5 * (n - (together.length - 1) / 2) }));
}

function drawLines() {
  const view = page.view, box = $("lines"), pitch = 22, top = 30;
  if (!show("p-lines", view.k.name !== "patches" && !view.signed && view.rows * view.columns)) return;
  const width = Math.max(270, box.clientWidth - 4), side = Math.min(190, width * 0.32);
  const height = top + pitch * Math.max(view.rows, view.columns) + 4;
  const svg = makeSvg("svg", { width, height, role: "img", "aria-label":
    `Lines from the queries, on the left, to the keys, on the right; ${mapName()}` });
  const y = (i) => top + pitch * (i + 0.5), from = side + 6, to = width - side - 6;
  const heads = drawTogether(view), limit = page.state.scale === "one" ? 1 : Math.max(...heads.map((one) => largest(one.data)));
  const link = (t, s, kind, { data, paint = "", shift = 0 } = heads[0]) => {
    const share = data[t * view.columns + s] / limit, middle = (from + to) / 2;
    const line = makeSvg("path", { class: kind, "stroke-width": (0.4 + 6 * share).toFixed(2),
      d: `M${from} ${y(t)}C${middle} ${y(t) + shift} ${middle} ${y(s) + shift} ${to} ${y(s)}`,
      "stroke-opacity": Math.min(1, (kind === "link" ? 0.45 : 0.9) * share + 0.03).toFixed(3) });
    line.style.stroke = paint;
    return line;
  };
  if (view.rows <= 96 && heads.length === 1) {
    svg.append(...topK(view.data, 300).filter((i) => view.data[i] >= 0.02 * view.limit && Math.floor(i / view.columns) !== view.row)
      .map((i) => link(Math.floor(i / view.columns), i % view.columns, "link")));
  }
  /** Lines of a query, or those to a key, of each head that is shown. */
  const linesOf = (i, isQuery, kind) => heads.flatMap((head) => {
    const values = Array.from({ length: isQuery ? view.columns : view.rows }, (_, j) => head.data[isQuery ? i * view.columns + j : j * view.columns + i]);
    return topK(values, 200).filter((j) => values[j] > 0.004 * limit)
      .map((j) => (isQuery ? link(i, j, kind, head) : link(j, i, kind, head)));
  });
  const hovered = makeSvg("g");
  svg.append(...linesOf(view.row, true, "link query"), hovered);
  svg.append(note(0, 14, `query (${view.q.title})`), note(width - 2, 14, `key (${view.k.title})`, END));
  const word = (labels, isQuery) => labels.forEach((label, i) => {
    const strength = isQuery ? i === view.row : i === view.column;
    const text = makeSvg("text", { x: isQuery ? side : to + 6, y: y(i) + 4, class: strength ? "hit query" : "hit",
      "text-anchor": isQuery ? "end" : "start" }, [...label].length > 26 ? `${[...label].slice(0, 25).join("")}…` : label);
    on(text, "click", () => choose(isQuery ? i : view.row, isQuery ? null : i));
    on(text, "mouseenter", () => hovered.replaceChildren(...linesOf(i, isQuery, "link hover")));
    on(text, "mouseleave", () => hovered.replaceChildren());
    svg.append(text);
  });
  word(view.q.labels, true);
  word(view.k.labels, false);
  const seen = box.scrollTop, now = y(view.row);
  box.replaceChildren(svg);
  box.scrollTop = now < seen + top || now > seen + box.clientHeight - pitch ? now - box.clientHeight / 2 : seen;
}

/** Word whose background shows a share in [0, 1]. */
function tinted(textContent, share, title = "") {
  const span = make("span", { textContent, title });
  span.style.backgroundColor = `rgb(var(--tint) / ${(0.95 * Math.max(0, share)).toFixed(3)})`;
  return span;
}

/** Steps of a causal LM: the row of the map is that of the token before the predicted one. */
const stepsAhead = (view) => list("steps").filter((one) => one.list === view.q.name && one.query < one.token);
/** Step whose row is chosen, if its token stands after the row's. */
const stepAhead = (view) => stepsAhead(view).find((one) => one === list("steps")[page.state.step] && view.q.groups[view.row]?.includes(one.query));

/** Text with one mark-up element for each token, or word, of a side; the token that a step predicts is framed. */
function tokenLine(view, side, values) {
  const limit = values ? Math.max(...values, 1e-9) : 1, isSame = view.q.name === view.k.name;
  const paragraph = make("p", { className: "tokens", dir: "auto" });
  const isQuery = side === view.q, step = stepAhead(view);
  const framed = !isQuery && !isSame ? -1 : step ? indexOf(side.groups, step.token) : view.row;
  const between = page.state.words ? side.labels.map(() => " ") : gaps(side.groups.map((group) => side.raw[group[0]]));
  side.labels.forEach((label, i) => {
    const span = tinted(page.state.words ? label : plainPiece(side.raw[side.groups[i][0]]), values ? values[i] / limit : 0);
    if (i === framed) span.classList.add("query");
    if (!isQuery || isSame) {
      if (i === view.column) span.classList.add("key");
      span.title = digits(values[i]);
    }
    paragraph.append(span, between[i]);
  });
  on(paragraph, "click", ({ target }) => {
    const i = [...paragraph.children].indexOf(target);
    const predicts = i >= 0 && (isQuery || isSame) && stepsAhead(view).find((one) => side.groups[i].includes(one.token));
    if (predicts) choose(indexOf(side.groups, predicts.query), null);
    else if (i >= 0) choose(isQuery || isSame ? i : view.row, isQuery || isSame ? null : i);
  });
  return paragraph;
}

function drawText() {
  const view = page.view, isText = view.q.name !== "patches" && view.q.name !== "class" && !view.signed;
  if (!show("p-text", isText)) return;
  const hasTextKeys = view.k.name !== "patches", isSame = view.q.name === view.k.name;
  const row = rowOf(view, view.row), parts = [];
  if (!isSame) parts.push(make("h3", { textContent: `Choose a token (${view.q.isShifted ? "predicted" : view.q.title})` }), tokenLine(view, view.q, null));
  if (hasTextKeys) {
    if (!isSame) parts.push(make("h3", { textContent: `Tokens that it attends to (${view.k.title})` }));
    parts.push(tokenLine(view, view.k, row));
  }
  $("text").replaceChildren(...parts);
  say("h-text", hasTextKeys ? "Text tinted by the attention of one token" : "Words of the caption");
  say("text-hint", hasTextKeys ? `Click a token (framed). The stronger a tint, the more ${stepAhead(view) ? `‘${view.q.labels[view.row]}’, which the model reads to predict the framed token,`
    : "the framed token"} attends there.`
    : "Click a word: the image shows the attention at the step that predicts it.");
  drawGate(view);
}

function drawGate(view) {
  const gate = root().gate;
  if (!show("gate-box", gate && view.q.name !== "patches")) return;
  const isFocused = $("gate").contains(document.activeElement);
  $("gate").replaceChildren(...bars(view.q.groups.map((group, i) => [view.q.labels[i], gate[group[0]] ?? 0, i === view.row]),
    (i) => choose(i, null)));
  if (isFocused) $("gate").querySelector(".chosen button").focus();
}

/** Vertical bars over steps; the chosen one has another colour. */
function barChart(values, now, title, click) {
  const width = 340, height = 96, step = (width - 46) / values.length, base = 78, limit = Math.max(...values, 1e-9);
  const svg = makeSvg("svg", { width: "100%", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${values.length} bars from 0 to ${digits(limit)}; now: ${values.length ? title(now) : ""}` });
  values.forEach((value, i) => {
    const tall = Math.max(1, 70 * value / limit), x = 42 + i * step;
    const bar = makeSvg("rect", { x, y: base - tall, width: Math.max(0.8, step - 1), height: tall, class: i === now ? "now" : "bar" });
    const hit = makeSvg("rect", { x, y: 0, width: step, height: base, fill: "transparent", class: "hit" }, makeSvg("title", {}, title(i)));
    on(hit, "click", () => click(i));
    svg.append(bar, hit);
  });
  svg.append(makeSvg("path", { d: `M41 6V${base}H${width - 4}`, class: "axis" }),
    note(37, 14, digits(limit), END), note(37, base, "0", END), note(42, 93, "1"), note(width - 4, 93, String(values.length), END));
  return svg;
}

/** One row of a stored map. */
function expandRow(map, t) {
  const columns = map.shape[1], out = new Float32Array(columns), length = map.triangle ? Math.min(t + 1, columns) : columns;
  const offset = map.offset + (map.triangle ? (t * (t + 1)) / 2 : t * columns);
  out.set(expand({ data: map.data, offset, shape: [1, length], range: map.range }, page.bytes, page.doc.precision));
  return out;
}

function drawTop() {
  const view = page.view, row = rowOf(view, view.row), uniform = uniformOf(view, view.row);
  say("h-top", view.rows === 1 && !view.isWeight ? `Largest values: ${mapTitle(view.map.name)}`
    : `Largest ${view.isWeight ? "weights" : "values"} of ‘${view.q.labels[view.row] ?? ""}’`);
  const last = view.map.triangle ? Math.max(...view.q.groups[view.row] || [0]) : Infinity;
  const best = topK(view.signed ? row.map(Math.abs) : row, 10).filter((s) => view.k.groups[s][0] <= last);
  const zero = SPECIAL.test(view.k.raw[0]) ? ` (${view.k.raw[0]} is 0)` : "";
  const body = best.map((s, i) => make("tr", {}, cell(i + 1), cell(view.k.labels[s], { dir: "auto" }), cell(unique([view.k.groups[s][0], view.k.groups[s].at(-1)]).join("–")),
    cell(digits(row[s])),
    ...(view.isWeight ? [digits, (even) => `${digits(row[s] / even)} ×`] : [])
      .map((text) => cell(text(uniform * view.k.groups[s].length)))));
  $("top").replaceChildren(
    view.isWeight ? "" : make("caption", { textContent: "These values have no unit: compare them with each other." }),
    headRow("#", "token", `position${zero}`, ...(view.isWeight ? ["weight", "uniform", "weight / uniform"] : ["value"])),
    make("tbody", {}, ...body));
}

const headRow = (...names) => make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col", textContent: name }))));

/** Button that shows the map of a layer and head. */
function headButton(map, ...more) {
  const place = [map.layer === null ? "" : `layer ${map.layer}`, map.head === null ? "mean" : `head ${map.head}`].join(" ");
  return makeButton(more.length ? "" : place.trim(), () => {
    update({ map: map.name, layer: map.layer, head: map.head });
    const shown = $($("p-image").hidden ? "matrix" : "picture");
    shown.closest("section").scrollIntoView();
    shown.focus({ preventScroll: true });
  }, ...more);
}

/** True if a head follows a pattern: the rule of `head_label` for shares, else the side of uniform attention. */
const needed = (name, uniform) => (name in { entropy: 0, distance: 0 } ? uniform : (1 + uniform) / 2);
const follows = (name, [value, uniform]) => (name === "entropy" ? value < uniform
  : name === "distance" ? value > uniform : value >= needed(name, uniform));

function drawSummary() {
  const maps = headMaps().filter((map) => map.head !== null && map.stats);
  const rows = [];
  for (const [name, title] of Object.entries(STATS)) {
    const having = maps.filter((map) => map.stats[name] && map.stats[name][1] > 0);
    if (!having.length) continue;
    const isLow = name === "entropy";
    const best = having.reduce((one, map) => ((map.stats[name][0] > one.stats[name][0]) !== isLow ? map : one));
    const [value, uniform] = best.stats[name];
    rows.push(make("tr", {}, make("th", { scope: "row", textContent: isLow ? "most focused: lowest entropy in nats" : title }),
      make("td", {}, follows(name, best.stats[name]) ? "" : "none; nearest: ", headButton(best)), cell(digits(value)), cell(digits(uniform)),
      cell(digits(needed(name, uniform)))));
  }
  show("p-summary", rows.length && maps.length > 1);
  $("summary").replaceChildren(headRow("pattern", "head", "value", "uniform", "needed"), make("tbody", {}, ...rows));
}

function drawHeads() {
  const maps = headMaps().filter((map) => map.stats && Object.keys(map.stats).length);
  const key = [page.state.row, maps[0]?.name, page.state.model, ...page.sort].join();
  if (!show("p-heads", maps.length > 1) || page.drawn.heads === key) return;
  page.drawn.heads = key;
  const names = Object.keys(STATS).filter((name) => maps.some((map) => map.stats[name] && map.stats[name][1] > 0));
  const value = (map, name) => (name === "layer" ? (map.layer ?? 0) * 1000 + (map.head ?? -1)
    : name === "label" ? map.label || "" : (map.stats[name] || [-1])[0]);
  const [by, order] = page.sort;
  maps.sort((a, b) => (value(a, by) > value(b, by) ? order : value(a, by) < value(b, by) ? -order : 0));
  const head = ["layer", "label", ...names].map((name) => {
    const title = name === "layer" ? "head" : name === "first" ? "first token" : name;
    const button = makeButton(`${title}${by === name ? (order > 0 ? " ↑" : " ↓") : ""}`, () => {
      page.sort = [name, by === name ? -order : name === "layer" || name === "label" ? 1 : -1];
      drawHeads();
      $("heads").querySelectorAll("th button")[["layer", "label", ...names].indexOf(name)].focus();
    });
    const cell = make("th", { scope: "col", title: STATS[name] || "" }, button);
    if (by === name) cell.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
    return cell;
  });
  $("heads").replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...maps.map((map) => make("tr", {},
    make("td", {}, headButton(map)), cell(map.label || "–"),
    ...names.map((name) => cell(map.stats[name] ? `${digits(map.stats[name][0])} (${digits(map.stats[name][1])})` : "–"))))));
}

/** Thumbnails of all heads; each is drawn when it comes into sight. */
function drawThumbs() {
  const maps = headMaps(), state = page.state, image = root().image;
  const onGrid = Boolean(image) && maps[0] && maps[0].keys === "patches" && maps[0].name !== "rollout";
  const query = onGrid ? Math.min(state.q, maps[0].shape[0] - 1) : 0;
  const key = [state.row, maps[0]?.name, state.model, state.scale, onGrid ? query : ""].join();
  if (!show("p-thumbs", !(maps.filter((map) => map.head !== null).length < 2 || state.model === 2))) return;
  const isChosen = (map) => map.name === state.map && map.layer === state.layer && map.head === state.head;
  if (page.drawn.thumbs === key) {
    page.thumbs.forEach(([map, button]) => button.setAttribute("aria-current", String(isChosen(map))));
    return;
  }
  page.drawn.thumbs = key;
  say("h-thumbs", `All heads: ${mapTitle(maps[0].name)}`);
  page.thumbs = [];
  if (page.watch) page.watch.disconnect();
  page.watch = new IntersectionObserver((entries) => entries.filter((one) => one.isIntersecting).forEach((one) => {
    page.watch.unobserve(one.target);
    one.target.draw();
  }), { rootMargin: "200px" });
  $("thumbs").replaceChildren(...unique(maps.map((map) => map.layer)).map((layer) => make("div", { className: "layer" },
    make("b", { textContent: layer === null ? "all" : `layer ${layer}` }),
    ...maps.filter((map) => map.layer === layer && map.head !== null).map((map) => {
      const more = { ariaLabel: `layer ${layer} head ${map.head}${map.label ? `, ${map.label}` : ""}`, ariaCurrent: String(isChosen(map)) };
      const button = headButton(map, more, make("canvas", { width: 1, height: 1 }), `${map.head}${map.label ? `: ${map.label}` : ""}`);
      button.draw = () => drawThumb(button.firstChild, map, onGrid ? query : null);
      page.thumbs.push([map, button]);
      page.watch.observe(button);
      return button;
    }))));
  say("thumbs-hint", onGrid
    ? "Each picture shows the attention of the chosen patch or word."
    : "A diagonal line is a head that attends to its own position or beside it, a vertical line one that always attends to the same token.");
}

function drawThumb(canvas, map, query) {
  const image = root().image;
  const [rows, columns] = query === null ? map.shape : image.grid;
  const data = query === null ? expand(map, page.bytes, page.doc.precision) : expandRow(map, query).subarray(image.prefix);
  const scale = { signed: (map.range || [0])[0] < 0, limit: page.state.scale === "one" ? 1 : largest(data) };
  Object.assign(canvas, { width: columns, height: rows }).getContext("2d").drawImage(pixels(rows, columns, (i) => shade(scale, data[i])), 0, 0);
}

function drawSteps() {
  const steps = list("steps"), state = page.state;
  if (!show("p-steps", steps.length)) return;
  const step = steps[state.step], isMasked = step.kind === "masked", tokens = root().tokens[step.list];
  const before = readable(tokens.slice(Math.max(0, step.token - 8), step.token));
  const after = isMasked ? ` ${readable(tokens.slice(step.token + 1, step.token + 7))} …` : "";
  say("h-steps", isMasked ? "Masked positions: what the model would put there" : "Generation, step by step");
  $("step").max = steps.length;
  $("step").value = state.step + 1;
  $("step").setAttribute("aria-valuetext", `${state.step + 1} of ${steps.length}: ${visible(step.chosen)}`);
  say("play", page.timer ? "Stop" : "Play");
  const most = steps.reduce((one, other, i) => (other.entropy > steps[one].entropy ? i : one), 0);
  say("step-text", `Step ${state.step + 1} of ${steps.length}: … ${before} `
    + `[${plainPiece(step.chosen)}]${after} — ${step.truth !== undefined ? "true" : isMasked ? "most probable" : "chosen"} token with probability `
    + `${digits(step.probability)}; uncertainty ${digits(step.entropy)} nats. `
    + `Least sure: step ${most + 1} (‘${plainPiece(steps[most].chosen)}’, ${digits(steps[most].entropy)} nats).`);
  $("alternatives").replaceChildren(...bars(step.top.map(([word, p]) => [visible(word), p, word === step.chosen])));
  $("entropies").replaceChildren(barChart(steps.map((one) => one.entropy), state.step,
    (i) => `step ${i + 1}, ‘${visible(steps[i].chosen)}’: ${digits(steps[i].entropy)} nats`, goToStep));
  if (show("lens-box", (step.lens || []).length)) {
    const ranks = step.lens.map((rank) => rank + 1);
    $("lens").replaceChildren(plot({ title: "rank", x: [...ranks.keys()], y: ranks, log: true, xlabel: "after layer",
      ylabel: "rank" }), hint(`Ranks: ${ranks.join(", ")}.`));
  }
}

/** Bar of a share in [0, 1]. */
function bar(share) {
  const element = make("i");
  element.style.width = `${(100 * share).toFixed(2)}%`;
  return element;
}

/** Items of a list with a label, a bar and a number; labels and shares in [0, 1]. `act`: function of the index of a label. */
function bars(items, act = null) {
  return items.map(([label, share, isChosen], i) => make("li", { className: isChosen ? "chosen" : "" },
    make("span", { dir: "auto" }, act ? makeButton(label, () => act(i), { ariaCurrent: String(isChosen) }) : label),
    make("div", {}, bar(share)), make("span", { textContent: digits(share) })));
}

/** Plot of one or several series with the same title; `log`: logarithmic y axis that begins with 1 at the top. */
function plot(...series) {
  const width = 340, height = 190, [first] = series, all = series.flatMap((one) => one.y), xs = series.flatMap((one) => one.x);
  const x0 = Math.min(...xs), x1 = Math.max(...xs), high = Math.max(...all, first.log ? 10 : 1e-9);
  const low = Math.min(0, ...all);
  const x = (value) => 50 + (width - 64) * (value - x0) / (x1 - x0 || 1);
  const y = (value) => (first.log ? 12 + 130 * Math.log(Math.max(1, value)) / Math.log(high) : 142 - 130 * (value - low) / (high - low || 1));
  const svg = makeSvg("svg", { width: "100%", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${first.title}: ${all.slice(0, 40).map(digits).join(", ")}` });
  svg.append(makeSvg("path", { d: `M50 8V146H${width - 10}`, class: "axis" }));
  series.forEach((one, n) => {
    if (!one.points) svg.append(makeSvg("path", { class: "series", "stroke-dasharray": ["none", "6 3", "2 3", "9 3 2 3"][n % 4],
      d: one.x.map((value, i) => `${i ? "L" : "M"}${x(value).toFixed(1)} ${y(one.y[i]).toFixed(1)}`).join("") }));
    one.x.forEach((value, i) => svg.append(makeSvg("circle", { cx: x(value), cy: y(one.y[i]), r: 3, class: "dot" },
      makeSvg("title", {}, `${one.label || ""} ${digits(value)}: ${digits(one.y[i])}`))));
  });
  const ticks = first.log ? unique([1, 10, 100, 1000, 10000, 100000].filter((tick) => tick <= high)) : [low, (low + high) / 2, high];
  svg.append(...ticks.map((tick) => note(46, y(tick) + 4, digits(tick), END)),
    ...unique([x0, x1]).map((tick) => note(x(tick), 162, digits(tick), MIDDLE)), note((width + 40) / 2, 182, first.xlabel || "", MIDDLE),
    note(12, 80, first.ylabel || "", { ...MIDDLE, transform: "rotate(-90 12 80)" }));
  return svg;
}

function drawCurves() {
  const shown = headMaps()[0]?.name, curves = list("curves").filter((one) => !one.map || one.map === shown);
  show("p-curves", curves.length);
  $("curves").replaceChildren(...unique(curves.map((one) => one.title)).map((title) => {
    const series = curves.filter((one) => one.title === title), labels = series.map((one) => one.label).filter(Boolean);
    const style = (i) => (series[i].points ? "dots" : ["solid", "dashed", "dotted", "dash-dotted"][i % 4]);
    const legend = series.length > 1 ? labels.map((label, i) => `${style(i)}: ${label}`).join("; ") : labels.join();
    return make("div", {}, make("h3", { textContent: title }), plot(...series), hint(legend));
  }));
}

function drawClasses() {
  const classes = list("classes");
  show("p-classes", classes.length);
  say("truth", root().truth == null ? "" : `True class: ${root().truth}; the most probable class is ${root().truth === root().classes[0][0] ? "right" : "wrong"}.`);
  $("classes").replaceChildren(...bars(classes.map(([label, share], i) => [label, share, i === 0])));
}

function drawBeams() {
  if (!show("p-beams", list("beams").length)) return;
  $("beams").replaceChildren(...list("beams").map(([text, score]) => make("li", { dir: "auto", textContent: `${text} (${digits(score)})` })));
}

function drawDocument() {
  const sentences = (root().text || {}).sentences || [];
  show("p-document", sentences.length);
  const tint = (one, word) => Math.sqrt(one.weight) * word;
  const limit = Math.max(1e-9, ...sentences.flatMap((one) => one.words.map(([, weight]) => tint(one, weight))));
  const most = Math.max(1e-9, ...sentences.map((one) => one.weight));
  $("document").replaceChildren(...sentences.map((one, i) => {
    const line = make("div", { dir: "auto" });
    one.words.forEach(([word, weight]) => line.append(
      tinted(visible(word), tint(one, weight) / limit, `weight in the sentence ${digits(weight)}`), " "));
    return make("div", { className: "sentence" }, make("div", {}, `${i + 1}: ${digits(one.weight)}`, bar(one.weight / most)), line);
  }));
}

/** Picture with the chosen patch, and the picture under the weights. */
function drawImage() {
  const view = page.view, image = root().image, onPatches = image && view.k.name === "patches";
  if (!show("p-image", onPatches)) return;
  const source = page.images[page.state.row], [gridRows, gridColumns] = image.grid;
  const width = Math.max(200, Math.min(380, $("p-image").clientWidth - 40)), height = width * image.height / image.width;
  const cell = [width / gridColumns, height / gridRows];
  const canSelect = view.q.name === "patches", isText = !canSelect && view.q.name !== "class";
  const row = rowOf(view, view.row), patches = row.subarray(image.prefix);
  const frame = (pen, index, paint) => {
    if (index >= 0) outline(pen, paint, 3, (index % gridColumns) * cell[0], Math.floor(index / gridColumns) * cell[1], ...cell);
  };
  const pens = ["picture", "overlay"].map((id) => prepare($(id), width, height));
  pens.forEach((pen) => { pen.imageSmoothingEnabled = image.width > 64; pen.drawImage(source, 0, 0, width, height); });
  if (canSelect) {
    pens[0].strokeStyle = "rgb(255 255 255 / 35%)";
    pens[0].lineWidth = 1;
    for (let i = 1; i < gridColumns; i++) pens[0].stroke(new Path2D(`M${i * cell[0]} 0V${height}`));
    for (let i = 1; i < gridRows; i++) pens[0].stroke(new Path2D(`M0 ${i * cell[1]}H${width}`));
    frame(pens[0], view.row - image.prefix, "#ff5a3c");
  }
  const limit = view.signed ? view.limit : page.state.scale === "one" ? 1 : Math.max(...patches, 1e-9);
  pens[1].imageSmoothingEnabled = page.state.smooth === 1;
  pens[1].drawImage(pixels(gridRows, gridColumns, (i) => [...shade({ signed: view.signed, limit }, patches[i] || 0), 180]), 0, 0, width, height);
  const best = topK(patches, 3), names = best.map((i) => `${view.k.labels[i + image.prefix]} (${digits(patches[i])})`).join("; ");
  for (const i of best) frame(pens[1], i, "#ffffff");
  frame(pens[1], view.column - image.prefix, "#ff5a3c");
  const uniform = uniformOf(view, view.row), share = patches.reduce((sum, one) => sum + one, 0);
  show("class-token", canSelect && image.prefix && view.rows > 1);
  const read = view.isWeight ? "the attention of the class token [CLS], whose result decides the class" : mapTitle(view.map.name);
  say("image-hint", canSelect
    ? `Left: click a patch${list("classes").length && image.prefix ? ", or take the class token [CLS], whose result decides the class" : ""}. `
      + `Right: ${view.isWeight ? "its attention" : "its value for each patch"}${view.signed ? "." : "; yellow is much, violet is little."}`
    : !isText ? `Right: ${read}; yellow is much, violet is little.`
    : "Choose a word or a step below: the right image shows its attention; yellow is much, violet is little.");
  if (root().hint) $("image-hint").textContent += ` ${root().hint}`;
  say("picture-text", canSelect ? `Chosen: ${view.q.labels[view.row]}` : "The picture");
  say("overlay-text", view.signed ? `From ${digits(-limit)} (blue) to ${digits(limit)} (orange)`
    : `Largest ${view.isWeight ? "weights" : "values"}: ${names}.`
      + (view.isWeight ? ` Uniform attention: ${digits(uniform)}. All patches together: ${digits(share)}`
      + `${image.prefix ? `; the rest goes to ${view.k.labels.slice(0, image.prefix).join(", ")}` : ""}.` : ""));
  describe("picture", `Picture of ${gridRows} times ${gridColumns} patches. ${$("picture-text").textContent}`);
  describe("overlay", $("overlay-text").textContent);
}

function drawAll() {
  settle();
  page.view = makeView();
  [drawSelects, drawProvenance, drawDocument, drawClasses, drawBeams, drawCurves, drawSteps].forEach((draw) => draw());
  const panels = ["p-now", "p-image", "p-text", "p-matrix", "p-lines", "p-top", "p-summary", "p-thumbs", "p-heads"];
  panels.forEach((id) => show(id, page.view));
  const draws = [drawNow, drawTop, drawImage, drawText, drawMatrix, drawLines, drawSummary, drawThumbs, drawHeads];
  if (page.view) draws.forEach((draw) => draw());
  $("toc").replaceChildren(...[...document.querySelectorAll("section:not([hidden])")]
    .map((section) => makeButton(section.dataset.name, () => section.scrollIntoView())));
}

// ------------------------------------------------------------------------------------------------------- 3 input
/** Change the state. A query that belongs to a step, and the step, are one choice. */
function update(changes) {
  const state = page.state, old = mapsOf(state.map)[0] || {};
  Object.assign(state, changes);
  if ("row" in changes) Object.assign(state, { q: -1, k: -1, step: 0 });
  const map = mapsOf(state.map)[0] || {};
  if (map.queries !== old.queries) state.q = -1;
  if (map.keys !== old.keys) state.k = -1;
  const step = list("steps").findIndex((one) => one.list === map.queries && one.query === state.q);
  if (step >= 0) state.step = step;
  drawAll();
  history.replaceState(null, "", `#${writeHash(page.state, DEFAULTS)}`);
}

/** Choose row t and column s of the view; null: the largest weight of the row. */
function choose(t, s) {
  const view = page.view;
  if (!view.rows || !view.columns) return;
  const clamp = (i, length) => Math.max(0, Math.min(length - 1, i));
  const q = view.q.groups[clamp(t, view.rows)][0], k = s === null ? -1 : view.k.groups[clamp(s, view.columns)][0];
  update({ q, k });
}

function goToStep(i) {
  const step = list("steps")[i];
  if (step) update({ step: i, ...(page.view?.q.name === step.list ? { q: step.query, k: -1 } : {}) });
}

function play() {
  if (page.timer) { clearInterval(page.timer); page.timer = null; drawSteps(); return; }
  const steps = list("steps").length;
  if (!steps) return;
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (page.state.step === steps - 1) goToStep(0);
  page.timer = setInterval(() => {
    goToStep(page.state.step + 1);
    if (page.state.step >= steps - 1) play();
  }, isCalm ? 2500 : 900);
  drawSteps();
}

/** The next of some values, or the one before. */
const neighbour = (values, value, by) => values[(values.indexOf(value) + by + values.length) % values.length];

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || $("help").open) return;
  const target = event.target, state = page.state, view = page.view, isFree = target === document.body || target.type === "checkbox";
  if (target.tagName === "SELECT" || target.type === "range" || (event.key === " " && ["INPUT", "BUTTON", "SUMMARY"].includes(target.tagName))) return;
  const arrows = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  const place = target.closest("#gate") ? "text" : !isFree ? target.id : root().image ? "picture" : "matrix";
  if (arrows && view && (view.rows > 1 || !isFree) && ["matrix", "picture", "text", "lines"].includes(place)) {
    event.preventDefault();
    if (place === "picture" && view.q.name === "patches") choose(view.row + arrows[0] * root().image.grid[1] + arrows[1], null);
    else if (place === "text" || place === "picture") choose(view.row + arrows[0] + arrows[1], null);
    else choose(view.row + arrows[0], arrows[1] ? view.column + arrows[1] : state.k < 0 ? null : view.column);
    return;
  }
  const actions = {
    "[": () => update({ layer: neighbour(page.layers, state.layer, -1) }),
    "]": () => update({ layer: neighbour(page.layers, state.layer, 1) }),
    ",": () => update({ head: neighbour(page.heads, state.head, -1) }),
    ".": () => update({ head: neighbour(page.heads, state.head, 1) }),
    r: () => toggleRollout(),
    w: () => wordsAvailable() && update({ words: 1 - state.words }),
    "?": () => $("help").showModal(),
    " ": () => list("steps").length && play(),
  };
  if (actions[event.key] && (view || event.key === "?")) {
    event.preventDefault();
    actions[event.key]();
  }
}

function toggleRollout() {
  const names = mapNames(), isOn = page.state.map === "rollout";
  if (!names.includes("rollout")) return;
  if (!isOn) page.before = page.state.map;
  update({ map: isOn ? page.before || names.find((name) => name !== "rollout") || "rollout" : "rollout" });
}

function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const fileName = (ending) => ["attention", `input${page.state.row + 1}`, page.state.map,
  page.state.layer === null ? "" : `layer${page.state.layer}`, page.state.head === null ? "mean" : `head${page.state.head}`]
  .filter(Boolean).join("-") + ending;

/** Cell of the matrix under the pointer, or null. */
function cellAt(event) {
  const { left, top, size, r, c } = page.matrix, box = $("matrix").getBoundingClientRect();
  const t = Math.floor((event.clientY - box.top - top) / size) + r[0], s = Math.floor((event.clientX - box.left - left) / size) + c[0];
  return t >= r[0] && t < r[1] && s >= c[0] && s < c[1] ? [t, s] : null;
}

function listen() {
  const state = page.state;
  for (const id of ["row", "model", "layer", "head", "map", "scale"]) {
    on(id, "change", () => {
      const value = $(id).value;
      update({ [id]: ["map", "scale"].includes(id) ? value : value === "mean" ? null : Number(value) });
    });
  }
  for (const id of ["words", "special", "marks", "smooth", "zoom", "together"]) {
    on(id, "change", () => update({ [id]: $(id).checked ? 1 : 0 }));
  }
  on("step", "input", () => goToStep(Number($("step").value) - 1));
  on("play", "click", play);
  on("class-token", "click", () => choose(0, null));
  on("matrix", "mousemove", (event) => {
    const cell = cellAt(event);
    say("hover", cell ? cellText(...cell) : "\u00a0");
  });
  on("matrix", "click", (event) => { const cell = cellAt(event); if (cell) choose(...cell); });
  const patchAt = (event) => {
    const box = event.target.getBoundingClientRect(), [rows, columns] = root().image.grid;
    const cut = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    return root().image.prefix + cut((event.clientY - box.top) / box.height, rows) * columns
      + cut((event.clientX - box.left) / box.width, columns);
  };
  on("picture", "click", (event) => { if (page.view.q.name === "patches") choose(patchAt(event), null); });
  on("overlay", "click", (event) => choose(page.view.row, patchAt(event)));
  on("csv", "click", () => save(fileName(".csv"), new Blob(
    [csvText(page.view.q.labels, page.view.k.labels, page.view.data)], { type: "text/csv" })));
  on("png", "click", () => (root().image && page.view.k.name === "patches" && page.view.rows > 64 ? $("overlay") : $("matrix"))
    .toBlob((blob) => save(fileName(".png"), blob)));
  on("help-open", "click", () => $("help").showModal());
  on(printing, "change", onPrint);
  on("theme", "click", () => { state.theme = isDark() ? "light" : "dark"; setTheme(); update({}); });
  on(document, "keydown", onKey);
  on(window, "hashchange", () => {
    Object.assign(state, DEFAULTS, readHash(location.hash, DEFAULTS));
    setTheme();
    drawAll();
  });
  let pending = 0, width = innerWidth;
  on(window, "resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(drawAll);
  });
}

const isDark = () => !printing.matches && (page.state.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

/** Light colours and all that a click would show, while the page is printed. */
const printing = matchMedia("print");
function onPrint() {
  const details = document.querySelector("details");
  details.open = printing.matches;
  setTheme();
  drawAll();
  if (printing.matches) page.thumbs.forEach(([, button]) => button.draw());
}

function setTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  say("theme", isDark() ? "Light colours" : "Dark colours");
}

function fail(error) {
  show("error", true);
  say("error", `The page could not be drawn: ${error && error.message ? error.message : error}`);
}

async function main() {
  setTheme();
  page.doc = JSON.parse($("meta").textContent);
  page.bytes = decodeBase64($("maps").textContent);
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser cannot unpack the maps; use Chromium 80, Firefox 113, Safari 16.4 or later");
  }
  page.bytes = await inflate(page.bytes);
  say("maps", "");
  page.images = await Promise.all(page.doc.rows.map(async ({ image }) => {
    if (!image) return null;
    const picture = new Image();
    picture.src = image.src;
    await picture.decode();
    return picture;
  }));
  const { notice } = page.doc;
  show("notice", (notice || []).length);
  $("notice").replaceChildren(...(notice || []).map((text) => make("li", { textContent: text })));
  Object.assign(page.state, readHash(location.hash, DEFAULTS));
  setTheme();
  $("controls").hidden = $("panels").hidden = false;
  listen();
  drawAll();
  if ($("model-values")) startLive();
  document.documentElement.dataset.ready = "yes";
}

on(window, "error", (event) => fail(event.error || event.message));
on(window, "unhandledrejection", (event) => fail(event.reason));
main().catch(fail);
