# An overlay port of the checkout that it lies in: vcpkg install kvcache --overlay-ports=packaging/vcpkg/ports
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../../..")

vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        -DKVCACHE_BUILD_TESTS=OFF
        -DKVCACHE_BUILD_EXAMPLES=OFF
        -DKVCACHE_FETCH=OFF
        -DKVCACHE_JSON=OFF
        -DKVCACHE_TEXT=OFF
        -DKVCACHE_CRYPTO=OFF
        -DKVCACHE_SERVER=OFF
        -DKVCACHE_LMDB=OFF
        -DKVCACHE_REDIS=OFF
        -DKVCACHE_CUDA=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/kvcache)

# Headers alone: nothing differs in a debug build.
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug" "${CURRENT_PACKAGES_DIR}/lib")

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
