#!/usr/bin/env python3
"""What clients meet: starts a server, and asks it rightly, wrongly, all at once, and half.

    protocol.py SERVER MODEL [DATA [LOAD]]

DATA is the folder of real data; without it the cases of JSONTestSuite are left out. LOAD is the load generator.
"""
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import running
from running import check

SERVER, MODEL = sys.argv[1:3]
DATA = Path(sys.argv[3]) if len(sys.argv) > 3 and Path(sys.argv[3]).is_dir() else None
LOAD = sys.argv[4] if len(sys.argv) > 4 else None


class Server(running.Server):
    def __init__(self, *flags, model=MODEL):
        super().__init__(SERVER, model, *flags)


def shapes(at):
    status, models, _ = at.ask("GET", "/v1/models")
    check(status == 200 and models["data"][0]["object"] == "model", "models are listed")
    name = models["data"][0]["id"]
    status, one = at.chat("Where does Ella live?", model=name)
    check(status == 200, one)
    check(one["object"] == "chat.completion" and one["model"] == name and one["id"].startswith("chatcmpl-"), one)
    choice = one["choices"][0]
    check(choice["message"]["role"] == "assistant" and choice["finish_reason"] in ("stop", "length"), choice)
    usage = one["usage"]
    check(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage)
    check(usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"], usage)
    # The same streamed, with the same bits.
    events = at.stream("/v1/chat/completions", messages=[{"role": "user", "content": "Where does Ella live?"}],
                       temperature=0, max_tokens=16, stream_options={"include_usage": True})
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
    check(text == choice["message"]["content"], (text, choice))
    check(events[0]["choices"][0]["delta"]["role"] == "assistant", events[0])
    check(events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == usage["completion_tokens"], events[-1])
    check(events[-2]["choices"][0]["finish_reason"] == choice["finish_reason"], events[-2])
    check(events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "a second time is cached")
    status, done = at.post("/v1/completions", prompt="Ella lives in", max_tokens=5, temperature=0, logprobs=3,
                           ignore_eos=True)
    check(status == 200 and done["object"] == "text_completion", done)
    check(done["usage"]["completion_tokens"] == 5 and done["choices"][0]["finish_reason"] == "length", done)
    check(len(done["choices"][0]["logprobs"]["token_logprobs"]) == 5, done)
    status, scored = at.chat("Who?", logprobs=True, top_logprobs=2, max_tokens=3, ignore_eos=True)
    content = scored["choices"][0]["logprobs"]["content"]
    check(len(content) == 3 and all(len(c["top_logprobs"]) == 2 and c["logprob"] <= 0 for c in content), content)
    check(all(c["logprob"] == c["top_logprobs"][0]["logprob"] for c in content), "the greedy token is the likeliest")


def asks(at):
    # The same seed gives the same words, alone, among many and streamed; n gives n.
    body = dict(prompt="The kite is made of", max_tokens=12, temperature=1.1, seed=5, top_p=0.95, ignore_eos=True)
    _, first = at.post("/v1/completions", **body)
    _, several = at.post("/v1/completions", **body, n=3)
    check([c["index"] for c in several["choices"]] == [0, 1, 2], several)
    check(several["choices"][0]["text"] == first["choices"][0]["text"], "the first of n is the one alone")
    texts = []
    crowd = [threading.Thread(target=lambda: texts.append(at.post("/v1/completions", **body)[1]["choices"][0]["text"]))
             for _ in range(24)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    check(texts == [first["choices"][0]["text"]] * 24, "company changes nothing")
    events = at.stream("/v1/completions", **body)
    check("".join(e["choices"][0]["text"] for e in events) == first["choices"][0]["text"], "nor does streaming")
    whole = first["choices"][0]["text"]
    stop = whole[4:7]
    _, cut = at.post("/v1/completions", **body, stop=[stop, "never said"])
    check(cut["choices"][0]["text"] == whole[:whole.find(stop)] and cut["choices"][0]["finish_reason"] == "stop", cut)
    events = at.stream("/v1/completions", **body, stop=stop)
    check("".join(e["choices"][0]["text"] for e in events) == whole[:whole.find(stop)], "a stop string is not heard")
    _, ids = at.post("/tokenize", content="Ella \u00e9\U0001f600 lives")
    status, text = at.post("/detokenize", tokens=ids["tokens"])
    check(status == 200 and text["prompt"].endswith("Ella \u00e9\U0001f600 lives"), text)
    _, by_ids = at.post("/v1/completions", **{**body, "prompt": at.post("/tokenize", content=body["prompt"])[1]["tokens"]})
    check(by_ids["choices"][0]["text"] == whole, "a prompt may be token ids")
    # The tokens of an answer, whole and streamed: the answer goes on behind them as if it had not stopped.
    _, told = at.post("/v1/completions", **body, return_token_ids=True)
    ids = told["choices"][0]["token_ids"]
    events = at.stream("/v1/completions", **body, return_token_ids=True)
    check(ids == sum((e["choices"][0].get("token_ids", []) for e in events), []) and len(ids) == 12, (ids, events))
    start = at.post("/tokenize", content=body["prompt"])[1]["tokens"]
    greedy = dict(temperature=0, ignore_eos=True, return_token_ids=True)
    _, long = at.post("/v1/completions", prompt=start, max_tokens=9, **greedy)
    _, half = at.post("/v1/completions", prompt=start, max_tokens=4, **greedy)
    _, rest = at.post("/v1/completions", prompt=start + half["choices"][0]["token_ids"], max_tokens=5, **greedy)
    check(long["choices"][0]["token_ids"] == half["choices"][0]["token_ids"] + rest["choices"][0]["token_ids"], (long, rest))
    check(rest["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(start) + 3, rest["usage"])
    parts = [{"type": "text", "text": "Where does "}, {"type": "text", "text": "Ella live?"}]
    _, by_parts = at.post("/v1/chat/completions", messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=8)
    check(by_parts["choices"][0]["message"]["content"] == at.chat("Where does Ella live?", max_tokens=8)[1]["choices"][0]
          ["message"]["content"], "content may be parts")


def seeds(at):
    """A request without a seed draws one and returns it; sent again, it gives the same text."""
    body = dict(prompt="The kite is made of", max_tokens=24, temperature=1.5, ignore_eos=True)
    drawn = [at.post("/v1/completions", **body)[1] for _ in range(8)]
    check(len({d["seed"] for d in drawn}) == 8 and len({d["choices"][0]["text"] for d in drawn}) > 1, drawn)
    check(all(0 <= d["seed"] < 2**53 for d in drawn), drawn)
    _, again = at.post("/v1/completions", **body, seed=drawn[3]["seed"])
    check(again["choices"][0]["text"] == drawn[3]["choices"][0]["text"] and again["seed"] == drawn[3]["seed"], again)
    events = at.stream("/v1/completions", **body)
    _, again = at.post("/v1/completions", **body, seed=events[0]["seed"])
    check(again["choices"][0]["text"] == "".join(e["choices"][0]["text"] for e in events), "a stream tells its seed")
    for seed in (0, 2**53 + 1, 2**63 - 1, 2**64 - 1, -2, -2**63):
        two = [at.post("/v1/completions", **body, seed=seed)[1] for _ in range(2)]
        check(two[0]["choices"][0]["text"] == two[1]["choices"][0]["text"], (seed, two))
    check(len({at.post("/v1/completions", **body, seed=-1)[1]["seed"] for _ in range(4)}) == 4, "-1 draws a seed")
    for seed in (1.5, True, "1", 2**64, []):
        check(at.post("/v1/completions", **body, seed=seed)[0] == 400, seed)
    _, limited = at.post("/v1/completions", **body, seed=7, top_k=-1)
    check(limited["choices"][0]["text"] == at.post("/v1/completions", **body, seed=7)[1]["choices"][0]["text"], limited)


def prompts(at):
    """Several prompts in one request, each answered as alone; and prompts that are returned, and scored."""
    texts = ["Ella lives in", "The kite is made of", "x", "Ella lives in"]
    how = dict(max_tokens=6, temperature=0.9, seed=3, ignore_eos=True, n=2)
    alone = [at.post("/v1/completions", prompt=t, **how)[1] for t in texts]
    wanted = [c["text"] for one in alone for c in one["choices"]]
    ids = [at.post("/tokenize", content=t)[1]["tokens"] for t in texts]
    for many in (texts, ids, [texts[0], ids[1], texts[2], ids[3]]):
        _, got = at.post("/v1/completions", prompt=many, **how)
        check([c["text"] for c in got["choices"]] == wanted and [c["index"] for c in got["choices"]] == list(range(8)), got)
        check(got["usage"]["prompt_tokens"] == sum(len(i) for i in ids) and got["usage"]["completion_tokens"] == 48, got["usage"])
        streamed = [""] * 8
        for event in at.stream("/v1/completions", prompt=many, **how):
            for choice in event["choices"]:
                streamed[choice["index"]] += choice["text"]
        check(streamed == wanted, (streamed, wanted))
    for bad in ([], [[]], [texts, texts], [["x"]], ["x", 5], [5, "x"], [[1], None], ["x"] * 129, {}, True, [1.5], [-1], [2**31]):
        status, got = at.post("/v1/completions", prompt=bad, max_tokens=1)
        check(status == 400 and "prompt" in got["error"]["message"], (bad, got))
    for bad in (["x", "library " * 3000], ["x", [99999999]]):
        check(at.post("/v1/completions", prompt=bad, max_tokens=1)[0] == 400, "one that is wrong refuses all")
    # With echo the answer begins with the prompt; with logprobs each of its tokens has the score it would have as an answer.
    greedy = dict(temperature=0, ignore_eos=True)
    start = ids[0]
    _, said = at.post("/v1/completions", prompt=start, max_tokens=8, logprobs=3, return_token_ids=True, **greedy)
    said = said["choices"][0]
    whole = start + said["token_ids"]
    for _ in range(2):  # also when all is cached
        for more in (0, 1, 3):
            _, echoed = at.post("/v1/completions", prompt=[whole, start], max_tokens=more, logprobs=3, echo=True, **greedy)
            first, second = echoed["choices"]
            scores = first["logprobs"]
            check(first["text"].startswith(at.post("/detokenize", tokens=whole)[1]["prompt"]), first)
            check(len(scores["tokens"]) == len(scores["token_logprobs"]) == len(scores["top_logprobs"]) == len(whole) + more, scores)
            check(scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None, scores)
            for name in ("tokens", "token_logprobs", "top_logprobs"):
                check(scores[name][len(start):len(whole)] == said["logprobs"][name], (name, scores, said))
                check(second["logprobs"][name][len(start):] == said["logprobs"][name][:more], (second, said))
                check(second["logprobs"][name][:len(start)] == scores[name][:len(start)], (second, scores))
            check(all(max(top.values()) >= score for top, score in zip(scores["top_logprobs"][1:], scores["token_logprobs"][1:])), scores)
    events = at.stream("/v1/completions", prompt=texts[0], echo=True, max_tokens=6, **greedy)
    _, plain = at.post("/v1/completions", prompt=texts[0], echo=True, max_tokens=6, **greedy)
    check("".join(e["choices"][0]["text"] for e in events) == plain["choices"][0]["text"], events)
    check(plain["choices"][0]["text"].startswith(texts[0]) and plain["choices"][0]["logprobs"] is None, plain)
    check(at.post("/v1/completions", prompt="x", echo=True, logprobs=1, stream=True)[0] == 400, "scores of a prompt are not streamed")


def tools():
    """Tools, their calls and their results reach the model's template, as text without control tokens."""
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(MODEL).iterdir():
            if file.name != "tokenizer_config.json":
                (Path(folder) / file.name).symlink_to(file.resolve())
        config = json.loads((Path(MODEL) / "tokenizer_config.json").read_text())
        config["chat_template"] = (
            "{% if enable_thinking is false %}no thoughts{% endif %}{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }}: {{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments }}]"
            "{% endfor %}{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        at = Server(model=folder)

        def prompt(**more):
            status, got = at.chat("Where is it?", kvcache_tokens=True, **more)
            check(status == 200, got)
            return "".join(got["kvcache"]["prompt"]), got

        tool = {"type": "function", "function": {"name": "find", "description": "finds <|im_end|>", "parameters": {"type": "object"}}}
        plain, first = prompt()
        check("find" not in plain, plain)
        listed, with_tools = prompt(tools=[tool])
        check("find: {" in listed and '"parameters"' in listed, listed)
        check(prompt(tools=[tool], tool_choice="auto")[0] == listed and prompt(tools=[tool], tool_choice="none")[0] == plain, "the choice")
        check(prompt(tools=[])[0] == plain, "no tools")
        safe, _ = prompt(tools=[{**tool, "function": {**tool["function"], "description": "finds <|xx_end|>"}}])
        check("<|im_end|>" in listed and "<|xx_end|>" in safe, (listed, safe))
        call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"what": "kite"}'}}
        messages = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "content": "in the library", "tool_call_id": "c1"}]
        for user in (None, "ann"):
            body = dict(messages=messages, tools=[tool], max_tokens=4, temperature=0, kvcache_tokens=True, user=user)
            status, got = at.post("/v1/chat/completions", **body)
            text = "".join(got["kvcache"]["prompt"])
            check(status == 200 and '[find {"what": "kite"}]' in text and "in the library(c1)" in text, got)
        # The template writes arguments as they are, so it gets text, also for an object; an absent one is {}.
        for arguments, written in (({"what": "kite"}, '[find {"what":"kite"}]'), ("", "[find {}]"), (None, "[find {}]")):
            again = [messages[0], {**messages[1], "tool_calls": [{**call, "function": {"name": "find", "arguments": arguments}}]}, messages[2]]
            _, got = at.post("/v1/chat/completions", messages=again, max_tokens=1, kvcache_tokens=True)
            check(written in "".join(got["kvcache"]["prompt"]), got)
        ordered = {"type": "function", "function": {"parameters": {"z": 1, "a": {"c": 1, "b": 2}}, "name": "find"}}
        check('"parameters": {"z": 1, "a": {"c": 1, "b": 2}}, "name": "find"' in prompt(tools=[ordered])[0], "the order of keys")
        check("no thoughts" in prompt(chat_template_kwargs={"enable_thinking": False})[0], "variables of the template")
        # Within a conversation the tools may change: what differs is computed again, and the answer is that of a fresh one.
        other = {**tool, "function": {**tool["function"], "name": "look"}}
        for given in ([tool], [other], [], [tool, other]):
            of_ann = at.chat("Where is it?", user="ann", tools=given)[1]["choices"]
            check(of_ann == at.chat("Where is it?", tools=given)[1]["choices"], of_ann)
        at.stop()


def strangers(at):
    """A request without a key is in no conversation: it changes no answer of another one, and leaves no session."""
    before = [s["id"] for s in at.ask("GET", "/v1/sessions")[1]["data"]]
    talk = [{"role": "user", "content": "Where is the kite?"}]
    how = dict(temperature=0, max_tokens=24)
    _, first = at.post("/v1/chat/completions", messages=talk, **how)
    said = first["choices"][0]["message"]["content"]
    longer = [*talk, {"role": "assistant", "content": said}, {"role": "user", "content": "Who has it?"}]
    _, quiet = at.post("/v1/chat/completions", messages=longer, **how)
    for stranger in (talk, [{"role": "user", "content": "Who is Ella?"}], longer[:2] + talk):
        at.post("/v1/chat/completions", messages=stranger, temperature=1.5, max_tokens=24)
        _, got = at.post("/v1/chat/completions", messages=longer, **how)
        check(got["choices"] == quiet["choices"], (got, quiet))
    at.post("/v1/warm", messages=talk)
    check([s["id"] for s in at.ask("GET", "/v1/sessions")[1]["data"]] == before, "no session was made")


def fields(at):
    """A field that could change the answer and is not supported is refused by its name; one that cannot is ignored."""
    asked = dict(prompt="Ella", max_tokens=2, temperature=0)
    for name, value in (("suffix", "x"), ("response_format", {"type": "json_object"}), ("guided_json", {}), ("best_of", 2),
                        ("min_tokens", 1), ("skip_special_tokens", False), ("logits_procesors", []), ("tempreature", 0.5)):
        status, got = at.post("/v1/completions", **asked, **{name: value})
        check(status == 400 and name in got["error"]["message"], (name, status, got))
        status, got = at.chat("x", **{name: value})
        check(status == 400 and name in got["error"]["message"], (name, status, got))
    for name, value in (("tools", [{"type": "function"}]), ("tool_choice", "auto"), ("messages", []), ("echo", "yes")):
        status, got = at.post("/v1/completions", **asked, **{name: value})
        check(status == 400 and name in got["error"]["message"], (name, status, got))
    for name, value in (("echo", True), ("prompt", "x"), ("tools", {}), ("tools", [5]), ("tools", [{"type": "magic"}]),
                        ("tool_choice", "auto"), ("tool_choice", "required"), ("tool_choice", {"type": "function"})):
        status, got = at.chat("x", **{name: value})
        check(status == 400 and name in got["error"]["message"], (name, status, got))
    tool, call = {"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    for field, value in (("tools[1].function", {"type": "function"}), ("tools[1].function", {"type": "function", "function": 5}),
                         ("tools[1].function.name", {"type": "function", "function": {}}),
                         ("tools[1].function.parameters", {"type": "function", "function": {"name": "f", "parameters": []}})):
        status, got = at.chat("x", tools=[tool, value])
        check(status == 400 and f"{field} " in got["error"]["message"], (field, status, got))
    for field, value in (("tool_calls", {}), ("tool_calls[1]", [call, 5]), ("tool_calls[0]", [{"type": "magic"}]),
                         ("tool_calls[0].function", [{"type": "function"}]), ("tool_calls[0].function.name", [{"function": {}}]),
                         ("tool_calls[0].function.arguments", [{"function": {"name": "f", "arguments": "{"}}]),
                         ("tool_calls[0].function.arguments", [{"function": {"name": "f", "arguments": "[]"}}]),
                         ("tool_calls[0].function.arguments", [{"function": {"name": "f", "arguments": 5}}])):
        said = {"role": "assistant", "content": None, "tool_calls": value}
        status, got = at.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}, said], max_tokens=1)
        check(status == 400 and f"messages[1].{field} " in got["error"]["message"], (field, status, got))
    status, got = at.post("/v1/chat/completions", messages=[{"role": "tool", "content": "x", "tool_call_id": 5}], max_tokens=1)
    check(status == 400 and "messages[0].tool_call_id " in got["error"]["message"], got)
    status, got = at.chat("x", chat_template_kwargs=[])
    check(status == 400 and "chat_template_kwargs" in got["error"]["message"], got)
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"):
        status, got = at.chat("x", chat_template_kwargs={name: ""})
        check(status == 400 and got["error"]["code"] == f"chat_template_kwargs.{name}", got)
    status, got = at.chat("x", **{"": 1})
    check(status == 400 and got["error"]["code"] == '""', got)
    for body in ({}, {"text": "x"}, {"messages": [{"role": "user", "content": "x"}]}, []):
        status, got, _ = at.ask("POST", "/tokenize", body)
        check(status == 400 and got["error"]["code"] in ("prompt", "body"), (body, got))
    for ids in ([10**6], [-1], [0, 2**31 - 1]):
        status, got, _ = at.ask("POST", "/detokenize", {"tokens": ids})
        check(status == 400 and got["error"]["code"] == "tokens", (ids, got))
    _, plain = at.post("/v1/completions", **asked)
    for name, value in (("echo", False), ("tools", []), ("tool_choice", "none"), ("response_format", {"type": "text"}),
                        ("best_of", 1), ("suffix", None), ("guided_json", None), ("metadata", {"a": "b"}), ("store", True),
                        ("service_tier", "auto"), ("prompt_cache_key", "x")):
        status, got = at.post("/v1/completions", **asked, **{name: value})
        check(status == 200 and got["choices"] == plain["choices"], (name, status, got))
    name = at.ask("GET", "/v1/models")[1]["data"][0]["id"]
    status, one, _ = at.ask("GET", f"/v1/models/{name}")
    check(status == 200 and one["id"] == name and one["object"] == "model", one)
    status, none, _ = at.ask("GET", "/v1/models/other")
    check(status == 404 and none["error"]["code"] == "model_not_found", none)
    for user in ("a\nb", "a\u007fb", "\u0000"):
        status, got = at.chat("x", user=user)
        check(status == 400 and "control character" in got["error"]["message"], (status, got))


