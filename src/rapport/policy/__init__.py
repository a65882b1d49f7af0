"""Delivery policies: language, compiler, engine, explanations, lint and replay."""
