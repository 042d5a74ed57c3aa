# The CUDA backend (src/cuda). CPU-only builds compile cuda/none.cc in its place and skip nothing else.
#   CARAT_CUDA                AUTO (built when nvcc is found), ON, OFF
#   CARAT_CUDA_EMULATED       build the tests that run the kernels on the CPU
#   CARAT_CUDA_ARCHITECTURES  for a release: 80-real;86-real;89-real;90a-real;100a-real;120a-real;121a-real;120-virtual
include(CheckLanguage)
set(CARAT_CUDA_ARCHITECTURES "86;90a-real" CACHE STRING "GPU architectures (CMAKE_CUDA_ARCHITECTURES)")
option(CARAT_CUDA_EMULATED "Run CUDA kernels on the CPU in tests (x86-64)" ON)
option(CARAT_CUDA_RACECHECK "Kernels say what they wait for as compute-sanitizer's racecheck follows it" OFF)
set(CARAT_HAVE_CUDA OFF)
if(NOT CARAT_CUDA STREQUAL "OFF")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${CARAT_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 stops at C++17
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
    set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)  # the toolkit is not found without its shared runtime, nor librt where it is portable
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_FIND_LIBRARY_SUFFIXES ${suffixes})
    set(CARAT_HAVE_CUDA ON)
  elseif(CARAT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CARAT_CUDA=ON but no nvcc was found. Hint: set CUDACXX, or use CARAT_CUDA=AUTO for a CPU build.")
  endif()
endif()

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cc)
file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)
list(REMOVE_ITEM cuda_sources ${PROJECT_SOURCE_DIR}/src/cuda/none.cc)
list(FILTER cuda_sources EXCLUDE REGEX "_test\\.cc$|/emulate/")
if(CARAT_HAVE_CUDA)
  # Apart, since nvcc finds no <math.h> behind the /usr/include that fmt's targets name.
  add_library(carat_cuda_kernels OBJECT ${cuda_kernels})
  target_include_directories(carat_cuda_kernels PRIVATE ${PROJECT_SOURCE_DIR}/src)
  # Multiply and add are fused where it is written (docs/numerics.md).
  target_compile_options(carat_cuda_kernels PRIVATE -fmad=false --expt-relaxed-constexpr)
  target_compile_definitions(carat_cuda_kernels PRIVATE $<$<BOOL:${CARAT_CUDA_RACECHECK}>:CARAT_RACECHECK>)
  add_library(carat_cuda STATIC ${cuda_sources} $<TARGET_OBJECTS:carat_cuda_kernels>)
  # Static: the program finds the driver when it asks for devices, and runs without one.
  target_link_libraries(carat_cuda PUBLIC carat_core PRIVATE CUDA::cudart_static)
  # The linker is the C++ compiler, which does not know where nvcc's own libraries are.
  target_link_directories(carat_cuda PUBLIC ${CUDAToolkit_LIBRARY_DIR})
else()
  add_library(carat_cuda STATIC ${PROJECT_SOURCE_DIR}/src/cuda/none.cc
    ${PROJECT_SOURCE_DIR}/src/cuda/matmul/table.cc)
  target_link_libraries(carat_cuda PUBLIC carat_core)
endif()
target_include_directories(carat_cuda PUBLIC ${PROJECT_SOURCE_DIR}/src)

# The same kernels compiled for the CPU, for tests: cuda/emulate/emulate.h.
if(CARAT_TESTS AND CARAT_CUDA_EMULATED AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  file(GLOB emulation CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/emulate/*.cc)
  set(emulated ${cuda_sources} ${emulation})
  list(REMOVE_ITEM emulated ${PROJECT_SOURCE_DIR}/src/cuda/device/rt.cc)
  foreach(kernel ${cuda_kernels})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/src ${kernel})
    string(REGEX REPLACE "\\.cu$" ".cc" wrapper ${PROJECT_BINARY_DIR}/emulated/${path})
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${path}\"\n")
    list(APPEND emulated ${wrapper})
  endforeach()
  add_library(carat_cuda_emulated STATIC EXCLUDE_FROM_ALL ${emulated})
  target_compile_definitions(carat_cuda_emulated PRIVATE CARAT_CUDA_EMULATE)
  target_compile_options(carat_cuda_emulated PRIVATE -Wno-unknown-pragmas)
  target_link_libraries(carat_cuda_emulated PUBLIC carat_core)
  target_include_directories(carat_cuda_emulated PUBLIC ${PROJECT_SOURCE_DIR}/src)
endif()
