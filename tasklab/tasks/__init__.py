"""Tasks (class names, prompts) and their images: drawn, decoded, or your own."""
