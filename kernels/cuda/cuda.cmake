# Finds nvcc.  Sets WEIGHTFS_HAS_CUDA, and enables the language where it is true.
#
# The runtime is linked statically (CMake's default): the program starts on hosts that have neither
# toolkit nor driver, and finds no device there.
#
# Sanitizer builds have no CUDA: the driver's address ranges collide with their shadow memory, and
# kernels run under sanitizers in the emulator (tests/support/cuda_on_cpu), where they see more.
include(CheckLanguage)

set(WEIGHTFS_HAS_CUDA OFF)
if(WEIGHTFS_SANITIZE AND WEIGHTFS_CUDA STREQUAL "ON")
  message(FATAL_ERROR "WEIGHTFS_CUDA=ON does not go with WEIGHTFS_SANITIZE")
elseif(WEIGHTFS_CUDA STREQUAL "OFF" OR WEIGHTFS_SANITIZE)
  message(STATUS "CUDA: off")
  return()
elseif(NOT WEIGHTFS_CUDA MATCHES "^(AUTO|ON)$")
  message(FATAL_ERROR "WEIGHTFS_CUDA is AUTO, ON or OFF, not ${WEIGHTFS_CUDA}")
endif()

# The toolkit's own folder is often not on PATH.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(WEIGHTFS_NVCC nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin)
  mark_as_advanced(WEIGHTFS_NVCC)
  if(WEIGHTFS_NVCC)
    set(ENV{CUDACXX} ${WEIGHTFS_NVCC})
  endif()
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(WEIGHTFS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WEIGHTFS_CUDA=ON, and no nvcc that works")
  endif()
  message(STATUS "CUDA: no nvcc, the GPU is left out")
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES ${WEIGHTFS_CUDA_ARCHITECTURES})
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know that nvcc has it
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(WEIGHTFS_HAS_CUDA ON)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, ${CMAKE_CUDA_ARCHITECTURES}")
