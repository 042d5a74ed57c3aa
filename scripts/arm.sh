#!/bin/sh
# Cross-compiles for 64-bit Arm and runs the contract's cases, goldens and a lossless sample under an emulator. Usage: scripts/arm.sh [--build]
#   --build  only make the root and compile
# Needs Debian's g++-aarch64-linux-gnu and qemu-user. Packages of the target go to build/arm64/root; the machine's own are not touched.
set -eu
cd "$(dirname "$0")/.."
dir=$PWD/build/arm64
root=$dir/root
# The libraries of scripts/packages.sh, for the target: those that are told by a header.
libraries=""
. scripts/packages.sh
need() { case $2 in /usr/include/*) libraries="$libraries $1" ;; esac; }
build_packages
packages="libc6-dev libstdc++-12-dev doctest-dev$libraries"
if [ "$(cat $dir/packages 2>/dev/null)" != "$packages" ]; then
  rm -rf $root
  mkdir -p $dir/apt/lists/partial $dir/apt/cache/archives/partial $root
  : >$dir/apt/status
  apt="apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root -o Dir::State::Lists=$dir/apt/lists
    -o Dir::Cache=$dir/apt/cache -o Dir::State::status=$dir/apt/status"
  $apt update
  $apt install --download-only -y --no-install-recommends $packages
  for deb in $dir/apt/cache/archives/*.deb; do dpkg-deb -x "$deb" $root; done
  printf '%s' "$packages" >$dir/packages
fi
tests="goldens_test isa_bytes_test"
[ -f $dir/build.ninja ] || cmake -S . -B $dir -G Ninja -DCMAKE_BUILD_TYPE=Release -DCARAT_CUDA=OFF -DCARAT_CUDA_EMULATED=OFF \
  -DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64.cmake -DCARAT_ROOT=$root -DCARAT_UNITY=ON
cmake --build $dir --target carat $tests
[ "${1:-}" = --build ] && exit 0
emulator="qemu-aarch64 -L $root"
$emulator $dir/tests/isa_bytes_test -tc='neon*' & # two cores
neon=$!
$emulator $dir/tests/isa_bytes_test -tc='i8mm*' &
i8mm=$!
$emulator $dir/tests/goldens_test
model=models/carat-demo/carat-demo-q5_k_m.gguf
prompt="Repeat: red green blue."
ask() { $emulator $dir/apps/carat --log-level error run -m $model --temp 0 -n 16 -p "$prompt" "$@"; }
ask >$dir/plain.txt
ask --spec ngram >$dir/drafts.txt
cmp $dir/plain.txt $dir/drafts.txt
wait $neon
wait $i8mm
