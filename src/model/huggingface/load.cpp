// SPDX-License-Identifier: MIT
#include <kvcache/model/huggingface/impl/load.hpp>
