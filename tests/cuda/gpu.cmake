# What needs a device: one program, built where nvcc is found, that skips where it finds no device. nvcc is called with a
# command line of its own, the one that bench/cuda/run uses: the options of this build are for other compilers.
find_program(KVCACHE_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda/bin)
mark_as_advanced(KVCACHE_NVCC)
set(gpu_sources ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu.cu)
if(KVCACHE_CUDA AND KVCACHE_NVCC AND NOT KVCACHE_SANITIZE AND EXISTS ${gpu_sources})
  set(gpu_flags -std=c++20 -O2 --expt-relaxed-constexpr -gencode arch=compute_80,code=compute_80 -Werror all-warnings
                -Xcompiler -Wall,-Wextra -DKVCACHE_CONTRACTS=1 -I${PROJECT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR})
  add_custom_command(OUTPUT gpu DEPENDS ${gpu_sources} DEPFILE gpu.d VERBATIM
    COMMAND ${KVCACHE_NVCC} ${gpu_flags} -MD -MF gpu.d -MT gpu ${gpu_sources} -o gpu)
  add_custom_target(kvcache_gpu_tests ALL DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/gpu)
  add_test(NAME "gpu: kernels and copies on a device" COMMAND gpu)
else()
  add_test(NAME "gpu: kernels and copies on a device"
           COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: no nvcc on this machine, or a build with sanitizers")
endif()
set_tests_properties("gpu: kernels and copies on a device" PROPERTIES LABELS gpu TIMEOUT 600
                     SKIP_RETURN_CODE 77 SKIP_REGULAR_EXPRESSION "^SKIPPED:")
