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
