#!/usr/bin/env python3
"""Builds the packages of packaging/ and a program that uses each.

    packages.py conan|vcpkg CONAN SCRATCH

conan: by CONAN, with a cache of its own and no remote; xxhash comes from this machine. vcpkg: its tool is not on PyPI, so the
port is run by CMake with what vcpkg's functions do, and its files are held against vcpkg's rules.
"""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent.parent
PORT = HOME / "packaging" / "vcpkg" / "ports" / "kvcache"
PROGRAM = HOME / "packaging" / "conan" / "test_package"

XXHASH = """
from conan import ConanFile
from conan.tools.files import copy
class Xxhash(ConanFile):
    name, version, package_type = "xxhash", "0.8.1", "header-library"
    def package(self):
        copy(self, "xxhash.h", "/usr/include", self.package_folder + "/include")
"""

# What the port calls, in the words of CMake. A debug build of headers would be the same again.
FUNCTIONS = r"""
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${SCRATCH}/build -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}
                          ${arg_OPTIONS} COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
endfunction()
function(vcpkg_cmake_install)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${SCRATCH}/build COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
endfunction()
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  file(GLOB files ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*)
  file(COPY ${files} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${PORT})
  file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH})
  file(GLOB files ${CURRENT_PACKAGES_DIR}/share/${PORT}/*.cmake)
  set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
  foreach(file IN LISTS files)  # they are a folder higher now
    file(READ ${file} text)
    string(REPLACE "${up}${up}" "${up}" text "${text}")
    string(REPLACE "/../../../" "/../../" text "${text}")
    file(WRITE ${file} "${text}")
  endforeach()
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(INSTALL ${arg_FILE_LIST} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${PORT} RENAME copyright)
endfunction()
include(${PORTFILE})
"""


def run(*words: object, **more: object) -> None:
    subprocess.run([str(word) for word in words], check=True, **more)


def conan(tool: Path, scratch: Path) -> None:
    environment = os.environ | {"CONAN_HOME": str(scratch / "home")}
    recipe = scratch / "xxhash" / "conanfile.py"
    recipe.parent.mkdir()
    recipe.write_text(XXHASH)
    run(tool, "profile", "detect", env=environment)
    run(tool, "remote", "remove", "*", env=environment)
    run(tool, "create", recipe.parent, env=environment)
    for name in ("packaging", "include"):  # a copy: conan's builds leave files next to a recipe
        shutil.copytree(HOME / name, scratch / "tree" / name)
    shutil.copy(HOME / "LICENSE", scratch / "tree")
    run(tool, "create", scratch / "tree" / "packaging" / "conan", "-s", "compiler.cppstd=20", env=environment)


def vcpkg(scratch: Path) -> None:
    manifest = json.loads((PORT / "vcpkg.json").read_text())
    abi = (HOME / "include" / "kvcache" / "core" / "abi.hpp").read_text()
    version = ".".join(re.search(rf"KVCACHE_VERSION_{part} (\d+)", abi)[1] for part in ("MAJOR", "MINOR", "PATCH"))
    rules = {
        "the folder has the port's name": manifest["name"] == PORT.name,
        "the name is lower case": re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", manifest["name"]) is not None,
        "the version is that of the library": manifest["version-semver"] == version,
        "the licence is an SPDX name": manifest["license"] == "MIT",
        "the helpers are dependencies of the host": all(
            {"name": name, "host": True} in manifest["dependencies"] for name in ("vcpkg-cmake", "vcpkg-cmake-config")),
        "the dependencies are sorted": (names := [one if isinstance(one, str) else one["name"] for one in
                                                  manifest["dependencies"]]) == sorted(names),
    }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        sys.exit("packages: " + "; ".join(broken))
    script, installed = scratch / "port.cmake", scratch / "installed"
    script.write_text(FUNCTIONS)
    run("cmake", f"-DPORT={PORT.name}", f"-DSCRATCH={scratch}", f"-DCURRENT_PACKAGES_DIR={installed}",
        f"-DPORTFILE={PORT / 'portfile.cmake'}", "-P", script)
    for file in ("copyright", "usage", "kvcacheConfig.cmake"):
        if not (installed / "share" / "kvcache" / file).exists():
            sys.exit(f"packages: the port installs no share/kvcache/{file}")
    user = scratch / "user"
    shutil.copytree(PROGRAM, user)
    text = (user / "CMakeLists.txt").read_text()
    (user / "CMakeLists.txt").write_text(text.replace("find_package(kvcache REQUIRED)", "find_package(kvcache CONFIG REQUIRED COMPONENTS cache)"))
    run("cmake", "-S", user, "-B", user / "build", f"-Dkvcache_DIR={installed / 'share' / 'kvcache'}", stdout=subprocess.DEVNULL)
    run("cmake", "--build", user / "build", stdout=subprocess.DEVNULL)
    run(user / "build" / "program")


def main() -> None:
    what, tool, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]).resolve()
    if what == "conan" and not tool.exists():
        print("SKIPPED: conan is not installed")
        return
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    if what == "conan":
        conan(tool.absolute(), scratch)
    else:
        vcpkg(scratch)


if __name__ == "__main__":
    main()
