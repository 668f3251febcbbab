// SPDX-License-Identifier: MIT
#include <kvcache/text/impl/tokenizer.hpp>
#include <kvcache/text/impl/tokenizer_config.hpp>
