// Selecting images: by Ctrl or the switch, a range by Shift, by Space, and on the map; and what is done with them.
const selected = new Set();
let selecting = false; // whether a click selects instead of opening
let last = null; // thumbnail that a range starts at

function select(images, whether) {
  for (const image of images) {
    if (whether) selected.add(image);
    else selected.delete(image);
  }
  dressAll(images);
  showSelection();
}

function toggle(thumb, range) {
  const image = Number(thumb.dataset.image);
  const sequence = sequenceOf(thumb);
  const from = range && last !== null ? sequence.indexOf(last) : -1;
  if (from >= 0) {
    const [a, b] = [from, sequence.indexOf(image)].sort((x, y) => x - y);
    select(sequence.slice(a, b + 1), true);
  } else {
    select([image], !selected.has(image));
  }
  last = image;
}

function showSelection() {
  const bar = find("selection");
  bar.classList.toggle("away", selected.size === 0 && !selecting);
  find("selected-count").textContent = `${plural(selected.size, "image")} selected`;
  find("selecting").setAttribute("aria-pressed", String(selecting));
  showKeys(find("selection-keys"));
}

// The classes with their letters; `act` is called with the class.
function showKeys(place, act = (name) => giveLabel([...selected], name)) {
  place.replaceChildren(...[...letters()].map(([letter, name]) =>
    button([element("kbd", {}, letter), ` ${name}`], () => act(name), { class: "class" })));
}

function startSelection() {
  document.addEventListener("click", (event) => {
    const thumb = event.target.closest?.(".thumb[data-image]");
    if (!thumb) return;
    if (selecting || event.ctrlKey || event.metaKey || event.shiftKey) toggle(thumb, event.shiftKey);
    else openLarge(Number(thumb.dataset.image), sequenceOf(thumb));
  });
  find("selecting").addEventListener("click", () => {
    selecting = !selecting;
    showSelection();
  });
  find("selection-form").addEventListener("submit", (event) => {
    event.preventDefault();
    giveLabel([...selected], find("selection-label").value);
    find("selection-label").value = "";
  });
  for (const text of MARKS) find(`mark-${text}`).addEventListener("click", () => mark([...selected], text));
  find("mark-none").addEventListener("click", () => change([...selected].flatMap((image) => [["marks", image, ""], ["labels", image, ""]])));
  find("select-none").addEventListener("click", () => {
    selecting = false;
    select([...selected], false);
  });
}
