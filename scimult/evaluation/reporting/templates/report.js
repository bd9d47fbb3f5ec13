"use strict";

/* Sort a table by a column; a second click reverses the order. Footer rows stay. */
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

/* On a phone, where headings are hidden, a drop-down replaces them. */
for (const table of document.querySelectorAll("table")) {
  const headers = [...table.querySelectorAll("thead th")], select = document.createElement("select");
  select.append(new Option("original order", ""));
  headers.forEach((header, column) => select.append(new Option(header.textContent, column)));
  select.addEventListener("change", () => {
    if (select.value !== "") sortBy(headers[select.value]);
  });
  const label = document.createElement("label"), line = document.createElement("p");
  label.append("Sort by ", select);
  line.className = "sorter quiet";
  line.append(label);
  table.closest(".scroll").before(line);
}

/* Show the wins and losses of one data set only. */
for (const select of document.querySelectorAll("select.sets")) {
  select.closest(".filter").hidden = false;
  select.addEventListener("change", () => {
    for (const wins of select.closest("section").querySelectorAll("details.wins")) {
      wins.hidden = select.value !== "" && wins.dataset.set !== select.value;
    }
  });
}
