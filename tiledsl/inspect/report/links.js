"use strict";
// Which lines of a report belong together, and the colours of a line. It needs no document, so that it can be tested alone.

const TITLES = { python: "Python", ir: "IR", ptx: "PTX", sass: "SASS" };
const PANES = Object.keys(TITLES);

// Rows of the Python pane: a line with the name of its file before each function, then its lines.
function pythonRows(data) {
  return data.python.flatMap((chunk) => {
    let quoted = false;
    const lines = chunk.lines.map((text, i) => {
      const inside = quoted;
      if ((text.match(/"""/g) || []).length % 2) quoted = !quoted;
      return { file: chunk.file, line: chunk.first + i, text, quoted: inside };
    });
    return [{ file: chunk.file, line: 0, text: data.files[chunk.file] }, ...lines];
  });
}

// The place itself, and those of the calls that it was inlined into.
function chain(data, place) {
  const found = [];
  for (; place >= 0; place = data.places[place][3]) found.push(place);
  return found;
}

const lineOf = (data, place) => data.places[place].slice(0, 2).join(":");

function byKey(count, keysOf) {
  const found = new Map();
  for (let row = 0; row < count; row++)
    for (const key of keysOf(row)) found.has(key) ? found.get(key).push(row) : found.set(key, [row]);
  return found;
}

// What the links are made of: rows by Python line ("file:line", callers too) and by place, of each pane.
function makeIndex(data, stage) {
  const body = data.ir.bodies[data.ir.stages[stage].body];
  const python = pythonRows(data);
  const sass = data.sass || { places: [], ptx: [], texts: [] };
  const lines = (places) => byKey(places.length, (row) => new Set(chain(data, places[row]).map((p) => lineOf(data, p))));
  const exact = (places) => byKey(places.length, (row) => (places[row] < 0 ? [] : [places[row]]));
  return {
    body,
    python,
    sass,
    pythonByLine: byKey(python.length, (row) => (python[row].line ? [python[row].file + ":" + python[row].line] : [])),
    lines: { ir: lines(body.places), ptx: lines(data.ptx.places), sass: lines(sass.places) },
    exact: { ir: exact(body.places), ptx: exact(data.ptx.places) },
    sassByPtx: byKey(sass.ptx.length, (row) => (sass.ptx[row] < 0 ? [] : [sass.ptx[row]])),
  };
}

// The rows of every pane that belong to a row of one: all that it became, and all that it came from.
function related(data, index, pane, row) {
  const found = { python: [], ir: [], ptx: [], sass: [] };
  found[pane] = [row];
  if (pane === "python") {
    const key = index.python[row].file + ":" + index.python[row].line;
    for (const other of ["ir", "ptx", "sass"]) found[other] = index.lines[other].get(key) || [];
    return found;
  }
  const ptx = pane === "sass" ? index.sass.ptx[row] : pane === "ptx" ? row : -1;
  const own = { ir: index.body.places, ptx: data.ptx.places, sass: index.sass.places }[pane][row];
  const seen = new Set(chain(data, own).map((p) => lineOf(data, p)));
  found.python = [...seen].flatMap((key) => index.pythonByLine.get(key) || []);
  if (pane === "ir") {
    found.ptx = index.exact.ptx.get(own) || [];
    found.sass = found.ptx.flatMap((each) => index.sassByPtx.get(each) || []);
    return found;
  }
  // A place with a column is that of one op; where no op has it, the line is what is known.
  const place = ptx >= 0 && data.ptx.places[ptx] >= 0 ? data.ptx.places[ptx] : own;
  found.ir = index.exact.ir.get(place) || (place < 0 ? [] : index.lines.ir.get(lineOf(data, place)) || []);
  if (pane === "sass") found.ptx = ptx >= 0 ? [ptx] : [];
  else found.sass = index.sassByPtx.get(row) || [];
  return found;
}

// What a control code says: "B0-2---:R-:W3:Y:S04".
function control(code) {
  const [waits, read, write, yields, stall] = code.split(":");
  const awaited = [...waits.slice(1)].filter((c) => c !== "-").join(", ");
  return [
    awaited && "waits for scoreboard " + awaited,
    write[1] !== "-" && "its result sets scoreboard " + write[1],
    read[1] !== "-" && "its operands, once read, set scoreboard " + read[1],
    yields === "Y" && "yields to another warp",
    "stalls " + (stall === "S01" ? "1 clock" : Number(stall.slice(1)) + " clocks"),
  ].filter(Boolean).join("; ");
}

// -- coloured text ------------------------------------------------------------------------------------------------------

const STRING = ["q", /"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/];
const NUMBER = ["d", /\b(?:0[xXfFdD][0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b/];
const TOKENS = {
  python: [["x", /#.*/], ["q", /""".*?(?:"""|$)/], STRING,
    ["w", /\b(?:def|return|for|in|if|elif|else|while|with|as|and|or|not|is|None|True|False|lambda|pass|assert|break|continue|import|from)\b|^\s*@[\w.]+/],
    NUMBER],
  ir: [STRING, ["v", /%\w+/], ["w", /\b[a-z]\w*\.[a-z_]\w*\b|\bkernel\b/], NUMBER],
  ptx: [["x", /\/\/.*/], STRING, ["v", /%\w+|\$\w+/], ["w", /^\s*(?:@!?%\w+\s+)?\.?[a-z][\w.:]*/], NUMBER],
  sass: [["w", /^(?:@!?U?P\w+ +)?[A-Z][\w.]*/], ["v", /\b(?:U?R|U?P|SB|B)(?:\d+|Z|T)\b|\.reuse/], ["d", /\b0x[0-9a-f]+\b|\b\d+(?:\.\d+)?\b/]],
};
const SCANNERS = Object.fromEntries(Object.entries(TOKENS).map(([pane, kinds]) =>
  [pane, new RegExp(kinds.map(([, pattern]) => "(" + pattern.source + ")").join("|"), "g")]));

// The pieces of a line: [class or "", text].
function pieces(pane, text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(SCANNERS[pane])) {
    if (match.index > end) found.push(["", text.slice(end, match.index)]);
    found.push([TOKENS[pane][match.slice(1).findIndex((part) => part !== undefined)][0], match[0]]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push(["", text.slice(end)]);
  return found;
}

if (typeof module !== "undefined") module.exports = { control, makeIndex, pieces, related };
