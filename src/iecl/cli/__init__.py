"""The command: one file for each verb, imported when it is called."""
