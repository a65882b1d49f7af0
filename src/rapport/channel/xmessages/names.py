"""Names of the XMessages schema and of SOAP. [CH-12]"""

from __future__ import annotations

XMESSAGES = "urn:rapport:xmessages:1"
"""Target namespace of our schema and WSDL."""
SOAP_11 = "http://schemas.xmlsoap.org/soap/envelope/"
SOAP_12 = "http://www.w3.org/2003/05/soap-envelope"
SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
XML = "http://www.w3.org/XML/1998/namespace"

HANDLE, REQUEST = "handleMessages", "requestMessages"
"""The two operations."""

# Headers of the envelope that have a field of their own in an XEvent.
NAMESPACE, HANDBACK, CONTENT_TYPE = "namespace", "handback", "datacontenttype"
TIME_TO_LIVE = "ttlms"
BARE = "xmlmessage"
"""Header of a message that was no XEvent; its value is always `bare`."""
