// Puts the page together: the moment, the selection, the figures, the keys. Pictures ask this, and this
// tells pictures to draw. It must never read the input file's text as markup.

class Page {
  constructor(story) {
    this.story = story;
    this.theme = new Theme();
    this.moment = new Moment(story);
    this.pinned = null; // a block
    this.chosen = null; // blocks of a group
    this.chosenKey = null;
    element("title").textContent = story.title;
    document.title = `${story.title} · memory`;
    const about = story.about.map(([name, value]) => name ? `${name}: ${value}` : value).join("  ·  ");
    element("about").textContent = about;
    element("about").title = about;
    this.fillColours();
    this.recolour();
    this.timeline = new Timeline(this);
    this.map = new MemoryMap(this);
    this.holders = new Holders(this);
    this.timeline.recolour();
    this.constants();
    this.listen();
    this.theme.listeners.push(() => this.redraw());
    this.seek(story.peak.requested.op);
  }

  fillColours() {
    const { story } = this;
    const select = element("colour");
    for (const key of Object.keys(COLOURINGS)) {
      const useless = key === "label" && story.labels.length < 2 || key === "stream" && story.streams.length < 2 ||
        key === "pool" && story.pools.length < 2;
      if (!useless) select.add(new Option(key, key));
    }
    if (story.labels.length > 1) select.value = "label";
  }

  recolour() {
    this.colouring = COLOURINGS[element("colour").value](this.story);
    this.colouring.at?.(this.moment);
    this.legend();
    if (this.timeline) {
      this.timeline.recolour();
      this.show();
    }
  }

  legend() {
    const { names, ramp } = this.colouring;
    element("legend").replaceChildren(...names.map((name, number) => {
      const item = document.createElement("li");
      const swatch = document.createElement("i");
      const text = document.createElement("b");
      swatch.style.background = this.theme.category(number, names.length, ramp);
      text.textContent = name;
      item.title = name;
      item.append(swatch, text);
      return item;
    }), this.legendOf("held, not in use", "held"));
  }

  legendOf(name, colour) {
    const item = document.createElement("li");
    const swatch = document.createElement("i");
    swatch.style.background = `var(--${colour})`;
    item.append(swatch, name);
    return item;
  }

  // Figures that are the same at every moment.
  constants() {
    const { peak, failure, operations } = this.story;
    put("peak-requested", bytesText(peak.requested.bytes), peak.requested.bytes);
    put("peak-reserved", bytesText(peak.reserved.bytes), peak.reserved.bytes);
    element("peak-requested-at").textContent = `operation ${countText(peak.requested.op)}`;
    element("peak-reserved-at").textContent = `operation ${countText(peak.reserved.op)}`;
    const lost = peak.reserved.bytes ? 1 - peak.requested.bytes / peak.reserved.bytes : 0;
    put("fragmentation", percentText(lost), lost);
    element("fragmentation").parentElement.title = "1 − peak requested / peak reserved";
    put("failures", failure.op.length ? plural(failure.op.length, "request") : "never", failure.op.length);
    element("failures").parentElement.classList.toggle("alarm", failure.op.length > 0);
    element("failure-at").textContent = failure.op.length
      ? `${bytesText(failure.bytes[0])} at operation ${countText(failure.op[0])}` : "";
    element("timeline").setAttribute("aria-valuemin", 0);
    element("timeline").setAttribute("aria-valuemax", operations);
  }

  seek(op) {
    this.moment.seek(op);
    this.show();
  }

