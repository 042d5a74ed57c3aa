// Formulas as MathML: the browser draws it, no fonts are loaded.
import type { MarkedExtension, Tokens } from "marked";
import temml from "temml";

function draw(text: string, display: boolean): string {
  try {
    // The page's policy allows no style in the text; classes are enough.
    const made = temml.renderToString(text, { displayMode: display, throwOnError: true, trust: false });
    return made.replace(/ style="[^"]*"/g, "");
  } catch {
    return "";
  }
}

const escape = (s: string) => s.replace(/[&<>]/g, (ch) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[ch]!);

// $...$ is a formula only where money cannot be meant: no space within its ends, no digit behind it.
const inline = /^(?:\\\(([\s\S]+?)\\\)|\$\$([^$\n]+?)\$\$|\\\[([\s\S]+?)\\\]|\$(?![\s$])((?:\\.|[^\\$\n])*?[^\s\\$]|[^\s\\$])\$(?![\d$]))/;
const display = /^(?: {0,3})(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;

const render = (token: Tokens.Generic): string =>
  draw(token.text, token.display) || `<code>${escape(token.raw.trim())}</code>`;

export const math: MarkedExtension = {
  extensions: [
    {
      name: "displayMath", level: "block",
      start: (src) => /(?:^|\n) {0,3}(?:\$\$|\\\[)/.exec(src)?.index,
      tokenizer(src) {
        const m = display.exec(src);
        return m ? { type: "displayMath", raw: m[0], text: (m[1] ?? m[2]).trim(), display: true } : undefined;
      },
      renderer: (token) => `<div class="formula" tabindex="0">${render(token)}</div>`,
    },
    {
      name: "inlineMath", level: "inline",
      start: (src) => /\$|\\[([]/.exec(src)?.index,
      tokenizer(src) {
        const m = inline.exec(src);
        if (!m) return undefined;
        return { type: "inlineMath", raw: m[0], text: (m[1] ?? m[2] ?? m[3] ?? m[4]).trim(), display: !!(m[2] ?? m[3]) };
      },
      renderer: render,
    },
  ],
};

// Emphasis beside CJK text, where CommonMark's rule asks for spaces that these languages do not write.
const cjk = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\u3000-\u303f\uff00-\uffef]/u;
const strong = /^\*\*(?![\s*])((?:\\.|[^\\*\n])*?[^\s\\*])\*\*(?!\*)/;

export const cjkEmphasis: MarkedExtension = {
  extensions: [{
    name: "cjkStrong", level: "inline",
    start: (src) => { const i = src.indexOf("**"); return i < 0 ? undefined : i; },
    tokenizer(src) {
      const m = strong.exec(src);
      if (!m || !cjk.test(m[1])) return undefined;
      return { type: "cjkStrong", raw: m[0], text: m[1], tokens: this.lexer.inlineTokens(m[1]) };
    },
    renderer(token) { return `<strong>${this.parser.parseInline(token.tokens ?? [])}</strong>`; },
  }],
};

// [^1], and what it says where that is written: numbers without links, as ids of a model's choice would not be the page's.
export const footnotes: MarkedExtension = {
  extensions: [
    {
      name: "footnote", level: "block",
      start: (src) => /(?:^|\n)\[\^/.exec(src)?.index,
      tokenizer(src) {
        const m = /^\[\^([^\]\s]+)\]:[ \t]*([^\n]+(?:\n(?!\[\^|\n)[^\n]+)*)(?:\n+|$)/.exec(src);
        return m ? { type: "footnote", raw: m[0], text: m[1], tokens: this.lexer.inline(m[2], []) } : undefined;
      },
      renderer(token) { return `<p class="footnote"><sup>${escape(token.text)}</sup> ${this.parser.parseInline(token.tokens ?? [])}</p>`; },
    },
    {
      name: "footnoteMark", level: "inline",
      start: (src) => { const i = src.indexOf("[^"); return i < 0 ? undefined : i; },
      tokenizer(src) {
        const m = /^\[\^([^\]\s]+)\]/.exec(src);
        return m ? { type: "footnoteMark", raw: m[0], text: m[1] } : undefined;
      },
      renderer: (token) => `<sup>${escape(token.text)}</sup>`,
    },
  ],
};
