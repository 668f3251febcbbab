"""Tests mirror headers: tests/FOLDER/HEADER.test.cpp tests include/kvcache/FOLDER/HEADER.hpp"""
from repository import HOME, INCLUDE, headers


def check() -> list[str]:
    tests = HOME / "tests"
    wanted = {path.relative_to(INCLUDE).with_suffix("").as_posix() for path in headers() if path.parent != INCLUDE and path.parent.name != "impl"}
    tested = {path.relative_to(tests).as_posix().removesuffix(".test.cpp") for path in tests.rglob("*.test.cpp")}
    wanted = {name for name in wanted if name.rpartition("/")[2] not in ("all", "concept", "compiled", "version")}
    bare = sorted(wanted - tested)
    return [f"warning: {len(bare)} headers have no test of their name: {', '.join(bare)}"] if bare else []
