// The cluster view, and what ties the views together. Everything from the user's disk is set as text, never as HTML.
"use strict";
(async () => {
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]; // Okabe and Ito: safe for colour-blind eyes
  const MARKERS = ["circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "star"];
  const PAGE = 60; // clusters or images shown at once
  const CLOSEST = 5; // images on a card, as in the paper's last figure

  const find = (id) => document.getElementById(id);
  const data = await unpack(find("data").textContent);
  const blobs = data.thumbnails ? data.thumbnails.sheets.map(toBlob) : [];
  const pictureOf = new Map((data.thumbnails?.images ?? []).map((image, position) => [image, position]));
  const levels = data.levels.map((level) => ({ ...level, members: membersOf(level), children: null }));
  for (const [m, level] of levels.entries()) {
    if (m > 0) levels[m - 1].children = invert(level.parent, levels[m - 1].size.length);
  }

  // Data

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function toBlob(address) {
    const bytes = Uint8Array.from(atob(address.slice(address.indexOf(",") + 1)), (c) => c.charCodeAt(0));
    return URL.createObjectURL(new Blob([bytes], { type: "image/webp" }));
  }

  // For each of `count` groups the positions that belong to it.
  function invert(groups, count) {
    const lists = Array.from({ length: count }, () => []);
    groups.forEach((group, i) => lists[group].push(i));
    return lists;
  }

  // The images of each prototype, the closest first.
  function membersOf(level) {
    const lists = invert(level.assignment, level.size.length);
    if (level.distance) for (const list of lists) list.sort((a, b) => level.distance[a] - level.distance[b] || a - b);
    return lists;
  }

  // Elements

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === undefined || value === null || value === false) continue;
      if (name === "onclick") made.addEventListener("click", value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined)); // strings become text
    return made;
  }

  function picture(image, pixels = 48, size = "") {
    const name = describe(image);
    if (!pictureOf.has(image)) return element("span", { class: `thumb ${size}`, title: name }, data.names[image]);
    const { columns, rows } = data.thumbnails;
    const position = pictureOf.get(image);
    const within = position % (columns * rows);
    const made = element("span", { class: `thumb ${size}`, role: "img", "aria-label": name, title: name });
    made.style.backgroundImage = `url(${blobs[Math.floor(position / (columns * rows))]})`;
    made.style.backgroundSize = `${columns * pixels}px auto`;
    made.style.backgroundPosition = `-${(within % columns) * pixels}px -${Math.floor(within / columns) * pixels}px`;
    return made;
  }

  const pictures = (images, kind, pixels) =>
    element("div", { class: `thumbs ${kind}` }, images.map((image) => picture(image, pixels)));

  const describe = (image) => data.names[image] + (data.labels ? ` (${data.classes[data.labels[image]]})` : "");
  const number = (value) => value.toLocaleString("en");
  const plural = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const link = (m, c) => element("a", { href: `#clusters/${m}/${c}` }, `${c} of ${number(levels[m].size.length)}`);

  // Images with a picture come first: the others are shown by their names.
  const shown = (images, count) => {
    const seen = images.filter((image) => pictureOf.has(image)).slice(0, count);
    return seen.length ? seen : images.slice(0, count);
  };

  // A list that grows: the first PAGE entries, and a button for more.
  function growing(entries, make, kind, start = PAGE) {
    const list = element("ul", { class: kind });
    const more = element("button", { type: "button", onclick: () => grow() });
    let done = 0;
    function grow() {
      const next = entries.slice(done, done + (done ? PAGE : start));
      list.append(...next.map((entry) => element("li", {}, make(entry))));
      done += next.length;
      more.textContent = `Show more (${number(entries.length - done)} left)`;
      more.classList.toggle("away", done >= entries.length);
    }
    grow();
    return [list, more];
  }

  // Clusters

  const sorts = {
    size: ["size", (level) => (a, b) => level.size[b] - level.size[a]],
    tightness: ["tightness", (level) => (a, b) => level.phi[a] - level.phi[b]],
    purity: ["purity", (level) => (a, b) => level.purity[b] - level.purity[a] || level.size[b] - level.size[a]],
  };

  function sorted(m, prototypes) {
    return [...prototypes].sort((a, b) => sorts[find("sort").value][1](levels[m])(a, b) || a - b);
  }

  function facts(m, c) {
    const level = levels[m];
    const said = [plural(level.size[c], "image")];
    if (level.phi) said.push(`φ ${level.phi[c].toFixed(3)}`);
    if (level.purity) said.push(`${percent(level.purity[c])} ${data.classes[level.label[c]]}`);
    return said.join(" · ");
  }

  function card(m, c) {
    const level = levels[m];
    const finer = level.children ? plural(level.children[c].length, "finer prototype") : "";
    return element(
      "a", { class: "card", href: `#clusters/${m}/${c}`, "data-prototype": `${m}/${c}` },
      pictures(shown(level.members[c], CLOSEST), "closest"),
      element("p", {}, facts(m, c)),
      element("p", { class: "note" }, [`prototype ${c}`, finer].filter(Boolean).join(", ")),
    );
  }

  function overview(m) {
    const level = levels[m];
    const all = sorted(m, level.size.keys());
    const others = levels.map((_, other) =>
      other === m ? null : element("a", { href: `#clusters/${other}` }, `k = ${number(levels[other].size.length)}`));
    return [
      element("p", {}, `${plural(level.size.length, "prototype")}, each with the images closest to it. `,
        levels.length > 1 ? "Another granularity: " : "", ...others.filter(Boolean).flatMap((a, i) => (i ? [", ", a] : [a]))),
      ...growing(all, (c) => card(m, c), "cards"),
    ];
  }

  function inside(m, c) {
    const level = levels[m];
    const trail = [];
    for (let at = m, which = c; at >= 0; which = levels[at].parent?.[which], at--) trail.unshift([at, which]);
    const crumbs = element("p", { class: "crumbs" }, element("a", { href: "#clusters" }, "all clusters"),
      trail.flatMap(([at, which]) => [" › ", at === m ? `${which} of ${number(levels[at].size.length)}` : link(at, which)]));
    const view = [crumbs, element("h3", {}, `Prototype ${c} of ${number(level.size.length)}`), element("p", {}, facts(m, c))];
    if (data.labels) view.push(element("p", { class: "note" }, mix(level.members[c])));
    view.push(element("h3", {}, level.distance ? "Images closest to it" : "Images of it"));
    const closest = shown(level.members[c], 12);
    view.push(pictures(closest, "closest large", 72));
    let seen = new Set(closest);
    if (level.children) {
      view.push(element("h3", {}, `Finer prototypes inside it (of ${number(levels[m + 1].size.length)})`));
      const children = sorted(m + 1, level.children[c]);
      if (children.length) view.push(...growing(children, (child) => card(m + 1, child), "cards"));
      else view.push(element("p", {}, "None has most of its images here."));
      seen = new Set([...seen, ...children.flatMap((child) => shown(levels[m + 1].members[child], CLOSEST))]);
    }
    const rest = scattered(level.members[c].filter((image) => !seen.has(image) && (pictureOf.has(image) || !blobs.length)));
    if (rest.length) {
      view.push(element("h3", {}, "Others of this cluster, in random order"));
      view.push(...growing(rest, (image) => picture(image), "thumbs around"));
    }
    return view;
  }

  // The most frequent classes among images.
  function mix(images) {
    const counts = new Map();
    for (const image of images) counts.set(data.labels[image], (counts.get(data.labels[image]) ?? 0) + 1);
    const first = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 6).map(([label, count]) => `${data.classes[label]} ${number(count)}`);
    return `Classes: ${first.join(", ")}${counts.size > 6 ? ", ..." : ""}`;
  }

  // An order that looks random and is the same at each visit.
  const scattered = (images) => [...images].sort((a, b) => Math.imul(a + 1, 2654435761) - Math.imul(b + 1, 2654435761));

  function tile(image, text) {
    const where = element("span", {}, "prototypes ", levels.flatMap((level, m) => [m ? ", " : "", link(m, level.assignment[image])]));
    return element("div", { class: "tile" }, picture(image, 72, "large"),
      element("div", {}, element("strong", {}, data.names[image]), element("br"),
        data.labels ? [data.classes[data.labels[image]], element("br")] : null, text ? [text, element("br")] : null, where));
  }

  function odd() {
    return [
      element("p", {}, "Images that fit no prototype well: the cosine distance to the best of those that they share with others."),
      ...growing(data.outliers, ([image, distance]) =>
        tile(image, distance === null ? "alone in all its clusters" : `distance ${distance.toFixed(3)}`), "tiles"),
    ];
  }

  function alike() {
    return [
      element("p", {}, "Pairs of images that look most alike to the encoder: duplicates first, if there are any."),
      ...growing(data.alike, ([a, b, distance]) =>
        element("div", { class: "tile" }, picture(a, 72, "large"), picture(b, 72, "large"),
          element("div", {}, data.names[a], element("br"), data.names[b], element("br"), `distance ${distance.toFixed(4)}`)), "tiles"),
    ];
  }

  function matches(text) {
    const wanted = text.toLowerCase();
    const found = [];
    for (let image = 0; image < data.names.length; image++) if (describe(image).toLowerCase().includes(wanted)) found.push(image);
    return [element("p", { role: "status" }, `${plural(found.length, "image")} with “${text}”`), ...growing(found, (image) => tile(image), "tiles")];
  }

  function showClusters(path) {
    const text = find("find").value.trim();
    const kinds = [["clusters", "prototypes"]];
    if (data.outliers.length) kinds.push(["clusters/odd", "fits none well"]);
    if (data.alike.length) kinds.push(["clusters/alike", "look alike"]);
    const now = ["odd", "alike"].includes(path[0]) ? `clusters/${path[0]}` : "clusters";
    find("kinds").replaceChildren(...kinds.map(([hash, name]) =>
      element("a", { href: `#${hash}`, "aria-current": hash === now && !text ? "true" : null }, name)));
    const m = Number(path[0] ?? 0), c = Number(path[1]);
    let view;
    if (text) view = matches(text);
    else if (path[0] === "odd") view = odd();
    else if (path[0] === "alike") view = alike();
    else if (!levels[m]) view = overview(0);
    else view = levels[m].members[c] ? inside(m, c) : overview(m);
    find("cluster-view").replaceChildren(...view);
  }

  // Map

  let points = null; // Bokeh's data source, once the map has been looked at

  async function showMap() {
    if (points || !data.map) return;
    points = {};
    const views = await Bokeh.embed.embed_item(data.map.plots, "map-plots");
    points = views.roots[0].model.document.get_model_by_name("points");
    const select = find("colour");
    if (data.labels) select.append(element("option", { value: "label" }, "class"));
    levels.forEach((level, m) => select.append(element("option", { value: m }, `prototype, k = ${number(level.size.length)}`)));
    select.addEventListener("change", () => colour());
    colour();
    const plots = find("map-plots");
    for (const event of ["mousemove", "click"]) plots.addEventListener(event, () => requestAnimationFrame(point));
    plots.dataset.ready = "yes";
  }

  function groupsOfMap() {
    const by = find("colour").value;
    return data.map.images.map((image) => (by === "label" ? data.labels[image] : levels[by].assignment[image]));
  }

  // The largest groups get a colour and a shape each, the others are grey.
  function colour(only = null) {
    const groups = groupsOfMap();
    const counts = new Map();
    for (const group of groups) counts.set(group, (counts.get(group) ?? 0) + 1);
    const first = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, COLOURS.length * MARKERS.length);
    const rank = new Map(first.map(([group], i) => [group, i]));
    const look = (group) => (rank.has(group) ? [COLOURS[rank.get(group) % COLOURS.length], MARKERS[Math.floor(rank.get(group) / COLOURS.length)]] : ["#999999", "circle"]);
    points.data = {
      ...points.data,
      color: groups.map((group) => look(group)[0]),
      marker: groups.map((group) => look(group)[1]),
      alpha: groups.map((group) => (only === null || only === group ? 0.85 : 0.07)),
    };
    const name = (group) => (find("colour").value === "label" ? data.classes[group] : `prototype ${group}`);
    const entries = first.map(([group, count]) => element(
      "button", { type: "button", "aria-pressed": String(only === group), onclick: () => colour(only === group ? null : group) },
      shape(...look(group)), `${name(group)} ${number(count)}`));
    const left = counts.size - first.length;
    find("legend").replaceChildren(...entries, ...(left > 0 ? [element("span", { class: "note" }, `and ${number(left)} smaller ones, in grey`)] : []));
  }

  function shape(colour, marker) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const path = document.createElementNS(space, "path");
    const d = { circle: "M6 1a5 5 0 1 1 0 10a5 5 0 1 1 0-10", square: "M1 1h10v10h-10z", triangle: "M6 1l5 10h-10z", diamond: "M6 0l5 6l-5 6l-5-6z",
      inverted_triangle: "M6 11l5-10h-10z", hex: "M6 0l5.2 3v6l-5.2 3l-5.2-3v-6z", star: "M6 0l1.5 4.3h4.5l-3.6 2.8l1.3 4.5l-3.7-2.7l-3.7 2.7l1.3-4.5l-3.6-2.8h4.5z" };
    svg.setAttribute("viewBox", "0 0 12 12");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", d[marker]);
    path.setAttribute("fill", colour);
    svg.append(path);
    return svg;
  }

  function point() {
    const index = points.inspected.indices[0] ?? points.selected.indices[0];
    if (index === undefined) return;
    const image = data.map.images[index];
    if (find("pointed").dataset.image === String(image)) return;
    find("pointed").dataset.image = image;
    find("pointed").replaceChildren(picture(image, 144), element("p", {}, element("strong", {}, data.names[image])),
      element("p", {}, data.labels ? data.classes[data.labels[image]] : ""),
      element("p", {}, "prototypes ", levels.flatMap((level, m) => [m ? ", " : "", link(m, level.assignment[image])])));
  }

  // Views

  function route() {
    const [view, ...path] = location.hash.slice(1).split("/");
    const sections = [...document.querySelectorAll("section[data-view]")];
    const now = sections.some((section) => section.dataset.view === view) ? view : "glance";
    for (const section of sections) section.classList.toggle("away", section.dataset.view !== now);
    for (const a of document.querySelectorAll("header nav a")) {
      if (a.hash === `#${now}`) a.setAttribute("aria-current", "page");
      else a.removeAttribute("aria-current");
    }
    if (now === "clusters") showClusters(path);
    if (now === "map") showMap();
    window.scrollTo(0, 0);
  }

  const usable = { size: true, tightness: levels.every((level) => level.phi), purity: data.labels };
  for (const [value, [name]] of Object.entries(sorts)) if (usable[value]) find("sort").append(element("option", { value }, name));
  const largest = [...levels[0].size.keys()].sort((a, b) => levels[0].size[b] - levels[0].size[a] || a - b).slice(0, 8);
  find("largest").append(...largest.map((c) => element("li", {}, card(0, c))));
  showClusters([]); // so that a printed page has them
  find("sort").addEventListener("change", () => route());
  find("find").addEventListener("input", () => showClusters(location.hash.slice(1).split("/").slice(1)));
  window.addEventListener("hashchange", () => {
    find("find").value = "";
    route();
  });
  route();
  document.documentElement.dataset.ready = "yes";
})();
