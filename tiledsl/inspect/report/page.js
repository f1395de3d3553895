// The page of a report. All texts of the user become text nodes: nothing here makes markup of a string.

function element(name, settings, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(settings || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function svg(name, settings) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(settings)) made.setAttribute(key, value);
  return made;
}

const ROW = 18; // as --height

// A list of lines of which only those in sight are in the document: 20,000 lines open as fast as 20.
class Pane {
  constructor(name, title, page) {
    Object.assign(this, { name, page, here: -1, lit: new Set(), changed: new Set(), texts: [] });
    this.window = element("div", { class: "window", role: "presentation" });
    this.sizer = element("div", { class: "sizer", role: "presentation" }, this.window);
    this.rows = element("div", { class: "rows", tabindex: 0, role: "listbox", "aria-label": title + ", lines" }, this.sizer);
    this.strip = element("div", { class: "strip", "aria-hidden": "true" });
    this.find = element("input", { type: "search", placeholder: "find", "aria-label": "Find in " + title });
    this.head = element("div", { class: "head" }, element("h3", {}, title), this.find);
    this.root = element("section", { class: "pane", "aria-label": title }, this.head, element("div", { class: "body" }, this.rows, this.strip));
    this.rows.addEventListener("scroll", () => this.soon());
    this.rows.addEventListener("keydown", (event) => this.key(event));
    this.rows.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row && !String(getSelection())) page.select(name, Number(row.dataset.row));
    });
    this.find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.search(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") this.rows.focus();
    });
    new ResizeObserver(() => this.soon()).observe(this.rows);
  }

  // texts: of all lines. before: what is drawn before a text.
  fill(texts, before) {
    Object.assign(this, { texts, before });
    const widest = highest(texts.map((text) => text.length + 3 * (text.split("\t").length - 1))); // a tab takes four columns at most
    this.sizer.style.height = texts.length * ROW + "px";
    this.sizer.style.width = `calc(${widest + (this.name === "sass" ? 48 : 12)}ch)`;
    this.draw();
  }

  empty(why) {
    this.rows.replaceChildren(element("p", { class: "empty" }, why));
  }

  soon() {
    if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    if (!this.before) return;
    const first = Math.max(0, Math.floor(this.rows.scrollTop / ROW) - 10);
    const last = Math.min(this.texts.length, Math.ceil((this.rows.scrollTop + this.rows.clientHeight) / ROW) + 10);
    const drawn = [];
    for (let row = first; row < last; row++) {
      const plain = this.name === "python" && this.page.index.python[row];
      const kinds = ["row", row === this.here ? "here" : this.lit.has(row) ? "lit" : "", this.changed.has(row) ? "changed" : "",
        plain && !plain.line ? "file" : "", (plain && this.page.found.get(row)?.level) || ""];
      const text = element("span", {});
      const parts = plain && (plain.quoted || !plain.line) ? [[plain.line ? "q" : "", this.texts[row]]] : pieces(this.name, this.texts[row]);
      for (const [kind, part] of parts) text.append(kind ? element("span", { class: kind }, part) : part);
      drawn.push(element("div", { class: kinds.filter(Boolean).join(" "), role: "option", id: `row-${this.name}-${row}`, "data-row": row,
        title: (plain && this.page.found.get(row)?.text) || undefined, "aria-selected": row === this.here }, ...this.before(row), text));
    }
    this.window.style.top = first * ROW + "px";
    this.window.replaceChildren(...drawn);
    this.here < 0 ? this.rows.removeAttribute("aria-activedescendant") : this.rows.setAttribute("aria-activedescendant", `row-${this.name}-${this.here}`);
  }

  // lit: rows that belong to what is selected. here: the one that is, or -1.
  light(lit, here) {
    this.lit = new Set(lit);
    this.here = here;
    const seen = new Set(lit.map((row) => Math.round((row / this.texts.length) * 300)));
    this.strip.replaceChildren(...[...seen].map((part) => {
      const tick = element("i");
      tick.style.top = part / 3 + "%";
      return tick;
    }));
    if (here >= 0) this.reveal(here);
    else if (lit.length) {
      const visible = this.visible();
      if (!lit.some(visible)) this.reveal(lit[0]);
    }
    this.draw();
  }

  // Whether a row is in sight. The document is measured once: it may be asked of thousands of rows.
  visible() {
    const top = this.rows.scrollTop, bottom = top + this.rows.clientHeight;
    return (row) => row * ROW >= top && (row + 1) * ROW <= bottom;
  }

  reveal(row) {
    if (!this.visible()(row)) this.rows.scrollTop = Math.max(0, (row + 0.5) * ROW - this.rows.clientHeight / 2);
  }

  // Arrows between rows, on the left.
  point(pairs) {
    this.sizer.querySelectorAll(".arrow").forEach((arrow) => arrow.remove());
    for (const [from, to] of pairs.slice(0, 100)) {
      const arrow = element("div", { class: "arrow" + (from > to ? " up" : "") });
      arrow.style.top = (Math.min(from, to) + 0.5) * ROW + "px";
      arrow.style.height = Math.abs(to - from) * ROW + "px";
      this.sizer.append(arrow);
    }
  }

  // To the next row, forwards or backwards and around, that `wanted` wants.
  next(step, wanted) {
    const count = this.texts.length;
    for (let i = 1; i <= count; i++) {
      const row = (((this.here < 0 ? (step > 0 ? -1 : 0) : this.here) + i * step) % count + count) % count;
      if (wanted(row)) return this.page.select(this.name, row);
    }
  }

  search(step) {
    const wanted = this.find.value.toLowerCase();
    if (wanted) this.next(step, (row) => this.texts[row].toLowerCase().includes(wanted));
  }

  // The lines that are lit stay so while one walks along them.
  walk(step) {
    const lit = [...this.lit].sort((a, b) => a - b);
    const from = this.walked ?? (this.here < 0 ? this.rows.scrollTop / ROW - 1 : this.here);
    const row = step > 0 ? lit.find((each) => each > from) ?? lit[0] : lit.findLast((each) => each < from) ?? lit.at(-1);
    if (row === undefined) return;
    this.walked = row;
    this.reveal(row);
  }

  key(event) {
    if (!this.texts.length || event.ctrlKey || event.altKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.rows.clientHeight / ROW) - 1), last = this.texts.length - 1;
    const from = this.here < 0 ? Math.floor(this.rows.scrollTop / ROW) - 1 : this.here;
    const to = { ArrowDown: from + 1, ArrowUp: from - 1, PageDown: from + page, PageUp: from - page, Home: 0, End: last }[event.key];
    if (to !== undefined) this.page.select(this.name, Math.min(last, Math.max(0, to)));
    else if (event.key === "n" || event.key === "p") this.walk(event.key === "n" ? 1 : -1);
    else if (event.key === "c") this.next(1, (row) => this.changed.has(row));
    else if (event.key === "," || event.key === ".") this.page.stage(this.page.pass + (event.key === "." ? 1 : -1));
    else if (event.key === "/") this.find.focus();
    else if (event.key === "Escape") this.page.clear();
    else return;
    event.preventDefault();
  }
}

