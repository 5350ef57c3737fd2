"use strict";
// The model of a live page: the forward pass of causal LMs, masked LMs, encoder-decoders and Vision Transformers.
//
// `engine` reads the index and the bytes that weights.py wrote, and knows nothing of the document, so that its text can be
// the script of a worker. It needs decodeBase64, inflate and half of pure.js. The families differ in data
// only: the index is the tree of the modules of the model in Python, with the same names. Sums are in double precision,
// tensors in Float32Array, row by row.
//
// Messages to the engine, all with a number `id`; a run stops if a message with another id arrives before its end:
//   { id, type: "load", index, data }                data: text, base64 of zlib of the bytes
//   { id, type: "run", input, edits, rows, maps }    one forward pass
//   { id, type: "generate", input, edits, options }  continue ids, or write a target
// input: { ids, segments } of a language model, { source, target } of an encoder-decoder, or { pixels } (C, H, W) of a ViT.
// edits: { name: { operation: "zero" | "scale" | "hide" | "drop", factor, keys, queries } }, as fourfold.edits.dump_edits.
// rows: positions whose logits are wanted; left out for all. maps: true for the attention weights.
// options: { maxNew, temperature (0: the most probable token), topK, seed, ends, start }.
// Messages of the engine: { id, type: "progress", done, total }, { id, type: "loaded" },
//   { id, type: "result", logits, width, maps }      maps: { "decoder.0.cross": { shape: [H, Tq, Tk], weights } }
//   { id, type: "result", ids, probabilities }       of "generate": the new tokens
//   { id, type: "stopped" } and { id, type: "error", message }.

/** Engine that answers the messages of `port`, such as the scope of a worker, and looks for new ones every `pause` milliseconds;
 * its functions are returned for direct calls. */
