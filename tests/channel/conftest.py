from rapport.testing.servers.nats import nats_address, nats_prefix, nats_server  # noqa: F401
from rapport.testing.servers.postgres import postgres, postgres_server  # noqa: F401
