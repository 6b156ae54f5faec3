"""Measurements: one file per question; raw values, machine and versions are kept in results/<name>/<machine>.json."""
