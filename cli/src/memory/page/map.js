// The memory at the moment: everything held from the device as one tape, wrapped like text, so that a
// byte is as large everywhere. What is free is pale; what waits for other streams is hatched. A block
// over memory that is put together from several places is drawn at all of them. It must never change
// the moment or the selection itself: it asks for that.

const ROW = 24; // pixels of a row with its gap, about: rows fill the height
const GAP = 5;
const MARGIN = 2;

class MemoryMap {
  constructor(page) {
    this.page = page;
    this.story = page.story;
    this.zoom = 1;
    this.mapping = -1;
    this.hover = null;
    this.drawn = null;
    this.scroll = element("map-scroll");
    this.picture = new Picture("map", (...pen) => this.draw(...pen));
    this.scroll.addEventListener("scroll", () => this.picture.request());
    new ResizeObserver(() => this.layOut()).observe(this.scroll);
    element("map-in").addEventListener("click", () => this.zoomTo(this.zoom * 2));
    element("map-out").addEventListener("click", () => this.zoomTo(this.zoom / 2));
    element("map-fit").addEventListener("click", () => this.zoomTo(1));
    this.listen();
    this.layOut();
  }

  // How many bytes a row shows: such that at zoom 1 all of the tape can be seen.
  layOut() {
    const space = this.scroll.clientHeight - 2 * MARGIN;
    const rows = Math.max(1, Math.floor(space / ROW));
    this.pitch = Math.max(ROW, (space + GAP) / rows);
    this.height = this.pitch - GAP;
    this.width = Math.max(10, this.picture.width - 2 * MARGIN);
    this.perRow = Math.max(1, this.story.tape / rows / this.zoom);
    this.rows = Math.max(1, Math.ceil(this.story.tape / this.perRow - 1e-9));
    const height = this.rows * this.pitch - GAP + 2 * MARGIN;
    element("map-space").style.height = `${Math.max(0, height - this.scroll.clientHeight)}px`;
    element("scale").textContent = this.story.tape
      ? `a row is ${bytesText(this.perRow)}, a pixel ${bytesText(this.perRow / this.width)}` : "";
    this.picture.request();
  }

  zoomTo(zoom, y = this.scroll.clientHeight / 2) {
    const { pitch } = this;
    const place = (this.scroll.scrollTop + y) / pitch * this.perRow;
    const least = 512 / Math.max(512, this.story.tape) * this.rows; // 512 bytes a row is the finest
    this.zoom = Math.max(1, Math.min(zoom, Math.max(1, 1 / least * this.zoom), 1 << 20));
    this.layOut();
    this.scroll.scrollTop = place / this.perRow * pitch - y;
  }

  // The extents of the moment, sorted by address, and again by place without views.
  sortExtents() {
    const { moment } = this.page;
    if (this.mapping === moment.mapping) return;
    this.mapping = moment.mapping;
    const { address, size, place, view } = this.story.extent;
    const all = moment.extents.copy();
    this.byAddress = all.slice().sort((a, b) => address[a] - address[b]);
    this.addresses = Float64Array.from(this.byAddress, (x) => address[x]);
    this.byPlace = all.filter((x) => !view[x]).sort((a, b) => place[a] - place[b]);
    // A segment begins where an extent does not go on from the one before it, neither here nor there.
    this.segments = this.byPlace.filter((x, i) => {
      const before = this.byPlace[i - 1];
      return i === 0 || place[before] + size[before] !== place[x] || address[before] + size[before] !== address[x];
    });
    this.places = Float64Array.from(this.byPlace, (x) => place[x]);
  }

  // Calls `piece(place, size)` for each piece of the tape that a block covers; what lies together is one.
  pieces(block, piece) {
    const { address, size, place } = this.story.extent;
    const from = this.story.block.address[block], to = from + this.story.block.size[block];
    let at = 0, bytes = 0;
    for (let i = Math.max(0, after(this.addresses, from) - 1); i < this.byAddress.length; i++) {
      const x = this.byAddress[i];
      if (address[x] >= to) break;
      const start = Math.max(from, address[x]), more = Math.min(to, address[x] + size[x]) - start;
      if (more <= 0) continue;
      const here = place[x] + start - address[x];
      if (bytes && here === at + bytes) {
        bytes += more;
      } else {
        if (bytes) piece(at, bytes);
        at = here;
        bytes = more;
      }
    }
    if (bytes) piece(at, bytes);
  }

  // In how many places of the tape a live block lies.
  parts(block) {
    let parts = 0;
    this.sortExtents();
    if (this.page.moment.blocks.where[block] >= 0) this.pieces(block, () => { parts++; });
    return parts;
  }

