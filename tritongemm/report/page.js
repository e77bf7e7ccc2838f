"use strict";
// Theme, sortable tables, the table of all rows with its filter, and the menus of the charts.

const element = id => document.getElementById(id);
const cellOf = (parent, name, text, kind = "") => {
  const node = document.createElement(name);
  node.textContent = text;
  if (kind) node.className = kind;
  parent.append(node);
  return node;
};

// --- theme: the reader's choice, else the system's ------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = name => {
  document.documentElement.dataset.theme = name;
  element("theme").textContent = name === "dark" ? "Light mode" : "Dark mode";
};
theme(dark.matches ? "dark" : "light");
dark.addEventListener("change", event => theme(event.matches ? "dark" : "light"));
element("theme").addEventListener("click", () =>
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

// --- sorting ---------------------------------------------------------------------------------

const number = text => {
  const found = /-?[0-9][0-9,.]*(e[-+]?[0-9]+)?/i.exec(text);
  return found ? parseFloat(found[0].replace(/,/g, "")) : NaN;
};
// What was not measured comes last in both directions.
const order = (a, b, way) => {
  const noA = a === null || a !== a, noB = b === null || b !== b;
  if (noA || noB) return noA - noB;
  return way * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, {numeric: true}));
};
// The head becomes a button, so that Tab reaches it and Enter or Space sorts.
const sortable = (head, heads, sort) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.textContent = "";
  head.scope = "col";
  head.setAttribute("aria-sort", "none");
  head.append(button);
  button.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of heads()) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    sort(up ? 1 : -1);
  });
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("thead th")], body = table.tBodies[0];
  heads.forEach((head, at) => sortable(head, () => heads, way => {
    const key = row => {
      const text = row.cells[at].textContent;
      return head.classList.contains("num") ? number(text) : text;
    };
    body.append(...[...body.rows].map(row => [key(row), row])
      .sort((x, y) => order(x[0], y[0], way)).map(pair => pair[1]));
  }));
}

// --- the rows --------------------------------------------------------------------------------

const data = JSON.parse(element("data").textContent);
const column = Object.fromEntries(data.columns.map(one => [one.name, one]));
const value = (name, row) => {
  const one = column[name];
  return one.texts ? one.texts[one.values[row]] : one.values[row];
};
const texts = data.columns.filter(one => one.texts).map(one => one.name);
const every = [...Array(data.rows).keys()];
const filter = element("filter");
const matching = rows => {
  const asked = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  return !asked.length ? rows : rows.filter(row => {
    const words = texts.map(name => value(name, row)).join(" ").toLowerCase();
    return asked.every(word => words.includes(word));
  });
};

if (filter) {
  const table = element("all"), more = element("more");
  const head = table.createTHead().insertRow(), body = table.createTBody();
  let sorted = every, kept = every, shown = data.shown;
  const show = () => {
    body.textContent = "";
    for (const row of kept.slice(0, shown)) {
      const line = body.insertRow();
      if (value("status", row) !== "ok") line.className = "bad";
      for (const one of data.columns) {
        if (one.hidden) continue;
        const it = value(one.name, row);
        cellOf(line, "td", it === null ? "–" : it, one.texts ? "" : "num");
      }
    }
    element("found").textContent = `${kept.length.toLocaleString("en")} rows` +
      (kept.length > shown ? `, the first ${shown.toLocaleString("en")} shown` : "");
    more.hidden = kept.length <= shown;
  };
  const select = () => { kept = matching(sorted); shown = data.shown; show(); };
  for (const one of data.columns) {
    if (one.hidden) continue;
    const cell = cellOf(head, "th", one.label, one.texts ? "text" : "num");
    sortable(cell, () => [...head.cells], way => {
      sorted = [...sorted].sort((x, y) => order(value(one.name, x), value(one.name, y), way));
      select();
    });
  }
  filter.addEventListener("input", select);
  more.addEventListener("click", () => { shown += 5 * data.shown; show(); });
  show();
}

// --- the charts ------------------------------------------------------------------------------

const describe = row => {
  const at = name => value(name, row);
  const lines = [`${at("problem")}  ${at("dtype")} ${at("layout")} ${at("suite")}`, at("provider")];
  if (at("ratio_vs_torch") !== null)
    lines.push(`${at("ratio_vs_torch")} of torch (${at("ratio_low")} to ${at("ratio_high")})`);
  if (at("time_us_p50") !== null) lines.push(`${at("time_us_p50")} us, ${at("tflops")} TFLOP/s` +
    (at("pct_of_roof") === null ? "" : `, ${at("pct_of_roof")} % of the roof`));
  if (at("config_id")) lines.push(at("config_id"));
  return lines.join("\n");
};
// A click on a mark lists the problem's rows.
const chosen = row => {
  filter.value = value("problem", row);
  filter.dispatchEvent(new Event("input"));
  element("rows").scrollIntoView();
};
const options = (select, entries) => {
  for (const [text, id] of entries) {
    const option = cellOf(select, "option", text);
    option.value = id;
  }
};
const legend = (holder, providers) => {
  holder.textContent = "";
  for (const provider of providers) {
    const label = document.createElement("span");
    marker(make("svg", {viewBox: "-7 -6 14 12", "aria-hidden": "true"}, label), provider, 0, 0,
      data.styles[provider]);
    label.append(provider);
    holder.append(label);
  }
};
const providersOf = rows => Object.keys(data.styles).filter(
  provider => rows.some(row => value("provider", row) === provider));
