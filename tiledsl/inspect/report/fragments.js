// Products on tensor cores: which lane holds which element of an operand of one instruction.

const ELEMENT = [44, 16]; // width and height of a cell

function operandPicture(operand) {
  const { cells } = operand, several = new Set(cells.flat().map(([warp]) => warp)).size > 1;
  const [wide, high] = ELEMENT, left = 24, top = 14, width = left + cells[0].length * wide + 2, height = top + cells.length * high + 2;
  const picture = svg("svg", { class: "held", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Who holds ${operand.name}` });
  cells.forEach((row, i) => {
    picture.append(label(left - 4, top + (i + 0.75) * high, i, "end"));
    row.forEach(([warp, lane, register], j) => {
      if (!i) picture.append(label(left + (j + 0.5) * wide, top - 4, j));
      const x = left + j * wide, y = top + i * high, cell = svg("g", { "data-lane": `${warp}.${lane}` }), title = svg("title", {});
      title.append(`row ${i}, column ${j}: ${several ? `warp ${warp}, ` : ""}lane ${lane}, its element ${register}`);
      cell.append(svg("rect", { x, y, width: wide - 1, height: high - 1, fill: `hsl(${(lane * 360) / 32} 70% 50% / .4)` }),
        label(x + wide / 2, y + high * 0.72, `${several ? warp + ":" : ""}${lane}.${register}`), title);
      picture.append(cell);
    });
  });
  return picture;
}

function operandFigure(operand, marked) {
  const { name, dtype, dims, tile, layout, warps, tiles, size } = operand, shape = `${dims.join(" x ")} ${dtype}`;
  const title = element("figcaption", {}, `${name}: ${shape}`);
  if (tile) return element("figure", {}, title, element("p", { class: "dim" }, `In shared memory (${tile}): no lane holds it.`));
  const picture = operandPicture(operand);
  marked.push(picture);
  const together = new Set(operand.cells.flat().map(([warp]) => warp)).size, rows = warps[0] / together, who = together > 1 ? "warpgroup" : "warp";
  const parts = [rows > 1 ? `${rows} parts by rows` : "", warps[1] > 1 ? `${warps[1]} parts by columns` : ""].filter(Boolean).join(" and ");
  return element("figure", {}, title, element("p", { class: "dim" }, `${layout}. ${parts ? `In ${parts}; each` : "The"} ${who} has ${tiles.join(" x ")} of what is drawn here, `
    + `and a thread holds ${plural(size, "element")}.`), element("div", { class: "scroll" }, picture));
}

function drawFragments(data, page) {
  if (!data.products.length) return into("fragments", element("p", { class: "dim" }, "No products on tensor cores."));
  for (const product of data.products)
    into("fragments", opened([page.at(product.place), " ", product.instruction], () => {
      const marked = [], told = element("p", { class: "dim" }, "Of one instruction: lane.element of the lane" + (product.instruction.startsWith("wgmma") ? ", with warp: before it" : "") + ". Click an element to see all that its lane holds.");
      const figures = element("div", { class: "figures" }, ...product.operands.map((operand) => operandFigure(operand, marked)));
      figures.addEventListener("click", (event) => {
        const cell = event.target.closest("g");
        if (!cell) return;
        for (const picture of marked) for (const each of picture.querySelectorAll("g")) each.classList.toggle("mine", each.dataset.lane === cell.dataset.lane);
      });
      return [told, figures];
    }, false));
}

