// The large view of an image: the original file where there is one, else the picture of the page.
const large = { image: null, sequence: [] };

function openLarge(image, sequence) {
  large.sequence = sequence;
  showLarge(image);
  if (!find("large").open) find("large").showModal();
}

function showLarge(image) {
  large.image = image;
  const at = large.sequence.indexOf(image);
  const original = address(image);
  const marked = said.marks.get(image);
  const distances = levels.map((one) => one.distance?.[image]).filter((value) => value !== undefined && value !== null);
  find("large-title").textContent = data.names[image];
  find("large-picture").replaceChildren(largePicture(image, original));
  find("large-facts").replaceChildren(
    element("p", {}, shownLabel(image) || "no label", marked ? `, marked as ${marked}` : ""),
    element("p", {}, clustersOf(image)),
    distances.length ? element("p", { class: "note" }, `distance to the centre of its cluster, coarse to fine: ${distances.map((d) => d.toFixed(3)).join(", ")}`) : "",
    element("p", {}, original === null ? element("span", { class: "note" }, fullName(image)) : element("a", { href: original, target: "_blank" }, "Open the original")),
    element("p", { class: "note" }, `${number(at + 1)} of ${number(large.sequence.length)}`),
  );
  for (const a of find("large-facts").querySelectorAll("a[href^='#']")) a.addEventListener("click", () => find("large").close());
  showKeys(find("large-keys"), (name) => giveLabel([image], name));
}

function largePicture(image, original) {
  const small = element("span", { class: "thumb huge", role: "img", "aria-label": describe(image) });
  if (pictureOf.has(image)) paint(small, image);
  if (original === null) return small;
  const whole = element("img", { alt: describe(image) });
  whole.addEventListener("error", () => whole.replaceWith(small)); // moved, or a format that browsers do not show
  whole.src = original;
  return whole;
}

function stepLarge(way) {
  const { image, sequence } = large;
  showLarge(sequence[(sequence.indexOf(image) + way + sequence.length) % sequence.length]);
}

function startLarge() {
  find("large-next").addEventListener("click", () => stepLarge(1));
  find("large-previous").addEventListener("click", () => stepLarge(-1));
  find("large-close").addEventListener("click", () => find("large").close());
  find("large-form").addEventListener("submit", (event) => {
    event.preventDefault();
    giveLabel([large.image], find("large-label").value);
    find("large-label").value = "";
  });
  for (const text of MARKS) find(`large-${text}`).addEventListener("click", () => mark([large.image], said.marks.get(large.image) === text ? "" : text));
  find("large").addEventListener("click", (event) => event.target === find("large") && find("large").close()); // beside it
}
