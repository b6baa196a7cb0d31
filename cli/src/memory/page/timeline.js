// The timeline: live bytes by category, what is held from the device above them, steps, peaks and
// failures; and the strip of the whole run below it. A column of pixels shows the moment of its
// operations at which the most is live, and how low it went. It must never change the moment itself:
// it asks for that.

const PLOT = { left: 62, right: 12, top: 22, bottom: 20 };

class Timeline {
  constructor(page) {
    this.page = page;
    this.story = page.story;
    this.from = 0;
    this.to = this.story.operations + 1;
    this.columns = null;
    this.hover = null;
    this.most = Math.max(this.story.peak.requested.bytes, this.story.peak.reserved.bytes, 1);
    this.sums = null;
    this.main = new Picture("timeline", (...pen) => this.draw(...pen));
    this.strip = new Picture("overview", (...pen) => this.drawStrip(...pen));
    this.listen();
  }

  // Sums of bytes by category, kept one in `EVERY` events so that any moment is near to one.
  static EVERY = 4096;
  recolour() {
    const { colouring, story } = this.page;
    const { kind, ref } = story.event;
    const { requested } = story.block;
    const categories = colouring.names.length;
    this.categories = colouring.moves ? 1 : categories;
    this.of = colouring.moves ? new Uint8Array(colouring.of.length) : colouring.of;
    const kept = Math.floor(kind.length / Timeline.EVERY) + 1;
    this.sums = new Float64Array(kept * this.categories);
    const now = new Float64Array(this.categories);
    for (let e = 0; e < kind.length; e++) {
      if (e % Timeline.EVERY === 0) this.sums.set(now, e / Timeline.EVERY * this.categories);
      if (kind[e] === ALLOC) now[this.of[ref[e]]] += requested[ref[e]];
      else if (kind[e] === FREED || kind[e] === DONE) now[this.of[ref[e]]] -= requested[ref[e]];
    }
    this.columns = null;
    this.all = null;
    this.main.request();
    this.strip.request();
  }

  // What each of `width` columns of the operations from `from` to `to` shows.
  measure(from, to, width) {
    const { story } = this.page;
    const { requested, reserved } = story.course;
    const { categories } = this;
    const result = {
      from, to, width,
      op: new Uint32Array(width), low: new Float64Array(width), high: new Float64Array(width),
      held: new Float64Array(width), parts: new Float64Array(width * categories),
    };
    const last = story.operations;
    const each = (to - from) / width;
    for (let c = 0; c < width; c++) {
      const first = Math.max(0, Math.min(last, Math.floor(from + c * each)));
      const end = Math.max(first, Math.min(last, Math.ceil(from + (c + 1) * each) - 1));
      let top = first, low = requested[first], high = low, held = reserved[first];
      for (let op = first + 1; op <= end; op++) {
        const live = requested[op];
        if (live > high) { high = live; top = op; }
        else if (live < low) low = live;
        if (reserved[op] > held) held = reserved[op];
      }
      result.op[c] = top;
      result.low[c] = low;
      result.high[c] = high;
      result.held[c] = held;
    }
    this.split(result);
    return result;
  }

  // The live bytes of each column by category.
  split({ op, width, parts }) {
    const { event, block } = this.story;
    const { categories, of } = this;
    const now = new Float64Array(categories);
    let e = 0, jump = true;
    for (let c = 0; c < width; c++) {
      const end = after(event.op, op[c]);
      if (jump || end - e > 2 * Timeline.EVERY || end < e) {
        const kept = Math.min(Math.floor(end / Timeline.EVERY), this.sums.length / categories - 1);
        now.set(this.sums.subarray(kept * categories, (kept + 1) * categories));
        e = kept * Timeline.EVERY;
        jump = false;
      }
      for (; e < end; e++) {
        const kind = event.kind[e], b = event.ref[e];
        if (kind === ALLOC) now[of[b]] += block.requested[b];
        else if (kind === FREED || kind === DONE) now[of[b]] -= block.requested[b];
      }
      parts.set(now, c * categories);
    }
  }

  x(op) { return PLOT.left + (op - this.from) / (this.to - this.from) * this.plotWidth; }
  op(x) { return this.from + (x - PLOT.left) / this.plotWidth * (this.to - this.from); }
  get plotWidth() { return Math.max(1, this.main.width - PLOT.left - PLOT.right); }

