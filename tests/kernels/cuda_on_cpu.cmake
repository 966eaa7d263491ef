# CUDA kernels, compiled as C++ and run on the CPU (support/cuda_on_cpu), also under sanitizers.
set(WEIGHTFS_KERNELS_ON_CPU
  ${PROJECT_SOURCE_DIR}/kernels/cuda/decode.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/diff.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/encode.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/hash.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/patch.cu)
set_source_files_properties(${WEIGHTFS_KERNELS_ON_CPU} kernels/planted_bugs.cu
  PROPERTIES LANGUAGE CXX COMPILE_OPTIONS -xc++)
add_library(weightfs_kernels_on_cpu OBJECT ${WEIGHTFS_KERNELS_ON_CPU})
target_include_directories(weightfs_kernels_on_cpu BEFORE PRIVATE support/cuda_on_cpu)
target_link_libraries(weightfs_kernels_on_cpu PRIVATE weightfs_options)
function(weightfs_program_on_cpu target)
  add_executable(${target} ${ARGN})
  target_include_directories(${target} BEFORE PRIVATE support/cuda_on_cpu)
  target_link_libraries(${target} PRIVATE weightfs_options weightfs_kernels)
endfunction()

# What drives the kernels likewise.
set(WEIGHTFS_PIPELINE ${PROJECT_SOURCE_DIR}/kernels/dispatch/gpu.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/fold_lane.cu ${PROJECT_SOURCE_DIR}/kernels/cuda/lane.cu)
set_source_files_properties(${WEIGHTFS_PIPELINE} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS -xc++)
add_library(weightfs_pipeline_on_cpu OBJECT ${WEIGHTFS_PIPELINE})
target_include_directories(weightfs_pipeline_on_cpu BEFORE PRIVATE support/cuda_on_cpu)
target_link_libraries(weightfs_pipeline_on_cpu PRIVATE weightfs_options)

weightfs_program_on_cpu(weightfs_cuda_check
  $<TARGET_OBJECTS:weightfs_kernels_on_cpu>
  $<TARGET_OBJECTS:weightfs_pipeline_on_cpu>
  kernels/cuda_check.cpp
  kernels/cuda_check_decode.cpp
  kernels/cuda_check_encode.cpp
  kernels/cuda_check_lanes.cpp
  kernels/cuda_check_patch.cpp)
set(seeds 1..2)  # under sanitizers what the kernels read and write matters, which one seed shows
if(WEIGHTFS_SANITIZE MATCHES thread)
  set(seeds 1..1)
elseif(WEIGHTFS_SANITIZE)
  set(seeds 2..2)
endif()
foreach(theme decode patch encode diff hash lane)
  add_test(NAME CudaCheck.${theme} COMMAND weightfs_cuda_check
    --only ${theme} --quick --seeds ${seeds} --data ${CMAKE_CURRENT_SOURCE_DIR}/data)
  set_tests_properties(CudaCheck.${theme} PROPERTIES LABELS unit-cuda TIMEOUT 600)
endforeach()

# A bug passes its test by the message that catches it.
weightfs_program_on_cpu(weightfs_planted_bugs kernels/planted_bugs.cu)
function(weightfs_planted_bug name message)
  add_test(NAME PlantedBugs.${name} COMMAND weightfs_planted_bugs ${name})
  set_tests_properties(PlantedBugs.${name} PROPERTIES
    LABELS unit-cuda TIMEOUT 60 PASS_REGULAR_EXPRESSION ${message})
endfunction()
weightfs_planted_bug(divergent_barrier "but thread [^ ]* waits in __syncthreads")
weightfs_planted_bug(return_before_barrier "divergent barrier: .*has returned")
weightfs_planted_bug(lane_does_not_come "for lane 20, but .* has returned")
weightfs_planted_bug(different_collectives "for lane 1, but .* waits in __syncwarp")
weightfs_planted_bug(reads_absent_lane "reads lane 20, which takes no part")
weightfs_planted_bug(host_memory_as_argument "points to host memory")
weightfs_planted_bug(shared_limit_not_raised "CUDA: invalid argument")
weightfs_planted_bug(shared_not_cleared "wrong result")
if(WEIGHTFS_SANITIZE MATCHES thread)
  weightfs_planted_bug(missing_barrier "ThreadSanitizer: data race")
  weightfs_planted_bug(missing_warp_barrier "ThreadSanitizer: data race")
else()
  weightfs_planted_bug(missing_barrier "wrong result")
  weightfs_planted_bug(missing_warp_barrier "wrong result")
  weightfs_planted_bug(forgotten_synchronisation "wrong result")
endif()
if(WEIGHTFS_SANITIZE MATCHES address)
  weightfs_planted_bug(beyond_dynamic_shared "AddressSanitizer: heap-buffer-overflow")
  weightfs_planted_bug(beyond_global "AddressSanitizer: heap-buffer-overflow")
  weightfs_planted_bug(host_reads_device_memory "AddressSanitizer: use-after-poison")
endif()
if(WEIGHTFS_SANITIZE MATCHES undefined)
  weightfs_planted_bug(beyond_static_shared "insufficient space|global-buffer-overflow")
  weightfs_planted_bug(misaligned_vector "misaligned address")
endif()

# The pipeline once with the scalar reference in the place of the kernels, for the contract of coders
# and every failure, and once with the kernels.
function(weightfs_pipeline_test target)
  weightfs_program_on_cpu(${target} kernels/gpu_test.cpp
    $<TARGET_OBJECTS:weightfs_pipeline_on_cpu> ${ARGN})
  target_link_libraries(${target} PRIVATE weightfs_test_support GTest::gtest_main)
endfunction()

weightfs_pipeline_test(weightfs_gpu_test kernels/chunk_coder_test.cpp support/scalar_device.cpp)
weightfs_add_shards(weightfs_gpu_test unit-cuda 2 --gtest_filter=GpuTest*:*/gpu)
weightfs_pipeline_test(weightfs_gpu_kernels_test $<TARGET_OBJECTS:weightfs_kernels_on_cpu>)
target_compile_definitions(weightfs_gpu_kernels_test PRIVATE WEIGHTFS_REAL_KERNELS)
add_test(NAME GpuTest.with_kernels COMMAND weightfs_gpu_kernels_test)
set_tests_properties(GpuTest.with_kernels PROPERTIES LABELS unit-cuda TIMEOUT 600)
