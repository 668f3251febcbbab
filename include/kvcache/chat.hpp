// SPDX-License-Identifier: MIT
#pragma once

// Text in, text out: tokenizers, chat templates and conversations. Needs PCRE2 and utf8proc besides.

#include <kvcache/model.hpp>
#include <kvcache/session/chat_session.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>
