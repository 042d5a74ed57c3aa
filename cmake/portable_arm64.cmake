# cmake/portable.cmake for 64-bit Arm, with Debian's cross compiler; what the build runs of the program, qemu runs.
set(CARAT_TARGET aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;${CARAT_ROOT}")
include(${CMAKE_CURRENT_LIST_DIR}/portable.cmake)
