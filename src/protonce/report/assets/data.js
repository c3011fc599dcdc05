// The data of the page, and what is derived from it. All files of this folder become one module, in the order of
// `page.py`. Everything from the user's disk is set as text, never as HTML.
const PAGE = 60; // clusters or images shown at once
const find = (id) => document.getElementById(id);
const data = await unpack(find("data").textContent);
const sheets = [...document.querySelectorAll("script.sheet")];
const pictureOf = new Map(data.pictured.map((image, position) => [image, position]));
const levels = data.levels.map((level, m) => ({
  ...level,
  members: once(() => membersOf(level)), // level.members() are those of each cluster
  children: data.levels[m + 1] ? once(() => invert(data.levels[m + 1].parent, level.size.length)) : null,
}));

// What is slow to make of 100,000 images is made when it is first asked for.
function once(make) {
  let made;
  return () => (made ??= make());
}

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
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

// The listed images of each cluster, the closest to its centre first.
function membersOf(level) {
  const lists = invert(level.assignment, level.size.length);
  if (level.rank) for (const list of lists) list.sort((a, b) => level.rank[a] - level.rank[b]);
  return lists;
}

// The whole name of an image: very long ones are shortened where they are shown.
const fullName = (image) => data.long[image] ?? data.names[image];

// The address of the original file; null if it is not a file of its own.
function address(image) {
  if (data.files === null) return null;
  if (Array.isArray(data.files)) return data.files[image];
  const name = fullName(image);
  if (/[\ud800-\udfff]/u.test(name)) return null; // not UTF-8
  return `${data.files}/${name.split("/").map(encodeURIComponent).join("/")}`;
}

// Words

const formats = new Intl.NumberFormat("en");
const number = (value) => formats.format(value);
const plural = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
// 100 % means all, and 0 % none.
const percent = (share) => `${share > 0 && share < 1 ? Math.min(Math.max(Math.round(100 * share), 1), 99) : 100 * share} %`;
const className = (image) => (data.labels ? data.classes[data.labels[image]] : "");
