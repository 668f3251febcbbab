#!/usr/bin/env python3
"""Renders chat templates with Jinja, set up as in the transformers package, and with this library, and compares.

    real_templates.py RENDER_TEMPLATE FOLDER [WORDS]

RENDER_TEMPLATE is the program of render_template.cpp, FOLDER holds *.jinja files. Only templates whose names contain
WORDS are tried, and their differences are printed. The status is 1 if fewer than 98 % of the templates render exactly.
"""
import datetime
import json
import subprocess
import sys
from pathlib import Path

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("SKIPPED: the package jinja2 is not installed")
    sys.exit(0)

NOW = [2026, 3, 5, 14, 7, 9]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the assistant says."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime(*NOW).strftime(form)
    return made


def call(name, arguments, number):
    return {"type": "function", "id": f"call{number:05d}", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {"type": "function",
     "function": {"name": "get_weather", "description": "Get the weather of a city, \"now\" or <later>.",
                  "parameters": {"type": "object",
                                 "properties": {"city": {"type": "string", "description": "The city's name: é, 東京"},
                                                "days": {"type": "integer", "default": 3},
                                                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                                                "places": {"type": "array", "items": {"type": "string"}}},
                                 "required": ["city"]}}},
    {"type": "function",
     "function": {"name": "add", "description": "Add two numbers.",
                  "parameters": {"type": "object",
                                 "properties": {"a": {"type": "number"}, "b": {"type": ["number", "null"]},
                                                "options": {"type": "object", "properties": {"exact": {"type": "boolean"}}}},
                                 "required": ["a", "b"]},
                  "return": {"type": "number", "description": "The sum."}}},
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def conversations():
    """Yields a name, messages and variables."""
    system = message("system", "You are brief.\nAlways.")
    hello = message("user", "  Hello, who's there? <b>é 東京</b>\n")
    answer = message("assistant", " A 'friend' & \"more\".")
    more = message("user", "Add 2 and 3.")
    thought = message("assistant", "It is me.", reasoning_content="They ask who.\nI say.")
    inline = message("assistant", "<think>\nHm, hm.\n</think>\n\nIt is me.")
    one_call = message("assistant", "", tool_calls=[call("add", {"a": 2, "b": 3.5, "options": {"exact": True}}, 1)])
    null_call = message("assistant", None, tool_calls=[call("get_weather", {"city": "Zürich", "places": ["a", "b"]}, 2)])
    two_calls = message("assistant", "Let me see.", reasoning_content="Two of them.",
                        tool_calls=[call("get_weather", {"city": "Paris"}, 3), call("now", {}, 4)])
    text_call = message("assistant", "", tool_calls=[call("add", "{\"a\": 2, \"b\": 3}", 5)])
    sum_is = message("tool", "5.5", tool_call_id="call00001", name="add")
    weather = message("tool", "{\"sky\": \"blue\", \"t\": [1, 2]}", tool_call_id="call00003", name="get_weather")
    time = message("tool", "14:07", tool_call_id="call00004", name="now")
    parts = message("user", [{"type": "text", "text": "What is this?"}, {"type": "text", "text": " And this?"}])
    picture = message("user", [{"type": "image"}, {"type": "text", "text": "What is this?"}])
    yield "user", [hello], {}
    yield "system", [system, hello], {}
    yield "turns", [hello, answer, more], {}
    yield "system turns", [system, hello, answer, more, answer, hello], {}
    yield "ends with the assistant", [system, hello, answer], {}
    yield "reasoning", [hello, thought, more], {}
    yield "reasoning within", [system, hello, inline, more, thought], {}
    yield "thinking", [system, hello, answer, more], {"enable_thinking": True, "thinking": True}
    yield "no thinking", [hello, answer, more], {"enable_thinking": False, "thinking": False}
    yield "effort", [system, hello], {"reasoning_effort": "high", "date_string": "1 Jan 2026"}
    yield "tools", [hello], {"tools": TOOLS}
    yield "tools, system", [system, more], {"tools": TOOLS}
    yield "no tools", [system, more], {"tools": []}
    yield "a call", [system, more, one_call, sum_is], {"tools": TOOLS}
    yield "a call, more turns", [more, one_call, sum_is, answer, hello], {"tools": TOOLS}
    yield "a call without text", [hello, null_call, weather, answer, more], {"tools": TOOLS}
    yield "two calls", [system, hello, two_calls, weather, time, answer, more], {"tools": TOOLS}
    yield "two calls, one result each", [hello, one_call, sum_is, two_calls, weather, time], {"tools": TOOLS}
    yield "arguments as text", [more, text_call, sum_is], {"tools": TOOLS}
    yield "ends with a call", [system, more, one_call], {"tools": TOOLS}
    yield "calls without tools", [more, one_call, sum_is, answer, hello], {}
    yield "thinking, tools", [system, hello, two_calls, weather, time], {"tools": TOOLS, "enable_thinking": True}
    yield "parts", [parts], {}
    yield "parts, turns", [system, parts, message("assistant", [{"type": "text", "text": "Mine."}]), more], {}
    yield "parts, image", [picture], {}
    yield "system in parts", [message("system", [{"type": "text", "text": "Be brief."}]), hello], {}
    yield "developer", [message("developer", "Obey."), hello, answer, more], {}
    every = {"t": True, "n": None, "i": -3, "f": 0.1, "big": 1e21, "s": "it's \"é\"\n<b>", "l": [1, "a", [2.0, {}], []],
             "o": {"k": [None, False], "": "empty"}, "東": "京"}
    typed_call = message("assistant", "", tool_calls=[call("add", every, 6)])
    thoughts = message("assistant", "", reasoning_content="", thinking="Hm.", tool_calls=[call("now", {}, 7)])
    results = message("tool", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], tool_call_id="call00006", name="add")
    control = message("user", "</s><|im_end|>\n<|im_start|>system\n[/INST] {{ 7 * 7 }} {% if x %}")
    yield "arguments of every type", [more, typed_call, results, answer, more], {"tools": TOOLS}
    yield "thoughts without text", [more, thoughts, message("tool", "14:07", tool_call_id="call00007")], {"tools": TOOLS}
    yield "names", [message("user", "x", name="Ann"), message("assistant", "y", name="Bob"), message("user", "z", name="Ann")], {}
    yield "bare tools", [system, more], {"tools": [tool["function"] for tool in TOOLS]}
    yield "built-in tools", [system, more], {"builtin_tools": ["wolfram_alpha", "brave_search"], "tools": TOOLS, "tools_in_user_message": False}
    yield "other variables", [system, more], {"xml_tools": [str(TOOLS[0])], "python_tools": ["f"], "custom_tools": TOOLS, "model_identity": "I.",
                                              "available_tools": TOOLS, "preserve_thinking": True, "clear_thinking": False, "effort": "low"}
    yield "control tokens in text", [control, message("assistant", "[INST] <s>"), control], {}
    yield "white space", [message("system", " \n\t"), message("user", "\n\n a \r\n b \u00a0"), message("assistant", "  \n"), hello], {}
    yield "no messages", [], {}
    yield "assistant first", [answer, hello], {}
    yield "late system", [hello, answer, system, more], {}
    yield "three calls in a row", [more, one_call, sum_is, two_calls, weather, time, text_call, sum_is, answer, hello, thought], {"tools": TOOLS}
    yield "two users", [hello, more], {}
    yield "long", [system] + [hello, answer] * 12 + [more], {}
    yield "empty", [message("user", "")], {}
    yield "documents", [system, hello], {"documents": [{"title": "One", "text": "First."}, {"title": "Two", "text": "é."}]}


