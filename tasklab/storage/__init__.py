"""A content-addressed store of tensors, and files that are read without executing anything."""
