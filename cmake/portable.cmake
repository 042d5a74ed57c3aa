# A program for glibc 2.31 and later: Debian 12's compiler on Debian 11's C library, everything else linked statically.
# scripts/portable.sh makes the root that -DCARAT_ROOT names.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_LIBRARY_ARCHITECTURE x86_64-linux-gnu)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CARAT_ROOT)
set(CMAKE_SYSROOT ${CARAT_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(OPENSSL_USE_STATIC_LIBS ON)
set(CARAT_PORTABLE ON)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CARAT_ROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CARAT_ROOT}/usr/lib/x86_64-linux-gnu/pkgconfig:${CARAT_ROOT}/usr/share/pkgconfig)
# eh: the unwinder of Debian 11, as Debian 12's asks glibc 2.35 for its tables. -B: the compiler looks for libc and crt1.o
# beside itself first, where this machine's are.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-static-libstdc++ -static-libgcc -L${CARAT_ROOT}/eh -B${CARAT_ROOT}/usr/lib/x86_64-linux-gnu/")
# --cuda: nvcc hands the root to the C++ compiler, which links, too; NVIDIA's own libraries stand beside nvcc, outside the root.
set(CMAKE_CUDA_FLAGS_INIT "-Xcompiler=--sysroot=${CARAT_ROOT}")
string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " --sysroot=${CARAT_ROOT}")
find_program(CARAT_NVCC nvcc)
if(CARAT_NVCC)
  get_filename_component(toolkit "${CARAT_NVCC}" REALPATH)
  get_filename_component(toolkit "${toolkit}/../.." ABSOLUTE)
  list(APPEND CMAKE_FIND_ROOT_PATH "${toolkit}")
endif()