class Page {
  constructor(data) {
    this.data = data;
    this.pass = -1;
    this.panes = {};
    for (const name of PANES) this.panes[name] = new Pane(name, TITLES[name], this);
    document.getElementById("panes").append(...PANES.map((name) => this.panes[name].root));
    this.found = new Map();
    this.awaited = new Map((data.sass || { awaited: [] }).awaited);
    this.waiters = new Map();
    for (const [to, setters] of this.awaited) for (const from of setters) this.waiters.set(from, [...(this.waiters.get(from) || []), to]);
    this.toggles();
    this.slider();
    this.stage(this.data.ir.stages.length - 1);
    for (const finding of data.findings)
      for (const place of [finding.place, ...finding.also].flatMap((each) => chain(data, each)))
        for (const row of this.index.pythonByLine.get(lineOf(data, place)) || []) if (!this.found.has(row)) this.found.set(row, finding);
    this.fillPanes();
    addEventListener("hashchange", () => this.follow());
  }

  fillPanes() {
    const { data, index } = this, sass = data.sass, at = (text) => element("span", { class: "at" }, text);
    const pad = (value, width) => String(value).padStart(width);
    const counts = index.python.map((row) => (index.lines.sass.get(row.file + ":" + row.line) || []).length);
    this.panes.python.fill(index.python.map((row) => row.text), (row) =>
      index.python[row].line ? [at(pad(index.python[row].line, 4)), element("span", { class: "live", title: counts[row] + " instructions",
        style: `--part: ${(100 * counts[row]) / Math.max(1, sass ? sass.texts.length : 1)}%` }, counts[row] ? String(counts[row]) : "")] : []);
    const ptx = data.ptx.text.split("\n"), digits = String(data.ptx.lines.at(-1)).length;
    this.panes.ptx.fill(data.ptx.lines.map((number) => ptx[number - 1]), (row) => [at(pad(data.ptx.lines[row], digits))]);
    if (!sass) return this.panes.sass.empty("No SASS. " + data.missing);
    const labels = new Map(sass.labels.map(([name, row]) => [row, name]));
    const most = highest(sass.live);
    const address = (row) => sass.addresses[row].toString(16).padStart(4, "0");
    this.panes.sass.fill(sass.texts, (row) => [
      element("span", { class: "sign" }), element("span", { class: "at", title: sass.places[row] < 0 ? "no Python line" : this.name(sass.places[row]) }, (sass.places[row] < 0 ? "-" : " ") + address(row)),
      element("span", { class: "label", title: labels.get(row) }, labels.get(row) || ""),
      element("span", { class: "control", title: control(sass.controls[row]) }, sass.controls[row]),
      element("span", { class: "live", title: sass.live[row] + " live registers", style: `--part: ${(100 * sass.live[row]) / most}%` }, String(sass.live[row])),
    ]);
  }

