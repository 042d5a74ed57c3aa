// About a megabyte of text that is hard on tokenizers, the same on every run: prose of several languages, code, emoji,
// marks, controls, numbers, runs of white space, and what looks like special tokens. No lone surrogates: JavaScript cannot
// turn those into UTF-8 (broken UTF-8 is tested in src/text/tokenizer_test.cc).
import { readFileSync } from "node:fs";

let state = 0x9e3779b9;
function random(n) {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) % n;
}
const pick = (list) => list[random(list.length)];
const repeat = (n, f) => Array.from({ length: n }, f).join("");
const point = String.fromCodePoint;

// First and last code points of blocks that are fully or mostly assigned since before Unicode 14.
const BLOCKS = [
  [0x00, 0x1f], [0x20, 0x7e], [0x7f, 0xa0], [0xa1, 0x17f], [0x180, 0x24f], [0x250, 0x2af], [0x2b0, 0x2ff], [0x300, 0x36f],
  [0x391, 0x3a1], [0x3b1, 0x3ff], [0x400, 0x4ff], [0x531, 0x556], [0x591, 0x5c7], [0x5d0, 0x5ea], [0x610, 0x61a],
  [0x620, 0x6dc], [0x904, 0x939], [0x93a, 0x94f], [0x958, 0x963], [0x995, 0x9a8], [0xb85, 0xb8a], [0xe01, 0xe3a], [0xe40, 0xe4e],
  [0xf00, 0xf47], [0xf71, 0xf87], [0x10a0, 0x10c5], [0x1100, 0x11ff], [0x1200, 0x1248], [0x13a0, 0x13f5], [0x1780, 0x17d3],
  [0x1820, 0x1878], [0x1e00, 0x1eff], [0x1f00, 0x1f15], [0x2000, 0x200f], [0x2010, 0x2064], [0x2070, 0x2071], [0x2080, 0x208e],
  [0x20a0, 0x20bf], [0x20d0, 0x20f0], [0x2100, 0x218b], [0x2190, 0x23ff], [0x2460, 0x24ff], [0x2500, 0x27ff], [0x2900, 0x2bff],
  [0x3000, 0x303f], [0x3041, 0x3096], [0x3099, 0x30ff], [0x3105, 0x312f], [0x3400, 0x4db5], [0x4e00, 0x9fd5], [0xa000, 0xa48c],
  [0xac00, 0xd7a3], [0xe000, 0xe0ff], [0xf900, 0xfa6d], [0xfb00, 0xfb06], [0xfb1d, 0xfb36], [0xfe00, 0xfe2f], [0xff01, 0xff9f],
  [0xfff9, 0xfffd], [0x10330, 0x1034a], [0x10400, 0x1049d], [0x1d100, 0x1d126], [0x1d15e, 0x1d172], [0x1d400, 0x1d454],
  [0x1d7ce, 0x1d7ff], [0x1f000, 0x1f02b], [0x1f1e6, 0x1f1ff], [0x1f300, 0x1f64f], [0x1f680, 0x1f6d2], [0x1f900, 0x1f9ff],
  [0x20000, 0x2a6d6], [0x2f800, 0x2fa1d], [0xe0020, 0xe007f], [0xf0000, 0xf00ff], [0x10fff0, 0x10ffff],
];
const character = () => {
  const [first, last] = pick(BLOCKS);
  return point(first + random(last - first + 1));
};

const PEOPLE = [0x1f468, 0x1f469, 0x1f9d1, 0x1f476, 0x1f467, 0x1f466];
const EMOJI = [
  () => Array.from({ length: 2 + random(3) }, () => point(pick(PEOPLE))).join("\u200d"),
  () => point(pick(PEOPLE)) + point(0x1f3fb + random(5)) + "\u200d" + pick(["\u2695\ufe0f", "\u2708\ufe0f", "\u{1f4bb}", "\u{1f680}"]),
  () => point(0x1f1e6 + random(26)) + point(0x1f1e6 + random(26)),
  () => pick("0123456789#*") + "\ufe0f\u20e3",
  () => "\u{1f3f4}\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f}",
  () => "\u2764" + pick(["", "\ufe0e", "\ufe0f", "\ufe0f\u200d\u{1f525}"]),
  () => point(0x1f300 + random(0x350)),
];
const SPACES = [" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u3000", "\u2003", "\u200b", "\u2028",
  "\u2029", "\u0085", "\u180e", "\ufeff", "\u1680", "\u205f", "\u202f"];
