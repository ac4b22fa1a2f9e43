"use strict";
// Shared by all views: the data, formatted numbers, colours, and the tooltip.

const data = JSON.parse(document.getElementById("data").textContent);

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** A size: exact if that is short, else to one decimal. */
function bytes(count) {
  const exact = UNITS.find(([, unit]) => count >= unit && count % unit === 0);
  if (exact && count / exact[1] < 10000) return `${count / exact[1]} ${exact[0]}`;
  const about = UNITS.find(([, unit]) => count >= unit);
  return about ? `${(count / about[1]).toFixed(1)} ${about[0]}` : `${count} B`;
}

/** A size in the largest unit of another one. */
function bytesIn(whole, count) {
  const [name, unit] = UNITS.find(([, unit]) => whole >= unit) ?? ["B", 1];
  return `${Number((count / unit).toFixed(2))} ${name}`;
}

/** The address at an offset; plain numbers are not exact that far. */
const address = (space, offset) => `0x${(BigInt(space.base) + BigInt(offset)).toString(16)}`;

const tagName = space => space.tag === "" ? "without a tag" : space.tag.replace(/\p{Cc}/gu, "");

/** The first index of a sorted list at which `is` holds, or its length. */
function firstWhere(length, is) {
  let [low, high] = [0, length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (is(middle)) high = middle; else low = middle + 1;
  }
  return low;
}

const TAG_COLOURS = 16;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** The current colours of the page's style. */
const colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["surface", "ink", "muted", "line", "free", "several", "mark", "hollow", "held", "live", "pending", "recorded"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  colours.tags = Array.from({ length: TAG_COLOURS }, (_, index) => index < 8
    ? style.getPropertyValue(`--tag-${index}`).trim()
    : `hsl(${(index * 137.5 + 20) % 360} 45% ${dark.matches ? 65 : 38}%)`);
  colours.onTags = colours.tags.map(readable);
  for (const swatch of document.querySelectorAll(".swatch")) {
    swatch.style.background = tagColour(Number(swatch.dataset.colour));
  }
}

/** Black or white, whichever is more readable on a colour. */
function readable(colour) {
  const context = document.createElement("canvas").getContext("2d");
  // The canvas returns six digits, in whatever form the colour was written.
  context.fillStyle = colour;
  const parts = [1, 3, 5].map(at => (parseInt(context.fillStyle.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] > 0.2 ? "#0b0b0b" : "#fff";
}

/** The entries of a legend for the tags, each with the colour of its first range of addresses. */
const tagLegend = () => data.spaces.slice(0, TAG_COLOURS)
  .map((space, index) => [() => tagColour(index), tagName(space)])
  .filter(([, name], index, all) => all.findIndex(([, other]) => other === name) === index);

const tagColour = space => colours.tags[space % TAG_COLOURS];

/** A mix of two colours; `part` is the share of the first one. */
const mixed = (one, other, part) => `color-mix(in srgb, ${one} ${Math.round(part * 100)}%, ${other})`;

/** Stripes of one colour on another, `across` or `upright`. */
function striped(context, front, back, kind) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const on = tile.getContext("2d");
  on.fillStyle = back;
  on.fillRect(0, 0, 8, 8);
  on.strokeStyle = front;
  on.lineWidth = kind === "across" ? 2.4 : 4;
  on.beginPath();
  if (kind === "across") for (const x of [-8, 0, 8]) { on.moveTo(x - 1, 9); on.lineTo(x + 9, -1); }
  else { on.moveTo(2, 0); on.lineTo(2, 8); }
  on.stroke();
  return context.createPattern(tile, "repeat");
}

const tip = document.getElementById("tip");

/** Shows lines of text next to a point of the window; the first line is the heading. */
function showTip(lines, x, y) {
  tip.replaceChildren(...lines.map((line, index) => {
    const element = document.createElement(index === 0 ? "b" : "span");
    element.textContent = line;
    return element;
  }));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const below = y + 18 + height < innerHeight ? y + 18 : y - height - 12;
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 6))}px`;
  tip.style.top = `${Math.max(4, below)}px`;
}

const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });

/** Fills a legend; an entry is a fill and its meaning. */
function legend(list, entries) {
  const draw = () => list.replaceChildren(...entries().map(([fill, text]) => {
    const [item, swatch] = ["li", "canvas"].map(name => document.createElement(name));
    [swatch.width, swatch.height] = [22, 14];
    const context = swatch.getContext("2d");
    context.fillStyle = fill(context);
    context.fillRect(0, 0, 22, 14);
    item.append(swatch, text);
    return item;
  }));
  draw();
  dark.addEventListener("change", draw);
}

readColours();
dark.addEventListener("change", readColours);
