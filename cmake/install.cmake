# One export set a component, so that a package without the text component never asks for its dependencies.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(kvcache_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/kvcache)

function(kvcache_install target component)
  install(TARGETS ${target} EXPORT kvcache-${component} FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT kvcache-${component} NAMESPACE kvcache:: DESTINATION ${kvcache_package_dir})
endfunction()
kvcache_install(kvcache core)
if(KVCACHE_JSON)
  kvcache_install(kvcache_json json)
endif()
if(KVCACHE_TEXT)
  kvcache_install(kvcache_text text)
endif()

configure_package_config_file(cmake/kvcacheConfig.cmake.in kvcacheConfig.cmake INSTALL_DESTINATION ${kvcache_package_dir})
write_basic_package_version_file(kvcacheConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/kvcacheConfig.cmake ${PROJECT_BINARY_DIR}/kvcacheConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/system.cmake
        DESTINATION ${kvcache_package_dir})

# pkg-config: kvcache, kvcache-json, kvcache-text.
function(kvcache_pkgconfig name description requires)
  configure_file(cmake/kvcache.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
endfunction()
file(RELATIVE_PATH kvcache_pc_prefix /${CMAKE_INSTALL_DATADIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" kvcache_pc_prefix ${kvcache_pc_prefix})
kvcache_pkgconfig(kvcache "${PROJECT_DESCRIPTION}" "eigen3 >= 3.4, xsimd >= 8, libxxhash")
if(KVCACHE_JSON)
  kvcache_pkgconfig(kvcache-json "kvcache: what reads JSON" "kvcache, nlohmann_json >= 3.11")
endif()
if(KVCACHE_TEXT)
  kvcache_pkgconfig(kvcache-text "kvcache: tokenizers and chats" "kvcache-json, libpcre2-8, libutf8proc")
endif()

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/kvcache)
