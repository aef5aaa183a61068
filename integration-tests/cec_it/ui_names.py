"""Names that a page must show as they are."""

from __future__ import annotations

HOSTILE = "<script>document.title='hacked'</script>"
QUOTED = """"prices" & 'Größe' 日本 → 100 %"""