  // Shows what the moment is now.
  show() {
    const { moment, story } = this;
    const { op } = moment;
    this.colouring.at?.(moment);
    if (this.chosenKey !== null) this.chosen = this.holders.members(this.chosenKey);
    const requested = story.course.requested[op], size = story.course.size[op],
      reserved = story.course.reserved[op];
    put("at-operation", countText(op), op);
    const step = moment.step();
    element("at-step").textContent = [
      `of ${countText(story.operations)}`,
      step ? story.mark.name[step - 1] : "",
      story.times.length && op ? timeText(story.times[op - 1]) : "",
    ].filter(Boolean).join(" · ");
    put("at-requested", bytesText(requested), requested);
    note("at-rounding", `+ ${bytesText(size - requested)} rounding`, "Bytes of the blocks beyond what was asked for");
    put("at-reserved", bytesText(reserved), reserved);
    let waiting = 0, waitingBlocks = 0;
    const { all, count } = moment.blocks;
    for (let i = 0; i < count; i++) {
      if (moment.pending(all[i])) {
        waiting += story.block.size[all[i]];
        waitingBlocks++;
      }
    }
    const unused = reserved - size - waiting;
    note("at-unused", `${percentText(reserved ? unused / reserved : 0)} unused`, `${exactText(unused)} held, not in use`);
    put("at-blocks", countText(count - waitingBlocks), count - waitingBlocks);
    element("at-segments").textContent = waitingBlocks
      ? `${bytesText(waiting)} wait for streams` : this.segmentsText();
    element("timeline").setAttribute("aria-valuenow", op);
    element("timeline").setAttribute("aria-valuetext", `operation ${op}, ${bytesText(requested)} requested`);
    this.holders.update();
    this.redraw(false);
  }

  segmentsText() {
    this.map.sortExtents();
    return `in ${plural(this.map.segments.length, "segment")}`;
  }

  redraw(theme = true) {
    if (theme) {
      this.legend();
      this.holders.update();
      this.timeline.columns = null;
    }
    this.timeline.main.request();
    this.timeline.strip.request();
    this.map.picture.request();
  }

  // Shows one group alone, or all again.
  choose(key) {
    this.chosenKey = key ?? null;
    this.chosen = this.chosenKey === null ? null : this.holders.members(this.chosenKey);
    this.holders.update();
    this.redraw(false);
  }

  pin(block) {
    this.pinned = block;
    const box = element("pinned");
    box.hidden = block === null;
    if (block !== null) {
      const [title, pairs] = this.describeBlock(block);
      const head = document.createElement("h2");
      head.textContent = title;
      const links = document.createElement("div");
      links.className = "links";
      const { born, freed } = this.story.block;
      const link = (text, op) => {
        const button = document.createElement("button");
        button.textContent = text;
        button.addEventListener("click", () => this.go(op));
        links.append(button);
      };
      link("its birth", born[block]);
      if (freed[block] !== NEVER) link("before its end", freed[block] - 1);
      box.replaceChildren(head, facts(pairs), links);
      box.scrollIntoView({ block: "nearest" });
    }
    this.redraw(false);
  }

  go(op) {
    this.seek(op);
    this.timeline.reveal(this.moment.op);
  }

  address(offset) { return `0x${(this.story.base + BigInt(offset)).toString(16)}`; }

  when(op) {
    const step = after(this.story.mark.op, op);
    const time = this.story.times.length && op ? `, ${timeText(this.story.times[op - 1])}` : "";
    const name = step ? ` (${this.story.mark.name[step - 1]})` : "";
    return op === 0 ? "before the first operation" : `operation ${countText(op)}${name}${time}`;
  }

  describeBlock(b) {
    const { block, labels, streams, pools } = this.story;
    const rounding = block.size[b] - block.requested[b];
    const life = block.freed[b] - block.born[b];
    return [`${bytesText(block.requested[b])}${labels[block.label[b]] ? ` · ${labels[block.label[b]]}` : ""}`, [
      ["address", this.address(block.address[b]), true],
      ["requested", exactText(block.requested[b])],
      ["rounding", rounding ? `${exactText(rounding)} more` : "none"],
      ["label", labels[block.label[b]]],
      ["stream", streams[block.stream[b]]],
      ["put together", this.map.parts(b) > 1 ? `from ${this.map.parts(b)} places` : ""],
      ["pool", pools[block.pool[b]]],
      ["born", this.when(block.born[b])],
      ["freed", block.freed[b] === NEVER ? "never" : this.when(block.freed[b])],
      ["reusable", block.done[b] === block.freed[b] || block.done[b] === NEVER ? "" : this.when(block.done[b])],
      ["lived", block.freed[b] === NEVER ? "" : plural(life, "operation")],
    ]];
  }

