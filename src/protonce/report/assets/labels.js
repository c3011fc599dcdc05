// What a person says about the images: labels, marks and names of clusters. Kept in the browser under the run's
// identity, undone step by step, written as labels.csv and read from it.
const STORED = `protonce ${data.key}`;
const MARKS = ["wrong", "duplicate"];
const said = { labels: new Map(), marks: new Map(), clusters: new Map() }; // by image, image and "level/cluster"
const past = []; // changes that can be undone: lists of [kind, key, value before]
const listeners = []; // called with the images of each change

const labelOf = (image) => said.labels.get(image) ?? "";
const shownLabel = (image) => labelOf(image) || className(image);
const clusterName = (m, c) => said.clusters.get(`${m}/${c}`) ?? "";
const indexOf = once(() => new Map(data.names.map((_, image) => [fullName(image), image])));

// Set or, with an empty value, remove entries [kind, key, value]; one step to undo.
function change(entries) {
  const before = entries.map(([kind, key]) => [kind, key, said[kind].get(key) ?? ""]);
  if (before.every(([, , value], i) => value === entries[i][2])) return;
  past.push(before);
  put(entries);
}

function undo() {
  const before = past.pop();
  if (before) put(before);
}

function put(entries) {
  for (const [kind, key, value] of entries) {
    if (value) said[kind].set(key, value);
    else said[kind].delete(key);
  }
  keep();
  for (const listener of listeners) listener(entries.filter(([kind]) => kind !== "clusters").map(([, key]) => key));
}

function giveLabel(images, label) {
  change(images.map((image) => ["labels", image, label.trim()]));
}

function mark(images, text) {
  change(images.map((image) => ["marks", image, text]));
}

// Classes and their keys

function classes() {
  const own = [...new Set([...said.labels.values()].flatMap((text) => text.split("|")))];
  return [...new Set([...data.classes.slice(0, 26), ...own])].filter((name) => name !== "no label");
}

// A letter for each class: the first of its own letters that is free, or any other.
function letters() {
  const taken = new Map();
  for (const name of classes()) {
    const letter = [...name.toLowerCase(), ..."abcdefghijklmnopqrstuvwxyz"].find((c) => /[a-z]/.test(c) && !taken.has(c));
    if (letter) taken.set(letter, name);
  }
  return taken;
}

// Storage

function keep() {
  const names = (map) => [...map].map(([image, value]) => [fullName(image), value]);
  const text = JSON.stringify({ labels: names(said.labels), marks: names(said.marks), clusters: [...said.clusters] });
  try {
    localStorage.setItem(STORED, text);
    tell("");
  } catch {
    tell("This browser keeps no more: download labels.csv before you close the page.");
  }
}

function restore() {
  let stored = null;
  try {
    stored = JSON.parse(localStorage.getItem(STORED));
  } catch {
    tell("This browser keeps nothing: download labels.csv before you close the page.");
  }
  for (const kind of ["labels", "marks"]) {
    for (const [name, value] of stored?.[kind] ?? []) if (indexOf().has(name)) said[kind].set(indexOf().get(name), value);
  }
  for (const [key, value] of stored?.clusters ?? []) said.clusters.set(key, value);
}

// labels.csv

// The name of the finest cluster with a name that an image is in.
function clusterNameOf(image) {
  for (let m = levels.length - 1; m >= 0; m--) if (clusterName(m, levels[m].assignment[image])) return clusterName(m, levels[m].assignment[image]);
  return "";
}

function csvField(text) {
  const safe = /^'*[=+\-@\t\r]/.test(text) && !/^[+-]?\d+(\.\d*)?(e[+-]?\d+)?$/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvText() {
  const rows = [];
  for (let image = 0; image < data.names.length; image++) {
    const fields = [labelOf(image), said.marks.get(image) ?? "", clusterNameOf(image)];
    if (fields.some(Boolean)) rows.push([fullName(image), ...fields]);
  }
  return [["name", "label", "mark", "cluster"], ...rows].map((row) => `${row.map(csvField).join(",")}\n`).join("");
}

// Text as UTF-8; bytes of file names that are not UTF-8, which Python has as lone surrogates, as they were.
function encode(text) {
  const encoder = new TextEncoder();
  return text.split(/([\udc80-\udcff])/u).map((part) =>
    /^[\udc80-\udcff]$/u.test(part) ? new Uint8Array([part.charCodeAt(0) - 0xdc00]) : encoder.encode(part));
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(encode(csvText()), { type: "text/csv" }));
  link.download = "labels.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function parseCsv(text) {
  const first = text.split("\n", 1)[0];
  const separator = [",", ";", "\t"].reduce((best, c) => (first.split(c).length > first.split(best).length ? c : best));
  const rows = [];
  let row = [], field = "", quoted = false;
  const end = () => { row.push(/^'+[=+\-@\t\r]/.test(field) ? field.slice(1) : field); field = ""; };
  for (let i = text.charCodeAt(0) === 0xfeff ? 1 : 0; i < text.length; i++) {
    const c = text[i];
    if (quoted && c === '"' && text[i + 1] === '"') { field += c; i++; }
    else if (c === '"' && (quoted || field === "")) quoted = !quoted;
    else if (quoted) field += c;
    else if (c === separator) end();
    else if (c === "\n") { end(); rows.push(row); row = []; }
    else if (c !== "\r" || text[i + 1] !== "\n") field += c;
  }
  if (field || row.length) { end(); rows.push(row); }
  return rows.filter((cells) => cells.some(Boolean));
}

// Take what a table says of listed images: its images in its order, and a sentence.
async function readTable(file) {
  const [header = [], ...rows] = parseCsv(await file.text());
  const titles = header.map((title) => title.trim().toLowerCase());
  const column = (names) => names.map((name) => titles.indexOf(name)).find((place) => place >= 0) ?? -1;
  const name = column(["name", "path", "file", "filename", "filepath", "image"]);
  if (name < 0) return { images: [], words: `${file.name} has no column “name”.` };
  const label = column(["label", "class", "target", "category"]), marked = column(["mark"]);
  const images = [], entries = [];
  for (const row of rows) {
    const image = indexOf().get(row[name]);
    if (image === undefined) continue;
    images.push(image);
    const text = label < 0 ? "" : (row[label] ?? "").trim();
    if (text) entries.push(["labels", image, text]);
    if (marked >= 0 && MARKS.includes(row[marked])) entries.push(["marks", image, row[marked]]);
  }
  if (entries.length) change(entries);
  const left = rows.length - images.length;
  return { images, words: `${plural(images.length, "image")} of ${file.name}${left ? `; ${number(left)} others are not on this page` : ""}.` };
}