  show(from, to) {
    const least = Math.min(20, this.story.operations + 1);
    const most = this.story.operations + 1;
    const span = Math.min(most, Math.max(least, to - from));
    if (to - from !== span) from = (from + to - span) / 2;
    this.from = Math.max(0, Math.min(most - span, from));
    this.to = this.from + span;
    this.main.request();
    this.strip.request();
  }

  zoom(factor, around) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  // Moves the view so that this operation is inside.
  reveal(op) {
    const span = this.to - this.from;
    if (op < this.from || op > this.to - 1) this.show(op - span / 2, op + span / 2);
  }

  draw(pen, width, height) {
    if (!this.sums) return;
    const { theme } = this.page;
    const plotHeight = height - PLOT.top - PLOT.bottom;
    const y = (bytes) => PLOT.top + plotHeight * (1 - bytes / (this.most * 1.04));
    const pixels = this.plotWidth;
    if (!this.columns || this.columns.from !== this.from || this.columns.to !== this.to ||
        this.columns.width !== pixels) {
      this.columns = this.measure(this.from, this.to, pixels);
    }
    this.drawGrid(pen, width, y);
    this.drawAreas(pen, PLOT.left, y, this.columns);
    this.drawMarks(pen, y, height);
    this.drawPeaks(pen, y);
    const { op } = this.page.moment;
    const { pinned } = this.page;
    if (pinned !== null) {
      const { born, freed } = this.story.block;
      const left = Math.max(PLOT.left, this.x(born[pinned]));
      const right = Math.min(width - PLOT.right, freed[pinned] === NEVER ? width : this.x(freed[pinned]));
      if (right > left) {
        pen.fillStyle = theme.ink;
        pen.fillRect(left, height - PLOT.bottom - 4, right - left, 4);
      }
    }
    if (op >= this.from && op < this.to) {
      const x = Math.round(this.x(op + .5)) + .5;
      pen.strokeStyle = theme.accent;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x, PLOT.top);
      pen.lineTo(x, height - PLOT.bottom);
      pen.stroke();
      pen.fillStyle = theme.accent;
      pen.beginPath();
      pen.arc(x, PLOT.top, 4, 0, 7);
      pen.fill();
    }
    if (this.hover !== null) {
      pen.fillStyle = theme.faint;
      pen.fillRect(Math.round(this.hover), PLOT.top, 1, plotHeight);
    }
  }

  drawGrid(pen, width, y) {
    const { theme } = this.page;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const bytes of ticks(this.most, 5, true)) {
      pen.fillStyle = theme.line;
      pen.fillRect(PLOT.left, Math.round(y(bytes)), width - PLOT.left - PLOT.right, 1);
      pen.fillStyle = theme.soft;
      const text = bytesText(bytes).replace(/(\.\d*?)0+ /, (_, kept) => kept === "." ? " " : `${kept} `);
      pen.fillText(bytes ? text : "0", PLOT.left - 7, y(bytes));
    }
    pen.textAlign = "center";
    pen.textBaseline = "bottom";
    const span = this.to - this.from;
    const step = ticks(span, Math.max(2, this.plotWidth / 110), false)[1] ?? 1;
    for (let op = Math.ceil(this.from / step) * step; op < this.to; op += step) {
      const x = this.x(op + .5);
      if (x < PLOT.left + 14 || x > width - 30) continue;
      pen.fillText(countText(op), x, this.main.height - 2);
      pen.fillRect(Math.round(x), this.main.height - PLOT.bottom, 1, 4);
    }
  }

  drawAreas(pen, left, y, columns) {
    const { theme, colouring } = this.page;
    const { width, parts, low, high, held } = columns;
    const { categories } = this;
    const floor = y(0);
    // Held but not asked for.
    pen.beginPath();
    pen.moveTo(left, floor);
    for (let c = 0; c < width; c++) {
      pen.lineTo(left + c, y(held[c]));
      pen.lineTo(left + c + 1, y(held[c]));
    }
    pen.lineTo(left + width, floor);
    pen.closePath();
    pen.fillStyle = theme.held;
    pen.fill();
    // Live bytes, one layer a category.
    const below = new Float64Array(width);
    for (let k = 0; k < categories; k++) {
      let any = false;
      pen.beginPath();
      pen.moveTo(left, y(below[0]));
      for (let c = 0; c < width; c++) {
        const part = parts[c * categories + k];
        if (part > 0) any = true;
        pen.lineTo(left + c, y(below[c] + part));
        pen.lineTo(left + c + 1, y(below[c] + part));
      }
      for (let c = width - 1; c >= 0; c--) {
        pen.lineTo(left + c + 1, y(below[c]));
        pen.lineTo(left + c, y(below[c]));
        below[c] += parts[c * categories + k];
      }
      pen.closePath();
      if (!any) continue;
      pen.fillStyle = colouring.moves ? theme.faint : theme.category(k, categories, colouring.ramp);
      pen.fill();
    }
    // Between the least and the most of a column: not live all the time.
    pen.beginPath();
    for (let c = 0; c < width; c++) {
      const top = y(high[c]), bottom = y(low[c]);
      if (bottom - top > 1) pen.rect(left + c, top, 1, bottom - top);
    }
    pen.globalAlpha = .38;
    pen.fillStyle = theme.card;
    pen.fill();
    pen.globalAlpha = 1;
    pen.beginPath();
    for (let c = 0; c < width; c++) {
      pen.lineTo(left + c, y(held[c]));
      pen.lineTo(left + c + 1, y(held[c]));
    }
    pen.strokeStyle = theme.soft;
    pen.lineWidth = 1.25;
    pen.stroke();
  }

  drawMarks(pen, y, height) {
    const { theme, story } = this.page;
    const { op: marks, name } = story.mark;
    const first = after(marks, this.from - 1), last = after(marks, this.to);
    pen.font = "10.5px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    let free = -Infinity, drawn = -Infinity;
    for (let m = first; m < last; m++) {
      const x = Math.round(this.x(marks[m]));
      if (x - drawn < 4) continue;
      drawn = x;
      pen.fillStyle = theme.faint;
      pen.globalAlpha = last - first > 60 ? .09 : .4;
      pen.fillRect(x, PLOT.top, 1, height - PLOT.top - PLOT.bottom);
      pen.globalAlpha = 1;
      const text = name[m].length > 22 ? `${name[m].slice(0, 21)}…` : name[m];
      const room = pen.measureText(text).width + 10;
      if (x >= free && x + room < this.main.width) {
        pen.fillStyle = theme.soft;
        pen.fillText(text, x + 3, PLOT.top - 9);
        pen.fillRect(x, PLOT.top - 14, 1, 14);
        free = x + room;
      }
    }
    pen.fillStyle = theme.alarm;
    const { op: failures } = story.failure;
    for (let f = after(failures, this.from - 1); f < failures.length && failures[f] < this.to; f++) {
      const x = this.x(failures[f] + .5);
      pen.beginPath();
      pen.moveTo(x - 5, PLOT.top - 1);
      pen.lineTo(x + 5, PLOT.top - 1);
      pen.lineTo(x, PLOT.top + 8);
      pen.fill();
      pen.globalAlpha = .5;
      pen.fillRect(x - .5, PLOT.top + 8, 1, height - PLOT.top - PLOT.bottom - 8);
      pen.globalAlpha = 1;
    }
  }

  drawPeaks(pen, y) {
    const { theme, story } = this.page;
    pen.font = "600 11px system-ui, sans-serif";
    pen.textBaseline = "bottom";
    for (const [peak, name] of [[story.peak.reserved, "reserved"], [story.peak.requested, "requested"]]) {
      if (peak.op < this.from || peak.op >= this.to || !peak.bytes) continue;
      const x = this.x(peak.op + .5), top = y(peak.bytes);
      pen.beginPath();
      pen.moveTo(x, top - 5);
      pen.lineTo(x + 5, top);
      pen.lineTo(x, top + 5);
      pen.lineTo(x - 5, top);
      pen.closePath();
      pen.fillStyle = name === "reserved" ? theme.soft : theme.ink;
      pen.strokeStyle = theme.card;
      pen.lineWidth = 1.5;
      pen.stroke();
      pen.fill();
    }
  }

  drawStrip(pen, width, height) {
    if (!this.sums) return;
    const { theme, story } = this.page;
    const pixels = this.plotWidth;
    if (!this.all || this.all.width !== pixels) this.all = this.measure(0, story.operations + 1, pixels);
    const y = (bytes) => height - (height - 4) * bytes / (this.most * 1.04);
    this.drawAreas(pen, PLOT.left, y, this.all);
    const scale = pixels / (story.operations + 1);
    const left = PLOT.left + this.from * scale, right = PLOT.left + this.to * scale;
    pen.fillStyle = theme.page;
    pen.globalAlpha = .72;
    pen.fillRect(PLOT.left, 0, left - PLOT.left, height);
    pen.fillRect(right, 0, PLOT.left + pixels - right, height);
    pen.globalAlpha = 1;
    pen.strokeStyle = theme.faint;
    pen.lineWidth = 1;
    pen.strokeRect(left + .5, .5, Math.max(2, right - left - 1), height - 1);
    pen.fillStyle = theme.soft;
    for (const x of [left, right]) pen.fillRect(x - 1.5, height / 2 - 7, 3, 14);
    pen.fillStyle = theme.alarm;
    for (const op of story.failure.op) pen.fillRect(PLOT.left + op * scale - 1, 0, 2, 6);
    pen.fillStyle = theme.accent;
    pen.fillRect(Math.round(PLOT.left + (this.page.moment.op + .5) * scale) - .5, 0, 1.5, height);
  }

  listen() {
    const { canvas } = this.main;
    const choose = (event) => this.page.seek(Math.floor(this.op(this.main.at(event).x)));
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.dragging = true;
      choose(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.dragging) choose(event);
      this.point(event);
    });
    const drop = () => { this.dragging = false; };
    canvas.addEventListener("pointerup", drop);
    canvas.addEventListener("pointercancel", drop);
    canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      tip(null);
      this.main.request();
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const pages = event.deltaMode === 1 ? 16 : 1; // lines or pixels
      const dx = event.shiftKey ? event.deltaY : event.deltaX, dy = event.shiftKey ? 0 : event.deltaY;
      if (Math.abs(dx) > Math.abs(dy)) {
        const shift = dx * pages / this.plotWidth * (this.to - this.from);
        this.show(this.from + shift, this.to + shift);
      } else {
        this.zoom(Math.exp(dy * pages * .0022), this.op(this.main.at(event).x));
      }
    }, { passive: false });
    this.listenStrip();
  }

  // The strip: its edges resize the window, the rest of it moves it.
  listenStrip() {
    const { canvas } = this.strip;
    const all = this.story.operations + 1;
    const opAt = (event) => (this.strip.at(event).x - PLOT.left) / this.plotWidth * all;
    let grip = null;
    const near = (event) => {
      const slack = 7 / this.plotWidth * all, op = opAt(event);
      return Math.abs(op - this.from) < slack ? "from" : Math.abs(op - this.to) < slack ? "to" : "all";
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const edge = near(event), op = opAt(event), span = this.to - this.from;
      if (edge === "all" && (op < this.from || op > this.to)) this.show(op - span / 2, op + span / 2);
      grip = { edge, shift: op - this.from };
    });
    canvas.addEventListener("pointermove", (event) => {
      canvas.style.cursor = near(event) === "all" ? "grab" : "ew-resize";
      if (!grip) return;
      const op = opAt(event);
      if (grip.edge === "from") this.show(Math.min(op, this.to - 20), this.to);
      else if (grip.edge === "to") this.show(this.from, Math.max(op, this.from + 20));
      else this.show(op - grip.shift, op - grip.shift + this.to - this.from);
    });
    canvas.addEventListener("pointerup", () => { grip = null; });
    canvas.addEventListener("pointercancel", () => { grip = null; });
    canvas.addEventListener("dblclick", () => this.show(0, all));
  }

  // The tip of the column at the pointer.
  point(event) {
    const { x } = this.main.at(event);
    const column = Math.floor(x - PLOT.left);
    if (!this.columns || column < 0 || column >= this.columns.width) {
      this.hover = null;
      tip(null);
    } else {
      const { story } = this;
      const op = this.columns.op[column];
      const step = after(story.mark.op, op);
      const low = this.columns.low[column], high = this.columns.high[column];
      const failure = story.failure.op.findIndex(
        (at) => Math.abs(this.x(at + .5) - x) < 5);
      this.hover = PLOT.left + column;
      tip(event, `Operation ${countText(op)}`, [
        ["step", step ? story.mark.name[step - 1] : ""],
        ["time", story.times.length && op ? timeText(story.times[op - 1]) : ""],
        ["requested", bytesText(high)],
        ["at least", high > low ? bytesText(low) : ""],
        ["reserved", bytesText(this.columns.held[column])],
        ["out of memory", failure >= 0 ? `${bytesText(story.failure.bytes[failure])} refused` : ""],
      ]);
    }
    this.main.request();
  }
}

function timeText(microseconds) {
  return microseconds < 1e6 ? `${(microseconds / 1e3).toFixed(3)} ms` : `${(microseconds / 1e6).toFixed(3)} s`;
}
