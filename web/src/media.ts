// Pictures and sounds that are shown to the model: read, made small enough, kept in a database of their own by id (a
// message names them), and turned into what a request carries.
import { useEffect, useState } from "preact/hooks";
import { newId, set, state } from "./store.ts";
import { t } from "./text.ts";
import type { Media, Message, TextFile } from "./types.ts";

const kPictures = /^image\/(png|jpeg|webp|gif)$/, kSounds: Record<string, string> = {
  "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/vnd.wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3",
  "audio/flac": "flac", "audio/x-flac": "flac", "audio/ogg": "ogg",
};
const kLargest = 50_000_000;                 // of a file that is read
const kKept = 4_000_000;                     // of a picture as it is; larger ones are scaled
const kMostPixels = 4_000_000;               // more than any tower reads of one picture
const kSoundKept = 15_000_000;
export const kMost = 16, kMostSent = 20_000_000;  // of a request: the server takes no more, and 32 MiB in all
const kRate = 16_000;                        // of sound that is made here, Hz: what towers hear

// What the model that is chosen can do; one that is not loaded yet may be able to do all.
export function senses(): { vision: boolean; audio: boolean } {
  const m = state.models.find((one) => one.id === state.model);
  const of = m?.architecture?.input_modalities;
  if (of) return { vision: of.includes("image"), audio: of.includes("audio") };
  if (m?.status && m.status.value !== "loaded") return { vision: true, audio: true };
  return { vision: !!state.props?.modalities?.vision, audio: !!state.props?.modalities?.audio };
}

// Whether a file is no text; SVG is both.
export function kindOf(f: File): Media["kind"] | null {
  if (f.type === "image/svg+xml") return senses().vision ? "image" : null;
  if (f.type.startsWith("image/") || /\.(heic|heif|avif|jxl)$/i.test(f.name)) return "image";
  if (f.type.startsWith("audio/") || /\.(opus|flac)$/i.test(f.name)) return "audio";
  return null;
}

// ---- the database

interface Kept { id: string; conversation: string; blob: Blob }
const inMemory = new Map<string, Blob>();    // of this page; all there is where nothing can be stored
let opened: Promise<IDBDatabase> | null = null;

function open(): Promise<IDBDatabase> {
  return (opened ??= new Promise((resolve, reject) => {
    const r = indexedDB.open("carat-media", 1);
    r.onupgradeneeded = () => r.result.createObjectStore("files", { keyPath: "id" }).createIndex("conversation", "conversation");
    r.onsuccess = () => resolve(r.result);
    r.onerror = () => reject(r.error);
  }));
}

const ended = (made: IDBTransaction): Promise<void> => new Promise((resolve, reject) => {
  made.oncomplete = () => resolve();
  made.onabort = made.onerror = () => reject(made.error);
});

// They belong to this conversation now, and stay as long as it does.
export async function keepMedia(conversation: string, list: Media[]): Promise<void> {
  try {
    const blobs = await Promise.all(list.map((m) => loadMedia(m.id)));
    const made = (await open()).transaction("files", "readwrite");
    for (const [i, { id }] of list.entries())
      if (blobs[i]) made.objectStore("files").put({ id, conversation, blob: blobs[i] } satisfies Kept);
    await ended(made);
  } catch (e) {
    set({ unsaved: (e as DOMException | null)?.name === "QuotaExceededError" ? "full" : "closed" });
  }
}

export async function loadMedia(id: string): Promise<Blob | null> {
  const known = inMemory.get(id);
  if (known) return known;
  try {
    const r = (await open()).transaction("files").objectStore("files").get(id);
    const kept = await new Promise<Kept | undefined>((resolve, reject) => {
      r.onsuccess = () => resolve(r.result as Kept | undefined);
      r.onerror = () => reject(r.error);
    });
    return kept?.blob ?? null;
  } catch {
    return null;
  }
}

