"use strict";
// Charts of the page, drawn as SVG from the rows that the page holds. A point is
// {x, y, provider, row}; a frame is the plot area and its two logarithmic scales.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1200;
// More points than this are slow to draw and show no more.
const MAX_POINTS = 4000;

const make = (name, attributes = {}, parent = null, text = null) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
};

const short = value => value >= 1000 ? value.toLocaleString("en", {maximumFractionDigits: 0})
  : String(parseFloat(value.toPrecision(3)));

// The path of a marker of about 9 units around (0, 0).
const SHAPES = {
  circle: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", square: "M-3.6,-3.6h7.2v7.2h-7.2z",
  "triangle-up": "M0,-4.6L4.4,3.4H-4.4z", "triangle-down": "M0,4.6L4.4,-3.4H-4.4z",
  diamond: "M0,-5L4.4,0L0,5L-4.4,0z", x: "M-4,-2L-2,-4L0,-2L2,-4L4,-2L2,0L4,2L2,4L0,2L-2,4L-4,2L-2,0z",
  pentagon: "M0,-4.6L4.4,-1.4L2.7,3.8H-2.7L-4.4,-1.4z", hexagon: "M-4,-2.3L0,-4.6L4,-2.3V2.3L0,4.6L-4,2.3z",
  star: "M0,-5L1.4,-1.6L5,-1.4L2.2,.8L3.1,4.4L0,2.4L-3.1,4.4L-2.2,.8L-5,-1.4L-1.4,-1.6z",
  cross: "M-1.5,-4.4h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9v-3h2.9z",
};
const marker = (parent, provider, x, y, style, extra = {}) => make("path", {
  d: SHAPES[style.mark] || SHAPES.circle, class: style.hollow ? "mark hollow" : "mark",
  style: `--colour:${style.colour}`, transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
  ...extra}, parent);

const scale = (low, high, from, to) => {
  const a = Math.log(low), b = Math.log(high);
  return value => from + (to - from) * (Math.log(value) - a) / (b - a);
};

// Powers of ten, with 2 and 5 between them where fewer than three powers fit.
const decades = (low, high) => {
  const ticks = [];
  for (const steps of [[1], [1, 2, 5]]) {
    ticks.length = 0;
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const step of steps) {
        const tick = step * 10 ** e;
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    if (ticks.length >= 3) break;
  }
  return ticks;
};
const doublings = (low, high) => {
  const ticks = [];
  for (let tick = 2 ** Math.ceil(Math.log2(low)); tick <= high; tick *= 2) ticks.push(tick);
  while (ticks.length > 12) ticks.splice(0, ticks.length, ...ticks.filter((_, i) => i % 2 === 0));
  return ticks;
};
// Ratios: the finest of a few steps that gives at least four ticks.
const RATIOS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50,
  100];
const ratios = (low, high) => {
  const inside = RATIOS.filter(tick => tick >= low && tick <= high);
  if (inside.length >= 4) return inside;
  for (const step of [0.1, 0.05, 0.02, 0.01]) {
    const ticks = [];
    for (let i = Math.max(1, Math.ceil(low / step)); i * step <= high * 1.0001; i++)
      ticks.push(parseFloat((i * step).toFixed(2)));
    if (ticks.length >= 4) return ticks;
  }
  return inside;
};

const frame = (holder, height, left, right, bottom, label) => {
  holder.textContent = "";
  const svg = make("svg", {viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label},
    holder);
  return {svg, left, right: WIDTH - right, top: 8, bottom: height - bottom, points: []};
};
const axisX = (f, ticks, x, title) => {
  for (const tick of ticks) {
    make("line", {class: "grid", x1: x(tick), x2: x(tick), y1: f.top, y2: f.bottom}, f.svg);
    make("text", {x: x(tick), y: f.bottom + 17, "text-anchor": "middle"}, f.svg, short(tick));
  }
  make("text", {class: "soft", x: (f.left + f.right) / 2, y: f.bottom + 37,
    "text-anchor": "middle"}, f.svg, title);
};
const axisY = (f, ticks, y, title) => {
  for (const tick of ticks) {
    make("line", {class: "grid", x1: f.left, x2: f.right, y1: y(tick), y2: y(tick)}, f.svg);
    make("text", {x: f.left - 7, y: y(tick) + 4, "text-anchor": "end"}, f.svg, short(tick));
  }
  const at = `translate(15,${(f.top + f.bottom) / 2}) rotate(-90)`;
  make("text", {class: "soft", transform: at, "text-anchor": "middle"}, f.svg, title);
};

// At most MAX_POINTS of `points`: every n-th in the order of y, both ends among them.
const thinned = points => {
  if (points.length <= MAX_POINTS) return points;
  const order = [...points].sort((a, b) => a.y - b.y);
  const step = (order.length - 1) / (MAX_POINTS - 1);
  return Array.from({length: MAX_POINTS}, (_, i) => order[Math.round(i * step)]);
};

// Pointing at a mark shows `describe(row)`; a click calls `chosen(row)`.
const pointer = (holder, f, describe, chosen) => {
  const tip = document.getElementById("tip");
  const near = event => {
    const box = f.svg.getBoundingClientRect(), zoom = WIDTH / box.width;
    const x = (event.clientX - box.left) * zoom, y = (event.clientY - box.top) * zoom;
    let best = null, least = (12 * zoom) ** 2;
    for (const point of f.points) {
      const away = (point.px - x) ** 2 + (point.py - y) ** 2;
      if (away < least) { least = away; best = point; }
    }
    return best;
  };
  f.svg.addEventListener("pointermove", event => {
    const point = near(event);
    f.svg.style.cursor = point ? "pointer" : "default";
    if (!point) { tip.style.display = "none"; return; }
    tip.textContent = describe(point.row);
    holder.append(tip);
    const box = holder.getBoundingClientRect();
    const x = event.clientX - box.left;
    tip.style.left = `${Math.min(x + 14, Math.max(0, box.width - 300))}px`;
    tip.style.top = `${event.clientY - box.top + 14}px`;
    tip.style.display = "block";
  });
  f.svg.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  f.svg.addEventListener("click", event => { const p = near(event); if (p) chosen(p.row); });
};

