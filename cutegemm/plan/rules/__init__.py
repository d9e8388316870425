"""The rules that a plan keeps."""
