"""The script: plain JavaScript in one file, for pages with something to sort; without it everything is shown."""

#: Tables with the class "sortable": a button in each header. data-sort of a cell goes before its text.
SORT = """(() => {
  "use strict";
  const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell === undefined ? "" : cell.dataset.sort ?? cell.textContent;
    return text.trim().replace(/^(-?)inf$/, "$1Infinity");
  };
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return words.compare(a, b);
    return x < y ? -1 : x > y ? 1 : 0;
  };
  const sort = (table, header) => {
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].map((row) => [value(row, header.cellIndex), row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === ""); // what is missing comes last
      return down ? compare(b, a) : compare(a, b);
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const header of table.tHead.rows[0].cells) {
      if ("fixed" in header.dataset) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      button.addEventListener("click", () => sort(table, header));
      header.append(button);
    }
  }
})();
"""

#: The leaderboard's filters, on its page alone. Their state is the address's fragment (#board=...&target=...&q=...), so
#: that a filtered view can be linked; a fragment without "=" is an anchor of the page.
FILTER = """(() => {
  "use strict";
  const form = document.getElementById("filters");
  if (form === null) return;
  const inputs = {
    board: document.getElementById("filter-board"),
    target: document.getElementById("filter-target"),
    q: document.getElementById("filter-text"),
  };
  const all = (place, what) => [...place.querySelectorAll(what)];
  const show = (element, shown) => { element.hidden = !shown; return shown; };
  const apply = () => {
    const [board, target] = [inputs.board.value, inputs.target.value];
    const asked = inputs.q.value.toLowerCase().split(/\\s+/).filter(Boolean);
    const fits = (row) => asked.every((word) => row.dataset.search.includes(word));
    let shown = 0, total = 0, boards = 0;
    for (const section of all(document, "section.board")) {
      const here = board === "" || section.dataset.board === board;
      let found = 0;
      for (const group of all(section, ".group")) {
        const wanted = target === "" || group.dataset.target === target;
        const rows = all(group, "tr.entry");
        total += rows.length;
        const kept = rows.filter((row) => show(row, wanted && fits(row))).length;
        show(group, wanted && (kept > 0 || asked.length === 0));
        if (here) shown += kept;
        found += kept + (wanted && asked.length === 0 ? 1 : 0);
      }
      for (const left of all(section, ".left")) {
        const kept = all(left, "tr.leftout").filter((row) => show(row, fits(row) &&
          (target === "" || row.dataset.target === "" || row.dataset.target === target))).length;
        show(left, kept > 0);
        found += kept;
      }
      boards += show(section, here && (found > 0 || (target === "" && asked.length === 0))) ? 1 : 0;
    }
    show(document.getElementById("nothing"), boards === 0);
    document.getElementById("filter-status").textContent = `${shown} of ${total} entries`;
  };
  const write = () => {
    const state = new URLSearchParams();
    for (const [name, input] of Object.entries(inputs)) if (input.value.trim()) state.set(name, input.value.trim());
    const fragment = state.toString();
    history.replaceState(null, "", location.pathname + location.search + (fragment ? `#${fragment}` : ""));
    apply();
  };
  const read = () => {
    const fragment = location.hash.slice(1);
    const state = new URLSearchParams(fragment.includes("=") ? fragment : "");
    for (const [name, input] of Object.entries(inputs)) {
      input.value = state.get(name) ?? "";
      if (input.selectedIndex === -1) input.value = ""; // no such choice
    }
    apply();
    if (fragment && !fragment.includes("=")) document.getElementById(decodeURIComponent(fragment))?.scrollIntoView();
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", write);
  form.addEventListener("reset", () => setTimeout(write));
  window.addEventListener("hashchange", read);
  form.hidden = false;
  read();
})();
"""

SCRIPT = SORT + FILTER
