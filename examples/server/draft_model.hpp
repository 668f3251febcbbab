// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>
#include <kvcache/session/drafter.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "../support/model_directory.hpp"
#include "options.hpp"

namespace server {

/// A smaller model that drafts, with a cache of its own. Used by the computing thread alone.
class draft_model {
public:
    /// Errors: those of the model; mismatched, if its tokenizer is not that of the model that answers.
    [[nodiscard]] static kvcache::result<std::unique_ptr<draft_model>> open(const options& with,
                                                                            const kvcache::tokenizer& words) {
        auto loaded = support::open_model(with.draft_model, with.packed_cache, with.int8);
        if (!loaded)
            return loaded.error();
        const auto own = kvcache::tokenizer::open(with.draft_model);
        if (!own)
            return own.error();
        if (own->digest() != words.digest())
            return kvcache::error{kvcache::error_code::mismatched, "--draft-model",
                                  "--draft-model: " + with.draft_model + " has another tokenizer than the model"};
        return std::unique_ptr<draft_model>(new draft_model(with, std::move(loaded->model)));
    }

    /// What the engine calls. Requires: it outlives the engine's requests.
    [[nodiscard]] kvcache::drafter drafter() {
        return [this](const kvcache::draft_question& of, std::vector<kvcache::token_id>& drafted) {
            drafter_(of, drafted);
        };
    }

private:
    using store = kvcache::cache<>;

    draft_model(const options& with, kvcache::transformer model)
        : model_(std::move(model)),
          cache_(
              kvcache::make_cache({.shape = model_.shape(with.page), .limit = {.bytes = with.draft_cache_mib << 20}})),
          threads_(with.threads),
          drafter_(cache_, model_, threads_) {}

    kvcache::transformer model_;
    store cache_;
    kvcache::thread_pool threads_;
    kvcache::model_drafter<store, kvcache::transformer> drafter_;
};

} // namespace server
