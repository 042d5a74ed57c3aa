// Markdown of models: what it becomes, that nothing of it is obeyed, and that a text that grows ends as one that came whole.
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { blocks, codeOf, Growing, html } from "../src/markdown.ts";

const drawn = (text: string) => blocks(text).map(html).join("");
const dom = (text: string) => {
  const e = document.createElement("div");
  e.innerHTML = drawn(text);
  return e;
};
const rich = readFileSync("../tests/page/data/rich.md", "utf8");

test("a text that grows ends as one that came whole, wherever it was cut", () => {
  for (const step of [1, 7, 64]) {
    const g = new Growing();
    for (let i = 0; i < rich.length; i += step) g.blocks(rich.slice(0, i));
    expect(g.blocks(rich).map(html).join("")).toBe(drawn(rich));
  }
});

test("another text in the same place is read from its beginning", () => {
  const g = new Growing();
  g.blocks("one\n\ntwo\n\nthree\n\nfour\n\nfive\n\nsix\n\nseven");
  expect(g.blocks("# Other").map(html).join("")).toBe(drawn("# Other"));
});

test("nothing of a model's HTML is obeyed", () => {
  const e = dom(`<img src=x onerror=alert(1)><script>1</script> <b onclick=x>b</b> [a](javascript:alert(1)) [d](data:text/html,x)
![p](https://example.org/p.png)

<iframe src="https://example.org"></iframe>

<form action="https://example.org"><input name=a></form>
<style>*{display:none}</style><svg onload=alert(1)></svg>
<a href="https://example.org" style="position:fixed">x</a>`);
  expect(e.querySelectorAll("img, script, iframe, form, input, style, svg, object, embed").length).toBe(0);
  expect([...e.querySelectorAll("*")].flatMap((n) => n.getAttributeNames()).filter((n) => /^on|^style$|^id$|^name$/.test(n))).toEqual([]);
  const links = [...e.querySelectorAll("a[href]")].map((a) => a.getAttribute("href"));
  expect(links.every((l) => l!.startsWith("https:"))).toBe(true);
  expect([...e.querySelectorAll("a[href]")].every((a) => a.getAttribute("rel") === "noopener noreferrer nofollow")).toBe(true);
});

test("harmless tags mean what they say; others are shown as they were written", () => {
  expect(drawn("H<sub>2</sub>O, x<sup>2</sup>, <kbd>Ctrl</kbd>, a<br>b")).toBe("<p>H<sub>2</sub>O, x<sup>2</sup>, <kbd>Ctrl</kbd>, a<br>b</p>\n");
  expect(dom("| a |\n|---|\n| one<br>two |").querySelectorAll("td br").length).toBe(1);
  const mixed = dom('<details><summary>More</summary>hidden</details> H<sub>2</sub>O <p class="x">');
  expect([mixed.querySelector("details summary")?.textContent, mixed.querySelector("sub")?.textContent]).toEqual(["More", "2"]);
  expect(mixed.textContent).toContain('<p class="x">');
  expect(dom("<details open>x</details>").querySelector("[open]")).toBeNull();
});

test("footnotes have their numbers, where they are meant and where they are said", () => {
  const e = dom("A fact[^1] and another[^b].\n\n[^1]: The **first**.\n[^b]: https://example.org\n\nAfter [^ and a[0][^2].");
  expect([...e.querySelectorAll("sup")].map((s) => s.textContent)).toEqual(["1", "b", "1", "b", "2"]);
  expect([...e.querySelectorAll(".footnote")].map((s) => s.textContent)).toEqual(["1 The first.", "b https://example.org"]);
});

test("emphasis beside CJK text needs no spaces, and stars elsewhere stay", () => {
  expect(drawn("這裡是**重點：**後面緊接文字。")).toBe("<p>這裡是<strong>重點：</strong>後面緊接文字。</p>\n");
  expect(drawn("2 ** 3 ** 4")).toBe("<p>2 ** 3 ** 4</p>\n");
  expect(drawn("a **b** c")).toBe("<p>a <strong>b</strong> c</p>\n");
});

test("formulas are drawn, money is not one, and what cannot be drawn is shown", () => {
  const e = dom("Inline $\\alpha_t$, \\(x^2\\), and\n\n$$\nB = 2W\\frac{b}{8}\n$$\n\nor \\[ \\int_0^1 x\\,dx \\]. It costs $5 and $6.");
  expect(e.querySelectorAll("math").length).toBe(4);
  expect(e.querySelectorAll("math[display=block]").length).toBe(2);
  expect(e.textContent).toContain("$5 and $6");
  expect(e.querySelector("[style]")).toBeNull();
  expect(dom("$\\nosuchcommand{x}$").querySelector("code")?.textContent).toBe("$\\nosuchcommand{x}$");
});

test("code is coloured by its language, copied as it was, and HTML can be looked at", () => {
  const e = dom("```python\ndef f(): return \"<b>\"\n```\n\n```html\n<p>\n```\n\n```nosuchlanguage\n<x>\n```");
  expect(e.querySelector(".hljs-keyword")?.textContent).toBe("def");
  expect([...e.querySelectorAll("code")].map((c) => c.textContent)).toEqual(['def f(): return "<b>"', "<p>", "<x>"]);
  expect(e.querySelectorAll("button.preview").length).toBe(1);
  expect(e.querySelectorAll("button.copy").length).toBe(3);
  expect(codeOf(blocks("```C++ extra\nint x;\n```")[0])).toEqual({ name: "c++", text: "int x;" });
});

test("tables keep their columns' sides, and links of references are found in every block", () => {
  const e = dom("| a | b |\n|:--|--:|\n| 1 | 2 |\n\nSee [it][x].\n\n[x]: https://example.org/x");
  expect([...e.querySelectorAll("td")].map((c) => c.getAttribute("align"))).toEqual(["left", "right"]);
  expect(e.querySelector("a")?.getAttribute("href")).toBe("https://example.org/x");
});

test("a block of code that goes past the sanitizer holds the colours' spans and nothing else", () => {
  const evil = '<img src=x onerror=alert(1)></code></pre><script>alert(1)</script>"\'><b class="hljs-x">&lt;';
  for (const name of ["", "html", "js", "cpp", "markdown", "css", "nosuch\"><script>alert(1)</script>"]) {
    const e = dom("```" + name + "\n" + evil + "\n```");
    expect(e.querySelector("code")!.textContent, name).toBe(evil);
    expect(new Set([...e.querySelectorAll("*")].map((n) => n.tagName.toLowerCase()).filter((n) => !["div", "span", "button", "pre", "code"].includes(n)))).toEqual(new Set());
    expect([...e.querySelectorAll("code *")].every((n) => n.getAttributeNames().join() === "class")).toBe(true);
  }
});

test("everything at once: what an answer of one page of Markdown becomes", () => {
  const e = dom(readFileSync("../tests/page/data/rich-answer.md", "utf8"));
  const count = (selector: string) => e.querySelectorAll(selector).length;
  expect({ math: count("math"), code: count(".code"), preview: count(".preview"), details: count("details"), sub: count("sub"), kbd: count("kbd"),
    br: count("br"), footnote: count(".footnote"), rows: count("tbody tr"), checks: count(".check"), nested: count("li li li"), img: count("img") })
    .toEqual({ math: 5, code: 3, preview: 1, details: 1, sub: 1, kbd: 1, br: 1, footnote: 1, rows: 3, checks: 2, nested: 1, img: 0 });
  expect(e.textContent).not.toMatch(/\$\$|\\\(|\\\[|<sub>|<br>|<details>|\[\^1\]/);
});
