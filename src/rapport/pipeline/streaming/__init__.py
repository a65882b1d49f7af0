"""Policies live on Spark, by Structured Streaming. [PI-5, PO-8]"""
