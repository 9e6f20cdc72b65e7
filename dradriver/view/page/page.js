// The page: what the server told, what its reader has chosen, and how the two come together.
import { drawCluster, drawNode, moveFocus } from "./cluster.js";
import { drawSum, drawTable, drawUnread, drawWaiting } from "./lists.js";

const AT_ONCE = 50; // nodes that change together, from which on all are drawn at once
const TABS = ["cluster", "waiting", "free", "tenants", "idle", "health"];
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
let drawn = ""; // the tab that main shows

// What the reader has chosen stands in the address, so that a link and the browser's back button lead there.
const chosen = () => {
  const said = new URLSearchParams(location.hash.slice(1));
  const tab = said.get("tab");
  return { tab: TABS.includes(tab) ? tab : "cluster", node: said.get("node"), pod: said.get("pod") };
};

export const choose = (change) => {
  const next = { ...chosen(), ...change };
  const said = new URLSearchParams();
  for (const key of ["tab", "node", "pod"]) if (next[key]) said.set(key, next[key]);
  location.hash = said;
};

export const words = () => byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);

export const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

export const number = (value) => value.toLocaleString("en");

function draw() {
  const { tab } = chosen();
  for (const button of document.querySelectorAll("[data-tab]")) {
    const on = button.dataset.tab === tab;
    button.setAttribute("aria-selected", on);
    button.tabIndex = on ? 0 : -1;
  }
  main.setAttribute("aria-labelledby", `tab-${tab}`);
  if (mark === "") return;
  drawn = tab;
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
  const { unhealthy } = summary;
  byId("count-health").textContent = unhealthy ? number(unhealthy) : "";
  byId("tab-health").title = unhealthy ? `${number(unhealthy)} GPU${unhealthy === 1 ? " is" : "s are"} unhealthy or lost` : "";
  drawSum(byId("sum"), summary);
}

// Take in what changed, and draw no more than that.
function take({ mark: newest, set, gone }, whole) {
  if (whole) pieces.clear();
  mark = newest;
  for (const key of gone) pieces.delete(key);
  for (const [key, value] of Object.entries(set)) pieces.set(key, value);
  const keys = [...Object.keys(set), ...gone];
  if (whole || keys.some((key) => key === "summary" || key === "unread")) drawCommon();
  const { tab, node, pod } = chosen();
  if (whole || drawn !== tab) draw();
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
    byId("detail-body").replaceChildren(element("p", "quiet", node ? "Reading…" : "Asking why…"));
    detail.hidden = false;
    detail.focus();
  }
  const answer = await fetch(`api/${wanted}`).catch(() => null);
  if (opened !== wanted) return;
  if (!answer?.ok) {
    const said = answer?.status === 404 ? "It is not there any more." : "No answer; close it and open it again.";
    byId("detail-body").replaceChildren(element("p", "quiet", said));
    return;
  }
  const { title, html } = await answer.json();
  if (opened !== wanted) return;
  const unfolded = [...byId("detail-body").querySelectorAll("details")].map((each) => each.open);
  byId("detail-title").textContent = title;
  byId("detail-body").innerHTML = html; // by the renderer of all pages, which escapes every text
  byId("detail-body").querySelectorAll("details").forEach((each, at) => (each.open = unfolded[at] ?? false));
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

byId("filter").addEventListener("input", draw);
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
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("filter").select();
  } else if (event.key === "Escape") {
    if (typing && byId("filter").value) {
      byId("filter").value = "";
      draw();
    } else if (typing) main.querySelector("[tabindex='0']")?.focus();
    else choose({ node: null, pod: null });
  }
});
addEventListener("hashchange", () => {
  if (chosen().tab !== drawn) draw();
  show(false);
});
setInterval(() => chosen().tab === "waiting" && drawWaiting(main, pieces), 30000); // for how long they wait

draw();
begin().then(() => show(false));
