# Misuse must not compile, and must say why. Each tests/compile_fail/NAME.cpp opens with "// message: REGEX"; as it is
# it compiles (all of them do so together), with KVCACHE_MUST_FAIL defined, and the options of a line "// flags: ...", it
# does not, and the compiler's words match the message, in 12 lines at most. With a line "// within: N" the first N lines
# of them match.

# Included as part of the build it adds the tests; run as a script it is one of them.
if(CMAKE_SCRIPT_MODE_FILE)
  separate_arguments(COMMAND_LINE UNIX_COMMAND "${COMMAND_LINE}")
  execute_process(COMMAND ${COMMAND_LINE} RESULT_VARIABLE failed OUTPUT_VARIABLE words ERROR_VARIABLE words)
  if(NOT failed)
    message(FATAL_ERROR "it compiles")
  endif()
  set(first "${words}")
  if(WITHIN)
    string(REPEAT "[^\n]*\n?" ${WITHIN} lines)
    string(REGEX MATCH "^${lines}" first "${words}")
  endif()
  if(NOT first MATCHES "${MESSAGE}")
    message(FATAL_ERROR "it fails without saying \"${MESSAGE}\" soon:\n${words}")
  endif()
  string(REGEX REPLACE "[0-9]+ errors? generated\\.\n" "" words "${words}")  # Clang counts them
  string(REGEX MATCHALL "\n" lines "${words}")
  list(LENGTH lines lines)
  if(lines GREATER 12)
    message(FATAL_ERROR "it says so in ${lines} lines; 12 are enough:\n${words}")
  endif()
  return()
endif()

get_directory_property(options COMPILE_OPTIONS)
list(JOIN options " " options)
set(includes "$<TARGET_PROPERTY:kvcache_test_headers,INCLUDE_DIRECTORIES>")
set(compile "${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only ${CMAKE_CXX_FLAGS} ${options} $<$<BOOL:${includes}>:-I$<JOIN:${includes}, -I>>")

file(GLOB misuses CONFIGURE_DEPENDS compile_fail/*.cpp)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${misuses})  # their messages are read here
kvcache_join_tests(proper compile_fail 1000 ${misuses})
list(JOIN proper " " proper)
set(script ${CMAKE_CURRENT_BINARY_DIR}/compile_fail.sh)
file(GENERATE OUTPUT ${script} CONTENT "${compile} \"$@\"\n")
add_test(NAME "compile_fail: what is spelt right compiles" COMMAND sh -c "sh ${script} ${proper}")
set_tests_properties("compile_fail: what is spelt right compiles" PROPERTIES LABELS compile_fail)
kvcache_tests_of(compile_fail kvcache_compiled)  # and of tests/compiled

foreach(source IN LISTS misuses)
  get_filename_component(name ${source} NAME_WE)
  file(STRINGS ${source} message_line LIMIT_COUNT 1 REGEX "^// message:")
  if(NOT message_line)
    message(FATAL_ERROR "${source} needs a line \"// message: REGEX\"")
  endif()
  string(REGEX REPLACE "^// message: *" "" message_text "${message_line}")
  file(STRINGS ${source} flags LIMIT_COUNT 1 REGEX "^// flags:")
  string(REGEX REPLACE "^// flags: *" "" flags "${flags}")
  file(STRINGS ${source} within LIMIT_COUNT 1 REGEX "^// within:")
  string(REGEX REPLACE "^// within: *" "" within "${within}")
  add_test(NAME "compile_fail: ${name}" COMMAND ${CMAKE_COMMAND} "-DCOMMAND_LINE=sh ${script} -DKVCACHE_MUST_FAIL ${flags} ${source}"
           "-DMESSAGE=${message_text}" "-DWITHIN=${within}" -P ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail.cmake)
  set_tests_properties("compile_fail: ${name}" PROPERTIES LABELS compile_fail)
endforeach()
