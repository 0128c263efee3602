"""What this machine gives to a server, memory and limits, and what runs on it: processes, ports.

Part of the facade: free of torch, and nothing of the engine is imported here, so that planning,
doctor and the worker read the same numbers.
"""
