// Temml as far as this page uses it: formulas as text, without mhchem (\ce and \pu), auto-render and DOM nodes; its table of
// accented letters is what String.normalize knows. An eighth of all that the page loads.
export const lean = () => ({
  name: "lean",
  transform(code, id) {
    if (!id.endsWith("/temml.mjs")) return;
    const cut = (from, to, instead = "") => {
      const a = code.indexOf(from), b = code.indexOf(to, a);
      if (a < 0 || b < a) this.error(`temml has no ${JSON.stringify(from)} where it was`);
      code = code.slice(0, a) + instead + code.slice(b);
    };
    cut("\uFEFF/* eslint-disable */", "// texvc.sty");
    cut("var unicodeSymbols = {", "\n};", `var unicodeSymbols = {};
for (let c = 0xc0; c < 0x2000; c++) {
  const letter = String.fromCharCode(c), parts = letter.normalize("NFD");
  if (parts !== letter && [...parts].slice(1).every((one) => one in unicodeAccents)) unicodeSymbols[letter] = parts;
}
{`);
    // Colours are styles, which the page's policy does not let in; of linear logic's symbols, links and pictures nobody asks.
    cut("const xcolors = JSON.parse(", "const colorFromSpec = ", "const xcolors = {};\n");
    cut("defineMacro(\"\\\\invamp\"", "// chemstyle package");
    cut("class Img {", "//\n/**\n * These objects store data about MathML nodes.");
    cut("defineFunction({\n  type: \"html\"", "// Horizontal spacing commands");
    cut("let render = function", "/**\n * @type {import('./temml').renderToString}");
    cut("var temml$1 = {", "export { temml$1 as default };", "var temml$1 = { renderToString };\n");
    return { code: code.replace(/\n  toNode\(\) \{[^]*?\n  \}\n/g, "\n"), map: null };
  },
});
