"""The SOAP door: XMessages port types over HTTP."""
