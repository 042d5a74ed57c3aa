// Every string of the page in every language.
import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { tables } from "../src/languages.ts";
import { state } from "../src/store.ts";
import { gigabytes, t } from "../src/text.ts";

const sources = readdirSync("src").filter((f) => /\.tsx?$/.test(f)).map((f) => readFileSync(`src/${f}`, "utf8"));
// t("...") with a text of its own; the regular expression knows the page's one way to write them.
const said = new Set(sources.flatMap((s) => [...s.matchAll(/\bt\(\s*"((?:[^"\\]|\\.)*)"/g)].map((m) => JSON.parse(`"${m[1]}"`) as string)));
// What is the same in every language, and needs no line.
const same = new Set(["Chat", "Server", "Position", "Name", "Text", "Code", "Compare"]);

test("every string has a line, and every line a string", () => {
  expect(said.size).toBeGreaterThan(200);
  const known = new Set(Object.keys(tables.de));
  expect([...said].filter((s) => !known.has(s))).toEqual([]);
  const missing = [...known].filter((s) => !said.has(s));
  expect(missing).toEqual([]);
});

test("a translation says something, has the same places, and no spaces at its ends", () => {
  const wrong: string[] = [];
  for (const [name, table] of Object.entries(tables))
    for (const [english, text] of Object.entries(table)) {
      const places = (s: string) => [...new Set(s.match(/\{\d\}/g) ?? [])].sort().join();
      if (!text || text !== text.trim() || places(text) !== places(english)) wrong.push(`${name}: ${english} -> ${text}`);
      if (name !== "de" && text === english && !same.has(english) && /[a-z]{4}/.test(english) && english !== "token") wrong.push(`${name}: ${english} is not translated`);
    }
  expect(wrong).toEqual([]);
});

test("values stand in their places", () => {
  state.language = "en";
  expect(t("Can't reach the server, retrying in {0} s", 3)).toBe("Can't reach the server, retrying in 3 s");
  expect(t("Thought for {0} s", 4)).toBe("Thought for 4 s");
  state.language = "de";
  expect(t("Identical, {0} of {0} tokens", 412)).toBe("Identisch, 412 von 412 Token");
});

test("sizes are read at a glance", () => {
  expect([942_000, 19_300_000, 733_000_000, 4_700_000_000, 17_040_000_000].map(gigabytes)).toEqual(["0.9 MB", "19.3 MB", "0.73 GB", "4.70 GB", "17.0 GB"]);
});
