// Sums, who waits, and what comes as tables that the server has drawn.
import { choose, element, number, words } from "./page.js";

export const STATES = [
  ["f", "free"],
  ["a", "allocated"],
  ["s", "allocated in fractions"],
  ["p", "tentative"],
  ["r", "reserved"],
  ["b", "fractions only, or blocked"],
  ["u", "unhealthy"],
  ["x", "unhealthy and allocated"],
  ["m", "lost"],
  ["c", "on unavailable nodes"],
  ["n", "never placed"],
];

const summed = (summary) => {
  const all = {};
  for (const [, states] of summary.products) for (const [state, count] of Object.entries(states)) all[state] = (all[state] ?? 0) + count;
  return all;
};

// The figures that say within seconds whether something is wrong; each leads to the view that says more.
export function drawStats(place, summary) {
  const all = summed(summary);
  const total = Object.values(all).reduce((one, other) => one + other, 0);
  const closed = summary.closed ? `, ${number(summary.closed)} take${summary.closed === 1 ? "s" : ""} no pods` : "";
  const agents = summary.nodes - summary.gone;
  const stats = [
    ["free", "cluster", `${number(all.f ?? 0)}`, ` of ${number(total)} GPUs free`, `${number(summary.nodes)} node${summary.nodes === 1 ? "" : "s"}${closed}`, ""],
    ["unhealthy", "health", number(summary.unhealthy), "", "unhealthy or lost GPUs", summary.unhealthy ? "bad" : ""],
    ["waiting", "waiting", number(summary.waiting), "", `pod${summary.waiting === 1 ? "" : "s"} waiting`, ""],
    ["oldest", "waiting", summary.oldest ? age(summary.oldest) : "–", "", "oldest wait", ""],
    ["agents", "health", number(agents), ` of ${number(summary.nodes)}`, "node agents", summary.gone ? "bad" : ""],
  ];
  place.replaceChildren(
    ...stats.map(([name, tab, value, rest, under, bad]) => {
      const made = element("button", `stat stat-${name} ${bad}`);
      made.type = "button";
      const big = element("span", "big", value);
      if (rest) big.append(element("small", "", rest));
      made.append(big, element("span", "under", under));
      made.addEventListener("click", () => choose({ tab }));
      return made;
    }),
  );
}

export function drawSum(bars, summary) {
  const all = summed(summary);
  bars.replaceChildren();
  for (const [product, states] of summary.products) {
    const own = Object.values(states).reduce((one, other) => one + other, 0);
    const row = element("div", "bar-row");
    const stack = element("span", "stack");
    stack.setAttribute("role", "img");
    const parts = STATES.filter(([state]) => states[state]);
    stack.setAttribute("aria-label", parts.map(([state, word]) => `${states[state]} ${word}`).join(", "));
    for (const [state, word] of parts) {
      const part = element("span", state);
      part.style.flexGrow = states[state];
      part.title = `${number(states[state])} ${word}`;
      stack.append(part);
    }
    const name = element("span", "name", product);
    name.title = product;
    row.append(name, stack, element("span", "num", `${number(states.f ?? 0)} of ${number(own)}`));
    bars.append(row);
  }
  const legend = element("ul", "legend");
  for (const [state, word] of STATES) {
    if (!all[state]) continue;
    const item = element("li");
    item.append(element("span", `cell ${state}`), `${number(all[state])} ${word}`);
    legend.append(item);
  }
  bars.append(legend);
}

const LINES = [["free", 1], ["allocated", 2], ["waiting", 3]];

