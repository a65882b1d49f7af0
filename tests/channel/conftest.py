from support.servers.nats import nats_address, nats_prefix, nats_server  # noqa: F401
from support.servers.postgres import postgres, postgres_server  # noqa: F401
