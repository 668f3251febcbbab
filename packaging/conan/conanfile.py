# SPDX-License-Identifier: MIT
"""Conan 2 recipe: `conan create packaging/conan`. The option `model` adds attention, the transformer and sessions."""
import re
from pathlib import Path

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy


class KvcacheConan(ConanFile):
    name = "kvcache"
    license = "MIT"
    description = "Policy-based KV cache for large language models"
    topics = ("llm", "inference", "kv-cache", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"model": [True, False]}
    default_options = {"model": False}
    no_copy_source = True

    @property
    def _home(self) -> Path:
        return Path(self.recipe_folder).parent.parent

    def set_version(self):
        text = (self._home / "include" / "kvcache" / "core" / "abi.hpp").read_text()
        self.version = ".".join(re.search(rf"KVCACHE_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))

    def export_sources(self):
        copy(self, "include/*", self._home, self.export_sources_folder)
        copy(self, "LICENSE", self._home, self.export_sources_folder)

    def requirements(self):
        self.requires("xxhash/[>=0.8.1 <1]", transitive_headers=True)
        if self.options.model:
            self.requires("eigen/[>=3.4 <4]", transitive_headers=True)
            self.requires("xsimd/[>=8.1 <14]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()

    def package(self):
        copy(self, "LICENSE", self.source_folder, Path(self.package_folder) / "licenses")
        copy(self, "*", Path(self.source_folder) / "include", Path(self.package_folder) / "include")

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        cache = self.cpp_info.components["cache"]
        cache.set_property("cmake_target_name", "kvcache::cache")
        cache.requires = ["xxhash::xxhash"]
        if str(self.settings.os) in ("Linux", "FreeBSD"):
            cache.system_libs = ["pthread"]
        if self.options.model:
            model = self.cpp_info.components["kvcache"]
            model.set_property("cmake_target_name", "kvcache::kvcache")
            model.requires = ["cache", "eigen::eigen", "xsimd::xsimd"]
