// Grammars of code for highlight.js, where its own are larger than what they colour is worth.
import type { LanguageFn, Mode } from "highlight.js";

// The library's own CSS lists every property there is.
export const css: LanguageFn = (h) => ({
  name: "CSS",
  contains: [
    h.C_BLOCK_COMMENT_MODE, h.APOS_STRING_MODE, h.QUOTE_STRING_MODE,
    { scope: "keyword", begin: /@[a-z-]+/ }, { scope: "attribute", begin: /(?:--)?[a-z-]+(?=\s*:\s)/ },
    { scope: "title", begin: /[.#:][a-z_][\w-]*/i }, { scope: "number", begin: /#[\da-f]{3,8}\b|-?\d*\.?\d+(?:%|[a-z]+)?\b/i },
  ],
});

// Words that are used, not all that standards reserve.
export const sql: LanguageFn = (h) => ({
  name: "SQL", case_insensitive: true,
  keywords: {
    keyword: "add all alter and as asc begin between by case check column commit constraint create cross default delete desc distinct drop " +
      "else end exists explain false foreign from full group having if in index inner insert intersect into is join key left like limit " +
      "natural not null offset on or order outer over partition primary references replace returning right rollback select set table " +
      "then trigger true union unique update using values view when where with",
    type: "bigint blob boolean char date decimal double float int integer json numeric real serial text time timestamp uuid varchar",
    built_in: "abs avg cast coalesce count lag lead length lower max min now nullif rank round row_number substring sum trim upper",
  },
  contains: [
    h.COMMENT("--", "$"), h.C_BLOCK_COMMENT_MODE, h.C_NUMBER_MODE,
    { scope: "string", begin: "'", end: "'", contains: [{ begin: "''" }] }, { begin: '"', end: '"' }, { scope: "variable", begin: /[@:$][a-z\d_]+/ },
  ],
});

// Languages with C's comments, strings and numbers, and calls.
const likeC = (name: string, keywords: string, built_in: string, literal: string, more: Mode[] = []): LanguageFn => (h) => ({
  name, keywords: { keyword: keywords, built_in, literal },
  contains: [
    ...more, h.C_LINE_COMMENT_MODE, h.C_BLOCK_COMMENT_MODE, { scope: "string", begin: '"""', end: '"""' }, { scope: "string", begin: "`", end: "`" },
    h.APOS_STRING_MODE, h.QUOTE_STRING_MODE, h.C_NUMBER_MODE, { scope: "meta", begin: /@[A-Za-z]\w*/ },
    { scope: "title", begin: /(?<=\b(?:class|interface|enum|record|type)\s+)\w+/ },
    { scope: "title", begin: /\b(?!(?:if|for|while|switch|catch|return|func|synchronized)\b)[A-Za-z_]\w*(?=\s*\()/ },
  ],
});

export const java = likeC("Java", "abstract assert break case catch class const continue default do else enum extends final finally for if " +
  "implements import instanceof interface native new non-sealed package permits private protected public record return sealed static " +
  "super switch synchronized this throw throws transient try var volatile while yield",
  "boolean byte char double float int long short void", "true false null");
export const go = likeC("Go", "break case chan const continue default defer else fallthrough for func go goto if import interface map package " +
  "range return select struct switch type var",
  "any bool byte complex64 complex128 error float32 float64 int int8 int16 int32 int64 rune string uint uint8 uint16 uint32 uint64 uintptr " +
  "append cap clear close copy delete len make max min new panic print println recover", "true false nil iota");
export const rust = likeC("Rust", "as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut " +
  "pub ref return self Self static struct super trait type unsafe use where while",
  "bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize Box Err None Ok Option Result Some String Vec", "true false",
  [{ scope: "symbol", begin: /'[a-z_]\w*(?!')\b/ }, { scope: "meta", begin: /#!?\[[^\]]*\]/ }, { scope: "built_in", begin: /\b\w+!(?=\s*[([{])/ },
    { scope: "title", begin: /(?<=\b(?:fn|struct|trait|mod)\s+)\w+/ }]);
export const typescript = likeC("TypeScript", "abstract as asserts async await break case catch class const continue debugger declare default " +
  "delete do else enum export extends finally for from function get if implements import in infer instanceof interface is keyof let " +
  "namespace new of override private protected public readonly return satisfies set static super switch throw try type typeof using " +
  "var void while with yield",
  "any bigint boolean never number object string symbol unknown Array Boolean Date Error JSON Map Math Number Object Promise Record " +
  "RegExp Set String Symbol console document globalThis module process require this window",
  "true false null undefined NaN Infinity",
  [{ scope: "string", begin: "`", end: "`", contains: [{ scope: "char.escape", begin: /\\[^]/ }, { scope: "subst", begin: /\$\{/, end: /\}/ }] },
    { scope: "regexp", begin: /(?<=(?:^|[=(:,;!&|?[{]|\breturn)\s*)\/(?![*/])(?:[^\\/\n[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\/[dgimsuvy]*/ },
    { scope: "title", begin: /(?<=\bfunction\*?\s+)[\w$]+/ }]);
export const cpp = likeC("C++", "alignas alignof asm auto break case catch class co_await co_return co_yield concept const const_cast consteval " +
  "constexpr constinit continue decltype default delete do dynamic_cast else enum explicit export extern final for friend goto if inline " +
  "module mutable namespace new noexcept operator override private protected public register reinterpret_cast requires restrict return " +
  "sizeof static static_assert static_cast struct switch template this thread_local throw try typedef typeid typename union using virtual " +
  "volatile while",
  "bool char char16_t char32_t char8_t double float int int16_t int32_t int64_t int8_t long ptrdiff_t short signed size_t std string uint16_t " +
  "uint32_t uint64_t uint8_t unsigned void wchar_t FILE",
  "true false nullptr NULL",
  [{ scope: "meta", begin: /^[ \t]*#[ \t]*include\b/, end: /$/, contains: [{ scope: "string", begin: /<[^>\n]*>|"[^"\n]*"/ }] },
    { scope: "meta", begin: /^[ \t]*#[ \t]*\w+/ }, { scope: "string", begin: /R"([^()\s]{0,16})\([^]*?\)\1"/ }]);
export const ruby: LanguageFn = (h) => ({
  name: "Ruby",
  keywords: {
    keyword: "alias and begin break case class def defined? do else elsif end ensure for if in include module next not or private protected " +
      "public raise redo require rescue retry return self super then undef unless until when while yield",
    literal: "true false nil", built_in: "attr_accessor attr_reader attr_writer lambda loop p print proc puts",
  },
  contains: [
    h.HASH_COMMENT_MODE, h.COMMENT("^=begin", "^=end"), h.APOS_STRING_MODE, h.C_NUMBER_MODE,
    { scope: "string", begin: '"', end: '"', contains: [h.BACKSLASH_ESCAPE, { scope: "subst", begin: /#\{/, end: /\}/ }] },
    { scope: "symbol", begin: /(?<!:):[A-Za-z_]\w*[?!]?|\b[A-Za-z_]\w*:(?!:)/ }, { scope: "variable", begin: /[@$]{1,2}[A-Za-z_]\w*/ },
    { scope: "title", begin: /(?<=\b(?:def|class|module)\s+)[\w.:]+[?!=]?/ },
  ],
});
export const yaml: LanguageFn = (h) => ({
  name: "YAML", case_insensitive: true, keywords: { literal: "true false yes no null" },
  contains: [
    { scope: "attr", begin: /(?:"[^"]*"|[\w.$/][\w.$/ -]*)(?=:(?:\s|$))/ }, h.COMMENT("(?<!\\S)#", "$"), { scope: "meta", begin: /^(?:---|\.\.\.|%\w+.*)/ },
    { scope: "bullet", begin: /-(?=\s)/ }, h.QUOTE_STRING_MODE, { scope: "string", begin: "'", end: "'" },
    { scope: "meta", begin: /[&*!][\w.!-]+/ }, { scope: "string", begin: /[|>][+-]?$/ }, { scope: "number", begin: /(?<=[\s[,])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?\b(?![\w.:-])/ },
  ],
});
export const ini: LanguageFn = (h) => ({
  name: "INI, TOML", keywords: { literal: "true false on off yes no" },
  contains: [
    h.COMMENT("[;#]", "$"), { scope: "section", begin: /^\s*\[.*\]/ }, { scope: "attr", begin: /^\s*[\w."-]+(?=\s*=)/ },
    { scope: "string", begin: /"""|'''/, end: /"""|'''/ }, h.QUOTE_STRING_MODE, { scope: "string", begin: "'", end: "'" }, h.C_NUMBER_MODE,
  ],
});
