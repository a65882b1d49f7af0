"""Compiles a policy tree to a plan: check, normal form, logic tree, plan, lint. No I/O."""
