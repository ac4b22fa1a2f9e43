// Memory over time: the pool's own history, and a replay beside the recorded program.

/** A series is a name, the member of a moment that it draws, and its colour. The first one is filled. */
const SERIES = [["held", 3, "held"], ["live", 1, "live"], ["pending", 2, "pending"]];

class TimelineView extends View {
  /** `moments` are lists that begin with the time. */
  constructor(parent, name, moments, series, unit) {
    const [begin, end] = [moments[0][0], moments.at(-1)[0]];
    const least = Math.min(Math.max(end - begin, 1e-9), 1e-6);
    super(parent, { name, begin, end, least, height: 220, unit });
    Object.assign(this, { moments, series });
    this.top = moments.reduce((most, moment) => series.reduce((most, [, member]) => Math.max(most, moment[member] ?? 0), most), 1);
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
    for (const one of this.series) this.line(context, width, ...one);
    for (let value = step; value <= this.top; value += step) {
      context.fillStyle = colours.muted;
      context.fillText(bytesIn(this.top, value), 5, this.y(value) - 7);
    }
    this.axis(context, 190);
  }

  line(context, width, name, member, colour) {
    const points = this.points(width, member);
    if (points.length === 0) return;
    context.beginPath();
    // An amount stays until the next change.
    points.forEach(([x, value], index) => {
      if (index === 0) context.moveTo(x, this.y(value)); else context.lineTo(x, this.y(points[index - 1][1]));
      context.lineTo(x, this.y(value));
    });
    if (name === this.series[0][0]) {
      context.lineTo(points.at(-1)[0], this.y(0));
      context.lineTo(points[0][0], this.y(0));
      context.fillStyle = colours[colour];
      context.fill();
      return;
    }
    context.strokeStyle = colours[colour];
    context.lineWidth = 2;
    context.lineJoin = "round";
    context.stroke();
  }

  /** The points in view with one point on either side; if many fall on one pixel, the lowest and the highest of them. */
  points(width, member) {
    const { moments } = this;
    const from = Math.max(0, firstWhere(moments.length, index => moments[index][0] >= this.low) - 1);
    const to = Math.min(moments.length, firstWhere(moments.length, index => moments[index][0] > this.high) + 1);
    const points = [];
    if (to - from <= 4 * width) {
      for (let index = from; index < to; index += 1) points.push([this.x(moments[index][0]), moments[index][member]]);
      return points;
    }
    let [column, least, most] = [null, 0, 0];
    const flush = () => { if (column !== null) points.push([column, least], [column, most]); };
    for (let index = from; index < to; index += 1) {
      const [x, value] = [Math.floor(this.x(moments[index][0])), moments[index][member]];
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
    const found = this.moments[index];
    return found && { index, start: found[0], end: found[0] };
  }

  /** The nearest moment. */
  part(x) {
    const at = this.value(x);
    const index = firstWhere(this.moments.length, one => this.moments[one][0] >= at);
    const [before, after] = [this.moments[index - 1], this.moments[index]];
    return this.moment(!after || (before && at - before[0] < after[0] - at) ? index - 1 : index);
  }

  neighbour({ index }, by) { return this.moment(index + by); }

  edge(_, last) { return this.moment(last ? this.moments.length - 1 : 0); }

  describe({ index }) {
    const moment = this.moments[index];
    const at = this.unit === SECONDS ? `${moment[0].toFixed(3)} s` : this.unit.text(moment[0]);
    return [at, ...this.series.map(([name, member]) => `${name} ${bytes(moment[member] ?? 0)}`)];
  }

  paintOver(context) {
    if (!this.current) return;
    const moment = this.moments[this.current.index];
    const x = this.x(moment[0]);
    context.strokeStyle = colours.mark;
    context.lineWidth = 1;
    context.strokeRect(x, 10, 0, 180);
    for (const [, member, colour] of this.series) {
      context.beginPath();
      context.arc(x, this.y(moment[member] ?? 0), 4, 0, 2 * Math.PI);
      context.fillStyle = colours[colour];
      context.fill();
      context.stroke();
    }
  }
}

function timeline(id, name, moments, series, unit) {
  const element = document.getElementById(id);
  if (moments.length > 0) new TimelineView(element, name, moments, series, unit); else element.innerHTML = "<p class=\"none\">Nothing was recorded.</p>";
  legend(document.getElementById(`${id}-legend`), () => series.map(([name, , colour]) => [() => colours[colour], name]));
}

if (data.replay) {
  const { seconds, recorded, moments } = data.replay;
  const tells = moments.some(moment => moment[3] !== null);
  const series = [["held by the pool", 2, "held"], ...tells ? [[recorded, 3, "recorded"]] : [], ["requested", 1, "live"]];
  timeline("replay", "Requested and held memory over the replay", moments, series, seconds ? SECONDS : NUMBERS);
}
timeline("timeline", "Live, pending and held memory over time", data.timeline, SERIES, SECONDS);
