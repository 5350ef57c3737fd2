// Tests of the pure functions of the page; run by tests/explorer/test_page.py with `node --test`.
"use strict";
const assert = require("node:assert");
const { readFileSync } = require("node:fs");
const { test } = require("node:test");
const pure = require(process.env.PURE);
const cases = JSON.parse(readFileSync(process.env.CASES, "utf8"));

const near = (a, b, limit) => assert.ok(Math.abs(a - b) <= limit, `${a} is not ${b}`);

test("maps that Python packed are unpacked to the same weights", async () => {
  for (const precision of [8, 16]) {
    const { bytes, offsets, weights } = cases[precision];
    const raw = await pure.inflate(pure.decodeBase64(bytes));
    for (const [triangle, offset] of [[true, offsets[0]], [false, offsets[1]]]) {
      const found = pure.expand({ shape: [5, 5], offset, triangle }, raw, precision);
      weights.flat().forEach((weight, i) => near(found[i], weight, 1e-6));
    }
  }
});

test("half floats include zero, subnormal numbers and infinity", () => {
  assert.deepStrictEqual([0, 1, 0x3c00, 0xc000, 0x7c00].map(pure.half), [0, 2 ** -24, 1, -2, Infinity]);
});

test("words take the sum over keys and the mean over queries", () => {
  const groups = pure.groupTokens(3, [0, 1, 1], new Set());
  assert.deepStrictEqual(groups, [[0], [1, 2]]);
  const merged = pure.mergeMap(Float32Array.from([1, 0, 0, 0.5, 0.25, 0.25, 0, 0.5, 0.5]), 3, groups, groups);
  assert.deepStrictEqual([...merged], [1, 0, 0.25, 0.75]);
});

test("hidden tokens and negative word numbers form no common word", () => {
  assert.deepStrictEqual(pure.groupTokens(4, [0, 0, 0, 1], new Set([1])), [[0], [2], [3]]);
  assert.deepStrictEqual(pure.groupTokens(2, [-1, -1], new Set()), [[0], [1]]);
});

test("top-k puts the largest first and the first of equal values first", () => {
  assert.deepStrictEqual(pure.topK([0.1, 0.5, 0.5, 0.7], 3), [3, 1, 2]);
});

test("lightness of the ramp increases", () => {
  const light = Array.from({ length: 256 }, (_, i) => pure.ramp(i / 255)).map(([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b);
  light.slice(1).forEach((value, i) => assert.ok(value >= light[i] - 0.5));
  assert.ok(light[0] < 30 && light[255] > 200);
});

test("white space and control characters are visible", () => {
  assert.strictEqual(pure.visible(" the"), "␣the");
  assert.strictEqual(pure.visible("a b\n"), "a b↵");
  assert.strictEqual(pure.visible("  "), "␣␣");
  assert.strictEqual(pure.visible("\u202e\u0000\ud800"), "\\u{202e}\\u{0}\\u{d800}");
  assert.strictEqual(pure.visible("👩\u200d👧"), "👩\u200d👧");
  assert.strictEqual(pure.visible("\u200d"), "\\u{200d}");
  assert.strictEqual(pure.visible(""), "∅");
  assert.strictEqual(pure.visible("שלום"), "שלום");
});

test("pieces are joined to words", () => {
  assert.strictEqual(pure.joinPieces(["tur", "##tle"]), "turtle");
  assert.strictEqual(pure.joinPieces([" un", "happy"]), "unhappy");
  assert.strictEqual(pure.joinPieces([" "]), "␣");
});

test("text has white space before words, and none within", () => {
  assert.strictEqual(pure.readable(["A", " tur", "tle", "\n", " x"]), "A turtle↵ x");
  assert.strictEqual(pure.readable(["the", "tur", "##tle", "."]), "the turtle .");
});

test("numbers have three significant digits", () => {
  assert.deepStrictEqual([0, 0.4137, 0.00041, 0.00001, -0.25, 12.34, 4711].map(pure.digits),
    ["0", "0.414", "0.00041", "< 0.0001", "−0.25", "12.3", "4711"]);
});

test("CSV quotes tokens", () => {
  assert.strictEqual(pure.csvText(['a"'], ["b,", "\n"], Float32Array.from([0.5, 0.25])),
    '"","b,","\n"\r\n"a""",0.500,0.250\r\n');
});

test("the address holds a state and ignores what it does not know", () => {
  const defaults = { row: 0, map: "", head: -1 };
  assert.deepStrictEqual(pure.readHash("#row=2&head=mean&map=cross&x=1&__proto__=1&row=1e9", defaults), { row: 1e9, head: null, map: "cross" });
  assert.deepStrictEqual(pure.readHash("#row=-3&head=<b>", defaults), { row: 0, head: -1 });
  assert.strictEqual(pure.writeHash({ row: 2, map: "", head: null }, defaults), "row=2&head=mean");
});
