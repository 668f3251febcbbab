// SPDX-License-Identifier: MIT
// The cache under the real libllama.
#include <kvcache/adapters/llama.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/lmdb.hpp>
#include <kvcache/tier/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "model/gguf/files.hpp"
#include "model/huggingface/files.hpp"
#include "support/gguf_builder.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace fs = std::filesystem;

namespace {

using tokens = std::vector<llama_token>;
using bytes = std::vector<std::uint8_t>;

// Golden checkpoints as GGUF files: full attention, windows, and recurrent layers.
const std::vector<fs::path>& tiny_models() {
    static const testing_files::temporary_directory directory;
    static const std::vector<fs::path> made = [] {
        llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
        std::vector<fs::path> all;
        for (const std::string name : {"qwen3", "gemma3", "lfm2"}) {
            auto built = testing_files::gguf_of(testing_files::golden_checkpoints / name, {.wide = true});
            built.text("tokenizer.ggml.model", "none");
            directory.write(name + ".gguf", built.file());
            all.push_back(directory.path() / (name + ".gguf"));
        }
        return all;
    }();
    return made;
}

/// Real weights, where they have been downloaded, or those that KVCACHE_LLAMA_MODELS names with ':' between them.
std::vector<fs::path> real_models() {
    std::vector<fs::path> made;
    const char* const given = std::getenv("KVCACHE_LLAMA_MODELS");
    std::istringstream words(given != nullptr ? given
                                              : "build/models/SmolLM2-135M-Instruct.Q4_1.gguf:"
                                                "build/models/gemma-3-270m-q4_k_m.gguf");
    for (std::string path; std::getline(words, path, ':');)
        if (given != nullptr || fs::exists(path))
            made.emplace_back(path);
    if (made.empty())
        WARN("SKIPPED: no real model is in build/models; tools/fetch_model.py downloads one");
    return made;
}

struct freed {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
};
using model_pointer = std::unique_ptr<llama_model, freed>;
using context_pointer = std::unique_ptr<llama_context, freed>;

model_pointer load(const fs::path& path) {
    llama_model_params how = llama_model_default_params();
    model_pointer made(llama_model_load_from_file(path.c_str(), how));
    REQUIRE(made);
    return made;
}

llama_context_params settings(std::uint32_t cells = 4096) {
    llama_context_params made = llama_context_default_params();
    made.n_ctx = cells;
    made.n_batch = 512;
    made.n_seq_max = 6;
    made.kv_unified = true;
    made.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    made.n_threads = made.n_threads_batch = 2;
    made.no_perf = true;
    return made;
}

context_pointer open(llama_model* model, const llama_context_params& how) {
    context_pointer made(llama_init_from_model(model, how));
    REQUIRE(made);
    return made;
}

/// A LoRA adapter of rank 2 for the first layer's channel part, which changes the keys and values of later layers.
llama_adapter_lora* lora_for(llama_model* model) {
    static const testing_files::temporary_directory directory;
    const auto said = [&](const std::string& key) {
        char text[64] = {};
        REQUIRE(llama_model_meta_val_str(model, key.c_str(), text, sizeof text) > 0);
        return std::string(text);
    };
    const std::string architecture = said("general.architecture");
    const auto width = static_cast<std::uint64_t>(llama_model_n_embd(model));
    const std::uint64_t channels = std::stoull(said(architecture + ".feed_forward_length"));
    const auto values = [](std::uint64_t count) {
        std::string made;
        for (std::uint64_t i = 0; i < count; ++i)
            made += testing_files::gguf_builder::encoded(0.125F * static_cast<float>(i % 7) - 0.375F);
        return made;
    };
    testing_files::gguf_builder made;
    made.text("general.type", "adapter").text("general.architecture", architecture).text("adapter.type", "lora");
    made.number("adapter.lora.alpha", 2.0F);
    made.tensor("blk.0.ffn_up.weight.lora_a", {2, width}, 0, values(2 * width));
    made.tensor("blk.0.ffn_up.weight.lora_b", {channels, 2}, 0, values(2 * channels));
    directory.write(architecture + ".lora.gguf", made.file());
    llama_adapter_lora* const adapter =
        llama_adapter_lora_init(model, (directory.path() / (architecture + ".lora.gguf")).c_str());
    REQUIRE(adapter != nullptr); // the model frees it
    return adapter;
}

tokens words(const llama_model* model, std::size_t count, unsigned seed) {
    std::minstd_rand dice(seed);
    const auto most = static_cast<unsigned>(std::min(llama_vocab_n_tokens(llama_model_get_vocab(model)), 30000));
    tokens made(count);
    for (llama_token& one : made)
        one = static_cast<llama_token>(dice() % most);
    return made;
}

std::uint32_t page_of(const llama_model* model) {
    return llama_model_n_swa(model) > 0 && llama_model_n_swa(model) < 64 ? 8 : 64;
}

std::vector<float> logits(llama_context* context) {
    const float* const all = llama_get_logits_ith(context, -1);
    REQUIRE(all != nullptr);
    return {all, all + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)))};
}

