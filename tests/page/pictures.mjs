// Files that the tests show to models: PNG, BMP and WAV, made here.
import { crc32, deflateSync } from "node:zlib";

const be32 = (n) => Buffer.from([n >>> 24, n >>> 16, n >>> 8, n].map((b) => b & 255));
const crc = crc32 ?? ((data) => {  // Node below 22.2 has none
  let c = ~0;
  for (const byte of data) {
    c ^= byte;
    for (let k = 0; k < 8; k++) c = (c >>> 1) ^ (c & 1 ? 0xedb88320 : 0);
  }
  return ~c >>> 0;
});
const chunk = (type, data) => {
  const body = Buffer.concat([Buffer.from(type), data]);
  return Buffer.concat([be32(data.length), body, be32(crc(body))]);
};

// colour(x, y): [red, green, blue]
export function png(width, height, colour) {
  const rows = [];
  for (let y = 0; y < height; y++) {
    rows.push(0);
    for (let x = 0; x < width; x++) rows.push(...colour(x, y));
  }
  const head = Buffer.concat([be32(width), be32(height), Buffer.from([8, 2, 0, 0, 0])]);
  return Buffer.concat([Buffer.from("89504e470d0a1a0a", "hex"), chunk("IHDR", head), chunk("IDAT", deflateSync(Buffer.from(rows))), chunk("IEND", Buffer.alloc(0))]);
}

export function bmp(width, height, colour) {
  const pitch = Math.ceil(width * 3 / 4) * 4, out = Buffer.alloc(54 + pitch * height);
  out.write("BM");
  out.writeUInt32LE(out.length, 2), out.writeUInt32LE(54, 10), out.writeUInt32LE(40, 14);
  out.writeInt32LE(width, 18), out.writeInt32LE(-height, 22), out.writeUInt16LE(1, 26), out.writeUInt16LE(24, 28);
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) out.set(colour(x, y).toReversed(), 54 + y * pitch + x * 3);
  return out;
}

export function wav(seconds, rate) {
  const n = Math.round(seconds * rate), out = Buffer.alloc(44 + n * 2);
  out.write("RIFF"), out.writeUInt32LE(36 + n * 2, 4), out.write("WAVEfmt ", 8), out.writeUInt32LE(16, 16);
  out.writeUInt16LE(1, 20), out.writeUInt16LE(1, 22), out.writeUInt32LE(rate, 24), out.writeUInt32LE(rate * 2, 28);
  out.writeUInt16LE(2, 32), out.writeUInt16LE(16, 34), out.write("data", 36), out.writeUInt32LE(n * 2, 40);
  for (let i = 0; i < n; i++) out.writeInt16LE(Math.round(9000 * Math.sin(i * 2 * Math.PI * 440 / rate)), 44 + i * 2);
  return out;
}

export const circle = (x, y) => (Math.hypot(x - 48, y - 36) < 26 ? [200, 40, 40] : [250, 240, (x + y) % 256]);
