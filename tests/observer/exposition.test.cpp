// SPDX-License-Identifier: MIT
#include <kvcache/observer/exposition.hpp>

#include <limits>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("samples have help, type and escaped labels") {
    kv::observer::exposition to({{"model", "a \"b\" \\ c\nd"}, {"_host", ""}});
    to.counter("hits_total", "Hits \\ and\nmore \"words\".", 7);
    to.gauge("share", "A share.", 0.25);
    CHECK(to.text() == "# HELP hits_total Hits \\\\ and\\nmore \"words\".\n"
                       "# TYPE hits_total counter\n"
                       "hits_total{model=\"a \\\"b\\\" \\\\ c\\nd\",_host=\"\"} 7\n"
                       "# HELP share A share.\n"
                       "# TYPE share gauge\n"
                       "share{model=\"a \\\"b\\\" \\\\ c\\nd\",_host=\"\"} 0.25\n");
}

TEST_CASE("numbers that are none have the words of the format") {
    kv::observer::exposition to({});
    to.gauge("a", "A.", std::numeric_limits<double>::quiet_NaN());
    to.gauge("b", "B.", -std::numeric_limits<double>::infinity());
    CHECK(to.text().find("\na NaN\n") != std::string::npos);
    CHECK(to.text().find("\nb -Inf\n") != std::string::npos);
}

TEST_CASE("a label's name is a name") {
    for (const char* name : {"", "1a", "a-b", "__a", "a b"})
        CHECK_THROWS_AS(kv::observer::exposition(kv::observer::exposition::labels{{name, "x"}}),
                        kv::contract_violation);
}
