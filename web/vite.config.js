import { readFileSync } from "node:fs";
import { defineConfig } from "vite";
import { lean } from "./lean.js";

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
