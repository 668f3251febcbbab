// SPDX-License-Identifier: MIT
#include <kvcache/chat.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/locking/mutex.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/gguf/files.hpp"
#include "model/huggingface/files.hpp"
#include "promise_fixture.hpp"
#include "support/folders.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

const std::filesystem::path worlds = test_folders::project() / "examples" / "models" / "worlds-2m";
const std::vector<std::string> questions = {"Who is Ella?", "Where does she live?", "of of of <|im_end|> \xc3\xa9"};

kv::chat_settings<> brief() {
    return {.system = "You answer questions about the notes.", .stop = {.max_tokens = 24}, .threads = 1};
}

template <class Chat>
void check_sound(Chat& chat) {
    const auto sound = chat.cache().check();
    CHECK((sound ? std::string() : sound.error().message) == "");
}

// What a turn must not change if it fails.
struct contents {
    std::vector<kv::token_id> ids;
    std::vector<std::string> messages;
    std::size_t cached;
    friend bool operator==(const contents&, const contents&) = default;
};
template <class Chat>
contents of(const Chat& chat) {
    contents made{{chat.session().ids().begin(), chat.session().ids().end()}, {}, chat.session().info().cached};
    for (const auto& each : chat.session().messages())
        made.messages.push_back(each.role + ": " + each.content);
    return made;
}

// The error of opening a chat.
template <class Chat>
kv::error refused(const Chat& chat) {
    REQUIRE_FALSE(chat.has_value());
    UNSCOPED_INFO(chat.error().message);
    return chat.error();
}

bool names(const kv::error& reason, const std::string& what) {
    return reason.message.find(what) != std::string::npos;
}

// The tokenizer of a model directory as keys of a GGUF file.
void describe_tokenizer(testing_files::gguf_builder& to, const std::filesystem::path& directory, std::size_t size) {
    const auto file = kv::read_json(directory / "tokenizer.json");
    const auto config = kv::read_json(directory / "tokenizer_config.json");
    REQUIRE(file.has_value());
    REQUIRE(config.has_value());
    std::vector<std::string> words, merges;
    for (std::size_t id = 0; id < size; ++id)
        words.push_back("[PAD" + std::to_string(id) + "]");
    std::vector<std::int32_t> types(size, 5); // unused
    for (const auto& [token, id] : (*file)["model"]["vocab"].items()) {
        words[id.get<std::size_t>()] = token;
        types[id.get<std::size_t>()] = 1;
    }
    for (const auto& token : (*file)["added_tokens"])
        types[token["id"].get<std::size_t>()] = 3; // control
    for (const auto& pair : (*file)["model"]["merges"])
        merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
    to.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
    to.texts("tokenizer.ggml.tokens", words).numbers("tokenizer.ggml.token_type", types);
    to.texts("tokenizer.ggml.merges", merges);
    to.text("tokenizer.chat_template", (*config)["chat_template"].get<std::string>());
}

// A storage for which the system has no memory.
struct no_memory {
    using role = kv::storage_role;
    using state = kv::storage::heap::state;
    [[nodiscard]] state open(std::size_t, std::size_t) const { throw std::bad_alloc(); }
};

} // namespace

TEST_CASE("a chat with a GGUF file answers as one with the directory that it was converted from") {
    const testing_files::temporary_directory directory;
    auto built = testing_files::gguf_of(worlds);
    describe_tokenizer(built, worlds, tiny_model().vocabulary());
    directory.write("worlds.gguf", built.file());
    auto chat = kv::open_chat(directory.path() / "worlds.gguf", brief());
    auto expected = kv::open_chat(worlds, brief());
    INFO((chat ? std::string() : chat.error().message));
    REQUIRE(chat.has_value());
    REQUIRE(expected.has_value());
    for (const std::string& question : questions) {
        const auto answer = chat->say(question), same = expected->say(question);
        REQUIRE(answer.has_value());
        REQUIRE(same.has_value());
        CHECK(answer->text == same->text);
        CHECK(answer->ids == same->ids);
        CHECK(answer->reused == same->reused);
    }
    check_sound(*chat);

    // An error names the file by its path.
    const auto missing = refused(kv::open_chat(directory.path() / "nothing.gguf", brief()));
    CHECK(names(missing, (directory.path() / "nothing.gguf").string()));
    directory.write("broken.gguf", built.file().substr(0, 1000));
    CHECK(names(refused(kv::open_chat(directory.path() / "broken.gguf", brief())),
                (directory.path() / "broken.gguf").string()));
}

