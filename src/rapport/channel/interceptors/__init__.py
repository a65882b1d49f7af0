"""Plug-ins around append and delivery of a channel, changeable at run time. [CH-10]"""
