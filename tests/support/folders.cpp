// SPDX-License-Identifier: MIT
#include "folders.hpp"

std::filesystem::path test_folders::project() {
    return KVCACHE_SOURCE_DIR;
}
std::filesystem::path test_folders::data() {
    return KVCACHE_TEST_DATA;
}