TEST_CASE("a chat answers as a session composed by hand, bit for bit, and reuses all earlier tokens") {
    const auto words = kv::tokenizer::open(worlds);
    REQUIRE(words.has_value());
    const auto form = kv::chat_template::open(*words, "default");
    REQUIRE(form.has_value());
    for (const float temperature : {0.0f, 1.2f}) {
        auto with = brief();
        with.sampling = {.temperature = temperature, .seed = 7};
        auto chat = kv::open_chat(worlds, with);
        REQUIRE(chat.has_value());

        host by_hand(tiny_model(), 64, 2);
        kv::chat_session<cache> session(by_hand.store, {*words, *form}, tiny_model().max_positions(), with.system);
        const kv::stop_criteria stop{with.stop.max_tokens, tiny_model().config().eos};
        std::size_t cached = 0;
        for (const std::string& question : questions) {
            std::string heard, expected_pieces;
            const auto answer = chat->say(question, [&](const std::string& piece) {
                heard += piece + '|';
                return true;
            });
            const auto expected =
                session.say(by_hand.pipeline, question, with.sampling, stop, {}, [&](const std::string& piece) {
                    expected_pieces += piece + '|';
                    return true;
                });
            REQUIRE(answer.has_value());
            REQUIRE(expected.has_value());
            CHECK(heard == expected_pieces);
            CHECK(answer->text == expected->text);
            CHECK(answer->ids == expected->ids);
            CHECK(answer->stopped == expected->stopped);
            CHECK(answer->reused == expected->reused);
            CHECK(answer->prefilled == expected->prefilled);
            CHECK(answer->exact);
            if (temperature == 0.0f && cached > 0)
                CHECK(answer->reused == cached);
            cached = chat->session().info().cached;
        }
        const tokens ids(session.ids().begin(), session.ids().end());
        CHECK(ids == of(*chat).ids);
        const auto logits = chat->pipeline().prefill(ids, kv::logits_mode::all);
        REQUIRE(logits.has_value());
        CHECK(logits->reused > 0);
        CHECK(same_bits(logits->logits, cold(tiny_model(), ids)));
        check_sound(*chat);
    }
}

TEST_CASE("a chat that is opened warm answers alike, and its first turn computes the user's tokens only") {
    for (const float temperature : {0.0f, 1.2f}) {
        auto with = brief();
        with.sampling = {.temperature = temperature, .seed = 7};
        auto cold = kv::open_chat(worlds, with);
        with.warm_up = true;
        auto warm = kv::open_chat(worlds, with);
        REQUIRE(cold.has_value());
        REQUIRE(warm.has_value());
        CHECK(cold->session().info().cached == 0);
        const std::size_t system = warm->session().info().cached;
        CHECK(system > 5);
        for (const std::string& question : questions) {
            const bool first = &question == questions.data();
            const auto answer = warm->say(question), same = cold->say(question);
            REQUIRE(answer.has_value());
            REQUIRE(same.has_value());
            CHECK(answer->ids == same->ids);
            CHECK(answer->text == same->text);
            CHECK(answer->prompt == same->prompt);
            if (first) {
                CHECK(answer->reused == system);
                CHECK(answer->prefilled == same->prefilled - system);
            } else {
                CHECK(answer->reused == same->reused);
            }
        }
        CHECK(of(*warm) == of(*cold));
        check_sound(*warm);
        REQUIRE(warm->reset());
        CHECK(warm->session().info().cached == system);
    }
    // Without a system prompt the tokens that the template puts before the user's text are computed.
    auto bare = brief();
    bare.system.clear();
    bare.warm_up = true;
    auto chat = kv::open_chat(worlds, bare);
    REQUIRE(chat.has_value());
    const std::size_t before = chat->session().info().cached;
    const auto answer = chat->say("Who is Ella?");
    REQUIRE(answer.has_value());
    CHECK(answer->reused == before);
}

TEST_CASE("a chat has the identity of model and tokenizer, and pages for its context twice") {
    const auto chat = kv::open_chat(worlds);
    REQUIRE(chat.has_value());
    const auto& with = chat->settings();
    CHECK(with.context == tiny_model().max_positions());
    CHECK(with.bytes == 2 * (with.context / 64) * host::bytes(tiny_model(), 64));
    CHECK(with.stop.stop_tokens == tiny_model().config().eos);
    REQUIRE(with.id.has_value());
    CHECK(with.id->weights == chat->loaded().weights);
    CHECK(with.id->tokenizer == kv::tokenizer::open(worlds)->digest());
    CHECK(chat->session().messages().empty());
}

