"""Servers that the adapters are tried against."""

from __future__ import annotations

from rapport.testing.servers.ftp import ftp_server as ftp_server
from rapport.testing.servers.imap import imap_server as imap_server
from rapport.testing.servers.mqtt import mqtt_broker as mqtt_broker
from rapport.testing.servers.mqtt import mqtt_name as mqtt_name
