"""The shared folder: where each file is, how it is read and written, and the forms that all sides agree on."""