TEST_CASE("each part of a chat can be replaced") {
    auto words = kv::tokenizer::open(worlds);
    REQUIRE(words.has_value());
    const auto bare =
        kv::chat_template::parse("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}", {});
    REQUIRE(bare.has_value());
    const kv::identity id{.adapter = "mine", .tenant = "salt"};
    auto chat = kv::open_chat({tiny_model(), {}}, *words, *bare,
                              kv::chat_settings<kv::slide_overflow>{.stop = {.max_tokens = 20},
                                                                    .stop_strings = {"e"},
                                                                    .context = 100,
                                                                    .page_tokens = 16,
                                                                    .threads = 2,
                                                                    .id = id},
                              kv::eviction::lru{}, kv::codec::bf16{}, kv::locking::mutex{});
    REQUIRE(chat.has_value());
    CHECK(chat->cache().id().adapter == "mine");
    CHECK(chat->cache().id().tenant == "salt");
    CHECK(chat->cache().shape().tokens == 16);
    CHECK(chat->settings().bytes == (14 + 40) * kv::codec::bf16{}.open(tiny_model().shape(16)).page_bytes());
    std::size_t dropped = 0;
    for (int turn = 0; turn < 10; ++turn) { // each fits, because the oldest turns are dropped
        const auto answer = chat->say("The box stands in the library.");
        REQUIRE(answer.has_value());
        CHECK(answer->text.find('e') == std::string::npos);
        CHECK(chat->session().ids().size() <= 100);
        dropped += answer->dropped;
        check_sound(*chat);
    }
    CHECK(dropped > 0);
}

TEST_CASE("the default memory is enough for any codec until the context is full") {
    const auto fill = [](auto codec) {
        auto chat = kv::open_chat(
            worlds,
            kv::chat_settings<kv::slide_overflow>{.stop = {.max_tokens = 20}, .context = 100, .page_tokens = 32},
            codec);
        REQUIRE(chat.has_value());
        for (int turn = 0; turn < 40; ++turn) {
            const std::string number = std::to_string(turn * 7919);
            const auto cancelled = chat->say("Who has box " + number + "?", [](const std::string&) { return false; });
            REQUIRE_FALSE(cancelled.has_value());
            CHECK(cancelled.error().message == "the caller cancelled the answer");
            const auto answer = chat->say("Where is box " + number + "?");
            REQUIRE((answer ? std::string() : answer.error().message) == "");
            check_sound(*chat);
        }
    };
    fill(kv::codec::f32{});
    fill(kv::codec::int8{});
    fill(kv::codec::int4_per_channel{});
    fill(kv::codec::keep_recent<kv::codec::int8>{});
}

