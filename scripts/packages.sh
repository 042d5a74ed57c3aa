# Sourced by start and check: says which Debian packages are missing and why, and installs them.
# need PACKAGE COMMAND-OR-FILE WHY: queues PACKAGE unless the command or file is there.
missing=""
need() {
  case $2 in
    /*) [ -e "$2" ] && return 0 ;;
    *) command -v "$2" >/dev/null 2>&1 && return 0 ;;
  esac
  dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed' && return 0
  printf '  %-24s %s\n' "$1" "$3"
  missing="$missing $1"
}

build_packages() {
  need g++ c++ "C++20 compiler"
  need cmake cmake "build system"
  need ninja-build ninja "runs the build"
  need pkg-config pkg-config "finds libraries"
  need libfmt-dev /usr/include/fmt/format.h "text formatting"
  need nlohmann-json3-dev /usr/include/nlohmann/json.hpp "JSON"
  need libboost-dev /usr/include/boost/beast/version.hpp "event loop and HTTP parser (headers)"
  need libssl-dev /usr/include/openssl/ssl.h "HTTPS"
  need libcpp-httplib-dev /usr/include/httplib.h "HTTP client"
  need libcli11-dev /usr/include/CLI/CLI.hpp "command line and configuration file"
  need libpcre2-dev /usr/include/pcre2.h "tokenizer patterns"
  need libcurl4-openssl-dev /usr/include/x86_64-linux-gnu/curl/curl.h "loads models (-hf)"
  need libedit-dev /usr/include/histedit.h "line editing in carat run"
  need libjpeg-dev /usr/include/jpeglib.h "JPEG pictures"
  need libpng-dev /usr/include/png.h "PNG pictures"
  need libwebp-dev /usr/include/webp/demux.h "WebP pictures"
  need libsndfile1-dev /usr/include/sndfile.h "FLAC, MP3 and Ogg sound"
  need libsoxr-dev /usr/include/soxr.h "changes rates of sound"
}

install_missing() {
  [ -z "$missing" ] && return 0
  by_hand="apt-get install --no-install-recommends$missing"
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "The packages above are missing (their names are Debian's). Install them with this system's package manager, then run this again." >&2
    exit 1
  fi
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    sudo=sudo
    command -v sudo >/dev/null 2>&1 || {
      echo "The packages above are missing, and installing them needs root: this user is not root, and sudo is not here." >&2
      echo "Let root run this once, then run this again:" >&2
      echo "  $by_hand" >&2
      exit 1
    }
  fi
  echo "Installing:$missing"
  export DEBIAN_FRONTEND=noninteractive
  # Another apt at work is waited for.
  wait="-o DPkg::Lock::Timeout=300"
  $sudo apt-get $wait update -qq && $sudo apt-get $wait install -y -qq --no-install-recommends $missing >/dev/null || {
    echo "Installing packages failed. Run this as root to see why, then run this again:" >&2
    echo "  $by_hand" >&2
    exit 1
  }
}
