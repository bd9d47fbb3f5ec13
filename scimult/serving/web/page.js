"use strict";
// Everything from the library is inserted as text, never as markup.

const PAGE = 10;
const MOST_SHOWN = {title: 300, abstract: 6000, column: 80};
const $ = (id) => document.getElementById(id);
const state = {facts: null, question: null, papers: [], turn: 0};

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function shortened(text, most) {
  // By characters, as slicing a string may cut one in half.
  const start = [...text.slice(0, 2 * most + 2)];
  return start.length > most ? `${start.slice(0, most).join("")}…` : text;
}

function counted(count, thing) {
  return `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
}

function say(message, bad = false) {
  $("status").textContent = message;
  $("status").classList.toggle("bad", bad);
}

// Paths are relative: a proxy may serve the page below a path of its own.
async function call(path, body) {
  const key = sessionStorage.getItem("key");
  const headers = key ? {"X-API-Key": key} : {};
  const options = {headers};
  if (body) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const content = await answer.json().catch(() => ({}));
  if (answer.status === 401) {
    $("unlock").hidden = false;
    $("key").focus();
  }
  if (!answer.ok) throw new Error(content.problem ? `${content.problem}: ${content.fix}` : `error ${answer.status}`);
  return content;
}

// ---- the form

const NAMES = {query: "Search by words", paper: "Related to a draft"};
const LABELS = {query: "What are you looking for?", paper: "Your draft"};
const HINTS = {
  query: "A question or keywords.",
  paper: "Paste your draft: first line the title, the rest the abstract.",
};

function chosenTask() {
  const input = document.querySelector("#tasks input:checked");
  return input ? input.value : "search";
}

function showTask() {
  const kind = state.facts.tasks[chosenTask()];
  $("text-label").textContent = LABELS[kind];
  $("hint").textContent = HINTS[kind];
  $("words").parentElement.hidden = kind !== "query";
  $("text").rows = kind === "paper" ? 6 : 2;
  $("suggest").hidden = !(state.facts.labels && kind === "paper");
}

function showFacts(facts) {
  state.facts = facts;
  $("unlock").hidden = true;
  const labels = facts.labels ? ` · ${counted(facts.labels, "label")}` : "";
  $("facts").textContent = `${counted(facts.papers, "paper")} by ${shortened(facts.model, 60)}${labels}`;
  const kinds = Object.values(facts.tasks);
  $("tasks").replaceChildren($("tasks").firstElementChild);
  Object.entries(facts.tasks).forEach(([task, kind], index) => {
    const alone = kinds.filter((other) => other === kind).length === 1;
    const name = alone ? NAMES[kind] || task : task;
    const input = make("input", {type: "radio", name: "task", value: task});
    // The default, too, which Clear restores.
    input.defaultChecked = index === 0;
    input.addEventListener("change", showTask);
    $("tasks").append(make("label", {title: `task ${task}`}, input, name));
  });
  $("columns").replaceChildren(...Object.entries(facts.columns).map(columnFilter));
  $("filters").hidden = !Object.keys(facts.columns).length;
  showTask();
}

function columnFilter([name, kind], index) {
  const id = `column-${index}`;
  const attributes = {id, "data-column": name, "data-kind": kind};
  const label = make("label", {for: id}, make("bdi", {}, name));
  if (kind === "BOOLEAN") {
    const options = ["", "true", "false"].map((value) => make("option", {value}, value || "any"));
    return make("div", {}, label, make("select", attributes, ...options));
  }
  if (kind === "BIGINT" || kind === "DOUBLE") {
    const number = {type: "number", step: kind === "BIGINT" ? "1" : "any"};
    const from = make("input", {...attributes, ...number, placeholder: "from"});
    const to = make("input", {...number, placeholder: "to", "aria-label": `${name}, to`, id: `${id}-to`});
    return make("div", {}, label, make("div", {class: "range"}, from, "–", to));
  }
  return make("div", {}, label, make("input", {...attributes, type: "text", placeholder: "one of: a; b"}));
}

function filters() {
  const where = {};
  for (const field of document.querySelectorAll("#columns [data-column]")) {
    const {column, kind} = field.dataset;
    if (kind === "BIGINT" || kind === "DOUBLE") {
      const ends = [field.value, $(`${field.id}-to`).value].map((value) => (value === "" ? null : Number(value)));
      if (ends.some((end) => end !== null)) where[column] = {from: ends[0], to: ends[1]};
    } else if (kind === "BOOLEAN") {
      if (field.value) where[column] = field.value === "true";
    } else if (field.value.trim()) {
      where[column] = field.value.split(";").map((part) => part.trim()).filter(Boolean);
    }
  }
  return Object.keys(where).length ? where : null;
}

function draft() {
  const [first, ...rest] = $("text").value.trim().split("\n");
  return {title: first.trim(), abstract: rest.join("\n").trim()};
}

// ---- questions

function ask(event) {
  if (event) event.preventDefault();
  if (!state.facts) return start();
  if (!$("text").value.trim()) {
    say("Write what you are looking for.");
    return $("text").focus();
  }
  const task = chosenTask();
  const shared = {task, k: PAGE, where: filters(), evidence: true};
  if (state.facts.tasks[task] === "paper") return run("recommend", {...shared, ...draft()});
  const words = $("words").checked ? 0.5 : null;
  return run("search", {...shared, text: $("text").value.trim(), words});
}

function moreLike(paper) {
  const linked = "link_prediction" in state.facts.tasks;
  const task = linked ? "link_prediction" : chosenTask();
  window.scrollTo(0, 0);
  run("recommend", {task, ids: [paper.id], k: PAGE, where: filters(), evidence: true}, paper.title);
}

async function run(path, body, like = "") {
  state.question = {path, body, like};
  state.papers = [];
  $("results").replaceChildren();
  if (like) $("tags").hidden = true;
  await next();
  $("results").focus({preventScroll: true});
}

async function next() {
  const turn = ++state.turn;
  const {path, body, like} = state.question;
  $("more").hidden = true;
  say("Searching …");
  try {
    const {papers, score} = await call(path, {...body, offset: state.papers.length});
    if (turn !== state.turn) return;
    $("results").append(...papers.map((paper) => result(paper, score)));
    state.papers.push(...papers);
    const suffix = like ? ` like “${shortened(like, 80)}”` : "";
    const count = state.papers.length;
    say(count ? `${counted(count, "paper")}${suffix}, by ${score}` : `No paper matches${suffix}.`);
    $("more").hidden = papers.length < PAGE;
  } catch (error) {
    if (turn === state.turn) say(error.message, true);
  }
}

async function showTags(body, box) {
  box.replaceChildren(make("p", {class: "quiet"}, "Looking for tags …"));
  box.hidden = false;
  try {
    const {papers} = await call("tag", {...body, k: 8});
    const chips = papers[0].labels.map((label) =>
      make("li", {class: "chip", title: label.evidence || label.id},
        make("bdi", {}, shortened(label.name, MOST_SHOWN.column)), " ", make("small", {}, label.score.toFixed(2))));
    box.replaceChildren(chips.length ? make("ul", {class: "chips", "aria-label": "Suggested tags"}, ...chips)
      : make("p", {class: "quiet"}, "No matching tags."));
  } catch (error) {
    box.replaceChildren(make("p", {class: "quiet"}, error.message));
  }
}

// ---- one result

function result(paper, score) {
  const box = make("div", {hidden: ""});
  const tags = () => showTags({ids: [paper.id]}, box);
  const like = () => moreLike(paper);
  const title = make("h2", {dir: "auto"}, shortened(paper.title || paper.id, MOST_SHOWN.title));
  const parts = [make("div", {class: "line"}, title,
    make("span", {class: "score", title: `score: ${score}`}, paper.score.toFixed(3)))];
  const meta = columns(paper.columns);
  if (meta) parts.push(make("p", {class: "meta quiet", dir: "auto"}, meta));
  const hasEvidence = paper.evidence && paper.evidence !== paper.title;
  if (hasEvidence) parts.push(make("p", {class: "evidence", dir: "auto"}, shortened(paper.evidence, 1000)));
  if (paper.abstract && paper.abstract !== paper.evidence) {
    parts.push(make("details", {}, make("summary", {}, "Abstract"),
      make("p", {class: "abstract", dir: "auto"}, ...marked(paper.abstract, paper.evidence))));
  }
  const row = [make("button", {type: "button", onclick: like}, "More like this")];
  if (state.facts.labels) row.push(make("button", {type: "button", onclick: tags}, "Suggest tags"));
  parts.push(make("div", {class: "row"}, ...row, make("bdi", {class: "quiet"}, shortened(paper.id, MOST_SHOWN.column))), box);
  const item = make("li", {tabindex: "-1"}, ...parts);
  Object.assign(item, {like, tags});
  return item;
}

function marked(abstract, sentence) {
  const text = shortened(abstract, MOST_SHOWN.abstract);
  const start = sentence ? text.indexOf(sentence) : -1;
  if (start < 0) return [text];
  const end = start + sentence.length;
  return [text.slice(0, start), make("mark", {}, text.slice(start, end)), text.slice(end)];
}

function columns(values) {
  const format = ([name, value]) => {
    if (value === null || (Array.isArray(value) && !value.length)) return null;
    const listed = Array.isArray(value) ? value.slice(0, 6).join(", ") + (value.length > 6 ? ", …" : "") : String(value);
    return name === "references" ? null : shortened(listed, MOST_SHOWN.column);
  };
  return Object.entries(values).map(format).filter(Boolean).join(" · ");
}

// ---- keys

function move(step) {
  const items = [...$("results").children];
  const at = items.indexOf(document.activeElement.closest("#results > li"));
  const item = items[Math.min(items.length - 1, Math.max(0, at + step))];
  if (item) {
    item.focus();
    item.scrollIntoView({block: "nearest"});
  }
}

function onKey(event) {
  const writing = event.target.matches("textarea, input, select");
  if (event.ctrlKey || event.metaKey || event.altKey) {
    if (event.key === "Enter" && event.target === $("text")) ask(event);
    return;
  }
  if (event.target === $("text") && event.key === "Enter" && !event.shiftKey) {
    // In a draft, Enter ends the title line.
    if (state.facts && state.facts.tasks[chosenTask()] !== "paper") ask(event);
  } else if (event.key === "Escape" && writing) {
    event.target.blur();
  } else if (!writing) {
    const item = document.activeElement.closest("#results > li");
    if (event.key === "/") {
      event.preventDefault();
      $("text").focus();
    } else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
    else if (event.key === "l" && item) item.like();
    else if (event.key === "t" && item && state.facts.labels) item.tags();
  }
}

async function start() {
  try {
    showFacts(await call("library"));
    say("");
  } catch (error) {
    say(error.message, true);
  }
}

$("ask").addEventListener("submit", ask);
$("ask").addEventListener("reset", () => {
  state.turn += 1;
  $("results").replaceChildren();
  $("tags").hidden = $("more").hidden = true;
  say("");
  setTimeout(() => state.facts && showTask());
  $("text").focus();
});
$("suggest").addEventListener("click", () => {
  if ($("text").value.trim()) showTags({papers: [draft()]}, $("tags"));
  else $("text").focus();
});
$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value);
  $("key").value = "";
  start();
});
$("more").addEventListener("click", next);
document.addEventListener("keydown", onKey);
start();