  // Draws from one place of the tape to another, row by row.
  span(place, size, top, bottom, box) {
    let row = Math.floor(place / this.perRow);
    const last = Math.min(bottom, Math.floor((place + size - 1e-6 * this.perRow) / this.perRow));
    row = Math.max(row, top);
    const pixel = this.width / this.perRow;
    for (; row <= last; row++) {
      const start = Math.max(0, (place - row * this.perRow) * pixel);
      const end = Math.min(this.width, (place + size - row * this.perRow) * pixel);
      box(MARGIN + start, MARGIN + row * this.pitch - this.scroll.scrollTop, end - start);
    }
  }

  draw(pen, width, height) {
    this.sortExtents();
    const { theme, moment, colouring } = this.page;
    const { extent } = this.story;
    const { pitch } = this;
    const top = Math.max(0, Math.floor((this.scroll.scrollTop - MARGIN) / pitch));
    const bottom = Math.min(this.rows - 1, Math.floor((this.scroll.scrollTop + height) / pitch));
    // Where memory was or will be.
    pen.fillStyle = theme.page;
    for (let row = top; row <= bottom; row++) {
      const bytes = Math.min(this.perRow, this.story.tape - row * this.perRow);
      pen.fillRect(MARGIN, MARGIN + row * pitch - this.scroll.scrollTop, bytes / this.perRow * this.width, this.height);
    }
    const visible = (place, size) =>
      place + size > top * this.perRow && place < (bottom + 1) * this.perRow;
    pen.fillStyle = theme.held;
    for (const x of this.byPlace) {
      if (!visible(extent.place[x], extent.size[x])) continue;
      this.span(extent.place[x], extent.size[x], top, bottom, (x, y, w) => pen.fillRect(x, y, w, this.height));
    }
    this.drawBlocks(pen, top, bottom, theme, moment, colouring);
    // Edges of segments, over the blocks: a notch at the start of each.
    pen.fillStyle = theme.card;
    for (const x of this.segments) {
      const place = extent.place[x];
      if (!visible(place, 1) || extent.size[x] / this.perRow * this.width < 3) continue;
      this.span(place, Math.min(extent.size[x], this.perRow / this.width), top, bottom,
        (x, y) => pen.fillRect(x - .5, y, 1, this.height));
    }
    if (this.hover !== null) this.outline(pen, this.hover, top, bottom, theme.ink, 1);
    if (this.page.pinned !== null) this.outline(pen, this.page.pinned, top, bottom, theme.accent, 2);
  }

  // Blocks of a pixel and more are drawn one by one. Smaller ones are added up pixel by pixel, and each
  // pixel shows the category that has most of it, as strongly as it is filled: so a hundred thousand
  // small blocks cost no more than the pixels that they are in.
  drawBlocks(pen, top, bottom, theme, moment, colouring) {
    const { all, count } = moment.blocks;
    const { perRow } = this;
    const categories = colouring.names.length;
    const pixel = this.width / perRow;
    const first = top * perRow, last = (bottom + 1) * perRow;
    const groups = Array.from({ length: categories + 1 }, () => []); // the last one is dimmed
    const pending = [];
    const width = Math.ceil(this.width) + 1;
    const layer = width * (bottom - top + 1);
    const fine = new Float32Array(layer * (categories + 1));
    let anyFine = false;
    for (let i = 0; i < count; i++) {
      const b = all[i];
      const group = this.page.chosen && !this.page.chosen.has(b) ? categories : colouring.of[b];
      this.pieces(b, (at, bytes) => {
        if (at + bytes <= first || at >= last) return;
        if (bytes * pixel < 1) {
          const row = Math.floor(at / perRow);
          if (row < top || row > bottom) return;
          fine[group * layer + (row - top) * width + Math.floor((at - row * perRow) * pixel)] += bytes * pixel;
          anyFine = true;
        } else {
          groups[group].push(at, bytes);
          if (moment.pending(b)) pending.push(at, bytes);
        }
      });
    }
    const colour = (group) =>
      group === categories ? theme.heldEdge : theme.category(group, categories, colouring.ramp);
    const fill = (list) => {
      // Neighbours are told apart by a thin gap where there is room for one.
      for (let i = 0; i < list.length; i += 2) {
        this.span(list[i], list[i + 1], top, bottom,
          (x, y, w) => pen.fillRect(x, y, w > 4 ? w - .75 : w, this.height));
      }
    };
    if (anyFine) this.drawFine(pen, fine, top, bottom, width, categories + 1, colour);
    for (let group = categories; group >= 0; group--) {
      pen.fillStyle = colour(group);
      fill(groups[group]);
    }
    if (pending.length) {
      pen.fillStyle = hatch(pen, theme.card, 6);
      fill(pending);
    }
  }