bytes state(llama_context* context, llama_seq_id of) {
    bytes made(llama_state_seq_get_size(context, of));
    REQUIRE(llama_state_seq_get_data(context, made.data(), made.size(), of) == made.size());
    return made;
}

/// Evaluates tokens [at, end) without a cache.
void evaluate(llama_context* context, std::span<const llama_token> all, std::size_t at, std::size_t end) {
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(end - at), 0, 1);
    for (std::size_t i = at; i < end; ++i) {
        batch.token[i - at] = all[i];
        batch.pos[i - at] = static_cast<llama_pos>(i);
        batch.n_seq_id[i - at] = 1;
        batch.seq_id[i - at][0] = 0;
        batch.logits[i - at] = i + 1 == end;
    }
    batch.n_tokens = static_cast<std::int32_t>(end - at);
    REQUIRE(llama_decode(context, batch) == 0);
    llama_batch_free(batch);
}

} // namespace

namespace {

// What is restored, and the logits after it, against a run without a break in the same batches.
void compare(const fs::path& path, std::span<const std::size_t> lengths) {
    INFO(path);
    const auto model = load(path);
    const auto how = settings();
    const std::uint32_t page = page_of(model.get());
    const auto window = static_cast<std::size_t>(llama_model_n_swa(model.get()));
    const std::size_t batch = window == 0 ? 512 : std::min<std::size_t>(512, window / page * page);
    const auto context = open(model.get(), how);
    kv::llama_prefix_cache cache(context.get(), {.page_tokens = page, .settings = how});
    INFO((cache.status() ? "" : cache.status().error().message));
    REQUIRE(cache.status());
    for (const std::size_t length : lengths) {
        INFO(length << " tokens");
        const tokens prompt = words(model.get(), length, static_cast<unsigned>(length));
        const auto cold = cache.decode(0, prompt);
        REQUIRE(cold);
        REQUIRE(cold->evaluated == length);
        const std::size_t whole = (length - 1) / page * page;
        const auto alone = open(model.get(), how);
        kv::llama_prefix_cache other(alone.get(), {.page_tokens = page, .settings = how});
        for (std::size_t at = 0, end = 0; at < length; at = end) {
            end = std::min(at + batch, at < whole ? whole : length);
            evaluate(alone.get(), prompt, at, end);
            if (end != whole)
                continue;
            const bytes before = state(alone.get(), 0);
            cache.clear(0);
            const auto got = cache.restore(0, prompt);
            INFO(got.why);
            REQUIRE(got.restored == whole);
            CHECK((state(context.get(), 0) == before));
        }
        const auto warm = cache.decode(0, prompt);
        REQUIRE(warm);
        CHECK(warm->evaluated == length - whole);
        CHECK((logits(context.get()) == logits(alone.get())));
        CHECK(cache.cache().check());
        cache.clear(0);
    }
}

} // namespace

TEST_CASE("what is restored has the bytes that were stored, and the next logits the bits of a run without a break") {
    for (const fs::path& path : tiny_models())
        compare(path, std::vector<std::size_t>{100, 449, 641});
}
TEST_CASE("real weights: what is restored has the bytes that were stored, and the next logits their bits") {
    for (const fs::path& path : real_models())
        compare(path, std::vector<std::size_t>{705});
}
TEST_CASE("real weights and longer prompts: the same bytes and bits", "[.long]") {
    for (const fs::path& path : real_models())
        compare(path, std::vector<std::size_t>{640, 1000, 1601});
}

namespace {

/// A store that outlives caches, and how the next reads of it are damaged.
struct shared_store {
    std::map<kv::sha256_digest, std::vector<std::byte>> records;
    std::function<std::vector<std::byte>(const kv::sha256_digest&, std::vector<std::byte>)> damage;
};

/// A tier over such a store, which takes back nothing that its reader has refused.
struct store_tier {
    using role = kv::tier_role;
    shared_store* of = nullptr;