def by_jinja(template, case):
    try:
        return {"text": template.render(messages=case["messages"], add_generation_prompt=case["add_generation_prompt"],
                                        **{"tools": None, "documents": None, **SPECIAL, **case["variables"]})}
    except Exception as problem:  # whatever a template does wrong
        return {"error": f"{type(problem).__name__}: {problem}"}


class Renderer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def render(self, source, case):
        line = {"template": source, "special_tokens": SPECIAL, "now": NOW, **case}
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the program ended with status {self.process.wait()}")
        return json.loads(answer)


def first_difference(wanted, got):
    at = next((i for i, (a, b) in enumerate(zip(wanted, got)) if a != b), min(len(wanted), len(got)))
    return f"at {at}: {wanted[max(0, at - 40):at + 60]!r}\n      ours: {got[max(0, at - 40):at + 60]!r}"


def differences(source, template, renderer):
    """Returns what differs in the renderings of a template, and the number of equal ones."""
    differing, equal = [], 0
    for name, messages, variables in conversations():
        for prompt in (False, True):
            case = {"messages": messages, "variables": variables, "add_generation_prompt": prompt}
            wanted, got = by_jinja(template, case), renderer.render(source, case)
            if "refused" in got:
                return [got["refused"]], 0
            if "text" in wanted and "text" in got and wanted["text"] != got["text"]:
                differing.append(f"{name}: {first_difference(wanted['text'], got['text'])}")
            elif ("text" in wanted) != ("text" in got):
                differing.append(f"{name}: {wanted.get('error', 'rendered')}\n      ours: {got.get('error', 'rendered')}")
            else:
                equal += "text" in wanted
    return differing, equal


def main():
    program, folder, *words = sys.argv[1:]
    paths = [path for path in sorted(Path(folder).glob("*.jinja")) if not words or words[0] in path.name]
    if not paths:
        print(f"SKIPPED: {folder} has no templates")
        return 0
    renderer, jinja = Renderer(program), environment()
    exact = rendered = invalid = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        try:
            template = jinja.from_string(source)
        except jinja2.TemplateError as problem:
            invalid += 1
            print(f"{path.name}: not a template for Jinja either: {problem}")
            continue
        differing, equal = differences(source, template, renderer)
        rendered += equal
        exact += not differing
        if differing:
            print(f"{path.name}: {len(differing)} differ")
            for each in differing if words else differing[:1]:
                print(f"    {each}")
    tried = len(paths) - invalid
    print(f"{exact} of {tried} templates render exactly as Jinja {jinja2.__version__} does; {rendered} equal renderings")
    return 0 if exact >= 0.98 * tried else 1


if __name__ == "__main__":
    sys.exit(main())
