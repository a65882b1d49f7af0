"""Parts of the product as child processes, to be killed or stopped while they work."""
