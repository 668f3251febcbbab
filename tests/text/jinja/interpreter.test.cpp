// SPDX-License-Identifier: MIT
#include <kvcache/text/chat_template.hpp>

#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <text/goldens.hpp>

namespace kv = kvcache;
using namespace text_tests;

namespace {

kv::result<kv::rendered_chat> rendering(std::string_view source, const kv::json& messages,
                                        const kv::chat_options& options = {}) {
    const auto chat = kv::chat_template::parse(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    if (!chat)
        return chat.error();
    return chat->render(messages, options);
}

std::string failing(std::string_view source) {
    const auto rendered = rendering(source, kv::json::array());
    return rendered ? "rendered: " + rendered->text() : rendered.error().message;
}

std::vector<kv::text_segment> segments(std::string_view source, const std::string& content) {
    const auto rendered = rendering(source, kv::json::array({{{"role", "user"}, {"content", content}}}));
    if (!rendered)
        FAIL(rendered.error().message);
    return rendered->segments;
}

} // namespace

TEST_CASE("a template's text and its errors are Jinja's") {
    const auto file = read(goldens / "templates.json");
    const auto& given = file["case"];
    std::tm now{};
    now.tm_year = given["now"][0].get<int>() - 1900;
    now.tm_mon = given["now"][1].get<int>() - 1;
    now.tm_mday = given["now"][2].get<int>();
    now.tm_hour = given["now"][3].get<int>();
    now.tm_min = given["now"][4].get<int>();
    now.tm_sec = given["now"][5].get<int>();
    (void)std::mktime(&now);
    for (const auto& one : file["cases"]) {
        const auto source = one["template"].get<std::string>();
        INFO(source);
        const auto rendered = rendering(source, given["messages"], {.now = now, .variables = given["variables"]});
        if (one.contains("text")) {
            if (!rendered)
                FAIL(rendered.error().message);
            CHECK(rendered->text() == one["text"].get<std::string>());
        } else {
            REQUIRE_FALSE(rendered);
            CHECK((rendered.error().field == "messages" || rendered.error().message.starts_with("line ")));
        }
    }
}

TEST_CASE("an error of a template names its line") {
    CHECK(failing("a\nb\n{{ 'x' | frobnicate }}") == "line 3: the filter \"frobnicate\" is not known");
    CHECK(failing("a\n{% if 'x' is odder %}{% endif %}") == "line 2: the test \"odder\" is not known");
    CHECK(failing("\n\n{% include 'x' %}").starts_with("line 3: the statement \"include\" is not known"));
    CHECK(failing("{% if true %}\n{{ 'x' | frobnicate }}{% endif %}") ==
          "line 2: the filter \"frobnicate\" is not known");
    CHECK(failing("{% if false %}\n{{ 'x' | frobnicate }}{% endif %}") == "rendered: ");
    CHECK(failing("a\n\n{{ 'a' + 1 }}") == "line 3: str + int has no value");
    CHECK(failing("a\n{% for i in [1] %}\n{{ x.y }}{% endfor %}") == "line 3: \"x\" is undefined");
    CHECK(failing("\n{{ 'a\nb").starts_with("line 2: a string does not end"));
    CHECK(failing("\n{# a").starts_with("line 2: a comment does not end"));
    CHECK(failing("\n{% raw %}{{").starts_with("line 2: a raw block does not end"));
    CHECK(failing("\n{{ ~ }}").starts_with("line 2: "));
    CHECK(failing("\n{{ undefined_one() }}") == "line 2: \"undefined_one\", which is undefined, is not a function");
    CHECK(failing("\n{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}") ==
          "line 2: the macro \"m\" has no argument \"b\"");
    CHECK(failing("\n{% for x in [1] recursive %}{% endfor %}").starts_with("line 2: a recursive loop is not known"));
}

TEST_CASE("user text stays marked through formats, escapes, repetitions and filters") {
    using list = std::vector<kv::text_segment>;
    CHECK(segments("{{ '<{}>'.format(messages[0].content) }}", "a") == list{{"<", true}, {"a", false}, {">", true}});
    CHECK(segments("{{ '<%5s>' % messages[0].content }}", "a") == list{{"<    ", true}, {"a", false}, {">", true}});
    CHECK(segments("{{ '%s' | format(messages[0].content) }}", "a") == list{{"a", false}});
    CHECK(segments("{{ messages[0].content | escape }}", "<s>") == list{{"&lt;s&gt;", false}});
    CHECK(segments("{{ ('<s>' | safe) + messages[0].content }}", "<s>") == list{{"<s>", true}, {"&lt;s&gt;", false}});
    CHECK(segments("{{ messages[0].content * 2 }}", "<s>") == list{{"<s><s>", false}});
    CHECK(segments("{{ messages[0].content | indent(1) }}", "a\n<s>") ==
          list{{"a", false}, {"\n ", true}, {"<s>", false}});
    CHECK(segments("{{ messages[0].content | title }}{{ messages[0].content.swapcase() }}", "<s>") ==
          list{{"<S><S>", false}});
    CHECK(segments("{{ messages[0].content | truncate(6, true) }}", "<s><s><s><s>") ==
          list{{"<s>", false}, {"...", true}});
    CHECK(segments("{{ messages[0].content.partition('s') | join }}", "<s>") == list{{"<s>", false}});
    CHECK(segments("{% filter upper %}<s>{{ messages[0].content }}{% endfilter %}", "<s>") ==
          list{{"<S>", true}, {"<S>", false}});
    CHECK(segments("{% macro m() %}[{{ caller(messages[0].content) }}]{% endmacro %}"
                   "{% call(x) m() %}{{ x }}{% endcall %}",
                   "<s>") == list{{"[", true}, {"<s>", false}, {"]", true}});
    CHECK(segments("{% for k, v in {messages[0].content: messages[0].content} | dictsort %}{{ k }}={{ v }}{% endfor %}",
                   "<s>") == list{{"<s>", false}, {"=", true}, {"<s>", false}});
    CHECK(segments("{{ messages | groupby('content') | map(attribute='grouper') | join }}", "<s>") ==
          list{{"<s>", false}});
    CHECK(segments("{{ [messages[0].content, 'b'] | sort | max }}", "<s>") == list{{"b", true}});
    CHECK(segments("{{ messages[0].content.format() }}", "<s>{{}}") == list{{"<s>{}", false}});
    CHECK(segments("{{ {1: messages[0].content} | tojson(ensure_ascii=true) }}", "\u00e9") ==
          list{{"{\"1\": ", true}, {"\"\\u00e9\"", false}, {"}", true}});
}

TEST_CASE("what one operation makes is limited") {
    const std::string list = "{% set l = range(100000) | list %}";
    for (const std::string& source : {
             std::string("{{ 'abc' * 1000000000000 }}"),
             std::string("{{ 'abc' * 9223372036854775807 }}"),
             std::string("{{ [1] * 1000000000000 }}"),
             std::string("{{ [] * 1000000000000 }}{{ '' * 1000000000000 }}{{ [1, 2] * 60000000 }}"),
             std::string("{{ '{:1000000000}'.format(1) }}"),
             std::string("{{ '{:.1000000000f}'.format(1.0) }}"),
             std::string("{{ '{:99999999999999999999999}'.format(1) }}"),
             std::string("{{ '%1000000000d' % 1 }}"),
             std::string("{{ '%.1000000000f' % 1.0 }}"),
             std::string("{{ 'a'.center(1000000000) }}"),
             std::string("{{ 'a'.zfill(1000000000) }}"),
             std::string("{{ 'a' | center(1000000000) }}"),
             std::string("{{ 'a\nb' | indent(1000000000) }}"),
             std::string("{{ [1] | tojson(indent=1000000000) }}"),
             std::string("{{ [1] | batch(1000000000000, 'x') | list }}"),
             std::string("{{ [1] | batch(1000000) | list }}{{ [1] * 600 | batch(1000000, 'x') | list * 99 }}"),
             std::string("{{ [1] | slice(1000000000000) | list }}"),
             std::string("{{ 10 ** 100 }}"),
             std::string("{{ 1e300 ** 2 }}{{ 2 ** 9223372036854775807 }}"),
             std::string("{{ 'a' | truncate(9223372036854775807, true, '', 9223372036854775807) }}"),
             list + "{{ l | groupby('x') }}",
             list + "{% for i in range(99999) %}{% set x = l | sort %}{% endfor %}",
             list + "{% for i in range(99999) %}{% set x = l | max %}{% endfor %}",
             list + "{% for i in range(99999) %}{% set x = l | sum %}{% endfor %}",
             list + "{% for i in range(99999) %}{% set x = l | batch(1) | list %}{% endfor %}",
             list + "{% macro m() %}{{ varargs | length }}{% endmacro %}{% for i in l %}{{ m(*l) }}{% endfor %}",
             list + "{% for i in range(99999) %}{% set x = loop.changed(l) %}{% endfor %}",
             std::string(
                 "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}"
                 "{% endmacro %}{{ n() }}"),
             std::string("{% set n = namespace(s='%s%s') %}{% for i in range(60) %}{% set n.s = n.s % (n.s, n.s) %}"
                         "{% endfor %}"),
             std::string("{% set n = namespace(s='<' | safe) %}{% for i in range(60) %}"
                         "{% set n.s = (n.s + (n.s | string)) | forceescape %}{% endfor %}"),
             std::string("{% set n = namespace(s='ab' * 1000000) %}{% for i in range(99999) %}"
                         "{% set x = n.s.replace('', n.s) %}{% endfor %}"),
             std::string("{% set n = namespace(l=[]) %}{% for i in range(60) %}{% set n.l = (n.l, n.l) %}"
                         "{% endfor %}{{ n.l < n.l }}{{ n.l | string }}"),
         }) {
        INFO(source);
        const auto message = failing(source);
        INFO(message.substr(0, 200));
        CHECK(message.starts_with("line "));
    }
}

TEST_CASE("a loop does not keep itself alive") { // the leak checker of a sanitized build sees it
    CHECK(failing("{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}").find("cannot be written") !=
          std::string::npos);
    CHECK(failing("{% for i in [1, 1] %}{{ loop.changed(i) }}{% set keep = loop %}{% endfor %}") ==
          "rendered: TrueFalse");
}
