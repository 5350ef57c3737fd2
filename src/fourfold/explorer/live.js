"use strict";
// The panel of a live page: it runs the model of the page in a worker (engine.js) on the reader's text or image, without and with
// heads that are switched off. Both runs are an input of the page with two models, so all panels of look.js show them.

// `isStale`: the input of the panel has not been run yet, or was refused.
const live = { edits: {}, turn: 0, asked: 0, waiting: new Map(), ready: null, port: null, file: null, before: null, timer: 0, isStale: true };

/** Text of the script of the worker. */
const workerText = () => `${[decodeBase64, inflate, half, engine].join("\n")}\nengine(self);`;

// ------------------------------------------------------------------------------------------------------- worker
/** Port of the engine: a worker, or the page itself where workers are forbidden. */
function openPort() {
  try {
    return new Worker(URL.createObjectURL(new Blob([workerText()], { type: "text/javascript" })));
  } catch {
    const { port1, port2 } = new MessageChannel();
    engine(port1);
    return port2;
  }
}

function onAnswer({ data }) {
  if (data.type === "progress") { say("live-state", `Unpacking the weights: ${data.done} of ${data.total} tensors.`); return; }
  const { resolve, reject } = live.waiting.get(data.id);
  live.waiting.delete(data.id);
  if (data.type === "error") reject(new Error(data.message));
  else resolve(data);
}

/** Answer of the engine to a message. */
function ask(message) {
  const id = ++live.asked;
  return new Promise((resolve, reject) => {
    live.waiting.set(id, { resolve, reject });
    live.port.postMessage({ id, ...message });
  });
}

/** Give the weights to the engine, at the first use of the panel, and empty their element. */
async function loadModel() {
  live.port = openPort();
  live.port.onmessage = onAnswer;
  live.port.onerror = (event) => say("live-state", `The worker failed: ${event.message}`);
  say("live-state", "Unpacking the weights.");
  await ask({ type: "load", index: live.values.index, data: $("weights").textContent });
  $("weights").textContent = "";
}

// ------------------------------------------------------------------------------------------------------- inputs
const nameOf = (id) => live.values.names[id] ?? "";
const isPair = () => Boolean(live.values.index.model.src_embed);
const isImage = () => !live.values.tokenizer;

/** Input of the engine for the text of the panel, and the tokens that the page shows. */
function readText() {
  const { tokenizer, before, after } = live.values, { ids } = encode(tokenizer, $("live-text").value);
  const whole = [...before, ...(ids.length || isPair() ? ids : live.values.ends.slice(0, 1)), ...after];
  const title = $("live-text").value;
  if (isPair()) return { input: { source: whole }, tokens: { source: whole }, title };
  const masks = whole.flatMap((id, i) => (id === tokenizer.mask ? [i] : []));
  if (tokenizer.mask !== null && !masks.length) throw new Error("Write [MASK] where the model is to guess.");
  return { input: { ids: whole }, tokens: { tokens: whole }, rows: tokenizer.mask === null ? [whole.length - 1] : masks, title };
}