    struct state {
        shared_store* of;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest& name, Use&& use) {
            const auto found = of->records.find(name);
            if (found == of->records.end())
                return false;
            const auto given = of->damage ? of->damage(name, found->second) : found->second;
            use(std::span<const std::byte>(given));
            return true;
        }
        kv::result<void> put(const kv::tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
            std::vector<std::byte>& to = of->records[entry.name];
            to.clear();
            for (const auto& piece : pieces)
                to.insert(to.end(), piece.begin(), piece.end());
            return {};
        }
        bool contains(const kv::sha256_digest& name) { return of->records.count(name) > 0; }
        kv::result<void> erase(const kv::sha256_digest&) { return {}; }
        kv::result<void> flush() { return {}; }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return {}; }
    };
    state open() const { return {of}; }
};

// Faults in stored pages: the part of a prompt before the fault is restored, and nothing else has changed.
void fault(unsigned rounds) {
    for (const fs::path& path : tiny_models()) {
        INFO(path);
        const auto model = load(path);
        const auto how = settings(1024);
        const auto context = open(model.get(), how);
        const std::uint32_t page = page_of(model.get());
        const tokens prompt = words(model.get(), 3 * page + 5, 1), other = words(model.get(), 2 * page, 2);
        // The same prompt of the model with a LoRA adapter, with keys of another type, and with other positions.
        shared_store foreign_store;
        const auto store_of = [&](const llama_context_params& another, llama_adapter_lora* lora) {
            const auto other_context = open(model.get(), another);
            float scale = 1.0F;
            REQUIRE(llama_set_adapters_lora(other_context.get(), &lora, lora == nullptr ? 0 : 1, &scale) == 0);
            kv::llama_prefix_cache cache(other_context.get(), {.page_tokens = page, .settings = another},
                                         store_tier{&foreign_store});
            REQUIRE(cache.status());
            REQUIRE(cache.decode(0, prompt));
        };
        llama_context_params keys = how, rope = how;
        keys.type_k = GGML_TYPE_F32;
        rope.rope_freq_base = 12345.0F;
        store_of(how, lora_for(model.get()));
        store_of(keys, nullptr);
        store_of(rope, nullptr);
        std::vector<std::vector<std::byte>> foreign_records;
        for (const auto& [name, record] : foreign_store.records)
            foreign_records.push_back(record);
        shared_store store;
        kv::llama_prefix_cache cache(context.get(), {.page_tokens = page, .settings = how}, store_tier{&store});
        REQUIRE(cache.status());
        REQUIRE(cache.decode(0, other));
        REQUIRE(cache.decode(0, prompt));
        cache.clear(0);
        std::map<std::size_t, bytes> right; // by the tokens that are restored
        for (std::size_t pages = 0; pages <= 3; ++pages) {
            REQUIRE(cache.restore(0, std::span(prompt).first(pages * page + 1)).restored <= pages * page);
            right[cache.layout().size(0)] = state(context.get(), 0);
            cache.clear(0);
        }
        REQUIRE(right.count(3 * page) == 1);
        REQUIRE(cache.decode(1, std::span(prompt).first(3))); // another sequence, and the beginning of the prompt
        const bytes before = state(context.get(), 1);
        std::minstd_rand dice(rounds);
        std::vector<kv::sha256_digest> names;
        for (const auto& [name, record] : store.records)
            names.push_back(name);
        std::size_t refused = 0, whole = 0;
        for (unsigned round = 0; round < rounds; ++round) {
            const auto victim = names[dice() % names.size()], foreign = names[dice() % names.size()];
            const auto kind = static_cast<unsigned>(dice() % 5), place = static_cast<unsigned>(dice());
            store.damage = [&](const kv::sha256_digest& name, std::vector<std::byte> record) {
                if (name != victim)
                    return record;
                if (kind == 0)
                    record[place % record.size()] ^= std::byte{1} << place % 8;
                else if (kind == 1)
                    record.resize(place % record.size());
                else if (kind == 2)
                    record = store.records[foreign];
                else if (kind == 3)
                    record = foreign_records[place % foreign_records.size()];
                else
                    record.insert(record.end(), 1 + place % 9, std::byte{7});
                return record;
            };
            cache.cache().clear_all();
            const auto refusals = kv::tier_stats_of(cache.cache()).refused;
            const auto got = cache.restore(0, prompt);
            INFO("round " << round << ", kind " << kind << ", restored " << got.restored);
            REQUIRE(right.count(got.restored) == 1);
            REQUIRE((right[got.restored] == state(context.get(), 0)));
            const auto now = kv::tier_stats_of(cache.cache());
            if (got.restored < 3 * page) {
                REQUIRE(now.refused > refusals);
                REQUIRE(now.last);
                REQUIRE(!now.last->field.empty());
                ++refused;
            } else {
                ++whole;
            }
            REQUIRE((before == state(context.get(), 1)));
            cache.clear(0);
        }
        CHECK(refused > 0);
        CHECK(whole > 0); // the record of another prompt, or bytes that were replaced by the same
        store.damage = {};
        cache.cache().clear_all();
        CHECK(cache.restore(0, prompt).restored == 3 * page);
        CHECK(cache.cache().check());
    }
}

} // namespace

