"""One version: core/abi.hpp, and whoever repeats it agrees"""
import re

from repository import HOME, INCLUDE


def check() -> list[str]:
    numbers = re.findall(r"#define KVCACHE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (INCLUDE / "core/abi.hpp").read_text())
    if len(numbers) != 3:
        return ["core/abi.hpp does not define MAJOR, MINOR and PATCH"]
    version, minor = ".".join(numbers), ".".join(numbers[:2])
    wrong = []
    changelog = HOME / "CHANGELOG.md"
    heading = re.search(r"^## (\d+\.\d+\.\d+)", changelog.read_text() if changelog.exists() else "", re.M)
    if not heading or heading[1] != version:
        wrong.append(f"CHANGELOG.md: its newest version is {heading[1] if heading else 'missing'}, not {version}")
    for path in [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md")), HOME / "tests/consumer/CMakeLists.txt"]:
        text = path.read_text() if path.exists() else ""
        for said in re.findall(r"find_package\(kvcache (\d+\.\d+)[ )]", text):
            if said != minor:
                wrong.append(f"{path.name}: find_package(kvcache {said}), but this is {minor}")
        for said in re.findall(r"GIT_TAG v(\d+\.\d+\.\d+)", text):
            if said != version:
                wrong.append(f"{path.name}: GIT_TAG v{said}, but this is {version}")
    return wrong
