// Ranges of addresses: the blocks, and below them the pages with their physical memory.

const STATES = ["live", "bins", "cached", "pending", "free"];

/** The fill of a tag's blocks in a state. */
function stateFill(context, state, space) {
  const [colour, text] = [tagColour(space), colours.onTags[space % TAG_COLOURS]];
  const { surface, free, line } = colours;
  switch (state) {
    case "live": return { paint: colour, plain: colour, text };
    case "bins": return { paint: striped(context, colour, mixed(colour, surface, 0.55), "upright"), plain: mixed(colour, surface, 0.78) };
    case "cached": return { paint: mixed(colour, surface, 0.4), plain: mixed(colour, surface, 0.4), text: colours.ink };
    case "pending": return { paint: striped(context, colour, mixed(colour, surface, 0.15), "across"), plain: mixed(colour, surface, 0.25) };
    default: return { paint: free, plain: free, border: line, text: colours.muted };
  }
}

/** The fills of memory without a block: mapped at one address, at several, at none. */
const freeFills = () => [
  { paint: colours.free, plain: colours.free, border: colours.line, text: colours.muted },
  { paint: colours.several, plain: colours.several, line: colours.mark, text: colours.ink },
  { paint: colours.surface, plain: colours.line, border: colours.hollow, text: colours.muted },
];

/** The name of a number of frames. */
const frameNames = (first, count) => count === 1 ? `#${first}` : `#${first}–${first + count - 1}`;

/** The pages of each range, split where the frames' addresses change. */
const pagesOf = data.spaces.map(() => []);
for (const part of data.frames) {
  for (const [space, offset, used] of part.places) {
    pagesOf[space].push({ row: 1, start: offset, end: offset + part.count * data.page, first: part.first, used, memory: part });
  }
}
for (const pages of pagesOf) pages.sort((one, other) => one.start - other.start);

const rangeOf = (offset, count) => count === 1
  ? bytes(offset) : `${bytes(offset)} to ${bytes(offset + count * data.page)}`;

/** All addresses of a frame, a line each. */
function placesOf(part, frame, count) {
  const shown = part.places.slice(0, 12).map(([space, offset, used]) => {
    const at = offset + (frame - part.first) * data.page;
    return `mapped in ${tagName(data.spaces[space])} at ${rangeOf(at, count)}${used ? ", in use" : ", free"}`;
  });
  const more = part.places.length - shown.length;
  return more > 0 ? [...shown, `and at ${more} more addresses`] : shown;
}

class SpaceView extends View {
  constructor(parent, number) {
    const space = data.spaces[number];
    const blocks = space.blocks.map(([offset, size, state, stream]) =>
      ({ row: 0, start: offset, end: offset + size, state, stream: space.streams[stream] }));
    const pages = pagesOf[number];
    const taken = blocks.findLast(block => block.state !== "free");
    const end = Math.max(taken?.end ?? 0, pages.at(-1)?.end ?? 0) || Math.min(space.reserved, data.page || 1);
    super(parent, { name: `Addresses ${tagName(space)}`, end, least: Math.min(end, 1024), height: 92, unit: BYTES });
    Object.assign(this, { space, number, rows: [blocks.filter(block => block.start < end), pages] });
  }

  paint(context, width) {
    const [blocks, pages] = this.rows;
    const [colour, text] = [tagColour(this.number), colours.onTags[this.number % TAG_COLOURS]];
    paintRow(context, this, {
      ...this.box({ row: 0 }),
      parts: blocks,
      kindOf: block => STATES.indexOf(block.state),
      fills: STATES.map(state => stateFill(context, state, this.number)),
      label: block => bytes(block.end - block.start),
    });
    paintRow(context, this, {
      ...this.box({ row: 1 }),
      parts: pages,
      kindOf: page => page.used ? 0 : page.memory.places.length > 1 ? 2 : 1,
      fills: [{ paint: colour, plain: colour, text }, ...freeFills()],
      label: page => frameNames(page.first, page.memory.count),
    });
    context.strokeStyle = colours.line;
    context.strokeRect(0, 68.5, width, 0);
    this.axis(context, 69);
  }

  box({ row }) { return row === 0 ? { y: 6, height: 32 } : { y: 42, height: 22 }; }

  part(x, y) { return y < 68 ? partAt(this.rows[y < 40 ? 0 : 1], this.value(x)) : null; }

  neighbour({ row, start }, by) {
    const parts = this.rows[row];
    return parts[firstWhere(parts.length, index => parts[index].start >= start) + by];
  }

  edge(row, last) { return this.rows[row].at(last ? -1 : 0) ?? this.rows[1 - row].at(last ? -1 : 0); }

  change(by) {
    const parts = this.rows[by < 0 ? 0 : 1];
    const start = this.current?.start ?? this.low;
    this.go(partAt(parts, start) ?? parts[firstWhere(parts.length, index => parts[index].start >= start)]);
  }

  describe(part) {
    const { space } = this;
    const name = tagName(space);
    const size = bytes(part.end - part.start);
    const where = `offset ${bytes(part.start)}, address ${address(space, part.start)}`;
    if (part.row === 1) {
      const { count, places } = part.memory;
      const use = part.used ? "in use" : places.length > 1 ? `free, mapped at ${places.length} addresses` : "free";
      return [`${size}, frame ${frameNames(part.first, count)}: ${use}`, where, ...placesOf(part.memory, part.first, count)];
    }
    const frames = this.framesOf(part).map(([first, end]) => frameNames(first, end - first));
    const behind = frames.length === 0 ? "no memory" : `frame ${frames.slice(0, 8).join(", ")}${frames.length > 8 ? " …" : ""}`;
    return [`${size} ${part.state}, ${name}`, where, `stream ${part.stream}`, behind];
  }

  framesOf(part) {
    if (part.row === 1) return [[part.first, part.first + part.memory.count]];
    const [, pages] = this.rows;
    const frames = [];
    let index = firstWhere(pages.length, at => pages[at].end > part.start);
    for (; index < pages.length && pages[index].start < part.end && frames.length < 4096; index += 1) {
      const page = pages[index];
      const before = Math.max(0, Math.floor((part.start - page.start) / data.page));
      const end = Math.min(page.memory.count, Math.ceil((part.end - page.start) / data.page));
      const last = frames.at(-1);
      if (last && last[1] === page.first + before) last[1] = page.first + end;
      else frames.push([page.first + before, page.first + end]);
    }
    return frames;
  }

  paintMarks(context) {
    const [, pages] = this.rows;
    const sorted = [...marked].sort((one, other) => one[0] - other[0]);
    const from = firstWhere(pages.length, index => pages[index].end > this.low);
    for (let index = from; index < pages.length && pages[index].start < this.high; index += 1) {
      const { first, memory, start } = pages[index];
      const found = sorted[firstWhere(sorted.length, at => sorted[at][1] > first)];
      if (!found || found[0] >= first + memory.count) continue;
      const [low, high] = [Math.max(found[0], first), Math.min(found[1], first + memory.count)];
      const part = { row: 1, start: start + (low - first) * data.page, end: start + (high - first) * data.page };
      this.outline(context, part, 2);
    }
  }
}

for (const parent of document.querySelectorAll("[data-space]")) {
  new SpaceView(parent, Number(parent.dataset.space));
}

legend(document.getElementById("states-legend"), () => [
  ...STATES.map(state => [context => stateFill(context, state, 0).paint, state === "bins" ? "bins: blocks of one small size" : state]),
  [() => colours.several, "free memory mapped at several addresses"],
  ...tagLegend(),
]);
