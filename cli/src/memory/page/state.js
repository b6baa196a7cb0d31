// What is alive at a moment, and to which category a block belongs. A moment is reached from the
// nearest known one: the present one, or one of those kept along the way. Nothing here draws.

// A set of small numbers with all of them in one array, in no order.
class Members {
  constructor(most) {
    this.all = new Uint32Array(64);
    this.count = 0;
    this.where = new Int32Array(most).fill(-1);
  }
  add(number) {
    if (this.where[number] >= 0) return;
    if (this.count === this.all.length) {
      const larger = new Uint32Array(this.count * 2);
      larger.set(this.all);
      this.all = larger;
    }
    this.where[number] = this.count;
    this.all[this.count++] = number;
  }
  remove(number) {
    const place = this.where[number];
    if (place < 0) return;
    const last = this.all[--this.count];
    this.all[place] = last;
    this.where[last] = place;
    this.where[number] = -1;
  }
  copy() { return this.all.slice(0, this.count); }
  replace(numbers) {
    for (let i = 0; i < this.count; i++) this.where[this.all[i]] = -1;
    this.count = 0;
    for (const number of numbers) this.add(number);
  }
}

class Moment {
  // Moments that are kept: one in `every` events, as long as they take at most this many numbers.
  static BUDGET = 6e6;

  constructor(story) {
    this.story = story;
    this.op = 0;
    this.event = 0;
    this.blocks = new Members(story.block.size.length);
    this.extents = new Members(story.extent.size.length);
    this.mapping = 0; // grows whenever the extents change
    this.kept = [];
    let every = 1 << 16, numbers = 0;
    for (let next = every; next <= story.event.op.length && numbers < Moment.BUDGET; next += every) {
      this.walk(next);
      const kept = { event: next, blocks: this.blocks.copy(), extents: this.extents.copy() };
      numbers += kept.blocks.length + kept.extents.length;
      this.kept.push(kept);
    }
    this.seek(0);
  }

  seek(op) {
    const { story } = this;
    this.op = Math.max(0, Math.min(story.operations, Math.round(op)));
    const target = after(story.event.op, this.op);
    const near = this.kept.reduce(
      (best, kept) => Math.abs(kept.event - target) < Math.abs(best - target) ? kept.event : best, this.event);
    if (near !== this.event) {
      const kept = this.kept.find((kept) => kept.event === near);
      this.blocks.replace(kept.blocks);
      this.extents.replace(kept.extents);
      this.event = near;
      this.mapping++;
    }
    this.walk(target);
  }

  // Every event can be undone, so a moment is as near from later as from earlier.
  walk(target) {
    const { kind, ref } = this.story.event;
    const { blocks, extents } = this;
    for (; this.event < target; this.event++) this.apply(kind[this.event], ref[this.event], blocks, extents);
    while (this.event > target) {
      this.event--;
      const number = ref[this.event];
      switch (kind[this.event]) {
        case ALLOC: blocks.remove(number); break;
        case DONE: case COMPLETED: blocks.add(number); break;
        case MAP: extents.remove(number); this.mapping++; break;
        case UNMAP: extents.add(number); this.mapping++; break;
      }
    }
  }

  apply(kind, number, blocks, extents) {
    switch (kind) {
      case ALLOC: blocks.add(number); break;
      case DONE: case COMPLETED: blocks.remove(number); break;
      case MAP: extents.add(number); this.mapping++; break;
      case UNMAP: extents.remove(number); this.mapping++; break;
    }
  }

  pending(block) { return this.story.block.freed[block] <= this.op; }

  // Number of the step that the moment is in, from 1; 0 is before the first.
  step() { return after(this.story.mark.op, this.op); }
}

const SIZES = [4096, 65536, 1048576, 16777216, 134217728, 1073741824, Infinity];
const SIZE_NAMES = ["to 4 KiB", "to 64 KiB", "to 1 MiB", "to 16 MiB", "to 128 MiB", "to 1 GiB", "above 1 GiB"];
const MOST_NAMED = 9; // categories with a colour of their own

