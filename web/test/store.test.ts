// The store: what listens to a topic is told once a frame, and settings fall back to what all chats have.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { render } from "preact";
import { h } from "preact";
import { changed, defaults, draw, read, set, settingsOf, state, toast, useTopic, write, type Open } from "../src/store.ts";
import { children, openCalls, path, tip } from "../src/tree.ts";
import type { Message } from "../src/types.ts";

beforeEach(() => {
  localStorage.clear();
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "requestAnimationFrame"] });
});
afterEach(() => vi.useRealTimers());

test("many changes are one drawing, and of that topic alone", async () => {
  const drawn: Record<string, number> = { app: 0, one: 0, two: 0 };
  const View = ({ topic }: { topic: string }) => {
    useTopic(topic);
    drawn[topic]++;
    return null;
  };
  const root = document.createElement("div");
  render(h("div", null, ...Object.keys(drawn).map((topic) => h(View, { topic }))), root);
  await vi.advanceTimersByTimeAsync(200);  // effects have run
  Object.keys(drawn).forEach((topic) => (drawn[topic] = 0));
  for (let i = 0; i < 50; i++) changed("one");
  await vi.advanceTimersByTimeAsync(100);
  expect(drawn).toEqual({ app: 0, one: 1, two: 0 });
  set({ query: "x" });
  draw();  // at once, and not again a frame later
  await vi.advanceTimersByTimeAsync(100);
  expect(drawn).toEqual({ app: 1, one: 1, two: 0 });
  render(null, root);
  changed("two");
  await vi.advanceTimersByTimeAsync(100);
  expect(drawn.two).toBe(0);
});

test("what changes as soon as a view is there is drawn", async () => {
  let text = "", drawn = "";
  const View = () => {
    useTopic("one");
    drawn = text;
    return null;
  };
  const root = document.createElement("div");
  render(h(View, {}), root);
  text = "the first token";
  changed("one");
  draw();  // before a frame
  await Promise.resolve();  // Preact draws behind what runs now
  expect(drawn).toBe("the first token");
  render(null, root);
});

test("what is kept is kept, and what cannot be read is as if it were not there", () => {
  set({ theme: "dark", query: "not kept" });
  expect(localStorage.getItem("carat.theme")).toBe('"dark"');
  expect(Object.keys(localStorage)).toEqual(["carat.theme"]);
  localStorage.setItem("carat.broken", "{");
  expect(read("broken", 7)).toBe(7);
  write("theme", undefined);
  expect(read("theme", "auto")).toBe("auto");
  vi.spyOn(Storage.prototype, "setItem").mockImplementationOnce(() => {
    throw new DOMException("full", "QuotaExceededError");
  });
  expect(() => write("x", 1)).not.toThrow();
});

test("a chat's own settings come before those of all, and old ones lack no field", () => {
  set({ settings: { ...defaults, temperature: "0.5" } });
  const open: Open = { head: { id: "a", title: "", updated: 0, head: null }, messages: new Map() };
  expect(settingsOf(open).temperature).toBe("0.5");
  open.head.settings = { temperature: "1" } as typeof defaults;
  expect(settingsOf(open)).toEqual({ ...defaults, temperature: "1" });
});

test("a toast goes by itself, and a second one has its own time", () => {
  toast({ text: "one" }, 1000);
  vi.advanceTimersByTime(900);
  toast({ text: "two" }, 1000);
  vi.advanceTimersByTime(900);
  expect(state.toast?.text).toBe("two");
  vi.advanceTimersByTime(200);
  expect(state.toast).toBeNull();
});

function tree(...list: [id: string, parent: string | null, more?: Partial<Message>][]): Open {
  const messages = new Map(list.map(([id, parent, more], i) => [id, {
    id, parent, conversation: "c", created: i, role: "user", content: id, thinking: "", tools: [], ...more } as Message]));
  return { head: { id: "c", title: "", updated: 0, head: list.at(-1)![0] }, messages };
}
const ids = (list: Message[]) => list.map((m) => m.id).join("");

test("versions of a message are siblings, and a branch is followed to its end", () => {
  const open = tree(["a", null], ["b", "a"], ["c", "b"], ["B", "a"], ["C", "B"]);
  expect(ids(path(open))).toBe("aBC");
  expect(ids(path(open, "c"))).toBe("abc");
  expect(ids(children(open).get("a")!)).toBe("bB");
  expect(tip(open, "b")).toBe("c");
  expect(tip(open, null)).toBe("C");
  const broken = tree(["x", "y"], ["y", "x"]);  // no file can hang the page
  expect(path(broken)).toHaveLength(2);
  expect(ids(path(tree(["o", "gone"])))).toBe("o");
});

test("calls that wait are those of the last answer alone", () => {
  const call = (id: string) => ({ role: "assistant" as const, tools: [{ id, name: "w", arguments: "{}" }] });
  const asked = tree(["a", null], ["b", "a", call("1")]);
  expect(openCalls(path(asked))?.calls).toEqual(["1"]);
  const given = tree(["a", null], ["b", "a", call("1")], ["r", "b", { role: "tool", call: "1" }]);
  expect(openCalls(path(given))?.calls).toEqual([]);
  const skipped = tree(["a", null], ["b", "a", call("1")], ["c", "b"], ["d", "c", call("2")]);
  expect(openCalls(path(skipped))?.calls).toEqual(["2"]);
  expect(openCalls(path(tree(["a", null], ["b", "a", call("1")], ["c", "b"])))).toBeNull();
});
