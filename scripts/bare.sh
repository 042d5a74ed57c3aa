#!/bin/sh
# ./start on a bare Debian 12, in a folder: installs, builds, answers one chat, ends. Needs root.
# Usage: scripts/bare.sh [COMMIT]   (default: the files as they are here)
# Kept in .cache/bare: the base system and the packages that apt loaded. ccache, where it is here, is shared with the bare system.
set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "scripts/bare.sh needs root: it makes a system in a folder and enters it" >&2; exit 2; }
commit=${1:-}
cache=$(pwd)/.cache/bare
root=$(pwd)/build/bare
clone="/root/Carat für alle" # a path that a careless script breaks on
mkdir -p "$cache"
exec 8>"$cache/lock"
flock -n 8 || { echo "another scripts/bare.sh is at work here" >&2; exit 2; }
began=$(date +%s)
say() { printf '%4d s  %s\n' $(($(date +%s) - began)) "$*"; }

server=
end() {
  status=$?
  trap - EXIT
  if [ -n "$server" ]; then kill -TERM "$server" 2>/dev/null || true; fi
  if [ -d "$root/var/cache/apt/archives" ]; then
    mkdir -p "$cache/archives"
    cp -u "$root"/var/cache/apt/archives/*.deb "$cache/archives/" 2>/dev/null || true
  fi
  umount "$root/ccache" "$root/proc" 2>/dev/null || true
  if grep -q " $root/" /proc/mounts; then echo "still mounted below $root; it is left there" >&2; else rm -rf "$root"; fi
  exit $status
}
trap end EXIT
trap 'exit 1' INT TERM

# The base, as the machine's own apt reaches Debian.
sources=$(grep -lr bookworm /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | xargs -r grep -l 'debian-archive\|deb\.debian\.org' || true)
mirror=$(cat $sources /dev/null | grep -ohE 'https?://[^ ]*/debian/?( |$)' | head -n 1)
if [ ! -e "$cache/base.done" ]; then
  rm -rf "$cache/base"
  mkdir -p "$cache"
  debootstrap --variant=minbase bookworm "$cache/base" "${mirror:-http://deb.debian.org/debian}" >"$cache/debootstrap.log" 2>&1 ||
    { tail -n 20 "$cache/debootstrap.log"; exit 1; }
  touch "$cache/base.done"
  say "debootstrap"
fi
umount "$root/ccache" "$root/proc" 2>/dev/null || true
if grep -q " $root/" /proc/mounts; then echo "still mounted below $root" >&2; exit 1; fi
rm -rf "$root"
mkdir -p "$root"
cp -a "$cache/base/." "$root/"
[ -z "$sources" ] || rm -f "$root/etc/apt/sources.list" # it would name the same a second time
for file in $sources; do cp "$file" "$root$file"; done
for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
  case $file in *docker*) continue ;; esac # it would throw the loaded packages away
  if [ -f "$file" ]; then cp "$file" "$root$file"; fi
done
for file in /etc/hosts /etc/resolv.conf; do cp "$file" "$root$file" 2>/dev/null || true; done
cp "$cache"/archives/*.deb "$root/var/cache/apt/archives/" 2>/dev/null || true
mkdir -p "$root/proc" "$root/ccache"
mount -t proc proc "$root/proc" 2>/dev/null || true

# CARAT_WERROR, LANG: what ./check compiled in the same way comes from ccache.
enter() { exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CCACHE_DIR=/ccache CARAT_WERROR=ON ${LANG:+LANG=$LANG} chroot "$root" "$@"; }
bare() (enter "$@")
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

log=$cache/serve.log
enter sh -c "cd '$clone' && exec ./start --port 0" >"$log" 2>&1 &
server=$!
url=
for i in $(seq 600); do
  url=$(sed -n 's/^Serving .* at \(http:[^ ]*\).*/\1/p' "$log")
  [ -z "$url" ] || break
  kill -0 $server 2>/dev/null || break
  sleep 0.1
done
[ -n "$url" ] || { echo "the server did not start:"; cat "$log"; exit 1; }
answer=$(curl -sS -m 120 "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Repeat: apple"}], "max_tokens": 20, "temperature": 0}')
case $answer in
  *'"content":"'[!\"]*) say "answered: $(printf '%s' "$answer" | grep -oE '"content":"[^"]*"' | head -n 1)" ;;
  *) echo "no answer: $answer"; cat "$log"; exit 1 ;;
esac
kill -TERM $server
wait $server || { echo "the server ended with status $?"; cat "$log"; exit 1; }
server=
say "served and stopped"
