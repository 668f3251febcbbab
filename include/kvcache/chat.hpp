// SPDX-License-Identifier: MIT
#pragma once

// Text in, text out: tokenizers, chat templates and conversations. Needs PCRE2 and utf8proc besides.

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#else
#include <kvcache/model.hpp>
#include <kvcache/session/chat_session.hpp>
#include <kvcache/session/open_chat.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>
#endif
