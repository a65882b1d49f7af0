"""The words every room shares: ids, event, batch, message, detection, codec, errors. Pure."""
