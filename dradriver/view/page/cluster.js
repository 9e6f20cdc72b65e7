// Zones and nodes: a tile a node, a cell a GPU.
import { STATES } from "./lists.js";
import { choose, chosen, element, number, words } from "./page.js";

const DENSE = 120; // nodes, from which on tiles are small
const MANY = 16; // GPUs, from which on cells are
const natural = new Intl.Collator("en", { numeric: true }).compare;

const countOf = (node, letters) => [...node.gpus].filter((letter) => letters.includes(letter)).length;
const freeOf = (node) => countOf(node, "f");

// In which groups a node stands, and how a group is called: a node with several pods stands in several.
export const GROUPS = {
  zone: { of: (node) => [node.zone], name: (zone) => `Zone ${zone}`, none: "No zone" },
  product: { of: (node) => [node.product], name: (product) => product, none: "No product" },
  tenant: { of: (node) => (node.tenants.length ? node.tenants : [""]), name: (tenant) => (tenant.startsWith("namespace/") ? `Namespace ${tenant.slice(10)}` : `Tenant ${tenant}`), none: "No tenant has GPUs there" },
  pod: { of: (node) => (node.who.length ? node.who.map(([who]) => who) : [""]), name: (who) => who, none: "No pod uses GPUs there" },
  none: { of: () => [""], none: "All nodes" },
};
export const SORTS = {
  name: () => 0,
  free: (node) => -freeOf(node),
  allocated: (node) => -countOf(node, "asx"),
  unhealthy: (node) => -node.unhealthy,
};

function matches(name, node, wanted) {
  if (!wanted.length) return true;
  const text = [name, node.product, node.zone, node.closed, node.unhealthy ? "unhealthy" : "", ...node.tenants, ...node.who.map(([who]) => who)];
  const all = text.join(" ").toLowerCase();
  return wanted.every((word) => {
    const least = /^free:(\d+)$/.exec(word);
    return least ? freeOf(node) >= Number(least[1]) : all.includes(word);
  });
}

function tile(name, node) {
  const made = element("button", "tile");
  made.type = "button";
  made.dataset.node = name;
  made.tabIndex = -1;
  made.setAttribute("aria-expanded", "false");
  fill(made, name, node);
  return made;
}

function fill(made, name, node) {
  const free = freeOf(node);
  made.classList.toggle("closed", Boolean(node.closed));
  made.classList.toggle("many", node.gpus.length > MANY);
  const line = element("span", "line");
  line.append(element("b", "", name));
  const said = node.closed.split(":")[0] || (node.unhealthy ? `${node.unhealthy} unhealthy` : `${free} free`);
  line.append(element("span", node.closed ? "" : node.unhealthy ? "bad" : free ? "has" : "", said));
  const cells = element("span", "cells");
  for (const state of node.gpus) cells.append(element("span", `cell ${state}`));
  const who = node.who.map(([who, at]) => `${who}: ${at.length} GPU${at.length > 1 ? "s" : ""}`);
  if (node.more) who.push(`and ${node.more} more`);
  const counts = STATES.map(([letter, word]) => [countOf(node, letter), word])
    .filter(([count]) => count)
    .map(([count, word]) => `${count} ${word}`);
  made.title = [`${node.product}, ${counts.join(", ")}`, ...who].join("\n");
  made.setAttribute("aria-label", [name, node.closed, node.product, `of ${node.gpus.length} GPUs ${counts.join(", ")}`].filter(Boolean).join(", "));
  made.replaceChildren(line, element("span", "kind", node.product), cells);
}

const headOf = (nodes) => {
  const gpus = nodes.reduce((sum, [, node]) => sum + node.gpus.length, 0);
  const free = nodes.reduce((sum, [, node]) => sum + freeOf(node), 0);
  return `${number(nodes.length)} node${nodes.length > 1 ? "s" : ""}, ${number(free)} of ${number(gpus)} GPUs free`;
};

const nodesOf = (pieces) => {
  const found = [];
  for (const [key, node] of pieces) if (key.startsWith("node/")) found.push([key.slice(5), node]);
  return found;
};

