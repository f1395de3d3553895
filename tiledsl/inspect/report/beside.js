// What differs between two reports, and both in frames. All texts become text nodes.

(() => {
  const { titles, at, resources, parts, pages } = JSON.parse(document.getElementById("data").textContent);
  const element = (name, attributes, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const row = (...cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
  const kinds = { "+": "add", "-": "del", "@": "at" };
  const diff = (lines) => element("pre", {}, ...lines.map((line) => element("span", { class: kinds[line[0]] || "" }, line + "\n")));
  const top = document.getElementById("top"), sides = document.getElementById("sides");
  if (resources.length) top.append(element("table", {}, element("tr", {}, ...["", "A", "B"].map((name) => element("th", {}, name))), ...resources.map((each) => row(...each))));
  for (const [part, added, removed, lines] of parts)
    top.append(lines.length ? element("details", {}, element("summary", {}, `${part}: \u2212${removed} +${added} lines`), diff(lines)) : element("p", {}, `${part}: same`));
  pages.forEach((text, i) => {
    const address = URL.createObjectURL(new Blob([text], { type: "text/html" }));
    sides.append(element("figure", {}, element("figcaption", {}, `${"AB"[i]}: ${titles[i]}`), element("iframe", { src: address + at[i], title: titles[i] })));
  });
})();
