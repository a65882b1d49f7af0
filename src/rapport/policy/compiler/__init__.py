"""From tree to plan, one stage per file. No I/O."""