def sessions(at):
    talks = {}
    for turn in range(4):
        for user in ("ann", "bob"):
            messages = talks.setdefault(user, [{"role": "system", "content": "You answer questions about the notes."}])
            messages.append({"role": "user", "content": f"{user}: where is the kite, number {turn}?"})
            status, got = at.post("/v1/chat/completions", messages=messages, user=user, temperature=0, max_tokens=12)
            check(status == 200, got)
            cached, prompt = got["usage"]["prompt_tokens_details"]["cached_tokens"], got["usage"]["prompt_tokens"]
            if turn > 0:
                check(cached >= talks[user + " tokens"] - 1, f"turn {turn} of {user}: {cached} of {prompt} cached")
            talks[user + " tokens"] = got["usage"]["total_tokens"]
            messages.append({"role": "assistant", "content": got["choices"][0]["message"]["content"]})
    listed = [s["id"] for s in at.ask("GET", "/v1/sessions")[1]["data"]]
    check("ann" in listed and "bob" in listed, listed)
    check(at.ask("DELETE", "/v1/sessions/ann")[0] == 200 and at.ask("DELETE", "/v1/sessions/ann")[0] == 404, "ann is forgotten")
    status, warm = at.post("/v1/warm", text="A long text that many will begin with, over and over again.")
    check(status == 200 and warm["token_count"] > 0, warm)


