// SPDX-License-Identifier: MIT
#include <kvcache/text/impl/tokenizer.hpp>
