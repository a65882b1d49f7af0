"""What every process needs once: clock, timers, chance, settings, plug-ins, telemetry, tasks."""