function sizeClass(bytes) {
  let number = 0;
  while (bytes > SIZES[number]) number++;
  return number;
}

// Ways to sort blocks into a few categories. Each gives names, and a category for every block; `at`
// makes the one that depends on the moment.
const COLOURINGS = {
  size: (story) => {
    const of = new Uint8Array(story.block.size.length);
    for (let b = 0; b < of.length; b++) of[b] = sizeClass(story.block.requested[b]);
    return { title: "size", names: SIZE_NAMES, of, ramp: true };
  },
  label: (story) => byName(story, "label", story.block.label, (n) => story.labels[n] || "no label"),
  stream: (story) => byName(story, "stream", story.block.stream, (n) => `stream ${story.streams[n]}`),
  pool: (story) => byName(story, "pool", story.block.pool, (n) => story.pools[n] ? `pool ${story.pools[n]}` : "shared"),
  lifetime: (story) => {
    const { born, freed, step } = story.block;
    const of = new Uint8Array(born.length);
    const { op: marks } = story.mark;
    for (let b = 0; b < of.length; b++) {
      const life = freed[b] - born[b];
      const next = marks[step[b]] ?? Infinity; // the step after that of its birth
      of[b] = freed[b] === NEVER ? 4 : life <= 10 ? 0 : life <= 1000 ? 1 : freed[b] <= next ? 2 : 3;
    }
    const long = marks.length ? ["within its step", "across steps"] : ["longer", "longer"];
    return {
      title: "lifetime", of, ramp: true,
      names: ["to 10 operations", "to 1,000 operations", ...long, "to the end"],
    };
  },
  age: (story) => {
    const steps = story.mark.op.length > 0;
    const names = steps
      ? ["this step", "1 step", "2 to 3 steps", "4 to 7 steps", "8 steps and more", "before the first"]
      : ["1 % of the run", "5 %", "20 %", "50 %", "more than half", "before the first"];
    const { step, born } = story.block;
    const { length } = step;
    const of = new Uint8Array(length);
    return {
      title: "age", names, of, ramp: true, moves: true,
      at: (moment) => {
        const now = moment.step();
        const { all, count } = moment.blocks;
        for (let i = 0; i < count; i++) {
          const b = all[i];
          if (steps) {
            const age = now - step[b];
            of[b] = step[b] === 0 && now > 0 ? 5 : age < 2 ? age : age < 4 ? 2 : age < 8 ? 3 : 4;
          } else {
            const age = (moment.op - born[b]) / story.operations;
            of[b] = born[b] === 0 ? 5 : age <= .01 ? 0 : age <= .05 ? 1 : age <= .2 ? 2 : age <= .5 ? 3 : 4;
          }
        }
      },
    };
  },
};

// One category for each of the names that hold the most where the most is held, one for all others.
function byName(story, title, numbers, name) {
  const held = new Map();
  const { born, freed, requested } = story.block;
  const peak = story.peak.requested.op;
  for (let b = 0; b < numbers.length; b++) {
    const there = born[b] <= peak && peak < freed[b] ? requested[b] : requested[b] * 1e-9;
    held.set(numbers[b], (held.get(numbers[b]) ?? 0) + there);
  }
  const order = [...held.keys()].sort((a, b) => held.get(b) - held.get(a));
  const category = new Map(order.map((number, place) => [number, Math.min(place, MOST_NAMED)]));
  const of = new Uint8Array(numbers.length);
  for (let b = 0; b < of.length; b++) of[b] = category.get(numbers[b]);
  const names = order.slice(0, MOST_NAMED).map(name);
  if (order.length > MOST_NAMED) names.push(`${order.length - MOST_NAMED} others`);
  return { title, names, of, single: order.length < 2 };
}
