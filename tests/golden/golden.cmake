# The golden digests, from builds that differ in all that must not change a bit: lane width, contraction, optimisation,
# compiler, processor. Each of them is in one of the builds; with KVCACHE_EVERY_GOLDEN, each in both contractions.
option(KVCACHE_EVERY_GOLDEN "The golden digests from twice as many builds" OFF)
function(kvcache_golden_test name)
  add_test(NAME "golden: ${name}" COMMAND ${ARGN})
  set_tests_properties("golden: ${name}" PROPERTIES LABELS golden TIMEOUT 600 SKIP_REGULAR_EXPRESSION "SKIPPED:")
  if("${KVCACHE_PROGRAM_wine}" IN_LIST ARGN)
    # Wine makes the files of its prefix for several seconds: before the program, not while it runs.
    set(environment "WINEDEBUG=-all;WINEPREFIX=${CMAKE_CURRENT_BINARY_DIR}/golden/wine")
    add_test(NAME "golden: ${name}, prepared" COMMAND ${KVCACHE_PROGRAM_wine} wineboot --init)
    set_tests_properties("golden: ${name}, prepared" PROPERTIES LABELS golden TIMEOUT 600 FIXTURES_SETUP wine
                                                                ENVIRONMENT "${environment}")
    set_tests_properties("golden: ${name}" PROPERTIES FIXTURES_REQUIRED wine ENVIRONMENT "${environment}")
  endif()
endfunction()

kvcache_tests_of(golden)

function(kvcache_golden name)
  add_executable(golden_${name} ${PROJECT_SOURCE_DIR}/tests/golden/digests.cpp)
  target_link_libraries(golden_${name} PRIVATE kvcache)
  target_include_directories(golden_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(golden_${name} PRIVATE -g0 ${ARGN})
  kvcache_golden_test(${name} golden_${name})
  kvcache_tests_of(golden golden_${name})
endfunction()

kvcache_golden(fast -O3 -ffp-contract=fast)
if(KVCACHE_EVERY_GOLDEN)
  kvcache_golden(off -O2 -ffp-contract=off)
endif()
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  return()
endif()
if(KVCACHE_EVERY_GOLDEN)
  kvcache_golden(v3_fast -O2 -march=x86-64-v3 -ffp-contract=fast)
endif()
kvcache_golden(v3_off -O1 -march=x86-64-v3 -ffp-contract=off)
kvcache_golden(slow -O1 -march=x86-64 -DKVCACHE_ALLOW_SLOW)  # SSE2, std::fma by the C library

# By another compiler than this build's. Its own headers come first: of the system's directory, which holds those of
# this machine's C library, it sees the dependencies alone.
set(kvcache_golden_headers ${CMAKE_CURRENT_BINARY_DIR}/golden/include)
foreach(entry Eigen=Eigen3::Eigen xsimd=xsimd xxhash.h=kvcache::xxhash)
  string(REPLACE "=" ";" entry ${entry})
  list(GET entry 0 header)
  list(GET entry 1 target)
  get_target_property(directories ${target} INTERFACE_INCLUDE_DIRECTORIES)
  find_path(kvcache_golden_${header} ${header} HINTS ${directories} PATH_SUFFIXES eigen3)
  mark_as_advanced(kvcache_golden_${header})
  file(MAKE_DIRECTORY ${kvcache_golden_headers})
  file(CREATE_LINK ${kvcache_golden_${header}}/${header} ${kvcache_golden_headers}/${header} SYMBOLIC)
endforeach()

# `runner` is the emulator, or empty where this machine runs the program itself.
function(kvcache_foreign_golden name compiler runner)
  find_program(KVCACHE_PROGRAM_${compiler} ${compiler})
  set(needed ${KVCACHE_PROGRAM_${compiler}})
  set(missing ${compiler})
  if(needed AND runner)
    find_program(KVCACHE_PROGRAM_${runner} ${runner})
    set(needed ${KVCACHE_PROGRAM_${runner}})
    set(missing ${runner})
    set(run ${needed})
  endif()
  mark_as_advanced(KVCACHE_PROGRAM_${compiler} KVCACHE_PROGRAM_${runner})
  if(NOT needed)
    kvcache_golden_test(${name} ${CMAKE_COMMAND} -E echo "SKIPPED: ${missing} is not installed")
    return()
  endif()
  set(program ${CMAKE_CURRENT_BINARY_DIR}/golden/${name}.program)  # MinGW would add .exe to a name without a point
  set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow $<$<BOOL:${KVCACHE_WARNINGS_AS_ERRORS}>:-Werror>)
  add_custom_command(
    OUTPUT ${program}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${KVCACHE_PROGRAM_${compiler}} -std=c++20 ${warnings} ${ARGN}
            -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/tests -isystem ${kvcache_golden_headers}
            -MD -MF ${program}.d -MT ${program} -c ${PROJECT_SOURCE_DIR}/tests/golden/digests.cpp -o ${program}.o
    COMMAND ${KVCACHE_PROGRAM_${compiler}} -static -pthread ${program}.o -o ${program}
    DEPENDS ${PROJECT_SOURCE_DIR}/tests/golden/digests.cpp
    DEPFILE ${program}.d
    COMMENT "Building golden_${name} with ${compiler}" VERBATIM COMMAND_EXPAND_LISTS)
  add_custom_target(golden_${name} ALL DEPENDS ${program})
  kvcache_golden_test(${name} ${run} ${program})
  kvcache_tests_of(golden golden_${name})
endfunction()

kvcache_foreign_golden(aarch64_fast aarch64-linux-gnu-g++ qemu-aarch64 -O2 -ffp-contract=fast)
kvcache_foreign_golden(windows x86_64-w64-mingw32-g++-posix wine -O1 -march=x86-64-v3 -Wa,-mbig-obj)
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  kvcache_foreign_golden(clang_off clang++ "" -O1 -march=x86-64-v3 -ffp-contract=off)
endif()
if(KVCACHE_EVERY_GOLDEN)
  kvcache_foreign_golden(aarch64_off aarch64-linux-gnu-g++ qemu-aarch64 -O1 -ffp-contract=off)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    kvcache_foreign_golden(clang_fast clang++ "" -O2 -march=x86-64-v3 -ffp-contract=fast)
  endif()
endif()