TEST_CASE("faults in stored pages restore nothing wrong") {
    fault(300);
}
TEST_CASE("faults in stored pages restore nothing wrong, ten thousand times", "[.long]") {
    fault(10000);
}

TEST_CASE("pages of other models, settings, number types and adapters are never restored") {
    for (const fs::path& path : tiny_models()) {
        INFO(path);
        const auto model = load(path);
        const std::uint32_t page = page_of(model.get());
        const tokens prompt = words(model.get(), 3 * page + 5, 1);
        shared_store store;
        const auto restored = [&](const llama_context_params& how, const std::string& adapters, auto change) {
            const auto context = open(model.get(), how);
            change(context.get());
            kv::llama_prefix_cache cache(context.get(), {.page_tokens = page, .settings = how, .adapters = adapters},
                                         store_tier{&store});
            REQUIRE(cache.status());
            const auto done = cache.decode(0, prompt);
            REQUIRE(done);
            return done->restored;
        };
        const auto nothing = [](llama_context*) {};
        const auto how = settings(1024);
        REQUIRE(restored(how, "", nothing) == 0);
        REQUIRE(restored(how, "", nothing) == 3 * page);
        auto keys = how, rope = how, plain = how, values = how;
        keys.type_k = GGML_TYPE_F32;
        values.type_v = GGML_TYPE_BF16;
        rope.rope_freq_base = 12345.0F;
        plain.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        for (const auto& other : {keys, values, rope, plain}) {
            CHECK(restored(other, "", nothing) == 0);
            CHECK(restored(other, "", nothing) == 3 * page);
        }
        CHECK(restored(how, "an adapter", nothing) == 0);
        // One that the options do not name.
        const auto steered = [&](llama_context* context) {
            const std::vector<float> more(static_cast<std::size_t>(llama_model_n_embd(model.get())) *
                                              static_cast<std::size_t>(llama_model_n_layer(model.get())),
                                          0.25F);
            REQUIRE(llama_set_adapter_cvec(context, more.data(), more.size(), llama_model_n_embd(model.get()), 1,
                                           llama_model_n_layer(model.get())) == 0);
        };
        llama_adapter_lora* lora = lora_for(model.get());
        const auto adapted = [&](float scale) {
            return [&lora, scale](llama_context* context) mutable {
                REQUIRE(llama_set_adapters_lora(context, &lora, 1, &scale) == 0);
            };
        };
        for (const auto& change :
             {std::function<void(llama_context*)>(steered), std::function<void(llama_context*)>(adapted(1.0F)),
              std::function<void(llama_context*)>(adapted(0.5F))}) {
            CHECK(restored(how, "", change) == 0);
            CHECK(restored(how, "", change) == 3 * page);
        }
        CHECK(restored(how, "", nothing) == 3 * page);
    }
}

TEST_CASE("a program that evaluates by itself stores what a sequence has, and nothing that it had before") {
    for (const fs::path& path : tiny_models()) {
        INFO(path);
        const auto model = load(path);
        const auto how = settings(1024);
        const auto context = open(model.get(), how);
        const std::uint32_t page = page_of(model.get());
        kv::llama_prefix_cache cache(context.get(), {.page_tokens = page, .settings = how});
        REQUIRE(cache.status());
        const tokens prompt = words(model.get(), 3 * page + 5, 1);
        evaluate(context.get(), prompt, 0, page);
        evaluate(context.get(), prompt, page, 2 * page);
        const bytes two = state(context.get(), 0);
        CHECK(cache.store(0, std::span(prompt).first(page)) <=
              page); // of a recurrent state there is only the later one
        const bool recurrent = llama_model_is_hybrid(model.get());
        CHECK(cache.explain(std::span(prompt).first(page)).find(recurrent ? "0 of" : std::to_string(page) + " of") ==
              0);
        CHECK(cache.store(0, std::span(prompt).first(2 * page)) == 2 * page);
        cache.clear(0);
        CHECK(cache.restore(0, prompt).restored == 2 * page);
        CHECK((state(context.get(), 0) == two));
        const auto rest = cache.decode(0, prompt);
        REQUIRE(rest);
        CHECK(rest->kept == 2 * page);
    }
}

