"""Includes point to a lower layer, without circles; dependencies stay behind their one header"""
from layers import check  # noqa: F401
