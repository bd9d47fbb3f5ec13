"use strict";

/* Sort a table by a column; a second press turns the order round. Rows of the foot stay. */
function sortBy(header) {
  const table = header.closest("table"), body = table.tBodies[0];
  const column = header.cellIndex;
  const ascending = header.getAttribute("aria-sort") === "descending"
    || (!header.hasAttribute("aria-sort") && header.classList.contains("name"));
  const key = (row) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const compare = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
    const order = typeof x === "number" ? x - y : x.localeCompare(y);
    return ascending ? order : -order;
  };
  body.append(...[...body.rows].sort(compare));
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
}

for (const header of document.querySelectorAll("thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...header.childNodes);
  button.addEventListener("click", () => sortBy(header));
  header.append(button);
}

/* On a phone, where headings are not shown, a list stands for them. */
for (const table of document.querySelectorAll("table")) {
  const headers = [...table.querySelectorAll("thead th")], select = document.createElement("select");
  select.append(new Option("as written", ""));
  headers.forEach((header, place) => select.append(new Option(header.textContent, place)));
  select.addEventListener("change", () => {
    if (select.value !== "") sortBy(headers[select.value]);
  });
  const label = document.createElement("label"), line = document.createElement("p");
  label.append("Sort by ", select);
  line.className = "sorter quiet";
  line.append(label);
  table.closest(".scroll").before(line);
}

/* Show wins and losses of one data set only. */
for (const select of document.querySelectorAll("select.sets")) {
  select.closest(".filter").hidden = false;
  select.addEventListener("change", () => {
    for (const wins of select.closest("section").querySelectorAll("details.wins")) {
      wins.hidden = select.value !== "" && wins.dataset.set !== select.value;
    }
  });
}
