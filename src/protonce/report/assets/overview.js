// Sort the table by the column whose title is clicked: text from A to Z, numbers from the largest; again: the other way.
const body = document.querySelector("tbody");
for (const [place, head] of [...document.querySelectorAll("th button")].entries()) {
  head.addEventListener("click", () => {
    const title = head.parentElement;
    const value = (row) => row.cells[place].dataset.value;
    const rows = [...body.rows];
    const known = rows.filter((row) => value(row) !== "");
    const numbers = known.every((row) => !Number.isNaN(Number(value(row))));
    const down = title.getAttribute("aria-sort") === (numbers ? "descending" : "ascending");
    known.sort((a, b) => (numbers ? Number(value(b)) - Number(value(a)) : value(a).localeCompare(value(b))) * (down ? -1 : 1));
    body.append(...known, ...rows.filter((row) => value(row) === ""));
    for (const other of document.querySelectorAll("th")) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", numbers !== down ? "descending" : "ascending");
  });
}
document.documentElement.dataset.ready = "yes";