def errors(at):
    def refused(status, code, got):
        check(got[0] == status and set(got[1]["error"]) >= {"message", "type", "code"}, got)
        check(code in (got[1]["error"]["code"] or "") or code in got[1]["error"]["message"], got)

    refused(404, "nothing", at.ask("GET", "/nowhere"))
    refused(404, "model_not_found", at.chat("x", model="other"))
    refused(400, "maximum context length", at.chat("library " * 3000))
    refused(400, "maximum context length", at.chat("x", max_tokens=100000))
    refused(400, "messages", at.post("/v1/chat/completions"))
    refused(400, "messages", at.post("/v1/chat/completions", messages=[]))
    refused(400, "role", at.post("/v1/chat/completions", messages=[{"content": "x"}]))
    refused(400, "content", at.post("/v1/chat/completions", messages=[{"role": "user", "content": [{"type": "image_url"}]}]))
    for field, value in (("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.5), ("n", 0), ("n", 1.5), ("n", 17),
                         ("max_tokens", -1), ("stop", 3), ("stop", [1]), ("stream", "yes"), ("logit_bias", {"x": 1}),
                         ("logit_bias", {"99999999": 1}), ("seed", 1.5), ("stream_options", 3), ("top_logprobs", 3)):
        refused(400, field, at.chat("x", **{field: value}))
    for junk in (b"\0", b"\0{junk", b"{}"):
        refused(400, "json", at.ask("POST", "/v1/completions", b'{"prompt": "x", "max_tokens": 1}' + junk))
    refused(413, "large", at.ask("POST", "/v1/completions", b"x" * (9 << 20)))
    deep = at.memory()
    for open_ in (b"[", b'{"a":', b'{"prompt":['):
        refused(400, "256 levels", at.ask("POST", "/v1/completions", open_ * ((7 << 20) // len(open_))))
    check(at.memory() < deep + 300, f"what is nested deeply takes no memory: {deep} MiB, then {at.memory()}")
    many = {f"key {n}": n for n in range(200000)}
    check(at.post("/v1/completions", metadata=many, prompt="x", max_tokens=1)[0] == 200, "nor do many fields take long")
    refused(400, "key 0", at.post("/v1/completions", prompt="x", **many))
    status, got = at.post("/v1/completions", prompt="x", **{"long" * (1 << 20): 1})
    check(status == 400 and len(got["error"]["message"]) < 200, "a long name is not repeated")
    if DATA:
        for case in sorted((DATA / "protocol" / "JSONTestSuite" / "test_parsing").glob("*.json")):
            status, reply, _ = at.ask("POST", "/v1/completions", case.read_bytes())
            check(status == 400 and "error" in reply, f"{case.name}: {status}")


def rude(at):
    """Clients that hang up, send half, or nothing."""
    body = json.dumps({"prompt": "Ella lives in", "max_tokens": 1500, "ignore_eos": True, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    def cancelled():
        return [at.gauge(f"kvcache:{name}_total") for name in ("request_cancelled", "cancelled_prompt_tokens", "cancelled_generation_tokens")]

    before = cancelled()
    for _ in range(12):
        link = socket.create_connection(("127.0.0.1", at.port))
        link.sendall((head + body).encode())
        check(link.recv(100).startswith(b"HTTP/1.1 200"), "a stream begins")
        link.close()
    for _ in range(200):
        if cancelled()[0] == before[0] + 12:
            break
        threading.Event().wait(0.1)
    requests, prompts, tokens = (now - was for now, was in zip(cancelled(), before))
    check(requests == 12 and 0 < prompts < 12 * 100 and 12 <= tokens < 12 * 1500, f"{requests} requests were cancelled, after {tokens} tokens")
    link = socket.create_connection(("127.0.0.1", at.port))
    link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
    link.settimeout(20)
    heard = b""
    while heard.count(b"HTTP/1.1 200") < 3 and (more := link.recv(4096)):
        heard += more
    check(heard.count(b"HTTP/1.1 200") == 3, "requests that come together are all answered")
    link.close()
    halves = []
    for cut in (0, 1, 10, 40, len(head), len(head) + 5):
        link = socket.create_connection(("127.0.0.1", at.port))
        link.sendall((head + body).encode()[:cut])
        halves.append(link)
    idle = [socket.create_connection(("127.0.0.1", at.port)) for _ in range(100)]
    check(at.chat("Who?")[0] == 200, "others are served")
    for link in halves + idle:
        link.close()
    for _ in range(200):
        if at.gauge("vllm:num_requests_running") == 0:
            break
        threading.Event().wait(0.1)
    check(at.gauge("vllm:num_requests_running") == 0, "who hangs up is no longer answered")
    # Nor is who waits for the whole answer: that it failed says that it was cut, and the conversation knows nothing of it.
    failed, whole = at.gauge("kvcache:request_failure_total"), json.dumps({**json.loads(body), "stream": False})
    chat = json.dumps({"messages": [{"role": "user", "content": "Who?"}], "user": "gone", "max_tokens": 1500,
                       "ignore_eos": True})
    links = []
    for path, text in [("completions", whole)] * 6 + [("chat/completions", chat), ("completions", whole)] * 3:
        link = socket.create_connection(("127.0.0.1", at.port))
        link.sendall(f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        links.append(link)
    for _ in range(200):
        if at.gauge("vllm:num_requests_running") > 0:
            break
        threading.Event().wait(0.01)
    for link in links:
        link.close()
    for _ in range(200):
        if at.gauge("kvcache:request_failure_total") == failed + len(links):
            break
        threading.Event().wait(0.1)
    check(at.gauge("kvcache:request_failure_total") == failed + len(links), "nor who waits for the whole")
    check(cancelled()[0] == before[0] + 12 + len(links), "those are counted as cancelled, too")
    check("gone" not in [s["id"] for s in at.ask("GET", "/v1/sessions")[1]["data"]], "a conversation without a turn is none")
    known = at.chat("Who?", user="gone")[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(known < 1000, f"{known} tokens are known of a conversation whose only turn was given up")


def loads(at):
    """What the load generator reports is what happened."""
    def run(expected, *flags):
        done = subprocess.run([LOAD, "--seed", "3", *flags], capture_output=True, text=True, timeout=60)
        check(done.returncode == expected, (flags, done.returncode, done.stderr))
        return json.loads(done.stdout)

    here = ("--url", f"http://127.0.0.1:{at.port}")
    lengths = ("--system-prompt-len", "12", "--question-len", "3", "--output-len", "5")
    said = run(0, *here, *lengths, "--chat", "--multi-turn", "--num-prompts-per-group", "3", "--requests", "18",
               "--concurrency", "3")
    good = said["successes"]
    check(good["count"] == 18 and said["failures"] == {"count": 0, "by_label": {}}, said["failures"])
    check(good["output_len"]["min"] == good["output_len"]["max"] == 5, good["output_len"])
    check([(t["turn"], t["count"]) for t in said["turns"]] == [(0, 6), (1, 6), (2, 6)], said["turns"])
    check(good["kv_cache_hit_percent"] > 50, good["kv_cache_hit_percent"])
    latency = good["latency"]
    check(latency["time_to_first_token"]["max"] <= latency["request_latency"]["max"], latency)
    cold = run(0, *here, *lengths, "--chat", "--multi-turn", "--num-prompts-per-group", "3", "--requests", "18", "--cold")
    check(cold["successes"]["kv_cache_hit_percent"] < good["kv_cache_hit_percent"], cold["successes"])
    parts = run(0, *here, *lengths, "--poisson", "--stage", "40:0.25", "--stage", "x2:6", "--question-len-std", "3")
    check([p["load_summary"]["count"] for p in parts["stages"]] == [10, 6], parts["stages"])
    check(parts["successes"]["prompt_len"]["min"] < parts["successes"]["prompt_len"]["max"], parts["successes"])
    # Contexts that grow beyond the server's, from two processes; every turn is answered, and all requests are good.
    long = run(0, *here, "--system-prompt-len", "40", "--question-len", "60", "--output-len", "64", "--multi-turn", "--num-groups", "1",
               "--num-prompts-per-group", "3", "--requests", "36", "--context", "900", "--num-workers", "2", "--goodput", "ttft:1000",
               "--goodput", "tpot:1000", "--goodput", "request_latency:0.000001")
    good = long["successes"]
    check(good["count"] == 36 and 450 < good["prompt_len"]["max"] <= 900 - 64, good["prompt_len"])
    check([(t["turn"], t["count"]) for t in long["turns"]] == [(n, 3) for n in range(12)], long["turns"])
    met = good["goodput_metrics"]
    check(met["total_requests"] == 36 and met["good_requests"] == 0 == met["request_latency_attainment_percentage"], met)
    check(met["ttft_attainment_percentage"] == 100 == met["tpot_attainment_percentage"], met)
    missed = run(1, "--url", "http://127.0.0.1:9", *lengths, "--requests", "2")
    check(missed["failures"] == {"count": 2, "by_label": {"connection": 2}}, missed["failures"])
    failed = run(1, *here, "--requests", "4", "--output-len", "1000000")
    check(failed["failures"]["by_label"] == {"Context Window": 4}, failed["failures"])


def overflows():
    """A conversation that no longer fits goes on, where the server was told how."""
    for how in ("slide", "sinks"):
        at = Server("--overflow", how, "--context", "300")
        messages, most = [{"role": "system", "content": "Be brief."}], 0
        for turn in range(9):
            messages.append({"role": "user", "content": f"Number {turn}: " + "The kite stands in the library. " * 5})
            status, got = at.post("/v1/chat/completions", messages=messages, user="ann", temperature=0, max_tokens=8)
            check(status == 200, (how, turn, got))
            usage = got["usage"]
            most = max(most, usage["total_tokens"])
            if how == "sinks" and turn > 0:
                ran = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                check(ran < 80, f"turn {turn} runs what is new alone, {usage}")
            messages.append({"role": "assistant", "content": got["choices"][0]["message"]["content"]})
        limit = at.ask("GET", "/v1/models")[1]["data"][0]["max_model_len"]
        check(limit * 3 // 4 < most <= limit, (how, most, limit))
        if how == "slide":
            talk = [{"role": ("user", "assistant")[n % 2], "content": f"Message {n}."} for n in range(20001)]
            status, got = at.post("/v1/chat/completions", messages=talk, temperature=0, max_tokens=8)
            check(status == 200 and limit * 3 // 4 < got["usage"]["prompt_tokens"] <= limit - 8, got)
        at.stop()


def little_memory():
    """A prompt that can never fit the pages is refused at once, with the numbers; the longest one that fits is answered."""
    at = Server("--cache-mib", "1")
    limit = at.ask("GET", "/v1/models")[1]["data"][0]["max_model_len"]
    ids = at.post("/tokenize", content="library " * 400)[1]["tokens"] * 20
    for answer in (1, 16):
        status, got = at.post("/v1/completions", prompt=ids[:limit - answer], max_tokens=answer, ignore_eos=True)
        check(status == 200 and got["usage"]["total_tokens"] == limit, got)
        status, got = at.post("/v1/completions", prompt=ids[:limit - answer + 1], max_tokens=answer)
        check(status == 400 and got["error"]["code"] == "context_length_exceeded", got)
    status, got = at.post("/v1/completions", prompt=ids[:1900], max_tokens=1)
    check(status == 400 and str(limit) in got["error"]["message"], got)
    # So are answers that can never fit together.
    fit = (limit - 16) // 2 - 16
    status, got = at.post("/v1/completions", prompt=ids[:16], max_tokens=fit, n=2, ignore_eos=True)
    check(status == 200 and got["usage"]["completion_tokens"] == 2 * fit, got)
    for n, most in ((2, fit + 17), (16, 100), (3, fit)):
        status, got = at.post("/v1/completions", prompt=ids[:16], max_tokens=most, n=n, ignore_eos=True)
        check(status == 400 and "n: there is room" in got["error"]["message"], got)
    at.stop()
    tiny = subprocess.run([SERVER, "--model", MODEL, "--port", "0", "--cache-mib", "1", "--page", "512"], capture_output=True,
                          text=True, timeout=60)
    check(tiny.returncode == 1 and "--cache-mib: there is room for 1 pages" in tiny.stderr, tiny)
    refused = subprocess.run([SERVER, "--model", MODEL, "--port", "0", "--cache-mib", str(1 << 20)], capture_output=True,
                             text=True, timeout=60)
    check(refused.returncode == 1 and re.search(r"--cache-mib: 1048576 MiB are .* and \d+ MiB", refused.stderr), refused)


def ends():
    """A server that is told to end cuts what is under way, tells its clients, and keeps nothing."""
    at = Server("--max-sequences", "4", "--threads", "2")
    body = {"prompt": "Ella lives in", "max_tokens": 1500, "ignore_eos": True}
    told = []

    def ask(n):
        try:
            if n % 3 == 0:
                told.append(at.chat("Who?", max_tokens=1500, ignore_eos=True, user=f"user {n}")[0])
            elif n % 3 == 1:
                told.append(at.post("/v1/completions", **body)[0])
            else:
                status, said, _ = at.ask("POST", "/v1/completions", {**body, "stream": True})
                told.append(said[-400:] if isinstance(said, bytes) else status)  # or it came too late for a stream
        except (OSError, http.client.HTTPException):
            told.append("cut")

    crowd = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for each in crowd:
        each.start()
    while at.gauge("vllm:num_requests_running") < 4:
        threading.Event().wait(0.01)
    silent = [socket.create_connection(("127.0.0.1", at.port)) for _ in range(20)]
    for link in silent[::2]:
        link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
    at.stop()
    for each in crowd:
        each.join()
    for link in silent:
        link.settimeout(20)
        try:
            while link.recv(4096):  # half a request may be answered
                pass
        except ConnectionResetError:
            pass
        link.close()
    check(len(told) == 12 and 200 not in told and {t for t in told if isinstance(t, int)} <= {503}, told)
    check(all(b"[DONE]" not in t for t in told if isinstance(t, bytes)), "a stream that was cut does not look whole")


def tiers():
    """What one server computed another finds on the disk, with the same words."""
    text = "The kite stands in the library, and Ella has two red boats in a box of paper on lake street. " * 4
    with tempfile.TemporaryDirectory() as folder:
        nowhere = subprocess.run([SERVER, "--model", MODEL, "--host", "256.0.0.1", "--tier", f"lmdb:{folder}/none"],
                                 capture_output=True, text=True)
        check(nowhere.returncode == 1, nowhere)
        if "built without" in nowhere.stderr:
            return
        said = []
        for life in range(2):
            at = Server("--tier", f"lmdb:{folder}/pages")
            status, got = at.chat(text, user="ann")
            check(status == 200, got)
            said.append((got["choices"][0]["message"]["content"], got["usage"]["prompt_tokens_details"]["cached_tokens"]))
            check((at.gauge("kvcache_tier_loaded_tokens") > 0) == (life > 0), "the second life reads what the first wrote")
            check(at.gauge("kvcache_tier_failures") == 0, "the disk refuses nothing")
            at.stop()
        check(said[0][0] == said[1][0] and said[0][1] == 0 and said[1][1] >= 64, said)
    refused = subprocess.run([SERVER, "--model", MODEL, "--tier", "nowhere:x"], capture_output=True, text=True)
    check(refused.returncode == 1 and "--tier" in refused.stderr, refused)


def equal():
    """The same seeded requests alone, known, all at once, with guesses, in small steps: the same tokens and scores."""
    texts = ["Ella lives in", "The kite is made of", "Tom has two red boats and Tom has two red boats and Tom has two",
             "Where is the library? Where is the box? Where is"]
    asked = [dict(prompt=text, max_tokens=24, ignore_eos=True, seed=seed, logprobs=3, return_token_ids=True, **how)
             for text in texts for seed, how in ((1, {"temperature": 0}), (2, {"temperature": 1.0}),
                                                 (3, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}))]

    def said(got):
        status, reply = got
        check(status == 200, reply)
        return reply["choices"][0]["token_ids"], reply["choices"][0]["logprobs"]

    def together(at):
        heard = [None] * len(asked)

        def ask(n):
            heard[n] = at.post("/v1/completions", **asked[n])

        crowd = [threading.Thread(target=ask, args=(n,)) for n in range(len(asked))]
        for each in crowd:
            each.start()
        for each in crowd:
            each.join()
        return [said(each) for each in heard]

    at = Server()
    alone = [said(at.post("/v1/completions", **each)) for each in asked]
    check(len({str(each) for each in alone}) > len(texts), "different seeds say different things")
    check([said(at.post("/v1/completions", **each)) for each in asked] == alone, "what is known says the same")
    check(together(at) == alone, "in company they say the same")
    streamed = [at.stream("/v1/completions", **each) for each in asked]
    check([sum((e["choices"][0].get("token_ids", []) for e in events), []) for events in streamed] == [a[0] for a in alone],
          "streamed they say the same")
    at.stop()
    for flags in (("--draft", "4"), ("--draft", "6", "--max-sequences", "3", "--max-batch-tokens", "16"), ("--threads", "1", "--max-batch-tokens", "5"),
                  ("--threads", "3", "--draft", "4"), ("--draft", "4", "--draft-model", MODEL), ("--key-sequences", "2", "--first-token-target", "5")):
        at = Server(*flags)
        check(together(at) == alone, f"with {flags} they say the same")
        check([said(at.post("/v1/completions", **each)) for each in asked] == alone, f"with {flags}, once more")
        if "--draft" in flags:
            check(at.gauge("kvcache_accepted_tokens") > 0, "some of what was guessed was right")
        if "--draft-model" in flags:  # the same model guesses what it says itself, unless the answer has penalties
            check(at.gauge("kvcache_accepted_tokens") > 0.5 * at.gauge("kvcache_drafted_tokens"), "most of it was right")
        if "--first-token-target" in flags:
            check(at.gauge("kvcache_first_tokens_on_time") + at.gauge("kvcache_first_tokens_late") > 0, "first tokens are counted")
        at.stop()


def full_queue():
    """A turn whose marked part finds the queue full ends its claim on the conversation."""
    at = Server("--queue", "1", "--max-sequences", "1")
    over = threading.Event()

    def crowd():
        while not over.is_set():
            at.post("/v1/completions", prompt="Ella lives in", max_tokens=200, temperature=0, ignore_eos=True)

    busy = [threading.Thread(target=crowd) for _ in range(4)]
    for each in busy:
        each.start()

    def turn(n):
        parts = [{"type": "text", "text": f"Document {n}. " + "The library is closed on Mondays. " * 8, "cache": "chunk"},
                 {"type": "text", "text": "When is it closed?"}]
        return at.post("/v1/chat/completions", messages=[{"role": "user", "content": parts}], user="ann", max_tokens=4,
                       cache={"mode": "chunks"})

    refused = 0
    for n in range(200):
        refused += turn(n)[0] == 429
        if refused == 3:
            break
    over.set()
    for each in busy:
        each.join()
    check(refused == 3, f"the queue was full for {refused} turns")
    status, got = turn(1000)  # waited for the conversation until the server's --timeout, and this client for 60 s
    check(status == 200, got)
    at.stop()


def chunks(at):
    """Documents that were warmed as chunks are reused at any position, approximately, and only where a request asks for it."""
    texts = ["The library is closed on Mondays, because the mill needs all of its water then. " * 3,
             "Ella has a kite, and the kite is red, and it flies over the harbour all day long. " * 3,
             "Nobody knows who built the tower, but the farmer says that it was his grandfather. " * 3]
    ids = [at.post("/tokenize", content=text, add_special_tokens=False)[1]["tokens"] for text in texts]
    for text, of in zip(texts, ids):
        status, warm = at.post("/v1/warm", text=text, cache={"mode": "chunks"})
        check(status == 200 and warm["chunk_tokens"] == warm["token_count"] == len(of), warm)
    tokens = lambda text: at.post("/tokenize", content=text, add_special_tokens=False)[1]["tokens"]
    documents = sum(map(len, ids))

    def ask(start, mode=None, salt=None, **more):
        prompt = tokens(start) + ids[2] + ids[0] + ids[1] + tokens("Who?")
        status, got = at.post("/v1/completions", prompt=prompt, max_tokens=8, temperature=0, logprobs=1,
                              **({"cache": {"mode": mode, **more}} if mode else {}), **({"cache_salt": salt} if salt else {}))
        check(status == 200, got)
        return got["choices"], got["usage"]["kvcache"], len(prompt)

    for start, more, again in (("Read.", {"recompute": "head", "rows": 4}, 12), ("Read this.", {"recompute": "head:16"}, 48),
                               ("Look.", {"recompute": "boundary", "rows": 2}, 6), ("Hear.", {"recompute": "none"}, 0), ("See.", {}, 48)):
        _, counts, length = ask(start, "chunks", **more)
        check(counts["mode"] == "chunks" and counts["approximate"], (more, counts))
        check(counts["recomputed_tokens"] == again and counts["approximate_tokens"] + again == documents, (more, counts))
        check(counts["exact_tokens"] + counts["prefilled_tokens"] == length - documents and counts["kv_reuse_ratio"] > 0.5, (more, counts))
        exact, counts, _ = ask(start)
        check(counts["mode"] == "prefix" and not counts["approximate"], (more, counts))
        cold, counts, _ = ask(start, "baseline")
        check(exact == cold and counts == {"mode": "baseline", "approximate": False, "kv_reuse_ratio": 0, "exact_tokens": 0,
                                           "approximate_tokens": 0, "recomputed_tokens": 0, "prefilled_tokens": length}, counts)
    for recompute, percent in ("blend", 20), ("gradual", 10):
        counts = ask(f"Consider {recompute}.", "chunks", recompute=recompute, percent=percent)[1]
        check(counts["recomputed_tokens"] == documents * percent // 100, (recompute, counts))
    full = ask("Again.", "chunks", recompute="full")
    check(full[0] == ask("Again.", "baseline")[0] and not full[1]["approximate"], "what runs again is exact")
    check(ask("Once more.", "chunks", salt="other")[1]["approximate_tokens"] == 0, "a stranger's chunks are no one else's")
    for wrong, field in (({"mode": "some"}, "cache.mode"), ({"mode": 1}, "cache.mode"), ({"recompute": "heads"}, "cache.recompute"),
                         ({"recompute": "head:0"}, "cache.recompute"), ({"rows": 4}, "cache.rows"), ({"rows": 0, "recompute": "head"}, "cache.rows"),
                         ({"percent": 4}, "cache.percent"), ({"percent": 101, "recompute": "blend"}, "cache.percent"), ({"modes": "prefix"}, "cache.modes"), ("chunks", "cache")):
        status, got = at.post("/v1/completions", prompt="x", max_tokens=1, cache=wrong)
        check(status == 400 and got["error"]["code"] == field, (wrong, got))
    check(at.gauge("kvcache:approximate_tokens_total") > 0 and at.gauge("kvcache:approximate_requests_total") >= 5, "they are counted")
    # Marked parts of messages are chunks too: those that are new are computed by themselves first.
    parts = ["The miller has seven cats, and each of them sleeps in a sack of its own, near the stove. " * 3, texts[1]]
    part = lambda text, **more: {"type": "text", "text": text, "cache": "chunk", **more}
    for order, question in ((1, 0), "Which one?"), ((0, 1), "How many?"):
        content = [{"type": "text", "text": "Read: "}, *(part(parts[i]) for i in order), {"type": "text", "text": question}]
        got = at.post("/v1/chat/completions", messages=[{"role": "user", "content": content}], max_tokens=4, temperature=0,
                      cache={"mode": "chunks", "recompute": "head:4"})[1]
        counts = got["usage"]["kvcache"]
        check(counts["recomputed_tokens"] == 8 and counts["approximate_tokens"] == sum(len(tokens(each)) for each in parts) - 8, (order, counts))
    plain = [{"role": "user", "content": "Read: " + parts[0] + "How many?"}]
    marked = [{"role": "user", "content": [{"type": "text", "text": "Read: "}, part(parts[0]), {"type": "text", "text": "How many?"}]}]
    how = dict(temperature=0, max_tokens=6, logprobs=True, cache={"mode": "prefix"})
    check(at.post("/v1/chat/completions", messages=plain, **how)[1]["choices"] == at.post("/v1/chat/completions", messages=marked, **how)[1]["choices"],
          "in other modes a mark changes nothing")
    for wrong in (part("x", cache="page"), part("x", cache=True), part(None)):
        status, got = at.post("/v1/chat/completions", messages=[{"role": "user", "content": [wrong]}], max_tokens=1)
        check(status == 400 and got["error"]["code"] == "messages[0].content", (wrong, got))
    # A turn that was approximate is no past of the next one.
    talk = [{"role": "user", "content": texts[0]}]
    how = dict(temperature=0, max_tokens=12, user="reader")
    said = at.post("/v1/chat/completions", messages=talk, cache={"mode": "chunks"}, **how)[1]["choices"][0]["message"]
    longer = [*talk, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "Why?"}]
    one = at.post("/v1/chat/completions", messages=longer, **how)[1]["choices"]
    check(one == at.post("/v1/chat/completions", messages=longer, cache={"mode": "baseline"}, **how)[1]["choices"], one)


def limits():
    """A key that has had its tokens waits, and another one does not; a priority is an integer."""
    at = Server("--api-key", "one", "--api-key", "two", "--key-tokens-per-second", "50", "--key-sequences", "2")
    ask = lambda key, **more: at.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 30, "ignore_eos": True, "temperature": 0, **more},
                                     {"Authorization": "Bearer " + key})
    check(ask("one")[0] == 200, "the first request of a key begins at once")
    began = time.monotonic()
    check(ask("one", prompt="y")[0] == 200 and time.monotonic() - began > 0.3, "the next one waits until its tokens are paid")
    began = time.monotonic()
    check(ask("two")[0] == 200 and time.monotonic() - began < 0.3, "another key does not wait")
    check(ask("two", n=3)[1]["error"]["code"] == "n", "a key has at most its answers")
    check(ask("two", priority=-3, max_tokens=1)[0] == 200 and ask("two", priority="high")[1]["error"]["code"] == "priority", "priorities")
    at.stop()


def browsers():
    """Pages of the origins that are allowed use the server from a browser; others are refused, by the browser and by it."""
    chat, body = "https://chat.example", {"prompt": "x", "max_tokens": 1}
    at = Server("--allow-origin", chat, "--allow-origin", "http://localhost:3000", "--api-key", "secret")

    def ask(origin, key="Bearer secret", method="POST", **more):
        status, reply, got = at.ask(method, "/v1/completions", body if method == "POST" else None,
                                    {"Origin": origin, **({"Authorization": key} if key else {}), **more})
        return status, got.getheader("Access-Control-Allow-Origin"), got

    for origin in (chat, "http://localhost:3000"):
        status, allowed, got = ask(origin)
        check(status == 200 and allowed == origin and got.getheader("Vary") == "Origin", (status, allowed))
        check(ask(origin, key="")[:2] == (401, origin), "a page reads why it was refused")
        status, allowed, got = ask(origin, "", "OPTIONS", **{"Access-Control-Request-Method": "POST",
                                                             "Access-Control-Request-Headers": "authorization,x-stainless-os"})
        check(status == 204 and allowed == origin and "POST" in got.getheader("Access-Control-Allow-Methods"), (status, allowed))
        check(got.getheader("Access-Control-Allow-Headers") == "authorization,x-stainless-os", got.getheaders())
        check(got.getheader("Access-Control-Max-Age") and got.getheader("Content-Type") is None, got.getheaders())
    for origin in ("https://evil.example", "http://chat.example", "https://chat.example:444", "https://chat.example.evil.example", "null"):
        check(ask(origin)[:2] == (403, None), origin)
        check(ask(origin, "", "OPTIONS", **{"Access-Control-Request-Method": "POST"})[:2] == (403, None), origin)
    check(at.ask("OPTIONS", "/v1/completions", None, {"Authorization": "Bearer secret"})[0] == 404, "no preflight")
    at.stop()
    at = Server("--allow-origin", "*")
    check(at.ask("POST", "/v1/completions", body, {"Origin": "null"})[2].getheader("Access-Control-Allow-Origin") == "*", "all")
    at.stop()
    for wrong in ("chat.example", "https://chat.example/", "https://*.example", ""):
        done = subprocess.run([SERVER, "--model", MODEL, "--port", "0", "--allow-origin", wrong], capture_output=True, text=True, timeout=60)
        check(done.returncode != 0 and "origin" in done.stderr, (wrong, done))


def files():
    """A file of keys or a secret has an end; a tier is no URL."""
    for flags, words in ((("--api-key-file", "/dev/zero"), "more than a MiB"), (("--api-key-file", "/nowhere"), "cannot be read"),
                         (("--api-key-file", "/"), "cannot be read"), (("--tier", "redis://127.0.0.1:6379"), "slash"),
                         (("--tier", "lmdb:build/x", "--tier-secret-file", "/dev/zero"), "more than a MiB")):
        done = subprocess.run([SERVER, "--model", MODEL, "--port", "0", *flags], capture_output=True, text=True, timeout=60)
        check(done.returncode != 0 and words in done.stderr, (flags, done))


def bare():
    """A model without a chat template completes texts."""
    at = Server(model=str(DATA / "models" / "stories260k"))
    status, done = at.post("/v1/completions", prompt="Once upon a time", max_tokens=10, temperature=0)
    check(status == 200 and done["choices"][0]["text"], done)
    status, refused = at.chat("Who?")
    check(status == 400 and "chat template" in refused["error"]["message"], refused)
    at.stop()


def main():
    at = Server()
    for part in (shapes, asks, seeds, prompts, strangers, fields, sessions, errors, rude, chunks):
        part(at)
    if LOAD:
        loads(at)
    page = at.ask("GET", "/")[1].decode()
    check("<textarea" in page and "http" not in page.replace("http-equiv", ""), "the page needs nothing from outside")
    at.stop()
    keyed = Server("--api-key", "secret", "--queue", "1", "--max-sequences", "1", "--draft", "4")
    check(keyed.chat("x")[0] == 401 and keyed.ask("GET", "/health")[0] == 200, "a key is asked for")
    for word in ("Bearer secret", "bearer secret", "BEARER  secret"):
        check(keyed.ask("GET", "/v1/models", None, {"Authorization": word})[0] == 200, f"and known: {word}")
    for word in ("", "Bearer", "Bearer ", "Bearer secret2", "Bearer secre", "Basic secret", "secret", "Bearersecret"):
        check(keyed.ask("GET", "/v1/models", None, {"Authorization": word})[0] == 401, f"a wrong key: {word}")
    empty = subprocess.run([SERVER, "--model", MODEL, "--port", "0", "--api-key", ""], capture_output=True, text=True, timeout=60)
    check(empty.returncode == 1 and "empty" in empty.stderr, empty)
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
    got = []
    crowd = [threading.Thread(target=lambda: got.append(keyed.ask("POST", "/v1/completions", body,
                                                                  {"Authorization": "Bearer secret"}))) for _ in range(12)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    check({g[0] for g in got} == {200, 429}, [g[0] for g in got])
    check(all(g[2].getheader("Retry-After") for g in got if g[0] == 429), "429 says when to come again")
    check(len({g[1]["choices"][0]["text"] for g in got if g[0] == 200}) > 0, "some are answered")
    check(keyed.ask("GET", "/v1/models", None, {"Authorization": "Bearer secret", "Host": "a.example"})[0] == 200, "a key is enough")
    keyed.stop()
    named = Server("--allow-host", "A.example", "--allow-host", "b.example")
    check([named.ask("GET", "/health", None, {"Host": name})[0] for name in ("a.example", "B.example:80", "c.example")] ==
          [200, 200, 403], "names may be allowed")
    named.stop()
    browsers()
    limits()
    files()
    tools()
    equal()
    overflows()
    full_queue()
    little_memory()
    ends()
    tiers()
    if DATA:
        bare()
    print(f"protocol.py: {running.checks} checks hold")


main()
