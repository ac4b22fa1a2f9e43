// Live, pending and held memory over time.

const SERIES = [["held", 3], ["live", 1], ["pending", 2]];

class TimelineView extends View {
  constructor(parent) {
    const { timeline } = data;
    const [begin, end] = [timeline[0][0], timeline.at(-1)[0]];
    const least = Math.min(Math.max(end - begin, 1e-9), 1e-6);
    super(parent, { name: "Live, pending and held memory over time", begin, end, least, height: 220, unit: SECONDS });
    this.top = timeline.reduce((most, moment) => Math.max(most, moment[1], moment[2], moment[3]), 1);
  }

  y(value) { return 190 - value / this.top * 170; }

  paint(context, width) {
    const step = BYTES.step(this.top / 4);
    context.textAlign = "left";
    for (let value = 0; value <= this.top; value += step) {
      const y = Math.round(this.y(value)) + 0.5;
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      context.strokeRect(0, y, width, 0);
    }
    for (const [name, member] of SERIES) this.series(context, width, name, member);
    for (let value = step; value <= this.top; value += step) {
      context.fillStyle = colours.muted;
      context.fillText(bytesIn(this.top, value), 5, this.y(value) - 7);
    }
    this.axis(context, 190);
  }

  series(context, width, name, member) {
    const points = this.points(width, member);
    if (points.length === 0) return;
    context.beginPath();
    // An amount stays until the next change.
    points.forEach(([x, value], index) => {
      if (index === 0) context.moveTo(x, this.y(value)); else context.lineTo(x, this.y(points[index - 1][1]));
      context.lineTo(x, this.y(value));
    });
    if (name === "held") {
      context.lineTo(points.at(-1)[0], this.y(0));
      context.lineTo(points[0][0], this.y(0));
      context.fillStyle = colours.held;
      context.fill();
      return;
    }
    context.strokeStyle = colours[name];
    context.lineWidth = 2;
    context.lineJoin = "round";
    context.stroke();
  }

  /** The points in view with one point on either side; if many fall on one pixel, the lowest and the highest of them. */
  points(width, member) {
    const { timeline } = data;
    const from = Math.max(0, firstWhere(timeline.length, index => timeline[index][0] >= this.low) - 1);
    const to = Math.min(timeline.length, firstWhere(timeline.length, index => timeline[index][0] > this.high) + 1);
    const points = [];
    if (to - from <= 4 * width) {
      for (let index = from; index < to; index += 1) points.push([this.x(timeline[index][0]), timeline[index][member]]);
      return points;
    }
    let [column, least, most] = [null, 0, 0];
    const flush = () => { if (column !== null) points.push([column, least], [column, most]); };
    for (let index = from; index < to; index += 1) {
      const [x, value] = [Math.floor(this.x(timeline[index][0])), timeline[index][member]];
      if (x === column) {
        [least, most] = [Math.min(least, value), Math.max(most, value)];
      } else {
        flush();
        [column, least, most] = [x, value, value];
      }
    }
    flush();
    return points;
  }

  moment(index) {
    const found = data.timeline[index];
    return found && { index, start: found[0], end: found[0] };
  }

  /** The nearest moment. */
  part(x) {
    const at = this.value(x);
    const index = firstWhere(data.timeline.length, one => data.timeline[one][0] >= at);
    const [before, after] = [data.timeline[index - 1], data.timeline[index]];
    return this.moment(!after || (before && at - before[0] < after[0] - at) ? index - 1 : index);
  }

  neighbour({ index }, by) { return this.moment(index + by); }

  edge(_, last) { return this.moment(last ? data.timeline.length - 1 : 0); }

  describe({ index }) {
    const [at, live, pending, held] = data.timeline[index];
    return [`${at.toFixed(3)} s`, `held ${bytes(held)}`, `live ${bytes(live)}`, `pending ${bytes(pending)}`];
  }

  paintOver(context) {
    if (!this.current) return;
    const moment = data.timeline[this.current.index];
    const x = this.x(moment[0]);
    context.strokeStyle = colours.mark;
    context.lineWidth = 1;
    context.strokeRect(x, 10, 0, 180);
    for (const [name, member] of SERIES) {
      context.beginPath();
      context.arc(x, this.y(moment[member]), 4, 0, 2 * Math.PI);
      context.fillStyle = colours[name];
      context.fill();
      context.stroke();
    }
  }
}

const timelineElement = document.getElementById("timeline");
if (data.timeline.length > 0) new TimelineView(timelineElement); else timelineElement.innerHTML = "<p class=\"none\">Nothing was recorded.</p>";

legend(document.getElementById("timeline-legend"), () => SERIES.map(([name]) => [() => colours[name], name]));
