// The cluster view: clusters from coarse to fine, look-alikes, outliers, and what is searched for.

// Some images of a cluster: framed green where they are among its `count` closest, orange where they are others of the
// cluster. Those with a picture come first.
function some(m, c, count, size) {
  const level = levels[m];
  const members = level.members()[c];
  const close = members.filter((image) => level.rank && level.rank[image] < count);
  const others = members.filter((image) => pictureOf.has(image) && !close.includes(image));
  const seen = [...close.filter((image) => pictureOf.has(image)), ...others];
  const images = (seen.length ? seen : members).slice(0, count);
  const frame = (image) => (!level.rank ? "" : level.rank[image] < count ? "close" : "around");
  return { images, strip: strip(images, (image) => `${size} ${frame(image)}`) };
}

const sorts = {
  size: (level) => (a, b) => level.size[b] - level.size[a],
  tightness: (level) => (a, b) => level.phi[a] - level.phi[b],
  purity: (level) => (a, b) => (level.purity[b] ?? -1) - (level.purity[a] ?? -1) || level.labelled[b] - level.labelled[a],
};
const sorted = (m, clusters, by) => [...clusters].sort((a, b) => sorts[by](levels[m])(a, b) || a - b);

function facts(m, c) {
  const level = levels[m];
  const words = [plural(level.size[c], "image")];
  if (level.purity && level.purity[c] !== null) {
    const few = level.labelled[c] < level.size[c] ? ` of ${number(level.labelled[c])} labelled` : "";
    words.push(`${percent(level.purity[c])} ${data.classes[level.label[c]]}${few}`);
  }
  return words.join(" · ");
}

function card(m, c) {
  const finer = levels[m].children ? plural(levels[m].children()[c].length, "finer cluster") : "";
  return element(
    "div", { class: "card", "data-cluster": `${m}/${c}`, "data-phi": levels[m].phi?.[c] ?? null },
    some(m, c, data.closest, "").strip,
    element("a", { href: `#clusters/${m}/${c}` }, facts(m, c)),
    element("p", { class: "note" }, [named(m, c), finer].filter(Boolean).join(", ")),
  );
}

function overview(m) {
  const level = levels[m];
  const others = levels.map((_, other) => (other === m ? null : element("a", { href: `#clusters/${other}` }, number(levels[other].size.length))));
  const what = level.rank ? "each with the images closest to its centre, framed green (orange: other images of the cluster)" : "each with some of its images";
  return [
    element("p", {}, `${plural(level.size.length, "cluster")}, ${what}. `, levels.length > 1 ? "Coarser or finer: " : "",
      ...others.filter(Boolean).flatMap((a, i) => (i ? [", ", a] : [a])), levels.length > 1 ? " clusters." : ""),
    ...growing(sorted(m, level.size.keys(), find("sort").value), (c) => card(m, c), "cards"),
  ];
}

function inside(m, c) {
  const level = levels[m];
  const trail = [];
  for (let at = m, which = c; at >= 0; which = levels[at].parent?.[which], at--) trail.unshift([at, which]);
  const close = some(m, c, 12, "large");
  const title = named(m, c);
  const view = [
    element("p", { class: "crumbs" }, element("a", { href: "#clusters" }, "all clusters"),
      trail.flatMap(([at, which]) => [" › ", at === m ? title : link(at, which)])),
    element("h3", { tabindex: "-1" }, title[0].toUpperCase() + title.slice(1)),
    element("p", {}, facts(m, c)),
    data.labels ? element("p", { class: "note" }, mix(level.members()[c])) : null,
    level.phi ? element("div", { class: "note" }, `Concentration φ ${level.phi[c].toFixed(3)}. `, explain(
      "A small φ means that the images of a cluster are close to its centre. Training makes it smaller where clusters are loose and larger where they are tight (equation 12 of the paper).")) : null,
    nameForm(m, c),
    element("h3", {}, level.rank ? "Closest images" : "Images"),
    close.strip,
  ].filter(Boolean);
  const seen = new Set(close.images);
  if (level.children) {
    view.push(element("h3", {}, `Finer clusters inside (of ${number(levels[m + 1].size.length)})`));
    const children = sorted(m + 1, level.children()[c], find("sort").value);
    if (children.length) view.push(...growing(children, (child) => card(m + 1, child), "cards"));
    else view.push(element("p", {}, "No finer cluster has most of its images here."));
    for (const child of children) for (const image of some(m + 1, child, data.closest, "").images) seen.add(image);
  }
  const rest = scattered(level.members()[c].filter((image) => !seen.has(image) && (pictureOf.has(image) || !sheets.length)));
  if (rest.length) {
    view.push(element("h3", {}, "Other images of this cluster, in random order"));
    view.push(...growing(rest, (image) => picture(image, "large around"), "thumbs", rest));
  }
  return view;
}

