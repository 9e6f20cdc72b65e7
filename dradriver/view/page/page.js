// The page: what the server told, what its reader has chosen, and how the two come together.
import { GROUPS, SORTS, drawCluster, drawNode, moveFocus } from "./cluster.js";
import { drawHistory, drawStats, drawSum, drawTable, drawUnread, drawWaiting } from "./lists.js";

const AT_ONCE = 50; // nodes that change together, from which on all are drawn at once
const TABS = ["cluster", "waiting", "free", "tenants", "idle", "health"];
const KEPT = ["tab", "node", "pod", "filter", "group", "sort"]; // of what is chosen: the address has it
const LEGIBLE = 0.6; // the scale of a picture from which on the words in its cells can be read
const THEMES = ["auto", "light", "dark"];
const pieces = new Map(); // by key, as the server has them
const byId = (id) => document.getElementById(id);
const main = byId("main");
const detail = byId("detail");
let mark = "";
let events = null;
let retry = 0; // the timer of the next begin
let turn = 0; // of begin: an earlier one's answer is not taken in
let opener = null; // what had the focus when the detail was opened
let opened = ""; // what the detail shows
let drawn = ""; // what main shows: the choice without what is opened

// What the reader has chosen stands in the address, so that a link and the browser's back button lead there.
export const chosen = () => {
  const said = new URLSearchParams(location.hash.slice(1));
  const of = (key, known) => (known.includes(said.get(key)) ? said.get(key) : known[0]);
  return {
    tab: of("tab", TABS), node: said.get("node"), pod: said.get("pod"), filter: said.get("filter") ?? "",
    group: of("group", Object.keys(GROUPS)), sort: of("sort", Object.keys(SORTS)),
  };
};

const addressOf = (change) => {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(change)) value ? said.set(key, value) : said.delete(key);
  for (const key of [...said.keys()]) if (!KEPT.includes(key)) said.delete(key);
  return `#${said}`;
};

export const choose = (change) => (location.hash = addressOf(change));

// The same of what is no step to go back to.
function arrange(change) {
  history.replaceState(null, "", addressOf(change));
  draw();
}

export const words = () => chosen().filter.toLowerCase().split(/\s+/).filter(Boolean);

export const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

export const number = (value) => value.toLocaleString("en");

function draw() {
  const { tab, filter, group, sort } = chosen();
  if (byId("filter").value !== filter) byId("filter").value = filter;
  byId("group").value = group;
  byId("sort").value = sort;
  document.body.dataset.tab = tab;
  for (const button of document.querySelectorAll("[data-tab]")) {
    const on = button.dataset.tab === tab;
    button.setAttribute("aria-selected", on);
    button.tabIndex = on ? 0 : -1;
    if (on) button.parentElement.scrollLeft = button.offsetLeft - button.parentElement.offsetLeft - 40; // of a narrow screen
  }
  main.setAttribute("aria-labelledby", `tab-${tab}`);
  if (mark === "") return;
  drawn = JSON.stringify({ ...chosen(), node: null, pod: null });
  if (tab === "cluster") drawCluster(main, pieces);
  else if (tab === "waiting") drawWaiting(main, pieces);
  else drawTable(main, pieces.get(`shown/${tab}`));
  byId("sum").hidden = false;
}

function drawCommon() {
  const summary = pieces.get("summary");
  drawUnread(byId("unread"), pieces.get("unread") ?? []);
  if (!summary) return;
  byId("server").textContent = summary.server;
  byId("count-waiting").textContent = summary.waiting ? number(summary.waiting) : "";
  const { unhealthy, gone, idle } = summary;
  byId("count-idle").textContent = idle ? number(idle) : "";
  byId("count-health").textContent = unhealthy + gone ? number(unhealthy + gone) : "";
  const troubles = [];
  if (unhealthy) troubles.push(`${number(unhealthy)} GPU${unhealthy === 1 ? " is" : "s are"} unhealthy or lost`);
  if (gone) troubles.push(`the agent${gone === 1 ? "" : "s"} of ${number(gone)} node${gone === 1 ? " is" : "s are"} gone`);
  byId("tab-health").title = troubles.join(", ");
  drawStats(byId("stats"), summary);
  drawSum(byId("bars"), summary);
}

