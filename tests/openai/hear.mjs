// Sounds sent by the real openai client to a model that hears: node hear.mjs URL KEY
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const [url, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout: 120_000 });
const model = (await client.models.list()).data[0];
assert.deepEqual(model.architecture.input_modalities, ["text", "image", "audio"]);

// A WAV file: a tone of so many seconds.
function wav(seconds, hz = 440, rate = 16000) {
  const n = Math.round(seconds * rate), out = Buffer.alloc(44 + 2 * n);
  out.write("RIFF", 0), out.writeUInt32LE(36 + 2 * n, 4), out.write("WAVEfmt ", 8);
  out.writeUInt32LE(16, 16), out.writeUInt16LE(1, 20), out.writeUInt16LE(1, 22), out.writeUInt32LE(rate, 24);
  out.writeUInt32LE(2 * rate, 28), out.writeUInt16LE(2, 32), out.writeUInt16LE(16, 34), out.write("data", 36), out.writeUInt32LE(2 * n, 40);
  for (let i = 0; i < n; i++) out.writeInt16LE(Math.round(8000 * Math.sin((2 * Math.PI * hz * i) / rate)), 44 + 2 * i);
  return out;
}
const part = (bytes) => ({ type: "input_audio", input_audio: { data: bytes.toString("base64"), format: "wav" } });

const ask = (more, ...sounds) => client.chat.completions.create({
  model: model.id, temperature: 0, max_tokens: 6, ...more,
  messages: [{ role: "user", content: [...sounds.map(part), { type: "text", text: "What is it?" }] }],
});
const one = await ask({}, wav(1));
assert.equal(one.usage.prompt_tokens_details.audio_tokens, 25);
assert.equal((await ask({}, wav(1), wav(2))).usage.prompt_tokens_details.audio_tokens, 75);
let text = "", usage;
for await (const c of await ask({ stream: true, stream_options: { include_usage: true } }, wav(1))) {
  text += c.choices[0]?.delta.content ?? "";
  usage = c.usage ?? usage;
}
assert.equal(text, one.choices[0].message.content ?? "");
assert.ok(usage.prompt_tokens_details.cached_tokens > 25);
// Another sound of the same length is not taken for it.
assert.ok((await ask({}, wav(1, 880))).usage.prompt_tokens_details.cached_tokens < 25);
await assert.rejects(ask({}, Buffer.from("hello world!")), (e) => e instanceof OpenAI.BadRequestError && /messages\[0\]\.content\[0\]/.test(e.message));
console.log("ok    openai: sounds");

const file = () => toFile(wav(35), "tone.wav");
const asked = async (more) => client.audio.transcriptions.create({ file: await file(), model: model.id, max_tokens: 4, ...more });
const plain = await asked({});
assert.equal(typeof plain.text, "string");
assert.equal(plain.usage.input_token_details.audio_tokens, 875);
const verbose = await asked({ response_format: "verbose_json", language: "en", timestamp_granularities: ["segment"] });
assert.equal(verbose.duration, 35);
assert.equal(verbose.segments.length, 2);
assert.equal(verbose.segments[0].end, verbose.segments[1].start);
assert.equal(verbose.text, verbose.segments.map((s) => s.text).join(" ").trim());
assert.match(await asked({ response_format: "srt" }), /^1\n00:00:00,000 --> 00:00:2\d,\d{3}\n/);
assert.match(await asked({ response_format: "vtt" }), /^WEBVTT\n\n00:00:00\.000 --> /);
assert.equal((await asked({ response_format: "text" })).trim(), plain.text);
let told = "", done;
for await (const e of await asked({ stream: true })) {
  if (e.type === "transcript.text.delta") told += e.delta;
  if (e.type === "transcript.text.done") done = e;
}
assert.equal(told, plain.text);
assert.equal(done.text, plain.text);
const english = await client.audio.translations.create({ file: await file(), model: model.id, response_format: "verbose_json" });
assert.equal(english.language, "english");
await assert.rejects(asked({ timestamp_granularities: ["word"], response_format: "verbose_json" }), OpenAI.BadRequestError);
console.log("ok    openai: transcriptions, translations");
