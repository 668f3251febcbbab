"""The single header is fresh"""
import amalgamate


def check() -> list[str]:
    try:
        return ["single_include/kvcache/kvcache.hpp is stale: run tools/amalgamate.py"] if amalgamate.stale() else []
    except SystemExit as reason:
        return [str(reason)]
