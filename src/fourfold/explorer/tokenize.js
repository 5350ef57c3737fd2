"use strict";
// Tokenizers of the page: `encode` and `decode` of the data that tokenizer_data.py makes. Tested with node against the tokenizers
// library. Character classes follow the Unicode version of the browser; the library has that of Unicode 8 for BERT and 16 for bytes.

const { encode, decode } = (() => {
  // ------------------------------------------------------------------------------------------------ bytes
  /** Character that stands for each byte in byte-level tokens: itself if printable, otherwise one from U+0100 on. */
  const BYTE_CHARACTERS = (() => {
    let next = 256;
    const isPrintable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : next++));
  })();
  const BYTE_VALUES = new Map(BYTE_CHARACTERS.map((character, byte) => [character, byte]));
  const toBytes = (text) => new TextEncoder().encode(text);
  // Without `ignoreBOM`, the decoder drops U+FEFF at the start.
  const fromBytes = (bytes, fatal) => new TextDecoder("utf-8", { fatal, ignoreBOM: true }).decode(Uint8Array.from(bytes));

  /** Bytes of a byte-level token; null if it was added as plain text. */
  function tokenBytes(token) {
    const bytes = Array.from(token, (character) => BYTE_VALUES.get(character));
    return bytes.includes(undefined) ? null : bytes;
  }

  /** Text of bytes in which each byte of an incomplete character is written as \xe2. */
  function escapedText(bytes) {
    let text = "";
    for (let at = 0; at < bytes.length;) {
      const first = bytes[at], length = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
      try {
        text += fromBytes(bytes.slice(at, at + length), true);
        at += length;
      } catch {
        text += `\\x${bytes[at++].toString(16)}`;
      }
    }
    return text;
  }

  // ------------------------------------------------------------------------------------------------ normalizers
  // The library lower-cases each character alone, so that a sigma at the end of a word is no final sigma.
  const lowercase = (text) => Array.from(text, (character) => character.toLowerCase()).join("");

  const CHINESE = /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;

  function normalizeBert(step, text) {
    let out = text;
    if (step.clean_text) {
      out = out.replace(/[\t\n\r]/g, " ").replace(/[\p{Cc}\p{Cf}\p{Co}\ufffd]/gu, "").replace(/\p{White_Space}/gu, " ");
    }
    if (step.handle_chinese_chars) out = out.replace(CHINESE, " $& ");
    if (step.strip_accents ?? step.lowercase) out = out.normalize("NFD").replace(/\p{Mn}/gu, "");
    return step.lowercase ? lowercase(out) : out;
  }

  const NORMALIZERS = {
    Prepend: (step, text) => (text ? step.prepend + text : ""),
    Replace: (step, text) => text.replaceAll(step.pattern.String, () => step.content),
    Lowercase: (step, text) => lowercase(text),
    BertNormalizer: normalizeBert,
  };

  // ------------------------------------------------------------------------------------------------ pre-tokenizers
  const PUNCTUATION = /([\p{P}!-/:-@[-`{-~])/u;
  // The pattern of GPT-2. White space is that of Unicode: \s has U+FEFF and lacks U+0085.
  const GPT2 = new RegExp("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+"
    + "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+", "gu");
  const toCharacters = (text) => Array.from(toBytes(text), (byte) => BYTE_CHARACTERS[byte]).join("");
  const isolate = (text, part) => text.split(part).flatMap((piece, i) => (i ? [part, piece] : [piece]));

  /** Functions from a piece of text to its pieces, of which empty ones are dropped. */
  const SPLITTERS = {
    Split: ({ pattern }, text) => (pattern.String ? isolate(text, pattern.String) : Array.from(text)),
    Metaspace: (_, text) => text.replaceAll(" ", "▁").split(/(?=▁)/u),
    ByteLevel: (step, text) => ((step.add_prefix_space && !text.startsWith(" ") ? " " : "") + text).match(GPT2).map(toCharacters),
    BertPreTokenizer: (_, text) => text.split(/\p{White_Space}+/u).flatMap((word) => word.split(PUNCTUATION)),
  };

  // ------------------------------------------------------------------------------------------------ models
  const indices = new WeakMap();

  /** Tables of a model: the id of each token, and for BPE rank and result of each pair of ids. */
  function indexOf(model) {
    if (!indices.has(model)) {
      const { tokens, merges = [] } = model, ids = new Map();
      tokens.forEach((token, id) => { if (token !== null) ids.set(token, id); });
      const ranks = new Map(merges.map(([left, right], rank) => [left * tokens.length + right, rank]));
      const merged = merges.map(([left, right]) => ids.get(tokens[left] + tokens[right]));
      const longest = tokens.reduce((most, token) => Math.max(most, (token || "").length), 0);
      indices.set(model, { ids, ranks, merged, longest });
    }
    return indices.get(model);
  }

  /** Byte pair encoding: the pair of the lowest rank is merged first, of equal ranks the leftmost one. */
  function encodeBpe(model, word) {
    const { ids, ranks, merged } = indexOf(model), parts = [], size = model.tokens.length;
    let isUnknown = false;
    for (const character of word) {
      const id = ids.get(character) ?? model.unk;
      const wasUnknown = isUnknown;
      isUnknown = !ids.has(character);
      if (id !== null && !(isUnknown && wasUnknown && model.fuse_unk)) parts.push(id);
    }
    for (;;) {
      let best = Infinity, at = 0;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = ranks.get(parts[i] * size + parts[i + 1]);
        if (rank < best) [best, at] = [rank, i];
      }
      if (best === Infinity) return parts;
      parts.splice(at, 2, merged[best]);
    }
  }

  /** WordPiece: the longest token that begins the rest of the word; a word with an unknown part is unknown. */
  function encodeWordPiece(model, word) {
    const { ids } = indexOf(model), letters = Array.from(word), found = [];
    if (letters.length > model.max_input_chars_per_word) return [model.unk];
    for (let start = 0; start < letters.length;) {
      const token = (end) => (start ? model.continuing_subword_prefix : "") + letters.slice(start, end).join("");
      let end = letters.length;
      while (end > start && !ids.has(token(end))) end--;
      if (end === start) return [model.unk];
      found.push(ids.get(token(end)));
      start = end;
    }
    return found;
  }

  /** Unigram: the tokens with the largest sum of scores (Viterbi); unknown characters side by side are one token. */
  function encodeUnigram(model, word) {
    const { ids, longest } = indexOf(model), letters = Array.from(word), { unk, scores } = model;
    const best = [{ score: 0 }], unknownScore = scores.reduce((least, score) => Math.min(least, score), Infinity) - 10;
    const reach = (end, id, score, start) => {
      if (!best[end] || score > best[end].score) best[end] = { id, score, start };
    };
    for (let start = 0; start < letters.length; start++) {
      let piece = "";
      for (let end = start + 1; end <= Math.min(letters.length, start + longest); end++) {
        piece += letters[end - 1];
        if (ids.has(piece)) reach(end, ids.get(piece), scores[ids.get(piece)] + best[start].score, start);
      }
      if (!ids.has(letters[start])) reach(start + 1, unk, unknownScore + best[start].score, start);
    }
    const pieces = [];
    for (let end = letters.length, wasUnknown = false; end > 0; end = best[end].start) {
      const isUnknown = best[end].id === unk, text = letters.slice(best[end].start, end).join("");
      if (isUnknown && wasUnknown) pieces[0] = text + pieces[0];
      else pieces.unshift(text);
      wasUnknown = isUnknown;
    }
    return pieces.map((piece) => ids.get(piece) ?? unk);
  }

  const MODELS = {
    BPE: encodeBpe,
    WordPiece: encodeWordPiece,
    Unigram: encodeUnigram,
    WordLevel: (model, word) => [indexOf(model).ids.get(word) ?? model.unk],
  };

  // ------------------------------------------------------------------------------------------------ decoders
  const CONTRACTIONS = [[" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"], [" n't", "n't"], [" 'm", "'m"],
    [" do not", " don't"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"]];

  function joinWordPiece(step, token, i) {
    const text = i === 0 ? token : token.startsWith(step.prefix) ? token.slice(step.prefix.length) : ` ${token}`;
    return step.cleanup ? CONTRACTIONS.reduce((out, [from, to]) => out.replaceAll(from, to), text) : text;
  }

  function stripStart({ content, start }, text) {
    let n = 0;
    while (n < start && text[n] === content) n++;
    return text.slice(n);
  }

  /** Functions from tokens to texts, which are joined after the last one. */
  const DECODERS = {
    Replace: (step, tokens) => tokens.map((token) => token.replaceAll(step.pattern.String, () => step.content)),
    Metaspace: (_, tokens) => tokens.map((token) => token.replaceAll("▁", " ")),
    Fuse: (_, tokens) => [tokens.join("")],
    Strip: (step, tokens) => tokens.map((token) => stripStart(step, token)),
    WordPiece: (step, tokens) => tokens.map((token, i) => joinWordPiece(step, token, i)),
    ByteLevel: (_, tokens) => [fromBytes(tokens.flatMap((token) => tokenBytes(token) || [...toBytes(token)]), false)],
  };

  // ------------------------------------------------------------------------------------------------ encode, decode
  function encodePlain(tokenizer, text) {
    const normalized = tokenizer.normalizers.reduce((out, step) => NORMALIZERS[step.type](step, out), text);
    const pieces = tokenizer.pre_tokenizers.reduce(
      (all, step) => all.flatMap((piece) => SPLITTERS[step.type](step, piece)).filter(Boolean), [normalized].filter(Boolean));
    return pieces.flatMap((piece) => MODELS[tokenizer.model.type](tokenizer.model, piece));
  }

  /** Text of a token with its leading space, as Python's `token_texts` writes it for the stored maps. */
  function tokenText(tokenizer, id) {
    const token = tokenizer.model.tokens[id] ?? "";
    if (tokenizer.special.includes(id)) return token;
    if (!tokenizer.decoders.some((step) => step.type === "ByteLevel")) return token.replaceAll("▁", " ");
    const bytes = tokenBytes(token);
    return bytes ? escapedText(bytes) : token;
  }

  /**
   * Ids of a text and the texts of their tokens, without special tokens, as `Tokenizer.encode` gives them. If the tokenizer has a
   * mask, [MASK] and <mask> are that token, and white space before it belongs to it. Half of a surrogate pair becomes U+FFFD.
   */
  function encode(tokenizer, text) {
    const whole = text.replace(/\p{Cs}/gu, "\ufffd"), { mask } = tokenizer, ids = [];
    const parts = mask === null ? [whole] : whole.split(/\[MASK\]|<mask>/);
    parts.slice(0, -1).forEach((part) =>
      ids.push(...encodePlain(tokenizer, part.replace(/[\p{White_Space}\x1c-\x1f]+$/u, "")), mask));
    ids.push(...encodePlain(tokenizer, parts[parts.length - 1]));
    return { ids, tokens: ids.map((id) => tokenText(tokenizer, id)) };
  }

  /** Text of ids, without special tokens, as `Tokenizer.decode` gives it. */
  function decode(tokenizer, ids) {
    const tokens = ids.filter((id) => !tokenizer.added.includes(id)).map((id) => tokenizer.model.tokens[id] ?? null)
      .filter((token) => token !== null);
    const texts = tokenizer.decoders.reduce((out, step) => DECODERS[step.type](step, out), tokens);
    return texts.join(tokenizer.decoders.length ? "" : " ");
  }

  return { encode, decode };
})();

if (typeof module !== "undefined") module.exports = { encode, decode };
