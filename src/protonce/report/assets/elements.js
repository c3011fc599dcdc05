// Elements: thumbnails, lists that grow, and what they are called.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null)); // strings become text
  return made;
}

const button = (text, onclick, attributes = {}) => element("button", { type: "button", onclick, ...attributes }, text);

// "What is this?": two sentences behind a word.
const explain = (text) => element("details", { class: "what" }, element("summary", {}, "What is this?"), element("p", {}, text));

const describe = (image) => data.names[image] + (shownLabel(image) ? ` (${shownLabel(image)})` : "");

// A thumbnail that opens the large view; `kind` sets its size and frame.
function picture(image, kind = "") {
  const made = element("button", { type: "button", class: `thumb ${kind}`, "data-image": image });
  dress(made, image);
  if (!pictureOf.has(image)) {
    made.append(data.names[image]);
    return made;
  }
  paint(made, image);
  return made;
}

// The picture of an image as the background of an element.
function paint(made, image) {
  const { columns, rows } = data.sheet;
  const position = pictureOf.get(image);
  const within = position % (columns * rows);
  made.classList.add("painted");
  made.style.backgroundImage = `url(${sheet(Math.floor(position / (columns * rows)))})`;
  made.style.setProperty("--columns", columns);
  made.style.setProperty("--column", within % columns);
  made.style.setProperty("--row", Math.floor(within / columns));
}

// What a thumbnail says of its image, which changes.
function dress(made, image) {
  const marked = said.marks.get(image);
  made.title = describe(image);
  made.setAttribute("aria-label", describe(image) + (marked ? `, marked as ${marked}` : ""));
  made.setAttribute("aria-pressed", String(selected.has(image)));
  made.dataset.label = labelOf(image);
  made.dataset.mark = marked ?? "";
}

function dressAll(images) {
  const changed = new Set(images);
  for (const made of document.querySelectorAll(".thumb[data-image]")) {
    if (changed.has(Number(made.dataset.image))) dress(made, Number(made.dataset.image));
  }
}

// The images that the large view goes through, of the list that a thumbnail is in.
const sequences = new WeakMap();
function sequenceOf(thumb) {
  for (let at = thumb; at; at = at.parentElement) if (sequences.has(at)) return sequences.get(at);
  return [Number(thumb.dataset.image)];
}

function strip(images, kind) {
  const made = element("div", { class: "thumbs" }, images.map((image) => picture(image, typeof kind === "function" ? kind(image) : kind)));
  sequences.set(made, images);
  return made;
}

// A list that grows: the first PAGE entries, and a button for more. How far it had grown is known on return.
const grown = new Map();
function growing(entries, make, kind, images = null) {
  const list = element("ul", { class: kind });
  if (images) sequences.set(list, images);
  const more = button("", () => grow(PAGE, true));
  const place = `${location.hash} ${kind}`;
  let done = 0;
  function grow(count, asked) {
    const next = entries.slice(done, done + count).map((entry) => element("li", {}, make(entry)));
    list.append(...next);
    done += next.length;
    grown.set(place, done);
    more.textContent = `Show more (${number(entries.length - done)} left)`;
    more.classList.toggle("away", done >= entries.length);
    if (asked) (next[0].querySelector("a, button") ?? more).focus();
  }
  grow(Math.max(PAGE, grown.get(place) ?? 0), false);
  return [list, more];
}

const named = (m, c) => clusterName(m, c) || `cluster ${c} of ${number(levels[m].size.length)}`;
const link = (m, c) => element("a", { href: `#clusters/${m}/${c}` }, named(m, c));
const clustersOf = (image) => levels.flatMap((level, m) => [m ? " › " : "", link(m, level.assignment[image])]);
