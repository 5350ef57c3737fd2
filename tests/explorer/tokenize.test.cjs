// Comparison of tokenize.js with the tokenizers library; run by tests/explorer/test_tokenizer_data.py with `node --test`.
"use strict";
const assert = require("node:assert");
const { readFileSync } = require("node:fs");
const { test } = require("node:test");
const { encode, decode } = require(process.env.TOKENIZE);
const cases = JSON.parse(readFileSync(process.env.CASES, "utf8"));

for (const { name, tokenizer, texts, ids, tokens, decoded, rows, decodedRows } of cases) {
  const check = (list, found, wanted) => list.forEach((one, i) => {
    const [first, second] = [found(one), wanted[i]].map((value) => JSON.stringify(value));
    if (first !== second) assert.fail(`${JSON.stringify(one)} gives ${first}, not ${second}`);
  });
  test(`ids of ${name}`, () => {
    assert.ok(texts.length >= 500);
    check(texts, (text) => encode(tokenizer, text).ids, ids);
  });
  test(`tokens of ${name}`, () => check(texts, (text) => encode(tokenizer, text).tokens, tokens));
  test(`texts of ${name}`, () => {
    check(ids, (one) => decode(tokenizer, one), decoded);
    check(rows, (one) => decode(tokenizer, one), decodedRows);
  });
}
