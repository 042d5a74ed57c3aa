import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

// The notices of what is in the bundle, beside it.
const notices = () => ({
  name: "notices",
  generateBundle() {
    const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
    const source = Object.keys(dependencies).sort().map((name) => {
      const of = (file) => readFileSync(`node_modules/${name}/${file}`, "utf8").trim();
      return `${name} ${JSON.parse(of("package.json")).version}\n\n${of("LICENSE")}\n`;
    }).join(`\n${"-".repeat(80)}\n\n`);
    this.emitFile({ type: "asset", fileName: "licenses.txt", source });
  },
});

// Temml as far as this page uses it: formulas as text, without mhchem (\ce and \pu), auto-render and DOM nodes; its table of
// accented letters is what String.normalize knows. An eighth of all that the page loads.
const lean = () => ({
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
    cut("let render = function", "/**\n * @type {import('./temml').renderToString}");
    cut("var temml$1 = {", "export { temml$1 as default };", "var temml$1 = { renderToString };\n");
    return { code: code.replace(/\n  toNode\(\) \{[^]*?\n  \}\n/g, "\n"), map: null };
  },
});

// Files with fixed names: the server knows them (src/serve/page.cc) and has no other.
export default defineConfig({
  plugins: [lean(), notices()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 100_000,
    rollupOptions: {
      output: { entryFileNames: "app.js", assetFileNames: "app[extname]", codeSplitting: false },
    },
  },
  // `npm run dev` beside a server on its usual port.
  server: { proxy: { "^/(v1|props|metrics|health|ready|slots)": "http://127.0.0.1:8080" } },
});