const whiteSpace = () => repeat(1 + random(6), () => pick(SPACES).repeat(1 + (random(8) ? random(3) : random(70))));

const SPECIAL = ["<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<|im_start|>", "<|im_end|>",
  "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|turn>", "<turn|>", "<|channel>", "</s>", "<s>", "<table>",
  "</td>", "<h1>", "<b>", "<code>", "<unused0>", "<unused99>", "<unused6241>", "[multimodal]", "<0x0A>", "<0xE2>", "<0xFF>", "<|\"|>",
  "<start_of_image>", "<image_soft_token>", "<|vision_start|>", "<|fim_prefix|>", "\u2581", "\u2581\u2581", "\u2581\u2581\u2581\u2581"];
const lookalike = () => {
  const s = pick(SPECIAL);
  switch (random(6)) {
    case 0: return s.slice(0, random(s.length));
    case 1: return s.slice(1 + random(s.length));
    case 2: return s.toUpperCase();
    case 3: return pick(["<", " ", "<<", "x", "\n"]) + s + pick([">", " ", "|>", "x", "\n"]);
    case 4: return s.slice(0, 2) + " " + s.slice(2);
    default: return s;
  }
};
const number = () => pick([
  () => String(random(1e9)), () => (random(1e6) / 997).toString(), () => "0x" + random(1e9).toString(16), () => "-" + random(99) + "e" + random(99),
  () => `${1900 + random(200)}-0${1 + random(9)}-${10 + random(20)}T12:${10 + random(50)}`, () => "1,234,567.89", () => "\u0663\u0664\u0665",
  () => "\u516d\u5341\u4e03\u842c", () => "\u00bd\u00b2\u2167", () => "9".repeat(1 + random(40)), () => "$" + random(1000) + ".00", () => "\u{1d7d8}\u{1d7d9}"])();
const marks = () => pick("aeiou\u03b1\u0430\u0627\u0915nOU\u1e63") + repeat(1 + random(6), () => point(pick([0x300, 0x301, 0x302, 0x304, 0x307, 0x308, 0x30a,
  0x323, 0x327, 0x328, 0x331, 0x345, 0x591, 0x64b, 0x93c, 0x94d, 0x20dd, 0x1ab0])));
const hangul = () => repeat(1 + random(4), () => pick([() => point(0xac00 + random(11172)), () => point(0x1100 + random(19)) + point(0x1161 + random(21)),
  () => point(0x1100 + random(19)) + point(0x1161 + random(21)) + point(0x11a8 + random(27)), () => point(0xac00 + 28 * random(399)) + point(0x11a7 + random(28))])());
const shortened = () => pick(["I", "you", "He", "x", "", " ", "\u00c9", "1", ")"]) + pick(["'", "'", "\u2019", "''"]) + pick(["s", "S", "t", "T", "re", "RE", "Re",
  "ve", "m", "M", "ll", "LL", "lL", "d", "D", "x", "sx", "tt", ""]) + pick([" ", "", "\n", "."]);
const word = () => pick(["the", "Tokenizer", "int", "return", "self", "value_", "HTTPServer", "\u6c34", "\u81fa\u7063", "\u0441\u043b\u043e\u0432\u043e", "na\u00efve",
  "\u00dcber", "\u00f1", "std::vector", "=>", "!=", "/*", "*/", "//", "#include", "{}", "();", "\\n", "\u201cq\u201d", "\u2026", "\u2014", "\u3001", "\u3002", "\uff01"]);

