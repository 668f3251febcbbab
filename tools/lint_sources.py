"""Sources: licensed on the first line, ASCII, finished, and of no particular machine"""
import re

from repository import name_of, tracked

CODE = {".hpp", ".cpp", ".cu", ".cuh"}
TEXT = CODE | {".py", ".cmake", ".md", ".in", ".sh"}
NAMED = {"CMakeLists.txt", "CMakePresets.json", "dev", "run", "Doxyfile", ".clang-format", ".clang-tidy"}
MARK = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/\w")


def check() -> list[str]:
    wrong = []
    for path in tracked():
        name = name_of(path)
        if path.suffix not in TEXT and path.name not in NAMED:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            wrong.append(f"{name}: is not UTF-8")
            continue
        if path.suffix in CODE:
            if not text.startswith("// SPDX-License-Identifier: MIT\n"):
                wrong.append(f"{name}: does not open with // SPDX-License-Identifier: MIT")
            if not text.isascii():
                number = next(i for i, line in enumerate(text.splitlines(), 1) if not line.isascii())
                wrong.append(f"{name}:{number}: is not ASCII; write \\u escapes")
        for number, line in enumerate(text.splitlines(), 1):
            if found := MARK.search(line):
                wrong.append(f"{name}:{number}: {found[0]}: finish it, or open an issue")
            if found := MACHINE.search(line):
                wrong.append(f"{name}:{number}: {found[0]}...: a path of one machine")
    return wrong
