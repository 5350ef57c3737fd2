"use strict";
// Pure functions of the page of `fourfold look`: decoding, merging, colours, labels, files, addresses. Tested with node.

const unique = (values) => [...new Set(values)];
const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
const visibleTitle = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text);

/** Label cut to a width in pixels. */
function fitLabel(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > width) letters.pop();
  return `${letters.join("")}…`;
}

/** Bytes of a base64 text. */
function decodeBase64(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Bytes that Python's zlib.compress packed. */
async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Number with the bits of a half float. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}

/** Weights of a stored map, row by row: a = (q / 255)², or half floats with precision 16. A map of a live run has its own `data`. */
function expand(map, bytes, precision = 8) {
  const [rows, columns] = map.shape, out = new Float32Array(rows * columns);
  if (map.data) return map.data.slice(map.offset, map.offset + rows * columns);
  const [low, high] = map.range || [0, 1];
  let at = map.offset;
  for (let t = 0; t < rows; t++) {
    const end = map.triangle ? Math.min(t + 1, columns) : columns;
    for (let s = 0; s < end; s++, at++) {
      const a = precision === 16 ? half(bytes[2 * at] | (bytes[2 * at + 1] << 8)) : (bytes[at] / 255) ** 2;
      out[t * columns + s] = low + (high - low) * a;
    }
  }
  return out;
}

/** Groups of the kept indices that belong to one word: [[0], [1, 2], ...]. `words` null: each index alone. */
function groupTokens(length, words, hidden) {
  const groups = [];
  let last = null;
  for (let i = 0; i < length; i++) {
    if (hidden.has(i)) { last = null; continue; }
    if (words && last !== null && words[i] === last && words[i] >= 0) groups[groups.length - 1].push(i);
    else groups.push([i]);
    last = words ? words[i] : null;
  }
  return groups;
}

/** Map between groups of tokens: the sum over the keys of a word, the mean over the queries of a word. */
function mergeMap(data, columns, rowGroups, columnGroups) {
  const out = new Float32Array(rowGroups.length * columnGroups.length);
  rowGroups.forEach((group, t) => columnGroups.forEach((keys, s) => {
    let sum = 0;
    for (const q of group) for (const k of keys) sum += data[q * columns + k];
    out[t * columnGroups.length + s] = sum / group.length;
  }));
  return out;
}

/** Indices of the k largest values, the largest first; of equal values the first one. */
function topK(values, k) {
  return Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b).slice(0, k);
}

/** Colours from dark violet to yellow, even in perceived lightness (a polynomial fit of viridis). */
const RAMP = Array.from({ length: 256 }, (_, i) => [
  [0.2777, 0.1050, -0.3309, -4.6342, 6.2283, 4.7764, -5.4355],
  [0.0054, 1.4046, 0.2149, -5.7991, 14.1799, -13.7451, 4.6459],
  [0.3341, 1.3846, 0.0951, -19.3324, 56.6906, -65.3530, 26.3124],
].map((fit) => Math.round(255 * Math.min(1, Math.max(0, fit.reduceRight((sum, one) => (sum * i) / 255 + one, 0))))));

/** Colour [r, g, b] for t in [0, 1]. */
function ramp(t) {
  return RAMP[Math.round(255 * Math.min(1, Math.max(0, t)))];
}

/** Colour [r, g, b] for t in [-1, 1]: blue, grey, orange. */
function diverge(t) {
  const x = Math.min(1, Math.abs(t)), end = t < 0 ? [35, 100, 200] : [235, 120, 0];
  return end.map((one) => Math.round(225 + (one - 225) * x));
}

/** Token as it is shown: white space and control characters become visible marks. */
function visible(token) {
  const marks = { " ": "␣", "\n": "↵", "\r": "␍", "\t": "⇥" };
  const named = (run) => [...run].map((c) => `\\u{${c.codePointAt(0).toString(16)}}`).join("");
  return token === "" ? "∅"
    : token.replace(/^ +| +$|[\n\r\t]/g, (run) => [...run].map((c) => marks[c]).join(""))
      .replace(/[\p{Cc}\p{Zl}\p{Zp}\p{Cs}]|^[\u200c\u200d]+$|[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu, named);
}

/** Word made of pieces: without the marks of word beginnings and continuations. */
function joinPieces(pieces) {
  const text = pieces.map((one, i) => (i ? one.replace(/^##/, "") : one)).join("");
  return visible(text.replace(/^ (?=.)/, ""));
}

/** Tokens such as [CLS] and </s>, which are words of their own. */
const SPECIAL = /^(\[[A-Z]+\d*\]|<\/?[a-z|_]+>)$/;

/** What stands between the pieces of a text: white space before a word, else a place where a line may break. */
function gaps(tokens) {
  const isMarked = tokens.some((token) => token.startsWith(" "));
  return tokens.map((_, i) => {
    const next = tokens[i + 1] || "";
    if (SPECIAL.test(next) || SPECIAL.test(tokens[i])) return " ";
    return (isMarked ? next.startsWith(" ") : !next.startsWith("##")) ? " " : "\u200b";
  });
}

/** Piece without the mark of a word beginning or continuation, with visible white space. */
const plainPiece = (token) => visible(token.replace(/^(##| )(?=[^ ])/, ""));

/** Text of some pieces. */
function readable(tokens) {
  const between = gaps(tokens);
  return tokens.map((token, i) => plainPiece(token) + between[i]).join("").replaceAll("\u200b", "").trim();
}

/** Number with three significant digits. */
function digits(x) {
  if (x === 0) return "0";
  if (Math.abs(x) < 0.0001) return x < 0 ? "> −0.0001" : "< 0.0001";
  const text = Number(x.toPrecision(Math.abs(x) >= 100 ? 6 : 3)).toLocaleString("en-US",
    { useGrouping: false, maximumFractionDigits: Math.abs(x) >= 100 ? 0 : 6 });
  return text.replace("-", "−");
}

/** Text of a CSV file: a row of keys, then a row of weights for each query. */
function csvText(queries, keys, data) {
  const cell = (text) => `"${text.replaceAll('"', '""')}"`;
  const lines = [["", ...keys].map(cell).join(",")];
  queries.forEach((query, t) => lines.push([cell(query),
    ...Array.from(data.subarray(t * keys.length, (t + 1) * keys.length), (a) => a.toPrecision(3))].join(",")));
  return lines.join("\r\n") + "\r\n";
}

/** State of an address such as #row=2&layer=5&head=mean. */
function readHash(hash, defaults) {
  const state = {};
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!Object.hasOwn(defaults, name)) continue;
    const number = Number(value);
    state[name] = value === "mean" ? null : typeof defaults[name] === "string" ? value
      : Number.isSafeInteger(number) && number >= 0 ? number : defaults[name];
  }
  return state;
}

/** Address of a state; values equal to the defaults are left out. */
function writeHash(state, defaults) {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value !== defaults[name]) out.set(name, value === null ? "mean" : value);
  }
  return out.toString();
}

if (typeof document === "undefined") {
  module.exports = { decodeBase64, inflate, half, expand, groupTokens, mergeMap, topK, ramp, diverge, visible,
    joinPieces, gaps, readable, digits, csvText, readHash, writeHash };
}
