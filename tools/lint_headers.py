"""Headers: one subject each, quiet, never longer than 500 lines without a reason"""
import re

from repository import code_of, headers, name_of

LONGEST = 500
REASON = re.compile(r"^// Longer than 500 lines: \S.{10,}", re.M)
NOISE = re.compile(r"(?<![\w.>])(?:std::)?(?:cout|cerr|clog|printf|fprintf|puts|fputs|putchar|perror|abort|exit|_exit|quick_exit|"
                   r"terminate)\s*(?:\(|<<)|#\s*include\s*<(?:iostream|print)>")
ENDS = ("core/errors.hpp", "core/errors.hpp")  # where a program is built without exceptions


def check() -> list[str]:
    wrong = []
    for path in headers():
        text = path.read_text()
        lines = text.count("\n")
        if lines > LONGEST and not REASON.search(text):
            wrong.append(f"{name_of(path)}: {lines} lines; split it, or say why in it: \"// Longer than 500 lines: ...\"")
        if "\n#pragma once\n" not in text:
            wrong.append(f"{name_of(path)}: no #pragma once")
        for number, line in enumerate(code_of(text).splitlines(), 1):
            if "std::terminate()" in line and name_of(path).endswith(ENDS):
                continue
            if found := NOISE.search(line):
                wrong.append(f"{name_of(path)}:{number}: {found[0].strip()}: the library never prints, aborts or exits")
    return wrong