// Free, allocated and waiting over the last day: a line for each, broken where the server did not run.
export function drawHistory(place, { step, samples }) {
  if (samples.length < 2) {
    place.replaceChildren(element("p", "quiet", "The history of the last day begins now."));
    return;
  }
  const [from, to] = [samples[0][0], samples.at(-1)[0]];
  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const rows = LINES.map(([word, at]) => {
    const values = samples.map((sample) => sample[at]);
    const most = Math.max(...values);
    const point = (sample, n) => {
      const start = n === 0 || sample[0] - samples[n - 1][0] > 2 * step;
      return `${start ? "M" : "L"}${((100 * (sample[0] - from)) / (to - from)).toFixed(2)} ${(23 - (22 * sample[at]) / (most || 1)).toFixed(2)}`;
    };
    const row = element("div", `line line-${word}`);
    const frame = element("span");
    frame.innerHTML = '<svg viewBox="0 0 100 24" preserveAspectRatio="none" role="img"><path/></svg>';
    const picture = frame.firstChild;
    picture.firstChild.setAttribute("d", samples.map(point).join(""));
    const least = Math.min(...values);
    picture.setAttribute("aria-label", `${word}: ${number(least)} to ${number(most)} from ${clock(from)} to ${clock(to)}`);
    row.append(element("span", "", word), picture, element("span", "num", least === most ? number(most) : `${number(least)} to ${number(most)}`));
    return row;
  });
  const hours = (to - from) / 3600;
  const span = hours < 1 ? `${Math.round(60 * hours)} min` : `${Math.round(hours)} h`;
  place.replaceChildren(...rows, element("p", "quiet", `last ${span}: ${clock(from)} to ${clock(to)}`));
}

export function drawUnread(place, said) {
  place.hidden = !said.length;
  const list = element("ul");
  list.append(...said.map((text) => element("li", "", text)));
  place.replaceChildren(element("b", "", "Not everything is shown"), list);
}

const age = (since) => {
  const seconds = Math.max(0, Math.round((Date.now() - Date.parse(since)) / 1000));
  if (Number.isNaN(seconds)) return "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${seconds} s`;
};

const TAGS = { static: "static", tentative: "tentative" };

export function drawWaiting(main, pieces) {
  const wanted = words();
  const every = [];
  for (const [key, pod] of pieces) if (key.startsWith("pod/")) every.push(pod);
  const shown = every.filter((pod) => {
    const text = Object.values(pod).join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
  shown.sort((one, other) => one.at - other.at);
  if (!shown.length) {
    main.replaceChildren(element("p", "empty", every.length ? "No pod that waits matches the filter." : "No pod waits for GPUs."));
    return;
  }
  const focused = document.activeElement?.dataset?.pod;
  const table = element("table", "waiting");
  const head = element("tr");
  for (const title of ["Position", "Pod", "Requests", "Age", "Reason"]) head.append(Object.assign(element("th", "", title), { scope: "col" }));
  const body = element("tbody");
  for (const pod of shown) {
    const row = element("tr");
    const name = Object.assign(element("th"), { scope: "row" });
    const link = element("button", "link", `${pod.namespace}/${pod.pod}`);
    link.type = "button";
    link.dataset.pod = `${pod.namespace}/${pod.pod}`;
    link.addEventListener("click", () => choose({ pod: link.dataset.pod, node: null }));
    name.append(link);
    if (TAGS[pod.state]) name.append(element("span", "tag", TAGS[pod.state]));
    if (pod.gang) name.append(element("span", "tag", `gang ${pod.gang}`));
    const why = element("td");
    why.append(element("span", "why", pod.why)); // of a long one the first lines: opened, the pod says all
    row.append(element("td", "quiet", pod.position ?? ""), name, element("td", "", pod.request), element("td", "quiet", age(pod.since)), why);
    body.append(row);
  }
  const heads = element("thead");
  heads.append(head);
  table.append(heads, body);
  const card = element("div", "shown");
  card.append(table);
  const more = (pieces.get("summary")?.waiting ?? 0) - every.length;
  if (more > 0) card.append(element("p", "quiet", `${number(more)} more wait; gputopo queue lists all.`));
  main.replaceChildren(card);
  if (focused) main.querySelector(`[data-pod="${CSS.escape(focused)}"]`)?.focus();
}

export function drawTable(main, html) {
  const card = element("div", "shown");
  if (html === undefined) card.append(element("p", "quiet", "Not known, because you may not read all objects that this view needs."));
  else card.innerHTML = html; // by the renderer of all pages, which escapes every text
  const wanted = words();
  for (const row of card.querySelectorAll("tbody tr")) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
  main.replaceChildren(card);
}