  toggles() {
    const shown = document.getElementById("shown"), box = document.getElementById("panes");
    for (const name of PANES) {
      const button = element("button", { type: "button", "aria-pressed": "true", onclick: () => {
        const pane = this.panes[name].root;
        pane.hidden = !pane.hidden;
        button.setAttribute("aria-pressed", String(!pane.hidden));
        box.classList.toggle("few", PANES.some((each) => this.panes[each].root.hidden));
      } }, TITLES[name]);
      shown.append(button);
    }
  }

  slider() {
    const stages = this.data.ir.stages;
    this.range = element("input", { type: "range", min: 0, max: stages.length - 1, "aria-label": "Pass", oninput: () => this.stage(Number(this.range.value)) });
    const options = stages.map(({ name, added, removed }, i) => element("option", { value: i },
      name.replace(/^after:/, "") + (added.length || removed ? `  +${added.length} \u2212${removed}` : "")));
    this.choice = element("select", { "aria-label": "Pass", onchange: () => this.stage(Number(this.choice.value)) }, ...options);
    this.panes.ir.find.before(this.choice, this.range);
  }

  // Shows the IR after another pass, and keeps the selection if it is not in the IR.
  stage(number) {
    const { data } = this, ir = this.panes.ir;
    number = Math.min(data.ir.stages.length - 1, Math.max(0, number));
    if (number === this.pass) return;
    this.pass = number;
    this.index = makeIndex(data, number);
    this.range.value = this.choice.value = number;
    const stage = data.ir.stages[number];
    this.range.setAttribute("aria-valuetext", stage.name);
    ir.changed = new Set(stage.added);
    const digits = String(this.index.body.texts.length).length;
    ir.fill(this.index.body.texts.map((text) => data.ir.texts[text]), (row) => [
      element("span", { class: "at" }, String(row + 1).padStart(digits)), element("span", { class: "sign" }, ir.changed.has(row) ? "+" : "")]);
    if (!this.selected) return;
    const { pane, row } = this.selected;
    pane === "ir" ? this.clear() : this.light(related(data, this.index, pane, row), pane, row);
  }

  select(pane, row, keep) {
    if (pane === "python" && !this.index.python[row].line) return;
    this.selected = { pane, row };
    const found = related(this.data, this.index, pane, row);
    this.light(found, pane, row);
    if (!keep) history.replaceState(null, "", "#" + this.link(pane, row));
    const parts = PANES.filter((name) => name !== pane).map((name) => `${found[name].length} ${TITLES[name]}`);
    const place = pane === "python" ? -1 : { ir: this.index.body.places, ptx: this.data.ptx.places, sass: this.index.sass.places }[pane][row];
    const from = pane === "python" ? "" : place < 0 ? ", from no Python line" : ", from " + this.name(place);
    const at = (row) => this.data.sass.addresses[row].toString(16).padStart(4, "0");
    const set = pane === "sass" && this.awaited.get(row) ? `, set at ${this.awaited.get(row).map(at).join(", ")}` : "";
    const waiting = pane === "sass" && this.waiters.get(row) ? `; awaited at ${this.waiters.get(row).map(at).join(", ")}` : "";
    const code = pane === "sass" ? " \u2014 " + control(this.data.sass.controls[row]).replace(/^waits for scoreboard [\d, ]*\d/, "$&" + set) + waiting : "";
    document.getElementById("status").textContent = `Lines that belong to this one: ${parts.join(", ")}${from}${code}`;
  }