  drawFine(pen, fine, top, bottom, width, groups, colour) {
    const layer = width * (bottom - top + 1);
    const STEPS = 16; // strengths that are told apart, so that equal neighbours become one rectangle
    const runs = Array.from({ length: groups * STEPS }, () => []);
    for (let row = top; row <= bottom; row++) {
      let key = -1, start = 0;
      for (let c = 0; c <= width; c++) {
        let best = -1, most = 0, sum = 0;
        for (let g = 0; c < width && g < groups; g++) {
          const share = fine[g * layer + (row - top) * width + c];
          sum += share;
          if (share > most) { most = share; best = g; }
        }
        const now = best < 0 ? -1 : best * STEPS + Math.min(STEPS, Math.max(1, Math.round(sum * STEPS))) - 1;
        if (now === key) continue;
        if (key >= 0) runs[key].push(row, start, c - start);
        key = now;
        start = c;
      }
    }
    runs.forEach((list, key) => {
      if (!list.length) return;
      pen.fillStyle = colour(Math.floor(key / STEPS));
      pen.globalAlpha = (key % STEPS + 1) / STEPS;
      for (let i = 0; i < list.length; i += 3) {
        pen.fillRect(MARGIN + list[i + 1], MARGIN + list[i] * this.pitch - this.scroll.scrollTop, list[i + 2], this.height);
      }
    });
    pen.globalAlpha = 1;
  }

  outline(pen, block, top, bottom, colour, thick) {
    if (this.page.moment.blocks.where[block] < 0) return;
    pen.strokeStyle = colour;
    pen.lineWidth = thick;
    this.pieces(block, (place, size) => this.span(place, size, top, bottom,
      (x, y, w) => pen.strokeRect(x + thick / 2, y + thick / 2, Math.max(1, w - thick), this.height - thick)));
  }

  // What lies at a place of the tape: an extent and perhaps a block. The pieces of a moment are sorted
  // once, when somebody points at them.
  find(place) {
    const { moment } = this.page;
    if (this.drawn?.op !== moment.op) {
      const found = [];
      const { all, count } = moment.blocks;
      for (let i = 0; i < count; i++) this.pieces(all[i], (at, size) => found.push([at, size, all[i]]));
      found.sort((a, b) => a[0] - b[0]);
      this.drawn = { op: moment.op, found, starts: Float64Array.from(found, ([at]) => at) };
    }
    const held = after(this.places, place) - 1;
    const extent = held >= 0 ? this.byPlace[held] : -1;
    if (extent < 0 || place >= this.story.extent.place[extent] + this.story.extent.size[extent]) return null;
    const { found, starts } = this.drawn;
    const index = after(starts, place) - 1;
    const block = index >= 0 && place < found[index][0] + found[index][1] ? found[index][2] : null;
    return { extent, block };
  }

  placeAt(event) {
    const { x, y } = this.picture.at(event);
    const { pitch } = this;
    const down = y - MARGIN + this.scroll.scrollTop;
    if (x < MARGIN || x >= MARGIN + this.width || down < 0 || down % pitch >= this.height) return null;
    return (Math.floor(down / pitch) + (x - MARGIN) / this.width) * this.perRow;
  }

  listen() {
    const { canvas } = this.picture;
    canvas.addEventListener("pointermove", (event) => {
      const place = this.placeAt(event);
      const found = place === null ? null : this.find(place);
      const block = found?.block ?? null;
      if (block !== this.hover) {
        this.hover = block;
        this.picture.request();
      }
      if (!found) tip(null);
      else if (block !== null) tip(event, ...this.page.describeBlock(block));
      else tip(event, ...this.page.describeFree(found.extent, this.freeAround(place, found.extent)));
    });
    canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      tip(null);
      this.picture.request();
    });
    canvas.addEventListener("click", (event) => {
      const place = this.placeAt(event);
      this.page.pin(place === null ? null : this.find(place)?.block ?? null);
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomTo(this.zoom * Math.exp(-event.deltaY * .005), this.picture.at(event).y);
    }, { passive: false });
  }

  // The free bytes around a place where no block is.
  freeAround(place, extent) {
    const { found, starts } = this.drawn;
    const { place: places, size: sizes } = this.story.extent;
    const index = after(starts, place) - 1;
    let from = places[extent], to = from + sizes[extent];
    if (index >= 0) from = Math.max(from, found[index][0] + found[index][1]);
    if (index + 1 < found.length) to = Math.min(to, found[index + 1][0]);
    return to - from;
  }
}