export function drawCluster(main, pieces) {
  const wanted = words();
  const { group, sort } = chosen();
  const every = nodesOf(pieces);
  const groups = new Map();
  for (const [name, node] of every) {
    if (!matches(name, node, wanted)) continue;
    for (const key of GROUPS[group].of(node)) {
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push([name, node]);
    }
  }
  if (!groups.size) {
    const none = pieces.has("summary") ? "No node with GPUs of this driver is known." : "Reading the cluster…";
    const nothing = every.length ? "No node matches the filter." : none;
    main.replaceChildren(element("p", "empty", nothing));
    return;
  }
  const focused = document.activeElement?.dataset?.node;
  const all = element("div", every.length > DENSE ? "dense" : "");
  const one = new Set(every.map(([, node]) => node.product)).size === 1;
  all.classList.toggle("alike", one);
  for (const key of [...groups.keys()].sort((a, b) => !a - !b || natural(a, b))) {
    const nodes = groups.get(key).sort(([a, x], [b, y]) => SORTS[sort](x) - SORTS[sort](y) || natural(a, b));
    const section = element("section", "zone");
    section.dataset.group = key;
    const head = element("header");
    const title = key ? GROUPS[group].name(key) : groups.size > 1 ? GROUPS[group].none : "All nodes";
    head.append(element("h3", "", title), element("p", "", headOf(nodes)));
    const tiles = element("div", "tiles");
    tiles.setAttribute("role", "group");
    tiles.setAttribute("aria-label", `Nodes: ${title}`);
    tiles.append(...nodes.map(([name, node]) => tile(name, node)));
    section.append(head, tiles);
    all.append(section);
  }
  main.replaceChildren(all);
  const open = chosen().node;
  if (open) for (const made of tilesOf(main, open)) made.setAttribute("aria-expanded", "true");
  const again = focused && tilesOf(main, focused)[0];
  (again || main.querySelector(".tile")).tabIndex = 0;
  if (again) again.focus();
}

const tilesOf = (main, name) => [...main.querySelectorAll(`[data-node="${CSS.escape(name)}"]`)];
const groupOf = (made) => made.closest(".zone").dataset.group;

// Draw one node again; all of them where it came, went or moved.
export function drawNode(main, pieces, key) {
  const name = key.slice(5);
  const node = pieces.get(key);
  const { group, sort } = chosen();
  const made = tilesOf(main, name);
  const groups = node && matches(name, node, words()) ? GROUPS[group].of(node) : [];
  if (!made.length && !groups.length) return;
  if (sort !== "name" || made.length !== groups.length || !made.every((each) => groups.includes(groupOf(each)))) {
    drawCluster(main, pieces);
    return;
  }
  for (const each of made) {
    fill(each, name, node);
    each.classList.remove("new");
    void each.offsetWidth; // so that the animation begins anew
    each.classList.add("new");
    const section = each.closest(".zone");
    const own = [...section.querySelectorAll(".tile")].map((other) => [other.dataset.node, pieces.get(`node/${other.dataset.node}`)]);
    section.querySelector("header p").textContent = headOf(own.filter(([, other]) => other));
  }
}

// Arrows go from tile to tile, up and down to the nearest of the next row; Enter opens.
export function moveFocus(event) {
  const from = event.target.closest?.(".tile");
  if (!from || event.ctrlKey || event.metaKey || event.altKey) return;
  const tiles = [...event.currentTarget.querySelectorAll(".tile")];
  const at = tiles.indexOf(from);
  let to;
  if (event.key === "ArrowRight") to = tiles[at + 1];
  else if (event.key === "ArrowLeft") to = tiles[at - 1];
  else if (event.key === "Home") to = tiles[0];
  else if (event.key === "End") to = tiles.at(-1);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") to = below(tiles, at, event.key === "ArrowDown" ? 1 : -1);
  else return;
  event.preventDefault();
  if (!to) return;
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

function below(tiles, at, step) {
  const from = tiles[at].getBoundingClientRect();
  let best;
  for (let n = at + step; n >= 0 && n < tiles.length; n += step) {
    const box = tiles[n].getBoundingClientRect();
    if (Math.abs(box.top - from.top) < 2) continue;
    if (best && Math.abs(box.top - best.box.top) > 2) break;
    if (!best || Math.abs(box.left - from.left) < Math.abs(best.box.left - from.left)) best = { box, tile: tiles[n] };
  }
  return best?.tile;
}

document.getElementById("main").addEventListener("click", (event) => {
  const made = event.target.closest(".tile");
  if (made) choose({ node: made.dataset.node, pod: null });
});
