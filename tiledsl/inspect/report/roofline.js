// What the launch of the check computed and moved, against the peaks of GPUs.

// Both axes are logarithmic: operations a byte, and TFLOP/s. Marks: where the kernel is if each byte moves once, and if
// every access goes to memory.
// dot: [operations a byte, TFLOP/s] of a run that was measured.
function rooflineChart(roofs, marks, dot) {
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
  if (dot) chart.append(svg("circle", { class: "dot", cx: x(dot[0]), cy: y(dot[1]), r: 4 }), label(x(dot[0]) - 6, y(dot[1]) + 3, "measured", "end"));
  chart.append(label(left + wide / 2, top + high + 28, "operations a byte of memory"), label(left - 4, top + 8, "TFLOP/s", "end"));
  return element("div", { class: "scroll" }, chart);
}

// Did the check and the measurement run with the same sizes?
const sameRun = ({ check, measured }) => Boolean(measured && JSON.stringify(Object.entries(check.sizes).sort()) === JSON.stringify(Object.entries(measured.sizes).sort()));

function measuredBeside(data, operations) {
  const { measured, roofline } = data;
  if (!measured) return [];
  if (!sameRun(data)) return [element("p", { class: "dim" }, `The time that was measured, ${shown(measured.us[0])} us, is of other sizes: give those to --check to compare.`)];
  const [us, least] = measured.us, roof = roofline.roofs.find((each) => measured.gpu.includes(each.gpu.split(" ")[0]));
  const share = roof && (100 * roof.us[roof.limiter]) / us;
  return [element("p", {}, element("b", {}, `Measured on ${measured.gpu}: ${shown(us)} us`), ` (median; least ${shown(least)} us), ${shown(operations / us / 1e6)} TFLOP/s`
    + (roof ? `. The ${roof.limiter} of ${roof.gpu} alone need ${shown(roof.us[roof.limiter])} us, ${shown(share)}% of it.` : "."))];
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
  ...measuredBeside(data, all),
  roofs.every((roof) => roof.peak) ? rooflineChart(roofs, [["each byte once", all / distinct], ...(asked > distinct * 1.02 ? [["as asked for", all / asked]] : [])], sameRun(data) && [all / distinct, all / data.measured.us[0] / 1e6]) : "",
  element("p", { class: "dim" }, "Predicted: what each unit needs at least, at the rates of the datasheets. Left out: latency, the time of a launch and of its start and end, "
    + "L2 and shared memory, the issue of instructions, waves that fill only a part of the SMs, a clock that power limits. Integers and functions other than fma, add, sub and mul are not counted."));
}