// Name a cluster, and label its images so.
function nameForm(m, c) {
  const input = element("input", { "aria-label": "Name of the cluster", placeholder: "name this cluster", maxlength: 200, value: clusterName(m, c) });
  const members = levels[m].members()[c];
  const all = button(`Label its ${plural(members.length, "image")} so`, () => {
    const name = input.value.trim();
    if (name) change([["clusters", `${m}/${c}`, name], ...members.map((image) => ["labels", image, name])]);
  });
  const form = element("form", { class: "bar" }, input, element("button", {}, "Name"), all, button("Select all", () => select(members, true)));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change([["clusters", `${m}/${c}`, input.value.trim()]]);
    route(false);
  });
  return form;
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
  return element("div", { class: "tile" }, picture(image, "large"),
    element("div", {}, line(element("strong", {}, data.names[image])),
      shownLabel(image) ? line(shownLabel(image)) : null, text ? line(text) : null, clustersOf(image)));
}

function odd() {
  const { images, threshold } = data.outliers;
  return [
    element("p", {}, "Images that are unlike all others, the farthest first."),
    explain(`The distance is one minus the cosine between the features of an image and of its fifth nearest one. Those above ${threshold} are listed: 1.5 interquartile ranges above the third quartile.`),
    ...growing(images, ([image, distance]) => tile(image, `distance ${distance.toFixed(3)}`), "tiles", images.map(([image]) => image)),
  ];
}

function alike() {
  const { groups, correlation, copies, total } = data.alike;
  const all = groups.flatMap(([images]) => images);
  const copiesOf = (images) => images.slice(1);
  return [
    element("p", {}, `${plural(total, "group")} of images that show the same picture, the one to keep first`,
      groups.length < total ? `; ${number(groups.length)} of them are shown, protonce tidy lists all. ` : ". ",
      button("Mark all copies as duplicates", () => mark(groups.flatMap(([images]) => copiesOf(images)), "duplicate"))),
    explain(`Small grey versions of the images are laid over each other and correlated, whole on part, mirrored too. At ${correlation} or more they count as look-alikes, which ${percent(copies)} of edited copies of some of your images reach.`),
    ...growing(groups, ([images, kind, r]) => element("div", { class: "tile group" }, strip(images, "large"),
      element("div", {}, `${kind}${kind === "exact copy" ? "" : `, correlation ${r.toFixed(2)}`}`, element("br"), images.map((image) => data.names[image]).join(", "), element("br"),
        button("Mark copies as duplicates", () => mark(copiesOf(images), "duplicate")))), "tiles", all),
  ];
}

const haystack = once(() => data.names.map((name, image) => `${name} ${className(image)}`.toLowerCase()));
function matches(text) {
  const lines = haystack();
  const wanted = text.toLowerCase();
  const images = [];
  for (let image = 0; image < lines.length; image++) {
    if (lines[image].includes(wanted) || said.labels.get(image)?.toLowerCase().includes(wanted)) images.push(image);
  }
  return [
    element("p", {}, element("span", { role: "status" }, `${plural(images.length, "image")} with “${text}”`), " ",
      images.length ? button("Select all", () => select(images, true)) : ""),
    ...growing(images, (image) => tile(image), "tiles", images),
  ];
}

function showClusters([first, second, ...rest]) {
  const kinds = [["clusters", "clusters"]];
  if (data.alike?.groups.length) kinds.push(["clusters/alike", "look-alikes"]);
  if (data.outliers?.images.length) kinds.push(["clusters/odd", "outliers"]);
  const now = { odd: "clusters/odd", alike: "clusters/alike", find: "" }[first] ?? "clusters";
  find("kinds").replaceChildren(...kinds.map(([hash, name]) =>
    element("a", { href: `#${hash}`, "aria-current": hash === now ? "true" : null }, name)));
  const text = first === "find" ? decodeURIComponent([second, ...rest].join("/")) : "";
  if (find("find").value.trim() !== text) find("find").value = text;
  const m = Number(first ?? 0);
  let view;
  if (text) view = matches(text);
  else if (first === "odd" && data.outliers) view = odd();
  else if (first === "alike" && data.alike) view = alike();
  else if (!levels[m]) view = overview(0);
  else view = levels[m].members()[Number(second)] ? inside(m, Number(second)) : overview(m);
  find("cluster-view").replaceChildren(...view);
}
