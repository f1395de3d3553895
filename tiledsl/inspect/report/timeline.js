// What warps did in a run: a row for each warp and each slot of a ring, time to the right. There are two of them at most,
// that of the check and one that was measured.

const LANE = 16; // a row of the chart
const MOST_ARROWS = 400;
const MOST_BARRIERS = 40;
const WORDS = {
  ops: { span: "ops", full: "is full", slot: " a slot of a ring is full " },
  clocks: { span: "clocks", full: "is in use", slot: " a slot of a ring is in use " },
};

// "warp 4 of consumer"
const warpName = (timeline, number) => {
  const { rank, warp, role } = timeline.rows[number];
  return (timeline.rows.some((row) => row.rank) ? `block ${rank}, ` : "") + `warp ${warp}` + (role ? ` of ${role}` : "");
};

const group = (timeline, number) => (number < 0 ? "nobody" : timeline.rows[number].role || "the block");

// Whom the warps of each role wait for, and how long in all.
function waitTable(timeline, page) {
  const found = new Map();
  for (const [row, start, end, barrier, by, place] of timeline.waits) {
    const name = timeline.barriers[barrier].replace(/\[\d+\]|( of block \d+)$/g, ""), key = [group(timeline, row), name, group(timeline, by), place].join("|");
    const entry = found.get(key) || { of: group(timeline, row), name, by: group(timeline, by), place, count: 0, time: 0 };
    entry.count += 1;
    entry.time += end - start;
    found.set(key, entry);
  }
  const rows = [...found.values()].sort((a, b) => b.time - a.time).slice(0, 30);
  return table(["who waits", "at", "for", "released by", "waits", `${timeline.unit} in all`], rows.map((each) =>
    [each.of, page.at(each.place), each.name, each.by, count(each.count), count(each.time)]), [4, 5]);
}