  describeFree(x, bytes) {
    const { extent, pools } = this.story;
    return ["Held, not in use", [
      ["free here", exactText(bytes)],
      ["segment", this.address(extent.address[x]), true],
      ["its size", exactText(extent.size[x])],
      ["pool", pools[extent.pool[x]]],
      ["held since", this.when(extent.born[x])],
      ["until", extent.died[x] === NEVER ? "the end" : this.when(extent.died[x])],
    ]];
  }

  nextFailure() {
    const { op } = this.story.failure;
    if (op.length) this.go(op[after(op, this.moment.op) % op.length]);
  }

  toStep(by) {
    const { op: marks } = this.story.mark;
    const step = this.moment.step();
    if (!marks.length) return;
    // Back from within a step is to its beginning first.
    const here = step && marks[step - 1] === this.moment.op ? step - 1 : step - (by < 0 ? 0 : 1);
    this.go(marks[Math.max(0, Math.min(marks.length - 1, here + by))]);
  }

  listen() {
    const colour = element("colour");
    colour.addEventListener("change", () => this.recolour());
    element("theme").addEventListener("click", () => this.theme.change(!this.theme.dark));
    element("help-open").addEventListener("click", () => element("help").showModal());
    element("go-requested").addEventListener("click", () => this.go(this.story.peak.requested.op));
    element("go-reserved").addEventListener("click", () => this.go(this.story.peak.reserved.op));
    element("go-failure").addEventListener("click", () => this.nextFailure());
    const view = () => this.timeline.to - this.timeline.from;
    const keys = {
      ArrowLeft: (shift) => this.go(this.moment.op - (shift ? Math.ceil(view() / 100) : 1)),
      ArrowRight: (shift) => this.go(this.moment.op + (shift ? Math.ceil(view() / 100) : 1)),
      PageUp: () => this.toStep(-1),
      PageDown: () => this.toStep(1),
      Home: () => this.go(0),
      End: () => this.go(this.story.operations),
      p: () => this.go(this.story.peak.requested.op),
      r: () => this.go(this.story.peak.reserved.op),
      o: () => this.nextFailure(),
      "+": () => this.timeline.zoom(.5, this.moment.op + .5),
      "=": () => this.timeline.zoom(.5, this.moment.op + .5),
      "-": () => this.timeline.zoom(2, this.moment.op + .5),
      0: () => this.timeline.show(0, this.story.operations + 1),
      c: () => {
        colour.selectedIndex = (colour.selectedIndex + 1) % colour.length;
        this.recolour();
      },
      t: () => this.theme.change(!this.theme.dark),
      Escape: () => {
        this.pin(null);
        this.choose(null);
      },
      "?": () => element("help").showModal(),
    };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || element("help").open) return;
      if (event.target.tagName === "SELECT") return;
      const act = keys[event.key];
      if (!act) return;
      event.preventDefault();
      act(event.shiftKey);
    });
  }
}

// A figure as text, and exactly for whoever reads the page by program.
function put(id, text, value) {
  const output = element(id);
  output.textContent = text;
  output.dataset.value = value;
}

// A line under a figure, and in full where the pointer rests.
function note(id, text, title) {
  element(id).textContent = text;
  element(id).title = title;
}

(async () => {
  const wait = element("wait");
  try {
    const started = performance.now();
    const about = JSON.parse(element("story-about").textContent);
    const data = element("story-data");
    const story = await loadStory(about, data.textContent);
    data.remove();
    const page = new Page(story);
    wait.hidden = true;
    document.body.dataset.ready = Math.round(performance.now() - started);
    // For tests and for the curious: how long the last drawings took, in milliseconds.
    window.drawings = () => ({
      timeline: page.timeline.main.frames.slice(), map: page.map.picture.frames.slice(),
    });
  } catch (error) {
    wait.textContent = `This page cannot be shown: ${error.message}`;
    throw error;
  }
})();
