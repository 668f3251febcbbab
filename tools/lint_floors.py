"""Includes point down the floors, without circles; dependencies stay behind their one header"""
from floors import check  # noqa: F401