// What is attached and not sent yet: texts, and what is known of pictures and sounds, as one entry under the draft's name.
export interface Attached { files: TextFile[]; media: Media[] }

export async function keepDraft(name: string, given: Attached): Promise<void> {
  inMemory.set(name, new Blob([JSON.stringify(given)]));
  await keepMedia(name, [...given.media, { id: name } as Media]);
}

export async function loadDraft(name: string): Promise<Attached | null> {
  const blob = await loadMedia(name);
  return blob && (JSON.parse(await blob.text()) as Attached);
}

export async function eraseMedia(conversation: string, but: string[] = []): Promise<void> {
  const made = (await open()).transaction("files", "readwrite");
  const files = made.objectStore("files");
  const cursor = files.index("conversation").openKeyCursor(conversation);
  cursor.onsuccess = () => {
    if (!cursor.result) return;
    const id = String(cursor.result.primaryKey);
    if (!but.includes(id)) inMemory.delete(id), files.delete(id);
    cursor.result.continue();
  };
  await ended(made);
}

// ---- reading files

function remember(blob: Blob, values: Omit<Media, "id" | "size" | "type">): Media {
  const m: Media = { id: newId(), size: blob.size, type: blob.type, ...values };
  inMemory.set(m.id, blob);
  return m;
}

async function picture(file: Blob, name: string): Promise<Media> {
  const url = URL.createObjectURL(file);
  try {
    const img = new Image();
    img.src = url;
    await img.decode();
    const width = img.naturalWidth || 1024, height = img.naturalHeight || 1024;
    if (kPictures.test(file.type) && file.size <= kKept) return remember(file, { kind: "image", name, width, height });
    const scale = Math.min(1, Math.sqrt(kMostPixels / (width * height)));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const to = canvas.getContext("2d")!;
    to.fillStyle = "#fff";                   // as the server shows what is transparent
    to.fillRect(0, 0, canvas.width, canvas.height);
    to.imageSmoothingQuality = "high";
    to.drawImage(img, 0, 0, canvas.width, canvas.height);
    const made = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.93));
    if (!made) throw new Error("no canvas");
    return remember(made, { kind: "image", name, width: canvas.width, height: canvas.height });
  } finally {
    URL.revokeObjectURL(url);
  }
}

// One channel, 16 bits.
function wav(samples: Float32Array, rate: number): Blob {
  const view = new DataView(new ArrayBuffer(44 + samples.length * 2));
  const text = (at: number, s: string) => [...s].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF"), text(8, "WAVEfmt "), text(36, "data");
  view.setUint32(4, view.byteLength - 8, true), view.setUint32(16, 16, true);
  view.setUint16(20, 1, true), view.setUint16(22, 1, true);
  view.setUint32(24, rate, true), view.setUint32(28, rate * 2, true);
  view.setUint16(32, 2, true), view.setUint16(34, 16, true);
  view.setUint32(40, samples.length * 2, true);
  samples.forEach((s, i) => view.setInt16(44 + i * 2, Math.round(Math.max(-1, Math.min(1, s)) * 32767), true));
  return new Blob([view], { type: "audio/wav" });
}

export async function sound(file: Blob, name: string): Promise<Media> {
  if (file.type in kSounds && file.size <= kSoundKept) return remember(file, { kind: "audio", name });
  const stored = await new OfflineAudioContext(1, 1, kRate).decodeAudioData(await file.arrayBuffer());
  const context = new OfflineAudioContext(1, Math.max(1, Math.ceil(stored.duration * kRate)), kRate);
  const from = context.createBufferSource();
  from.buffer = stored;
  from.connect(context.destination);
  from.start();
  const made = wav((await context.startRendering()).getChannelData(0), kRate);
  if (made.size > kSoundKept) throw new Error("too long");
  return remember(made, { kind: "audio", name });
}

