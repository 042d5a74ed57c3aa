#!/bin/sh
# The page at /: its unit tests, in a real Chromium with axe-core, and whether web/dist is what web/ makes. Usage: scripts/page.sh [SCREENSHOTS]
set -eu
cd "$(dirname "$0")/.."
. tests/serve_for.sh
[ -d web/node_modules/vitest ] || (cd web && npm ci --silent --ignore-scripts --no-audit --no-fund)
(cd web && npm run --silent lint && npm test --silent && npx --no-install vite build --logLevel warn --outDir ../build/page --emptyOutDir)
diff -rq build/page web/dist || { echo "web/dist is not what web/ makes: cd web && npm run build" >&2; exit 1; }
size=$(for file in web/dist/*; do [ "$file" = web/dist/licenses.txt ] || gzip -9c "$file"; done | wc -c)
echo "the page's files: $size bytes gzipped"
[ "$size" -lt 150000 ] || { echo "the page has grown beyond 150 KB" >&2; exit 1; }
[ -d tests/page/node_modules/axe-core ] || (cd tests/page && npm ci --silent --ignore-scripts --no-audit --no-fund)
# A port that was free a moment ago, for the MCP server of the tests.
MCP_PORT=$(node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })')
export MCP_PORT
run() { node tests/page/page.mjs "$URL" test-key "$@"; }
# Drafts in every answer, however fast the machine is.
with_server build/release/apps/carat -m "$(scripts/default-model.sh)" --api-key test-key -c 4096 --spec auto --spec-policy fixed \
  --page-origin "http://127.0.0.1:$MCP_PORT" -- run "$@"
see() { node tests/page/see.mjs "$URL" test-key "$@"; }
with_server build/release/apps/carat -m "$(tests/seeing/model.sh)" --device cpu --api-key test-key -c 2048 -b 512 -- see "$@"
keeps=$(mktemp -d)
versions() { node tests/page/versions.mjs "$URL" test-key "${1:-}" build/release/apps/carat "$keeps" "$(scripts/default-model.sh)"; }
with_server build/release/apps/carat -m "$(scripts/default-model.sh)" --api-key test-key -c 1024 --promotions "$keeps" -- versions "$@"
rm -rf "$keeps"