const CODE = [
  (a, b, n) => `for (int ${a} = 0; ${a} < ${n}; ++${a}) {\n\tif (${b}[${a}] != 0x${n.toString(16)}) continue;  // ${a}\n\tout << "${b}\\n" << ${a}->x;\n}\n`,
  (a, b, n) => `def ${a}(${b}: int = ${n}) -> dict[str, list]:\n    """${a} of ${b}."""\n    return {f"{${b}!r}": [x ** 2 for x in range(${n}) if x % 3]}\n\n\n`,
  (a, b, n) => `{"${a}": {"${b}": [${n}, null, true, -1.5e-3], "url": "https://example.org/?q=%20${a}&n=${n}#${b}"}}\n`,
  (a, b, n) => `<div class="${a}"><table><tr><td>${n}</td><td>&nbsp;${b}</td></tr></table>\n  <b>${a}</b></div>\r\n`,
  (a, b, n) => `fn ${a}<'a, T: Clone>(${b}: &'a [T]) -> Option<&'a T> {\n        ${b}.iter().rev().nth(${n})\n}\n`,
  (a, b, n) => `SELECT ${a}.*, COUNT(*) AS "${b}" FROM ${a} LEFT JOIN ${b} USING (id) WHERE n >= ${n} -- '${a}'\n`,
  (a, b, n) => `const ${a} = async ({ ${b}, ...rest }) => (await fetch(\`/\${${b}}/${n}\`))?.json() ?? null;\n`,
  (a, b, n) => `#!/bin/sh\nfind . -name '*.${a}' -print0 | xargs -0 -n${n % 9} sed -i 's/\\b${b}\\b/${a}_${n}/g' 2>/dev/null || exit $?\n`,
  (a, b, n) => `\\begin{align*}\n  \\sum_{${a}=0}^{${n}} \\frac{${b}_{${a}}}{2^{${a}}} &\\le \\alpha\u00b7\\beta \\\\\n\\end{align*}\n`,
  (a, b, n) => `| ${a} | ${b} |\n|:---|---:|\n| \`${n}\` | **${a}** ~~${b}~~ |\n\n- [ ] ${a}\n    1. ${b}\n> ${n}\n`,
];
const NAMES = ["i", "index", "myValue", "snake_case_name", "X", "userID", "tmp2", "\u00fcber", "data", "kMax", "__init__", "\u5909\u6570"];
const code = () => pick(CODE)(pick(NAMES), pick(NAMES), random(100000));

const PARTS = [character, () => pick(EMOJI)(), whiteSpace, lookalike, number, marks, hangul, shortened, word, code, () => " ", () => word() + " " + word()];

export function texts() {
  const prose = readFileSync(new URL("prose.txt", import.meta.url), "utf8");
  const out = ["", " ", "\n", "a", "\u0000", prose, "Hello user thought call:{}"];
  out.push(...prose.split("\n\n"));
  // Prose with things in it.
  const letters = Array.from(prose);
  for (let at = 0; at < letters.length; at += 400) {
    out.push(letters.slice(at, at + 200).join("") + pick(PARTS)() + letters.slice(at + 200, at + 400).join(""));
  }
  for (const part of PARTS) {
    for (let i = 0; i < 60; ++i) out.push(repeat(1 + random(40), part));
  }
  for (let i = 0; i < 700; ++i) out.push(repeat(1 + random(120), () => pick(PARTS)()));
  for (const run of [" ", "\n", "\t", "a", "!", "=", "-", "\u3000", "\u6c34", "\u0301", "0", "\r\n", " \n", "ab", "\u{1f468}\u200d"]) {
    for (let n = 1; n < 70; ++n) out.push(run.repeat(n));
    out.push("x" + run.repeat(2000) + "y");
  }
  return out;
}

// Sequences of ids to decode.
export function idLists(size, allowed) {
  const out = [];
  for (let i = 0; i < 400; ++i) {
    const list = [];
    for (let n = 1 + random(60); n > 0; ) {
      const id = random(size);
      if (allowed(id)) list.push(id), --n;
    }
    out.push(list);
  }
  return out;
}
