// All physical memory in the order of its numbers, with the user of each piece.

class FramesView extends View {
  constructor(parent) {
    const parts = data.frames.map(part => ({ row: 0, start: part.first, end: part.first + part.count, memory: part }));
    const end = parts.at(-1)?.end ?? 1;
    super(parent, { name: "Physical memory", end, least: Math.min(end, 4), height: 64, unit: NUMBERS });
    this.parts = parts;
  }

  paint(context, width) {
    paintRow(context, this, {
      ...this.box(),
      parts: this.parts,
      kindOf: ({ memory: { places } }) => {
        const user = places.find(([, , used]) => used);
        if (user) return user[0] % TAG_COLOURS;
        return TAG_COLOURS + (places.length > 1 ? 1 : places.length === 1 ? 0 : 2);
      },
      fills: [...colours.tags.map((colour, index) => ({ paint: colour, plain: colour, text: colours.onTags[index] })), ...freeFills()],
      label: ({ memory }) => frameNames(memory.first, memory.count),
    });
    context.strokeStyle = colours.line;
    context.strokeRect(0, 40.5, width, 0);
    this.axis(context, 41);
  }

  box() { return { y: 6, height: 30 }; }

  part(x, y) { return y < 40 ? partAt(this.parts, this.value(x)) : null; }

  neighbour({ start }, by) {
    return this.parts[firstWhere(this.parts.length, index => this.parts[index].start >= start) + by];
  }

  edge(_, last) { return this.parts.at(last ? -1 : 0); }

  describe({ memory }) {
    const { first, count, places } = memory;
    const heading = `frame ${frameNames(first, count)}, ${bytes(count * data.page)}`;
    return [heading, ...(places.length > 0 ? placesOf(memory, first, count) : ["held, not mapped"])];
  }

  framesOf({ memory }) { return [[memory.first, memory.first + memory.count]]; }

  paintMarks(context) {
    for (const [start, end] of marked) {
      if (start < this.high && end > this.low) this.outline(context, { start, end }, 2);
    }
  }
}

const framesElement = document.getElementById("frames");
if (data.frames.length > 0) new FramesView(framesElement); else framesElement.innerHTML = "<p class=\"none\">No memory is held.</p>";

legend(document.getElementById("frames-legend"), () => [
  ...tagLegend(),
  [() => colours.free, "free, mapped at one address"],
  [() => colours.several, "free, mapped at several"],
  [() => colours.hollow, "not mapped"],
]);
