"""Servers that the adapters are tried against."""

from __future__ import annotations

from support.servers.ftp import ftp_server as ftp_server
from support.servers.imap import imap_server as imap_server
from support.servers.mqtt import mqtt_broker as mqtt_broker
from support.servers.mqtt import mqtt_name as mqtt_name
