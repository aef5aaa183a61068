"""A campaign of damages and faults on a log in an object store, without Spark."""

from __future__ import annotations