// Null, and a notice that says why, where a file cannot be shown.
export async function readMedia(f: File, kind: Media["kind"]): Promise<Media | null> {
  const able = senses(), name = state.model || t("The model");
  const why = kind === "image" && !able.vision ? t("{0} was not attached: {1} cannot see pictures.", f.name, name)
    : kind === "audio" && !able.audio ? t("{0} was not attached: {1} cannot hear sound.", f.name, name)
    : f.size > kLargest ? t("{0} is larger than {1} MB and was not attached.", f.name, kLargest / 1e6) : "";
  if (why) return set({ notice: why }), null;
  try {
    return await (kind === "image" ? picture(f, f.name) : sound(f, f.name));
  } catch {
    set({ notice: kind === "image" ? t("This browser can't read {0} as a picture. It was not attached.", f.name)
      : t("This browser can't read {0} as sound, or it is too long. It was not attached.", f.name) });
    return null;
  }
}

// The microphone, until `stop` is called; null if there is none, or it is not granted.
export async function record(): Promise<{ stop: () => Promise<Media | null> } | null> {
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const recorder = new MediaRecorder(stream), parts: Blob[] = [];
    recorder.ondataavailable = (e) => parts.push(e.data);
    const over = new Promise<void>((resolve) => (recorder.onstop = () => resolve()));
    recorder.start();
    return {
      stop: async () => {
        recorder.stop();
        await over;
        for (const track of stream.getTracks()) track.stop();
        return sound(new Blob(parts, { type: "audio/recorded" }), t("Recording")).catch(() => null);
      },
    };
  } catch {
    set({ notice: t("The microphone can't be used: allow it in the browser, and open this page at localhost or over https.") });
    return null;
  }
}

// ---- sending, exporting, importing, showing

export const dataUrl = (blob: Blob): Promise<string> => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(String(reader.result));
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(blob);
});

type Part = Record<string, unknown>;

function part(m: Media, url: string): Part {
  if (m.kind === "image") return { type: "image_url", image_url: { url } };
  return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format: kSounds[m.type] ?? "wav" } };
}

// What stands for the pictures and sounds of these messages in a request, by id. The newest ones are sent, as many as
// the server takes; words stand for the others.
export async function partsOf(messages: Message[]): Promise<Map<string, Part>> {
  const out = new Map<string, Part>();
  let count = 0, bytes = 0;
  for (const m of messages.flatMap((one) => one.media ?? []).reverse()) {
    const blob = count < kMost && bytes + m.size <= kMostSent ? await loadMedia(m.id) : null;
    if (blob) count++, bytes += m.size;
    out.set(m.id, blob ? part(m, await dataUrl(blob)) : { type: "text", text: `[${m.kind}: ${m.name}]` });
  }
  return out;
}

export async function withData(m: Message): Promise<unknown> {
  if (!m.media?.length) return m;
  const media = await Promise.all(m.media.map(async (one) => {
    const blob = await loadMedia(one.id);
    return { ...one, ...(blob ? { data: await dataUrl(blob) } : {}) };
  }));
  return { ...m, media };
}

// From a data URL; null if it is none of a picture or sound.
export async function takeData(url: string, name: string): Promise<Media | null> {
  const [, type, coded] = /^data:((?:image|audio)\/[\w.+-]+)[^,]*;base64,([^]*)$/.exec(url) ?? [];
  if (!type) return null;
  try {
    const bytes = Uint8Array.from(atob(coded.replace(/\s/g, "")), (c) => c.charCodeAt(0));
    const blob = new Blob([bytes], { type });
    return await (type.startsWith("image/") ? picture(blob, name) : sound(blob, name));
  } catch {
    return null;
  }
}

// The address of one of them as long as it is shown.
export function useUrl(id: string): string {
  const [url, setUrl] = useState("");
  useEffect(() => {
    let made = "", gone = false;
    void loadMedia(id).then((blob) => blob && !gone && setUrl((made = URL.createObjectURL(blob))));
    return () => {
      gone = true;
      if (made) URL.revokeObjectURL(made);
    };
  }, [id]);
  return url;
}
