// Grammars of our own: what they colour in code as people write it, and that no character is lost.
import { expect, test } from "vitest";
import { blocks, html } from "../src/markdown.ts";

function coloured(language: string, code: string): Record<string, string[]> {
  const e = document.createElement("div");
  e.innerHTML = blocks("```" + language + "\n" + code + "\n```").map(html).join("");
  expect(e.querySelector("code")!.textContent).toBe(code);
  const out: Record<string, string[]> = {};
  for (const span of e.querySelectorAll("code span")) (out[span.className.replace("hljs-", "")] ??= []).push(span.textContent!);
  return out;
}

test("C++", () => {
  const c = coloured("cpp", `#include <vector>
#define N 3
// words
template <class T> size_t count(const std::vector<T>& v) { return v.size() * 0x1F + 'a'; }
auto s = R"(raw "text")"; const char* p = "a\\"b"; bool ok = nullptr == p;`);
  expect(c.meta).toEqual(["#include <vector>", "#define"]);
  expect(c.comment).toEqual(["// words"]);
  expect(c.keyword).toEqual(["template", "class", "const", "return", "auto", "const"]);
  expect(c.string).toEqual(["<vector>", "'a'", 'R"(raw "text")"', '"a\\"b"']);
  expect(c.title).toContain("count");
  expect(c.number).toContain("0x1F");
  expect(c.literal).toEqual(["nullptr"]);
});

test("TypeScript and JavaScript", () => {
  const c = coloured("ts", `import { a } from "b";
async function load<T>(x: number | null): Promise<T> {
  const re = /[/"]+\\/x/gi, half = x / 2 / 3;
  return \`n = \${x + 1}\` as T; /* done */
}`);
  expect(c.keyword).toEqual(["import", "from", "async", "function", "const", "return", "as"]);
  expect(c.regexp).toEqual(['/[/"]+\\/x/gi']);
  expect(c.title).toContain("load");
  expect(c.string).toEqual(['"b"', "`n = ${x + 1}`"]);
  expect(c.subst).toEqual(["${x + 1}"]);
  expect(c.comment).toEqual(["/* done */"]);
  expect(coloured("js", "let x = undefined;").keyword).toEqual(["let"]);
});

test("others keep their text and find their comments", () => {
  for (const [language, code, comment] of [["rust", "fn main() { let s = \"a\"; // c\n}", "// c"], ["go", "func f() int { return 1 } // c", "// c"],
    ["java", "class A { int x = 1; } // c", "// c"], ["sql", "SELECT a FROM b -- c", "-- c"], ["yaml", "a: 1 # c", "# c"], ["toml", "[a]\nb = 1 # c", "# c"],
    ["ruby", "def f; 1; end # c", "# c"], ["css", "a { color: red; } /* c */", "/* c */"], ["python", "def f(): return 1  # c", "# c"], ["bash", "ls -l # c", "# c"]])
    expect(coloured(language, code).comment, language).toEqual([comment]);
});
