#!/bin/sh
# The page at / in a real Chromium, with axe-core; and whether web/dist is what web/ makes. Usage: scripts/page.sh [SCREENSHOTS]
set -eu
cd "$(dirname "$0")/.."
. tests/serve_for.sh
[ -d web/node_modules/vite ] || (cd web && npm ci --silent --ignore-scripts --no-audit --no-fund)
(cd web && npm run --silent lint && npx --no-install vite build --logLevel warn --outDir ../build/page --emptyOutDir)
diff -rq build/page web/dist || { echo "web/dist is not what web/ makes: cd web && npm run build" >&2; exit 1; }
[ -d tests/page/node_modules/axe-core ] || (cd tests/page && npm ci --silent --ignore-scripts --no-audit --no-fund)
run() { node tests/page/page.mjs "$URL" test-key "$@"; }
with_server build/release/apps/carat -m "$(scripts/default-model.sh)" --api-key test-key -c 4096 --spec auto -- run "$@"
