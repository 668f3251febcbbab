"""Lets a part of a large Python package run alone: what its modules import and that part never calls is replaced by
placeholders, which refuse to be called.
"""
import importlib.machinery
import sys
import types
from collections.abc import Iterable
from pathlib import Path


class Named(type):
    """Classes whose attributes are placeholders again, for annotations such as torch.nn.Module | None."""
    def __getattr__(cls, name: str):
        return attribute(cls, name)

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __call__(cls, *values, **named):
        raise RuntimeError(f"{cls.__name__} is a placeholder, and was called")


class Placeholder(types.ModuleType):
    def __getattr__(self, name: str):
        return attribute(self, name)


def attribute(of, name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    made = Named(name, (), {"__class_getitem__": classmethod(lambda cls, key: cls)})
    setattr(of, name, made)
    return made


class Finder:
    """Finds the placeholders, and the packages whose __init__.py is not run, before the installed modules are looked for."""
    def __init__(self, root: Path, not_run: Iterable[str], placeholders: Iterable[str]):
        self.root, self.not_run, self.placeholders = root, tuple(not_run), tuple(placeholders)

    def find_spec(self, name: str, path=None, target=None):
        if name in self.not_run:
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = [str(self.root.joinpath(*name.split(".")[1:]))]
            return spec
        if any(name == one or name.startswith(one + ".") for one in self.placeholders):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None if spec.name in self.not_run else Placeholder(spec.name)

    def exec_module(self, module):
        pass


def install(root: Path, not_run: Iterable[str], placeholders: Iterable[str]) -> None:
    """`root`: the folder of the package. `not_run`: packages whose modules run, and whose __init__.py does not."""
    sys.meta_path.insert(0, Finder(root, not_run, placeholders))
