// A row of consecutive parts: drawn one by one if they are wide enough, else in proportion.

/**
 * Draws the visible parts of a sorted list. `kindOf(part)` is an index into `fills`, `label(part)` is written if there
 * is
 * room for it.
 */
function paintRow(context, view, { parts, y, height, kindOf, fills, label }) {
  const { low, high, width } = view;
  const scale = width / (high - low);
  const columns = Math.ceil(width);
  const kinds = fills.length;
  // The share of each kind in each pixel.
  let thin = null;
  const from = firstWhere(parts.length, index => parts[index].end > low);
  for (let index = from; index < parts.length && parts[index].start < high; index += 1) {
    const part = parts[index];
    const left = (part.start - low) * scale;
    const right = (part.end - low) * scale;
    if (right - left >= 2) {
      paintPart(context, view, { left, right, y, height, fill: fills[kindOf(part)], text: label?.(part) });
      continue;
    }
    thin ??= new Float32Array(columns * kinds);
    const kind = kindOf(part);
    for (let column = Math.max(0, Math.floor(left)); column < Math.min(columns, right); column += 1) {
      thin[column * kinds + kind] += Math.min(right, column + 1) - Math.max(left, column);
    }
  }
  if (thin) paintThin(context, thin, { columns, fills, y, height });
}

function paintPart(context, view, { left, right, y, height, fill, text }) {
  // Wide parts have a gap after them, so that neighbours can be told apart.
  const gap = right - left > 4 ? 1 : 0;
  const [x, end] = [Math.max(-2, left), Math.min(view.width + 2, right)];
  context.fillStyle = fill.paint;
  context.fillRect(x, y, end - x - gap, height);
  if (fill.border) {
    context.strokeStyle = fill.border;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, end - x - gap - 1, height - 1);
  }
  if (fill.line) {
    context.fillStyle = fill.line;
    context.fillRect(x, y + height - 4, end - x - gap, 3);
  }
  const [begin, close] = [Math.max(0, x), Math.min(view.width, end)];
  if (!text || close - begin < 44) return;
  const wide = context.measureText(text).width;
  if (wide + 12 > close - begin) return;
  if (fill.text === undefined) {
    // A text on stripes gets a plain background.
    context.fillStyle = colours.surface;
    context.fillRect(begin + 3, y + height / 2 - 8, wide + 6, 16);
  }
  context.fillStyle = fill.text ?? colours.ink;
  context.textAlign = "left";
  context.fillText(text, begin + 6, y + height / 2 + 0.5);
}

function paintThin(context, thin, { columns, fills, y, height }) {
  const kinds = fills.length;
  for (let column = 0; column < columns; column += 1) {
    let bottom = y + height;
    for (let kind = 0; kind < kinds; kind += 1) {
      const high = Math.min(1, thin[column * kinds + kind]) * height;
      if (high === 0) continue;
      context.fillStyle = fills[kind].plain;
      context.fillRect(column, bottom - high, 1, high);
      bottom -= high;
    }
  }
}

/** The part of a sorted list at a value, or null. */
function partAt(parts, value) {
  const index = firstWhere(parts.length, at => parts[at].end > value);
  return index < parts.length && parts[index].start <= value ? parts[index] : null;
}
