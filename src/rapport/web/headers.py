"""The headers of every answer: nothing from elsewhere runs in our pages, and answer links do not
leak by referrer. [UX-5]
"""

from __future__ import annotations

SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def text_type(media_type: str) -> str:
    """A media type as the framework wants it: to every text it adds the charset itself, and said
    twice strict readers refuse the answer (Prometheus does).
    """
    is_text = media_type.startswith("text/")
    return media_type.removesuffix("; charset=utf-8") if is_text else media_type