function engine(port, pause = 30) {
  const PARTS = [["attn", "self"], ["cross_attn", "cross"], ["ff", "ff"]];
  const ACTIVATIONS = {
    relu: (x) => Math.max(0, x),
    gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
    gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
    quick_gelu: (x) => x / (1 + Math.exp(-1.702 * x)),
    silu: (x) => x / (1 + Math.exp(-x)),
  };
  let index = null, tensors = {}, newest = 0;

  /** Error function, to 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26). */
  function erf(x) {
    const t = 1 / (1 + 0.3275911 * Math.abs(x));
    const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return Math.sign(x) * (1 - series * Math.exp(-x * x));
  }

  // ------------------------------------------------------------------------------------------------------- weights
  /** Steps of unpacking the tensors of an index from bytes; each yields the number of tensors so far. */
  function* load(given, bytes) {
    [index, tensors] = [given, {}];
    const halves = new Float32Array(65536).map((_, bits) => half(bits));
    const floats = (at, count) => new Float32Array(bytes.slice(at, at + 4 * count).buffer);
    const readers = {
      float32: (at, size) => ({ values: floats(at, size) }),
      float16: (at, size) => ({ values: new Float32Array(size).map((_, i) => halves[bytes[at + i] | (bytes[at + size + i] << 8)]) }),
      int8: (at, size, rows) => ({ scales: floats(at, rows), values: new Int8Array(bytes.slice(at + 4 * rows, at + 4 * rows + size).buffer) }),
    };
    for (const [name, { kind, shape, offset }] of Object.entries(index.tensors)) {
      const size = shape.reduce((product, one) => product * one, 1), rows = shape[0];
      tensors[name] = { rows, columns: size / rows, scales: null, ...readers[kind](offset, size, rows) };
      yield Object.keys(tensors).length;
    }
  }

  /** Value i of a row of a matrix. */
  const at = (matrix, row, i) => matrix.values[row * matrix.columns + i] * (matrix.scales ? matrix.scales[row] : 1);

  /** Linear layer for the rows of x (T, K): (T, N). Four rows are read together, as the weights come from memory once. */
  function linear(x, layer) {
    const { values, scales, rows, columns } = tensors[layer.weight], bias = layer.bias ? tensors[layer.bias].values : null;
    const count = x.length / columns, out = new Float32Array(count * rows);
    for (let n = 0; n < rows; n++) {
      const w = n * columns, scale = scales ? scales[n] : 1, shift = bias ? bias[n] : 0;
      let t = 0;
      for (; t + 3 < count; t += 4) {
        const p = t * columns, q = p + columns, r = q + columns, s = r + columns;
        let a = 0, b = 0, c = 0, d = 0;
        for (let i = 0; i < columns; i++) {
          const value = values[w + i];
          a += value * x[p + i];
          b += value * x[q + i];
          c += value * x[r + i];
          d += value * x[s + i];
        }
        [a, b, c, d].forEach((sum, j) => { out[(t + j) * rows + n] = sum * scale + shift; });
      }
      for (; t < count; t++) {
        let sum = 0;
        for (let i = 0, p = t * columns; i < columns; i++, p++) sum += values[w + i] * x[p];
        out[t * rows + n] = sum * scale + shift;
      }
    }
    return out;
  }

  /** LayerNorm or RMSNorm of each row of x; without a layer, x itself. */
  function norm(x, layer) {
    if (!layer) return x;
    const weight = tensors[layer.weight].values, bias = layer.bias ? tensors[layer.bias].values : null;
    const width = weight.length, out = new Float32Array(x.length);
    for (let from = 0; from < x.length; from += width) {
      let mean = 0, variance = 0;
      if (layer.kind === "LayerNorm") for (let i = 0; i < width; i++) mean += x[from + i] / width;
      for (let i = 0; i < width; i++) variance += (x[from + i] - mean) ** 2 / width;
      const scale = 1 / Math.sqrt(variance + layer.eps);
      for (let i = 0; i < width; i++) out[from + i] = (x[from + i] - mean) * scale * weight[i] + (bias ? bias[i] : 0);
    }
    return out;
  }

  const add = (x, y) => x.map((value, i) => value + y[i]);

  // --------------------------------------------------------------------------------------------------------- edits
  /** Edits by the name of their tensor without the index; an edit of one head or neuron has its number as `unit`. */
  function compile(edits) {
    const found = new Map();
    for (const [pattern, edit] of Object.entries(edits || {})) {
      if (!["zero", "scale", "hide", "drop"].includes(edit.operation)) throw new Error(`${edit.operation} is no operation of this page`);
      const wanted = new RegExp(`^${pattern.replace(/[.+?^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*")}$`);
      const cut = pattern.lastIndexOf("."), stem = pattern.slice(0, Math.max(0, cut)), last = pattern.slice(cut + 1);
      const hits = Object.entries(index.edits).flatMap(([name, size]) => {
        const isWhole = size === null || name.slice(name.lastIndexOf(".") + 1) === last;
        const units = isWhole ? [null] : name === stem || pattern.includes("*") ? Array.from({ length: size }, (_, i) => i) : [];
        return units.filter((unit) => wanted.test(unit === null ? name : `${name}.${unit}`)).map((unit) => [name, unit]);
      });
      if (!hits.length) throw new Error(`${pattern} is no tensor of the model`);
      if (edit.keys && hits.some(([name]) => !name.endsWith(".weights"))) throw new Error(`${edit.operation} is for attention weights, not for ${pattern}`);
      for (const [name, unit] of hits) found.set(name, [...(found.get(name) || []), { ...edit, unit }]);
    }
    return found;
  }

  /** Result of zero and scale for a tensor of `rows` rows, in which a unit is `width` columns wide; x without edits. */
  function apply(run, name, x, rows = 1, width = x.length) {
    const edits = run.edits.get(name);
    if (!edits) return x;
    const out = x.slice(), columns = x.length / rows;
    for (const { operation, factor, unit } of edits) {
      const from = unit === null ? 0 : unit * width, to = unit === null ? columns : from + width;
      for (let row = 0; row < x.length; row += columns) {
        if (operation === "zero") out.fill(0, row + from, row + to);
        if (operation === "scale") for (let i = row + from; i < row + to; i++) out[i] *= factor;
      }
    }
    return out;
  }

  /** Sets the pairs of queries and keys of hide or drop in x (H, Tq, Tk) to a value; `first` is the column of query 0. */
  function setPairs(edits, operation, x, [, queries, keys], first, value) {
    for (const edit of (edits || []).filter((one) => one.operation === operation)) {
      x.forEach((_, i) => {
        const row = Math.floor(i / keys), head = Math.floor(row / queries), column = first + (row % queries);
        const isRow = (edit.unit === null || edit.unit === head) && (!edit.queries || edit.queries.includes(column));
        if (isRow && edit.keys.includes(i % keys)) x[i] = value;
      });
    }
  }

  // ------------------------------------------------------------------------------------------------------ attention
  /** Rotate the pairs (i, i + P) of channels of each head of x (T, H Dh), whose first row has the position `first`. */
  function rotate(x, heads, width, [cosines, sines], first) {
    const pairs = tensors[cosines].columns, cos = tensors[cosines].values, sin = tensors[sines].values;
    for (let from = 0, row = first * pairs; from < x.length; from += heads * width, row += pairs) {
      for (let head = from; head < from + heads * width; head += width) {
        for (let i = 0; i < pairs; i++) {
          const a = x[head + i], b = x[head + pairs + i], c = cos[row + i], s = sin[row + i];
          x[head + i] = a * c - b * s;
          x[head + pairs + i] = b * c + a * s;
        }
      }
    }
    return x;
  }

  /** Queries or keys (T, heads * Dh): a linear layer, a norm of all heads or of each, and rotary positions. */
  function project(x, layer, normalize, heads, rotation, first) {
    const y = norm(linear(x, layer), normalize), width = tensors[layer.weight].rows / heads;
    return rotation ? rotate(y, heads, width, rotation, first) : y;
  }

  const joined = (a, b) => Float32Array.from([...a, ...b]);

  /** Keys and values: of the memory, computed once, or of all tokens so far. The cache holds them without edits. */
  function keysValues(layer, name, x, memory, view, cache) {
    const old = cache && cache.layers[name];
    if (memory && old) return old;
    const source = memory || x, rotation = memory ? null : view.rotation;
    let k = project(source, layer.k, layer.k_norm, layer.n_kv_heads, rotation, view.first), v = linear(source, layer.v);
    if (old) { k = joined(old.k, k); v = joined(old.v, v); }
    if (cache) cache.layers[name] = { k, v };
    return { k, v };
  }

  /** Scores (H, Tq, Tk); -Infinity for the pairs that the mask hides. */
  function scores(layer, q, k, [heads, queries, keys], isCross, view) {
    const width = q.length / queries / heads, groups = layer.n_kv_heads, scale = layer.scale ?? width ** -0.5;
    const out = new Float32Array(heads * queries * keys).fill(-Infinity);
    const { first, causal, window, global } = view, bias = view.bias && !isCross ? tensors[view.bias] : null;
    for (let head = 0, i = 0; head < heads; head++) {
      const group = Math.floor(head * groups / heads);
      for (let t = 0; t < queries; t++) {
        const column = first + t, from = (t * heads + head) * width;
        for (let s = 0; s < keys; s++, i++) {
          const isNear = window === null || Math.abs(column - s) < window || column < global || s < global;
          if (!isCross && ((causal && s > column) || !isNear)) continue;
          const key = (s * groups + group) * width;
          let sum = 0;
          for (let j = 0; j < width; j++) sum += q[from + j] * k[key + j];
          out[i] = sum * scale + (bias ? at(bias, head, s - column + (bias.columns - 1) / 2) : 0);
        }
      }
    }
    return out;
  }

  /** Softmax of each row of `keys` scores, in place; c tanh(s / c) comes first if there is a limit c. A row without keys is 0. */
  function softmax(x, keys, limit) {
    for (let from = 0; from < x.length; from += keys) {
      const row = x.subarray(from, from + keys);
      if (limit) row.forEach((s, i) => { row[i] = s === -Infinity ? s : limit * Math.tanh(s / limit); });
      const most = row.reduce((a, b) => Math.max(a, b), -Infinity);
      const sum = row.reduce((total, s) => total + Math.exp(s - most), 0);
      row.forEach((s, i) => { row[i] = most === -Infinity ? 0 : Math.exp(s - most) / sum; });
    }
  }

  /** Self-attention of x (Tq, D), or attention to a memory; its weights are added to `run.maps`. */
  function attention(layer, name, x, memory, view, run) {
    const heads = layer.n_heads, groups = layer.n_kv_heads, queries = x.length / tensors[layer.q.weight].columns;
    let q = project(x, layer.q, layer.q_norm, heads, memory ? null : view.rotation, view.first);
    let { k, v } = keysValues(layer, name, x, memory, view, run.cache);
    const keys = v.length / tensors[layer.v.weight].rows, shape = [heads, queries, keys];
    q = apply(run, `${name}.q`, q, queries, q.length / queries / heads);
    k = apply(run, `${name}.k`, k, keys, k.length / keys / groups);
    v = apply(run, `${name}.v`, v, keys, v.length / keys / groups);
    const raw = scores(layer, q, k, shape, memory !== null, view), edits = run.edits.get(`${name}.weights`);
    setPairs(edits, "hide", raw, shape, view.first, -Infinity);
    softmax(raw, keys, layer.cap);
    const weights = apply(run, `${name}.weights`, raw, 1, queries * keys);
    setPairs(edits, "drop", weights, shape, view.first, 0);
    if (run.maps) run.maps[name] = { shape, weights };
    const width = v.length / keys / groups, y = new Float32Array(queries * heads * width), sums = new Float64Array(width);
    for (let head = 0; head < heads; head++) {
      const group = Math.floor(head * groups / heads);
      for (let t = 0; t < queries; t++) {
        sums.fill(0);
        for (let s = 0; s < keys; s++) {
          const weight = weights[(head * queries + t) * keys + s], value = (s * groups + group) * width;
          if (weight) for (let j = 0; j < width; j++) sums[j] += weight * v[value + j];
        }
        y.set(sums, (t * heads + head) * width);
      }
    }
    return linear(apply(run, `${name}.head`, y, queries, width), layer.out);
  }

  // --------------------------------------------------------------------------------------------- blocks and stacks
  function feedForward(layer, name, x, run) {
    const act = ACTIVATIONS[layer.activation], gate = layer.gate ? linear(x, layer.gate) : null;
    const hidden = linear(x, layer.up).map((value, i) => act(value) * (gate ? gate[i] : 1));
    return linear(apply(run, `${name}.neuron`, hidden, hidden.length / tensors[layer.up.weight].rows, 1), layer.down);
  }

  /** Block with the norms before, after, or around its sub-layers. */
  function runBlock(block, name, given, memory, view, run) {
    const placement = block.norm_placement, x = apply(run, `${name}.in`, given);
    let y = x;
    for (const [child, part] of PARTS) {
      const layer = block[child], own = block[`${child}_norm`], path = `${name}.${part}`;
      if (!layer) continue;
      const input = apply(run, `${path}.in`, block.parallel ? x : y);
      let z = placement === "pre" || placement === "sandwich" ? norm(input, own) : input;
      z = part === "ff" ? feedForward(layer, path, z, run) : attention(layer, path, z, part === "cross" ? memory : null, view, run);
      if (placement === "inside") z = norm(z, own);
      if (placement === "sandwich") z = norm(z, block[`${child}_post_norm`]);
      const gamma = block[`${child}_gamma`] && tensors[block[`${child}_gamma`]].values;
      if (gamma) z = z.map((value, i) => value * gamma[i % gamma.length]);
      y = add(y, apply(run, `${path}.out`, z));
      if (placement === "post") y = norm(y, own);
    }
    return apply(run, `${name}.out`, y);
  }

  /** Steps of a stack: one for each block. `first` is the position of the first row of x. */
  function* runStack(stack, path, x, memory, first, isCausal, run) {
    for (let i = 0; i < stack.blocks.length; i++) {
      const window = stack.windows[i], rotation = stack.rotations[window === null ? "None" : window];
      const view = { first, causal: isCausal, window, rotation, bias: stack.bias, global: index.model.n_prefix || 0 };
      let block = stack.blocks[i];
      if (block.positions) x = add(x, tensors[block.positions.weight].values);
      x = runBlock(block.block || block, `${path}${i}`, x, memory, view, run);
      yield i;
    }
    return norm(x, stack.norm);
  }

  /** Vectors of tokens: token, position and segment, then the norm. */
  function embedTokens(embed, ids, segments, first) {
    if (!ids.length || first + ids.length > index.max_len) throw new Error(`the text must have 1 to ${index.max_len} tokens, got ${first + ids.length}`);
    const tokens = tensors[embed.tokens.weight], width = tokens.columns, out = new Float32Array(ids.length * width);
    const placed = embed.positions && tensors[embed.positions.weight], parts = embed.segments && tensors[embed.segments.weight];
    ids.forEach((id, t) => {
      for (let i = 0; i < width; i++) {
        out[t * width + i] = at(tokens, id, i) * embed.scale + (placed ? at(placed, first + t, i) : 0)
          + (parts ? at(parts, segments ? segments[t] : 0, i) : 0);
      }
    });
    return norm(out, embed.norm);
  }

  /** Vectors of the prefix tokens and of the patches of pixels (C, H, W). */
  function embedPatches(embed, pixels) {
    const [height, across] = embed.image_size, { rows: width, columns } = tensors[embed.patches.weight], channels = embed.n_channels;
    if (pixels.length !== channels * height * across) throw new Error(`the image must have ${channels} x ${height} x ${across} values`);
    const size = Math.sqrt(columns / channels), placed = embed.n_placed, skipped = index.model.n_prefix - placed;
    const patches = Float32Array.from({ length: pixels.length }, (_, i) => {
      const patch = Math.floor(i / columns), channel = Math.floor(i / size / size) % channels;
      const y = Math.floor(patch / (across / size)) * size + Math.floor(i / size) % size;
      return pixels[(channel * height + y) * across + (patch % (across / size)) * size + i % size];
    });
    const prefix = Array.from({ length: index.model.n_prefix * width }, (_, i) => at(tensors[embed.prefix], Math.floor(i / width), i % width));
    const table = embed.positions && tensors[embed.positions.weight];
    const out = joined(prefix, linear(patches, embed.patches)).map((value, i) => {
      const t = Math.floor(i / width), isPlaced = t < placed || t >= index.model.n_prefix; // not all prefix tokens are
      return value + (table && isPlaced ? at(table, t < placed ? t : t - skipped, i % width) : 0);
    });
    return norm(out, embed.norm);
  }

  // --------------------------------------------------------------------------------------------------------- model
  const newCache = () => ({ length: 0, layers: {}, memory: null, edits: null });

  /** Steps of a forward pass; the value is the final hidden states. With a cache, the input has the new tokens only. */
  function* hidden(input, run) {
    const { model } = index, { cache } = run, first = cache ? cache.length : 0, stamp = JSON.stringify([...run.edits]);
    if (cache && first && cache.edits !== stamp) throw new Error("the cache holds tokens that were computed under other edits");
    if (model.src_embed) {
      let memory = cache && cache.memory;
      if (!memory) {
        const source = embedTokens(model.src_embed, input.source, null, 0);
        memory = yield* runStack(model.encoder, "encoder.", source, null, 0, false, { ...run, cache: null });
        if (model.memory_map) memory = linear(memory, model.memory_map);
      }
      if (cache) Object.assign(cache, { memory, edits: stamp, length: first + input.target.length });
      return yield* runStack(model.decoder, "decoder.", embedTokens(model.tgt_embed, input.target, null, first), memory, first, true, run);
    }
    if (input.pixels) return yield* runStack(model.stack, "", embedPatches(model.embed, input.pixels), null, 0, false, run);
    if (cache) Object.assign(cache, { edits: stamp, length: first + input.ids.length });
    return yield* runStack(model.stack, "", embedTokens(model.embed, input.ids, input.segments, first), null, first, index.causal, run);
  }

  /** Logits of the vocabulary for rows of hidden states, or of the classes of an image. */
  function logits(h, rows) {
    const { model } = index, { head } = model;
    if (!head) return classify(h);
    const width = tensors[head.weight].columns;
    let x = rows ? rows.reduce((all, row) => joined(all, h.subarray(row * width, (row + 1) * width)), []) : h;
    if (head.transform) x = norm(linear(x, head.transform).map(ACTIVATIONS[head.activation]), head.norm);
    const y = linear(head.scale === 1 ? x : x.map((value) => value * head.scale), head), cap = head.logit_cap;
    return { logits: cap ? y.map((z) => cap * Math.tanh(z / cap)) : y, width: tensors[head.weight].rows };
  }

  /** Mean of the logits of all heads, each of which reads one token, the mean of the patches, or both. */
  function classify(h) {
    const { model } = index, width = tensors[model.embed.patches.weight].rows, { pool, n_prefix: prefix } = model;
    const token = (t) => h.slice(t * width, (t + 1) * width), sums = new Float64Array(width), n = h.length / width - prefix;
    h.subarray(prefix * width).forEach((value, i) => { sums[i % width] += value; });
    const mean = Float32Array.from(sums, (sum) => sum / n);
    const all = model.heads.map((head, i) => {
      let x = norm(pool === "mean" ? mean : pool === "cls_mean" ? joined(token(0), mean) : token(i), model.pool_norm);
      if (model.representation) x = linear(x, model.representation).map(Math.tanh);
      return linear(x, head);
    });
    return { logits: all.reduce(add).map((z) => z / all.length), width: all[0].length };
  }

  /** Steps of one pass; the value is { logits, width, maps }. */
  function* run({ input, edits, rows, maps }) {
    const state = { edits: compile(edits), maps: maps ? {} : null, cache: null };
    const h = yield* hidden(input, state);
    return { ...logits(h, rows), maps: state.maps };
  }

  /** Number in [0, 1) of a generator with a state { seed } (mulberry32). */
  function draw(state) {
    state.seed = (state.seed + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state.seed ^ (state.seed >>> 15), 1 | state.seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** Token and its probability: the most probable one at temperature 0, else one of the topK most probable at random. */
  function choose(z, { temperature, topK, state }) {
    const order = Array.from(z.keys()).sort((a, b) => z[b] - z[a] || a - b), most = z[order[0]];
    const kept = order.slice(0, temperature ? topK || order.length : 1), sum = (values) => values.reduce((total, one) => total + one, 0);
    const shares = kept.map((token) => Math.exp((z[token] - most) / (temperature || 1)));
    let left = draw(state) * sum(shares);
    const token = kept[shares.findIndex((share) => (left -= share) < 0)] ?? kept[0];
    return { token, probability: Math.exp(z[token] - most) / sum(order.map((one) => Math.exp(z[one] - most))) };
  }

  /** Steps of writing tokens after input.ids, or after the start token, up to an end token or `maxNew`. */
  function* generate({ input, edits, options: { maxNew = 20, ends = [], start = 0, seed = 0, temperature = 0, topK = 0 } }) {
    const isPair = Boolean(index.model.src_embed), state = { edits: compile(edits), maps: null, cache: newCache() };
    const chosen = [], how = { temperature, topK, state: { seed } };
    for (let fresh = isPair ? [start] : input.ids; chosen.length < maxNew && !ends.includes(chosen.at(-1)?.token);) {
      if (state.cache.length + fresh.length > index.max_len) break;
      const h = yield* hidden(isPair ? { source: input.source, target: fresh } : { ids: fresh }, state);
      chosen.push(choose(logits(h, [fresh.length - 1]).logits, how));
      fresh = [chosen.at(-1).token];
    }
    return { ids: chosen.map((one) => one.token), probabilities: chosen.map((one) => one.probability) };
  }

  // ------------------------------------------------------------------------------------------------------- messages
  /** Answer to a message. Between its steps other messages arrive, and a newer one ends a run. */
  async function answer({ id, type, ...task }) {
    newest = type === "load" ? newest : id;
    const total = type === "load" ? Object.keys(task.index.tensors).length : 0;
    if (!total && !index) throw new Error("no model is loaded");
    const steps = total ? load(task.index, await inflate(decodeBase64(task.data))) : { run, generate }[type](task);
    for (let before = Date.now(); ;) {
      const { done, value } = steps.next();
      if (done) return total ? { id, type: "loaded" } : { id, type: "result", ...value };
      if (Date.now() - before < pause) continue;
      if (total) port.postMessage({ id, type: "progress", done: value, total });
      await new Promise((resolve) => { setTimeout(resolve); });
      if (!total && newest !== id) return { id, type: "stopped" };
      before = Date.now();
    }
  }

  if (port) {
    port.onmessage = ({ data }) => answer(data).catch((error) => ({ id: data.id, type: "error", message: error.message }))
      .then((message) => port.postMessage(message));
  }
  /** Function that takes all steps at once. */
  const whole = (steps) => (...given) => { for (const it = steps(...given); ;) { const { done, value } = it.next(); if (done) return value; } };
  return { load: whole(load), run: whole(run), generate: whole(generate), hidden: whole(hidden), logits, compile, newCache };
}

if (typeof document === "undefined") module.exports = { engine };
