// Who holds the memory at the moment: the largest groups of live blocks. A group that is chosen is
// shown alone in the memory. It must never keep blocks of another moment.

const ROWS = 14;

const GROUPS = {
  label: { title: "label", of: (s) => s.block.label, name: (s, n) => s.labels[n] || "no label" },
  size: { title: "size", of: (s) => s.block.requested, name: (s, n) => bytesText(n), full: (s, n) => exactText(n) },
  class: { title: "size class", name: (s, n) => SIZE_NAMES[n] },
  stream: { title: "stream", of: (s) => s.block.stream, name: (s, n) => `stream ${s.streams[n]}` },
  pool: { title: "pool", of: (s) => s.block.pool, name: (s, n) => s.pools[n] ? `pool ${s.pools[n]}` : "shared" },
  step: { title: "step of birth", of: (s) => s.block.step, name: (s, n) => n ? s.mark.name[n - 1] : "before the first step" },
};

class Holders {
  constructor(page) {
    this.page = page;
    const { story } = page;
    this.select = element("group");
    for (const [key, group] of Object.entries(GROUPS)) {
      const useless = key === "label" && story.labels.length < 2 || key === "pool" && story.pools.length < 2 ||
        key === "step" && !story.mark.op.length || key === "stream" && story.streams.length < 2;
      if (!useless) this.select.add(new Option(group.title, key));
    }
    this.select.addEventListener("change", () => {
      this.page.choose(null);
      this.update();
    });
    this.rows = element("holder-rows");
    this.rows.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.page.choose(this.page.chosenKey === row.dataset.key ? null : row.dataset.key);
    });
    this.pooled = [];
  }

  keyOf() {
    const { story } = this.page;
    const group = GROUPS[this.select.value];
    if (group.of) {
      const column = group.of(story);
      return (b) => column[b];
    }
    return (b) => sizeClass(story.block.requested[b]);
  }

  // The live blocks of a group.
  members(key) {
    const of = this.keyOf();
    const { all, count } = this.page.moment.blocks;
    const members = new Set();
    for (let i = 0; i < count; i++) if (String(of(all[i])) === key) members.add(all[i]);
    return members;
  }

  update() {
    const { page } = this;
    const { story, moment, colouring, theme } = page;
    const of = this.keyOf();
    const groups = new Map();
    const { all, count } = moment.blocks;
    let total = 0;
    for (let i = 0; i < count; i++) {
      const b = all[i];
      if (moment.pending(b)) continue;
      const key = of(b);
      let group = groups.get(key);
      if (!group) groups.set(key, group = { key, bytes: 0, blocks: 0, largest: b });
      group.bytes += story.block.requested[b];
      group.blocks++;
      if (story.block.requested[b] > story.block.requested[group.largest]) group.largest = b;
      total += story.block.requested[b];
    }
    const top = [...groups.values()].sort((a, b) => b.bytes - a.bytes || b.blocks - a.blocks);
    const shown = top.slice(0, ROWS);
    if (top.length > ROWS) {
      const rest = { key: null, bytes: 0, blocks: 0, count: top.length - ROWS };
      for (const group of top.slice(ROWS)) {
        rest.bytes += group.bytes;
        rest.blocks += group.blocks;
      }
      shown.push(rest);
    }
    const { name, full = name } = GROUPS[this.select.value];
    while (this.pooled.length < shown.length) this.pooled.push(this.row());
    this.rows.replaceChildren(...this.pooled.slice(0, shown.length).map((row, place) => {
      const group = shown[place];
      const [swatch, text, bytes, blocks, bar] = row.parts;
      const colour = group.key === null ? theme.heldEdge
        : theme.category(colouring.of[group.largest], colouring.names.length, colouring.ramp);
      if (group.key === null) delete row.dataset.key;
      else row.dataset.key = String(group.key);
      row.classList.toggle("chosen", group.key !== null && page.chosenKey === String(group.key));
      swatch.style.background = colour;
      text.textContent = group.key === null ? `${plural(group.count, "other")}` : name(story, group.key);
      text.parentElement.title = group.key === null ? "" : full(story, group.key);
      bytes.textContent = bytesText(group.bytes);
      bytes.dataset.bytes = group.bytes;
      blocks.textContent = `${countText(group.blocks)} ×`;
      bar.style.background = colour;
      bar.style.width = `${100 * group.bytes / Math.max(1, shown[0].bytes, group.bytes)}%`;
      return row;
    }));
  }

  row() {
    const row = document.createElement("tr");
    const cells = [0, 1, 2].map(() => row.insertCell());
    const swatch = document.createElement("i"), text = document.createElement("span"),
      bar = document.createElement("div");
    bar.className = "bar";
    cells[0].append(swatch, text, bar);
    row.parts = [swatch, text, cells[1], cells[2], bar];
    return row;
  }
}
