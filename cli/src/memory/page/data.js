// Unpacks the story: columns of numbers become typed arrays, and what follows from them is worked out
// once. The other half of cli/src/memory/page.rs. Nothing here draws.

const NEVER = 0xffffffff;

// Kinds of events. COMPLETED is DONE of a block that its owner had given back before.
const ALLOC = 0, FREED = 1, DONE = 2, MAP = 3, UNMAP = 4, MARK = 5, FAILURE = 6, COMPLETED = 7;

async function inflate(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser cannot decompress the page's data: use one of 2023 or later.");
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Reads `count` numbers; with `differences` each is told by its distance from the one before.
function unpackColumn(bytes, start, count, into, differences) {
  let at = start, last = 0;
  for (let i = 0; i < count; i++) {
    let byte = bytes[at++];
    let value = byte & 0x7f;
    let unit = 128;
    while (byte & 0x80) {
      byte = bytes[at++];
      value += (byte & 0x7f) * unit;
      unit *= 128;
    }
    if (differences) {
      last += value % 2 ? -(value + 1) / 2 : value / 2;
      value = last;
    }
    into[i] = value;
  }
  return into;
}

async function loadStory(about, base64) {
  const bytes = await inflate(base64);
  const places = new Map();
  let start = 0;
  for (const column of about.columns) {
    places.set(column.name, { start, count: column.count });
    start += column.bytes;
  }
  const column = (name, Kind, differences = false) => {
    const { start, count } = places.get(name);
    return unpackColumn(bytes, start, count, new Kind(count), differences);
  };
  const story = {
    title: about.title,
    about: about.about,
    labels: about.labels,
    streams: about.streams,
    pools: about.pools,
    base: BigInt(about.base),
    tape: about.tape,
    operations: about.operations,
    times: column("time", Float64Array, true),
    event: { op: column("event.op", Uint32Array, true) },
    block: {
      address: column("block.address", Float64Array, true),
      requested: column("block.requested", Float64Array),
      size: column("block.rounding", Float64Array),
      label: column("block.label", Uint32Array),
      stream: column("block.stream", Uint32Array),
      pool: column("block.pool", Uint32Array),
    },
    extent: {
      address: column("extent.address", Float64Array, true),
      size: column("extent.size", Float64Array),
      place: column("extent.place", Float64Array, true),
      stream: column("extent.stream", Uint32Array),
      pool: column("extent.pool", Uint32Array),
      view: column("extent.view", Uint8Array),
    },
    failure: {
      bytes: column("failure.bytes", Float64Array),
      stream: column("failure.stream", Uint32Array),
    },
  };
  const { block } = story;
  for (let b = 0; b < block.size.length; b++) block.size[b] += block.requested[b];
  workOut(story, column("event.what", Float64Array), about.marks);
  return story;
}

// Goes through the events once: who begins and ends when, and the course of the sums.
function workOut(story, what, names) {
  const { event, block, extent, failure } = story;
  const events = what.length, blocks = block.size.length, extents = extent.size.length;
  event.kind = new Uint8Array(events);
  event.ref = new Uint32Array(events);
  block.born = new Uint32Array(blocks);
  block.freed = new Uint32Array(blocks).fill(NEVER);
  block.done = new Uint32Array(blocks).fill(NEVER);
  block.step = new Uint32Array(blocks);
  extent.born = new Uint32Array(extents);
  extent.died = new Uint32Array(extents).fill(NEVER);
  failure.op = new Uint32Array(failure.bytes.length);
  story.mark = { op: new Uint32Array(names.length), name: names };
  const ops = story.operations;
  const requestedAt = new Float64Array(ops + 1), sizeAt = new Float64Array(ops + 1),
    reservedAt = new Float64Array(ops + 1);
  const peak = { requested: { bytes: 0, op: 0 }, reserved: { bytes: 0, op: 0 } };
  let b = 0, x = 0, m = 0, f = 0, op = 0;
  let requested = 0, size = 0, reserved = 0;
  for (let e = 0; e < events; e++) {
    const now = event.op[e];
    for (; op < now; op++) {
      requestedAt[op] = requested;
      sizeAt[op] = size;
      reservedAt[op] = reserved;
    }
    let kind = what[e] % 8;
    const ago = (what[e] - kind) / 8;
    let ref = 0;
    switch (kind) {
      case ALLOC:
        ref = b++;
        block.born[ref] = now;
        block.step[ref] = m;
        requested += block.requested[ref];
        size += block.size[ref];
        break;
      case FREED:
      case DONE:
        ref = b - 1 - ago;
        if (kind === DONE) block.done[ref] = now;
        if (block.freed[ref] === NEVER) {
          block.freed[ref] = now;
          requested -= block.requested[ref];
          size -= block.size[ref];
        } else {
          kind = COMPLETED;
        }
        break;
      case MAP:
        ref = x++;
        extent.born[ref] = now;
        if (!extent.view[ref]) reserved += extent.size[ref];
        break;
      case UNMAP:
        ref = x - 1 - ago;
        extent.died[ref] = now;
        if (!extent.view[ref]) reserved -= extent.size[ref];
        break;
      case MARK:
        ref = m++;
        story.mark.op[ref] = now;
        break;
      case FAILURE:
        ref = f++;
        failure.op[ref] = now;
        break;
    }
    event.kind[e] = kind;
    event.ref[e] = ref;
    // Operation 0 is a state and no course: only its end counts.
    if (now === 0 && event.op[e + 1] === 0) continue;
    if (requested > peak.requested.bytes) peak.requested = { bytes: requested, op: now };
    if (reserved > peak.reserved.bytes) peak.reserved = { bytes: reserved, op: now };
  }
  for (; op <= ops; op++) {
    requestedAt[op] = requested;
    sizeAt[op] = size;
    reservedAt[op] = reserved;
  }
  story.course = { requested: requestedAt, size: sizeAt, reserved: reservedAt };
  story.peak = peak;
}

// The first index of a rising array whose value is greater than `limit`.
function after(array, limit, count = array.length) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (array[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
