// What the launch of the check computed and moved, against the peaks of GPUs.

// Both axes are logarithmic: operations a byte, and TFLOP/s. Marks: where the kernel is if each byte moves once, and if
// every access goes to memory.
function rooflineChart(roofs, marks) {
  const left = 52, top = 8, wide = 460, high = 200, width = left + wide + 12, height = top + high + 34;
  const ridges = roofs.map((roof) => roof.peak / roof.memory), most = highest(roofs.map((roof) => roof.peak)) * 2;
  const from = Math.min(...marks.map(([, at]) => at), ...ridges) / 4, to = Math.max(...marks.map(([, at]) => at), ...ridges) * 4;
  const least = Math.min(...roofs.map((roof) => roof.memory)) * from;
  const x = (at) => left + (Math.log(at / from) / Math.log(to / from)) * wide, y = (at) => top + high - (Math.log(at / least) / Math.log(most / least)) * high;
  const chart = svg("svg", { class: "roofline", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Roofline" });
  chart.append(svg("rect", { class: "back", x: left, y: top, width: wide, height: high }));
  for (let power = Math.ceil(Math.log10(from)); power <= Math.log10(to); power++) chart.append(svg("line", { x1: x(10 ** power), x2: x(10 ** power), y1: top, y2: top + high }), label(x(10 ** power), top + high + 12, shown(10 ** power)));
  for (let power = Math.ceil(Math.log10(least)); power <= Math.log10(most); power++) chart.append(svg("line", { x1: left, x2: left + wide, y1: y(10 ** power), y2: y(10 ** power) }), label(left - 4, y(10 ** power) + 3, shown(10 ** power), "end"));
  for (const [i, roof] of roofs.entries()) {
    const ridge = roof.peak / roof.memory;
    chart.append(svg("path", { class: "roof", d: `M${x(from)} ${y(roof.memory * from)}L${x(ridge)} ${y(roof.peak)}H${x(to)}` }),
      label(x(ridge), y(roof.peak) - 4 - 9 * i, roof.gpu, "end"));
  }
  for (const [i, [name, at]] of marks.entries()) chart.append(svg("line", { class: "mark", x1: x(at), x2: x(at), y1: top, y2: top + high }), label(x(at) + 3, top + high - 5 - 10 * i, name, "start"));
  chart.append(label(left + wide / 2, top + high + 28, "operations a byte of memory"), label(left - 4, top + 8, "TFLOP/s", "end"));
  return element("div", { class: "scroll" }, chart);
}

function drawRoofline(data) {
  const { roofline } = data;
  if (!roofline) return into("roofline", element("p", { class: "dim" }, "Counted in a run of the check that passes. " + (data.check.sizes ? "" : data.check.text)));
  const { operations, asked, distinct, roofs } = roofline, all = Object.values(operations).reduce((a, b) => a + b, 0);
  const parts = Object.entries(operations).map(([name, number]) => `${count(number)} ${name}`).join(", ") || "none";
  into("roofline", element("dl", { class: "rows2" }, ...[
    ["operations", parts], ["bytes, each element read once and written once", `${count(distinct)}; ${shown(all / Math.max(1, distinct))} operations a byte`],
    ["bytes that accesses and copies ask for", `${count(asked)}; ${shown(all / Math.max(1, asked))} operations a byte`],
  ].flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)])));
  if (!distinct) return into("roofline", element("p", { class: "dim" }, "Nothing is read or written."));
  if (!roofs.length) return into("roofline", element("p", { class: "dim" }, `The rates of GPUs of ${data.kernel.arch} are not known.`));
  const units = [...new Set(roofs.flatMap((roof) => Object.keys(roof.us)))];
  into("roofline", table(["GPU", "blocks", "SMs with a block", ...units.map((unit) => unit + ", us"), "limited by"], roofs.map((roof) => [
    `${roof.gpu} (${roof.mhz} MHz, ${shown(roof.memory)} TB/s)`, count(roof.blocks), `${Math.min(roof.blocks, roof.processors)} of ${roof.processors}`,
    ...units.map((unit) => String(roof.us[unit] ?? 0)), roof.limiter]), [1, 2, ...units.map((_, i) => i + 3)]),
  roofs.every((roof) => roof.peak) ? rooflineChart(roofs, [["each byte once", all / distinct], ...(asked > distinct * 1.02 ? [["as asked for", all / asked]] : [])]) : "",
  element("p", { class: "dim" }, "Predicted, not measured: what each unit needs at least, at the rates of the datasheets. Left out: latency, the time of a launch and of its start and end, "
    + "L2 and shared memory, the issue of instructions, waves that fill only a part of the SMs, a clock that power limits. Integers and functions other than fma, add, sub and mul are not counted."));
}

