#!/bin/sh
# Makes the files of a release from a tag or a commit. Usage: scripts/release.sh [--cuda] [COMMIT] [DIR]
#   COMMIT  default: HEAD     DIR  where the files go, default: build/dist
#   --cuda  a third file, for NVIDIA GPUs of compute capability 8.0 and later (needs nvcc; some 40 minutes on two cores)
# carat_VERSION_amd64.deb and carat-VERSION-linux-x86_64.tar.xz hold the same program, which needs glibc 2.31 and nothing else.
set -eu
cd "$(dirname "$0")/.."
cuda=no
[ "${1:-}" != --cuda ] || { cuda=yes; shift; }
commit=$(git rev-parse --verify "${1:-HEAD}^{commit}")
mkdir -p "${2:-build/dist}"
out=$(cd "${2:-build/dist}" && pwd)
portable=$PWD/build/portable
. scripts/packages.sh
build_packages
install_missing
if [ $cuda = yes ]; then
  PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || { echo "scripts/release.sh --cuda needs nvcc: install NVIDIA's CUDA toolkit" >&2; exit 1; }
fi
scripts/portable.sh "$portable"

# Files that were changed here are no part of a commit: it is built where it stands alone.
source=$PWD
into=$portable
if [ "$commit" != "$(git rev-parse HEAD)" ] || [ -n "$(git status --porcelain)" ]; then
  source=$PWD/build/release-source
  into=$portable/commit
  mkdir -p "$into"
  git worktree remove --force "$source" 2>/dev/null || true
  git worktree add --detach "$source" "$commit" >/dev/null
  trap 'git worktree remove --force "$source"' EXIT
fi
[ -f "$source/cmake/portable.cmake" ] || { echo "$commit is older than this script: it cannot be built for releases" >&2; exit 1; }
version=$(sed -n 's/^project(carat VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH

licenses=$portable/licenses
rm -rf "$licenses"
mkdir -p "$licenses"
for package in gcc-12-base libboost1.74-dev libbsd-dev libcli11-dev libedit-dev libfmt-dev libmd-dev libtinfo6 libpcre2-dev libssl-dev nlohmann-json3-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev libwebp-dev; do
  cp "$portable/root/usr/share/doc/$package/copyright" "$licenses/$package.txt"
done
for name in curl cpp-httplib; do cp "$portable"/source/$name-*/debian/copyright "$licenses/$name.txt"; done
cp "$source/web/dist/licenses.txt" "$licenses/page.txt"

# build KIND FLAGS...: KIND is cpu or cuda; into $into/KIND.
build() {
  kind=$1
  shift
  cmake -S "$source" -B "$into/$kind" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$source/cmake/portable.cmake" \
    -DCARAT_ROOT="$portable/root" -DCARAT_TESTS=OFF -DCARAT_UNITY=ON -DCARAT_LICENSES="$licenses" -DCMAKE_INSTALL_PREFIX=/usr "$@" >"$into/$kind.log" 2>&1 ||
    { tail -n 20 "$into/$kind.log" >&2; exit 1; }
  cmake --build "$into/$kind" --target package_files
  check_glibc "$into/$kind/apps/carat"
}
# The newest version of glibc's symbols is what the program needs.
check_glibc() {
  newest=$(objdump -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
  needs=$(objdump -p "$1" | sed -n 's/^ *NEEDED *//p' | paste -sd ' ')
  echo "$1: $newest; $needs"
  [ "$(printf '%s\nGLIBC_2.31\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.31 ] || { echo "it needs a newer glibc than 2.31" >&2; exit 1; }
  for library in $needs; do
    case $library in libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux-*) ;; *) echo "it needs $library, too" >&2; exit 1 ;; esac
  done
}
# pack KIND NAME: one folder, which may stand anywhere.
pack() {
  stage=$portable/stage
  rm -rf "$stage"
  DESTDIR= cmake --install "$into/$1" --strip --prefix "$stage/$2" >/dev/null
  spdx "$1" "$2" >"$stage/$2/share/doc/carat/carat.spdx.json"
  sed "s/^  //" >"$stage/$2/README" <<EOF
  Carat $version ($commit)
  bin/carat --help         every command
  bin/carat run -m FILE    chat with a model (-hf OWNER/REPO:QUANT loads one of Hugging Face)
  This folder may stand anywhere. It needs Linux on x86-64 with glibc 2.31 or later, and nothing else.
EOF
  tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$2" | xz -T0 -6 >"$out/$2.tar.xz"
}
spdx() { python3 "$source/scripts/spdx.py" "$portable" "$source" "$version" "$commit" "$1" "$2" "$into/$1/apps/carat"; }

rm -f "$out"/carat[_-]* "$out/SHA256SUMS"
build cpu -DCARAT_CUDA=OFF
(cd "$into/cpu" && cpack -B "$portable/deb" >"$portable/cpack.log" 2>&1) || { tail -n 20 "$portable/cpack.log" >&2; exit 1; }
mv "$portable/deb/carat_${version}_amd64.deb" "$out/"
pack cpu "carat-$version-linux-x86_64"
spdx cpu "carat-$version" >"$out/carat-$version.spdx.json"
if [ $cuda = yes ]; then
  build cuda -DCARAT_CUDA=ON -DCARAT_CUDA_ARCHITECTURES="80-real;86-real;89-real;90a-real;100a-real;120a-real;121a-real;120-virtual"
  pack cuda "carat-$version-linux-x86_64-cuda"
fi
(cd "$out" && sha256sum carat[_-]* >SHA256SUMS)
ls -l "$out"
