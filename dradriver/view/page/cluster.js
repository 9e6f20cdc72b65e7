// Zones and nodes: a tile a node, a cell a GPU.
import { choose, element, number, words } from "./page.js";

const DENSE = 120; // nodes, from which on tiles are small
const MANY = 16; // GPUs, from which on cells are
const SAID = { f: "free", a: "held", s: "held in parts", p: "promised", b: "in MIG mode or changing", u: "unhealthy", x: "unhealthy and held", m: "lost" };
const natural = new Intl.Collator("en", { numeric: true }).compare;

const freeOf = (node) => (node.closed ? 0 : node.gpus.split("f").length - 1);

function matches(name, node, wanted) {
  if (!wanted.length) return true;
  const text = [name, node.product, node.zone, node.closed, node.ill ? "ill" : "", ...node.who.map(([who]) => who)];
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
  const said = node.closed || (node.ill ? `${node.ill} out` : `${free} free`);
  line.append(element("span", node.closed ? "" : node.ill ? "bad" : free ? "has" : "", said));
  const cells = element("span", "cells");
  for (const state of node.gpus) cells.append(element("span", `cell ${node.closed && state === "f" ? "c" : state}`));
  const who = node.who.map(([holder, at]) => `${holder}: ${at.length} GPU${at.length > 1 ? "s" : ""}`);
  if (node.more) who.push(`and ${node.more} more`);
  const counts = Object.entries(SAID)
    .map(([letter, word]) => [node.gpus.split(letter).length - 1, word])
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
  const every = nodesOf(pieces);
  const zones = new Map();
  for (const [name, node] of every) {
    if (!matches(name, node, wanted)) continue;
    if (!zones.has(node.zone)) zones.set(node.zone, []);
    zones.get(node.zone).push([name, node]);
  }
  if (!zones.size) {
    const none = pieces.has("summary") ? "No node with GPUs of this driver is known." : "Reading the cluster…";
    const nothing = every.length ? "No node matches the filter." : none;
    main.replaceChildren(element("p", "empty", nothing));
    return;
  }
  const focused = document.activeElement?.dataset?.node;
  const all = element("div", every.length > DENSE ? "dense" : "");
  const one = new Set(every.map(([, node]) => node.product)).size === 1;
  all.classList.toggle("alike", one);
  for (const zone of [...zones.keys()].sort(natural)) {
    const nodes = zones.get(zone).sort(([a], [b]) => natural(a, b));
    const section = element("section", "zone");
    section.dataset.zone = zone;
    const head = element("header");
    head.append(element("h3", "", zone ? `Zone ${zone}` : zones.size > 1 ? "No zone" : "All nodes"), element("p", "", headOf(nodes)));
    const tiles = element("div", "tiles");
    tiles.setAttribute("role", "group");
    tiles.setAttribute("aria-label", zone ? `Nodes of zone ${zone}` : "Nodes");
    tiles.append(...nodes.map(([name, node]) => tile(name, node)));
    section.append(head, tiles);
    all.append(section);
  }
  main.replaceChildren(all);
  const open = new URLSearchParams(location.hash.slice(1)).get("node");
  if (open) main.querySelector(`[data-node="${CSS.escape(open)}"]`)?.setAttribute("aria-expanded", "true");
  const again = focused && main.querySelector(`[data-node="${CSS.escape(focused)}"]`);
  (again || main.querySelector(".tile")).tabIndex = 0;
  if (again) again.focus();
}

// Draw one node again; all of them where it came, went or moved.
export function drawNode(main, pieces, key) {
  const name = key.slice(5);
  const node = pieces.get(key);
  const made = main.querySelector(`[data-node="${CSS.escape(name)}"]`);
  const shown = node && matches(name, node, words());
  if (!made && !shown) return;
  const section = made?.closest(".zone");
  if (!made || !shown || section.dataset.zone !== node.zone) {
    drawCluster(main, pieces);
    return;
  }
  fill(made, name, node);
  made.classList.remove("new");
  void made.offsetWidth; // so that the animation begins anew
  made.classList.add("new");
  const own = [...section.querySelectorAll(".tile")].map((each) => [each.dataset.node, pieces.get(`node/${each.dataset.node}`)]);
  section.querySelector("header p").textContent = headOf(own.filter(([, each]) => each));
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
