// What all pictures share: colours, numbers as text, sharp canvases, the tip at the pointer.
// It must never know the story.

const element = (id) => document.getElementById(id);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// Three or four digits that count.
function bytesText(bytes) {
  let unit = 0;
  let value = Math.abs(bytes);
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  const digits = unit === 0 || value >= 1000 ? 0 : value >= 100 ? 1 : 2;
  return `${bytes < 0 ? "−" : ""}${value.toFixed(digits)} ${UNITS[unit]}`;
}

const countText = (count) => Math.round(count).toLocaleString("en-US");
const exactText = (bytes) =>
  bytes < 1024 ? `${bytes} bytes` : `${bytesText(bytes)} (${countText(bytes)} bytes)`;
const percentText = (share) => `${(100 * share).toFixed(share < .0995 ? 2 : 1)} %`;

const plural = (count, one, many = `${one}s`) => `${countText(count)} ${count === 1 ? one : many}`;

// Round numbers between 0 and `most`, about `wanted` of them; of bytes those are powers of two.
function ticks(most, wanted, binary) {
  if (!(most > 0)) return [0];
  let step;
  if (binary) {
    step = 2 ** Math.round(Math.log2(most / wanted));
  } else {
    const rough = most / wanted;
    const unit = 10 ** Math.floor(Math.log10(rough));
    step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * unit >= rough) * unit);
  }
  const all = [];
  for (let value = 0; value <= most; value += step) all.push(value);
  return all;
}

// Hues that stay apart for most colour-blind readers when neighbours, at one lightness.
const HUES = [255, 62, 158, 22, 305, 205, 98, 345, 130];

class Theme {
  constructor() {
    const wanted = matchMedia("(prefers-color-scheme: dark)");
    this.set(wanted.matches);
    this.listeners = [];
    wanted.addEventListener("change", () => this.change(wanted.matches));
  }
  set(dark) {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    const style = getComputedStyle(document.documentElement);
    for (const name of ["page", "card", "ink", "soft", "faint", "line", "held", "held-edge", "accent", "alarm"]) {
      this[name.replace("-e", "E")] = style.getPropertyValue(`--${name}`).trim();
    }
  }
  change(dark) {
    this.set(dark);
    for (const listener of this.listeners) listener();
  }
  // The colour of a category: along one ramp where categories are more or less of something.
  category(number, categories, ramp) {
    if (ramp) {
      const share = categories > 1 ? number / (categories - 1) : 0;
      const light = this.dark ? .82 - .28 * share : .82 - .34 * share;
      return `oklch(${light} ${.10 + .06 * share} ${178 + 190 * share})`;
    }
    if (number >= HUES.length) return this.dark ? "oklch(.56 .01 260)" : "oklch(.68 .01 260)";
    return `oklch(${this.dark ? .70 : .67} ${.125} ${HUES[number]})`;
  }
}

// A canvas that has as many pixels as the screen, and draws once a frame at most.
class Picture {
  constructor(id, draw) {
    this.canvas = element(id);
    this.context = this.canvas.getContext("2d");
    this.draw = draw;
    this.due = false;
    this.frames = []; // milliseconds of the last drawings
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    this.resize();
  }
  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const scale = window.devicePixelRatio || 1;
    this.width = Math.max(1, Math.round(width));
    this.height = Math.max(1, Math.round(height));
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.request();
  }
  request() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      const start = performance.now();
      this.context.clearRect(0, 0, this.width, this.height);
      this.draw(this.context, this.width, this.height);
      this.frames.push(performance.now() - start);
      if (this.frames.length > 240) this.frames.shift();
    });
  }
  // Where in the picture the pointer is.
  at(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }
}

// A list of names and values.
function facts(pairs) {
  const list = document.createElement("dl");
  list.className = "facts";
  for (const [name, value, mono] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    if (mono) dd.className = "mono";
    list.append(dt, dd);
  }
  return list;
}

// The tip at the pointer; no pairs hide it.
function tip(event, title, pairs) {
  const box = element("tip");
  if (!event) {
    box.hidden = true;
    return;
  }
  const head = document.createElement("strong");
  head.textContent = title;
  box.replaceChildren(head, facts(pairs));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const x = event.clientX + 16 + width > innerWidth ? event.clientX - 12 - width : event.clientX + 16;
  const y = Math.min(event.clientY + 14, innerHeight - height - 8);
  box.style.left = `${Math.max(4, x)}px`;
  box.style.top = `${Math.max(4, y)}px`;
}

// Diagonal lines over what is drawn in `pattern`'s colour.
function hatch(context, colour, gap = 5) {
  const tile = document.createElement("canvas");
  const scale = 4;
  tile.width = tile.height = gap * scale;
  const pen = tile.getContext("2d");
  pen.scale(scale, scale);
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const shift of [-gap, 0, gap]) {
    pen.moveTo(shift - 1, gap + 1);
    pen.lineTo(shift + gap + 1, -1);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern;
}
