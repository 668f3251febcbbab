// SPDX-License-Identifier: MIT
#pragma once

/// The one place where the version lives; CMake reads it from here.
#define KVCACHE_VERSION_MAJOR 0
#define KVCACHE_VERSION_MINOR 1
#define KVCACHE_VERSION_PATCH 0
