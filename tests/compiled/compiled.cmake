# A program that is built as the compiled form was links with it; one that is built otherwise does not, and the missing
# names say what is other.

# Included as part of the build it adds the tests; run as a script it is one of them.
if(CMAKE_SCRIPT_MODE_FILE)
  separate_arguments(COMMAND_LINE UNIX_COMMAND "${COMMAND_LINE}")
  execute_process(COMMAND ${COMMAND_LINE} RESULT_VARIABLE failed OUTPUT_VARIABLE words ERROR_VARIABLE words)
  if(NOT MISSING AND failed)
    message(FATAL_ERROR "it does not link:\n${words}")
  elseif(MISSING AND NOT failed)
    message(FATAL_ERROR "it links")
  elseif(MISSING AND NOT words MATCHES "undefined reference[^\n]*${MISSING}")
    message(FATAL_ERROR "it fails without naming \"${MISSING}\":\n${words}")
  endif()
  return()
endif()

# One program, built with the flags in ARGN besides; `missing` is part of a name that it then lacks, or nothing.
function(kvcache_linking name missing)
  set(command "${CMAKE_CXX_COMPILER} -std=c++20 ${CMAKE_CXX_FLAGS} ${options} ${includes} ${ARGN}"
              "${CMAKE_CURRENT_SOURCE_DIR}/compiled/program.cpp $<TARGET_FILE:kvcache_compiled> -pthread"
              "-o ${CMAKE_CURRENT_BINARY_DIR}/compiled_${name}")
  list(JOIN command " " command)
  add_test(NAME "compiled: ${name}" COMMAND ${CMAKE_COMMAND} "-DCOMMAND_LINE=${command}" "-DMISSING=${missing}"
           -P ${CMAKE_CURRENT_SOURCE_DIR}/compiled/compiled.cmake)
  set_tests_properties("compiled: ${name}" PROPERTIES LABELS compile_fail)
endfunction()

get_directory_property(options COMPILE_OPTIONS)
list(JOIN options " " options)
set(includes "$<TARGET_PROPERTY:kvcache_test_headers,INCLUDE_DIRECTORIES>")
set(includes "$<$<BOOL:${includes}>:-I$<JOIN:${includes}, -I>>")
kvcache_linking(alike "" -DKVCACHE_COMPILED=1 -DKVCACHE_CONTRACTS=1)
kvcache_linking(off "" -DKVCACHE_COMPILED=0 -DKVCACHE_CONTRACTS=0)
kvcache_linking(unchecked "unchecked" -DKVCACHE_COMPILED=1 -DKVCACHE_CONTRACTS=0)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  kvcache_linking(slow "base" "-DKVCACHE_COMPILED=1 -DKVCACHE_CONTRACTS=1 -march=x86-64 -DKVCACHE_ALLOW_SLOW")
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_FOUND)
    add_test(NAME "compiled: objects that are built differently keep apart"
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/mixed/mixed.py ${CMAKE_CXX_COMPILER}
                     ${CMAKE_CURRENT_BINARY_DIR}/mixed "${includes}")
    set_tests_properties("compiled: objects that are built differently keep apart" PROPERTIES LABELS compile_fail)
  endif()
endif()

# The cache alone compiles without a flag, without exceptions and RTTI, and for another processor.
function(kvcache_cache_alone name compiler)
  add_test(NAME "compiled: the cache alone, ${name}"
           COMMAND ${compiler} -std=c++20 -O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror ${ARGN}
                   -I${PROJECT_SOURCE_DIR}/include -c ${PROJECT_SOURCE_DIR}/bench/include/cache_default.cpp -o /dev/null)
  set_tests_properties("compiled: the cache alone, ${name}" PROPERTIES LABELS compile_fail)
endfunction()
get_target_property(xxhash kvcache::xxhash INTERFACE_INCLUDE_DIRECTORIES)
list(TRANSFORM xxhash PREPEND "-isystem" OUTPUT_VARIABLE xxhash)
if(xxhash MATCHES "isystem/usr/include$")
  set(xxhash)
endif()
kvcache_cache_alone("no flags" ${CMAKE_CXX_COMPILER} ${xxhash})
kvcache_cache_alone("no exceptions" ${CMAKE_CXX_COMPILER} -fno-exceptions -fno-rtti ${xxhash})
find_program(KVCACHE_PROGRAM_aarch64-linux-gnu-g++ aarch64-linux-gnu-g++)
if(KVCACHE_PROGRAM_aarch64-linux-gnu-g++)
  kvcache_cache_alone("aarch64" ${KVCACHE_PROGRAM_aarch64-linux-gnu-g++} -isystem ${CMAKE_CURRENT_BINARY_DIR}/golden/include)
endif()
