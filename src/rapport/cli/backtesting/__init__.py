"""Policies over history on Spark: `rapport backtest`."""
