// Columns as app/render/plan/columns.py packs them: typed arrays over the received bytes; text is parsed on first use.

import { request } from "./net.js";

const TYPES = { f64: Float64Array, i32: Int32Array, u32: Uint32Array, u16: Uint16Array, u8: Uint8Array };

/** One response: `meta`, and columns by name. */
export class Columns {
  /** @param {ArrayBuffer} bytes of a whole response */
  constructor(bytes) {
    const length = new DataView(bytes).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
    this.meta = header.meta;
    this.bytes = bytes;
    this.columns = header.columns;
    this.start = 4 + length;
    this.parsed = new Map();
  }

  has(name) {
    return name in this.columns || this.more?.has(name) === true;
  }

  /** Adds the columns of another response. */
  join(more) {
    this.more = more;
    return this;
  }

  /** A typed array, or a list of strings. Throws for an unknown column. */
  column(name) {
    if (!(name in this.columns) && this.more) return this.more.column(name);
    if (!this.parsed.has(name)) {
      const { type, at, length } = this.columns[name];
      const column = type === "json"
        ? JSON.parse(new TextDecoder().decode(new Uint8Array(this.bytes, this.start + at, length)))
        : new TYPES[type](this.bytes, this.start + at, length);
      this.parsed.set(name, column);
    }
    return this.parsed.get(name);
  }

  /** Several columns, in the order of their names. */
  list(...names) {
    return names.map((name) => this.column(name));
  }
}

/** Fetches columns; uses the preload of the page, if any. */
export async function fetchColumns(path) {
  return new Columns(await (await request(path)).arrayBuffer());
}
