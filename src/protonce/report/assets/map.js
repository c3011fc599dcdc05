// The map: point at an image, show a group alone, select with a rubber band or a lasso.

let points = null; // Bokeh's data source, once the map is drawn
let only = null; // the group that is shown alone
let legend = ""; // names of clusters that the legend shows

// Made a second after the page has opened, or when it is asked for before.
const drawMap = once(async () => {
  if (!data.map) return;
  document.head.append(element("script", {}, find("bokeh").textContent));
  const views = await Bokeh.embed.embed_item(data.map.plots, "map-plots");
  const drawn = views.roots[0].model.document;
  points = drawn.get_model_by_name("points");
  for (const plot of drawn.roots()[0].children) plot.height = Math.min(plot.height, window.innerWidth);
  const choice = find("colour");
  if (data.labels) choice.append(element("option", { value: "label" }, "class"));
  const whose = drawn.roots()[0].children.length > 1 ? "clusters of the run on the right" : "clusters";
  levels.forEach((level, m) => choice.append(element("option", { value: m }, `${whose}, ${number(level.size.length)}`)));
  choice.addEventListener("change", () => {
    only = null;
    colour();
  });
  colour();
  const plots = find("map-plots");
  for (const event of ["mousemove", "click"]) {
    plots.addEventListener(event, () => requestAnimationFrame(() => point(points.inspected.indices[0] ?? points.selected.indices[0])));
  }
  plots.addEventListener("keydown", step);
  points.selected.change.connect(() => {
    const images = points.selected.indices.map((index) => data.map.images[index]);
    if (images.length > 1) select(images, true); // a rubber band; one image is only pointed at
  });
  plots.dataset.ready = "yes";
});

async function showMap() {
  await drawMap();
  if (points && legend !== JSON.stringify([...said.clusters])) colour(); // clusters have got other names
}

function groupsOfMap() {
  const by = find("colour").value;
  return data.map.images.map((image) => (by === "label" ? data.labels[image] : levels[by].assignment[image]));
}

// The largest groups get a colour and a shape each, the others are grey.
function colour() {
  legend = JSON.stringify([...said.clusters]);
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
  const name = (group) => (find("colour").value === "label" ? data.classes[group] : named(Number(find("colour").value), group));
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
  find("pointed").replaceChildren(picture(image, "huge"), element("div", {}, element("p", {}, element("strong", {}, data.names[image])),
    shownLabel(image) ? element("p", {}, shownLabel(image)) : null, element("p", {}, clustersOf(image))));
}