  light(found, pane, row) {
    for (const name of PANES) {
      this.panes[name].walked = undefined;
      if (this.panes[name].before) this.panes[name].light(found[name], name === pane ? row : -1);
    }
    if (this.cursor) this.cursor(found.sass);
    const arrows = pane !== "sass" ? [] : [...(this.awaited.get(row) || []).map((from) => [from, row]), ...(this.waiters.get(row) || []).map((to) => [row, to])];
    this.panes.sass.point(arrows);
  }

  clear() {
    this.selected = undefined;
    this.light({ python: [], ir: [], ptx: [], sass: [] });
    history.replaceState(null, "", "#");
    document.getElementById("status").textContent = "";
  }

  // "hopper.py:90, called at hopper.py:12"
  name(place) {
    return chain(this.data, place).map((each) => {
      const [file, line] = this.data.places[each];
      return this.data.files[file].replace(/^.*\//, "") + ":" + line;
    }).join(", called at ");
  }

  link(pane, row) {
    if (pane === "python") return `python-${this.index.python[row].file}-${this.index.python[row].line}`;
    if (pane === "ir") return `ir-${this.data.ir.stages[this.pass].name.replace(/^after:/, "")}-${row + 1}`;
    return pane === "ptx" ? "ptx-" + this.data.ptx.lines[row] : "sass-" + this.data.sass.addresses[row].toString(16).padStart(4, "0");
  }

  // To what the address of the page names: #python-FILE-LINE, #ir-PASS-LINE, #ptx-LINE, #sass-ADDRESS.
  follow() {
    const [, pane, rest] = decodeURIComponent(location.hash).match(/^#(python|ir|ptx|sass)-(.+)$/) || [];
    if (!pane) return;
    let row = -1;
    if (pane === "python") row = this.index.pythonByLine.get(rest.replace("-", ":"))?.[0] ?? -1;
    else if (pane === "ptx") row = this.data.ptx.lines.indexOf(Number(rest));
    else if (pane === "sass") row = this.index.sass.texts.length ? this.data.sass.addresses.indexOf(parseInt(rest, 16)) : -1;
    else {
      const cut = rest.lastIndexOf("-");
      this.stage(this.data.ir.stages.findIndex(({ name }) => name.replace(/^after:/, "") === rest.slice(0, cut)));
      row = Number(rest.slice(cut + 1)) - 1;
      if (!(row < this.index.body.texts.length)) row = -1;
    }
    if (row < 0) return;
    this.select(pane, row, true);
    document.getElementById("code").scrollIntoView();
  }

  // A link to the Python line of a place.
  at(place) {
    if (place < 0) return element("span", { class: "dim" }, "no line");
    const [file, line] = this.data.places[place];
    return element("a", { href: `#python-${file}-${line}`, title: this.name(place) }, this.data.files[file].replace(/^.*\//, "") + ":" + line);
  }
}

// Not by Math.max(...), whose arguments are limited.
const highest = (numbers) => numbers.reduce((a, b) => Math.max(a, b), 0);

function table(header, rows, numbers = []) {
  const kind = (i) => ({ class: numbers.includes(i) ? "n" : undefined });
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...header.map((text, i) => element("th", kind(i), text)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", kind(i), cell)))))));
}

const count = (number) => number.toLocaleString("en");
const into = (id, ...children) => document.getElementById(id).append(...children);
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
const counted = (value) => (value === null ? "unknown" : count(Math.round(value)));
const shown = (value) => (value === null ? "unknown" : String(Math.round(value * 100) / 100));

function drawHead(data) {
  const { kernel, resources: used, sass } = data;
  document.getElementById("name").textContent = kernel.name;
  document.getElementById("consts").textContent = kernel.label.slice(kernel.name.length).replace(/^\(\)$/, "") + " for " + kernel.arch;
  const spilled = used && used.spill_stores + used.spill_loads;
  const facts = [
    ["grid", kernel.grid.join(", ")],
    ["threads", kernel.threads.join(" x ") + (kernel.cluster.some((n) => n > 1) ? `, cluster ${kernel.cluster.join(" x ")}` : "")],
    ["shared memory", count(kernel.shared) + " bytes"],
  ];
  if (used) facts.unshift(["registers a thread", used.registers], ["spilled", count(spilled) + " bytes", spilled ? "error" : undefined],
    ["blocks an SM", `${used.blocks_per_sm}, limited by ${used.limiter}`], ["occupancy", Math.round(100 * used.occupancy) + "%"]);
  if (sass) facts.unshift(["instructions", count(sass.texts.length)]);
  into("facts", ...facts.map(([name, value, kind]) => element("div", {}, element("dt", {}, name), element("dd", { class: kind }, String(value)))));
}

function drawFindings(data, page) {
  const found = data.findings.map(({ level, text, place, part, also }) => element("li", { class: level }, element("b", {}, level),
    place >= 0 ? page.at(place) : "", ...also.flatMap((each) => [" ", page.at(each)]), element("span", {}, text, ...(part ? [" ", element("a", { href: "#" + part }, "more")] : []))));
  into("findings", found.length ? element("ul", { class: "findings" }, ...found)
    : element("p", {}, "No spills, no bank conflicts, no access whose wavefronts are unknown" + (data.check.passed ? ", and the check passed." : ". The check did not run.")));
}

function drawRegisters(data, page) {
  const { sass, resources: used, room } = data;
  if (!used) return into("registers", element("p", { class: "dim" }, "Not known. " + data.missing));
  if (sass) {
    const most = highest(sass.live), top = Math.max(most, used.registers), size = sass.live.length;
    const chart = svg("svg", { viewBox: `0 0 ${size} ${top}`, preserveAspectRatio: "none", role: "img", "aria-label": `Live registers: at most ${most}` });
    for (const [first, last] of sass.loops) chart.append(svg("rect", { class: "loop", x: first, y: 0, width: last - first + 1, height: top }));
    chart.append(svg("path", { class: "area", d: `M0 ${top}` + sass.live.map((live, i) => `V${top - live}H${i + 1}`).join("") + `V${top}Z` }),
      svg("line", { class: "most", x1: 0, x2: size, y1: top - used.registers, y2: top - used.registers }));
    page.cursor = (rows) => {
      chart.querySelectorAll(".cursor").forEach((line) => line.remove());
      for (const row of rows.slice(0, 200)) chart.append(svg("line", { class: "cursor", x1: row + 0.5, x2: row + 0.5, y1: 0, y2: top }));
    };
    chart.addEventListener("click", (event) => {
      const box = chart.getBoundingClientRect();
      page.select("sass", Math.min(size - 1, Math.floor(((event.clientX - box.left) / box.width) * size)));
    });
    const first = sass.live.indexOf(most);
    into("registers", element("p", {}, `Live registers at each instruction: at most ${most}, first at `,
      element("a", { href: "#sass-" + sass.addresses[first].toString(16).padStart(4, "0") }, sass.addresses[first].toString(16).padStart(4, "0")),
      `; the dashed line is what a thread has, ${used.registers}. Shaded: ${plural(sass.loops.length, "loop")}.`), chart);
    if (sass.spills.length) into("registers", element("h3", {}, "Spills"),
      table(["Python line", "stores", "loads"], sass.spills.map(([place, stores, loads]) => [page.at(place), count(stores), count(loads)]), [1, 2]));
  }
  const needs = [room.registers !== null && room.registers < used.registers && `at most ${room.registers} registers a thread (now ${used.registers})`,
    room.shared !== null && room.shared < used.shared && `at most ${count(room.shared)} bytes of shared memory (now ${count(used.shared)})`].filter(Boolean);
  into("registers", element("h3", {}, "Blocks an SM holds, by each resource alone"),
    table(["resource", "blocks"], Object.entries(room.blocks).map(([name, blocks]) => [name + (name === used.limiter ? " (the limit)" : ""), String(blocks)]), [1]),
    element("p", {}, needs.length ? `For ${plural(room.next_blocks, "block")} an SM: ${needs.join(" and ")}.`
      : `More than ${plural(used.blocks_per_sm, "block")} an SM cannot be had with blocks of ${plural(used.threads, "thread")}.`),
    element("p", {}, `Spilled: ${plural(used.spill_stores, "byte")} stored and ${plural(used.spill_loads, "byte")} loaded by each thread; stack ${plural(used.stack, "byte")}.`));
}

function drawRoles(data, page) {
  if (!data.roles.length) into("roles", element("p", { class: "dim" }, "No roles: all threads of a block run the whole kernel."));
  else into("roles", element("div", { class: "warps scroll" }, ...data.roles.map((role) => {
    const box = element("div", {}, element("b", {}, role.title), " ", page.at(role.place),
      element("div", {}, `warps ${role.first_warp} to ${role.first_warp + role.warps - 1}`),
      element("div", {}, (role.instances > 1 ? `${role.instances} instances of ` : "") + plural(role.threads, "thread")),
      element("div", {}, role.registers ? `${role.registers} registers, launched with ${data.launch_registers}` : "registers as launched"),
      role.turns.length ? element("div", {}, "turns: " + role.turns.join(", ")) : null);
    box.style.flexGrow = role.warps;
    return box;
  })));
  const end = (name) => ({ role, by, arrivals, places }) =>
    [element("span", {}, element("b", {}, role)), element("b", {}, `${name} ${by.join(", ")}, ${plural(arrivals, "arrival")} `, ...places.flatMap((p) => [page.at(p), " "]))];
  for (const ring of data.rings) {
    const tiles = ring.tiles.map(([name, bytes]) => `${name} ${count(bytes)} bytes`).join(", ");
    const [from, fills] = end("fills by")(ring.producer), [to, uses] = end("uses by")(ring.consumer);
    into("roles", element("div", { class: "ring" }, from, fills, "\u2192",
      element("span", {}, element("b", {}, ring.name), ` ${plural(ring.stages, "stage")} of ${tiles}`, ring.held ? `; ${ring.held} held` : "",
        ring.shared_along.length ? `; shared along ${ring.shared_along.join(" and ")}` : "", " ", page.at(ring.place)), "\u2192", uses, to));
  }
}

function drawPipeline(data, page) {
  if (!data.loops.length && !data.groups.length) return into("pipeline", element("p", { class: "dim" }, "No pipelined loop, and no other asynchronous copies (cp.async)."));
  for (const loop of data.loops) {
    const columns = [...new Set(loop.schedule.flatMap((row) => Object.keys(row)))];
    into("pipeline", element("h3", {}, page.at(loop.place), ` ${plural(loop.stages, "stage")}`),
      element("pre", { class: "text" }, loop.text.split("\n\n")[0]), table(columns, loop.schedule.map((row) => columns.map((name) => row[name] || ""))));
  }
  if (data.groups.length) into("pipeline", element("h3", {}, "Groups outside of pipelined loops"), element("pre", { class: "text" }, data.groups.join("\n")));
}

function drawCheck(data, page) {
  const { sizes, passed, text, place } = data.check;
  const ran = sizes && Object.entries(sizes).map(([name, value]) => `${name}=${value}`).join(", ");
  into("check", sizes ? element("p", {}, element("b", { class: passed ? "" : "error" }, passed ? "Passed" : "Failed"),
    ` on the emulator, on zeros, with ${ran}. `, place >= 0 ? page.at(place) : "") : "", element("pre", { class: "text" }, text));
}

function drawProvenance(data) {
  const names = Object.entries(data.provenance).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, element("code", {}, value))]);
  const tensors = data.kernel.tensors.map((t) => [t.name, `${t.dtype} [${t.dims.join(", ")}]`, String(t.unit), String(t.align), t.written ? "written" : "read"]);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const file = (suffix, parts) => element("a", { download: data.kernel.name + suffix, href: URL.createObjectURL(new Blob(parts)) }, data.kernel.name + suffix);
  const files = [file(".ptx", [data.ptx.text]), data.cubin && file(".cubin", [bytes(data.cubin)]), file(".json", [document.getElementById("data").textContent])];
  into("provenance", element("dl", { class: "rows2" }, ...names), element("h3", {}, "Compiled for"),
    table(["tensor", "type", "axis of stride 1", "alignment in bytes", ""], tensors, [2, 3]), element("h3", {}, "Downloads"),
    element("p", {}, ...files.filter(Boolean).flatMap((each) => [each, "  "])));
}

function drawTheme() {
  const button = document.getElementById("theme"), choices = [["system", "light dark"], ["light", "light"], ["dark", "dark"]];
  let now = 0;
  button.addEventListener("click", () => {
    now = (now + 1) % choices.length;
    document.documentElement.style.colorScheme = choices[now][1];
    button.textContent = "Theme: " + choices[now][0];
  });
}

function show() {
  const data = JSON.parse(document.getElementById("data").textContent), page = new Page(data);
  drawTheme();
  drawHead(data);
  drawFindings(data, page);
  drawRegisters(data, page);
  drawShared(data, page);
  drawFragments(data, page);
  drawRoles(data, page);
  drawTimeline(data, page);
  drawRoofline(data);
  drawPipeline(data, page);
  drawCheck(data, page);
  drawProvenance(data);
  page.follow();
  return page;
}

show();