// Take in what changed, and draw no more than that.
function take({ mark: newest, set, gone }, whole) {
  if (whole) pieces.clear();
  mark = newest;
  for (const key of gone) pieces.delete(key);
  for (const [key, value] of Object.entries(set)) pieces.set(key, value);
  const keys = [...Object.keys(set), ...gone];
  if (whole || keys.some((key) => key === "summary" || key === "unread")) drawCommon();
  if (keys.includes("history")) drawHistory(byId("history"), pieces.get("history"));
  const { tab, node, pod } = chosen();
  if (whole) draw();
  else if (tab === "cluster") {
    const nodes = keys.filter((key) => key.startsWith("node/"));
    if (nodes.length > AT_ONCE) drawCluster(main, pieces);
    else for (const key of nodes) drawNode(main, pieces, key);
  }
  if (!whole && tab === "waiting" && keys.some((key) => key.startsWith("pod/"))) drawWaiting(main, pieces);
  if (!whole && keys.includes(`shown/${tab}`)) drawTable(main, pieces.get(`shown/${tab}`));
  if (node && keys.includes(`node/${node}`)) show(true);
  if (pod && keys.includes(`pod/${pod}`)) show(true);
  status("on", "live");
}

function status(kind, text) {
  byId("live").className = `live ${kind}`;
  if (byId("live-text").textContent !== text) byId("live-text").textContent = text; // which is read aloud
  byId("live-at").textContent = kind === "on" ? new Date().toLocaleTimeString("en-GB") : "";
}

// Read everything, then follow what changes, as long as somebody looks: a browser has few connections for each server,
// and those of tabs that nobody looks at would leave none for the next.
async function begin() {
  events?.close();
  clearTimeout(retry);
  if (document.hidden) return;
  const mine = ++turn;
  try {
    const answer = await fetch("api/state");
    if (answer.status === 401) return status("off", await answer.text());
    if (!answer.ok) throw new Error(await answer.text());
    const whole = await answer.json();
    if (mine !== turn) return;
    take(whole, true);
  } catch (error) {
    if (mine !== turn) return;
    status("off", "no answer; trying again");
    retry = setTimeout(begin, 3000);
    return;
  }
  events = new EventSource(`api/events?since=${encodeURIComponent(mark)}`);
  events.onmessage = (event) => take(JSON.parse(event.data), false);
  events.onopen = () => status("on", "live");
  events.addEventListener("anew", begin);
  events.onerror = () => {
    status("off", "connection lost; trying again");
    if (events.readyState === EventSource.CLOSED) retry = setTimeout(begin, 3000);
  };
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return begin();
  turn += 1;
  clearTimeout(retry);
  events?.close();
});

// Show what was opened, and again what changed while it was open.
async function show(changed) {
  const { node, pod } = chosen();
  const wanted = node ? `node?name=${encodeURIComponent(node)}` : pod ? podQuery(pod) : "";
  const again = changed && wanted === opened;
  if (wanted === opened && !again) return;
  opened = wanted;
  for (const tile of main.querySelectorAll("[aria-expanded=true]")) tile.setAttribute("aria-expanded", "false");
  if (!wanted) {
    detail.hidden = true;
    if (opener?.isConnected) opener.focus();
    opener = null;
    return;
  }
  if (node) main.querySelector(`[data-node="${CSS.escape(node)}"]`)?.setAttribute("aria-expanded", "true");
  if (!again) {
    opener = document.activeElement;
    byId("detail-title").textContent = node ?? pod;
    byId("commands").replaceChildren();
    byId("detail-body").replaceChildren(element("p", "quiet", "Reading…"));
    detail.hidden = false;
    detail.focus();
  }
  const answer = await fetch(`api/${wanted}`).catch(() => null);
  if (opened !== wanted) return;
  if (!answer?.ok) {
    const said = answer?.status === 404 ? "It does not exist any more." : "No answer; close it and open it again.";
    byId("detail-body").replaceChildren(element("p", "quiet", said));
    return;
  }
  const { title, html, commands } = await answer.json();
  if (opened !== wanted) return;
  const unfolded = [...byId("detail-body").querySelectorAll("details")].map((each) => each.open);
  byId("detail-title").textContent = title;
  byId("detail-body").innerHTML = html; // by the renderer of all pages, which escapes every text
  byId("detail-body").querySelectorAll("details").forEach((each, at) => (each.open = unfolded[at] ?? false));
  if (!again) byId("commands").replaceChildren(...commands.map(commandOf));
  fit();
}

