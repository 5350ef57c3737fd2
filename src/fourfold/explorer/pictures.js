"use strict";
// Images of a live page: from the pixels of a file to the input of a Vision Transformer, as the evaluation transform in Python does.

/** Options of `preprocess`, from the settings of a checkpoint and its patch embedding. */
function transformOf({ mean, std, crop_pct: share, crop_mode: mode, interpolation }, { n_channels: channels, image_size: size }) {
  const all = (values) => Array.from({ length: channels }, (_, c) => values[c % values.length]);
  const resized = size.map((side) => Math.floor(side / share + 1e-6));
  return { mean: all(mean), std: all(std), size, resized, squash: mode === "squash", interpolation };
}

/** File without the EXIF data of a JPEG: a browser would turn the image, and Python does not. */
async function withoutExif(file) {
  const bytes = new Uint8Array(await file.arrayBuffer()), parts = [bytes.subarray(0, 2)];
  let at = 2;
  while (bytes[0] === 0xff && bytes[1] === 0xd8 && bytes[at] === 0xff && bytes[at + 1] !== 0xda) {
    const end = at + 2 + bytes[at + 2] * 256 + bytes[at + 3];
    if (bytes[at + 1] !== 0xe1) parts.push(bytes.subarray(at, end));
    at = end;
  }
  return new Blob([...parts, bytes.subarray(at)]);
}

/** For each pixel of a side that is resized: the first pixel that it averages, and their weights. The filter is widened where the
 * side becomes shorter, as in Pillow and torchvision; a canvas would filter in another way. */
function filterWeights(from, to, isCubic) {
  const scale = from / to, wide = Math.max(1, scale), reach = (isCubic ? 2 : 1) * wide;
  const kernel = (t) => (!isCubic ? Math.max(0, 1 - t) : t < 1 ? (1.5 * t - 2.5) * t * t + 1 : t < 2 ? -0.5 * (((t - 5) * t + 8) * t - 4) : 0);
  return Array.from({ length: to }, (_, i) => {
    const centre = scale * (i + 0.5), first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const count = Math.min(from, Math.trunc(centre + reach + 0.5)) - first;
    const raw = Array.from({ length: count }, (_, j) => kernel(Math.abs(first + j + 0.5 - centre) / wide));
    const sum = raw.reduce((a, b) => a + b);
    return { first, weights: raw.map((weight) => weight / sum) };
  });
}

/** Image { width, height, data } of C bytes a pixel, resized along its rows or its columns. */
function resizeSide({ width, height, data }, channels, length, isCubic, alongRows) {
  const plan = filterWeights(alongRows ? width : height, length, isCubic), [w, h] = alongRows ? [length, height] : [width, length];
  const resized = new Uint8ClampedArray(w * h * channels), step = (alongRows ? 1 : width) * channels;
  for (let i = 0; i < resized.length; i++) {
    const c = i % channels, x = Math.floor(i / channels) % w, y = Math.floor(i / channels / w), { first, weights } = plan[alongRows ? x : y];
    let sum = 0, at = (alongRows ? y * width + first : first * width + x) * channels + c;
    for (let j = 0; j < weights.length; j++, at += step) sum += weights[j] * data[at];
    resized[i] = sum;
  }
  return { width: w, height: h, data: resized };
}

/** Bytes (H, W, C) of an image { width, height, data } of RGBA bytes: gray or RGB, resized to cover `resized`, and cropped to `size`. */
function preprocess({ width, height, data }, { mean, resized, squash, interpolation, size }) {
  const channels = mean.length, isCubic = interpolation === "bicubic";
  const gray = (i) => (19595 * data[i] + 38470 * data[i + 1] + 7471 * data[i + 2] + 32768) >> 16; // as in Pillow
  const level = (i) => (channels === 1 ? gray(4 * i) : data[Math.floor(i / channels) * 4 + (i % channels)]);
  const levels = new Uint8ClampedArray(width * height * channels);
  for (let i = 0; i < levels.length; i++) levels[i] = level(i);
  let image = { width, height, data: levels };
  const cover = [Math.floor((height * resized[1]) / width), Math.floor((width * resized[0]) / height)];
  const [h, w] = squash ? resized : resized.map((side, i) => Math.max(side, cover[i]));
  image = resizeSide(resizeSide(image, channels, w, isCubic, true), channels, h, isCubic, false);
  const half = (n) => (n % 4 === 1 ? (n - 1) / 2 : Math.ceil(n / 2)); // rounded to even, as in Python
  const [rows, columns] = size, top = half(h - rows), left = half(w - columns);
  return Uint8ClampedArray.from({ length: rows * columns * channels }, (_, i) => {
    const [y, x] = [Math.floor(i / channels / columns), Math.floor(i / channels) % columns];
    return image.data[((top + y) * w + left + x) * channels + (i % channels)];
  });
}

/** Pixels (C, H, W) as the model reads them, from bytes (H, W, C). */
function normalized(bytes, { mean, std, size: [height, width] }) {
  const channels = mean.length;
  return Float32Array.from({ length: bytes.length }, (_, i) => {
    const c = Math.floor(i / (height * width));
    return (bytes[(i % (height * width)) * channels + c] / 255 - mean[c]) / std[c];
  });
}

if (typeof document === "undefined") module.exports = { preprocess, normalized };
