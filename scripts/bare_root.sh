# Sourced by bare.sh and bare_release.sh: a minimal system in the folder $root, made from a base that $cache keeps.
[ "$(id -u)" = 0 ] || { echo "$0 needs root: it makes a system in a folder and enters it" >&2; exit 2; }
cache=$(pwd)/.cache/bare
root=$(pwd)/build/bare
mkdir -p "$cache"
exec 8>"$cache/lock"
flock -n 8 || { echo "another script is at work in build/bare" >&2; exit 2; }
began=$(date +%s)
say() { printf '%4d s  %s\n' $(($(date +%s) - began)) "$*"; }

server=
remove_root() {
  umount "$root/ccache" "$root/proc" 2>/dev/null || true
  if grep -q " $root/" /proc/mounts; then echo "still mounted below $root; it is left there" >&2; return 1; fi
  rm -rf "$root"
}
end() {
  status=$?
  trap - EXIT
  if [ -n "$server" ]; then kill -TERM "$server" 2>/dev/null || true; fi
  if [ -d "$root/var/cache/apt/archives" ]; then
    mkdir -p "$cache/archives"
    cp -u "$root"/var/cache/apt/archives/*.deb "$cache/archives/" 2>/dev/null || true
  fi
  remove_root || true
  stop_emulating
  exit $status
}
trap end EXIT
trap 'exit 1' INT TERM

# emulate CPU MACHINE: until the script ends the kernel runs this CPU's programs by qemu-CPU-static, in a changed root, too (F).
# MACHINE: e_machine in ELF. A machine that has such a rule of its own keeps it.
emulated=
mounted=
emulate() {
  rules=/proc/sys/fs/binfmt_misc
  [ -e $rules/register ] || { mount -t binfmt_misc binfmt_misc $rules; mounted=$rules; }
  [ ! -e "$rules/qemu-$1" ] || return 0
  emulated=$rules/carat-$1
  [ ! -e "$emulated" ] || printf -- -1 >"$emulated"
  head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  printf '%s' ":carat-$1:M::$head$2:$mask:$(command -v "qemu-$1-static"):F" >$rules/register
}
stop_emulating() {
  if [ -n "$emulated" ] && [ -e "$emulated" ]; then printf -- -1 >"$emulated"; fi
  if [ -n "$mounted" ]; then umount "$mounted" || true; fi
}

# The base, as the machine's own apt reaches Debian.
sources=$(grep -lr bookworm /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | xargs -r grep -l 'debian-archive\|deb\.debian\.org' || true)
mirror=$(cat $sources /dev/null | grep -ohE 'https?://[^ ]*/debian/?( |$)' | head -n 1)
# from SUITE: debootstrap's arguments, in $cache. Debian may have no keys of Ubuntu's.
from() {
  case $1 in
    noble)
      keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
      if [ -e $keys ]; then echo --keyring=$keys; else echo --no-check-gpg; fi
      echo "--components=main,universe noble ${base##*/} http://archive.ubuntu.com/ubuntu /usr/share/debootstrap/scripts/gutsy" ;;
    *) echo "$1 ${base##*/} ${mirror:-http://deb.debian.org/debian}" ;;
  esac
}
# make_root SUITE [ARCH]: bookworm's is .cache/bare/base, another's base-SUITE. ARCH: another machine's, which emulate() runs.
make_root() {
  base=$cache/base
  [ "$1" = bookworm ] || base=$cache/base-$1
  [ -z "${2:-}" ] || base=$base-$2
  if [ ! -e "$base.done" ]; then
    rm -rf "$base"
    (cd "$cache" && debootstrap --variant=minbase ${2:+--arch=$2 --foreign} $(from "$1") &&
      { [ -z "${2:-}" ] || chroot "$base" /debootstrap/debootstrap --second-stage; }) >"$cache/debootstrap.log" 2>&1 ||
      { tail -n 20 "$cache/debootstrap.log"; exit 1; }
    touch "$base.done"
    say "debootstrap $1 ${2:-}"
  fi
  remove_root || exit 1
  mkdir -p "$root"
  cp -a "$base/." "$root/"
  for file in /etc/hosts /etc/resolv.conf; do cp "$file" "$root$file" 2>/dev/null || true; done
  mkdir -p "$root/proc" "$root/ccache"
  mount -t proc proc "$root/proc" 2>/dev/null || true
}

# CARAT_WERROR, CARAT_UNITY, LANG: what ./check compiled in the same way comes from ccache.
enter() { exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CCACHE_DIR=/ccache CARAT_WERROR=ON CARAT_UNITY=${unity:-OFF} ${LANG:+LANG=$LANG} chroot "$root" "$@"; }
bare() (enter "$@")

# serve_one_chat COMMAND: COMMAND, in the system's shell, serves on a port of its own; it is asked once, and stopped.
serve_one_chat() {
  log=$cache/serve.log
  enter sh -c "exec $1" >"$log" 2>&1 &
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
}
