// What ties the views together: addresses, keys, and the start.
const left = new Map(); // how far down each place was when it was left
let here = location.hash;

// A sentence for the person at the screen; empty: none.
function tell(words) {
  find("told").textContent = words;
}

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
  if (now === "label") showLabelling();
  if (!moved) return;
  const heading = document.querySelector("#cluster-view h3[tabindex]") ?? find(`${now}-title`);
  (now === "clusters" ? heading : find(`${now}-title`)).focus({ preventScroll: true });
  window.scrollTo(0, left.get(location.hash) ?? 0);
}

const viewNow = () => document.querySelector("section[data-view]:not(.away)").dataset.view;

// After each change: thumbnails, the open views, and the line that says how much there is.
function showChange(images) {
  dressAll(images);
  const labelled = plural(said.labels.size, "label");
  const marked = said.marks.size ? `, ${plural(said.marks.size, "mark")}` : "";
  find("said").textContent = labelled + marked;
  find("work").classList.toggle("away", !said.labels.size && !said.marks.size && !said.clusters.size && !past.length);
  find("undo").disabled = !past.length;
  find("known-labels").replaceChildren(...classes().map((name) => element("option", { value: name })));
  if (find("large").open) showLarge(large.image);
  if (viewNow() === "label") showLabelling();
  showSelection();
}

function onKey(event) {
  const typing = event.target.closest?.("input, select, textarea");
  if (typing && event.target.type !== "checkbox") return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") {
    event.preventDefault();
    undo();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const isOpen = find("large").open;
  if (way && (isOpen || (viewNow() === "label" && queue.images.length))) {
    event.preventDefault();
    if (isOpen) stepLarge(way);
    else skip(way);
    return;
  }
  const thumb = event.target.closest?.(".thumb[data-image]");
  if (event.key === " " && thumb) {
    event.preventDefault(); // Enter opens, Space selects
    toggle(thumb, event.shiftKey);
    return;
  }
  const name = letters().get(event.key.toLowerCase());
  if (!name || event.key.length > 1) return;
  if (isOpen) giveLabel([large.image], name);
  else if (viewNow() === "label" && queue.images.length && !selected.size) labelNext(name);
  else if (selected.size) giveLabel([...selected], name);
}

restore();
listeners.push(showChange);
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
find("undo").addEventListener("click", undo);
for (const each of document.querySelectorAll(".download")) each.addEventListener("click", download);
startSelection();
startLarge();
startLabelling();
document.addEventListener("keydown", onKey);
document.addEventListener("keyup", (event) => event.key === " " && event.target.closest?.(".thumb[data-image]") && event.preventDefault());
window.addEventListener("scroll", () => left.set(here, window.scrollY), { passive: true });
window.addEventListener("hashchange", () => {
  here = location.hash;
  route(true);
});
route(false);
showChange([]);
document.documentElement.dataset.ready = "yes";
setTimeout(drawMap, 1000);
