# Sourced by start, which sets build (the build folder) and cuda (yes: asked for with --cuda).

# Sets cuda_switch and architectures for this machine and says why in one line. The GPU that is here alone is compiled
# for: each further architecture costs minutes.
choose_cuda() {
  cuda_switch=OFF
  architectures=
  PATH=$PATH:/usr/local/cuda/bin
  if [ $cuda = no ] && [ ! -e /dev/nvidia0 ] && ! nvidia-smi -L >/dev/null 2>&1; then
    echo "No GPU is here: CUDA is left out (./start --cuda builds it all the same)."
  elif command -v nvcc >/dev/null 2>&1; then
    cuda_switch=ON
    # 8.6 -> 86-real, 9.0 -> 90a-real: from Hopper on the kernels use what only the "a" variant has.
    architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
      sed -nE 's/^([0-9]+)\.([0-9]+).*/\1\2/p' | sort -un | sed -E 's/$/-real/; s/^(9|1[0-9])([0-9])-/\1\2a-/' | paste -sd ';')
    echo "CUDA is built for ${architectures:-the default architectures}."
  elif [ $cuda = yes ]; then
    echo "./start --cuda needs nvcc: install NVIDIA's CUDA toolkit, then run it again." >&2
    exit 1
  else
    echo "A GPU is here, but no nvcc: this build computes on the CPU. For the GPU, install NVIDIA's CUDA toolkit and run ./start --cuda."
  fi
}

# A build folder that ./check made stays as it is, unless CUDA is asked for and left out there.
configure_for_this_machine() {
  if [ -f $build/build.ninja ] &&
    { [ $cuda = no ] || ! grep -q '^CARAT_CUDA:STRING=OFF' $build/CMakeCache.txt; }; then
    return 0
  fi
  choose_cuda
  # Several files in one compilation: half the work of a first build. CARAT_UNITY=OFF: each alone, as ./check compiles
  # them, so that ccache finds what it compiled.
  unity=${CARAT_UNITY:-ON}
  echo "Configuring ($build; log: build/configure.log)"
  set -- --preset release -DCARAT_CUDA=$cuda_switch -DCARAT_WERROR=${CARAT_WERROR:-OFF} -DCARAT_UNITY=$unity
  [ -f $build/build.ninja ] || set -- "$@" -DCARAT_TESTS=OFF
  [ -z "$architectures" ] || set -- "$@" "-DCARAT_CUDA_ARCHITECTURES=$architectures"
  cmake "$@" >build/configure.log 2>&1 || {
    tail -n 20 build/configure.log >&2
    echo "Configuring failed; the whole log is build/configure.log." >&2
    exit 1
  }
}

# Reads ninja's lines "@DONE/ALL SECONDS@ ..." and draws a bar with the time left: on a terminal in place, elsewhere a
# line each tenth.
show_progress() {
  terminal=no
  [ ! -t 2 ] || terminal=yes
  tenth=0
  while IFS= read -r line; do
    case $line in @[0-9]*/*@*) ;; *) continue ;; esac
    line=${line#@}
    done=${line%%/*}
    line=${line#*/}
    all=${line%% *}
    line=${line#* }
    seconds=${line%%.*}
    [ "$all" -gt 0 ] 2>/dev/null || continue
    left=$((seconds * (all - done) / (done > 0 ? done : 1)))
    text="$done of $all files"
    # What the first seconds say of the others is nothing.
    [ "$seconds" -lt 5 ] || text=$(printf '%s, %d:%02d left' "$text" $((left / 60)) $((left % 60)))
    if [ $terminal = yes ]; then
      bar=$(printf '%*s' $((done * 30 / all)) '' | tr ' ' '#')
      printf '\r[%-30s] %s\033[K' "$bar" "$text" >&2
    elif [ $((done * 10 / all)) -gt $tenth ]; then
      tenth=$((done * 10 / all))
      echo "  $text" >&2
    fi
  done
  [ $terminal = no ] || printf '\r\033[K' >&2
}

run_ninja() {
  { NINJA_STATUS='@%f/%t %e@ ' ninja -C $build carat 2>&1 || : >build/build.failed; } | tee build/build.log | show_progress
}
build_carat() {
  if [ -x $build/apps/carat ] && ninja -C $build -n carat 2>/dev/null | grep -q 'no work to do'; then return 0; fi
  echo "Building carat (log: build/build.log)"
  began=$(date +%s)
  rm -f build/build.failed
  run_ninja
  # Several files in one are half the work, but a name of one may meet a name of another.
  if [ -e build/build.failed ] && grep -q '^CARAT_UNITY:BOOL=ON' $build/CMakeCache.txt; then
    echo "Files of the server or the commands do not compile together; compiling one at a time." >&2
    cp build/build.log build/build-unity.log
    cmake -DCARAT_UNITY=OFF $build >>build/configure.log 2>&1
    rm -f build/build.failed
    run_ninja
  fi
  if [ -e build/build.failed ] || [ ! -x $build/apps/carat ]; then
    grep -E 'error|Error|FAILED' build/build.log | head -n 20 >&2
    echo "The build failed; the whole log is build/build.log." >&2
    exit 1
  fi
  echo "Built in $(($(date +%s) - began)) s."
}