TEST_CASE("a failed, cancelled or interrupted turn leaves the chat unchanged") {
    auto chat = kv::open_chat(worlds, brief());
    REQUIRE(chat.has_value());
    for (int turn = 0; turn < 2; ++turn) {
        const contents before = of(*chat);
        std::size_t pieces = 0;
        const auto cancelled = chat->say("Who?", [&](const std::string&) { return ++pieces < 3; });
        REQUIRE_FALSE(cancelled.has_value());
        CHECK(cancelled.error().code == kv::error_code::cancelled);
        CHECK(of(*chat) == before);

        std::ostringstream broken;
        broken.setstate(std::ios::badbit);
        const auto unheard = chat->say("Who?", broken);
        REQUIRE_FALSE(unheard.has_value());
        CHECK(unheard.error().code == kv::error_code::cancelled);
        CHECK(of(*chat) == before);

        CHECK_THROWS_AS(chat->say("Who?", [](const std::string&) -> bool { throw std::runtime_error("deaf"); }),
                        std::runtime_error);
        CHECK(of(*chat) == before);

        std::string far_too_long;
        while (far_too_long.size() < 20'000)
            far_too_long += " library";
        const auto refused_turn = chat->say(far_too_long);
        REQUIRE_FALSE(refused_turn.has_value());
        CHECK(refused_turn.error().field == "context");
        CHECK(of(*chat) == before);
        check_sound(*chat);

        std::ostringstream heard;
        const auto answer = chat->say("Who is Ella?", heard);
        REQUIRE(answer.has_value());
        CHECK(answer->text == heard.str());
    }
}

TEST_CASE("a chat goes on after a move, and begins anew after a reset") {
    auto opened = kv::open_chat(worlds, brief());
    REQUIRE(opened.has_value());
    const auto first = opened->say(questions[0]);
    REQUIRE(first.has_value());
    kv::basic_chat<> moved = *std::move(opened);
    const auto second = moved.say(questions[1]);
    REQUIRE(second.has_value());
    CHECK(second->reused == first->prompt + first->ids.size() - 1);

    REQUIRE(moved.reset().has_value());
    CHECK(moved.session().messages().size() == 1);
    std::vector<kv::basic_chat<>> several;
    several.push_back(std::move(moved));
    const auto again = several.front().say(questions[0]);
    REQUIRE(again.has_value());
    CHECK(again->ids == first->ids);
    CHECK(again->reused > 0);
    check_sound(several.front());
}

TEST_CASE("a chat that cannot be opened says why, and names the path") {
    const testing_files::temporary_directory place;
    const auto missing = refused(kv::open_chat(place.path() / "nothing"));
    CHECK(missing.code == kv::error_code::not_found);
    CHECK(names(missing, (place.path() / "nothing").string()));

    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"})
        std::filesystem::copy_file(worlds / file, place.path() / file);
    const auto mute = refused(kv::open_chat(place.path()));
    CHECK(mute.code == kv::error_code::not_found);
    CHECK(mute.field == "chat_template");
    CHECK(names(mute, place.path().string()));

    std::filesystem::copy_file(worlds / "tokenizer_config.json", place.path() / "tokenizer_config.json");
    CHECK(kv::open_chat(place.path()).has_value());
    std::filesystem::resize_file(place.path() / "model.safetensors", 1000);
    CHECK(names(refused(kv::open_chat(place.path())), place.path().string()));
}

TEST_CASE("settings that do not fit the model are refused by their name") {
    const auto memory = refused(kv::open_chat(worlds, {.bytes = 1000}));
    CHECK(memory.code == kv::error_code::out_of_memory);
    CHECK(memory.field == "bytes");
    CHECK(names(memory, worlds.string() + ": 1000 bytes hold 0 pages"));
    CHECK(names(memory, "a chat of 257 tokens needs 10"));
    const auto context = refused(kv::open_chat(worlds, {.context = 2048, .bytes = 1 << 20}));
    CHECK(context.field == "bytes");
    CHECK(refused(kv::open_chat(worlds, {.context = 2049})).field == "context");
    CHECK(refused(kv::open_chat(worlds, {.context = 256})).field == "max_tokens");
    CHECK(refused(kv::open_chat(worlds, {.sampling = {.top_p = 2.0f}})).field == "top_p");
    for (const std::uint32_t tokens : {0u, 10u, 1u << 20})
        CHECK(refused(kv::open_chat(worlds, {.page_tokens = tokens})).field == "page_tokens");
    const auto refusing = refused(kv::open_chat(worlds, {}, no_memory{}));
    CHECK(refusing.code == kv::error_code::out_of_memory);
    CHECK(refusing.field == "memory");

    // The fewest pages with which an answer may have its full length, exactly.
    const std::size_t page = host::bytes(tiny_model(), 64);
    CHECK_FALSE(kv::open_chat(worlds, {.bytes = 10 * page - 1}).has_value());
    auto least = kv::open_chat(worlds, {.bytes = 10 * page});
    REQUIRE(least.has_value());
    CHECK(least->settings().context == 320);
    CHECK(least->say("Who is Ella?").has_value());
    const auto crowded = least->say(std::string(400, 'x'));
    REQUIRE_FALSE(crowded.has_value());
    CHECK(names(crowded.error(), "maximum context length is 320 tokens"));
    check_sound(*least);
}

TEST_CASE("a chat over layer groups says what a chat over all tokens says, and takes less memory") {
    // A llama whose layers have no window but one group; and the same with windows in all layers but one.
    const auto words = kv::tokenizer::open(worlds);
    const auto form = kv::chat_template::open(*words, "default");
    REQUIRE(words);
    REQUIRE(form);
    for (const bool windows : {false, true}) {
        CAPTURE(windows);
        kv::model_config config = *kv::read_model_config(worlds);
        if (windows) {
            config.each_layer.resize(config.layers);
            for (std::size_t i = 1; i < config.layers; ++i)
                config.each_layer[i].window = 40;
        }
        const auto weights = kv::load_weights(config, *kv::checkpoint::open(worlds), [](std::size_t, std::size_t) {});
        REQUIRE(weights);
        const auto loaded = [&] { return kv::loaded_model{kv::transformer(config, *weights), {}}; };
        kv::chat_settings<> settings = brief();
        settings.page_tokens = 16;
        auto all = kv::open_chat(loaded(), *words, *form, settings);
        auto grouped = kv::open_chat(loaded(), *words, *form, settings, kv::layers::grouped{});
        REQUIRE((grouped ? std::string() : grouped.error().message) == "");
        REQUIRE(all);
        for (const std::string& question : questions) {
            const auto a = all->say(question), b = grouped->say(question);
            REQUIRE(a);
            REQUIRE(b);
            CHECK(a->text == b->text);
            check_sound(*grouped);
        }
        CHECK(grouped->cache().group_stats().size() == (windows ? 2 : 1));
    }
}
