// SPDX-License-Identifier: MIT
#include <kvcache/text/impl/chat_template.hpp>
