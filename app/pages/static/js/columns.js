// Columns as app/render/plan/columns.py packs them: typed arrays over the bytes that came, texts parsed when asked for.

const TYPES = { f64: Float64Array, i32: Int32Array, u32: Uint32Array, u16: Uint16Array, u8: Uint8Array };

/** What came in one answer: `meta`, and columns by name. */
export class Columns {
  /** @param {ArrayBuffer} bytes of a whole answer */
  constructor(bytes) {
    const length = new DataView(bytes).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
    this.meta = header.meta;
    this.bytes = bytes;
    this.columns = header.columns;
    this.from = 4 + length;
    this.read = new Map();
  }

  has(name) {
    return name in this.columns || this.more?.has(name) === true;
  }

  /** Takes columns of another answer for its own. */
  join(more) {
    this.more = more;
    return this;
  }

  /** A column: a typed array, or a list of texts. Throws for one that is not there. */
  column(name) {
    if (!(name in this.columns) && this.more) return this.more.column(name);
    if (!this.read.has(name)) {
      const { type, at, length } = this.columns[name];
      const column = type === "json"
        ? JSON.parse(new TextDecoder().decode(new Uint8Array(this.bytes, this.from + at, length)))
        : new TYPES[type](this.bytes, this.from + at, length);
      this.read.set(name, column);
    }
    return this.read.get(name);
  }
}

/** Fetches columns. `ask` is that of net.js; a preload of the page is used where there is one. */
export async function columnsAt(ask, path) {
  return new Columns(await (await ask(path)).arrayBuffer());
}
