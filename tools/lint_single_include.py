"""The single headers are fresh"""
import amalgamate


def check() -> list[str]:
    try:
        return [f"single_include/kvcache/{name} is stale: run tools/amalgamate.py" for name in amalgamate.stale()]
    except SystemExit as reason:
        return [str(reason)]