/** Image { width, height, data } of RGBA bytes of a file; some browsers add noise against fingerprinting, which is noticed. */
async function decodeFile(file) {
  const bitmap = await createImageBitmap(await withoutExif(file), { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  const pen = make("canvas", { width: bitmap.width, height: bitmap.height }).getContext("2d", { willReadFrequently: true });
  const known = new ImageData(Uint8ClampedArray.from({ length: 256 }, (_, i) => (i % 4 === 3 ? 255 : i)), 8, 8);
  pen.putImageData(known, 0, 0);
  const isExact = pen.getImageData(0, 0, 8, 8).data.every((value, i) => value === known.data[i] || bitmap.width < 8 || bitmap.height < 8);
  pen.clearRect(0, 0, bitmap.width, bitmap.height);
  pen.drawImage(bitmap, 0, 0);
  if (!isExact) throw new Error("This browser changes the pixels that a page reads, so the model would see another image.");
  const image = pen.getImageData(0, 0, bitmap.width, bitmap.height);
  // A canvas stores colors that are multiplied by the opacity.
  if (image.data.some((value, i) => i % 4 === 3 && value < 255)) throw new Error("This image is transparent, so a page cannot read its exact colors.");
  return image;
}

/** Input of the engine for an image file of the reader, or for the chosen picture of the page. */
async function readPicture() {
  const number = Number($("live-picture").value), row = page.doc.rows[number], { image } = row;
  if (!live.file) {
    const bytes = decodeBase64(live.values.pictures[number]);
    return { input: { pixels: normalized(bytes, live.values) }, image, picture: page.images[number], title: row.title, tokens: {} };
  }
  const levels = preprocess(await decodeFile(live.file), live.values), channels = live.values.mean.length, [height, width] = live.values.size;
  const picture = pixels(height, width, (i) => Array.from({ length: 3 }, (_, c) => levels[i * channels + Math.min(c, channels - 1)]));
  return { input: { pixels: normalized(levels, live.values) }, image, picture, title: live.file.name, tokens: {}, levels };
}

/** Run the model on an image file. */
function useFile(file) {
  if (!file) return;
  live.file = file;
  refresh(true);
}

// --------------------------------------------------------------------------------------------------------- runs
/** Probabilities of a row of logits. */
function probabilities({ logits, width }, row) {
  const z = logits.subarray(row * width, (row + 1) * width), most = z.reduce((a, b) => Math.max(a, b)), exp = z.map((x) => Math.exp(x - most));
  const sum = exp.reduce((a, b) => a + b);
  return exp.map((x) => x / sum);
}

/** Run the model without edits, after it has written the target of a source. */
async function runBefore(given) {
  if (isPair()) {
    const { start, ends } = live.values, options = { start, ends, maxNew: Math.min(live.values.index.max_len, 2 * given.input.source.length + 10) };
    const found = await ask({ type: "generate", input: given.input, options });
    if (found.type === "stopped") return found;
    given.tokens = { ...given.tokens, target: found.ids, inputs: [start, ...found.ids.slice(0, -1)] };
    given.input = { ...given.input, target: given.tokens.inputs };
  }
  return ask({ type: "run", input: given.input, rows: given.rows, maps: true });
}

/** What the panel compares: tokens or classes in rows of the logits; those with `counts` are the prediction itself. */
function watched(given, before) {
  const names = live.values.classes;
  if (given.tokens.target) return given.tokens.target.map((id, row) => ({ row, id, label: nameOf(id), counts: true }));
  return (isImage() ? [0] : given.rows).flatMap((_, row) => topK(probabilities(before, row), isImage() || given.rows.length < 2 ? 5 : 3)
    .map((id, n) => ({ row, id, label: isImage() ? names[id] : nameOf(id), counts: n === 0 })));
}

/** Mean logarithm of the probability of what the unedited model predicts. */
function score(result) {
  const main = live.watched.filter((one) => one.counts);
  return main.reduce((sum, { row, id }) => sum + Math.log(probabilities(result, row)[id]), 0) / main.length;
}

const isOff = (name) => name in live.edits;
const editNames = () => Object.keys(live.edits);

/** Run the input of the panel, if it `isNew`, and the edits; a later call ends an earlier one. */
async function refresh(isNew, spoken = "") {
  const turn = ++live.turn;
  live.isStale ||= isNew;
  clearTimeout(live.timer);
  try {
    await (live.ready ??= loadModel());
    if (turn !== live.turn) return;
    if (live.isStale) {
      const given = isImage() ? await readPicture() : readText(), before = await runBefore(given);
      if (turn !== live.turn) return;
      Object.assign(live, { given, before, watched: watched(given, before), scores: new Map(), isStale: false });
    }
    let after = null, text = "";
    if (editNames().length) {
      after = await ask({ type: "run", input: live.given.input, rows: live.given.rows, edits: live.edits, maps: true });
      if (turn !== live.turn) return;
      text = isPair() ? await written(live.edits) : "";
      if (turn !== live.turn) return;
    }
    live.after = after;
    showRun(after, text, spoken);
  } catch (error) {
    if (turn === live.turn) say("live-state", error.message);
  }
}

/** Text that an encoder-decoder writes under edits. */
async function written(edits) {
  const { start, ends } = live.values, { source, target } = live.given.input;
  const { ids } = await ask({ type: "generate", input: { source }, edits, options: { start, ends, maxNew: target.length + 20 } });
  return ids ? decode(live.values.tokenizer, ids) : "";
}

/** Switch off each head alone, and write the change of the prediction beside it. */
async function tryAll() {
  const ready = live.isStale ? refresh(true) : null, started = live.turn;
  await ready;
  if (live.isStale || started !== live.turn) return; // refused, or the reader went on
  const turn = ++live.turn, whole = score(live.before);
  for (const button of $("live-heads").querySelectorAll("button")) {
    const edits = { [button.dataset.name]: { operation: "zero" } };
    const found = await ask({ type: "run", input: live.given.input, rows: live.given.rows, edits });
    if (turn !== live.turn) return;
    live.scores.set(button.dataset.name, score(found) - whole);
    drawButtons();
  }
  const worst = [...live.scores].reduce((one, other) => (other[1] < one[1] ? other : one));
  const said = worst[1] < 0 ? `The prediction needs ${spokenName(worst[0])} most: without it` : `No head is needed: without ${spokenName(worst[0])}`;
  say("live-state", `${said}, the mean log-probability changes by ${digits(worst[1])}.`);
}

// -------------------------------------------------------------------------------------------------------- drawing
/** "Head 3 of layer 2 (cross, decoder)" for decoder.2.cross.head.3. */
function spokenName(name) {
  const [head, , part, layer, stack] = name.split(".").reverse();
  return `head ${head} of layer ${layer}${stack ? ` (${part}, ${stack})` : ""}`;
}

/** Entries of the maps of a run, as those that Python stores. */
function mapEntries(maps, model) {
  return Object.entries(maps).flatMap(([path, { shape: [heads, rows, columns], weights }]) => {
    const [part, layer, stack] = path.split(".").reverse(), name = !stack ? "self" : part === "cross" ? "cross" : stack;
    const [queries, keys] = { self: isImage() ? ["patches", "patches"] : ["tokens", "tokens"], encoder: ["source", "source"],
      decoder: ["target", "inputs"], cross: ["target", "source"] }[name];
    const size = rows * columns, mean = new Float32Array(size);
    weights.forEach((weight, i) => { mean[i % size] += weight / heads; });
    const triangle = name === "decoder" || (name === "self" && live.values.index.causal);
    return [mean, ...Array.from({ length: heads }, (_, head) => weights.subarray(head * size, (head + 1) * size))].map((data, i) => ({
      name, model, layer: Number(layer), head: i ? i - 1 : null, queries, keys, shape: [rows, columns], offset: 0, triangle, stats: {}, label: null, data }));
  });
}

/** Show the runs before and after the edits, as one input of the page. */
function showRun(after, text, spoken) {
  const { given, before } = live, stored = page.doc.rows[0].tokens, tokens = { patches: stored.patches, class: stored.class };
  if (!isImage()) for (const [name, ids] of Object.entries(given.tokens)) tokens[name] = ids.map(nameOf);
  const special = new Set(live.values.tokenizer?.special), mask = live.values.tokenizer?.mask;
  const specialOf = (ids) => ids.flatMap((id, i) => (special.has(id) && id !== mask ? [i] : []));
  const row = {
    title: `live: ${given.title}`, image: given.image || null, query: given.image ? page.doc.rows[0].query : null,
    tokens, words: {}, special: Object.fromEntries(Object.entries(given.tokens).map(([name, ids]) => [name, specialOf(ids)])),
    steps: [], classes: [], curves: [], maps: [...mapEntries(before.maps, 0), ...(after ? mapEntries(after.maps, 1) : [])],
    isEdited: Boolean(after), provenance: { ...page.doc.provenance, name: "unedited" },
  };
  if (live.row === undefined) live.row = page.doc.rows.length;
  page.doc.rows[live.row] = row;
  page.images[live.row] = given.picture;
  page.cache.clear();
  page.drawn = {};
  if (page.state.row === live.row) drawAll();
  else update({ row: live.row });
  drawTable(after, text);
  drawButtons();
  const change = ({ row: r, id }) => (after ? Math.abs(probabilities(after, r)[id] - probabilities(before, r)[id]) : 0);
  const one = live.watched.filter(({ counts }) => counts).reduce((most, other) => (change(other) > change(most) ? other : most));
  const [p, q] = [before, after || before].map((run) => digits(probabilities(run, one.row)[one.id]));
  const label = `‘${visible(one.label)}’`, begin = spoken ? `${spoken[0].toUpperCase()}${spoken.slice(1)}: ` : "";
  say("live-state", `${begin}${label} ${after || spoken ? `${q}, before ${p}` : p}`);
}

function drawTable(after, text) {
  const rows = live.watched.map(({ row, id, label }) => {
    const p = probabilities(live.before, row)[id], q = after ? probabilities(after, row)[id] : null;
    const numbers = q === null ? [digits(p), "–", "–"] : [p, q, q - p].map(digits);
    return make("tr", {}, cell(visible(label), { dir: "auto" }), ...numbers.map((one) => cell(one)));
  });
  $("live-table").replaceChildren(make("caption", { textContent: isPair() ? "Probability of each target token" : "Probabilities" }),
    headRow(isImage() ? "class" : "token", "before", "with edits", "change"), make("tbody", {}, ...rows));
  const first = isPair() ? decode(live.values.tokenizer, live.given.tokens.target) : "";
  say("live-written", !isPair() ? "" : `Translation (greedy): ${first}${after ? ` — with edits: ${text || "(empty)"}` : ""}`);
  const pairs = editNames().map((name) => `"${name}": zero`).join(", ");
  say("live-python", editNames().length ? `from fourfold.edits import zero\nwith fourfold.edit(model, {${pairs}}):\n    ...` : "# no edits");
}

/** State of the buttons of the heads. */
function drawButtons() {
  for (const button of $("live-heads").querySelectorAll("button")) {
    const { name } = button.dataset, change = live.scores?.get(name);
    button.setAttribute("aria-pressed", String(isOff(name)));
    button.textContent = name.split(".").at(-1) + (change === undefined ? "" : ` (${digits(change)})`);
  }
}

/** Switch a head off or on. */
function toggle(name) {
  if (isOff(name)) delete live.edits[name];
  else live.edits[name] = { operation: "zero" };
  drawButtons();
  refresh(false, `${spokenName(name)} ${isOff(name) ? "off" : "on"}`);
}

/** Name of the edit of the head that the page shows, or null. */
function chosenHead() {
  const { map, layer, head } = page.state, part = map === "cross" ? "cross" : "self";
  const stack = map === "self" ? "" : map === "cross" ? "decoder." : `${map}.`, name = `${stack}${layer}.${part}.head`;
  return head !== null && name in live.values.index.edits ? `${name}.${head}` : null;
}

/** Continue the text of a causal LM, greedily or at random. */
async function writeOn() {
  const turn = ++live.turn;
  clearTimeout(live.timer);
  await (live.ready ??= loadModel());
  const { input } = readText(), { ends, tokenizer } = live.values, temperature = Number($("live-heat").value) || 0;
  const { ids } = await ask({ type: "generate", input, edits: live.edits, options: { ends, temperature, maxNew: 20, seed: Date.now() % 2 ** 32 } });
  if (turn !== live.turn || !ids) return;
  const [old, whole] = [input.ids, [...input.ids, ...ids]].map((some) => decode(tokenizer, some)); // the reader's text stays
  $("live-text").value += whole.startsWith(old) ? whole.slice(old.length) : ` ${decode(tokenizer, ids)}`;
  await refresh(true);
}

// ---------------------------------------------------------------------------------------------------------- panel
function makeHeads() {
  const rows = Object.entries(live.values.index.edits).filter(([name]) => name.endsWith(".head")).map(([name, size]) => {
    const [, part, layer, stack] = name.split(".").reverse(), title = stack ? `${stack} ${layer}, ${part}` : `layer ${layer}`;
    return make("tr", {}, make("th", { scope: "row", textContent: title }), ...Array.from({ length: size }, (_, i) => {
      const button = makeButton(String(i), () => toggle(`${name}.${i}`), { className: "head", title: `switch off ${spokenName(`${name}.${i}`)}` });
      button.dataset.name = `${name}.${i}`;
      return make("td", {}, button);
    }));
  });
  const most = Math.max(...rows.map((row) => row.children.length)) - 1;
  return make("table", { id: "live-heads" }, headRow("layer", ...Array.from({ length: most }, (_, i) => `head ${i}`)), make("tbody", {}, ...rows));
}

function makeInput() {
  if (isImage()) {
    const pictures = page.doc.rows.flatMap((row, i) => (live.values.pictures[i] ? [make("option", { value: i, textContent: row.title })] : []));
    const select = make("select", { id: "live-picture" }, ...pictures);
    on(select, "change", () => { live.file = null; refresh(true); });
    const file = make("input", { id: "live-file", type: "file", accept: "image/*" });
    on(file, "change", () => useFile(file.files[0]));
    return make("span", { className: "buttons" }, make("label", {}, "Picture ", select), make("label", {}, "or an image file, also by drag and drop ", file));
  }
  const { tokenizer, ids } = live.values, parts = [[]]; // the first input of the page, without the masks that divide it
  for (const id of ids) if (id === tokenizer.mask) parts.push([]); else parts.at(-1).push(id);
  const value = parts.map((part) => decode(tokenizer, part)).join(" [MASK] ").trim();
  const area = make("textarea", { id: "live-text", rows: 2, value, dir: "auto" });
  on(area, "input", () => { live.isStale = true; clearTimeout(live.timer); live.timer = setTimeout(() => refresh(true), 150); });
  return make("label", { className: "grow" }, `Text${tokenizer.mask === null ? "" : ", with [MASK] where the model is to guess"} `, area);
}

/** Add the panel to the page, if there is a model. */
function startLive() {
  live.values = JSON.parse($("model-values").textContent);
  if (isImage()) Object.assign(live.values, transformOf(live.values.transform, live.values.index.model.embed));
  const [kind] = Object.values(live.values.index.tensors).map((one) => one.kind).filter((one) => one !== "float32");
  const rounded = `The weights are rounded to ${kind === "int8" ? "8 bits" : "half precision"}, for the stored maps, too.`;
  $("help").querySelector("tbody").append(make("tr", {}, make("th", { scope: "row", textContent: "x" }), cell("switch the shown head off or on")));
  const { compare } = page.doc, canWrite = live.values.index.causal && !isPair();
  Object.defineProperty(page.doc, "compare", { get: () => (root().isEdited ? { title: "edited" } : compare) });
  const section = make("section", { id: "p-live", className: "wide" }, make("h2", { id: "h-live", textContent: "Try it: the model runs in this page" }),
    hint("Change the text and switch heads off. The panels below then show the attention of this run; choose “difference” to see what changed. "
      + `${rounded} Your input and edits are not part of the address.`),
    make("p", { className: "buttons" }, makeInput(), makeButton("Run", () => refresh(true), { id: "live-run" }),
      makeButton("Try each head", () => tryAll().catch(fail), { id: "live-all" }),
      makeButton("All heads on", () => { live.edits = {}; drawButtons(); refresh(false, "all heads on"); }, { id: "live-reset" }),
      ...(canWrite ? [makeButton("Continue the text", () => writeOn().catch(fail), { id: "live-write" }),
        make("label", {}, "Temperature ", make("input", { id: "live-heat", type: "number", min: 0, max: 5, step: 0.1, value: 0 }))] : [])),
    make("p", { id: "live-state", role: "status", textContent: "Press Run, or change the input." }),
    make("div", { className: "columns" },
      make("div", { className: "scroll", tabIndex: 0, role: "group", ariaLabel: "Heads" }, makeHeads()),
      make("div", { className: "scroll tall", tabIndex: 0, role: "group", ariaLabel: "Before and after" },
        make("p", { id: "live-written", dir: "auto" }), make("table", { id: "live-table" }))),
    make("h3", { textContent: "The same in Python" }), make("pre", { id: "live-python", className: "scroll", tabIndex: 0 }));
  on(section, "dragover", (event) => event.preventDefault());
  on(section, "drop", (event) => { event.preventDefault(); if (isImage()) useFile(event.dataTransfer.files[0]); });
  section.dataset.name = "Try it";
  section.setAttribute("aria-labelledby", "h-live");
  $("panels").prepend(section);
  on(document, "keydown", (event) => {
    const isTyped = ["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName) || event.ctrlKey || event.altKey || event.metaKey || $("help").open;
    if (event.key === "x" && !isTyped && chosenHead()) toggle(chosenHead());
  });
  drawAll();
}
