"""What is measured on edited models, one topic a module."""