class Chart {
  constructor(timeline, page) {
    Object.assign(this, { timeline, page, zoom: 1, words: WORDS[timeline.unit] });
    // Those of rings are drawn as slots.
    const shown = timeline.barriers.map((name, i) => i).filter((i) => !timeline.work.includes(i) && (!timeline.slots.length || !/^(full|empty)\d*\[/.test(timeline.barriers[i])));
    this.barriers = shown.slice(0, MOST_BARRIERS);
    this.end = Math.max(1, Math.min(highest(timeline.rows.map((row) => row.end)), timeline.full_at ?? Infinity));
    this.box = element("div", { class: "scroll chart", tabindex: 0, "aria-label": "Timeline of warps" });
    this.told = element("p", { class: "dim", role: "status" }, "Click a wait to see who ended it.");
    const zoom = element("input", { type: "range", min: 0, max: 8, value: 0, "aria-label": "Zoom", oninput: () => { this.zoom = 2 ** Number(zoom.value); this.draw(); } });
    this.root = element("div", {}, element("div", { class: "line" }, element("label", {}, "Zoom ", zoom), this.told), this.box);
    this.box.addEventListener("click", (event) => event.target.dataset && event.target.dataset.wait && this.select(Number(event.target.dataset.wait)));
    this.draw();
  }

  draw() {
    const { timeline, end, barriers } = this, { rows, slots } = timeline, left = 4, side = 150, top = 18;
    const wide = Math.max(600, (document.documentElement.clientWidth || 1000) - 300) * this.zoom, height = top + (rows.length + slots.length + barriers.length) * LANE + 4, width = left + wide * (timeline.stuck.length ? 1.08 : 1) + 10;
    const x = (time) => left + (time / end) * wide, y = (row) => top + row * LANE;
    const chart = svg("svg", { class: "timeline", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${rows.length} warps, ${timeline.waits.length} waits` });
    // The names stay where they are while the chart moves below them.
    const names = svg("svg", { class: "timeline names", width: side, height, viewBox: `0 0 ${side} ${height}` });
    const name = (row, text) => names.append(label(side - 6, y(row) + 12, text.slice(0, 24), "end"));
    const bar = (kind, from, to, row, text, more = {}) => {
      const made = svg("rect", { class: kind, x: x(from), y: y(row) + 2, width: Math.max(1.5, x(to) - x(from)), height: LANE - 4, ...more });
      const title = svg("title", {});
      title.append(text);
      made.append(title);
      chart.append(made);
    };
    const step = Math.max(1, 10 ** Math.floor(Math.log10(end / this.zoom)) / 2);
    for (let time = 0; time <= end; time += step)
      chart.append(svg("line", { x1: x(time), x2: x(time), y1: top, y2: height }), label(x(time), top - 5, count(time), time ? "middle" : "start"));
    rows.forEach((row, i) => {
      name(i, warpName(timeline, i));
      const until = Math.min(row.end, timeline.full_at ?? Infinity);
      if (until) bar("run", 0, until, i, `${warpName(timeline, i)}: runs until ${row.end}`);
    });
    timeline.waits.forEach(([row, from, to, barrier, by], i) =>
      bar(timeline.work.includes(barrier) ? "wait work" : "wait", from, Math.min(to, end), row, `${warpName(timeline, row)} waits from ${from} to ${to} for ${timeline.barriers[barrier]}` + (by >= 0 ? `, released by ${warpName(timeline, by)}` : ""), { "data-wait": i }));
    for (const [row, does] of timeline.stuck) bar("stuck", Math.min(rows[row].end, end), end * 1.08, row, `${warpName(timeline, row)} ${does}, for ever`);
    slots.forEach((slot, i) => {
      name(rows.length + i, slot.name);
      slot.spans.forEach(([full, free], use) => bar("full", full, free < 0 ? end : Math.min(free, end), rows.length + i, `${slot.name} ${this.words.full} from ${full} ${free < 0 ? "on" : "to " + free} (use ${use + 1})`));
    });
    barriers.forEach((barrier, i) => name(rows.length + slots.length + i, timeline.barriers[barrier]));
    for (const [barrier, time, by] of timeline.phases) {
      const at = barriers.indexOf(barrier);
      if (at >= 0) bar("phase", time, time, rows.length + slots.length + at, `${timeline.barriers[barrier]}: a phase ends at ${time}` + (by >= 0 ? `, by ${warpName(timeline, by)}` : ""));
    }
    this.arrows = svg("g", {});
    this.arrow = ([row, , to, , by], kind) => {
      if (by >= 0 && by !== row) this.arrows.append(svg("path", { class: kind, d: `M${x(to)} ${y(by) + LANE / 2}L${x(to)} ${y(row) + LANE / 2}` }));
    };
    if (timeline.waits.length <= MOST_ARROWS) for (const wait of timeline.waits) this.arrow(wait, "release");
    chart.append(this.arrows);
    const middle = (this.box.scrollLeft + this.box.clientWidth / 2) / this.box.scrollWidth;
    this.box.replaceChildren(names, chart);
    this.box.scrollLeft = middle * this.box.scrollWidth - this.box.clientWidth / 2;
  }

  select(number) {
    const wait = this.timeline.waits[number], [row, from, to, barrier, by, place] = wait;
    this.arrow(wait, "release chosen");
    this.told.replaceChildren(`${warpName(this.timeline, row)} waits for ${this.timeline.barriers[barrier]}, ${this.words.span} ${from} to ${to}, `, this.page.at(place),
      by >= 0 ? `. ${warpName(this.timeline, by)} released it.` : ".");
  }
}

// The chart of a run with what it means, below `about`.
function drawnRun(timeline, page, about) {
  const words = WORDS[timeline.unit];
  return [element("p", {}, about),
    timeline.full_at === null ? "" : element("p", { class: "warning" }, element("b", {}, `Cut off: events from ${count(timeline.full_at)} on are left out.`)),
    timeline.stuck.length ? element("p", { class: "error" }, element("b", {}, `${plural(timeline.stuck.length, "warp")} ${timeline.stuck.length === 1 ? "waits" : "wait"} for ever (red).`)) : "",
    new Chart(timeline, page).root,
    element("p", { class: "dim legend" }, element("i", { class: "run" }), " runs ", element("i", { class: "wait" }), " waits ",
      ...(timeline.work.length ? [element("i", { class: "work" }), " waits for products or copies "] : []),
      element("i", { class: "full" }), words.slot, element("i", { class: "phase" }), " a phase of a barrier ends",
      ...(timeline.stuck.length ? [" ", element("i", { class: "stuck" }), " waits for ever"] : []), ". Lines lead from who releases to who waited."),
    timeline.waits.length ? waitTable(timeline, page) : ""];
}

const ofBlocks = (timeline) => {
  const blocks = new Set(timeline.rows.map((row) => row.rank)).size;
  return blocks > 1 ? `the ${blocks} blocks of the first cluster` : "the first block";
};

function drawTimeline(data, page) {
  const { timeline, measured } = data;
  if (!timeline) into("timeline", element("p", { class: "dim" }, `The check did not run. ${data.check.text}`));
  else if (!timeline.rows.length) into("timeline", element("p", { class: "dim" }, "No block ran."));
  else into("timeline", measured ? element("h3", {}, "On the emulator") : "", ...drawnRun(timeline, page,
    `What ${ofBlocks(timeline)} did in the run of the check. Time is the number of ops that a warp has executed on the emulator; `
    + "a wait ends when what it waits for is released. Copies and tensor cores take no time: this shows who waits for whom, and predicts no times."));
  if (!measured) return;
  const { us, us_stamped, mhz, gpu, same } = measured, sizes = Object.entries(measured.sizes).map(([name, value]) => `${name}=${value}`).join(", ");
  into("timeline", element("h3", {}, `Measured on ${gpu}`), same ? "" : element("p", { class: "warning" }, element("b", {}, "The build with stamps gave other results than the kernel.")),
    ...drawnRun(measured.timeline, page, `What ${ofBlocks(measured.timeline)} did in a run with ${sizes}. Time is in clocks of the SM${mhz ? ` (${count(mhz)} MHz)` : ""}, read by a build of the kernel that stamps it: `
      + `that takes ${shown(us_stamped)} us, the kernel as it is ${shown(us[0])} us (median; least ${shown(us[1])} us).`));
}
