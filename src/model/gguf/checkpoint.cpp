// SPDX-License-Identifier: MIT
#include <kvcache/model/gguf/impl/checkpoint.hpp>
#include <kvcache/model/gguf/impl/config.hpp>
