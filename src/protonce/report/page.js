// The cluster view, and what ties the views together. Everything from the user's disk is set as text, never as HTML.
"use strict";
(async () => {
  const PAGE = 60; // clusters or images shown at once
  const find = (id) => document.getElementById(id);
  const data = await unpack(find("data").textContent);
  const sheets = [...document.querySelectorAll("script.sheet")];
  const pictureOf = new Map(data.pictured.map((image, position) => [image, position]));
  const levels = data.levels.map((level) => ({ ...level, members: membersOf(level), children: null }));
  for (const [m, level] of levels.entries()) {
    if (m > 0) levels[m - 1].children = invert(level.parent, levels[m - 1].size.length);
  }

  // Data

  function bytes(base64) {
    const text = atob(base64);
    const found = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
    return found;
  }

  async function unpack(text) {
    const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // The address of a sheet of thumbnails, made when it is first needed.
  function sheet(which) {
    const holder = sheets[which];
    holder.dataset.address ??= URL.createObjectURL(new Blob([bytes(holder.textContent)], { type: "image/webp" }));
    return holder.dataset.address;
  }

  // For each of `count` groups the positions that belong to it.
  function invert(groups, count) {
    const lists = Array.from({ length: count }, () => []);
    groups.forEach((group, i) => lists[group].push(i));
    return lists;
  }

  // The listed images of each prototype, the closest first.
  function membersOf(level) {
    const lists = invert(level.assignment, level.size.length);
    if (level.rank) for (const list of lists) list.sort((a, b) => level.rank[a] - level.rank[b]);
    return lists;
  }

  // Elements

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "onclick") made.addEventListener("click", value);
      else if (value !== null) made.setAttribute(name, value);
    }
    made.append(...children.flat().filter((child) => child !== null)); // strings become text
    return made;
  }

  function picture(image, pixels = 48, kind = "") {
    const name = describe(image);
    if (!pictureOf.has(image)) return element("span", { class: `thumb ${kind}`, title: name }, data.names[image]);
    const { columns, rows } = data.sheet;
    const position = pictureOf.get(image);
    const within = position % (columns * rows);
    const made = element("span", { class: `thumb ${kind}`, role: "img", "aria-label": name, title: name });
    made.style.backgroundImage = `url(${sheet(Math.floor(position / (columns * rows)))})`;
    made.style.backgroundSize = `${columns * pixels}px auto`;
    made.style.backgroundPosition = `-${(within % columns) * pixels}px -${Math.floor(within / columns) * pixels}px`;
    return made;
  }

  const describe = (image) => data.names[image] + (data.labels ? ` (${data.classes[data.labels[image]]})` : "");
  const number = (value) => value.toLocaleString("en");
  const plural = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
  // 100 % means all, and 0 % none.
  const percent = (share) => `${share > 0 && share < 1 ? Math.min(Math.max(Math.round(100 * share), 1), 99) : 100 * share} %`;
  const named = (m, c) => `${c} (k = ${number(levels[m].size.length)})`;
  const link = (m, c) => element("a", { href: `#clusters/${m}/${c}` }, named(m, c));
  const prototypesOf = (image) => ["prototypes ", levels.flatMap((level, m) => [m ? ", " : "", link(m, level.assignment[image])])].flat();

  // Some images of a prototype: framed green where they are among its `count` closest, orange where they are others
  // of the cluster. Those with a picture come first.
  function some(m, c, count, pixels) {
    const level = levels[m];
    const close = level.members[c].filter((image) => level.rank && level.rank[image] < count);
    const others = level.members[c].filter((image) => pictureOf.has(image) && !close.includes(image));
    const seen = [...close.filter((image) => pictureOf.has(image)), ...others];
    const images = (seen.length ? seen : level.members[c]).slice(0, count);
    return { images, strip: element("div", { class: "thumbs" }, images.map((image) =>
      picture(image, pixels, `${pixels > 48 ? "large" : ""} ${!level.rank ? "" : level.rank[image] < count ? "close" : "around"}`))) };
  }

  // A list that grows: the first PAGE entries, and a button for more. How far it had grown is known on return.
  const grown = new Map();
  function growing(entries, make, kind) {
    const list = element("ul", { class: kind });
    const more = element("button", { type: "button", onclick: () => grow(PAGE, true) });
    const place = `${location.hash} ${kind}`;
    let done = 0;
    function grow(count, asked) {
      const next = entries.slice(done, done + count).map((entry) => element("li", {}, make(entry)));
      list.append(...next);
      done += next.length;
      grown.set(place, done);
      more.textContent = `Show more (${number(entries.length - done)} left)`;
      more.classList.toggle("away", done >= entries.length);
      if (asked) (next[0].querySelector("a") ?? more).focus();
    }
    grow(Math.max(PAGE, grown.get(place) ?? 0), false);
    return [list, more];
  }

  // Clusters

  const sorts = {
    size: (level) => (a, b) => level.size[b] - level.size[a],
    tightness: (level) => (a, b) => level.phi[a] - level.phi[b],
    purity: (level) => (a, b) => (level.purity[b] ?? -1) - (level.purity[a] ?? -1) || level.labelled[b] - level.labelled[a],
  };
  const sorted = (m, prototypes, by) => [...prototypes].sort((a, b) => sorts[by](levels[m])(a, b) || a - b);

  function facts(m, c) {
    const level = levels[m];
    const said = [plural(level.size[c], "image")];
    if (level.phi) said.push(`φ ${level.phi[c].toFixed(3)}`);
    if (level.purity && level.purity[c] !== null) {
      const few = level.labelled[c] < level.size[c] ? ` of ${number(level.labelled[c])} labelled` : "";
      said.push(`${percent(level.purity[c])} ${data.classes[level.label[c]]}${few}`);
    }
    return said.join(" · ");
  }

  function card(m, c) {
    const finer = levels[m].children ? plural(levels[m].children[c].length, "finer prototype") : "";
    return element(
      "a", { class: "card", href: `#clusters/${m}/${c}`, "data-prototype": `${m}/${c}` },
      some(m, c, data.closest, 48).strip,
      element("p", {}, facts(m, c)),
      element("p", { class: "note" }, [`prototype ${c}`, finer].filter(Boolean).join(", ")),
    );
  }

  function overview(m) {
    const level = levels[m];
    const others = levels.map((_, other) => (other === m ? null : element("a", { href: `#clusters/${other}` }, `k = ${number(levels[other].size.length)}`)));
    const what = level.rank ? "each with its closest images, framed green (orange: other images of the cluster)" : "each with some of its images";
    const phi = level.phi ? " A small concentration φ means a tight cluster." : "";
    return [
      element("p", {}, `${plural(level.size.length, "prototype")}, ${what}.${phi} `, levels.length > 1 ? "Other granularities: " : "",
        ...others.filter(Boolean).flatMap((a, i) => (i ? [", ", a] : [a]))),
      ...growing(sorted(m, level.size.keys(), find("sort").value), (c) => card(m, c), "cards"),
    ];
  }

  function inside(m, c) {
    const level = levels[m];
    const trail = [];
    for (let at = m, which = c; at >= 0; which = levels[at].parent?.[which], at--) trail.unshift([at, which]);
    const close = some(m, c, 12, 72);
    const view = [
      element("p", { class: "crumbs" }, element("a", { href: "#clusters" }, "all clusters"),
        trail.flatMap(([at, which]) => [" › ", at === m ? named(at, which) : link(at, which)])),
      element("h3", { tabindex: "-1" }, `Prototype ${named(m, c)}`),
      element("p", {}, facts(m, c)),
      data.labels ? element("p", { class: "note" }, mix(level.members[c])) : null,
      element("h3", {}, level.rank ? "Closest images" : "Images"),
      close.strip,
    ].filter(Boolean);
    const seen = new Set(close.images);
    if (level.children) {
      view.push(element("h3", {}, `Finer prototypes inside (k = ${number(levels[m + 1].size.length)})`));
      const children = sorted(m + 1, level.children[c], find("sort").value);
      if (children.length) view.push(...growing(children, (child) => card(m + 1, child), "cards"));
      else view.push(element("p", {}, "No finer prototype has most of its images here."));
      for (const child of children) for (const image of some(m + 1, child, data.closest, 48).images) seen.add(image);
    }
    const rest = scattered(level.members[c].filter((image) => !seen.has(image) && (pictureOf.has(image) || !sheets.length)));
    if (rest.length) {
      view.push(element("h3", {}, "Other images of this cluster, in random order"));
      view.push(...growing(rest, (image) => picture(image, 48, "around"), "thumbs"));
    }
    return view;
  }

  // The most frequent classes among images.
  function mix(images) {
    const counts = new Map();
    for (const image of images) counts.set(data.labels[image], (counts.get(data.labels[image]) ?? 0) + 1);
    const first = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 6).map(([label, count]) => `${data.classes[label]} ${number(count)}`);
    const which = data.names.length < data.total ? "Classes of the listed images" : "Classes";
    return `${which}: ${first.join(", ")}${counts.size > 6 ? ", ..." : ""}`;
  }

  // An order that looks random and is the same at each visit.
  const scattered = (images) => [...images].sort((a, b) => Math.imul(a + 1, 2654435761) - Math.imul(b + 1, 2654435761));

  function tile(image, text = null) {
    const line = (content) => [content, element("br")];
    return element("div", { class: "tile" }, picture(image, 72, "large"),
      element("div", {}, line(element("strong", {}, data.names[image])),
        data.labels ? line(data.classes[data.labels[image]]) : null, text ? line(text) : null, prototypesOf(image)));
  }

  function odd() {
    return [
      element("p", {}, "Images that are far from all prototypes: the cosine distance to the nearest prototype that they share with other images."),
      ...growing(data.outliers, ([image, distance]) =>
        tile(image, distance === null ? "the only image in each of its clusters" : `distance ${distance.toFixed(3)}`), "tiles"),
    ];
  }

  function alike() {
    return [
      element("p", {}, "Pairs of images that are most similar to the encoder, duplicates first."),
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

  function showClusters([first, second, ...rest]) {
    const kinds = [["clusters", "prototypes"]];
    if (data.outliers.length) kinds.push(["clusters/odd", "outliers"]);
    if (data.alike.length) kinds.push(["clusters/alike", "near-duplicates"]);
    const now = { odd: "clusters/odd", alike: "clusters/alike", find: "" }[first] ?? "clusters";
    find("kinds").replaceChildren(...kinds.map(([hash, name]) =>
      element("a", { href: `#${hash}`, "aria-current": hash === now ? "true" : null }, name)));
    const text = first === "find" ? decodeURIComponent([second, ...rest].join("/")) : "";
    if (find("find").value.trim() !== text) find("find").value = text;
    const m = Number(first ?? 0);
    let view;
    if (text) view = matches(text);
    else if (first === "odd") view = odd();
    else if (first === "alike") view = alike();
    else if (!levels[m]) view = overview(0);
    else view = levels[m].members[Number(second)] ? inside(m, Number(second)) : overview(m);
    find("cluster-view").replaceChildren(...view);
  }

  // Map

  let points = null; // Bokeh's data source, once the map has been looked at
  let only = null; // the group that is shown alone

  async function showMap() {
    if (points || !data.map) return;
    points = {};
    const views = await Bokeh.embed.embed_item(data.map.plots, "map-plots");
    const drawn = views.roots[0].model.document;
    points = drawn.get_model_by_name("points");
    for (const plot of drawn.roots()[0].children) plot.height = Math.min(plot.height, window.innerWidth);
    const select = find("colour");
    if (data.labels) select.append(element("option", { value: "label" }, "class"));
    const whose = drawn.roots()[0].children.length > 1 ? "prototype of the run on the right" : "prototype";
    levels.forEach((level, m) => select.append(element("option", { value: m }, `${whose}, k = ${number(level.size.length)}`)));
    select.addEventListener("change", () => {
      only = null;
      colour();
    });
    colour();
    const plots = find("map-plots");
    for (const event of ["mousemove", "click"]) {
      plots.addEventListener(event, () => requestAnimationFrame(() => point(points.inspected.indices[0] ?? points.selected.indices[0])));
    }
    plots.addEventListener("keydown", step);
    plots.dataset.ready = "yes";
  }

  function groupsOfMap() {
    const by = find("colour").value;
    return data.map.images.map((image) => (by === "label" ? data.labels[image] : levels[by].assignment[image]));
  }

  // The largest groups get a colour and a shape each, the others are grey.
  function colour() {
    const groups = groupsOfMap();
    const { colours } = data;
    const { markers } = data.map;
    const counts = new Map();
    for (const group of groups) counts.set(group, (counts.get(group) ?? 0) + 1);
    const first = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, colours.length * markers.length);
    const rank = new Map(first.map(([group], i) => [group, i]));
    const look = (group) => (rank.has(group) ? [colours[rank.get(group) % colours.length], markers[Math.floor(rank.get(group) / colours.length)]] : ["#999999", "circle"]);
    points.data = { ...points.data, color: groups.map((group) => look(group)[0]), marker: groups.map((group) => look(group)[1]) };
    fade(groups);
    const name = (group) => (find("colour").value === "label" ? data.classes[group] : `prototype ${group}`);
    const entries = first.map(([group, count]) => element(
      "button", { type: "button", "aria-pressed": "false", onclick: (event) => {
        only = only === group ? null : group;
        for (const other of find("legend").querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
        event.currentTarget.setAttribute("aria-pressed", String(only === group));
        fade(groups);
      } },
      shape(...look(group)), `${name(group)} ${number(count)}`));
    const left = counts.size - first.length;
    find("legend").replaceChildren(...entries, ...(left > 0 ? [element("span", { class: "note" }, `and ${number(left)} smaller ones, in grey`)] : []));
  }

  function fade(groups) {
    points.data = { ...points.data, alpha: groups.map((group) => (only === null || only === group ? 0.85 : 0.07)) };
  }

  function shape(colour, marker) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const path = document.createElementNS(space, "path");
    const d = {
      circle: "M6 1a5 5 0 1 1 0 10a5 5 0 1 1 0-10", square: "M1 1h10v10h-10z", triangle: "M6 1l5 10h-10z", diamond: "M6 0l5 6l-5 6l-5-6z",
      inverted_triangle: "M6 11l5-10h-10z", hex: "M6 0l5.2 3v6l-5.2 3l-5.2-3v-6z", star: "M6 0l1.5 4.3h4.5l-3.6 2.8l1.3 4.5l-3.7-2.7l-3.7 2.7l1.3-4.5l-3.6-2.8h4.5z",
    };
    svg.setAttribute("viewBox", "0 0 12 12");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", d[marker]);
    path.setAttribute("fill", colour);
    svg.append(path);
    return svg;
  }

  // Keyboard: the next or previous image on the map, within the selected group if there is one.
  function step(event) {
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const groups = groupsOfMap();
    const open = groups.flatMap((group, i) => (only === null || only === group ? [i] : []));
    const at = open.indexOf(points.selected.indices[0]);
    const next = open[(at + way + open.length) % open.length];
    points.selected.indices = [next];
    point(next);
  }

  function point(index) {
    if (index === undefined) return;
    const image = data.map.images[index];
    if (find("pointed").dataset.image === String(image)) return;
    find("pointed").dataset.image = image;
    find("pointed").replaceChildren(picture(image, 144), element("div", {}, element("p", {}, element("strong", {}, data.names[image])),
      data.labels ? element("p", {}, data.classes[data.labels[image]]) : null, element("p", {}, prototypesOf(image))));
  }

  // Views

  const left = new Map(); // how far down each place was when it was left
  let here = location.hash;

  function route(moved) {
    const [view, ...path] = location.hash.slice(1).split("/");
    const sections = [...document.querySelectorAll("section[data-view]")];
    const now = sections.some((section) => section.dataset.view === view) ? view : "glance";
    for (const section of sections) section.classList.toggle("away", section.dataset.view !== now);
    for (const a of document.querySelectorAll("header nav a")) {
      if (a.hash === `#${now}`) a.setAttribute("aria-current", "page");
      else a.removeAttribute("aria-current");
    }
    document.querySelector("header nav a[aria-current]").scrollIntoView({ inline: "nearest", block: "nearest" });
    if (now === "clusters") showClusters(path);
    if (now === "map") showMap();
    if (!moved) return;
    const heading = document.querySelector("#cluster-view h3[tabindex]") ?? find(`${now}-title`);
    (now === "clusters" ? heading : find(`${now}-title`)).focus({ preventScroll: true });
    window.scrollTo(0, left.get(location.hash) ?? 0);
  }

  const usable = { size: true, tightness: levels.every((level) => level.phi), purity: data.labels };
  for (const by of Object.keys(sorts)) if (usable[by]) find("sort").append(element("option", { value: by }, by));
  find("largest").append(...sorted(0, levels[0].size.keys(), "size").slice(0, 8).map((c) => element("li", {}, card(0, c))));
  showClusters([]); // so that a printed page has them
  find("sort").addEventListener("change", () => route(false));
  find("find").addEventListener("input", () => {
    const text = find("find").value.trim();
    history.replaceState(null, "", text ? `#clusters/find/${encodeURIComponent(text)}` : "#clusters");
    here = location.hash;
    route(false);
  });
  window.addEventListener("scroll", () => left.set(here, window.scrollY), { passive: true });
  window.addEventListener("hashchange", () => {
    here = location.hash;
    route(true);
  });
  route(false);
  document.documentElement.dataset.ready = "yes";
})();
