#!/bin/sh
# Makes DIR/root, against which carat is linked for glibc 2.31 and later (Debian 11, Ubuntu 20.04, RHEL 9) with nothing else to
# install: Debian 11's C library, Debian 12's C++ library and static libraries, libcurl with HTTP alone.
# Usage: scripts/portable.sh DIR [amd64|arm64]
# It comes through apt (network); the machine's own packages are not touched, but for those that scripts/packages.sh names.
set -eu
cd "$(dirname "$0")/.."
dir=${1:?scripts/portable.sh DIR}
arch=${2:-amd64}
case $arch in amd64) cpu=x86_64 ;; arm64) cpu=aarch64 ;; *) echo "scripts/portable.sh knows amd64 and arm64" >&2; exit 2 ;; esac
triplet=$cpu-linux-gnu
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
root=$dir/root
. scripts/packages.sh
need patch patch "Debian's patches of libcurl"
need make make "builds libcurl"
need dpkg-dev dpkg-source "unpacks sources"
gcc=gcc
if [ "$triplet" != "$(gcc -dumpmachine)" ]; then
  gcc="$triplet-gcc -B$root/usr/lib/$triplet/"
  need "g++-$(echo $triplet | tr _ -)" "$triplet-g++" "compiler for $arch"
fi
install_missing

# apt_in SUITE TYPE ARGS...: an apt of its own for this suite and its security updates.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -ohE 'https?://[^ ]*/debian/?( |$)' | head -n 1)
mirror=$(echo ${mirror:-http://deb.debian.org/debian})
apt_in() (
  state=$dir/apt/$1-$2
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  : >"$state/status"
  keys='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
  printf '%s\n' "$2 $keys $mirror $1 main" >"$state/sources.list"
  # Debian's index lists updates of Debian 11 for Arm whose files are gone. The program holds crt1.o, libc_nonshared.a and the unwinder of it.
  [ "$1 $arch" = "bullseye arm64" ] || printf '%s\n' "$2 $keys ${mirror%/}-security $1-security main" >>"$state/sources.list"
  shift 2
  apt-get -qq -o APT::Architecture=$arch -o APT::Architectures=$arch -o Dir::Etc::SourceList="$state/sources.list" \
    -o Dir::Etc::SourceParts=/dev/null -o APT::Sandbox::User=root \
    -o Dir::State::Lists="$state/lists" -o Dir::Cache="$state/cache" -o Dir::State::status="$state/status" "$@"
)
# unpack SUITE ROOT PACKAGE...: these alone, without what they depend on.
unpack() (
  suite=$1
  into=$2
  shift 2
  debs=$dir/apt/debs-$suite-$1
  apt_in "$suite" deb update
  rm -rf "$debs"
  mkdir -p "$debs"
  cd "$debs"
  apt_in "$suite" deb download "$@"
  for deb in ./*.deb; do dpkg-deb -x "$deb" "$into"; done
)

old="libc6 libc6-dev libcrypt1 libcrypt-dev linux-libc-dev"
new="gcc-12-base libstdc++-12-dev libfmt9 libfmt-dev nlohmann-json3-dev libboost1.74-dev libssl-dev libcli11-dev libpcre2-dev libedit-dev libbsd-dev libmd-dev libtinfo6 libncurses-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev libwebp-dev"
recipe="$arch; $old; $new; $(cksum <scripts/portable.sh)"
if [ "$(cat "$dir/recipe" 2>/dev/null)" != "$recipe" ]; then
  rm -rf "$root" "$dir/source"
  mkdir -p "$root/eh" "$dir/source"
  unpack bullseye "$root" $old
  for library in dl pthread rt util; do rm "$root/usr/lib/$triplet/lib$library.a"; done # glibc's parts are never linked statically
  unpack bookworm "$root" $new
  # Links that lead out of the root would find this machine's libraries.
  find "$root" -type l -lname '/*' | while IFS= read -r link; do ln -sf "$root$(readlink "$link")" "$link"; done
  unpack bullseye "$dir/apt/gcc-10" libgcc-10-dev
  cp "$dir/apt/gcc-10/usr/lib/gcc/$triplet/10/libgcc_eh.a" "$root/eh/"
  apt_in bookworm deb-src update
  (cd "$dir/source" && apt_in bookworm deb-src source curl cpp-httplib)
  cp "$dir"/source/cpp-httplib-*/httplib.h "$root/usr/include/"
  sed "s/^  //" >"$root/usr/lib/$triplet/pkgconfig/cpp-httplib.pc" <<EOF
  Name: cpp-httplib
  Description: one header
  Version: 0.11.4
  Cflags: -DCPPHTTPLIB_OPENSSL_SUPPORT
EOF
  mkdir -p "$dir/source/curl"
  (
    cd "$dir"/source/curl && ../curl-*/configure --host=$triplet --prefix=/usr --libdir=/usr/lib/$triplet \
      CC="$gcc --sysroot=$root" LIBS="-ldl -lpthread" --with-openssl="$root/usr" --disable-shared --enable-static --without-zlib --without-brotli --without-zstd \
      --without-libpsl --without-libidn2 --without-nghttp2 --without-librtmp --without-libssh2 --disable-ldap --disable-ldaps --disable-manual \
      --disable-ftp --disable-file --disable-dict --disable-telnet --disable-tftp --disable-pop3 --disable-imap --disable-smb --disable-smtp \
      --disable-gopher --disable-mqtt --disable-rtsp --disable-ntlm --disable-unix-sockets --disable-libcurl-option --with-ca-fallback \
      --with-ca-bundle=/etc/ssl/certs/ca-certificates.crt --without-ca-path >configure.log 2>&1 || { tail -n 20 configure.log >&2; exit 1; }
    make -C lib -j "$(nproc)" >make.log 2>&1 && make -C lib install DESTDIR="$root" >>make.log 2>&1 &&
      make -C include install DESTDIR="$root" >>make.log 2>&1 && cp libcurl.pc "$root/usr/lib/$triplet/pkgconfig/" || { tail -n 20 make.log >&2; exit 1; }
  )
  printf '%s' "$recipe" >"$dir/recipe"
fi

