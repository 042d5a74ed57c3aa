#!/bin/sh
# Makes the files of a release from a tag or a commit. Usage: scripts/release.sh [--cuda] [--arm64 | --arm64-only] [COMMIT] [DIR]
#   COMMIT  default: HEAD     DIR  where the files go, default: build/dist
#   --cuda  one more file, for NVIDIA GPUs of compute capability 8.0 and later (needs nvcc; some 40 minutes on two cores)
#   --arm64 two more, for 64-bit Arm, by Debian's cross compiler and qemu-user; --arm64-only: these alone
# carat_VERSION_ARCH.deb and carat-VERSION-linux-CPU.tar.xz hold the same program, which needs glibc 2.31 and nothing else.
set -eu
cd "$(dirname "$0")/.."
cuda=no
archs=amd64
while :; do
  case ${1:-} in
    --cuda) cuda=yes ;;
    --arm64) archs="amd64 arm64" ;;
    --arm64-only) archs=arm64 ;;
    *) break ;;
  esac
  shift
done
commit=$(git rev-parse --verify "${1:-HEAD}^{commit}")
mkdir -p "${2:-build/dist}"
out=$(cd "${2:-build/dist}" && pwd)
. scripts/packages.sh
build_packages
case $archs in *arm64*)
  need g++-aarch64-linux-gnu aarch64-linux-gnu-g++ "compiler for 64-bit Arm"
  need qemu-user qemu-aarch64 "runs the program, which writes its own manual page" ;;
esac
install_missing
if [ $cuda = yes ]; then
  PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || { echo "scripts/release.sh --cuda needs nvcc: install NVIDIA's CUDA toolkit" >&2; exit 1; }
fi

# Files that were changed here are no part of a commit: it is built where it stands alone.
source=$PWD
alone=
if [ "$commit" != "$(git rev-parse HEAD)" ] || [ -n "$(git status --porcelain)" ]; then
  source=$PWD/build/release-source
  alone=/commit
  git worktree remove --force "$source" 2>/dev/null || true
  git worktree add --detach "$source" "$commit" >/dev/null
  trap 'git worktree remove --force "$source"' EXIT
fi
[ -f "$source/cmake/portable.cmake" ] || { echo "$commit is older than this script: it cannot be built for releases" >&2; exit 1; }
version=$(sed -n 's/^project(carat VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH

copy_licenses() {
  licenses=$portable/licenses
  rm -rf "$licenses"
  mkdir -p "$licenses"
  for package in gcc-12-base libboost1.74-dev libbsd-dev libcli11-dev libedit-dev libfmt-dev libmd-dev libtinfo6 libpcre2-dev libssl-dev nlohmann-json3-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev libwebp-dev; do
    cp "$portable/root/usr/share/doc/$package/copyright" "$licenses/$package.txt"
  done
  for name in curl cpp-httplib; do cp "$portable"/source/$name-*/debian/copyright "$licenses/$name.txt"; done
  cp "$source/web/dist/licenses.txt" "$licenses/page.txt"
}

# build KIND FLAGS...: KIND is cpu or cuda; into $into/KIND.
build() {
  kind=$1
  shift
  cmake -S "$source" -B "$into/$kind" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$source/cmake/$toolchain" \
    -DCARAT_ROOT="$portable/root" -DCARAT_TESTS=OFF -DCARAT_UNITY=ON -DCARAT_LICENSES="$licenses" -DCMAKE_INSTALL_PREFIX=/usr \
    -DCPACK_DEBIAN_PACKAGE_ARCHITECTURE=$arch "$@" >"$into/$kind.log" 2>&1 ||
    { tail -n 20 "$into/$kind.log" >&2; exit 1; }
  cmake --build "$into/$kind" --target package_files
  check_glibc "$into/$kind/apps/carat"
}
# The newest version of glibc's symbols is what the program needs.
check_glibc() {
  newest=$($objdump -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
  needs=$($objdump -p "$1" | sed -n 's/^ *NEEDED *//p' | paste -sd ' ')
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
  This folder may stand anywhere. It needs Linux on $cpu with glibc 2.31 or later, and nothing else.
EOF
  tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$2" | xz -T0 -6 >"$out/$2.tar.xz"
}
spdx() { python3 "$source/scripts/spdx.py" "$portable" "$source" "$version" "$commit" "$1" "$2" "$into/$1/apps/carat"; }

rm -f "$out"/carat[_-]* "$out/SHA256SUMS"
for arch in $archs; do
  case $arch in
    amd64) cpu=x86_64 toolchain=portable.cmake portable=$PWD/build/portable objdump=objdump ;;
    arm64) cpu=aarch64 toolchain=portable_arm64.cmake portable=$PWD/build/portable-arm64 objdump=aarch64-linux-gnu-objdump ;;
  esac
  into=$portable$alone
  mkdir -p "$into"
  scripts/portable.sh "$portable" $arch
  copy_licenses
  build cpu -DCARAT_CUDA=OFF
  (cd "$into/cpu" && cpack -B "$portable/deb" >"$portable/cpack.log" 2>&1) || { tail -n 20 "$portable/cpack.log" >&2; exit 1; }
  mv "$portable/deb/carat_${version}_$arch.deb" "$out/"
  pack cpu "carat-$version-linux-$cpu"
  [ -e "$out/carat-$version.spdx.json" ] || spdx cpu "carat-$version" >"$out/carat-$version.spdx.json"
  if [ $cuda = yes ] && [ $arch = amd64 ]; then
    build cuda -DCARAT_CUDA=ON -DCARAT_CUDA_ARCHITECTURES="80-real;86-real;89-real;90a-real;100a-real;120a-real;121a-real;120-virtual"
    pack cuda "carat-$version-linux-x86_64-cuda"
  fi
done
(cd "$out" && sha256sum carat[_-]* >SHA256SUMS)
ls -l "$out"
