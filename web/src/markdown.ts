// Markdown as safe HTML, block by block: while an answer grows only its last block is made anew.
import DOMPurify from "dompurify";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import diff from "highlight.js/lib/languages/diff";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import xml from "highlight.js/lib/languages/xml";
import { Marked, type Token, type Tokens } from "marked";
import { cpp, css, go, ini, java, ruby, rust, sql, typescript, yaml } from "./code.ts";
import { cjkEmphasis, footnotes, math } from "./math.ts";
import { t } from "./text.ts";

const languages = { bash, cpp, css, diff, go, ini, java, json, markdown, python,
  ruby, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);
// Grammars that hold these others.
hljs.registerAliases(["c", "h", "cc", "c++", "hpp", "hh", "cxx", "hxx"], { languageName: "cpp" });
hljs.registerAliases(["ts", "tsx", "mts", "cts", "js", "javascript", "jsx", "mjs", "cjs"], { languageName: "typescript" });
hljs.registerAliases(["scss", "less"], { languageName: "css" });
hljs.registerAliases(["yml"], { languageName: "yaml" });
hljs.registerAliases(["toml"], { languageName: "ini" });
hljs.registerAliases(["rb"], { languageName: "ruby" });
hljs.registerAliases(["rs"], { languageName: "rust" });
hljs.registerAliases(["golang"], { languageName: "go" });

const escape = (s: string) => s.replace(/[&<>"]/g, (ch) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[ch]!);

// These tags have no attributes and do nothing; all other HTML of a model is shown as text.
const harmless = /^<\/?(?:sub|sup|kbd|mark|u|b|i|br|details|summary) ?\/?>$/i;

const nameOf = (lang?: string) => (lang ?? "").split(/\s/)[0].toLowerCase();
const coloured = (name: string, text: string) =>
  name && hljs.getLanguage(name) ? hljs.highlight(text, { language: name, ignoreIllegals: true }).value : escape(text);
// The colours' spans and nothing else: such a body needs no parser to be known as harmless, which long ones would wait for.
const onlySpans = (body: string) => !body.replace(/<span class="[\w -]*">|<\/span>/g, "").includes("<");

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    code({ text, lang }) {
      const name = nameOf(lang);
      return codeBox(name, coloured(name, text));
    },
    // Nothing is fetched because a model said so.
    image({ href, text }) {
      return `<a href="${escape(href)}">${escape(text || href)}</a>`;
    },
    checkbox({ checked }) {
      return `<span class="check">${checked ? "☑" : "☐"}</span> `;
    },
    html({ text }) {
      return text.replace(/<\/?[a-z]+ ?\/?>|[&<>"]/gi, (part) => (harmless.test(part) ? part : escape(part)));
    },
    table(token) {
      const row = (cells: Tokens.TableCell[], tag: string) => `<tr>${cells.map((cell) =>
        `<${tag}${cell.align ? ` align="${cell.align}"` : ""}>${this.parser.parseInline(cell.tokens)}</${tag}>`).join("")}</tr>`;
      return `<div class="table" tabindex="0"><table><thead>${row(token.header, "th")}</thead>` +
        `<tbody>${token.rows.map((r) => row(r, "td")).join("")}</tbody></table></div>`;
    },
  },
});
marked.use(math, cjkEmphasis, footnotes);

function codeBox(name: string, body: string): string {
  return `<div class="code" dir="ltr"><div class="code-bar"><span>${escape(name || "text")}</span>` +
    `${/^(html|svg)$/.test(name) ? `<button type="button" class="preview">${escape(t("Preview"))}</button>` : ""}` +
    `<button type="button" class="copy">${escape(t("Copy"))}</button></div>` +
    `<pre tabindex="0"><code>${body}</code></pre></div>`;
}

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

const mathTags = ["math", "menclose", "merror", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom",
  "mprescripts", "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext",
  "mtr", "munder", "munderover", "none", "semantics"];
const mathAttributes = ["accent", "accentunder", "columnalign", "columnspan", "depth", "display", "displaystyle", "fence",
  "form", "height", "largeop", "linethickness", "lspace", "mathsize", "mathvariant", "maxsize", "minsize", "movablelimits",
  "notation", "rowspan", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "voffset", "width"];
const allowed = {
  ALLOWED_TAGS: ["a", "b", "blockquote", "br", "button", "code", "del", "details", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6",
    "hr", "i", "kbd", "li", "mark", "ol", "p", "pre", "s", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "th",
    "thead", "tr", "u", "ul", ...mathTags],
  ALLOWED_ATTR: ["align", "class", "dir", "href", "rel", "start", "tabindex", "target", "type", ...mathAttributes],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
  ADD_URI_SAFE_ATTR: ["align", "dir", "start", "tabindex", "type", ...mathAttributes],
};

export interface Block { raw: string; token: Token; links: Record<string, Pick<Tokens.Link, "href" | "title">> }

// Top-level blocks of a text, as their sources.
export function blocks(text: string): Block[] {
  const tokens = marked.lexer(text);
  return tokens.filter((b) => b.type !== "space").map((token) => ({ raw: token.raw, token, links: tokens.links }));
}

// While a text grows only its end is read anew: what lies two blocks back can no longer change.
export class Growing {
  private done: Block[] = [];
  private length = 0;
  private text = "";

  blocks(given: string): Block[] {
    const text = given.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.text)) {
      this.done = [];
      this.length = 0;
    }
    this.text = text;
    const tokens = marked.lexer(text.slice(this.length));
    const all = tokens.map((token) => ({ raw: token.raw, token, links: tokens.links }));
    const settled = all.length - 4;
    for (let i = 0; i < settled; i++) {
      this.length += all[i].raw.length;
      if (all[i].token.type !== "space") this.done.push(all[i]);
    }
    return [...this.done, ...all.slice(Math.max(0, settled)).filter((b) => b.token.type !== "space")];
  }
}

// The language and text of a block of code.
export function codeOf(block: Block): { name: string; text: string } | null {
  if (block.token.type !== "code") return null;
  const { lang, text } = block.token as Tokens.Code;
  return { name: nameOf(lang), text };
}

export function html(block: Block): string {
  const code = codeOf(block), body = code && coloured(code.name, code.text);
  if (code && onlySpans(body!)) return codeBox(code.name, body!);
  const list = Object.assign([block.token], { links: block.links });
  return DOMPurify.sanitize(marked.parser(list), allowed);
}
