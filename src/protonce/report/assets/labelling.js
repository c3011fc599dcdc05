// The labelling view: the suggested images, or those of a table, one after the other, a key for each class.
const queue = { images: data.suggested, at: 0 };

function showLabelling() {
  const { images } = queue;
  const image = images[queue.at];
  const done = images.filter((i) => labelOf(i)).length;
  find("label-progress").textContent = `${number(done)} of ${plural(images.length, "image")} labelled`;
  const view = [];
  if (image !== undefined) {
    const name = element("p", {}, element("strong", {}, data.names[image]), labelOf(image) ? ` is labelled ${labelOf(image)}` : " has no label yet");
    const shown = largePicture(image, address(image));
    view.push(element("div", { class: "stage" }, shown), name);
  }
  find("label-stage").replaceChildren(...view);
  showKeys(find("label-keys"), labelNext);
  const thumbs = strip(images, "large");
  for (const [i, thumb] of [...thumbs.children].entries()) if (i === queue.at) thumb.setAttribute("aria-current", "true");
  find("label-queue").replaceChildren(thumbs);
  find("label-done").classList.toggle("away", done < images.length);
}

// Label the current image, and go to the next without a label.
function labelNext(name) {
  const { images, at } = queue;
  giveLabel([images[at]], name);
  const order = [...images.keys()].map((i) => (at + 1 + i) % images.length);
  queue.at = order.find((i) => !labelOf(images[i])) ?? at;
  showLabelling();
}

function skip(way) {
  queue.at = (queue.at + way + queue.images.length) % queue.images.length;
  showLabelling();
}

function startLabelling() {
  find("label-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = find("label-new").value.trim();
    find("label-new").value = "";
    if (name && queue.images.length) labelNext(name);
    find("label-new").blur(); // so that the next key is a class again
  });
  find("label-next").addEventListener("click", () => skip(1));
  find("label-previous").addEventListener("click", () => skip(-1));
  find("label-table").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    const { images, words } = await readTable(file);
    if (images.length) Object.assign(queue, { images, at: Math.max(images.findIndex((i) => !labelOf(i)), 0) });
    event.target.value = "";
    tell(words);
    showLabelling();
  });
}