const put = (f, point, px, py, style, many) => {
  f.points.push({...point, px, py});
  marker(f.svg, point.provider, px, py, style,
    {opacity: many ? 0.45 : 0.7});
};

// A line a group: every ratio as a mark, the geometric mean as a large diamond and a number.
// groups: [{label, parts: [{provider, mean, points}]}].
const strips = (holder, groups, styles, describe, chosen) => {
  const tall = Math.max(1, ...groups.map(group => group.parts.length));
  const step = 17 * tall + 13, height = 8 + step * groups.length + 46;
  const longest = Math.max(8, ...groups.map(group => group.label.length));
  const f = frame(holder, height, Math.min(260, 8.2 * longest + 16), 70, 46,
    "Ratio to torch.matmul by suite");
  const all = groups.flatMap(g => g.parts.flatMap(part => part.points.map(p => p.x)));
  const low = Math.min(0.93, ...all) / 1.04, high = Math.max(1.07, ...all) * 1.04;
  const x = scale(low, high, f.left, f.right);
  axisX(f, ratios(low, high), x, "torch time / provider time (above 1 is faster than torch)");
  make("line", {class: "one", x1: x(1), x2: x(1), y1: f.top, y2: f.bottom}, f.svg);
  groups.forEach((group, at) => {
    const middle = f.top + step * (at + 0.5);
    make("text", {x: f.left - 9, y: middle + 4, "text-anchor": "end"}, f.svg, group.label);
    group.parts.forEach((part, line) => {
      const y = middle + 17 * (line - (group.parts.length - 1) / 2), style = styles[part.provider];
      thinned(part.points).forEach((point, i) =>
        put(f, point, x(point.x), y + 5 * Math.sin(i * 2.4), style, part.points.length > 60));
      make("path", {d: "M0,-8L6,0L0,8L-6,0z", class: "mark mean", style: `--colour:${style.colour}`,
        transform: `translate(${x(part.mean)},${y})`}, f.svg);
      make("text", {class: "value", x: f.right + 10, y: y + 4, style: `--colour:${style.colour}`},
        f.svg, part.mean.toFixed(3));
    });
  });
  pointer(holder, f, describe, chosen);
};

// Ratio over size, both logarithmic.
const bySize = (holder, points, styles, describe, chosen) => {
  const f = frame(holder, 440, 62, 16, 46, "Ratio to torch.matmul by size");
  const xs = points.map(p => p.x), ys = points.map(p => p.y);
  const x = scale(Math.min(...xs) / 1.12, Math.max(...xs) * 1.12, f.left, f.right);
  const low = Math.min(0.93, ...ys) / 1.05, high = Math.max(1.07, ...ys) * 1.05;
  const y = scale(low, high, f.bottom, f.top);
  axisX(f, doublings(Math.min(...xs) / 1.12, Math.max(...xs) * 1.12), x,
    "(batch · M · N · K)^⅓: the side of the cube of the same work");
  axisY(f, ratios(low, high), y, "torch time / provider time");
  make("line", {class: "one", x1: f.left, x2: f.right, y1: y(1), y2: y(1)}, f.svg);
  for (const point of thinned(points))
    put(f, point, x(point.x), y(point.y), styles[point.provider], points.length > 400);
  pointer(holder, f, describe, chosen);
};

// Rate over arithmetic intensity under the roof. Points outside the window are drawn at its edge.
const roofline = (holder, points, roof, window_, styles, describe, chosen) => {
  const [x0, x1, y0, y1] = window_;
  const f = frame(holder, 480, 66, 16, 46, "Roofline");
  const x = scale(x0, x1, f.left, f.right), y = scale(y0, y1, f.bottom, f.top);
  axisX(f, decades(x0, x1), x, "arithmetic intensity, FLOP / byte of compulsory traffic");
  axisY(f, decades(y0, y1), y, "TFLOP/s");
  if (roof) {
    const rate = at => Math.min(roof.peak_tflops, at * roof.memory_gbps / 1e3);
    const ridge = roof.peak_tflops * 1e3 / roof.memory_gbps;
    const start = Math.max(x0, y0 * 1e3 / roof.memory_gbps);
    const corners = [start, ...(ridge > start && ridge < x1 ? [ridge] : []), x1];
    make("path", {class: "roof", d: "M" + corners.map(
      at => `${x(at).toFixed(1)},${y(rate(at)).toFixed(1)}`).join("L")}, f.svg);
    make("text", {x: f.right - 4, y: y(roof.peak_tflops) - 6, "text-anchor": "end"}, f.svg,
      `${short(roof.peak_tflops)} TFLOP/s ${roof.unit}`);
    if (ridge > start * 2) {
      const middle = Math.sqrt(start * Math.min(ridge, x1));
      make("text", {x: x(middle) - 8, y: y(rate(middle)) - 8, "text-anchor": "end"}, f.svg,
        `${short(roof.memory_gbps)} GB/s`);
    }
  }
  const inside = (value, low, high) => Math.min(Math.max(value, low), high);
  let outside = 0;
  for (const point of thinned(points)) {
    const px = inside(point.x, x0, x1), py = inside(point.y, y0, y1);
    outside += px !== point.x || py !== point.y;
    put(f, point, x(px), y(py), styles[point.provider], points.length > 400);
  }
  pointer(holder, f, describe, chosen);
  return outside;
};
