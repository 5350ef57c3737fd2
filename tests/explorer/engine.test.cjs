// Tests of the engine of the live page; run by tests/explorer/test_engine.py with `node --test`.
"use strict";
const assert = require("node:assert");
const { readFileSync } = require("node:fs");
const { test } = require("node:test");
Object.assign(globalThis, require(process.env.PURE));
const { engine } = require(process.env.ENGINE);
const cases = JSON.parse(readFileSync(process.env.CASES, "utf8"));

/** Largest difference of two lists of equal length. */
function difference(a, b) {
  assert.strictEqual(a.length, b.length);
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i])), 0);
}

async function loaded({ index, data }) {
  const made = engine();
  made.load(index, await inflate(decodeBase64(data)));
  return made;
}

for (const one of cases) {
  const { input } = one, edits = JSON.parse(one.runs.at(-1).edits);

  test(`${one.name}: logits and weights are those of torch`, async () => {
    const made = await loaded(one);
    for (const { edits: given, logits, width, maps } of one.runs) {
      const found = made.run({ input, edits: JSON.parse(given), maps: true });
      assert.strictEqual(found.width, width);
      const most = difference(found.logits, logits);
      assert.ok(most < 1e-4, `${given}: logits differ by ${most}`);
      assert.deepStrictEqual(Object.keys(found.maps).sort(), Object.keys(maps).sort());
      for (const [name, weights] of Object.entries(maps)) {
        const wrong = difference(found.maps[name].weights, weights);
        assert.ok(wrong < 1e-5, `${given}: weights of ${name} differ by ${wrong}`);
      }
    }
  });

  test(`${one.name}: some rows of the logits, and a second run`, async () => {
    const made = await loaded(one), { logits, width } = made.run({ input, edits });
    const rows = [logits.length / width - 1, 0], some = made.run({ input, edits, rows }).logits;
    if (!input.pixels) assert.deepStrictEqual(some, Float32Array.from(rows.flatMap((row) => [...logits.slice(row * width, (row + 1) * width)])));
    assert.deepStrictEqual(made.run({ input }).logits, made.run({ input, edits: {} }).logits);
    assert.deepStrictEqual(made.run({ input, edits }).logits, logits);
  });

  test(`${one.name}: edits without a tensor, and of another kind, are refused`, async () => {
    const made = await loaded(one), zero = { operation: "zero" };
    for (const [name, edit] of [["nothing", zero], ["0.self.head.99", zero], ["*.head.*", { operation: "hide", keys: [0] }],
      ["*.head.*", { operation: "mean" }]]) {
      assert.throws(() => made.run({ input, edits: { [name]: edit } }), /is no tensor|is for attention|is no operation/, name);
    }
  });

  if (one.generated) {
    const { ids, ...options } = one.generated, given = JSON.parse(options.edits);

    test(`${one.name}: greedy text`, async () => {
      const made = await loaded(one), found = made.generate({ input, edits: given, options });
      assert.deepStrictEqual(found.ids, ids);
      found.probabilities.forEach((p) => assert.ok(p > 0 && p <= 1));
    });

    test(`${one.name}: sampled text depends on the seed only`, async () => {
      const made = await loaded(one);
      const texts = [1, 1, 2, 3, 4].map((seed) => made.generate({ input, edits: given, options: { ...options, seed, temperature: 50 } }).ids.join());
      assert.strictEqual(texts[0], texts[1]);
      assert.ok(new Set(texts).size > 2);
      const cold = made.generate({ input, edits: given, options: { ...options, seed: 5, temperature: 50, topK: 1 } });
      assert.deepStrictEqual(cold.ids, ids);
    });

    test(`${one.name}: a cache changes nothing, in every split`, async () => {
      const made = await loaded(one), list = input.ids ? "ids" : "target", all = input[list];
      const steps = (cache, sizes) => {
        let from = 0, out = [];
        for (const size of sizes) {
          const run = { edits: made.compile(given), maps: {}, cache };
          out.push(...made.hidden({ ...input, [list]: all.slice(from, from + size) }, run));
          from += size;
          for (const [name, { shape }] of Object.entries(run.maps)) {
            if (!name.startsWith("encoder")) assert.deepStrictEqual(shape.slice(1), [size, name.endsWith("cross") ? input.source.length : from]);
          }
        }
        return out;
      };
      const whole = steps(null, [all.length]);
      for (const sizes of [[9], [1, 8], [5, 4], [2, 3, 4], [1, 1, 1, 1, 1, 1, 1, 1, 1]]) {
        assert.ok(difference(steps(made.newCache(), sizes), whole) < 1e-5, sizes.join());
      }
      const cache = made.newCache();
      made.hidden({ ...input, [list]: all.slice(0, 4) }, { edits: made.compile(given), maps: null, cache });
      assert.throws(() => made.hidden({ ...input, [list]: all.slice(4) }, { edits: made.compile({}), maps: null, cache }), /other edits/);
    });

    test(`${one.name}: messages, of which a newer one ends a run`, async () => {
      const answers = [], port = { postMessage: (message) => answers.push(message) };
      engine(port, -1); // looks for messages after each block
      const until = async (type) => { while (answers.at(-1)?.type !== type) await new Promise((resolve) => { setTimeout(resolve, 5); }); };
      port.onmessage({ data: { id: 1, type: "run", input } });
      await until("error");
      port.onmessage({ data: { id: 2, type: "load", index: one.index, data: one.data } });
      await until("loaded");
      port.onmessage({ data: { id: 3, type: "run", input, edits: given } });
      port.onmessage({ data: { id: 4, type: "generate", input, edits: given, options } });
      await until("result");
      assert.deepStrictEqual(answers.filter(({ type }) => type !== "progress").map(({ id, type }) => [id, type]),
        [[1, "error"], [2, "loaded"], [3, "stopped"], [4, "result"]]);
      assert.deepStrictEqual(answers.at(-1).ids, ids);
    });
  }
}