const wanted = key => row =>
  ["device", "dtype", "layout"].every((name, at) => key[at] === undefined
    || value(name, row) === key[at]);

if (data.views.length) {
  const timed = every.filter(row => value("ratio_vs_torch", row) !== null
    && value("status", row) === "ok" && !data.yardsticks.includes(value("provider", row)));
  const views = data.views.map(key => [key.join(" · "), JSON.stringify(key)]);
  options(element("view"), views);
  options(element("size-view"), views);
  const bySuite = (rows, name = "suite") => {
    const groups = new Map();
    for (const row of rows) {
      const key = value(name, row);
      groups.set(key, [...(groups.get(key) || []), row]);
    }
    return [...groups].sort((a, b) => a[0].localeCompare(b[0]));
  };
  const overview = () => {
    const rows = timed.filter(wanted(JSON.parse(element("view").value)));
    const providers = providersOf(rows);
    legend(element("overview-legend"), providers);
    strips(element("overview-chart"), bySuite(rows).map(([suite, some]) => ({
      label: suite || "(no suite)",
      parts: providers.map(provider => {
        const own = some.filter(row => value("provider", row) === provider);
        const logs = own.map(row => Math.log(value("ratio_vs_torch", row)));
        return {provider, mean: Math.exp(logs.reduce((a, b) => a + b, 0) / logs.length),
          points: own.map(row => ({x: value("ratio_vs_torch", row), provider, row}))};
      }).filter(part => part.points.length)})), data.styles, describe, chosen);
  };
  const size = () => {
    const key = JSON.parse(element("size-view").value), menu = element("size-suite");
    const inView = timed.filter(wanted(key)).filter(row => value("side", row) > 0);
    const suites = bySuite(inView).map(group => group[0]), before = menu.value;
    menu.textContent = "";
    options(menu, [["all suites", ""], ...suites.filter(Boolean).map(suite => [suite, suite])]);
    if (suites.includes(before)) menu.value = before;
    const rows = inView.filter(row => !menu.value || value("suite", row) === menu.value);
    legend(element("size-legend"), providersOf(rows));
    bySize(element("size-chart"), rows.map(row => ({x: value("side", row), row,
      y: value("ratio_vs_torch", row), provider: value("provider", row)})), data.styles, describe,
    chosen);
  };
  element("view").addEventListener("change", overview);
  for (const id of ["size-view", "size-suite"]) element(id).addEventListener("change", size);
  overview();
  size();
}

if (data.roofs.length) {
  options(element("roof-view"), data.roofs.map((one, at) => [`${one.device} · ${one.dtype}`, at]));
  const draw = () => {
    const one = data.roofs[element("roof-view").value];
    const rows = every.filter(wanted([one.device, one.dtype])).filter(row =>
      value("status", row) === "ok" && value("tflops", row) > 0 && value("intensity", row) > 0);
    legend(element("roof-legend"), providersOf(rows));
    const outside = roofline(element("roof-chart"), rows.map(row => ({x: value("intensity", row),
      y: value("tflops", row), provider: value("provider", row), row})), one.roof, one.window,
    data.styles, describe, chosen);
    element("roof-note").textContent = (one.roof ? "" :
      "The peaks of this device are not on record, so there is no roof. ") + (outside ?
      `${outside.toLocaleString("en")} points lie outside the axes and are drawn at their edge.`
      : "");
  };
  element("roof-view").addEventListener("change", draw);
  draw();
}

// --- heat maps of sweeps ---------------------------------------------------------------------

if (data.heats.length) {
  const menu = element("heat-view"), heat = element("heat");
  options(menu, data.heats.map((one, at) => [one.label, at]));
  // Viridis at five points.
  const viridis = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const paint = share => {
    const at = Math.max(0, Math.min(1, (share - 0.2) / 0.8)) * 4, i = Math.min(3, Math.floor(at));
    return `rgb(${viridis[i].map((low, c) => Math.round(low + (at - i) *
      (viridis[i + 1][c] - low))).join(",")})`;
  };
  const draw = () => {
    heat.textContent = "";
    for (const panel of data.heats[menu.value].panels) {
      const table = document.createElement("table");
      cellOf(table, "caption", panel.kernel);
      const head = table.createTHead().insertRow();
      for (const text of ["block_m \\ block_n", ...panel.ns]) cellOf(head, "th", text, "num");
      const body = table.createTBody();
      panel.ms.forEach((m, i) => {
        const line = body.insertRow();
        cellOf(line, "th", m, "num");
        for (const cell of panel.cells[i]) {
          const [share, text, title] = cell || [null, "", ""];
          const box = cellOf(line, "td", text);
          box.title = title;
          if (share !== null) {
            box.style.background = paint(share);
            box.style.color = share < 0.65 ? "#fff" : "#111";
          }
        }
      });
      heat.append(table);
    }
  };
  menu.addEventListener("change", draw);
  draw();
}
