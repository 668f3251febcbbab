// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>

/// Where tests find their files. Functions of one source, so that the flags of every other are the same in each clone,
/// and a compiler cache that two clones share has what either built.
namespace test_folders {

/// This project's own folder.
std::filesystem::path project();
/// Real data, which a stranger's clone has not (KVCACHE_TEST_DATA of CMake).
std::filesystem::path data();

} // namespace test_folders
