"""What the rules share: the files of this project."""
import re
import subprocess
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
INCLUDE = HOME / "include" / "kvcache"
ROLES = ("codec", "storage", "hash", "index", "eviction", "recompute", "tier", "observer", "locking", "layers")
COMPONENT_POLICIES = {"hash": ("sha256",), "tier": ("lmdb", "redis")}  # in no list: each needs a component of its own


def headers() -> list[Path]:
    """Our headers, in order."""
    return sorted([*INCLUDE.rglob("*.hpp"), *INCLUDE.rglob("*.cuh")])


def name_of(path: Path) -> str:
    """A path as people write it, from the project's root."""
    return path.relative_to(HOME).as_posix()


def tracked() -> list[Path]:
    """What git keeps, or would with the next `git add`; without git, everything outside build/."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=HOME,
                            capture_output=True, check=False)
    if listed.returncode == 0:
        paths = [HOME / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in HOME.rglob("*") if not {"build", ".git"} & set(path.relative_to(HOME).parts)]
    return sorted({path for path in paths if path.is_file()})


def code_of(text: str) -> str:
    """C++ without comments and string literals, line by line as it was."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.S)
    return token.sub(lambda found: "\n" * found[0].count("\n") if found[0][0] == "/" else '""', text)
