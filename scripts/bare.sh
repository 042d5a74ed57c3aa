#!/bin/sh
# ./start on a bare Debian 12, in a folder: installs, builds, answers one chat, ends. Needs root.
# Usage: scripts/bare.sh [COMMIT | trixie | noble]   (default: the files as they are here; on a bare Debian 13, Ubuntu 24.04)
# Kept in .cache/bare: the base system and the packages that apt loaded. ccache, where it is here, is shared with the bare system.
set -eu
cd "$(dirname "$0")/.."
commit=
suite=bookworm
case ${1:-} in
  trixie | noble) suite=$1; unity=ON ;; # ./check compiles nothing with its compiler
  *) commit=${1:-} ;;
esac
clone="/root/Carat für alle" # a path that a careless script breaks on
. scripts/bare_root.sh
make_root $suite
if [ $suite != bookworm ]; then sources=; fi
[ -z "$sources" ] || rm -f "$root/etc/apt/sources.list" # it would name the same a second time
for file in $sources; do cp "$file" "$root$file"; done
for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
  case $file in *docker*) continue ;; esac # it would throw the loaded packages away
  if [ -f "$file" ]; then cp "$file" "$root$file"; fi
done
cp "$cache"/archives/*.deb "$root/var/cache/apt/archives/" 2>/dev/null || true
if command -v ccache >/dev/null 2>&1; then
  host=$(ccache -k cache_dir)
  mkdir -p "$host"
  mount --bind "$host" "$root/ccache"
  bare sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends ccache' >"$cache/ccache.log" 2>&1 ||
    { tail "$cache/ccache.log"; exit 1; }
fi
mkdir -p "$root$clone"
if [ -n "$commit" ]; then
  git archive "$commit" | tar -x -C "$root$clone"
else
  git ls-files -z -co --exclude-standard | xargs -0 sh -c 'for f; do [ ! -e "$f" ] || printf "%s\0" "$f"; done' - |
    tar -c --null -T - | tar -x -C "$root$clone"
fi
say "bare system: $(bare dpkg-query -f '.\n' -W | wc -l) packages$(bare sh -c 'command -v ccache >/dev/null && echo ", ccache among them"' || true)"
if bare sh -c 'command -v c++ || [ -e /usr/include/doctest ]'; then echo "the bare system is not bare" >&2; exit 1; fi

bare sh -c "cd '$clone' && ./start --setup"
say "./start --setup"
again=$(date +%s%N)
bare sh -c "cd '$clone' && ./start --setup" >/dev/null
again=$((($(date +%s%N) - again) / 1000000))
say "a second ./start --setup took $again ms"

serve_one_chat "sh -c 'cd \"$clone\" && exec ./start --port 0'"
