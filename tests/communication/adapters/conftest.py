"""Servers that the adapters are tried against."""

from __future__ import annotations

from rapport.testing.ftp_server import ftp_server as ftp_server
from rapport.testing.imap_server import imap_server as imap_server
from rapport.testing.mqtt import mqtt_broker as mqtt_broker
from rapport.testing.mqtt import mqtt_name as mqtt_name
