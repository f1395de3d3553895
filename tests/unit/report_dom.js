"use strict";
// As much of a document as page.js needs, so that it runs without a browser: what it draws is a tree of plain objects.
// node report_dom.js SCRIPT...  < data.json   prints the texts, and what a selection changes.

const fs = require("fs");

class Node {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {}, listeners: {}, style: {}, dataset: {}, hidden: false, scrollTop: 0, clientHeight: 360, value: "" });
    this.classList = { toggle() {} };
  }
  append(...nodes) { this.children.push(...nodes); }
  before(...nodes) { this.beside = nodes; }
  replaceChildren(...nodes) { this.children = nodes; }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
    if (name === "open") this.open = true;
  }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  querySelectorAll() { return []; }
  scrollIntoView() {}
  get textContent() { return this.children.map((child) => (typeof child === "string" ? child : child.textContent)).join(""); }
  set textContent(text) { this.children = [text]; }
  get all() { return [this, ...this.children.filter((child) => child instanceof Node).flatMap((child) => child.all)]; }
}

const ids = {};
const byId = (id) => (ids[id] = ids[id] || new Node(id));
byId("data").textContent = fs.readFileSync(0, "utf8");
global.document = { createElement: (tag) => new Node(tag), createElementNS: (_, tag) => new Node(tag), getElementById: byId, documentElement: new Node("html") };
global.location = { hash: process.env.HASH || "", pathname: "", search: "" };
global.history = { replaceState: (_, __, link) => { location.hash = link === "#" ? "" : link; } };  // as browsers do
global.ResizeObserver = class { observe() {} };
global.requestAnimationFrame = (draw) => draw();
global.addEventListener = () => {};
global.getSelection = () => "";
URL.createObjectURL = () => "blob:";

const page = new Function(process.argv.slice(2).map((file) => fs.readFileSync(file, "utf8")).join("") + "; return show();")();
// What is drawn when it is opened.
for (const node of Object.values(ids).flatMap((each) => each.all)) {
  if (node.tag !== "details") continue;
  node.open = true;
  if (node.listeners.toggle) node.listeners.toggle();
}
const parts = {}, links = [];
for (const [id, node] of Object.entries(ids)) {
  if (id === "data") continue;
  parts[id] = node.textContent;
  links.push(...node.all.map((each) => each.attributes.href).filter(Boolean));
}
const selected = {};
for (const pane of ["python", "ir", "ptx", "sass"]) {
  if (!page.panes[pane].texts.length) continue;
  page.select(pane, 1);
  selected[pane] = { hash: location.hash, lit: Object.fromEntries(Object.entries(page.panes).map(([name, each]) => [name, each.lit.size])) };
}
page.stage(0);
page.panes.sass.key({ key: "ArrowDown", preventDefault() {} });
page.panes.ir.key({ key: "c", preventDefault() {} });
page.clear();
console.log(JSON.stringify({ parts, links, selected, hash: location.hash }));
