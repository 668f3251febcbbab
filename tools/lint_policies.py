"""Role folders: concept.hpp, one file a policy, all.hpp; each policy meets its concept where it ends"""
import re

from repository import COMPONENT_POLICIES, INCLUDE, ROLES, code_of, name_of


def check() -> list[str]:
    wrong = []
    for role in ROLES:
        folder = INCLUDE / role
        if not folder.is_dir():
            continue
        for required in ("concept.hpp", "all.hpp"):
            if not (folder / required).is_file():
                wrong.append(f"{name_of(folder)}/ has no {required}")
        listed = (folder / "all.hpp").read_text() if (folder / "all.hpp").is_file() else ""
        for path in sorted(folder.glob("*.hpp")):
            code = code_of(path.read_text())
            if path.name in ("concept.hpp", "all.hpp") or not re.search(rf"using role = {role}_role;", code):
                continue
            if f"<kvcache/{role}/{path.name}>" not in listed and path.stem not in COMPONENT_POLICIES.get(role, ()):
                wrong.append(f"{name_of(path)}: all.hpp does not include it")
            asserted = list(re.finditer(rf"static_assert\(\s*{role}_policy\s*<", code))
            if not asserted:
                wrong.append(f"{name_of(path)}: does not end with static_assert({role}_policy<...>);")
                continue
            rest = code[asserted[-1].start():].partition(";")[2]
            if re.sub(r"#\s*endif|static_assert\([^;]*;|[}\s]", "", rest):
                wrong.append(f"{name_of(path)}: something follows static_assert({role}_policy<...>); it comes last")
    return wrong
