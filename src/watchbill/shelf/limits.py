"""Every bound of the search for model files, named, with its unit."""

#: Files of the models folder, or manifests of an Ollama, that are looked at; deeper folders are not entered.
SHELF_FILES_MAX = 2_000
SHELF_DEPTH_MAX = 4
#: How often a daemon looks for files that came or went.
SHELF_LOOK_MS = 2_000
