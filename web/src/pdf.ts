// The text of a PDF, page by page: objects, Flate streams, fonts' tables of characters, and where text stands. Pictures,
// encrypted files and fonts that do not tell their characters give nothing.
type Dict = { [key: string]: Value };
interface Ref { ref: number }
interface Name { name: string }
interface Word { word: string }
interface Bytes { bytes: string }  // a string of the file, a character a byte
type Value = number | Ref | Name | Word | Bytes | Value[] | Dict | null;
interface Stream { dict: Dict; data: string }

const isDict = (v: unknown): v is Dict => !!v && typeof v === "object" && !Array.isArray(v) && !["ref", "name", "word", "bytes"].some((k) => k in v);
const nameOf = (v: Value | undefined): string => (v && typeof v === "object" && "name" in v ? (v as Name).name : "");
const latin1 = new TextDecoder("latin1");
const raw = (b: Uint8Array): string => { let s = ""; for (let i = 0; i < b.length; i += 8192) s += String.fromCharCode(...b.subarray(i, i + 8192)); return s; };
const bytesOf = (s: string): Uint8Array<ArrayBuffer> => Uint8Array.from(s, (c) => c.charCodeAt(0));

// Reads one value after another.
class Reader {
  constructor(public text: string, public at = 0) {}
  private space(): void {
    const gap = /(?:[\s\0]+|%[^\r\n]*)*/y;
    gap.lastIndex = this.at;
    gap.exec(this.text);
    this.at = gap.lastIndex || this.at;
  }
  private match(r: RegExp): RegExpExecArray | null {
    r.lastIndex = this.at;
    const m = r.exec(this.text);
    if (m) this.at = r.lastIndex;
    return m;
  }
  next(): Value | undefined {
    this.space();
    if (this.at >= this.text.length) return undefined;
    let m = this.match(/(\d+)\s+(\d+)\s+R(?![A-Za-z])/y);
    if (m) return { ref: Number(m[1]) };
    if ((m = this.match(/[+-]*\d*\.?\d+\.?/y))) return Number.parseFloat(m[0].replace(/^[+-]*-/, "-")) || 0;
    if ((m = this.match(/\/([^\s\0()<>[\]{}/%]*)/y)))
      return { name: m[1].replace(/#([\da-f]{2})/gi, (_, h) => String.fromCharCode(Number.parseInt(h, 16))) };
    if (this.match(/<</y)) return this.dict();
    if (this.match(/\[/y)) return this.list();
    if ((m = this.match(/<([^>]*)>/y))) return { bytes: fromHex(m[1]) };
    if (this.text[this.at] === "(") return { bytes: this.literal() };
    if ((m = this.match(/[^\s\0()<>[\]{}/%]+/y))) return m[0] === "null" ? null : { word: m[0] };
    return { word: this.text[this.at++] };
  }
  private list(): Value[] {
    const out: Value[] = [];
    for (let v; (v = this.next()) !== undefined && !(v && (v as Word).word === "]");) out.push(v);
    return out;
  }
  private dict(): Dict {
    const out: Dict = {};
    for (;;) {
      this.space();
      if (this.match(/>>/y)) return out;
      const key = this.next(), value = key === undefined ? undefined : this.next();
      if (value === undefined) return out;
      out[nameOf(key)] = value;
    }
  }
  private literal(): string {
    let out = "", depth = 0;
    for (this.at++; this.at < this.text.length; this.at++) {
      const c = this.text[this.at];
      if (c === "(") depth++;
      if (c === ")" && depth-- === 0) break;
      if (c !== "\\") {
        out += c;
        continue;
      }
      const m = /\\(?:([0-7]{1,3})|\r?\n|([^]))/y;
      m.lastIndex = this.at;
      const [, octal, other] = m.exec(this.text) ?? [];
      this.at = Math.max(this.at, m.lastIndex - 1);
      if (octal) out += String.fromCharCode(Number.parseInt(octal, 8) & 255);
      else if (other) out += ({ n: "\n", r: "\r", t: "\t", b: "\b", f: "\f" } as Record<string, string>)[other] ?? other;
    }
    this.at++;
    return out;
  }
}

function fromHex(text: string): string {
  const hex = text.replace(/[^\da-f]/gi, "");
  return hex.replace(/..?/g, (h) => String.fromCharCode(Number.parseInt(h.padEnd(2, "0"), 16)));
}

async function inflate(data: string): Promise<string> {
  const out: Uint8Array[] = [];
  // What was unpacked before damage, or before bytes behind the end, is kept.
  try {
    const reader = new Blob([bytesOf(data)]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
    for (let part; !(part = await reader.read()).done;) out.push(part.value);
  } catch { /* its end */ }
  return out.map(raw).join("");
}

class Document {
  private objects = new Map<number, { at: number } | { value: Value }>();
  private streams = new Map<number, Stream>();
  private constructor(private text: string) {}

  static async read(buffer: ArrayBuffer): Promise<Document> {
    const d = new Document(raw(new Uint8Array(buffer)));
    if (!/%PDF-/.test(d.text.slice(0, 1024))) throw new Error("no PDF");
    // The tables of places are not asked: files are often damaged there, and all objects can be seen.
    for (const m of d.text.matchAll(/(?:^|[\s\0])(\d+)\s+\d+\s+obj\b/g)) d.objects.set(Number(m[1]), { at: m.index + m[0].length });
    if (/\/Encrypt\b/.test(d.text.slice(-4096)) || /\/Encrypt\s+\d+\s+\d+\s+R/.test(d.text)) throw new Error("encrypted");
    for (const id of [...d.objects.keys()]) if (nameOf(d.dict({ ref: id }).Type) === "ObjStm") await d.unpack(id);
    return d;
  }
  get ids(): number[] { return [...this.objects.keys()]; }
  private async unpack(id: number): Promise<void> {
    const s = await this.stream({ ref: id });
    if (!s) return;
    const head = new Reader(s.data), first = Number(this.get(s.dict.First));
    for (let i = Number(this.get(s.dict.N)); i > 0; i--) {
      const key = head.next() as number, at = head.next() as number;
      const known = this.objects.get(key);
      if (!known || "value" in known) this.objects.set(key, { value: new Reader(s.data, first + at).next() ?? null });
    }
  }
  get(v: Value | undefined): Value {
    for (let n = 0; v && typeof v === "object" && "ref" in v && n < 20; n++) {
      const o = this.objects.get((v as Ref).ref);
      v = !o ? null : "value" in o ? o.value : new Reader(this.text, o.at).next();
    }
    return v ?? null;
  }
  dict(v: Value | undefined): Dict {
    const got = this.get(v);
    return isDict(got) ? got : {};
  }
  async stream(v: Value | undefined): Promise<Stream | null> {
    const id = v && typeof v === "object" && "ref" in v ? (v as Ref).ref : -1;
    const o = this.objects.get(id);
    if (!o || !("at" in o)) return null;
    const known = this.streams.get(id);
    if (known) return known;
    const reader = new Reader(this.text, o.at), dict = reader.next();
    const start = /\s*stream\r?\n?/y;
    start.lastIndex = reader.at;
    if (!isDict(dict) || !start.test(this.text)) return null;
    const length = this.get(dict.Length), from = start.lastIndex;
    const whole = typeof length === "number" && /^\s*endstream/.test(this.text.slice(from + length, from + length + 20));
    const end = whole ? from + (length as number) : this.text.indexOf("endstream", from);
    let data = this.text.slice(from, end < 0 ? undefined : end);
    const filters = [this.get(dict.Filter) ?? []].flat().map((f) => nameOf(this.get(f)));
    for (const f of filters) {
      if (f === "FlateDecode" || f === "Fl") data = await inflate(data);
      else if (f === "ASCIIHexDecode" || f === "AHx") data = fromHex(data.split(">")[0]);
      else if (f === "ASCII85Decode" || f === "A85") data = ascii85(data);
      else data = "";
    }
    const made = { dict, data };
    this.streams.set(id, made);
    return made;
  }
}

function ascii85(text: string): string {
  let out = "";
  for (const group of text.split("~>")[0].replace(/\s/g, "").replaceAll("z", "!!!!!").match(/.{1,5}/g) ?? []) {
    let n = 0;
    for (const c of group.padEnd(5, "u")) n = n * 85 + c.charCodeAt(0) - 33;
    out += String.fromCharCode(n >>> 24 & 255, n >>> 16 & 255, n >>> 8 & 255, n & 255).slice(0, group.length - 1);
  }
  return out;
}

// Names of glyphs beyond single letters.
const glyphs: Record<string, string> = Object.fromEntries(("space  |exclam !|quotedbl \"|numbersign #|dollar $|percent %|ampersand &|" +
  "quotesingle '|quoteright ’|quoteleft ‘|parenleft (|parenright )|asterisk *|plus +|comma ,|hyphen -|minus −|period .|slash /|zero 0|one 1|two 2|" +
  "three 3|four 4|five 5|six 6|seven 7|eight 8|nine 9|colon :|semicolon ;|less <|equal =|greater >|question ?|at @|bracketleft [|" +
  "backslash \\|bracketright ]|asciicircum ^|underscore _|grave `|braceleft {|bar ¦|braceright }|asciitilde ~|endash –|emdash —|bullet •|" +
  "quotedblleft “|quotedblright ”|ellipsis …|fi fi|fl fl|ff ff|ffi ffi|ffl ffl|germandbls ß|adieresis ä|odieresis ö|udieresis ü|Adieresis Ä|" +
  "Odieresis Ö|Udieresis Ü|eacute é|egrave è|agrave à|aacute á|ccedilla ç|ntilde ñ|oacute ó|iacute í|uacute ú|ecircumflex ê|acircumflex â|" +
  "ocircumflex ô|aring å|oslash ø|ae æ|degree °|section §|copyright ©|multiply ×|mu µ|dotlessi ı|Euro €")
  .split("|").map((pair) => { const at = pair.indexOf(" "); return [pair.slice(0, at), pair.slice(at + 1)]; }));
function glyph(name: string): string {
  const hex = /^u(?:ni)?([\dA-F]{4,6})/.exec(name);
  if (hex) return String.fromCodePoint(Number.parseInt(hex[1].slice(0, name.startsWith("uni") ? 4 : 6), 16));
  return glyphs[name.split(".")[0]] ?? (name.length === 1 ? name : "");
}

class Font {
  private map = new Map<number, string>();
  private widths = new Map<number, number>();
  private wide: boolean;
  private usual = 500;
  private named = false;

  constructor(private doc: Document, dict: Dict) {
    this.wide = nameOf(doc.get(dict.Subtype)) === "Type0";
    const below = this.wide ? doc.dict((doc.get(dict.DescendantFonts) as Value[] | null)?.[0]) : dict;
    if (this.wide) this.readW(doc.get(below.W), doc.get(below.DW));
    else [doc.get(dict.Widths) ?? []].flat().forEach((w, i) => this.widths.set(Number(doc.get(dict.FirstChar) ?? 0) + i, Number(doc.get(w))));
    let code = 0;
    for (const d of [doc.get(doc.dict(dict.Encoding).Differences) ?? []].flat()) {
      if (typeof d === "number") code = d;
      else this.map.set(code++, glyph(nameOf(d)));
    }
  }
  static async of(doc: Document, dict: Dict): Promise<Font> {
    const font = new Font(doc, dict), table = await doc.stream(dict.ToUnicode);
    if (table) font.readTable(table.data);
    return font;
  }
  private readW(w: Value, usual: Value): void {
    this.usual = typeof usual === "number" ? usual : 1000;
    const list = Array.isArray(w) ? w.map((v) => this.doc.get(v)) : [];
    for (let i = 0; i < list.length;) {
      const from = list[i] as number, next = list[i + 1];
      if (Array.isArray(next)) {
        next.forEach((v, k) => this.widths.set(from + k, Number(v)));
        i += 2;
      } else {
        for (let c = from; c <= (next as number) && c < from + 65536; c++) this.widths.set(c, Number(list[i + 2]));
        i += 3;
      }
    }
  }
  // bfchar and bfrange of a CMap.
  private readTable(text: string): void {
    const code = (v: Value | undefined) => { let n = 0; for (const c of (v as Bytes).bytes) n = n * 256 + c.charCodeAt(0); return n; };
    const said = (v: Value | undefined) => new TextDecoder("utf-16be").decode(bytesOf((v as Bytes).bytes));
    const reader = new Reader(text);
    const held: Value[] = [];
    this.named = true;
    for (let v; (v = reader.next()) !== undefined;) {
      const word = v && typeof v === "object" && "word" in v ? (v as Word).word : "";
      if (!word) held.push(v);
      else if (word.startsWith("begin")) held.length = 0;
      else if (word === "endbfchar") for (let i = 0; i + 1 < held.length; i += 2) this.map.set(code(held[i]), said(held[i + 1]));
      else if (word === "endbfrange")
        for (let i = 0; i + 2 < held.length; i += 3) {
          const first = code(held[i]), last = Math.min(code(held[i + 1]), first + 65535), to = held[i + 2];
          for (let c = first; c <= last; c++) {
            if (Array.isArray(to)) this.map.set(c, said(to[c - first]));
            else {
              const s = [...said(to)], end = s.pop() ?? "";
              this.map.set(c, s.join("") + String.fromCodePoint((end.codePointAt(0) ?? 0) + c - first));
            }
          }
        }
    }
  }
  // Characters with their widths in thousandths.
  read(bytes: string): { text: string; width: number; space: boolean }[] {
    const out = [], step = this.wide ? 2 : 1;
    for (let i = 0; i + step <= bytes.length; i += step) {
      const c = this.wide ? bytes.charCodeAt(i) * 256 + bytes.charCodeAt(i + 1) : bytes.charCodeAt(i);
      const plain = this.wide || (this.named && this.map.size > 0 && c < 32) ? "" : latin1.decode(Uint8Array.of(c)).replace(/[\0-\x1f]/, "");
      out.push({ text: this.map.get(c) ?? plain, width: this.widths.get(c) ?? this.usual, space: !this.wide && c === 32 });
    }
    return out;
  }
}

type Matrix = [number, number, number, number, number, number];
const times = (a: Matrix, b: Matrix): Matrix => [a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2],
  a[2] * b[1] + a[3] * b[3], a[4] * b[0] + a[5] * b[2] + b[4], a[4] * b[1] + a[5] * b[3] + b[5]];

// Puts together what is written where: a gap is a space, another height another line.
class Paper {
  text = "";
  private x = NaN;
  private y = NaN;
  put(text: string, x: number, y: number, end: number, size: number): void {
    const gap = x - this.x, line = Math.abs(y - this.y) > size * 0.4;
    if (this.text && line) this.text += Math.abs(y - this.y) > size * 1.9 ? "\n\n" : "\n";
    else if (this.text && (gap > size * 0.17 || gap < -size) && !/\s$/.test(this.text) && !text.startsWith(" ")) this.text += " ";
    this.text += text;
    this.x = end;
    this.y = y;
  }
}

async function draw(doc: Document, data: string, resources: Dict, paper: Paper, base: Matrix, depth: number): Promise<void> {
  const fonts = new Map<string, Font>();
  const one: Matrix = [1, 0, 0, 1, 0, 0];
  let ctm = base, tm = one, lm = one, font: Font | null = null, size = 1, lead = 0, chars = 0, words = 0, across = 1;
  const kept: Matrix[] = [];
  const write = (bytes: string) => {
    for (const c of font?.read(bytes) ?? []) {
      const at = times(tm, ctm), step = (c.width / 1000 * size + chars + (c.space ? words : 0)) * across;
      const glyphEnd = times([1, 0, 0, 1, c.width / 1000 * size * across, 0], at);
      if (c.text) paper.put(c.text, at[4], at[5], glyphEnd[4], Math.hypot(at[2], at[3]) * size || 1);
      tm = times([1, 0, 0, 1, step, 0], tm);
    }
  };
  const line = (x: number, y: number) => { tm = lm = times([1, 0, 0, 1, x, y], lm); };
  const reader = new Reader(data);
  let args: Value[] = [];
  for (let v; (v = reader.next()) !== undefined;) {
    if (!(v && typeof v === "object" && "word" in v)) {
      args.push(v);
      continue;
    }
    const n = args.filter((a) => typeof a === "number"), last = args.at(-1);
    switch ((v as Word).word) {
      case "q": kept.push(ctm); break;
      case "Q": ctm = kept.pop() ?? ctm; break;
      case "cm": if (n.length === 6) ctm = times(n as Matrix, ctm); break;
      case "BT": tm = lm = one; break;
      case "Tf": {
        const name = nameOf(args[0]);
        if (!fonts.has(name)) fonts.set(name, await Font.of(doc, doc.dict(doc.dict(resources.Font)[name])));
        font = fonts.get(name)!;
        size = n[0] ?? 1;
        break;
      }
      case "TL": lead = n[0] ?? 0; break;
      case "Tc": chars = n[0] ?? 0; break;
      case "Tw": words = n[0] ?? 0; break;
      case "Tz": across = (n[0] ?? 100) / 100; break;
      case "Td": line(n[0] ?? 0, n[1] ?? 0); break;
      case "TD": lead = -(n[1] ?? 0); line(n[0] ?? 0, n[1] ?? 0); break;
      case "T*": line(0, -lead); break;
      case "Tm": if (n.length === 6) tm = lm = n as Matrix; break;
      case "'": case "\"": case "Tj":
        if ((v as Word).word !== "Tj") line(0, -lead);
        if (last && typeof last === "object" && "bytes" in last) write((last as Bytes).bytes); break;
      case "TJ":
        for (const part of Array.isArray(last) ? last : []) {
          if (typeof part === "number") tm = times([1, 0, 0, 1, -part / 1000 * size * across, 0], tm);
          else if (part && typeof part === "object" && "bytes" in part) write((part as Bytes).bytes);
        }
        break;
      case "BI": {
        const end = /\sEI\s/g;
        end.lastIndex = reader.at;
        if (end.test(data)) reader.at = end.lastIndex;
        break;
      }
      case "Do": {
        const form = depth < 8 ? await doc.stream(doc.dict(resources.XObject)[nameOf(args[0])]) : null;
        if (!form || nameOf(form.dict.Subtype) !== "Form") break;
        const own = doc.get(form.dict.Matrix), inner = Array.isArray(own) && own.length === 6 ? times(own as Matrix, ctm) : ctm;
        await draw(doc, form.data, form.dict.Resources ? doc.dict(form.dict.Resources) : resources, paper, inner, depth + 1);
      }
    }
    args = [];
  }
}

async function pages(doc: Document, node: Dict, resources: Value | undefined, out: string[], depth = 0): Promise<void> {
  const own = node.Resources ?? resources, kids = doc.get(node.Kids);
  if (Array.isArray(kids) && depth < 50) {
    for (const kid of kids) await pages(doc, doc.dict(kid), own, out, depth + 1);
    return;
  }
  const contents = doc.get(node.Contents), parts: string[] = [];
  for (const c of Array.isArray(contents) ? contents : [node.Contents]) parts.push((await doc.stream(c))?.data ?? "");
  const paper = new Paper();
  await draw(doc, parts.join("\n"), doc.dict(own), paper, [1, 0, 0, 1, 0, 0], 0);
  out.push(paper.text.trim());
}

export async function textOfPdf(buffer: ArrayBuffer): Promise<string> {
  const doc = await Document.read(buffer);
  const out: string[] = [];
  const catalog = doc.ids.map((id) => doc.dict({ ref: id })).findLast((d) => nameOf(doc.get(d.Type)) === "Catalog");
  await pages(doc, doc.dict(catalog?.Pages), undefined, out);
  return out.join("\n\n").replace(/[\ufb00-\ufb06]/g, (ligature) => ligature.normalize("NFKC"));
}
