// Shared memory: tiles with their layouts, and accesses with the lanes that collide. Drawn when it is opened.

const BANKS = 32;
const CELL = 15; // of a drawn layout
const SPOT = 9; // of a heat map

// Equal banks have one colour, which is legible on light and dark.
const bankColor = (bank) => `hsl(${(bank * 360) / BANKS} 70% 50% / .45)`;

function label(x, y, text, anchor = "middle") {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.append(String(text));
  return made;
}

// The bank of each word of the first rows of a tile.
function layoutPicture(title, rows, tile) {
  const left = 26, top = 14, width = left + highest(rows.map((row) => row.length)) * CELL, height = top + rows.length * CELL;
  const picture = svg("svg", { class: "banks", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  rows.forEach((digits, row) => {
    picture.append(label(left - 4, top + (row + 0.75) * CELL, row, "end"));
    [...digits].forEach((digit, word) => {
      const bank = parseInt(digit, BANKS), x = left + word * CELL, y = top + row * CELL;
      if (!row && word % 4 === 0) picture.append(label(x + CELL / 2, top - 4, word * tile.cell));
      picture.append(svg("rect", { x, y, width: CELL - 1, height: CELL - 1, fill: bankColor(bank) }), label(x + CELL / 2, y + CELL * 0.7, bank));
    });
  });
  return element("figure", {}, element("figcaption", {}, title), element("div", { class: "scroll" }, picture));
}

function layouts(tile) {
  const rows = tile.shape.slice(0, -1).reduce((a, b) => a * b, 1), drawn = tile.banks.length;
  const cut = drawn < rows || tile.banks[0].length * tile.cell < tile.shape.at(-1) ? ` Of ${plural(rows, "row")} the first ${drawn} are drawn, and at most 64 words of each.` : "";
  const text = `Rows and columns of the tile. The number and the colour are the bank of the ${tile.cell > 1 ? `word that ${tile.cell} elements share` : "element"}.${cut}`;
  const same = tile.banks.join() === tile.row_banks.join();
  return [element("p", { class: "dim" }, text), element("div", { class: "figures" }, same ? "" : layoutPicture("in row order", tile.row_banks, tile),
    layoutPicture(`as laid out: ${tile.layout}`, tile.banks, tile))];
}

// What the lanes of a warp take from the banks: [lane, bank, wavefront, words that this bank has for the lane's phase].
function touches(lanes, phase) {
  const found = [], turns = new Map();
  lanes.forEach(([first, ...waves], lane) => waves.forEach((wave, word) => {
    const bank = (first + word) % BANKS, key = Math.floor(lane / phase) * BANKS + bank;
    if (!turns.has(key)) turns.set(key, new Set());
    turns.get(key).add(wave);
    found.push([lane, bank, wave, turns.get(key)]);
  }));
  return found.map(([lane, bank, wave, all]) => [lane, bank, wave, all.size]);
}

// Numbers as ranges: "0 to 3, 8".
function ranges(numbers) {
  const found = [];
  for (const n of numbers) found.length && found.at(-1)[1] === n - 1 ? (found.at(-1)[1] = n) : found.push([n, n]);
  return found.map(([a, b]) => (a === b ? a : b === a + 1 ? `${a}, ${b}` : `${a} to ${b}`)).join(", ");
}

// The lanes that a bank cannot serve at once, those of one set together: ["lanes 0, 8 in banks 0 to 3: 2 words each"].
function collisions(spots, phase) {
  const banks = new Map(), sets = new Map();
  for (const [lane, bank, , words] of spots) {
    const key = Math.floor(lane / phase) * BANKS + bank;
    if (words > 1) banks.set(key, [...(banks.get(key) || []), lane]);
  }
  const words = new Map(spots.map(([lane, bank, , count]) => [Math.floor(lane / phase) * BANKS + bank, count]));
  for (const [key, lanes] of banks) {
    const set = `lanes ${ranges([...new Set(lanes)])}|${words.get(key)}`;
    sets.set(set, [...(sets.get(set) || []), key % BANKS]);
  }
  return [...sets].map(([set, of]) => {
    const [lanes, count] = set.split("|");
    return `${lanes} in ${of.length > 1 ? "banks" : "bank"} ${ranges(of.sort((a, b) => a - b))}: ${count} words${of.length > 1 ? " each" : ""}`;
  });
}

function heatMap(title, lanes, access, tile) {
  const { phase, rows, columns } = access.lanes, spots = touches(lanes, phase), left = 22, top = 14;
  const width = left + BANKS * SPOT + 2, height = top + 32 * SPOT + 2, waves = highest(spots.map(([, , wave]) => wave + 1));
  const picture = svg("svg", { class: "heat", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${plural(waves, "wavefront")}` });
  picture.append(svg("rect", { class: "back", x: left, y: top, width: BANKS * SPOT, height: 32 * SPOT }));
  for (let at = 0; at < 32; at += 4) picture.append(label(left + (at + 0.5) * SPOT, top - 4, at), label(left - 4, top + (at + 0.9) * SPOT, at, "end"));
  for (let lane = phase; lane < 32; lane += phase)
    picture.append(svg("line", { x1: left, x2: left + BANKS * SPOT, y1: top + lane * SPOT, y2: top + lane * SPOT }));
  for (const [lane, bank, wave, words] of spots) {
    const hue = words === 1 ? 210 : Math.max(0, 55 - 15 * Math.log2(words)); // from yellow to red
    const spot = svg("rect", { x: left + bank * SPOT, y: top + lane * SPOT, width: SPOT - 1, height: SPOT - 1, fill: `hsl(${hue} 85% 50%)` });
    const title = svg("title", {});
    title.append(`lane ${lane}: ${tile}, row ${rows[lane]}, column ${columns[lane]}; bank ${bank}, wavefront ${wave + 1} of ${waves}` + (words > 1 ? `; the bank has ${words} words for these lanes` : ""));
    spot.append(title);
    picture.append(spot);
  }
  const found = collisions(spots, phase);
  const told = found.slice(0, 8).map((text) => element("li", {}, text));
  if (found.length > 8) told.push(element("li", {}, `and ${found.length - 8} more sets of lanes`));
  return element("figure", {}, element("figcaption", {}, `${title}: ${plural(waves, "wavefront")}`), picture,
    found.length ? element("ul", { class: "collide" }, ...told) : element("p", { class: "dim" }, "No two words of a phase are in one bank."));
}

function heatMaps(access) {
  const { lanes, tile, kind, bytes } = access, same = JSON.stringify(lanes.row_order) === JSON.stringify(lanes.chosen);
  return [element("p", { class: "dim" }, `A ${kind} of ${bytes} bytes a lane of ${tile}, by warp ${lanes.warp}`
    + (access.copies > 1 ? ", of all copies and warps one with the most wavefronts" : "") + `. Lanes down, banks across; ${lanes.phase} lanes are a phase. `
    + "Blue: the bank has one word for the lanes of the phase. Yellow to red: it has several, which take a wavefront each."),
  element("div", { class: "figures" }, same ? "" : heatMap("in row order (before bank-conflict)", lanes.row_order, access, tile),
    heatMap(same ? "in row order, as laid out" : "as laid out (after bank-conflict)", lanes.chosen, access, tile))];
}

// A part that is drawn when it is opened for the first time.
function opened(summary, draw, open) {
  const part = element("details", { class: "drawn", open }, element("summary", {}, ...summary));
  let empty = true;
  const fill = () => {
    if (empty && part.open) part.append(...draw());
    empty &&= !part.open;
  };
  part.addEventListener("toggle", fill);
  if (open) fill();
  return part;
}

function drawShared(data, page) {
  const { banks } = data;
  if (!banks.tiles.length) return into("shared", element("p", { class: "dim" }, "No tiles in shared memory."));
  const meter = (value, most, worse) => {
    const bar = element("span", { class: "meter" + (worse ? " worse" : "") });
    bar.style.width = (value === null || !most ? 0 : (6 * value) / most) + "rem";
    return element("span", {}, bar, shown(value));
  };
  const most = highest(banks.accesses.flatMap((a) => [a.row_order ?? 0, a.chosen ?? 0]));
  into("shared", element("p", {}, count(banks.used) + (banks.limit ? ` of ${count(banks.limit)}` : "") + " bytes"), element("h3", {}, "Tiles"),
    table(["tile", "shape", "layout", "why", "bytes in row order", "as laid out", "wavefronts in row order", "as laid out", "ideal"],
      banks.tiles.map((t) => [t.name, `${t.shape.join(" x ")} ${t.dtype}`, t.layout, t.by, count(t.row_bytes), count(t.bytes), counted(t.row_wavefronts), counted(t.wavefronts), counted(t.ideal)]), [4, 5, 6, 7, 8]),
    ...banks.tiles.map((tile) => opened([`The layout of ${tile.name}, drawn`], () => layouts(tile))));
  if (!banks.accesses.length) return;
  into("shared", element("h3", {}, "Accesses, wavefronts of a warp"),
    table(["line", "tile", "access", "bytes a lane", "copies", "in row order", "as laid out", "ideal", "weight", "notes"], banks.accesses.map((a, i) => [
      page.at(banks.places[i]), a.tile, a.kind, String(a.bytes), String(a.copies), meter(a.row_order, most, a.row_order > a.ideal),
      element("span", {}, meter(a.chosen, most, a.chosen > a.ideal), a.least !== a.most ? ` (${a.least} to ${a.most})` : ""),
      shown(a.ideal), count(a.weight), a.notes.join("; ")]), [3, 4, 8]),
    element("p", { class: "dim" }, "Row order: before the pass bank-conflict. As laid out: after it. Ideal: without bank conflicts. Weight: how often a warp makes each copy; a loop of unknown length counts as 64."));
  // The access that loses most is open from the beginning.
  const lost = banks.accesses.map((a) => (a.lanes ? a.weight * (a.chosen - a.ideal) : 0)), worst = highest(lost);
  into("shared", element("h3", {}, "Lanes and banks"), ...banks.accesses.flatMap((a, i) => (a.lanes ? [opened(
    [page.at(banks.places[i]), ` ${a.kind} of ${a.tile}: wavefronts ${shown(a.row_order)} in row order, ${shown(a.chosen)} as laid out, ${shown(a.ideal)} without conflicts`],
    () => heatMaps(a), worst > 0 && lost.indexOf(worst) === i)] : [])));
}