TEST_CASE("pages outlive a restart with another number of sequences") {
    for (const fs::path& path : tiny_models()) {
        INFO(path);
        const auto model = load(path);
        const std::uint32_t page = page_of(model.get());
        const tokens prompt = words(model.get(), 3 * page + 5, 1);
        shared_store store;
        for (const std::uint32_t sequences : {6u, 3u, 9u}) {
            auto how = settings(1024);
            how.n_seq_max = sequences;
            const auto context = open(model.get(), how);
            kv::llama_prefix_cache cache(context.get(), {.page_tokens = page, .settings = how}, store_tier{&store});
            REQUIRE(cache.status());
            const auto done = cache.decode(0, prompt);
            REQUIRE(done);
            CHECK(done->restored == (sequences == 6 ? 0 : 3 * page));
        }
    }
}

TEST_CASE("conversations that do not fit into a context go on where they were") {
    for (const fs::path& path : tiny_models()) {
        INFO(path);
        const auto model = load(path);
        const std::uint32_t page = std::min(page_of(model.get()), 32u);
        const auto how = settings(16 * page * 3);
        const auto context = open(model.get(), how);
        kv::llama_prefix_cache cache(context.get(), {.page_tokens = page, .settings = how});
        REQUIRE(cache.status());
        std::vector<tokens> talks(6);
        std::size_t evaluated = 0, all = 0;
        for (unsigned turn = 0; turn < 3; ++turn)
            for (unsigned talk = 0; talk < talks.size(); ++talk) {
                const tokens more = words(model.get(), 3 * page + 3 * talk, turn * 100 + talk);
                talks[talk].insert(talks[talk].end(), more.begin(), more.end());
                for (unsigned answer = 0; answer < 3; ++answer) {
                    const auto done = cache.decode(static_cast<llama_seq_id>(talk % 3), talks[talk]);
                    INFO((done ? "" : done.error().message));
                    REQUIRE(done);
                    REQUIRE(cache.layout().size(static_cast<llama_seq_id>(talk % 3)) == talks[talk].size());
                    evaluated += done->evaluated;
                    all += talks[talk].size();
                    talks[talk].push_back(static_cast<llama_token>(turn + answer + 5));
                }
            }
        INFO(evaluated << " of " << all);
        CHECK(evaluated < all / 3);
        CHECK(cache.stats().restored_tokens > 0);
        CHECK(cache.stats().refused == 0);
        CHECK(cache.cache().check());
    }
}

TEST_CASE("an edit in the middle evaluates what follows it, and little before it") {
    for (const fs::path& path : tiny_models()) {
        INFO(path);
        const auto model = load(path);
        const std::uint32_t page = page_of(model.get());
        const auto how = settings(4096);
        const auto context = open(model.get(), how);
        kv::llama_prefix_cache cache(context.get(),
                                     {.page_tokens = page, .settings = how, .snapshot_interval = 4 * page});
        REQUIRE(cache.status());
        tokens prompt = words(model.get(), 16 * page + 7, 5);
        REQUIRE(cache.decode(0, prompt));
        const std::size_t at = 9 * page + 11;
        prompt[at] = prompt[at] == 7 ? 8 : 7;
        const auto edited = cache.decode(0, prompt);
        REQUIRE(edited);
        INFO(edited->why);
        CHECK(edited->evaluated <= prompt.size() - at + 4 * page + page);
        prompt[at] = prompt[at] == 7 ? 9 : 7;
        const auto again = cache.decode(0, prompt);
        REQUIRE(again);
        CHECK(again->evaluated <= prompt.size() - at + page); // the first edit has left a state where it parted
        CHECK(cache.cache().check());
    }
}

TEST_CASE("a context that cannot be used is evaluated without the cache, which says what to change") {
    for (const fs::path& path : tiny_models()) {
        const auto model = load(path);
        const tokens prompt = words(model.get(), 40, 1);
        auto apart = settings(1024), few = settings(1024);
        apart.kv_unified = false;
        few.n_seq_max = 2;
        for (const auto& [how, field] : {std::pair(apart, "kv_unified"), {few, "n_seq_max"}}) {
            const auto context = open(model.get(), how);
            kv::llama_prefix_cache cache(context.get(), {.settings = how});
            REQUIRE(!cache.status());
            CHECK(cache.status().error().code == kv::error_code::unsupported);
            CHECK(cache.status().error().field == field);
            for (int turn = 0; turn < 2; ++turn) {
                const auto done = cache.decode(0, prompt);
                INFO((done ? "" : done.error().message));
                REQUIRE(done);
                CHECK(done->restored == 0);
                CHECK(done->why == cache.status().error().message);
            }
            CHECK(!cache.decode(0, std::span<const llama_token>{}));
        }
    }
}
