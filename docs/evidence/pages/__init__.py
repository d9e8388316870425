"""Pages of the documents, made from what was measured."""