// A picture is as wide as its place. Where that makes its words too small, cells say what they are by colour alone.
function fit() {
  for (const picture of byId("detail-body").querySelectorAll(".wide > svg")) {
    const scale = picture.parentElement.clientWidth / picture.viewBox.baseVal.width;
    picture.classList.toggle("small", scale > 0 && scale < LEGIBLE);
  }
}

function commandOf(text) {
  const item = element("li");
  const code = element("code", "", text);
  const button = element("button", "plain", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", `Copy ${text}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // a page that came without TLS from another machine may not copy
      button.textContent = "Press Ctrl+C";
    }
  });
  item.append(code, button);
  return item;
}

const podQuery = (pod) => {
  const [namespace, name] = pod.split("/");
  return `pod?namespace=${encodeURIComponent(namespace)}&name=${encodeURIComponent(name ?? "")}`;
};

function dress(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
}

function remembered() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null; // a browser that keeps nothing
  }
}

byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  dress(next);
  try {
    localStorage.setItem("theme", next);
  } catch {}
});
dress(THEMES.includes(remembered()) ? remembered() : "auto");

byId("filter").addEventListener("input", () => arrange({ filter: byId("filter").value }));
for (const key of ["group", "sort"]) byId(key).addEventListener("change", () => arrange({ [key]: byId(key).value }));
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("detail-body").addEventListener("toggle", fit, true);
addEventListener("resize", fit);
byId("detail-close").addEventListener("click", () => choose({ node: null, pod: null }));
for (const button of document.querySelectorAll("[data-tab]")) {
  button.addEventListener("click", () => choose({ tab: button.dataset.tab }));
}
document.querySelector(".tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = TABS[(TABS.indexOf(chosen().tab) + step + TABS.length) % TABS.length];
  choose({ tab: next });
  byId(`tab-${next}`).focus();
});
main.addEventListener("keydown", moveFocus);
function press(key) {
  const next = (names, name) => names[(names.indexOf(name) + 1) % names.length];
  const { group, sort } = chosen();
  if (key === "/") byId("filter").select();
  else if (key === "?") byId("keys").showModal();
  else if (key === "g") arrange({ group: next(Object.keys(GROUPS), group) });
  else if (key === "s") arrange({ sort: next(Object.keys(SORTS), sort) });
  else if (TABS[key - 1]) choose({ tab: TABS[key - 1] });
  else return false;
  return true;
}

document.addEventListener("keydown", (event) => {
  if (byId("keys").open) return;
  const typing = event.target.matches("input, select");
  if (event.key === "Escape") {
    if (typing && chosen().filter) arrange({ filter: "" });
    else if (typing) main.querySelector("[tabindex='0']")?.focus();
    else choose({ node: null, pod: null });
  } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && press(event.key)) event.preventDefault();
});
addEventListener("hashchange", () => {
  if (JSON.stringify({ ...chosen(), node: null, pod: null }) !== drawn) draw();
  show(false);
});
setInterval(() => {
  drawCommon(); // for how long pods wait
  if (chosen().tab === "waiting") drawWaiting(main, pieces);
}, 30000);

draw();
begin().then(() => show(false));
