#!/bin/sh
# The files of a release on bare systems without a compiler: the .deb on Debian 12 and 13, each .tar.xz on Debian 11; each answers one
# chat. Needs root. Usage: scripts/bare_release.sh [--arm64] [DIR]   (what scripts/release.sh made; default: build/dist)
#   --arm64  the files for 64-bit Arm instead, on Debian 11 in an emulator
set -eu
cd "$(dirname "$0")/.."
arm=
[ "${1:-}" != --arm64 ] || { arm=arm64; shift; }
dist=$(cd "${1:-build/dist}" && pwd)
(cd "$dist" && sha256sum -c --quiet SHA256SUMS)
. scripts/bare_root.sh
model=$(scripts/default-model.sh)
# try COMMAND: the program works as it is installed.
try() {
  cp "$model" "$root/root/model.gguf"
  if bare sh -c 'command -v c++ || command -v gcc || [ -e /usr/include/stdio.h ]'; then echo "the system has a compiler" >&2; exit 1; fi
  say "$(bare "$1" --version | head -n 1), glibc $(bare ldd --version | sed -n '1s/.* //p')"
  answer=$(bare "$1" run -m /root/model.gguf -p 'Repeat: apple' --temp 0 2>/dev/null)
  [ "$answer" = apple ] || { echo "carat run answers '$answer'" >&2; exit 1; }
  serve_one_chat "'$1' serve -m /root/model.gguf --port 0"
}

# The .deb of ARCH is installed, works, and is removed without a trace.
try_package() {
  cp "$dist"/carat_*_"$1".deb "$root/root/"
  bare sh -c 'dpkg -i /root/carat_*.deb' >"$cache/dpkg.log" 2>&1 || { cat "$cache/dpkg.log"; exit 1; }
  say "$suite: $(bare dpkg-query -W carat)"
  for file in bin/carat share/man/man1/carat.1.gz share/bash-completion/completions/carat share/zsh/vendor-completions/_carat \
    share/fish/vendor_completions.d/carat.fish lib/systemd/system/carat.service share/doc/carat/carat.ini; do
    bare dpkg-query -L carat | grep -qx "/usr/$file" && { [ -s "$root/usr/$file" ] || case $file in share/man/* | share/doc/*) true ;; *) false ;; esac; } ||
      { echo "the package has no /usr/$file" >&2; exit 1; }
  done
  try /usr/bin/carat
  bare dpkg -r carat >/dev/null
  [ ! -e "$root/usr/bin/carat" ] || { echo "the package is removed, and carat is there" >&2; exit 1; }
}
# try_archive FILE: unpacked where it may not be expected.
try_archive() {
  rm -rf "$root/opt/für alle"
  mkdir -p "$root/opt/für alle"
  tar -xJf "$1" -C "$root/opt/für alle"
  folder=$(cd "$root/opt/für alle" && echo carat-*)
  say "$suite: $folder"
  try "/opt/für alle/$folder/bin/carat"
  bare sh -c "ldd '/opt/für alle/$folder/bin/carat'" | sed 's/^/        /'
}

if [ -n "$arm" ]; then
  command -v qemu-aarch64-static >/dev/null || { echo "--arm64 needs Debian's qemu-user-static" >&2; exit 2; }
  emulate aarch64 '\xb7\x00'
  suite=bullseye
  make_root $suite arm64
  try_package arm64
  try_archive "$dist"/carat-*-linux-aarch64.tar.xz
  exit 0
fi
for suite in bookworm trixie; do
  make_root $suite
  try_package amd64
done
suite=bullseye
make_root bullseye
for archive in "$dist"/carat-*-linux-x86_64*.tar.xz; do try_archive "$archive"; done # with --cuda one for GPUs, too, which runs where none is
