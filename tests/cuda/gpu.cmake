# What needs a device: two programs, built where nvcc is found, that skip where they find no device. nvcc is called with
# a command line of its own, the one that bench/cuda/run uses: the options of this build are for other compilers.
find_program(KVCACHE_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda/bin)
mark_as_advanced(KVCACHE_NVCC)

kvcache_tests_of(gpu)

# A test of a program of its own, from one source. Further arguments are nvcc's.
function(kvcache_gpu_test name program source)
  if(KVCACHE_CUDA AND KVCACHE_NVCC AND NOT KVCACHE_SANITIZE AND EXISTS ${source})
    set(flags -std=c++20 -O2 --expt-relaxed-constexpr -gencode arch=compute_80,code=compute_80 -Werror all-warnings
              -Xcompiler -Wall,-Wextra -DKVCACHE_CONTRACTS=1 -I${PROJECT_SOURCE_DIR}/include ${ARGN})
    add_custom_command(OUTPUT ${program} DEPENDS ${source} DEPFILE ${program}.d VERBATIM
      COMMAND ${KVCACHE_NVCC} ${flags} -MD -MF ${program}.d -MT ${program} ${source} -o ${program})
    add_custom_target(kvcache_${program}_tests ALL DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/${program})
    kvcache_tests_of(gpu kvcache_${program}_tests)
    add_test(NAME "gpu: ${name}" COMMAND ${program})
  else()
    add_test(NAME "gpu: ${name}"
             COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: no nvcc on this machine, or a build with sanitizers")
  endif()
  set_tests_properties("gpu: ${name}" PROPERTIES LABELS gpu TIMEOUT 600 SKIP_RETURN_CODE 77
                       SKIP_REGULAR_EXPRESSION "^SKIPPED:")
endfunction()

kvcache_gpu_test("kernels and copies on a device" gpu ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu.cu
                 -I${CMAKE_CURRENT_SOURCE_DIR}/cuda)

# The reference model needs what the library needs; the compiler's own directories are not named again.
set(gpu_includes)
foreach(target Eigen3::Eigen xsimd kvcache::xxhash)
  get_target_property(directories ${target} INTERFACE_INCLUDE_DIRECTORIES)
  foreach(directory IN LISTS directories)
    string(REGEX REPLACE "^\\$<BUILD_INTERFACE:(.*)>$" "\\1" directory "${directory}")
    if(directory AND NOT directory MATCHES "^(/usr/include|/usr/local/include|\\$<.*)/?$")
      list(APPEND gpu_includes -isystem ${directory})
    endif()
  endforeach()
endforeach()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND gpu_includes -Xcompiler -mavx2,-mfma)
endif()
kvcache_gpu_test("the reference model on a device" gpu_model ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_model.cu ${gpu_includes})
