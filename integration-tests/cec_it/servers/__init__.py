"""Servers of object stores for tests: each runs on loopback, in a version that is pinned here."""

from __future__ import annotations
