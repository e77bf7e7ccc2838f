"""The page's styles and script, as text that is put into it."""

CSS = """
:root { --ink: #1c1e21; --soft: #5f6570; --line: #e3e5e8; --back: #ffffff; --shade: #f6f7f9; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--back);
  font: 15px/1.45 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif; }
main { max-width: 1340px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 8px; }
h2 { font-size: 18px; margin: 34px 0 8px; }
.facts { margin: 0; padding: 0; list-style: none; color: var(--soft); }
.alarm { margin: 14px 0; padding: 12px 16px; background: #fdecea; color: #7a1710; font-weight: 600;
  border-left: 6px solid #c62828; }
.cards { display: flex; flex-wrap: wrap; gap: 14px; margin: 22px 0 4px; }
.card { flex: 1 1 240px; max-width: 400px; padding: 12px 16px; background: var(--shade);
  border-top: 4px solid #888; border-radius: 4px; }
.card h2 { margin: 0; font-size: 15px; }
.card b { display: block; font-size: 30px; line-height: 1.25; }
.card p { margin: 0; color: var(--soft); font-size: 13.5px; }
.note { color: var(--soft); font-size: 13.5px; margin: 6px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; white-space: nowrap; }
th, td { padding: 4px 9px; border-bottom: 1px solid var(--line); text-align: left; }
th { position: sticky; top: 0; background: var(--back); cursor: pointer; user-select: none;
  border-bottom: 2px solid #c9ccd1; }
th:hover { background: var(--shade); }
th[data-order="1"]::after { content: " \\25B2"; font-size: 10px; }
th[data-order="-1"]::after { content: " \\25BC"; font-size: 10px; }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; }
tbody tr:hover { background: var(--shade); }
tr.bad td { background: #fdecea; }
#environment td { white-space: normal; max-width: 420px; overflow-wrap: anywhere; }
#failures td:last-child { white-space: normal; min-width: 280px; }
#filter { width: min(460px, 100%); padding: 7px 10px; font: inherit; border: 1px solid #c9ccd1;
  border-radius: 4px; margin: 4px 0 10px; }
#found { color: var(--soft); margin-left: 12px; font-size: 13.5px; }
@media print { th { position: static; } #filter { display: none; } }
"""

JS = """
"use strict";
const number = text => {
  const found = /-?[0-9][0-9,.]*(e[-+]?[0-9]+)?/i.exec(text);
  return found ? parseFloat(found[0].replace(/,/g, "")) : NaN;
};
// What was not measured comes last, whichever way the column is sorted.
const order = (a, b, way) => {
  const noA = a === null || a !== a, noB = b === null || b !== b;
  if (noA || noB) return noA - noB;
  return way * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, {numeric: true}));
};
const mark = (head, heads) => {
  const way = head.dataset.order === "1" ? -1 : 1;
  for (const other of heads) delete other.dataset.order;
  head.dataset.order = way;
  return way;
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("th")], body = table.tBodies[0];
  heads.forEach((head, at) => head.addEventListener("click", () => {
    const way = mark(head, heads), asNumber = head.classList.contains("num");
    const key = row => {
      const text = row.cells[at].textContent;
      return asNumber ? number(text) : text;
    };
    body.append(...[...body.rows].map(row => [key(row), row])
      .sort((x, y) => order(x[0], y[0], way)).map(pair => pair[1]));
  }));
}
const source = document.getElementById("data");
if (source) {
  const data = JSON.parse(source.textContent), table = document.getElementById("all");
  const found = document.getElementById("found"), filter = document.getElementById("filter");
  const value = (column, row) =>
    column.number ? column.values[row] : column.texts[column.values[row]];
  const status = data.columns.find(column => column.name === "status");
  const words = data.columns.filter(column => !column.number);
  let rows = [...Array(data.rows).keys()], kept = rows;
  const head = table.createTHead().insertRow(), body = table.createTBody();
  const show = () => {
    body.textContent = "";
    for (const row of kept.slice(0, data.shown)) {
      const line = body.insertRow();
      if (value(status, row) !== "ok") line.className = "bad";
      for (const column of data.columns) {
        const cell = line.insertCell(), it = value(column, row);
        cell.textContent = it === null ? "\\u2013" : it;
        if (column.number) cell.className = "num";
      }
    }
    found.textContent = `${kept.length.toLocaleString("en")} rows` +
      (kept.length > data.shown ? `, the first ${data.shown} shown` : "");
  };
  const select = () => {
    const asked = filter.value.toLowerCase().split(/\\s+/).filter(Boolean);
    kept = !asked.length ? rows : rows.filter(row => {
      const text = words.map(column => value(column, row)).join(" ").toLowerCase();
      return asked.every(word => text.includes(word));
    });
    show();
  };
  for (const column of data.columns) {
    const cell = document.createElement("th");
    cell.textContent = column.name;
    cell.className = column.number ? "num" : "text";
    cell.addEventListener("click", () => {
      const way = mark(cell, head.cells);
      rows = [...rows].sort((x, y) => order(value(column, x), value(column, y), way));
      select();
    });
    head.append(cell);
  }
  filter.addEventListener("input", select);
  show();
}
"""
